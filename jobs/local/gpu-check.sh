#!/usr/bin/env bash
# Tests Trireme on this machine's GPUs: lists them, runs the tests that need a GPU, measures kernels and
# communication, trains a minute on one GPU and on all, and prints a line per check: OK, FAILED or
# SKIPPED. The exit code is 0 if no check failed.
#
#   jobs/local/gpu-check.sh           uses build/release, and builds it if it is missing
#   jobs/local/gpu-check.sh FOLDER    uses another build: programs and tests in FOLDER/bin or FOLDER
#   GPUS=4 jobs/local/gpu-check.sh    uses 4 GPUs instead of all
#   jobs/local/gpu-check.sh --burn-in MINUTES [FOLDER]    first looks for wrong results for so long, on
#                                     all GPUs together
set -euo pipefail
burn_in=0
case ${1-} in
  --burn-in)
    burn_in=${2-}
    if ! [[ $burn_in =~ ^[0-9]*[.]?[0-9]+$ ]]; then
      echo "gpu-check.sh: --burn-in '$burn_in': expected a number of minutes" >&2
      exit 2
    fi
    shift 2
    ;;
  -*)
    echo "gpu-check.sh: unknown option '$1': only --burn-in MINUTES" >&2
    exit 2
    ;;
esac
readonly burn_in
given=${1:+$(realpath -- "$1")}
# shellcheck source=jobs/local/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly deck=inputs/gpu-check.yaml runs=runs/gpu-check data=data/gpu-check
readonly oldest_capability=8.0

# ---- running a check

verdicts=() failed=0

# verdict OK|FAILED|SKIPPED WHAT WHY
verdict() {
  verdicts+=("$(printf '%-8s %s%s' "$1" "$2" "${3:+: $3}")")
  if [ "$1" = FAILED ]; then failed=1; fi
}

# within SECONDS COMMAND...: runs the command, and ends it if it takes longer.
within() {
  timeout --foreground --kill-after=10 "$@"
}

# check WHAT COMMAND...: runs the command, keeps its output, and adds a verdict. The last line of a
# command that exits with 77 (skipped) or fails is the reason.
check() {
  local what=$1 start=$SECONDS code=0 log last
  shift
  log=$runs/$(tr -c '[:alnum:]\n' '-' <<<"$what").log
  printf '\n== %s\n' "$what"
  "$@" 2>&1 | tee "$log" || code=$?
  last=$(grep -v '^ *$' "$log" | tail -n 1 || true)
  case $code in
    0) verdict OK "$what" "$((SECONDS - start)) s" ;;
    77) verdict SKIPPED "$what" "${last#SKIPPED: }" ;;
    124 | 137) verdict FAILED "$what" "did not end in time; see $log" ;;
    *) verdict FAILED "$what" "exit code $code, '$last'; see $log" ;;
  esac
}

# launch SECONDS RANKS COMMAND...: runs the command under mpirun, or alone for one rank.
launch() {
  local limit=$1 ranks=$2 mpi=()
  shift 2
  if [ "$ranks" -gt 1 ]; then mpi=(mpirun -n "$ranks" --oversubscribe --bind-to none); fi
  within "$limit" "${mpi[@]}" "$@"
}

# ---- the machine

# count_gpus: prints the number of GPUs that programs see.
count_gpus() {
  local visible
  visible=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
  if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
    # CUDA ignores everything from the first invalid entry on, such as -1.
    visible=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | sed '/^ *-/,$d' | grep -c '[0-9]' || true)
  fi
  # With MIG, CUDA shows a process one GPU instance only.
  if [ "$visible" -gt 1 ] && { [[ ${CUDA_VISIBLE_DEVICES-} == *MIG-* ]] ||
    { [ -z "${CUDA_VISIBLE_DEVICES+set}" ] && nvidia-smi -L 2>/dev/null | grep -q '^ *MIG'; }; }; then
    visible=1
  fi
  echo "${GPUS:-$visible}"
}

show_machine() {
  echo "host        $(hostname), $(nproc) cores, $(free -g | awk '/^Mem/ { print $2 }') GiB, kernel $(uname -r)"
  echo "driver      $( (nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null ||
    echo "nvidia-smi does not run here") | head -n 1)"
  nvidia-smi --query-gpu=index,name,memory.total,compute_cap --format=csv,noheader 2>/dev/null |
    sed 's/^/GPU         /' || true
  echo "visible     $gpus (CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-not set})"
  echo "NCCL        $(ldconfig -p 2>/dev/null | awk '/libnccl\.so\.2/ { print $NF; exit }')" \
    "LD_LIBRARY_PATH=${LD_LIBRARY_PATH-not set} $(env | grep '^NCCL_' | tr '\n' ' ')"
  show_infiniband
  echo "MPI         $(mpirun --version 2>&1 | head -n 1)"
  echo "programs    $programs, $("$programs/trireme-pretrain" --version 2>&1 | head -n 2 | paste -sd " ")"
  if [ "$gpus" -gt 1 ]; then
    echo "links"
    nvidia-smi topo -m 2>/dev/null | sed 's/\x1b\[[0-9;]*m//g' || echo "(nvidia-smi topo -m prints nothing)"
  fi
}

# show_infiniband: a line for each port of InfiniBand or RoCE: its state, its rate, its link.
show_infiniband() {
  local port found=0
  for port in /sys/class/infiniband/*/ports/*; do
    [ -r "$port/state" ] || continue
    found=1
    printf 'network     %s port %s: %s, %s, %s\n' "$(basename "$(dirname "$(dirname "$port")")")" "$(basename "$port")" \
      "$(sed 's/.*: //' "$port/state")" "$(cat "$port/rate" 2>/dev/null || echo 'rate unknown')" \
      "$(cat "$port/link_layer" 2>/dev/null || echo 'link unknown')"
  done
  if [ "$found" -eq 0 ]; then echo "network     no InfiniBand (/sys/class/infiniband has no port)"; fi
}

check_gpus() {
  if [ "$gpus" -eq 0 ]; then
    echo "no GPU is visible"
    return 1
  fi
  # nvidia-smi also lists GPUs that programs do not see.
  nvidia-smi --query-gpu=index,compute_cap --format=csv,noheader |
    awk -F ', *' -v oldest="$oldest_capability" -v wanted="$gpus" '
      $2 + 0 < oldest + 0 { printf "GPU %s has compute capability %s, below %s\n", $1, $2, oldest; next }
      { ++usable }
      END { exit usable < wanted }'
}

# burn_in_all: one process for each GPU; fails if a result of any of them is not the same each time.
burn_in_all() {
  local gpu failed=0 processes=()
  for ((gpu = 0; gpu < gpus; ++gpu)); do
    "$programs/trireme-bench" burn-in --device cuda --gpu "$gpu" --minutes "$burn_in" &
    processes+=($!)
  done
  for process in "${processes[@]}"; do wait "$process" || failed=1; done
  return "$failed"
}

# ---- tests

# build_folder: prints the CTest build folder of the programs, if it has not been moved.
build_folder() {
  local folder
  for folder in "$programs" "$programs/.."; do
    if grep -qsx "CMAKE_CACHEFILE_DIR:INTERNAL=$(realpath "$folder")" "$folder/CMakeCache.txt" &&
      [ -e "$folder/CTestTestfile.cmake" ]; then
      realpath "$folder"
      return
    fi
  done
  return 1
}

run_ctest() {
  local output=$runs/ctest.txt
  within 1800 ctest --test-dir "$1" --label-regex '^gpu$' --output-on-failure \
    --output-log "$output" || return
  if ! grep -q ' Passed ' "$output"; then
    echo "SKIPPED: none could run here"
    return 77
  fi
}

# run_test SECONDS RANKS PROGRAM: runs a test program. The reason of a skipped test is printed again as
# the last line, after MPI's output.
run_test() {
  local code=0 output=$runs/test.txt
  launch "$@" 2>&1 | tee "$output" || code=$?
  if [ "$code" -eq 77 ]; then grep -m 1 '^SKIPPED' "$output"; fi
  return "$code"
}

# Without CTest, the name gives the kind of test: *_cuda is one process, *_nccl and *_peer are several ranks.
run_tests() {
  local folder test name ranks found=0
  if folder=$(build_folder) && command -v ctest >/dev/null; then
    check "tests on the GPU" run_ctest "$folder"
    return
  fi
  for test in "$programs"/test_*_cuda "$programs"/test_*_nccl "$programs"/test_*_peer; do
    [ -x "$test" ] || continue
    found=1
    name=$(basename "$test")
    case $name in
      *_cuda) check "$name" run_test 600 1 "$test" ;;
      *)
        for ranks in 2 4 8; do
          if [ "$ranks" -eq 8 ] && [[ $name != *_peer ]]; then continue; fi
          if [ "$ranks" -le "$gpus" ]; then
            check "$name on $ranks ranks" run_test 300 "$ranks" "$test"
          else
            verdict SKIPPED "$name on $ranks ranks" "GPUs: $gpus"
          fi
        done
        ;;
    esac
  done
  if [ -x "$programs/nccl_stall" ] && [ "$gpus" -gt 1 ]; then
    check "ranks that stall" within 300 tests/comm/nccl_stall_test.sh "$programs/nccl_stall"
  fi
  if [ $found -eq 0 ]; then verdict SKIPPED "tests on the GPU" "there are none in $programs"; fi
}

# ---- training

# make_text: prints sentences of 600 made-up words, short ones more often; the same text each time.
make_text() {
  awk 'BEGIN {
    srand(7)
    split("a e i o u ai ou ea", vowel, " ")
    split("b d f g k l m n p r s t v sh th tr", consonant, " ")
    for (i = 1; i <= 600; ++i)
      for (syllable = 0; syllable * syllable * 60 < i; ++syllable)
        word[i] = word[i] consonant[1 + int(16 * rand())] vowel[1 + int(8 * rand())]
    for (line = 0; line < 24000; ++line) {
      text = ""
      for (sentence = 0; sentence < 8; ++sentence)
        for (left = 4 + int(8 * rand()); left > 0; --left)
          text = text word[1 + int(600 * rand() ^ 3)] (left > 1 ? " " : ". ")
      print text
    }
  }'
}

make_dataset() {
  make_text >"$data/text.txt"
  within 300 "$programs/trireme-preprocess" --input "$data/text.txt" --output "$data/text" \
    --tokenizer bytes --append-eod
}

# loss_at RUN ITERATION: prints the loss of that iteration's training line, or of the last one.
loss_at() {
  sed -n 's/^{"kind":"train".*"iteration":\([0-9]*\),.*"loss":\([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl" |
    awk -v iteration="$2" '{ last = $2 } $1 == iteration { loss = $2 }
                           END { print iteration == "last" ? last : loss }'
}

# near A B: whether two losses differ by no more than another order of bf16 sums explains.
near() {
  awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && b > 0 && (a - b) ^ 2 < 0.05 ^ 2) }'
}

# train RUN GPUS KEY=VALUE...: trains into the folder RUN.
train() {
  local run=$1 ranks=$2
  shift 2
  rm -rf "$run"
  launch 600 "$ranks" "$programs/trireme-pretrain" "$deck" --restart never "run.output=$run" \
    "data.train=$data/text_text_document" "$@"
}

train_on_one() {
  local first last
  train "$runs/one" 1 || return
  first=$(loss_at "$runs/one" 10)
  last=$(loss_at "$runs/one" last)
  echo "loss $first in the first 10 iterations, $last in the last"
  if ! awk -v a="$first" -v b="$last" 'BEGIN { exit !(b > 0 && b < 0.6 * a) }'; then
    echo "the loss did not fall from $first to less than 0.6 of it: $last"
    return 1
  fi
}

# train_like_one RUN GPUS KEY=VALUE...: trains at least 50 iterations; the losses must match one GPU's.
train_like_one() {
  local run=$1 iteration here there
  train "$@" || return
  for iteration in 10 50; do
    there=$(loss_at "$runs/one" "$iteration")
    here=$(loss_at "$run" "$iteration")
    if ! near "$there" "$here"; then
      echo "the loss of iteration $iteration is $here, but $there on one GPU"
      return 1
    fi
  done
  echo "loss $here in iteration 50, $there on one GPU"
}

# Uses a power of two of GPUs, which divides the global batch of 64.
train_on_several() {
  local ranks=2
  while [ $((2 * ranks)) -le "$gpus" ] && [ $((2 * ranks)) -le 64 ]; do ranks=$((2 * ranks)); done
  check "training on $ranks of $gpus GPUs" train_like_one "$runs/several" "$ranks" \
    "batch.micro=$((ranks > 8 ? 64 / ranks : 8))"
  check "training with tensor parallelism" train_like_one "$runs/tensor" 2 \
    parallel.tensor=2 train.iterations=50
  check "training with pipeline parallelism" train_like_one "$runs/pipeline" 2 \
    parallel.pipeline=2 train.iterations=50
}

# ---- main

programs=${given:-build/release}
if [ -z "$given" ] && [ ! -x build/release/bin/trireme-pretrain ]; then
  [ "$(count_gpus)" -gt 0 ] || refuse "no GPU is visible here (nvidia-smi -L lists them), and nothing is built yet"
  stage "installing what is missing" cmake/dependencies.sh --with-tests
  mkdir -p build
  cmake --preset release -DTRIREME_CUDA=ON -Wno-dev | sed -n '/^-- Trireme/,$p'
  stage "building" build release
fi
if [ -d "$programs/bin" ]; then programs=$programs/bin; fi
[ -x "$programs/trireme-pretrain" ] || refuse "there is no trireme-pretrain in $programs"
gpus=$(count_gpus)
readonly programs gpus

mkdir -p "$runs" "$data"
show_machine
check "GPUs" check_gpus
if [ "$gpus" -gt 0 ]; then
  if [ "$burn_in" != 0 ]; then check "burn-in of $burn_in minutes" burn_in_all; fi
  run_tests
  check "speed of GEMMs" within 600 "$programs/trireme-bench" gemm
  check "speed of kernels" within 600 "$programs/trireme-bench" kernels
  if [ "$gpus" -gt 1 ]; then
    check "speed of communication" launch 300 "$gpus" "$programs/trireme-bench" comm --device cuda
  else
    verdict SKIPPED "speed of communication" "there is one GPU"
  fi
  check "making a dataset" make_dataset
  check "training on one GPU" train_on_one
  if [ "$gpus" -gt 1 ]; then
    train_on_several
  else
    verdict SKIPPED "training on several GPUs" "there is one"
  fi
fi

printf '\n== verdict on %s, after %d s\n' "$(hostname)" "$SECONDS"
printf '%s\n' "${verdicts[@]}"
trap - EXIT
[ "$failed" -eq 0 ]
