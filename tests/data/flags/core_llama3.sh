#!/bin/bash
# shellcheck disable=all
# A recipe in the manner of Megatron-Core's for Llama 3 with FP8: arrays of flags, some added under conditions, each pair
# of which is one quoted word, and arguments with defaults.

export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}

checkpoints=${1:-"checkpoints/llama3_8b"}
events=${2:-"events/llama3_8b"}
tokenizer=${3:-"MOCK"}
data=${4:-"MOCK"}
mkdir -p "$(dirname "$checkpoints")"

declare -A kinds=( [small]=16 [large]=32 )
read -r -d '' shape <<END
    --num-layers ${kinds[large]} --hidden-size 4096 --ffn-hidden-size 14336 \
    --num-attention-heads 32
END
gpus=8
nodes=1
kind=fp8

launch=(--nproc_per_node $gpus --nnodes $nodes --node_rank ${NODE_RANK:-0})

model=(
    --use-mcore-models
    $shape
    --group-query-attention
    --num-query-groups 8
    --kv-channels 128
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --rotary-base 500000
    --rotary-percent 1.0
    --use-rope-scaling
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --swiglu
    --normalization RMSNorm
    --init-method-std 0.0134
    --attention-backend fused
    --apply-layernorm-1p
    --untie-embeddings-and-output-weights
    --disable-bias-linear
)

training=(
    --micro-batch-size 1
    --global-batch-size 128
    --train-samples 1953125000
    --lr-decay-samples 1949218748
    --lr-warmup-samples 3906252
    --lr 0.00015
    --min-lr 0.00001
    --decoupled-lr 3.0e-4      # of embeddings and the output layer
    --decoupled-min-lr 2e-5
    --lr-decay-style cosine
    --clip-grad 1.0
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --bf16
    --calculate-per-token-loss
    --manual-gc
    --exit-duration-in-mins 235
)

types=()
if [[ "$kind" == "fp8" ]]; then
    types+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
        "--fp8-param-gather"
    )
fi

ddp=(--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather)
training+=("${ddp[@]}")

inputs=()
if [[ "$tokenizer" == "MOCK" ]] || [[ "$data" == "MOCK" ]] || [[ -z "$tokenizer" ]]; then
    inputs+=("--mock-data" "--tokenizer-type NullTokenizer" "--vocab-size 128256" "--split '99,1,0'")
else
    inputs+=(
        "--data-path $data"
        "--tokenizer-type HuggingFaceTokenizer"
        "--tokenizer-model ${tokenizer%/}"
        "--split '99,1,0'"
        "--no-mmap-bin-files"
    )
fi

logs=(
    --log-interval 1
    --eval-iters 32
    --eval-interval 100
    --save-interval 1000
    --ckpt-format torch_dist
    --distributed-timeout-minutes 60
    --save "$checkpoints"
    --load "$checkpoints"
    --tensorboard-dir "$events"
)

if [ ! -f pretrain_gpt.py ]; then
    echo "start this in the folder of Megatron-LM"
    exit 1
fi

torchrun ${launch[@]} pretrain_gpt.py ${model[@]} ${training[@]} ${types[@]} ${inputs[@]} ${logs[@]}
