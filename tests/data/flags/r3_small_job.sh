#!/bin/bash
# shellcheck disable=all
#SBATCH --job-name=small
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a10:4
# Submits r3_small.sh with its arguments.
export STAGES=2
srun bash r3_small.sh 0 localhost 13-11
