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

void decode_values_cuda(Device *d, Tensor out, const QOperand *q) {
    decode_values_check(out, q);
    DecodeArgs a = decode_args(tensor_view(NULL, DT_F32, q->rows, q->k), q);
    unsigned blocks = flat_blocks(ceil_div(tensor_count(out), VEC));
    decode_values_kernel<<<blocks, FLAT_THREADS, 0, device_cuda_stream(d)>>>(a, (bf16 *)out.data);
    CUDA_CHECK_LAUNCH();
}
