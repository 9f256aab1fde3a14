#!/bin/bash
# shellcheck disable=all
# A recipe in the manner of DeepSpeed's example of Megatron-LM 1.1.5: four tensor ranks, the JSON file of the engine,
# activations that the ranks share. As it stands its batch sizes contradict each other.

MP_SIZE=${MP_SIZE:-4}
BATCHSIZE=9
LOGDIR=tensorboard_data/345M_${MP_SIZE}gpus
HOSTS=${HOSTS:-}

script_path=$(realpath $0)
script_dir=$(dirname $script_path)
config_json="$script_dir/r0_tensor_config.json"

stage=0
reduce_scatter=true
contigious_gradients=true
rbs=50000000
agbs=5000000000

chkp_layers=1
PA=true
PA_CPU=false
CC=true
SYNCHRONIZE=true
PROFILE=false

gpt_options=" \
        --model-parallel-size ${MP_SIZE} \
        --num-layers 24 \
        --hidden-size 1024 \
        --num-attention-heads 16 \
        --seq-length 1024 \
        --max-position-embeddings 1024 \
        --batch-size $BATCHSIZE \
        --train-iters 500 \
        --lr-decay-iters 320000 \
        --save checkpoints/gpt2_345m_ds \
        --load checkpoints/gpt2_345m_ds \
        --data-path data/webtext/webtext_text_document \
        --vocab-file data/gpt2-vocab.json \
        --merge-file data/gpt2-merges.txt \
        --data-impl mmap \
        --split 900,50,50 \
        --distributed-backend nccl \
        --lr 1.5e-4 \
        --lr-decay-style cosine \
        --min-lr 1.0e-5 \
        --weight-decay 1e-2 \
        --clip-grad 1.0 \
        --warmup 0.01 \
        --checkpoint-activations \
        --log-interval 10 \
        --save-interval 10 \
        --eval-interval 1000 \
        --eval-iters 10 \
        --fp16 \
        --tensorboard-dir ${LOGDIR}
"

deepspeed_options=" \
        --deepspeed \
        --deepspeed_config ${config_json} \
        --zero-stage ${stage} \
        --zero-reduce-bucket-size ${rbs} \
        --zero-allgather-bucket-size ${agbs}"
if [ "${contigious_gradients}" = "true" ] && [ "${stage}" != "0" ]; then
  deepspeed_options="${deepspeed_options} --zero-contigious-gradients"
fi
if [ "${reduce_scatter}" = "true" ]; then
  deepspeed_options="${deepspeed_options} --zero-reduce-scatter"
fi

chkp_opt="--checkpoint-activations --checkpoint-num-layers ${chkp_layers}"
if [ "${PA}" = "true" ]; then chkp_opt="${chkp_opt} --partition-activations"; fi
if [ "${PA_CPU}" = "true" ]; then chkp_opt="${chkp_opt} --checkpoint-in-cpu"; fi
if [ "${SYNCHRONIZE}" = "true" ]; then chkp_opt="${chkp_opt} --synchronize-each-layer"; fi
if [ "${CC}" = "true" ]; then chkp_opt="${chkp_opt} --contigious-checkpointing"; fi
if [ "${PROFILE}" = "true" ]; then chkp_opt="${chkp_opt} --profile-backward"; fi

if [ -n "$HOSTS" ]; then launch="-i $HOSTS"; else launch="--num_nodes 1 --num_gpus ${MP_SIZE}"; fi
run_cmd="deepspeed $launch pretrain_gpt2.py ${gpt_options} ${deepspeed_options} ${chkp_opt}"
echo ${run_cmd}
eval ${run_cmd}
set +x
