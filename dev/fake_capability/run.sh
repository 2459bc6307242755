#!/usr/bin/env bash
# Asks cuBLASLt's heuristics for every NVFP4 GEMM of the models as if the GPU here were a B200
# (sm_100) and a GB300 (sm_103): a table each. Needs any CUDA GPU and launches nothing on it.
# Exits 1 when a GEMM is refused.
# sm_120 and sm_121 cannot be asked like this: under them cuBLASLt 13.1 refuses every FP4 shape,
# though it has such kernels.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=build/cuda/dev/fake_capability
make -s -j"$(nproc)" $folder/heuristics
gcc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -shared -fPIC dev/fake_capability/shim.c \
    -o $folder/shim.so -ldl

ask() {   # MAJOR MINOR MULTIPROCESSORS
    FAKE_MAJOR=$1 FAKE_MINOR=$2 FAKE_SMS=$3 FAKE_SMEM_BLOCK=232448 FAKE_SMEM_SM=233472 \
        LD_PRELOAD=$PWD/$folder/shim.so $folder/heuristics
}

status=0
ask 10 0 148 || status=1
ask 10 3 148 || status=1
exit $status
