# What the scripts of this folder share; sourced, not run. Afterwards the working directory is the
# source tree's root, and a script that fails says in which stage.
# shellcheck shell=bash

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit

program=${0##*/}
current_stage="starting up"

# say_failure: the last line of a script that did not succeed.
say_failure() {
  local code=$?
  if [ $code -ne 0 ]; then
    echo "$program: FAILED while $current_stage (exit code $code)" >&2
  fi
}
trap say_failure EXIT

# stage WHAT COMMAND...: runs the command under a heading, and prints how long it took.
stage() {
  current_stage=$1
  shift
  local start=$SECONDS
  printf '\n== %s\n' "$current_stage"
  "$@"
  printf '== %s: %d s\n' "$current_stage" $((SECONDS - start))
}

# refuse WHY: ends the script with one line.
refuse() {
  echo "$program: $1" >&2
  trap - EXIT
  exit "${2:-1}"
}

# HDF5's compiler wrapper, which CMake asks for flags, takes a path apart at its spaces.
case $PWD in
  *[[:space:]]*) refuse "cannot build in '$PWD': move the tree to a path without spaces" ;;
esac

# up_to_date FILE SOURCE...: whether FILE exists and is no older than any source.
up_to_date() {
  local file=$1 source
  shift
  [ -e "$file" ] || return 1
  for source in "$@"; do
    if [ "$source" -nt "$file" ]; then return 1; fi
  done
}

# build PRESET TARGET...: builds the targets (all, when none is named), quietly where nobody watches.
build() {
  local preset=$1 quiet=()
  shift
  [ -t 1 ] || quiet=(-- --quiet)
  cmake --build --preset "$preset" --parallel "$(nproc)" ${1:+--target "$@"} "${quiet[@]}"
}

# Open MPI refuses root, and warns in containers that lack CAP_SYS_PTRACE, unless told otherwise.
if [ "$(id -u)" -eq 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# More ranks than cores: a rank that waits must leave its core to one that computes.
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_mpi_yield_when_idle=1
