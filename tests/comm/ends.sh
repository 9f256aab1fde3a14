# Launches a job whose ranks end it, and checks its exit code and its messages; for stall tests.
# shellcheck shell=bash

output=$(mktemp)
check_interval=3 hung_checks=6 # 18 seconds: on a busy machine mpirun takes some to end

# children PID: the processes that a process has started, a line each.
children() {
    cat "/proc/$1/task/"*/children 2>/dev/null | tr -s ' ' '\n'
}

# state PID: R, S, T, ...; "" once the process has ended and its parent has waited for it.
state() {
    sed 's/.*) \(.\).*/\1/' "/proc/$1/stat" 2>/dev/null
}

# start_time PID: tells a process from a later one with its PID; "" once it has ended.
start_time() {
    sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20
}

# end_hung_mpirun PID: Open MPI 4.1's mpirun may hang after an abort. Kills one that still runs, with no children but
# its ranks, after $hung_checks checks in which at least one rank has ended and each other rank has ended or is
# stopped (SIGSTOP).
end_hung_mpirun() {
    local started child ended idle=0
    local -A ranks=()
    started=$(start_time "$1")
    while true; do
        sleep "$check_interval" >/dev/null 2>&1 || return # it outlives this shell, whose output has readers
        if [ "$(start_time "$1")" != "$started" ]; then return; fi
        ended=0
        for child in $(children "$1"); do
            if grep -qsz '^OMPI_COMM_WORLD_RANK=' "/proc/$child/environ"; then ranks[$child]=1; fi
            if [ -z "${ranks[$child]:-}" ] && [ "$(state "$child")" != Z ]; then idle=0 && continue 2; fi
        done
        for child in "${!ranks[@]}"; do
            case $(state "$child") in
                '' | Z | X) ended=1 ;;
                T | t) ;;
                *) idle=0 && continue 2 ;;
            esac
        done
        if [ "$ended" -eq 1 ]; then idle=$((idle + 1)); else idle=0; fi
        if [ "$idle" -eq "$hung_checks" ]; then break; fi
    done
    echo "mpirun hangs after its ranks have ended: killing it" >&2
    { echo "$1" && children "$1"; } | xargs kill -KILL
}

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
