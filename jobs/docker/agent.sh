#!/bin/sh
# mpirun's agent of jobs/docker/train.sh: runs COMMAND in the container of HOST.
#
#   agent.sh HOST COMMAND...
host=$1
shift
# The command is a line of shell: quoted once for the shell of the host.
line=$(printf '%s' "$*" | sed "s/'/'\\\\''/g")
# shellcheck disable=SC2086,SC2029 # TRIREME_SSH has options
exec $TRIREME_SSH "$host" "$TRIREME_DOCKER sh -c '$line'"
