#!/bin/bash
# shellcheck disable=all
# A recipe in the manner of DeepSpeed's example with three kinds of parallelism, Megatron-LM 1.1.5: flags gathered in
# strings, switches that shell variables turn on, and `eval` at the end.

NODES=1
GPUS_EACH=8
WORLD=$(($NODES*$GPUS_EACH))

here=$(dirname $(realpath $0))
settings="$here/r0_ds_config.json"

tensor=2
stages=4
layers=${LAYERS:-24}
width=1024
each=9
steps=16

zero=1
share=true
host=false

model=" \
        --model-parallel-size ${tensor} \
        --pipe-parallel-size ${stages} \
        --num-layers $layers \
        --hidden-size $width \
        --num-attention-heads 16 \
        --seq-length 1024 \
        --max-position-embeddings 1024 \
        --batch-size $each \
        --gas $steps \
        --train-iters 320000 \
        --lr-decay-iters 320000 \
        --save checkpoints/r0 \
        --load checkpoints/r0 \
        --data-path data/webtext/webtext_text_document \
        --vocab-file data/gpt2-vocab.json \
        --merge-file data/gpt2-merges.txt \
        --data-impl mmap \
        --split 949,50,1 \
        --distributed-backend nccl \
        --lr 1.5e-4 \
        --lr-decay-style cosine \
        --min-lr 1.0e-5 \
        --weight-decay 1e-2 \
        --clip-grad 1.0 \
        --warmup 0.01 \
        --log-interval 1 \
        --save-interval 500 \
        --eval-interval 100 \
        --eval-iters 10 \
        --fp16 \
        --tensorboard-dir tensorboard/${layers}l_${WORLD}g
"

engine=" \
        --deepspeed \
        --deepspeed_config ${settings} \
        --zero-stage ${zero} \
        --zero-reduce-bucket-size 50000000 \
        --zero-allgather-bucket-size 5000000000"
if [ "${zero}" -gt 0 ]; then
  engine="${engine} --zero-contigious-gradients --zero-reduce-scatter"
fi

memory="--checkpoint-activations --checkpoint-num-layers 1"
if [ "${share}" = "true" ]; then
  memory="${memory} \
          --partition-activations --contigious-checkpointing"
fi
if [ "${host}" = "true" ]; then
  memory="${memory} --checkpoint-in-cpu"
fi
memory="${memory} --synchronize-each-layer"

command="deepspeed --num_nodes ${NODES} --num_gpus ${GPUS_EACH} pretrain_gpt2.py $@ ${model} ${engine} ${memory}"
echo ${command}
eval ${command}
