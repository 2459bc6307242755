// convert -- dtypes changed, and sums of gradients, on a GPU.
#include "convert.h"

#include "../device_cuda.cuh"
#include "vec.cuh"

/*
One vector of 8 elements a thread.
  bytes    convert: 6 per element of f32 to bf16 or back; add: 10 per element of bf16, 12 of f32
  limiter  memory bandwidth
*/
template <typename Out, typename In, bool ADDS>
__global__ static void __launch_bounds__(FLAT_THREADS)
    convert_kernel(Out *out, const In *x, int64_t count, bool whole) {
    int64_t i = ((int64_t)blockIdx.x * FLAT_THREADS + threadIdx.x) * VEC, left = count - i;
    if (left <= 0) return;
    float v[VEC], sum[VEC];
    load_vec(v, x + i, left, whole);
    if (ADDS) {
        load_vec(sum, out + i, left, whole);
        for (int j = 0; j < VEC; j++) v[j] += sum[j];
    }
    store_vec(out + i, v, left, whole);
}

template <typename Out, typename In, bool ADDS>
static void launch(Device *d, Tensor out, Tensor x) {
    bool whole = whole_vectors(out) && whole_vectors(x);
    convert_kernel<Out, In, ADDS>
        <<<flat_blocks(ceil_div(x.cols, VEC)), FLAT_THREADS, 0, device_cuda_stream(d)>>>(
            (Out *)out.data, (const In *)x.data, x.cols, whole);
    CUDA_CHECK_LAUNCH();
}

void convert_cuda(Device *d, Tensor out, Tensor x) {
    convert_check(out, x);
    if (out.dtype == x.dtype) d->copy(d, out.data, x.data, tensor_bytes(x));
    else if (out.dtype == DT_F32) launch<float, bf16, false>(d, out, x);
    else launch<bf16, float, false>(d, out, x);
}

void add_cuda(Device *d, Tensor out, Tensor x) {
    add_check(out, x);
    if (x.dtype == DT_F32) launch<float, float, true>(d, out, x);
    else launch<float, bf16, true>(d, out, x);
}
