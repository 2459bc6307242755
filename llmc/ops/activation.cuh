// activation -- formulas and kernels of the nonlinearities. The formulas are those of activation.c,
// with the multiprocessor's exp2 and reciprocal. A host compiler can take this file too, after
// test/fibres.h.
#pragma once
#include "activation.h"
#include "approx.cuh"
#include "vec.cuh"

#define SQRT_2_OVER_PI 0.79788456f
#define GELU_CUBIC     0.044715f

static __device__ __forceinline__ float sigmoid(float x) { return sigmoid_of_log2(-LOG2_E * x); }

typedef struct {
    float x, up;   // dx and dup of a gradient; up only for gated kinds
} ActPair;

template <ActKind KIND> __device__ float act_forward(ActPair in);
template <ActKind KIND> __device__ ActPair act_backward(ActPair in, float dout);

/* sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): 0.5 (1 + tanh(u)). */
static __device__ __forceinline__ float gelu_sigmoid(float x, float x_squared) {
    const float linear = -2.0f * LOG2_E * SQRT_2_OVER_PI, cubic = linear * GELU_CUBIC;
    return sigmoid_of_log2(x * (cubic * x_squared + linear));
}

template <> __device__ __forceinline__ float act_forward<ACT_GELU>(ActPair in) {
    return in.x * gelu_sigmoid(in.x, in.x * in.x);
}

template <> __device__ __forceinline__ ActPair act_backward<ACT_GELU>(ActPair in, float dout) {
    // From |x| = 16 on the sigmoid is 0 or 1; beyond, x^2 could overflow and make 0 * inf.
    float x = fminf(fmaxf(in.x, -16.0f), 16.0f), x_squared = x * x;
    float twice_du = 2.0f * SQRT_2_OVER_PI * (1.0f + 3.0f * GELU_CUBIC * x_squared);
    float y = gelu_sigmoid(x, x_squared);
    // out = x * y(2u(x)): product rule, y' = y (1 - y)
    return {dout * (x * twice_du * (y - y * y) + y), 0.0f};
}

template <> __device__ __forceinline__ float act_forward<ACT_SWIGLU>(ActPair in) {
    return in.x * sigmoid(in.x) * in.up;
}

template <> __device__ __forceinline__ ActPair act_backward<ACT_SWIGLU>(ActPair in, float dout) {
    float y = sigmoid(in.x);
    // out = gate * y(gate) * up: product rule, y' = y (1 - y)
    float dgate = dout * in.up * (y * (1.0f + in.x * (1.0f - y)));
    return {dgate, dout * (in.x * y)};
}

template <> __device__ __forceinline__ float act_forward<ACT_RELU2>(ActPair in) {
    return in.x > 0.0f ? in.x * in.x : 0.0f;
}

template <> __device__ __forceinline__ ActPair act_backward<ACT_RELU2>(ActPair in, float dout) {
    return {in.x > 0.0f ? dout * 2.0f * in.x : 0.0f, 0.0f};   // out = x^2 for x > 0, else 0
}

enum {
    ACT_THREADS = 256,
    ACT_VECTORS = 2,   // of 8 outputs, of a thread: all are loaded before the first is used
    ACT_BLOCK = ACT_THREADS * ACT_VECTORS
};

// x and dx have `inputs` times the columns of out and dout; NULL where a pass has no such tensor.
typedef struct {
    bf16 *out, *dx;
    const bf16 *x, *dout;
    int64_t rows, cols;     // of out
    uint32_t row_vectors;   // of out
    bool whole;
} ActArgs;

typedef struct {
    int64_t count;   // columns left in the row; 0 or less: nothing to do
    int64_t out_at, x_at;
} ActPlace;

/* Vector i of this thread. With one input the tensor is a single row. */
template <int INPUTS>
static __device__ __forceinline__ ActPlace act_place(const ActArgs &a, int i) {
    uint32_t vector = blockIdx.x * ACT_BLOCK + (uint32_t)i * ACT_THREADS + threadIdx.x;
    int64_t row = INPUTS == 1 ? 0 : vector / a.row_vectors;
    int64_t col = (int64_t)(vector - (uint32_t)row * a.row_vectors) * VEC;
    return {row < a.rows ? a.cols - col : 0, row * a.cols + col, row * a.cols * INPUTS + col};
}

/* The inputs of one vector of outputs. */
typedef struct {
    uint4 x, up;
} ActInputs;

template <int INPUTS>
static __device__ __forceinline__ ActInputs act_load(const ActArgs &a, ActPlace at) {
    ActInputs in = {};
    in.x = load_packed(a.x + at.x_at, at.count, a.whole);
    if (INPUTS == 2) in.up = load_packed(a.x + at.x_at + a.cols, at.count, a.whole);
    return in;
}

/*
Two vectors of 8 outputs a thread, a block's width apart.
  bytes    2 per input and 2 per output
  limiter  memory bandwidth; gelu and swiglu take 2 of the 16 exps and reciprocals that a
           multiprocessor has a clock, half the time of their bytes on an H200
*/
template <ActKind KIND, int INPUTS>
__global__ static void __launch_bounds__(ACT_THREADS) act_forward_kernel(ActArgs a) {
    ActInputs in[ACT_VECTORS];
#pragma unroll
    for (int i = 0; i < ACT_VECTORS; i++) in[i] = act_load<INPUTS>(a, act_place<INPUTS>(a, i));
#pragma unroll
    for (int i = 0; i < ACT_VECTORS; i++) {
        ActPlace at = act_place<INPUTS>(a, i);
        if (at.count <= 0) return;
        float x[VEC], up[VEC];
        unpack(x, in[i].x);
        unpack(up, in[i].up);
#pragma unroll
        for (int j = 0; j < VEC; j++) x[j] = act_forward<KIND>({x[j], up[j]});
        store_vec(a.out + at.out_at, x, at.count, a.whole);
    }
}

/*
As the forward kernel; dx may be x, since a thread writes only what it has read.
  bytes    2 per output, 4 per input
  limiter  memory bandwidth; gelu: 20 instructions an element beside it, at most 60 % of what a
           multiprocessor issues in that time
*/
template <ActKind KIND, int INPUTS>
__global__ static void __launch_bounds__(ACT_THREADS) act_backward_kernel(ActArgs a) {
    ActInputs in[ACT_VECTORS];
    uint4 packed_dout[ACT_VECTORS];
#pragma unroll
    for (int i = 0; i < ACT_VECTORS; i++) {
        ActPlace at = act_place<INPUTS>(a, i);
        in[i] = act_load<INPUTS>(a, at);
        packed_dout[i] = load_packed(a.dout + at.out_at, at.count, a.whole);
    }
#pragma unroll
    for (int i = 0; i < ACT_VECTORS; i++) {
        ActPlace at = act_place<INPUTS>(a, i);
        if (at.count <= 0) return;
        float x[VEC], up[VEC], dout[VEC];
        unpack(x, in[i].x);
        unpack(up, in[i].up);
        unpack(dout, packed_dout[i]);
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            ActPair grad = act_backward<KIND>({x[j], up[j]}, dout[j]);
            x[j] = grad.x;
            up[j] = grad.up;
        }
        store_vec(a.dx + at.x_at, x, at.count, a.whole);
        if (INPUTS == 2) store_vec(a.dx + at.x_at + a.cols, up, at.count, a.whole);
    }
}
