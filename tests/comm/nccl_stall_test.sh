#!/bin/bash
# Ranks that stall or fail while others wait for them on the GPU end the job, with a message that says
# where. Needs two GPUs.
# Usage: nccl_stall_test.sh NCCL_STALL
set -eu
# shellcheck source=tests/comm/ends.sh
source "${0%/*}/ends.sh"
trap 'rm -f "$output"' EXIT
program=$1

# scenario NAME CODE TEXT: the scenario ends with CODE within a minute and says TEXT.
scenario() { ends "$2" "$3" 60 mpirun -n 2 --oversubscribe --bind-to none "$program" "$1"; }

scenario slow 0 'finished'
scenario absent 70 "group 'data', rank 0 of 2: starting NCCL, which every rank must join, took longer than 3 s"
scenario stall 70 "rank 0 on .*group 'data', rank 0 of 2: operation 3, all-reduce of .* for 3 s (comm.timeout)"
# Where the GPUs do not reach each other's memory, NCCL takes over and says the same.
scenario peer 70 "rank 0 on .*group 'data', rank 0 of 2: operation 3, .*all-reduce of .* for 3 s (comm.timeout)"
scenario copies 70 "rank 0 on .*group 'data', rank 0 of 2: operation [23], .*all-reduce of .* for 3 s (comm.timeout)"
scenario message 70 "rank 0 on .*group 'data', rank 0 of 2: route 1 -> 0: operation [12], receive.* of .* for 3 s (comm.timeout)"
scenario call 70 "group 'data', rank 0 of 2: operation 2, all-gather of .* for 3 s (comm.timeout)"
scenario fail 65 'rank 1 found bad data'
