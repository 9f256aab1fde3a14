#!/usr/bin/env bash
# Builds jobs/container/Dockerfile: by docker, podman or buildah where one of them works, else by running its
# commands in a bare system of this host's release. There is no CUDA in that, and the programs that are there
# already stand for `cmake --build`.
#
#   PROGRAMS=FOLDER dockerfile.sh
set -euo pipefail
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
file=$tree/jobs/container/Dockerfile

for tool in docker podman buildah; do
  if command -v "$tool" >/dev/null && "$tool" info >/dev/null 2>&1; then
    exec "$tool" build --file "$file" --tag trireme-test "$tree"
  fi
done
if [ "$(id -u)" -ne 0 ] || ! command -v debootstrap >/dev/null; then
  echo "SKIPPED: neither docker, podman nor buildah works here, and there is no root with debootstrap"
  exit 77
fi

work=$(mktemp -d)
cleanup() {
  for root in "$work"/*/; do umount "${root}proc" 2>/dev/null || true; done
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT
# shellcheck source=/dev/null
suite=$(source /etc/os-release && echo "$VERSION_CODENAME")
echo "== a bare $suite"
if ! debootstrap --variant=minbase --components=main,universe "$suite" "$work/bare" >"$work/log" 2>&1; then
  echo "SKIPPED: no mirror of packages: $(tail -n 1 "$work/log")"
  exit 77
fi

# run ROOT COMMAND: as a RUN line of the Dockerfile.
run() {
  echo "== RUN $2"
  mount -t proc proc "$1/proc"
  chroot "$1" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
    DEBIAN_FRONTEND=noninteractive sh -ec "cd '$directory'; $2" </dev/null >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log"; exit 1; }
  umount "$1/proc"
}

# The instructions, one a line.
stage="" root="" directory=/
while read -r instruction words; do
  case $instruction in
    FROM)
      stage=${words##* AS }
      if [ "$stage" = "$words" ]; then stage=last; fi
      root=$work/$stage directory=/
      cp -a "$work/bare" "$root"
      ;;
    WORKDIR) directory=$words ;;
    COPY)
      read -ra paths <<<"$words"
      to=$root${paths[-1]} from=$tree
      unset 'paths[-1]'
      if [[ ${paths[0]} == --from=* ]]; then
        from=$work/${paths[0]#--from=}
        paths=("${paths[@]:1}")
      fi
      if [ "${paths[0]}" = . ]; then
        mkdir -p "$to"
        git -C "$tree" ls-files -z | tar -C "$tree" --null --files-from=- -c | tar -C "$to" -x
      else
        if compgen -G "$from${paths[0]}" >/dev/null; then
          # shellcheck disable=SC2086  # a pattern
          cp -r "$from"${paths[0]} "$to"
        else
          echo "== COPY $words: nothing, since this build has no CUDA"
        fi
      fi
      ;;
    RUN)
      if [[ $words == *"cmake --build"* ]]; then
        mkdir -p "$root/programs/bin" "$root/programs/lib"
        cp "$PROGRAMS"/trireme-* "$root/programs/bin"
        cp "$PROGRAMS"/../lib/libtrireme_* "$root/programs/lib" 2>/dev/null || true  # of a build with CUDA
        words=${words//TRIREME_CUDA=ON/TRIREME_CUDA=OFF}
        copy="cp -r /programs/bin /programs/lib build/release"
        words=${words//cmake --build --preset release/"$copy"}
      fi
      run "$root" "$words"
      ;;
  esac
done < <(sed -e '/^#/d' -e ':a' -e '/\\$/N; s/\\\n//; ta' "$file")

for program in "$PROGRAMS"/trireme-*; do
  run "$root" "$(basename "$program") --version"
done
echo "every program starts in the image"
