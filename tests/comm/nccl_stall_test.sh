#!/bin/sh
# Ranks that stall or fail while others wait for them on the GPU end the job, with a message that says
# where. Needs two GPUs.
# Usage: nccl_stall_test.sh NCCL_STALL
set -eu
program=$1
output=$(mktemp)
trap 'rm -f "$output"' EXIT

# ends SCENARIO CODE TEXT: the scenario ends with CODE within a minute and says TEXT.
ends() {
    found=0
    timeout 60 mpirun -n 2 --oversubscribe --bind-to none "$program" "$1" >"$output" 2>&1 || found=$?
    if [ "$found" -eq 77 ]; then
        cat "$output"
        exit 77
    fi
    if [ "$found" -ne "$2" ] || ! grep -q -- "$3" "$output"; then
        echo "$1: expected exit code $2 and '$3', got $found and:"
        cat "$output"
        exit 1
    fi
    echo "$1: as expected"
}

ends slow 0 'finished'
ends absent 70 "group 'data', rank 0 of 2: starting NCCL, which every rank must join, took longer than 3 s"
ends stall 70 "rank 0 on .*group 'data', rank 0 of 2: operation 3, all-reduce of .* for 3 s (comm.timeout)"
# Where the GPUs do not reach each other's memory, NCCL takes over and says the same.
ends peer 70 "rank 0 on .*group 'data', rank 0 of 2: operation 3, .*all-reduce of .* for 3 s (comm.timeout)"
ends copies 70 "rank 0 on .*group 'data', rank 0 of 2: operation [23], .*all-reduce of .* for 3 s (comm.timeout)"
ends message 70 "rank 0 on .*group 'data', rank 0 of 2: route 1 -> 0: operation [12], receive.* of .* for 3 s (comm.timeout)"
ends call 70 "group 'data', rank 0 of 2: operation 2, all-gather of .* for 3 s (comm.timeout)"
ends fail 65 'rank 1 found bad data'
