#!/usr/bin/env bash
# Stands in for ssh on the login node of cluster.sh: ssh.sh HOST COMMAND... runs the command among the
# processes of the host $CLUSTER tells of, with as little environment as ssh leaves it.
set -eu
readonly host=$1
shift
if [ ! -r "$CLUSTER/$host.pid" ]; then
  echo "ssh.sh: there is no host '$host'" >&2
  exit 255
fi
exec nsenter --target "$(cat "$CLUSTER/$host.pid")" --mount --net --uts --ipc --pid -- \
  env --ignore-environment HOME="$HOME" PATH="$PATH" TMPDIR="$CLUSTER/tmp" sh -c "$*"
