// decode -- an operand as the numbers that it stands for, on a GPU.
#include "decode.h"

#include "../device_cuda.cuh"
#include "decode.cuh"

void decode_cuda(Device *d, Tensor out, const QOperand *q) {
    decode_check(out, q);
    DecodeArgs a = decode_args(out, q);
    decode_kernel<<<flat_blocks(tensor_count(out)), FLAT_THREADS, 0, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}
