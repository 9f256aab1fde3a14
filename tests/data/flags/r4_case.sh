#!/bin/bash
# shellcheck disable=all
# A recipe in the manner of a benchmark of layouts on 32 GPUs: one case of eighteen, whose sizes are arguments:
#
#   bash r4_case.sh NODES GPUS TENSOR PIPELINE MICRO GLOBAL LAYERS HIDDEN HEADS [ITERATIONS]

NNODES=${1:-1}
GPUS_PER_NODE=${2:-8}
TENSOR=${3:-1}
PIPELINE=${4:-1}
MICRO_BATCH_SIZE=${5:-2}
GLOBAL_BATCH_SIZE=${6:-16}
NUM_LAYERS=${7:-16}
HIDDEN_SIZE=${8:-1536}
NUM_ATTENTION_HEADS=${9:-16}
TRAIN_ITERS=${10:-520}

MASTER_ADDR=${MASTER_ADDR:-"127.0.0.1"}
MASTER_PORT=21327
NODE_RANK=${NODE_RANK:-0}

LOG_FOLDER=logs/${NNODES}n${GPUS_PER_NODE}g
mkdir -p $LOG_FOLDER

CMD="python3 -m torch.distributed.launch"
CMD+=" --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK"
CMD+=" --master_addr $MASTER_ADDR --master_port $MASTER_PORT"
CMD+=" pretrain_gpt.py"
CMD+=" --tensor-model-parallel-size $TENSOR"
CMD+=" --pipeline-model-parallel-size $PIPELINE"
CMD+=" --num-layers $NUM_LAYERS"
CMD+=" --hidden-size $HIDDEN_SIZE"
CMD+=" --num-attention-heads $NUM_ATTENTION_HEADS"
CMD+=" --micro-batch-size $MICRO_BATCH_SIZE"
CMD+=" --global-batch-size $GLOBAL_BATCH_SIZE"
CMD+=" --seq-length 2048"
CMD+=" --max-position-embeddings 2048"
CMD+=" --train-iters $TRAIN_ITERS"
CMD+=" --lr-decay-iters 320000"
CMD+=" --data-path data/gpt_sample_dataset_text_document"
CMD+=" --vocab-file data/gpt2-vocab.json"
CMD+=" --merge-file data/gpt2-merges.txt"
CMD+=" --data-impl mmap"
CMD+=" --split 949,50,1"
CMD+=" --distributed-backend nccl"
CMD+=" --lr 0.00015"
CMD+=" --lr-decay-style cosine"
CMD+=" --min-lr 1.0e-5"
CMD+=" --weight-decay 1e-2"
CMD+=" --clip-grad 1.0"
CMD+=" --lr-warmup-fraction .01"
CMD+=" --checkpoint-activations"
CMD+=" --log-interval 10"
CMD+=" --save-interval 100000"
CMD+=" --eval-interval 10000"
CMD+=" --eval-iters 10"
CMD+=" --fp16"

echo "command: $CMD"
$CMD 2>&1 | tee $LOG_FOLDER/rank-$NODE_RANK.log
