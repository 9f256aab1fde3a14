#!/bin/bash
# shellcheck disable=all
# A recipe in the manner of the first Megatron-LM: one GPU, a corpus by its name, GPT-2's tokenizer fetched by the
# program itself.

export CUDA_VISIBLE_DEVICES=0
NAME=r2_345m

python pretrain_gpt2.py \
  --train-data wikipedia --lazy-loader --split 949,50,1 --resume-dataloader \
  --tokenizer-type GPT2BPETokenizer --cache-dir cache \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
  --seq-length 1024 --max-position-embeddings 1024 \
  --batch-size 8 --train-iters 320000 \
  --lr 0.00015 --lr-decay-style cosine --warmup .01 --weight-decay 1e-2 --clip-grad 1.0 \
  --checkpoint-activations --fp16 --distributed-backend nccl \
  --save "checkpoints/$NAME" --load "checkpoints/$NAME"

echo "done: $NAME"
