#!/usr/bin/env bash
# Prints the packages of this system that hold the libraries which the given programs load, and
# openmpi-bin: what an image has to install to run them.
#
#   jobs/container/runtime-packages.sh PROGRAM...
set -euo pipefail

if [ $# -eq 0 ]; then
  echo "runtime-packages.sh: no program is given" >&2
  exit 2
fi
# By their real names, for links are not in dpkg's lists; and by those from before /lib became /usr/lib.
mapfile -t libraries < <(ldd -- "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  xargs readlink -f)
{
  echo openmpi-bin
  # It fails because it knows each of them by one name only.
  { dpkg-query --search "${libraries[@]}" "${libraries[@]#/usr}" 2>/dev/null || true; } | cut -d : -f 1
} | sort -u
