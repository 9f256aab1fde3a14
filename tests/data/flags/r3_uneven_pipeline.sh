#!/bin/bash
# shellcheck disable=all
# A recipe in the manner of FASOP's Megatron-LM: settings in a file of their own, stages of unequal length, the command
# line in a here-document that a function runs.

node=$1
head=$2

. r3_conf.sh

launch="--nproc_per_node $gpus_each --nnodes $nodes --node_rank $node \
                  --master_addr $head --master_port 6787"

training=$(cat << END
python -m torch.distributed.launch $launch pretrain_gpt.py \
        --num-layers $layers --hidden-size $width --num-attention-heads 16 \
        --seq-length 1024 --max-position-embeddings 1024 \
        --micro-batch-size $micro --global-batch-size $batch \
        --lr 0.00015 --train-iters 50 --lr-decay-iters 320000 --lr-decay-style cosine \
        --lr-warmup-fraction .01 --fp16 --balance $balance \
        --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt \
        --data-path my-gpt2_text_document --split 100,0,0 \
        --log-interval 10 --save-interval 100 --eval-interval 100 --eval-iters 10 $timing \
        --tensor-model-parallel-size $tensor --pipeline-model-parallel-size $stages \
        --DDP-impl local --no-async-tensor-model-parallel-allreduce --no-gradient-accumulation-fusion
END
)

function train() {
  OMP_NUM_THREADS=4 $training
}

function train_under_nsys() {
  OMP_NUM_THREADS=4 nsys profile -t cuda,nvtx -o report $training
}

if $with_nsys; then
  train_under_nsys
else
  train
fi
