#!/usr/bin/env bash
# The one list of system packages (Debian 12, Ubuntu 24.04), and what installs the missing ones.
#
#   cmake/dependencies.sh [--with-tests] [--with-corpus]          install what is missing
#   cmake/dependencies.sh [--with-tests] [--with-corpus] --list   print the names, install nothing
#
# Needs root or sudo only when something is missing; without them it prints the command to run.
set -euo pipefail

build_packages=(
  g++ cmake ninja-build pkg-config
  openmpi-bin libopenmpi-dev        # ranks
  libhdf5-openmpi-dev               # checkpoints, written in parallel
  libopenblas-dev                   # GEMM of the host backend
  libyaml-cpp-dev                   # the deck
  libboost-program-options-dev      # command lines
  libfmt-dev nlohmann-json3-dev     # text and JSON
  libpcre2-dev libicu-dev           # words and normal forms of text
  libsentencepiece-dev              # tokenizing
  zlib1g-dev libarchive-dev         # packed inputs
  libedit-dev                       # line editing of trireme-generate
  libcpp-httplib-dev                # trireme-serve
  libcld2-dev                       # languages of texts: trireme-preprocess clean
)
test_packages=(
  libgtest-dev libbenchmark-dev python3-numpy python3-h5py clang-format-14 shellcheck dpkg-dev
  clang-16 libclang-rt-16-dev libomp-16-dev  # the sanitizers' build, which GCC takes twice as long for
  slurm-wlm munge iproute2          # a cluster of namespaces
)
corpus_packages=(bible-kjv bible-kjv-text)

packages=("${build_packages[@]}")
list_only=false
for argument in "$@"; do
  case $argument in
    --with-tests) packages+=("${test_packages[@]}") ;;
    --with-corpus) packages+=("${corpus_packages[@]}") ;;
    --list) list_only=true ;;
    *)
      echo "dependencies.sh: unknown option '$argument' (--with-tests, --with-corpus, --list)" >&2
      exit 2
      ;;
  esac
done

if $list_only; then
  printf '%s\n' "${packages[@]}"
  exit 0
fi

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "dependencies.sh: no apt here; install what provides: ${packages[*]}" >&2
  exit 1
fi

# dpkg-query fails for a name it has never heard of: that one is missing, too.
installed=$(dpkg-query --show --showformat '${db:Status-Status} ${Package}\n' "${packages[@]}" \
  2>/dev/null | sed -n 's/^installed //p') || true
missing=()
for package in "${packages[@]}"; do
  grep -qxF -- "$package" <<<"$installed" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi

apt=(apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
install=(install --yes --no-install-recommends "${missing[@]}")
if [ "$(id -u)" -eq 0 ]; then
  as_root=(env)
elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
  as_root=(sudo env)
else
  echo "dependencies.sh: ${#missing[@]} packages are missing, and this is neither root nor able to sudo." >&2
  echo "Have root run:  apt-get update && apt-get ${install[*]}" >&2
  exit 1
fi

install_missing() {
  "${as_root[@]}" DEBIAN_FRONTEND=noninteractive "${apt[@]}" --quiet=2 update &&
    "${as_root[@]}" DEBIAN_FRONTEND=noninteractive "${apt[@]}" --quiet=2 "${install[@]}"
}

echo "Installing ${#missing[@]} packages: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for attempt in 1 2; do
  if install_missing >"$log" 2>&1; then
    exit 0
  fi
  echo "dependencies.sh: apt-get failed (attempt $attempt of 2):" >&2
  tail -n 20 "$log" >&2
  sleep $((attempt == 1 ? 5 : 0))
done
echo "dependencies.sh: could not install: ${missing[*]}" >&2
exit 1
