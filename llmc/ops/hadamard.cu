// hadamard -- on a GPU, as an op of its own; the quantisers transform in registers.
#include "hadamard.h"

#include "../device_cuda.cuh"
#include "quantize.cuh"

enum { THREADS = 256 };

/*
A thread takes one group of 16. stride: elements between neighbours of a group, 1 along a row or
the number of columns.
  bytes    2 read and 2 written per element
  limiter  memory; measured: see dev/SPEED.md
*/
__global__ static void __launch_bounds__(THREADS)
    hadamard_kernel(uint16_t *out, const uint16_t *x, int64_t num_groups, int64_t stride,
                    uint32_t sign_mask) {
    int64_t group = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (group >= num_groups) return;
    int64_t at = group / stride * 16 * stride + group % stride;
    float v[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float value = __uint_as_float((uint32_t)x[at + i * stride] << 16);
        v[i] = sign_mask >> i & 1 ? -value : value;
    }
    hadamard16_butterflies(v);
#pragma unroll
    for (int i = 0; i < 16; i++)
        out[at + i * stride] = __bfloat16_as_ushort(__float2bfloat16_rn(v[i] * 0.25f));
}

void hadamard_cuda(Device *d, Tensor out, Tensor x, int along_rows, Signs signs) {
    hadamard_check(out, x, along_rows);
    CHECK(x.dtype == DT_BF16, "x is %s: the GPU transforms bf16", dtype_info[x.dtype].name);
    int64_t num_groups = tensor_count(x) / 16, stride = along_rows ? x.cols : 1;
    unsigned blocks = (unsigned)ceil_div(num_groups, THREADS);
    hadamard_kernel<<<blocks, THREADS, 0, device_cuda_stream(d)>>>(
        (uint16_t *)out.data, (const uint16_t *)x.data, num_groups, stride,
        hadamard_sign_mask(signs));
    CUDA_CHECK_LAUNCH();
}
