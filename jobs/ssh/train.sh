#!/bin/bash
# Several hosts without a scheduler: mpirun starts the ranks over ssh, without a password. All hosts see
# source tree, data and run folder under the same paths.
#
#   jobs/ssh/train.sh          checks every host, then trains; the same command resumes
#
# HOSTS has a line per host: `NAME slots=RANKS`, and `gpus=0,1,4` to use only these GPUs.
#
# ---- edit this block; start from the source tree, or set TRIREME ----------------------------------
TRIREME=${TRIREME:-$PWD}
SITE=${SITE:-debian}
HOSTS=${HOSTS:-jobs/ssh/hosts}
PROGRAM=${PROGRAM:-$TRIREME/build/release/bin/trireme-pretrain}
DECK=${DECK:-inputs/gpt2-1.5b.yaml}
RUN=${RUN:-}
KEYS=${KEYS-data.train=data/corpus_text_document}
SSH=${SSH:-ssh -o BatchMode=yes -o ConnectTimeout=10}
# ---------------------------------------------------------------------------------------------------
IMAGE=""
source "$TRIREME/jobs/common/job.sh" || exit
need_file "list of hosts" "$HOSTS" HOSTS

# check_host NAME: checks that the host can be reached and sees folder, deck and program.
check_host() {
  local code=0
  # shellcheck disable=SC2086 # SSH has options
  $SSH "$1" "$(printf 'cd %q && test -r %q && command -v %q >/dev/null' "$PWD" "$DECK" "$PROGRAM")" \
    </dev/null >/dev/null 2>&1 || code=$?
  case $code in
    0) ;;
    255) refuse "host '$1' of $HOSTS cannot be reached without a password: try $SSH $1" ;;
    *) refuse "host '$1' of $HOSTS lacks the folder $PWD, $DECK in it or $PROGRAM: share them" ;;
  esac
}

# ssh forwards no environment: mpirun -x names the variables that the programs need.
forwarded=()
for name in PATH LD_LIBRARY_PATH OMP_NUM_THREADS ${!NCCL_@}; do
  if [ -n "${!name+set}" ]; then forwarded+=(-x "$name"); fi
done

# add_host NAME [slots=N] [gpus=LIST]: adds an application context of mpirun; all contexts share one
# MPI_COMM_WORLD. -x applies to its own context only.
add_host() {
  local name=$1 slots=1 gpus="" word list
  shift
  for word in "$@"; do
    case $word in
      slots=*[!0-9]* | slots= | slots=0) refuse "$HOSTS: '$word' of $name is no number of ranks" ;;
      slots=*) slots=${word#slots=} ;;
      gpus=*) gpus=${word#gpus=} ;;
      *) refuse "$HOSTS: '$word' of $name is neither slots=N nor gpus=LIST" ;;
    esac
  done
  read -ra list <<<"${gpus//,/ }"
  if [ -n "$gpus" ] && [ ${#list[@]} -lt "$slots" ]; then
    refuse "$HOSTS: $name has slots=$slots, but gpus=$gpus are ${#list[@]}: each rank needs one GPU"
  fi
  case $name in
    localhost | "$(hostname)" | "$(hostname -s)") ;;
    *) check_host "$name" ;;
  esac
  if [ ${#contexts[@]} -gt 0 ]; then contexts+=(:); fi
  contexts+=(-n "$slots" -host "$name:$slots" -wdir "$PWD" "${forwarded[@]}")
  if [ -n "$gpus" ]; then contexts+=(env "CUDA_VISIBLE_DEVICES=$gpus"); fi
  contexts+=("${rank_words[@]}")
}

contexts=()
# The last line may lack its newline.
while read -ra line <&3 || [ ${#line[@]} -gt 0 ]; do
  if [ ${#line[@]} -gt 0 ] && [ "${line[0]:0:1}" != "#" ]; then add_host "${line[@]}"; fi
done 3<"$HOSTS"
if [ ${#contexts[@]} -eq 0 ]; then refuse "$HOSTS names no host"; fi

# With these keepalives mpirun notices a lost host after half a minute instead of TCP's time-out. The
# ranks' comm.timeout must be longer: once mpirun has sent data to that host, TCP's time-out applies.
keepalive=(--mca oob_tcp_keepalive_time 5 --mca oob_tcp_keepalive_intvl 5 --mca oob_tcp_keepalive_probes 3)
run_with_mpirun --mca plm_rsh_agent "$SSH" "${keepalive[@]}" "${contexts[@]}"
