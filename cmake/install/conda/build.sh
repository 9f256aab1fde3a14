#!/usr/bin/env bash
# Builds Trireme in the conda environment that is active, and installs it there:
#
#   conda env create -f cmake/install/conda/environment.yaml && conda activate trireme
#   cmake/install/conda/build.sh [CMAKE-OPTION...]        such as -DTRIREME_CUDA=OFF
#
# The CUDA backend is built where nvcc, cuBLASLt and NCCL are found: conda-forge has them as cuda-nvcc,
# libcublas-dev and nccl, or load the cluster's modules before.
set -euo pipefail
if [ -z "${CONDA_PREFIX:-}" ]; then
  echo "build.sh: no conda environment is active (CONDA_PREFIX is not set): conda activate trireme" >&2
  exit 1
fi
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
cmake --preset release -DTRIREME_TESTS=OFF -DCMAKE_PREFIX_PATH="$CONDA_PREFIX" -DCMAKE_INSTALL_PREFIX="$CONDA_PREFIX" "$@"
cmake --build --preset release --parallel "$(nproc)"
cmake --install build/release
