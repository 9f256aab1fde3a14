#!/bin/bash
# shellcheck disable=all
# A recipe in the manner of DeepSpeed's example: the tensor-parallel run of r0_tensor.sh on chosen GPUs of two hosts.

MP_SIZE=4 HOSTS=worker-1:4,5@worker-2:4,5 bash r0_tensor.sh
