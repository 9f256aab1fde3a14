# Functions that the scripts of this folder share; sourced. Changes to the root of the source tree; a
# script that fails prints the stage in which it failed.
# shellcheck shell=bash

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit

program=${0##*/}
current_stage="starting up"

# say_failure: prints the last line of a script that failed.
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

# HDF5's compiler wrapper, which CMake runs for its flags, splits paths at spaces.
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

# build PRESET [TARGET...]: builds the targets, or everything; quietly unless on a terminal.
build() {
  local preset=$1 quiet=()
  shift
  [ -t 1 ] || quiet=(-- --quiet)
  cmake --build --preset "$preset" --parallel "$(nproc)" ${1:+--target "$@"} "${quiet[@]}"
}

# By default Open MPI refuses root, and warns in containers that lack CAP_SYS_PTRACE.
if [ "$(id -u)" -eq 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# With more ranks than cores, a waiting rank must yield its core.
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_mpi_yield_when_idle=1
