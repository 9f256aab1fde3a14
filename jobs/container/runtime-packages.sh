#!/usr/bin/env bash
# Prints the packages that an image has to install to run the given programs: those of the libraries
# that they load, and openmpi-bin.
#
#   jobs/container/runtime-packages.sh PROGRAM...
set -euo pipefail

if [ $# -eq 0 ]; then
  echo "runtime-packages.sh: no program is given" >&2
  exit 2
fi
# By their real names, since dpkg does not list links; and without /usr, as dpkg lists files of /lib.
mapfile -t libraries < <(ldd -- "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  xargs readlink -f)
{
  echo openmpi-bin
  # dpkg-query fails for each of the two names that it does not know.
  { dpkg-query --search "${libraries[@]}" "${libraries[@]#/usr}" 2>/dev/null || true; } | cut -d : -f 1
} | sort -u
