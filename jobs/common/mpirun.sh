# end_hung_mpirun, for scripts that start mpirun: Open MPI 4.1's may hang after an abort.
# shellcheck shell=bash

# children PID: the processes that a process has started, a line each.
children() {
  cat "/proc/$1/task/"*/children 2>/dev/null | tr -s ' ' '\n'
}

# rank_states PID: the states of the ranks that mpirun has started on this host, a letter each.
rank_states() {
  local child
  children "$1" | while read -r child; do
    if grep -qz '^OMPI_COMM_WORLD_RANK=' "/proc/$child/environ"; then
      sed 's/.*) \(.\).*/\1/' "/proc/$child/stat"
    fi
  done 2>/dev/null | tr -d '\n'
}

# start_time PID: a process's, which tells it from a later one with its number; "" once it has ended.
start_time() {
  sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20
}

# end_hung_mpirun PID: kills mpirun once ranks of this host have ended and six looks, MPIRUN_LOOK (10) seconds apart,
# have found none that runs; a stopped rank (T) does not run.
end_hung_mpirun() {
  local states started most=0 idle=0
  started=$(start_time "$1")
  while sleep "${MPIRUN_LOOK:-10}" >/dev/null 2>&1; do # it outlives this shell, whose output has readers
    if [ "$(start_time "$1")" != "$started" ]; then return; fi
    states=$(rank_states "$1")
    if [ ${#states} -gt "$most" ]; then most=${#states}; fi
    if [ ${#states} -lt "$most" ] && [ -z "${states//T/}" ]; then idle=$((idle + 1)); else idle=0; fi
    if [ "$idle" -eq 6 ]; then break; fi
  done
  echo "mpirun hangs after its ranks have ended: killing it" >&2
  { echo "$1" && children "$1"; } | xargs kill -KILL
}
