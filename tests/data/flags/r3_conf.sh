# shellcheck shell=bash disable=all
# Sourced by r3_uneven_pipeline.sh.
size='xl' # 'small' or 'xl'
gpus_each=4
nodes=8
all_ranks=$((gpus_each * nodes))
batch=64
micro=1
tensor=1
stages=8
copies=$((all_ranks / (tensor * stages)))
balance="0-11-8-8-8-8-5-0"
with_nsys=false
with_timers=true

if [ $size == "small" ]; then
  width=1024
  layers=24
elif [ $size == "xl" ]; then
  width=1600
  layers=48
else
  echo "no such model"
  exit 1
fi

if $with_timers; then
  timing="--timing-log-level 2 --timing-log-option all"
else
  timing=""
fi
