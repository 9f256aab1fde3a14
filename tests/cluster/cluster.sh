#!/usr/bin/env bash
# Two hosts and a login node on this machine, with a Slurm of their own, for tests.
#
#   cluster.sh up STATE              brings the cluster up, for as long as the calling process lives
#   cluster.sh in STATE COMMAND...   runs a command on the login node
#   cluster.sh down STATE            ends everything that runs there, and removes its folder
#
# STATE is a file that says where the cluster is, or why there can be none: then up and in print that
# reason and exit with 77. Every host has its own network, name, processes, /dev/shm and temporary
# folder; all share this machine's other files. The login node is the namespace of processes that all
# others lie in: once its first process is gone, the kernel has ended the rest, networks included.
# There is a user who is not root, guest, whose home is the cluster's folder guest.
# Needs root. Nothing outside the cluster's folder under TMPDIR is written.
set -euo pipefail
here=$(realpath -- "$(dirname "${BASH_SOURCE[0]}")")
readonly here
readonly nodes=(node0 node1) cpus_per_node=8 gpus_per_node=8
# Where enroot is installed, if it is; pyxis may be in the same place.
enroot=$(command -v enroot) && enroot=$(realpath -- "$(dirname "$enroot")/..")
readonly enroot

# skip WHY: writes the reason to a file, for the tests that need the cluster.
skip() {
  echo "SKIPPED: $1" | tee "$state"
  exit 77
}

# first_child PID: the process that unshare has started in its new namespace of processes.
first_child() {
  local child
  read -rd ' ' child <"/proc/$1/task/$1/children" && echo "$child"
}

# Seconds, of which all that this script waits for needs a few, also on a busy machine.
patience=200

# wait_for WHAT SECONDS COMMAND...: until the command succeeds.
wait_for() {
  local what=$1 deadline=$((SECONDS + $2))
  shift 2
  until "$@" >/dev/null 2>&1; do
    if [ "$SECONDS" -ge "$deadline" ]; then
      echo "cluster.sh: waited in vain for $what" >&2
      return 1
    fi
    sleep 0.05
  done
}

# ---- what there must be

check_machine() {
  local program error
  for program in ip munged slurmctld slurmd srun sbatch setpriv nsenter; do
    command -v "$program" >/dev/null ||
      skip "no $program here (cmake/dependencies.sh --with-tests installs it)"
  done
  [ "$(id -u)" -eq 0 ] || skip "only root makes namespaces with a network and a Slurm in them"
  if ! error=$(unshare --pid --fork --mount --net --uts --ipc sh -c '
      hostname login && mount -t tmpfs tmpfs /dev/shm && ip link add name bridge0 type bridge &&
      ip link add name left type veth peer name right' 2>&1); then
    skip "no namespaces with a network can be made here: ${error//$'\n'/ }"
  fi
}

# ---- the keeper: a process outside, which ends with its owner and ends the cluster

end_cluster() {
  kill -KILL "$cluster" || true  # it may have ended already
  wait "$cluster" || true
  rm -rf --one-file-system "$base"
}

keep() {
  local owner=$1
  # Dies with this process, even when that one is killed; and what it started dies with it.
  setpriv --pdeathsig KILL unshare --pid --fork --kill-child --mount-proc --net --uts --ipc \
    "$here/cluster.sh" login-node "$base" &
  cluster=$!
  trap end_cluster EXIT
  trap 'exit 0' TERM INT HUP
  wait_for "the login node" "$patience" first_child "$cluster"
  first_child "$cluster" >"$base/login.pid"
  while kill -0 "$owner" 2>/dev/null && kill -0 "$cluster" 2>/dev/null; do sleep 0.5; done
}

# ---- the login node: the first process of the cluster

write_configuration() {
  local i plugin=disabled
  # Slurm 22.05 does not know how to do without; this plug-in does not touch what it is not told to.
  case $(slurmd -V) in *" 22."*) plugin=cgroup/v1 ;; esac
  cat >"$base/slurm/cgroup.conf" <<CONF
CgroupPlugin=$plugin
ConstrainCores=no
ConstrainRAMSpace=no
ConstrainDevices=no
CONF
  sed "s|BASE|$base|" "$here/slurm.conf.in" >"$base/slurm/slurm.conf"
  echo "127.0.0.1 localhost" >"$base/hosts"
  echo "10.88.0.254 login" >>"$base/hosts"
  { cat /etc/passwd && echo "guest:x:60000:60000::$base/guest:/bin/sh"; } >"$base/passwd"
  { cat /etc/group && echo "guest:x:60000:"; } >"$base/group"
  for i in "${!nodes[@]}"; do
    echo "10.88.0.$((i + 1)) ${nodes[i]}" >>"$base/hosts"
    echo "NodeName=${nodes[i]} NodeAddr=10.88.0.$((i + 1)) CPUs=$cpus_per_node RealMemory=4000 Gres=gpu:$gpus_per_node" \
      >>"$base/slurm/slurm.conf"
  done
  # Names that stand for devices: enough for jobs that ask for GPUs.
  for ((i = 0; i < gpus_per_node; ++i)); do : >"$base/slurm/gpu$i"; done
  echo "AutoDetect=off" >"$base/slurm/gres.conf"
  echo "Name=gpu Flags=nvidia_gpu_env File=$base/slurm/gpu[0-$((gpus_per_node - 1))]" \
    >>"$base/slurm/gres.conf"
  echo "PartitionName=main Nodes=ALL Default=YES State=UP" >>"$base/slurm/slurm.conf"
  local pyxis
  for pyxis in {/usr,/usr/local,"$enroot"}/lib{,/*-linux-gnu}/slurm{,-wlm}/spank_pyxis.so; do
    if [ -e "$pyxis" ]; then
      echo "required $pyxis runtime_path=$base/tmp/pyxis"
      break
    fi
  done >"$base/slurm/plugstack.conf"
}

start_munge() {
  (umask 077 && head -c 1024 /dev/urandom >"$base/munge/key")
  munged --force --key-file="$base/munge/key" --socket="$base/munge/socket" \
    --pid-file="$base/munge/pid" --log-file="$base/log/munged" --seed-file="$base/munge/seed"
}

# own_folders NAME: a host name, a temporary folder and shared memory that other hosts do not see.
own_folders() {
  hostname "$1"
  mount -t tmpfs tmpfs /dev/shm
  mount -t tmpfs tmpfs "$base/tmp"
  ip link set lo up
}

# start_node NUMBER: the host, and a cable from it to the bridge.
start_node() {
  local name=${nodes[$1]} cable=cable$1
  setpriv --pdeathsig KILL unshare --pid --fork --kill-child --mount-proc --net --uts --ipc \
    "$here/cluster.sh" node "$base" "$1" >"$base/log/$name" 2>&1 &
  wait_for "$name" "$patience" test -s "$base/$name.born"
  first_child $! >"$base/$name.pid"
  ip link add name "$cable" type veth peer name eth0 netns "$(cat "$base/$name.pid")"
  ip link set "$cable" master bridge0 up
}

nodes_are_up() {
  [ "$(sinfo --noheader --Node --format=%T | grep -c '^idle$')" -eq ${#nodes[@]} ]
}

login_node() {
  local i
  mkdir -p "$base"/{slurm,munge,log,state,tmp,guest}
  write_configuration
  for i in hosts passwd group; do mount --bind "$base/$i" "/etc/$i"; done
  chown guest:guest "$base/guest"
  own_folders login
  ip link add name bridge0 type bridge
  ip addr add 10.88.0.254/24 dev bridge0
  ip link set bridge0 up
  start_munge
  slurmctld -D -i &
  for i in "${!nodes[@]}"; do start_node "$i"; done
  wait_for "the nodes" "$patience" nodes_are_up
  touch "$base/ready"
  wait
}

# ---- a node

# use_enroot: its folders are each host's own, and in memory: a container must be removed before its job's
# end, when Slurm kills what is left of the job. The hook for PMIx is turned on as people do that.
use_enroot() {
  local hook=$enroot/share/enroot/hooks.d/50-slurm-pmi.sh
  export ENROOT_CONFIG_PATH=$base/enroot ENROOT_DATA_PATH=$base/tmp/containers
  export ENROOT_RUNTIME_PATH=$base/tmp/enroot ENROOT_CACHE_PATH=$base/tmp/cache
  mkdir -p "$ENROOT_CONFIG_PATH/hooks.d"
  if [ -e "$hook" ]; then ln -sf "$hook" "$ENROOT_CONFIG_PATH/hooks.d"; fi
  mkdir --mode=1777 "$ENROOT_DATA_PATH" "$ENROOT_RUNTIME_PATH" "$ENROOT_CACHE_PATH"
}

node() {
  local number=$1
  echo born >"$base/${nodes[number]}.born"
  own_folders "${nodes[number]}"
  wait_for "a cable" "$patience" ip link show eth0
  ip addr add "10.88.0.$((number + 1))/24" dev eth0
  ip link set eth0 up
  # Killing all other processes here stands for a reboot of the node, which empties its memory.
  while true; do
    rm -rf "${base:?}/tmp"/*
    mkdir -p "$base/tmp/spool"
    if [ -n "$enroot" ]; then use_enroot; fi
    slurmd -D -N "${nodes[number]}" || true
    sleep 0.5
  done
}

# ---- commands

up() {
  local keeper log=$state.log
  down
  check_machine
  base=$(mktemp -d "${TMPDIR:-/tmp}/trireme-cluster.XXXXXX")
  chmod 755 "$base"
  setsid "$here/cluster.sh" keep "$base" "$PPID" </dev/null >"$log" 2>&1 &
  keeper=$!
  echo "$base $keeper" >"$state"
  until [ -e "$base/ready" ]; do
    if ! kill -0 "$keeper" 2>/dev/null; then
      cat "$log" >&2
      exit 1
    fi
    sleep 0.1
  done
  enter sinfo
}

# is_kept: whether the keeper lives; its number may have been given to another process since.
is_kept() {
  tr '\0' ' ' 2>/dev/null <"/proc/$keeper/cmdline" | grep -qF "cluster.sh keep $base "
}

# Sets base and keeper to those that the state tells of, if any.
read_state() {
  [ -s "$state" ] && ! grep -q '^SKIPPED' "$state" && read -r base keeper <"$state"
}

down() {
  local base keeper
  if read_state; then
    if is_kept; then
      kill "$keeper"
      wait_for "the end of the cluster" "$patience" test ! -e "$base"
    fi
    rm -rf --one-file-system "$base"  # of a keeper that was killed
  fi
  rm -f "$state" "$state.log"
}

# enter COMMAND...: on the login node.
enter() {
  exec nsenter --target "$(cat "$base/login.pid")" --mount --net --uts --ipc --pid -- \
    env --chdir="$PWD" SLURM_CONF="$base/slurm/slurm.conf" TMPDIR="$base/tmp" CLUSTER="$base" "$@"
}

usage() {
  sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

[ $# -ge 2 ] || usage
command=$1
case $command in
  up | in | down) state=$(realpath -m -- "$2") ;;
  *) base=$2 ;;
esac
shift 2
case $command in
  up) up ;;
  down) down ;;
  in)
    if grep -qs '^SKIPPED' "$state"; then
      cat "$state"
      exit 77
    fi
    { read_state && is_kept; } || { echo "cluster.sh: there is no cluster; 'up' starts one" >&2 && exit 1; }
    enter "$@"
    ;;
  keep) keep "$@" ;;
  login-node)
    export SLURM_CONF=$base/slurm/slurm.conf TMPDIR=$base/tmp
    login_node
    ;;
  node) node "$@" ;;
  *) usage ;;
esac
