#!/bin/bash
# shellcheck disable=all
# A recipe in the manner of FASOP's Megatron-LM, its smaller model on two stages: the node's number and the head are
# arguments, the partition comes from the job that submits it.
#
#   sbatch r3_small_job.sh

node_rank=$1
head=$2
balance=${3:-13-11}

launch="--nproc_per_node 4 --nnodes 1 --node_rank $node_rank --master_addr $head --master_port 6787"

python -m torch.distributed.launch $launch pretrain_gpt.py \
        --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
        --seq-length 1024 --max-position-embeddings 1024 \
        --micro-batch-size 1 --global-batch-size 32 \
        --lr 0.00015 --train-iters 50 --lr-decay-iters 320000 --lr-decay-style cosine \
        --lr-warmup-fraction .01 --fp16 --balance $balance \
        --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt \
        --data-path my-gpt2_text_document --split 100,0,0 \
        --log-interval 10 --save-interval 100 --eval-interval 100 --eval-iters 10 \
        --tensor-model-parallel-size 1 --pipeline-model-parallel-size ${STAGES:-2} \
        --DDP-impl local --no-async-tensor-model-parallel-allreduce --no-gradient-accumulation-fusion
