#!/bin/bash
# One host or several in Docker, without a scheduler: the first host's container runs mpirun, which
# starts the ranks of the others over ssh in their containers. All hosts see the source tree, data and
# run folder under the same paths, and have the image (jobs/container/Dockerfile).
#
#   jobs/docker/train.sh       starts a container on every host, then trains; the same command resumes
#
# HOSTS has a line per host, the one of this script first: `NAME slots=RANKS`, and `gpus=0,1` to use
# only these GPUs.
#
# ---- edit this block; start from the source tree, or set TRIREME ----------------------------------
TRIREME=${TRIREME:-$PWD}
SITE=${SITE:-debian}
HOSTS=${HOSTS:-jobs/ssh/hosts}
DOCKER_IMAGE=${DOCKER_IMAGE:-trireme}
PROGRAM=${PROGRAM:-trireme-pretrain}
DECK=${DECK:-inputs/gpt2-1.5b.yaml}
RUN=${RUN:-}
KEYS=${KEYS-data.train=data/corpus_text_document}
DOCKER=${DOCKER:-docker}
SSH=${SSH:-ssh -o BatchMode=yes -o ConnectTimeout=10}
SHM=${SHM:-16g}
# ---------------------------------------------------------------------------------------------------
IMAGE=""
source "$TRIREME/jobs/common/job.sh" || exit
need_file "list of hosts" "$HOSTS" HOSTS
# shellcheck disable=SC2086 # DOCKER has options
need_command ${DOCKER%% *} "install Docker, or set DOCKER"

container_name=trireme-$$

# docker_options GPUS: the container's options. NCCL and MPI share memory in /dev/shm and pin it
# (memlock); the host's network has InfiniBand's and NCCL's interfaces.
docker_options() {
  options=(--rm --name "$container_name" --network=host --shm-size="$SHM" --ulimit memlock=-1
    --ulimit stack=67108864 --volume "$PWD:$PWD" --volume "$TRIREME:$TRIREME" --workdir "$PWD"
    --env OMPI_ALLOW_RUN_AS_ROOT=1 --env OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
  case $1 in
    none) ;;
    all) options+=(--gpus all) ;;
    *) options+=(--gpus "\"device=$1\"") ;;
  esac
  if [ -e /dev/infiniband ]; then options+=(--device /dev/infiniband); fi
}

names=() slots=() gpus=()
# The last line may lack its newline.
while read -ra line <&3 || [ ${#line[@]} -gt 0 ]; do
  if [ ${#line[@]} -eq 0 ] || [ "${line[0]:0:1}" = "#" ]; then continue; fi
  ranks=1 list=all
  for word in "${line[@]:1}"; do
    case $word in
      slots=*[!0-9]* | slots= | slots=0) refuse "$HOSTS: '$word' of ${line[0]} is no number of ranks" ;;
      slots=*) ranks=${word#slots=} ;;
      gpus=*) list=${word#gpus=} ;;
      *) refuse "$HOSTS: '$word' of ${line[0]} is neither slots=N nor gpus=LIST" ;;
    esac
  done
  names+=("${line[0]}") slots+=("$ranks") gpus+=("$list")
done 3<"$HOSTS"
if [ ${#names[@]} -eq 0 ]; then refuse "$HOSTS names no host"; fi

# shellcheck disable=SC2317 # the trap calls it
remove_containers() {
  local name
  for name in "${names[@]:1}"; do
    # shellcheck disable=SC2086,SC2029 # SSH has options; the name is expanded here
    $SSH "$name" "$DOCKER rm --force $container_name" </dev/null >/dev/null 2>&1
  done
}
trap remove_containers EXIT

contexts=()
for i in "${!names[@]}"; do
  docker_options "${gpus[i]}"
  if [ "$i" -gt 0 ]; then
    # shellcheck disable=SC2086,SC2029
    $SSH "${names[i]}" "$DOCKER run --detach $(printf '%q ' "${options[@]}" "$DOCKER_IMAGE") sleep infinity" \
      </dev/null >/dev/null || refuse "no container of $DOCKER_IMAGE starts on ${names[i]}"
    contexts+=(:)
  fi
  contexts+=(-n "${slots[i]}" -host "${names[i]}:${slots[i]}" -wdir "$PWD" "${rank_words[@]}")
done

docker_options "${gpus[0]}"
if [ ${#names[@]} -gt 1 ]; then
  # mpirun calls `agent.sh HOST COMMAND`, which enters the container of that host.
  options+=(--volume "$HOME/.ssh:/root/.ssh:ro" --env "TRIREME_DOCKER=$DOCKER exec $container_name"
    --env "TRIREME_SSH=$SSH -l $(id -un)")
fi

# shellcheck disable=SC2086
note_checkpoint $DOCKER run "${options[@]}" "$DOCKER_IMAGE"
# shellcheck disable=SC2086
$DOCKER run "${options[@]}" "$DOCKER_IMAGE" mpirun --bind-to none \
  --mca plm_rsh_agent "$TRIREME/jobs/docker/agent.sh" "${contexts[@]}" &
pid=$!
trap '$DOCKER kill --signal=USR1 "$container_name" >/dev/null' USR1
while wait $pid; code=$?; kill -0 $pid 2>/dev/null; do :; done
end_job $code
