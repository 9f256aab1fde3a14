#!/usr/bin/env bash
# Makes an enroot image without Docker: a bare system of this host's Debian or Ubuntu release, the
# libraries that the programs load, and the programs, in PATH. Needs root, debootstrap and mksquashfs
# (squashfs-tools); takes some minutes. Starting ranks in the image needs no root.
#
#   jobs/container/build-image.sh [IMAGE]       trireme.sqsh by default
#   PROGRAMS=FOLDER MIRROR=URL jobs/container/build-image.sh
#
# cuBLASLt and NCCL are copied if the loader finds them here (or in CUDA_HOME/lib64); enroot's hook
# 98-nvidia.sh adds the driver's libraries when a container starts.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
image=$(realpath -m -- "${1:-trireme.sqsh}")
programs=${PROGRAMS:-$here/../../build/release/bin}

refuse() {
  echo "build-image.sh: $1" >&2
  exit 1
}

[ "$(id -u)" -eq 0 ] || refuse "debootstrap needs root"
for tool in debootstrap mksquashfs; do
  command -v "$tool" >/dev/null || refuse "there is no $tool: apt-get install debootstrap squashfs-tools"
done
[ -x "$programs/trireme-pretrain" ] || refuse "there is no trireme-pretrain in $programs: build it, or set PROGRAMS"
[ -d "$(dirname "$image")" ] || refuse "there is no folder for $image"

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work" "$image.part"' EXIT
root=$work/root

# ---- the system and its libraries
# shellcheck source=/dev/null
suite=$(source /etc/os-release && echo "$VERSION_CODENAME")
packages=$("$here/runtime-packages.sh" "$programs"/trireme-* | paste -sd ,)
echo "a bare $suite with ${packages//,/, }"
debootstrap --variant=minbase --components=main,universe --include="$packages" \
  "$suite" "$root" ${MIRROR:+"$MIRROR"} >"$work/log" 2>&1 ||
  refuse "debootstrap failed: $(tail -n 1 "$work/log")"
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,man,locale}/*

# ---- the programs, and the libraries that they load at run time on GPUs
install "$programs"/trireme-* "$root/usr/local/bin"
for library in "$programs"/../lib/libtrireme_*; do
  if [ -e "$library" ]; then install "$library" "$root/usr/local/lib"; fi
done
for name in libcublasLt.so libnccl.so.2; do
  found=$( (ldconfig -p | awk -v name="$name" 'index($1, name) == 1 { print $NF }'
    ls "${CUDA_HOME:-/usr/local/cuda}/lib64/$name"* 2>/dev/null) | head -n 1) || true
  if [ -n "$found" ]; then
    cp -L "$found" "$root/usr/local/lib/$(objdump -p "$found" | awk '$1 == "SONAME" { print $2 }')"
  else
    echo "note: there is no $name here: runs on GPUs need one mounted into the image"
  fi
done
chroot "$root" ldconfig
# Read by enroot's hooks: the parts of the driver that programs use.
cat >>"$root/etc/environment" <<'VARIABLES'
NVIDIA_VISIBLE_DEVICES=all
NVIDIA_DRIVER_CAPABILITIES=compute,utility
OMPI_MCA_btl_vader_single_copy_mechanism=none
VARIABLES

# ---- run every program in the image
echo "trying the programs in it"
for program in "$programs"/trireme-*; do
  name=$(basename "$program")
  chroot "$root" "$name" --version >/dev/null 2>"$work/log" || refuse "$name does not run in it: $(head -n 1 "$work/log")"
done

# ---- pack it, without device files, which only root could unpack; stronger compression takes minutes and
# saves a few percent
echo "packing it"
rm -rf --one-file-system "${root:?}"/dev/*
mksquashfs "$root" "$image.part" -all-root -comp zstd -Xcompression-level 3 -noappend -quiet -no-progress
mv "$image.part" "$image"
echo "$image: $(du -h "$image" | cut -f 1); jobs/README.md says how to start ranks in it"
