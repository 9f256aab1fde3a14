#!/bin/bash
# shellcheck disable=all
#SBATCH --job-name=r1-gpt2
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
# A recipe in the manner of BigScience's fork: the batch ramps up, lengths count samples, the script writes the JSON
# file itself, and srun starts a shell that starts the launcher.

set -x -e
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
MASTER_PORT=6000

GPUS_PER_NODE=4
NNODES=$SLURM_NNODES
TP_SIZE=2
PP_SIZE=2
MICRO=1
GLOBAL=16
OUT=output/r1
config_json="./ds_config.$SLURM_JOBID.json"

cat <<EOT > $config_json
{
  "train_micro_batch_size_per_gpu": $MICRO,
  "train_batch_size": $GLOBAL,
  "gradient_clipping": 1.0,
  "zero_optimization": {"stage": 1},
  "fp16": {
    "enabled": true,
    "loss_scale": 0,
    "loss_scale_window": 500,
    "hysteresis": 2,
    "min_loss_scale": 1,
    "initial_scale_power": 12
  },
  "steps_per_print": 2000,
  "wall_clock_breakdown": false
}
EOT

GPT_ARGS=" \
    --num-layers 8 \
    --hidden-size 512 \
    --num-attention-heads 8 \
    --seq-length 512 --max-position-embeddings 512 \
    --micro-batch-size $MICRO \
    --rampup-batch-size 2 2 1_000 \
    --global-batch-size $GLOBAL \
    --train-samples 10_000 \
    --optimizer adam --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 \
    --lr 1e-4 --min-lr 1e-5 \
    --lr-warmup-samples 500 --lr-decay-samples 9_000 --lr-decay-style cosine \
    --clip-grad 1.0 --weight-decay 1e-1 \
    --embed-layernorm \
    --fp16 \
    --partition-activations --checkpoint-activations \
    --seed 42 \
    "
OUTPUT_ARGS=" \
    --exit-interval 100 \
    --exit-duration-in-mins 55 \
    --kill-switch-path $OUT/kill-switch \
    --skip-train-iteration-range 101-200 251-300 \
    --log-interval 10 --save-interval 500 --eval-interval 50 --eval-iters 10 \
    --tensorboard-dir $OUT/tensorboard --tensorboard-queue-size 5 \
    --log-timers-to-tensorboard --log-batch-size-to-tensorboard --log-validation-ppl-to-tensorboard \
    "
DATA_ARGS=" \
    --save $OUT/checkpoints --load $OUT/checkpoints \
    --data-path 0.7 data/web_text_document 0.3 data/books_text_document \
    --vocab-file data/gpt2-vocab.json --merge-file data/gpt2-merges.txt \
    --tokenizer-type GPT2BPETokenizer --data-impl mmap --split 900,100,0 \
    "
DEEPSPEED_ARGS=" \
    --deepspeed --deepspeed_config ${config_json} --zero-stage 1 --deepspeed-activation-checkpointing \
    "

export LAUNCHER="python -u -m torch.distributed.launch \
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $NNODES \
    --master_addr $MASTER_ADDR --master_port $MASTER_PORT \
    "
export CMD=" \
    pretrain_gpt.py \
    --tensor-model-parallel-size $TP_SIZE \
    --pipeline-model-parallel-size $PP_SIZE \
    --distributed-backend nccl \
    $GPT_ARGS $OUTPUT_ARGS $DATA_ARGS $DEEPSPEED_ARGS \
    "
srun --jobid $SLURM_JOBID bash -c "$LAUNCHER --node_rank \$SLURM_PROCID $CMD" 2>&1 | tee -a main.log
