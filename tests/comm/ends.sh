# What scripts share that start programs whose ranks end the job: how such a job ends.
# shellcheck shell=bash
# shellcheck source=jobs/common/mpirun.sh
source "${BASH_SOURCE[0]%/*}/../../jobs/common/mpirun.sh"

output=$(mktemp)
export MPIRUN_LOOK=3 # seconds: on a busy machine mpirun takes some to end

# launch SECONDS MPIRUN WORDS...: starts mpirun for so long at most; its exit code is $found, and $output has what it
# prints. One that hangs is killed.
launch() {
    local watchers=() watcher
    found=0
    "${@:2}" >"$output" 2>&1 &
    local launched=$!
    end_hung_mpirun $launched 2>>"$output" &
    watchers+=($!)
    { sleep "$1" && kill -KILL $launched; } >/dev/null 2>&1 &
    watchers+=($!)
    disown "${watchers[@]}"
    wait $launched || found=$?
    for watcher in "${watchers[@]}"; do kill "$watcher" || true; done 2>/dev/null
}

# Whether Open MPI's mpirun itself hung or crashed after an abort: its exit code is lost.
launcher_failed() { grep -qE 'PMIx_server_finalize|mpirun hangs after its ranks' "$output"; }

# fail TEXT: ends the test.
fail() {
    echo "$1, got $found and:"
    cat "$output"
    exit 1
}

# ends CODE TEXT SECONDS MPIRUN WORDS...: the job ends with CODE within so long, and its ranks say TEXT. Where mpirun
# itself fails, they still have to; the code is that of another launch.
ends() {
    local try scenario=${*: -1}
    for try in 1 2 3; do
        launch "${@:3}"
        if [ "$found" -eq 77 ]; then
            cat "$output"
            exit 77
        fi
        if ! grep -q -- "$2" "$output"; then fail "$scenario: expected '$2'"; fi
        if ! launcher_failed; then break; fi
        echo "$scenario: mpirun itself failed in launch $try"
    done
    if launcher_failed || [ "$found" -ne "$1" ]; then fail "$scenario: expected exit code $1 and '$2'"; fi
    echo "$scenario: as expected"
}
