#!/bin/bash
# A rank that keeps others waiting on the host ends the job, and is named.
# Usage: mpi_stall_test.sh MPIEXEC MPI_STALL
set -eu
# shellcheck source=tests/comm/ends.sh
source "${0%/*}/ends.sh"
folder=$(mktemp -d)
trap 'rm -rf "$output" "$folder"' EXIT

stall=("$1" -n 3 --oversubscribe --bind-to none "$2")

# scenario NAME CODE TEXT: the scenario ends with CODE within two minutes and says TEXT.
scenario() { ends "$2" "$3" 120 "${stall[@]}" "$1"; }

host=$(hostname)
barrier="rank 0 on $host: MPI_Barrier in group 'world', rank 0 of it, took longer than 2 s (comm.timeout)"
scenario slow 0 'finished'
scenario busy 70 "$barrier; rank 2 on $host answers but is in no communication call"
scenario progress 70 "$barrier; no answer from rank 2 on $host"
scenario computing 70 "$barrier; no answer from rank 2 on $host"
scenario spinning 70 "$barrier; rank 2 on $host answers but is in no communication call"
scenario work 70 "rank 2 on $host: writing a file made no progress for 2 s (comm.timeout)"
scenario stopped 70 "$barrier; no answer from rank 2 on $host"
scenario code 75 "$barrier; no answer from rank 2 on $host"
scenario chain 70 "rank 0 on $host: .* group 'front', .*; no answer from rank 2 on $host"
scenario circle 70 "MPI_Wait in group 'world', .*; all ranks that it waits for are in communication calls as well"
scenario library 70 "rank 0 on $host: closing a file in group 'world', .*; rank 2 on $host answers"
scenario finalize 70 "rank 1 on $host: MPI_Finalize took longer than 2 s"

# The job ends when the ranks that can be reached have written their stacks, however long that takes: the last
# one's file takes nothing before a reader has it open, 4 s after the time-out.
mkfifo "$folder/2"
(
    for _ in $(seq 600); do
        if grep -q 'took longer' "$output"; then break; fi
        sleep 0.1
    done
    sleep 4
    timeout 20 cat "$folder/2" >"$folder/read"
) &
reader=$!
launch 120 "${stall[@]}" busy "$folder"
wait "$reader" || true
for rank in 0 1; do grep -q "^\[rank $rank on .*] *main (" "$folder/$rank"; done || {
    echo "stacks: a rank's are missing:" "$folder"/*
    exit 1
}
grep -q '^\[rank 2 on .*] *main (' "$folder/read" || {
    echo "stacks: the job has ended before rank 2 had written its own:"
    cat "$output" "$folder/read"
    exit 1
}
echo "stacks: as expected"
