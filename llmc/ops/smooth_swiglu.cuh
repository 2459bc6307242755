// smooth_swiglu -- kernels of smooth_swiglu.h: a block a row, a vector of 8 a thread and turn. A
// host compiler can take this file too, after test/fibres.h.
#pragma once
#include "activation.cuh"

enum { SMOOTH_THREADS = 256 };

// NULL where a pass has no such tensor.
typedef struct {
    bf16 *out, *dx;
    const bf16 *x, *dout;
    float *scale;   // (rows)
    int64_t cols;   // of out and dout; x and dx have twice as many
    bool whole;
} SmoothArgs;

/* 1 where the largest |up| of the row is 0. All threads get it; shared: one float a warp. */
static __device__ __forceinline__ float smooth_row_scale(const bf16 *up, int64_t cols, bool whole,
                                                         float *shared) {
    float most = 0.0f;
    for (int64_t c = threadIdx.x * VEC; c < cols; c += SMOOTH_THREADS * VEC) {
        float v[VEC];
        load_vec(v, up + c, cols - c, whole);
#pragma unroll
        for (int i = 0; i < VEC; i++) most = fmaxf(most, fabsf(v[i]));
    }
    most = warp_max(most);
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = most;
    __syncthreads();
    for (int i = 0; i < SMOOTH_THREADS / WARP; i++) most = fmaxf(most, shared[i]);
    return most == 0.0f ? 1.0f : most;
}

/*
A block a row: its largest |up| first, then its values; up is read twice, the second time from L2.
  bytes    6 per output, 4 read and 2 written
  limiter  memory bandwidth; the division takes 8 of about 20 instructions an element
*/
__global__ static void __launch_bounds__(SMOOTH_THREADS) smooth_forward_kernel(SmoothArgs a) {
    __shared__ float shared[SMOOTH_THREADS / WARP];
    int64_t row = blockIdx.x;
    const bf16 *gate = a.x + row * 2 * a.cols, *up = gate + a.cols;
    float scale = smooth_row_scale(up, a.cols, a.whole, shared);
    if (threadIdx.x == 0) a.scale[row] = scale;
    for (int64_t c = threadIdx.x * VEC; c < a.cols; c += SMOOTH_THREADS * VEC) {
        float g[VEC], u[VEC];
        load_vec(g, gate + c, a.cols - c, a.whole);
        load_vec(u, up + c, a.cols - c, a.whole);
#pragma unroll
        for (int i = 0; i < VEC; i++) g[i] = act_forward<ACT_SWIGLU>({g[i], u[i] / scale});
        store_vec(a.out + row * a.cols + c, g, a.cols - c, a.whole);
    }
}

/*
A block a row; dx may be x, since a thread writes only what it has read.
  bytes    10 per element of dout: 6 read, 4 written
  limiter  memory bandwidth, as the forward kernel
*/
__global__ static void __launch_bounds__(SMOOTH_THREADS) smooth_backward_kernel(SmoothArgs a) {
    int64_t row = blockIdx.x, at = row * 2 * a.cols;
    float scale = a.scale[row];
    for (int64_t c = threadIdx.x * VEC; c < a.cols; c += SMOOTH_THREADS * VEC) {
        float g[VEC], u[VEC], dout[VEC];
        int64_t left = a.cols - c;
        load_vec(dout, a.dout + row * a.cols + c, left, a.whole);
        load_vec(g, a.x + at + c, left, a.whole);
        load_vec(u, a.x + at + a.cols + c, left, a.whole);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            ActPair grad = act_backward<ACT_SWIGLU>({g[i], u[i] / scale}, dout[i]);
            g[i] = grad.x;
            u[i] = grad.up / scale;
        }
        store_vec(a.dx + at + c, g, left, a.whole);
        store_vec(a.dx + at + a.cols + c, u, left, a.whole);
    }
}

typedef struct {
    bf16 *out;
    const bf16 *x, *b;   // (rows, cols), (cols) or NULL
    const float *scale;
    int64_t cols;
    bool whole;
} ScaleRowsArgs;

/*
A block a row; out may be x.
  bytes    4 per element: 2 read, 2 written
  limiter  memory bandwidth
*/
__global__ static void __launch_bounds__(SMOOTH_THREADS) scale_rows_kernel(ScaleRowsArgs a) {
    int64_t row = blockIdx.x, at = row * a.cols;
    float scale = a.scale[row];
    for (int64_t c = threadIdx.x * VEC; c < a.cols; c += SMOOTH_THREADS * VEC) {
        float v[VEC], b[VEC] = {0};
        load_vec(v, a.x + at + c, a.cols - c, a.whole);
        if (a.b) load_vec(b, a.b + c, a.cols - c, a.whole);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = v[i] * scale + b[i];
        store_vec(a.out + at + c, v, a.cols - c, a.whole);
    }
}
