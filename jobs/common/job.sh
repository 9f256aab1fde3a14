# Functions that the job scripts share; sourced after the block at the top of each script, which sets
#
#   TRIREME   this source tree          PROGRAM  trireme-pretrain: a path, or a name on PATH
#   SITE      a folder of jobs/sites    DECK     the deck
#   RUN       the run folder ("": the deck's run.output)
#   KEYS      overrides, key=value, without spaces
#   IMAGE     an enroot image ("" for none); its PROGRAM is used instead of this tree's
#   MOUNTS    folders of the host that the image sees: OUTSIDE:INSIDE[,...]
#
# A job exits with the program's exit code. 75, stopped early with a checkpoint, requeues a Slurm job,
# as does 77 where the host with wrong results can be excluded; a rank that a signal killed counts as 75 once this start of the run has written a checkpoint.
# shellcheck shell=bash
set -u

# refuse WHY: ends the script with one line.
refuse() {
  echo "${SLURM_JOB_NAME:-${0##*/}}: $1" >&2
  exit 1
}

# need_file WHAT PATH NAME: refuses if PATH cannot be read; NAME is the variable to set.
need_file() {
  [ -r "$2" ] || refuse "there is no $1 '$2': set $3 at the top of the job"
}

# need_command NAME WHY
need_command() {
  command -v "$1" >/dev/null || refuse "there is no '$1' on $(hostname): $2"
}

# ---- the site and the run

case $PWD$TRIREME$DECK$RUN$PROGRAM$IMAGE${MOUNTS:-} in
  *[[:cntrl:]]*) refuse "a path has a line break or another control character: $(printf '%q' "$PWD"): rename it" ;;
esac

site_profile=$TRIREME/jobs/sites/$SITE/profile
if [ ! -r "$site_profile" ]; then
  refuse "there is no site '$SITE' in $TRIREME/jobs/sites: set SITE to one of: $(
    cd "$TRIREME/jobs/sites" 2>/dev/null && echo *)"
fi
# shellcheck source=jobs/sites/debian/profile
source "$site_profile" || refuse "$site_profile failed"

need_file deck "$DECK" DECK
if [ -n "$IMAGE" ]; then
  need_file image "$IMAGE" IMAGE
  IMAGE=$(realpath -- "$IMAGE") # pyxis takes a name without a / as one in a registry
  case $PROGRAM in "$TRIREME"/*) PROGRAM=${PROGRAM##*/} ;; esac
  case $MOUNTS in
    *[[:space:]]*) refuse "pyxis cannot mount a path with a space: set MOUNTS, which is '$MOUNTS'" ;;
  esac
elif [ -z "${DOCKER_IMAGE:-}" ]; then
  need_command "$PROGRAM" "set PROGRAM at the top of the job to where trireme-pretrain is"
fi

# output_word FOLDER: the override that sets the run folder, quoted for YAML.
output_word() {
  local text=${1//\\/\\\\}
  printf 'run.output="%s"\n' "${text//\"/\\\"}"
}

# The command that every rank runs.
words=("$PROGRAM" "$DECK")
if [ -n "$RUN" ]; then words+=("$(output_word "$RUN")"); fi
read -rd "" -a key_words <<<"$KEYS"
words+=("${key_words[@]}")

# ---- profilers

# NSYS=1 and NCU=1 run every rank under Nsight Systems or Nsight Compute, whose reports come into
# <run>/profile, a file for each rank; NSYS_OPTIONS and NCU_OPTIONS are further options. Nsight Compute runs
# kernels many times: it takes a hundred of them, once training is under way.
profiler=()
case ${NSYS:-0}${NCU:-0} in
  00) ;;
  11) refuse "NSYS=1 and NCU=1 exclude each other" ;;
  10 | 01)
    profile_folder=$RUN
    if [ -z "$profile_folder" ]; then
      profile_folder=$("${words[@]}" --print-value run.output 2>/dev/null) ||
        refuse "a profiler needs the run folder, which cannot be asked for here: set RUN at the top of the job"
    fi
    mkdir -p -- "$profile_folder/profile" || refuse "there can be no folder $profile_folder/profile"
    if [ "${NSYS:-0}" = 1 ]; then
      read -rd "" -a profiler <<<"nsys profile --trace=cuda,nvtx,mpi ${NSYS_OPTIONS:-}"
      profiler+=("--output=$profile_folder/profile/nsys-%h-%p")
    else
      read -rd "" -a profiler <<<"ncu --nvtx --launch-skip=2000 --launch-count=100 ${NCU_OPTIONS:-}"
      profiler+=("--export=$profile_folder/profile/ncu-%h-%p")
    fi
    if [ -z "$IMAGE" ]; then need_command "${profiler[0]}" "install Nsight, or load its module"; fi
    ;;
  *) refuse "NSYS and NCU are 1 or 0, not '${NSYS:-0}' and '${NCU:-0}'" ;;
esac
# What the ranks run.
rank_words=("${profiler[@]}" "${words[@]}")

# ---- outside a job: check on the login node, then submit

# sbatch_option NAME OPTIONS...: the option's last value in OPTIONS, else in the #SBATCH lines.
sbatch_option() {
  local name=$1
  shift
  { sed -n "s/^#SBATCH  *--${name}[= ]//p" "$0" && printf '%s\n' "$@" | sed -n "s/^--$name=//p"; } | tail -n 1
}

# submit [SBATCH OPTIONS]: submits this script, unless it already runs in a job.
submit() {
  if [ -n "${SLURM_JOB_ID:-}" ]; then return; fi
  need_command sbatch "submit where Slurm's commands are, or use jobs/ssh/train.sh"
  local partition partitions list
  IFS=, read -ra partitions <<<"$(sbatch_option partition "$@")"
  list=$(sinfo --noheader --format=%R) || refuse "Slurm does not answer: see sinfo"
  for partition in "${partitions[@]}"; do
    grep -qxF -- "$partition" <<<"$list" ||
      refuse "there is no partition '$partition': set --partition to one of: $(sort -u <<<"$list" | paste -sd ' ')"
  done
  if [ -z "$IMAGE" ]; then "${words[@]}" --check || exit; fi
  exec sbatch "$@" "$0"
}

# ---- in a job

# Sets `srun_options`, the options of srun that all jobs need.
#
# --wait=30: a rank that dies ends the others after half a minute. --kill-on-bad-exit would also kill
# ranks that are about to exit with 75, and the job's exit code would be 137. --gpu-bind=none: each rank
# sees all GPUs of its node and takes the one with its local rank, since otherwise GPUs cannot reach each
# other's memory. From Slurm 22.05 on srun ignores the job's --cpus-per-task unless SRUN_CPUS_PER_TASK is
# set. --no-container-remap-root: PMIx refuses ranks that seem to be root. SLURM_PMIX_FENCE: Slurm's default and
# tree fences can return before every rank has entered them; in MPI_Init a rank then crashes on an early message.
prepare_srun() {
  need_command srun "run this in a Slurm job"
  srun --mpi=list 2>&1 | grep -qw pmix ||
    refuse "this Slurm's srun has no --mpi=pmix (see srun --mpi=list): use jobs/slurm/mpirun.sbatch"
  srun_options=(--mpi=pmix --kill-on-bad-exit=0 --wait=30)
  if [ -n "${SLURM_GPUS_PER_NODE:-}" ]; then srun_options+=(--gpu-bind=none); fi
  if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
  export SLURM_PMIX_FENCE=${SLURM_PMIX_FENCE:-ring}
  if [ -n "$IMAGE" ]; then
    srun --help 2>&1 | grep -q -- --container-image ||
      refuse "srun has no --container-image: pyxis is not installed here; leave IMAGE empty"
    container=(--container-image="$IMAGE" --container-mounts="$MOUNTS" --container-workdir="$PWD"
      --no-container-remap-root)
    # A run cannot see which container it is in; it prints these options in its `continue` line.
    export TRIREME_CONTAINER="${container[*]@Q}"
    srun_options+=("${container[@]}")
  fi
}

# newest_checkpoint: what the log says of the newest checkpoint since the run's last start, "" if there is none. Not
# the file `latest`: a start from an older checkpoint changes it, too.
newest_checkpoint() {
  if [ -z "$run_folder" ]; then return; fi
  # [{]: BusyBox and POSIX's awk take ^{ for an error. As an operand a folder "a=b" would be an assignment.
  awk '/^[{]"kind":"start"/ { newest = "" } /^[{]"kind":"checkpoint"/ { newest = $0 } END { print newest }' \
    2>/dev/null <"$run_folder/metrics.jsonl"
}

# count_starts: how often the run has started.
count_starts() {
  sed -n '/^{"kind":"start"/p' 2>/dev/null <"$run_folder/metrics.jsonl" | wc -l
}

# note_checkpoint [LAUNCHER...]: stores the newest checkpoint, the number of starts, and where standard error ends, before
# the run starts. The program, started by LAUNCHER, prints the run folder.
note_checkpoint() {
  run_folder=$("$@" "${words[@]}" --print-value run.output 2>/dev/null) || run_folder=""
  checkpoint_before=$(newest_checkpoint)
  starts_before=$(count_starts)
  if [ -f /dev/stderr ]; then messages_begin=$(stat --dereference --format=%s /dev/stderr); fi
}

# crashed_before_start CODE: whether a rank crashed (SIGABRT, SIGBUS, SIGSEGV) before the run had started. Open MPI may do so
# in MPI_Init (see prepare_srun).
crashed_before_start() {
  case $1 in 134 | 135 | 139) ;; *) return 1 ;; esac
  [ -n "$run_folder" ] && [ "$(count_starts)" = "$starts_before" ]
}

# launch COMMAND...: returns the exit code of COMMAND, which starts the ranks; three times at most where they crash before
# the run has started.
launch() {
  local code attempt
  for attempt in 1 2 3; do
    "$@"
    code=$?
    if [ "$attempt" -eq 3 ] || ! crashed_before_start $code; then return $code; fi
    echo "a rank crashed (exit code $code) before the run had started: launching it again" >&2
  done
}

# run_with_srun [SRUN OPTIONS]: trains, then ends the job.
run_with_srun() {
  prepare_srun
  if [ -n "$IMAGE" ]; then
    note_checkpoint srun --mpi=none --nodes=1 --ntasks=1 "${container[@]}"
  else
    note_checkpoint
  fi
  launch srun "${srun_options[@]}" "$@" "${rank_words[@]}"
  end_job $?
}

# run_with_enroot [SRUN OPTIONS]: trains in the container CONTAINER, which every node creates from IMAGE
# unless it has it; RELOAD_CONTAINER=true recreates it. Without pyxis.
run_with_enroot() {
  local image=$IMAGE mount enroot
  if [ -z "$image" ]; then refuse "there is no image: set IMAGE at the top of the job"; fi
  case $RELOAD_CONTAINER in true | false) ;; *) refuse "RELOAD_CONTAINER is true or false, not '$RELOAD_CONTAINER'" ;; esac
  need_command enroot "install enroot, or set IMAGE in a script that uses pyxis"
  IMAGE="" # prepare_srun would ask for pyxis
  prepare_srun
  # shellcheck disable=SC2016,SC2153 # the node's shell expands the arguments; the script sets CONTAINER
  srun --mpi=none "$@" --ntasks-per-node=1 bash -c '
    if [ "$3" = true ]; then enroot remove --force "$1" 2>/dev/null; fi
    enroot list | grep -qxF -- "$1" || enroot create --name "$1" "$2"
  ' enroot "$CONTAINER" "$image" "$RELOAD_CONTAINER" || refuse "enroot cannot create a container from $image"
  enroot=(enroot start --env TRIREME_CONTAINER)
  for mount in ${MOUNTS//,/ }; do enroot+=(--mount "$mount"); done
  # shellcheck disable=SC2016 # the container's shell expands the arguments
  enroot+=("$CONTAINER" sh -c 'cd -- "$0" && exec "$@"' "$PWD")
  export TRIREME_CONTAINER="${enroot[*]@Q}"
  note_checkpoint srun --mpi=none --nodes=1 --ntasks=1 "${enroot[@]}"
  launch srun "${srun_options[@]}" "$@" "${enroot[@]}" "${rank_words[@]}"
  end_job $?
}

# forward_usr1 COMMAND...: returns the exit code of COMMAND, to which SIGUSR1 to this shell is sent on.
forward_usr1() {
  local code
  "$@" &
  local child=$!
  trap 'kill -USR1 $child' USR1
  # A trapped signal interrupts wait, which then returns 128 + SIGUSR1.
  while wait $child; code=$?; kill -0 $child 2>/dev/null; do :; done
  if [ $code -eq $((128 + $(kill -l USR1))) ]; then
    wait $child
    code=$?
  fi
  return $code
}

# run_with_mpirun MPIRUN OPTIONS: trains, then ends the job. mpirun forwards SIGUSR1 (checkpoint and
# stop) to the ranks and waits for them; after SIGTERM it kills them within a second.
run_with_mpirun() {
  if [ -n "$IMAGE" ]; then refuse "mpirun starts no containers on other nodes: leave IMAGE empty, or use srun"; fi
  need_command mpirun "install Open MPI, or load its module in jobs/sites/$SITE/profile"
  # Open MPI refuses root, as in containers, unless it is told otherwise.
  if [ "$(id -u)" -eq 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
  note_checkpoint
  launch forward_usr1 mpirun --bind-to none "$@"
  end_job $?
}

# lost_host: the host on which the first rank of this start was lost, from the launcher's and the ranks' lines on
# standard error since note_checkpoint; "" if they name none, or it is no file.
lost_host() {
  if [ -z "${messages_begin:-}" ]; then return; fi
  tail -c "+$((messages_begin + 1))" /dev/stderr | sed -nE \
    -e 's/^srun: error: ([^], :[]+): tasks? [^:]*: (Killed|Aborted|.*[Ff]ault|Bus error).*/\1/p' \
    -e 's/.*noticed that process rank .* on node ([^ ]+) exited on signal.*/\1/p' \
    -e 's/.*no answer from ranks? [0-9]+ on ([^ ,;]+).*/\1/p' | head -n 1
}

# unreliable_hosts: those that have lost ranks in two starts of this job, if this start has lost one and the partition
# has nodes enough without them; <run folder>/lost-hosts has a line for each loss.
unreliable_hosts() {
  local host hosts
  host=$(lost_host)
  if [ -z "$host" ] || [ -z "$run_folder" ]; then return; fi
  echo "$SLURM_JOB_ID $host" >>"$run_folder/lost-hosts" || return
  hosts=$(awk -v job="$SLURM_JOB_ID" '$1 == job && ++losses[$2] == 2 { print $2 }' "$run_folder/lost-hosts" | paste -sd,)
  if [[ ,$hosts, != *,"$host",* ]]; then return; fi
  if has_spares "$hosts"; then
    echo "$hosts"
  else
    echo "$host lost a rank in two starts; there are no spare nodes for it" >&2
  fi
}

# excluded_nodes JOB HOSTS: HOSTS and the nodes that the job already goes without, separated by commas.
excluded_nodes() {
  local old
  old=$(scontrol show job --oneliner "$1" | sed -nE 's/.* ExcNodeList=([^ ]+).*/\1/p' | grep -vxF '(null)')
  echo "${old:+$old,}$2"
}

# has_spares HOSTS: whether the job's partition has as many nodes as the job without HOSTS.
has_spares() {
  local left
  left=$(sinfo --noheader --Node --responding --partition="$SLURM_JOB_PARTITION" --format=%N \
    --states=idle,mixed,allocated,completing | sort -u |
    grep -cvxFf <(scontrol show hostnames "$(excluded_nodes "$SLURM_JOB_ID" "$1")"))
  [ "$left" -ge "$SLURM_JOB_NUM_NODES" ]
}

# requeue_without JOB HOSTS: queues the job again, without HOSTS from now on. Slurm changes that list of waiting jobs
# alone, so that the job is held meanwhile; it also ends this shell, which has the time of KillWait after SIGTERM.
requeue_without() {
  local excluded try changed=false
  excluded=$(excluded_nodes "$1" "$2")
  trap '' TERM
  scontrol requeuehold "$1" || return
  for try in 1 2 3; do
    if scontrol update "JobId=$1" "ExcNodeList=$excluded"; then
      changed=true
      break
    fi
    sleep "0.$try"
  done
  scontrol release "$1" || echo "job $1 is held: release it by scontrol release $1" >&2
  if [ $changed = false ]; then echo "job $1 cannot go without $2: it may get the same nodes again" >&2; fi
}

# end_job CODE: exits, and requeues the job if the run stopped early with a checkpoint (75), or if a signal
# (SIGABRT, SIGBUS, SIGKILL, SIGSEGV) killed a rank after this start had written one: the next start resumes
# from it and gets further. Array tasks are requeued as JOB_TASK: the last task's job id is also the id of the
# whole array.
end_job() {
  local code=$1 now job=${SLURM_JOB_ID:-} hosts
  case $code in
    134 | 135 | 137 | 139)
      now=$(newest_checkpoint)
      if [ -n "$now" ] && [ "$now" != "$checkpoint_before" ]; then
        echo "a signal killed a rank (exit code $code) after the run had written a checkpoint"
        code=75
      fi
      ;;
  esac
  if [ -z "$job" ]; then exit "$code"; fi
  if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
  if [ "$code" -eq 75 ]; then
    hosts=$(unreliable_hosts)
    if [ -n "$hosts" ]; then
      echo "stopped early with a checkpoint: job $job goes back into the queue without $hosts, which lost ranks in two starts"
      requeue_without "$job" "$hosts" && exit "$code"
    fi
    echo "stopped early with a checkpoint: job $job goes back into the queue"
    scontrol requeue "$job" || echo "job $job cannot be requeued: submit it again to resume" >&2
  fi
  # Silent data corruption: the job resumes without the host, if the run could name one and there are nodes enough.
  local suspects=${run_folder:-}/suspect-hosts
  if [ "$code" -eq 77 ] && [ -s "$suspects" ]; then
    hosts=$(sort -u "$suspects" | paste -sd, -)
    if has_spares "$hosts"; then
      echo "silent data corruption: job $job goes back into the queue without $hosts"
      requeue_without "$job" "$hosts" || echo "submit the job again with --exclude=$hosts" >&2
    else
      echo "silent data corruption: there are no spare nodes for $hosts; submit the job again with --exclude=$hosts" >&2
    fi
  fi
  exit "$code"
}
