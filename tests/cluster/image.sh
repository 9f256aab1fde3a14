#!/usr/bin/env bash
# Makes the enroot image of container_test.py where there is enroot, unless it is newer than the programs.
#
#   PROGRAMS=FOLDER image.sh IMAGE
#
# It is made outside of cluster.sh's hosts, from where no mirror of packages can be reached.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")

for program in enroot debootstrap mksquashfs; do
  if ! command -v "$program" >/dev/null; then
    echo "SKIPPED: there is no $program here"
    exit 77
  fi
done
if [ "$1" -nt "$PROGRAMS/trireme-pretrain" ]; then exit; fi
exec "$here/../../jobs/container/build-image.sh" "$1"
