#!/bin/bash
# Times the GEMMs of the models and micro-batches below on one GPU, two layers of each, and prints
# the tuning cache: lines to add to src/kernels/cuda/gemm/shipped/GPU.txt, which is part of the
# build. GEMMs that the build has a choice for already are not timed.
#   apps/bench/ship_gemm_choices.sh build/release [SECONDS] >> src/kernels/cuda/gemm/shipped/h200.txt
# After SECONDS (120) no further row is begun. A row that fails is named on stderr.
set -u
build=${1:?usage: $0 BUILD_FOLDER [SECONDS]}
seconds=${2:-120}
decks=${DECKS:-$(cd "$(dirname "$0")/../../inputs" && pwd)}
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT

time_gemms() {  # DECK MICRO-BATCH [KEY=VALUE ...]
  local deck=$1 micro=$2
  shift 2
  if [ $SECONDS -ge "$seconds" ]; then
    echo "no time left: $deck $micro $*" >&2
    return
  fi
  XDG_CACHE_HOME=$cache timeout 60 "$build/bin/trireme-bench" step "$decks/$deck.yaml" \
    run.device=cuda data.train= parallel.data=1 parallel.tensor=1 parallel.pipeline=1 \
    model.layers=2 "batch.micro=$micro" "batch.global=$micro" "$@" --repeats 1 \
    > "$cache/log" 2>&1 && echo "$SECONDS s: $deck $micro $*" >&2 && return
  echo "failed: $deck $micro $*" >&2
  head -3 "$cache/log" >&2
}

gpt2() {  # HIDDEN HEADS MICRO-BATCH [KEY=VALUE ...]
  local hidden=$1 heads=$2 micro=$3
  shift 3
  time_gemms gpt2-124m "$micro" model.sequence=1024 "model.hidden=$hidden" "model.heads=$heads" "$@"
}

gpt2 1024 16 64
gpt2 1280 20 32
gpt2 1600 25 16
gpt2 768 12 64
gpt2 2560 20 4 model.sequence=2048 model.positions=2048
time_gemms llama-3.2-1b 1
time_gemms llama-3.1-8b 1 parallel.sequence=false
time_gemms qwen3-0.6b 2
time_gemms olmo-2-1b 1
gpt2 1024 16 8
gpt2 1280 20 8
gpt2 1600 25 8
gpt2 1600 25 4
gpt2 768 12 8
gpt2 1024 16 4
gpt2 768 12 16
gpt2 1024 16 16
gpt2 1280 20 16

sort -u "$cache/trireme/gemm_tuning.txt"
