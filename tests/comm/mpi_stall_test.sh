#!/bin/sh
# A rank that keeps others waiting on the host ends the job, and is named.
# Usage: mpi_stall_test.sh MPIEXEC MPI_STALL
set -eu
launcher=$1
program=$2
output=$(mktemp)
folder=$(mktemp -d)
trap 'rm -rf "$output" "$folder"' EXIT

# launch SCENARIO [FOLDER]: starts it for two minutes at most; its exit code is $found.
launch() {
    found=0
    timeout --signal=KILL 120 "$launcher" -n 3 --oversubscribe --bind-to none "$program" "$@" \
        >"$output" 2>&1 || found=$?
}

# ends SCENARIO CODE TEXT: the scenario ends with CODE and says TEXT.
ends() {
    launch "$1"
    # Now and then Open MPI's launcher itself crashes after an abort, and its exit code is lost.
    if grep -q PMIx_server_finalize "$output"; then launch "$1"; fi
    if [ "$found" -ne "$2" ] || ! grep -q -- "$3" "$output"; then
        echo "$1: expected exit code $2 and '$3', got $found and:"
        cat "$output"
        exit 1
    fi
    echo "$1: as expected"
}

host=$(hostname)
barrier="rank 0 on $host: MPI_Barrier in group 'world', rank 0 of it, took longer than 2 s (comm.timeout)"
ends slow 0 'finished'
ends busy 70 "$barrier; rank 2 on $host answers but is in no communication call"
ends progress 70 "$barrier; no answer from rank 2 on $host"
ends work 70 "rank 2 on $host: writing a file made no progress for 2 s (comm.timeout)"
ends stopped 70 "$barrier; no answer from rank 2 on $host"
ends code 75 "$barrier; no answer from rank 2 on $host"
ends chain 70 "rank 0 on $host: .* group 'front', .*; no answer from rank 2 on $host"
ends circle 70 "MPI_Wait in group 'world', .*; all ranks that it waits for are in communication calls as well"
ends library 70 "rank 0 on $host: closing a file in group 'world', .*; rank 2 on $host answers"
ends finalize 70 "rank 1 on $host: MPI_Finalize took longer than 2 s"

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
launch busy "$folder"
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
