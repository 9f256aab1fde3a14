#!/bin/bash
# A recipe in the manner of a benchmark of layouts on 32 GPUs: three of its cases, arrays of flags, one launcher.

GPUS_PER_NODE=8
NNODES=4
LAUNCH=(torchrun --nproc_per_node "$GPUS_PER_NODE" --nnodes "$NNODES" --node_rank "$NODE_RANK"
        --rdzv_endpoint "$HEAD:29500")

COMMON=(
  --num-layers 48            # a comment between words
  --hidden-size 2560
  --num-attention-heads 32
  --seq-length 1024
  --max-position-embeddings 1024
  --global-batch-size 128
  --train-iters 100
  --lr 1.2e-4
  --min-lr 1.2e-5
  --lr-decay-style cosine
  --lr-warmup-iters 10
  --weight-decay 0.1
  --attention-dropout 0
  --hidden-dropout 0
  --bf16
  --eval-iters 0
  --log-interval 5
  --data-path data/corpus_text_document
  --tokenizer-type SentencePieceTokenizer
  --tokenizer-model data/corpus.model
)

# Data parallelism alone.
"${LAUNCH[@]}" pretrain_gpt.py "${COMMON[@]}" --micro-batch-size 4 --use-distributed-optimizer

# Two dimensions: tensors within a node, data across nodes.
"${LAUNCH[@]}" pretrain_gpt.py "${COMMON[@]}" --micro-batch-size 8 \
  --tensor-model-parallel-size $GPUS_PER_NODE --sequence-parallel --recompute-activations

# Pipelines of interleaved stages.
COMMON+=(--recompute-granularity full --recompute-method block --recompute-num-layers 2)
"${LAUNCH[@]}" pretrain_gpt.py "${COMMON[@]}" --micro-batch-size 2 \
  --tensor-model-parallel-size 4 --pipeline-model-parallel-size $((32 / 8)) \
  --num-layers-per-virtual-pipeline-stage 6
