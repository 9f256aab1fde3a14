# What the job scripts share; sourced, not run, below the block that people edit, which sets
#
#   TRIREME   this source tree          PROGRAM  trireme-pretrain: a path, or a name on PATH
#   SITE      a folder of jobs/sites    DECK     the deck
#   RUN       the run folder ("" leaves it to the deck)
#   KEYS      further key=value words, which contain no spaces
#   IMAGE     an enroot image ("" for none); its PROGRAM is used instead of this tree's
#   MOUNTS    what the image sees of the host: OUTSIDE:INSIDE[,...]
#
# A job ends with the program's exit code. 75, stopped early with a checkpoint, is the only one that
# puts a Slurm job back into the queue.
# shellcheck shell=bash
set -u

# refuse WHY: ends the script with one line.
refuse() {
  echo "${SLURM_JOB_NAME:-${0##*/}}: $1" >&2
  exit 1
}

# need_file WHAT PATH NAME: NAME is what to set in the block.
need_file() {
  [ -r "$2" ] || refuse "there is no $1 '$2': set $3 at the top of the job"
}

# need_command NAME WHY
need_command() {
  command -v "$1" >/dev/null || refuse "there is no '$1' on $(hostname): $2"
}

# ---- the site and the run

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
  IMAGE=$(realpath -- "$IMAGE") # without a / pyxis would ask a registry for it
  case $PROGRAM in "$TRIREME"/*) PROGRAM=${PROGRAM##*/} ;; esac
  case $MOUNTS in
    *[[:space:]]*) refuse "pyxis cannot mount a path with a space: set MOUNTS, which is '$MOUNTS'" ;;
  esac
else
  need_command "$PROGRAM" "set PROGRAM at the top of the job to where trireme-pretrain is"
fi

# output_word FOLDER: the override that names the run folder, in the quotes of YAML, by which it is read.
output_word() {
  local text=${1//\\/\\\\}
  printf 'run.output="%s"\n' "${text//\"/\\\"}"
}

# The command that every rank runs.
words=("$PROGRAM" "$DECK")
if [ -n "$RUN" ]; then words+=("$(output_word "$RUN")"); fi
read -ra key_words <<<"$KEYS"
words+=("${key_words[@]}")

# ---- outside a job: check what can be checked here, then submit

# The value of an option, the last one given: in "$@", else in the script's #SBATCH lines.
sbatch_option() {
  local name=$1
  shift
  { sed -n "s/^#SBATCH  *--${name}[= ]//p" "$0" && printf '%s\n' "$@" | sed -n "s/^--$name=//p"; } | tail -n 1
}

# submit [SBATCH OPTIONS]: the script itself, unless this is the job already.
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

# The options of srun that all jobs need, in `srun_options`.
#
# A rank that dies takes the others with it after half a minute: --kill-on-bad-exit would also kill
# ranks that are on their way out with 75, and 137 would be the job's exit code. Ranks see all GPUs of
# their node (--gpu-bind=none) and take the one of their number: only so do they reach each other's
# memory. srun forgets the job's --cpus-per-task from Slurm 22.05 on, unless it is told. In an image
# ranks stay who they are (--no-container-remap-root): PMIx turns away those that seem to be root.
prepare_srun() {
  need_command srun "run this in a Slurm job"
  srun --mpi=list 2>&1 | grep -qw pmix ||
    refuse "this Slurm's srun has no --mpi=pmix (see srun --mpi=list): use jobs/slurm/mpirun.sbatch"
  srun_options=(--mpi=pmix --kill-on-bad-exit=0 --wait=30)
  if [ -n "${SLURM_GPUS_PER_NODE:-}" ]; then srun_options+=(--gpu-bind=none); fi
  if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
  if [ -n "$IMAGE" ]; then
    srun --help 2>&1 | grep -q -- --container-image ||
      refuse "srun has no --container-image: pyxis is not installed here; leave IMAGE empty"
    local container=(--container-image="$IMAGE" --container-mounts="$MOUNTS" --container-workdir="$PWD"
      --no-container-remap-root)
    # The run cannot see in which container it is: so it is told what continues it.
    export TRIREME_CONTAINER="${container[*]@Q}"
    srun_options+=("${container[@]}")
  fi
}

# run_with_srun [SRUN OPTIONS]: trains, and ends the job.
run_with_srun() {
  prepare_srun
  srun "${srun_options[@]}" "$@" "${words[@]}"
  end_job $?
}

# run_with_mpirun MPIRUN OPTIONS: trains, and ends the job. Of the signals that ask for a checkpoint
# mpirun passes SIGUSR1 on and waits; a SIGTERM would leave the ranks a second.
run_with_mpirun() {
  local code
  if [ -n "$IMAGE" ]; then refuse "mpirun starts no containers on other nodes: leave IMAGE empty, or use srun"; fi
  need_command mpirun "install Open MPI, or load its module in jobs/sites/$SITE/profile"
  mpirun --bind-to none "$@" &
  local mpirun_pid=$!
  trap 'kill -USR1 $mpirun_pid' USR1
  # The trap ends a wait early, with 128 + SIGUSR1.
  while wait $mpirun_pid; code=$?; kill -0 $mpirun_pid 2>/dev/null; do :; done
  if [ $code -eq $((128 + $(kill -l USR1))) ]; then
    wait $mpirun_pid
    code=$?
  fi
  end_job $code
}

# end_job CODE: leaves, and has Slurm run the job again when the run stopped early with a checkpoint.
# An array's task needs its own name: the last one's job id is also the whole array's.
end_job() {
  if [ "$1" -eq 75 ] && [ -n "${SLURM_JOB_ID:-}" ]; then
    local job=$SLURM_JOB_ID
    if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
    echo "stopped early with a checkpoint: job $job goes back into the queue"
    scontrol requeue "$job" || echo "job $job cannot be requeued: submit it again to go on" >&2
  fi
  exit "$1"
}
