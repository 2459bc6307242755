// activation -- nonlinearities and the residual addition on a GPU. The formulas are those of
// activation.c, with CUDA's exp in place of fast_exp.
#include "activation.h"

#include "../device_cuda.cuh"
#include "vec.cuh"

#define SQRT_2_OVER_PI 0.79788456f
#define GELU_CUBIC     0.044715f

static __device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

typedef struct {
    float x, up;   // dx and dup of a gradient; up only for gated kinds
} ActPair;

template <ActKind KIND> __device__ float act_forward(ActPair in);
template <ActKind KIND> __device__ ActPair act_backward(ActPair in, float dout);

// 0.5 (1 + tanh(u)) = sigmoid(2u).
template <> __device__ __forceinline__ float act_forward<ACT_GELU>(ActPair in) {
    float x = in.x, u = SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x);
    return x * sigmoid(2.0f * u);
}

template <> __device__ __forceinline__ ActPair act_backward<ACT_GELU>(ActPair in, float dout) {
    // From |x| = 16 on the sigmoid is 0 or 1; beyond, x^2 could overflow and make 0 * inf.
    float x = fminf(fmaxf(in.x, -16.0f), 16.0f);
    float u = SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x);
    float du = SQRT_2_OVER_PI * (1.0f + 3.0f * GELU_CUBIC * x * x);   // u = ...
    float y = sigmoid(2.0f * u);
    // out = x * y(2u(x)): product rule, y' = y (1 - y)
    return {dout * (y + x * y * (1.0f - y) * 2.0f * du), 0.0f};
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

/* The vector of this thread. */
static __device__ __forceinline__ ActPlace act_place(const ActArgs &a, int inputs) {
    uint32_t vector = blockIdx.x * FLAT_THREADS + threadIdx.x;
    int64_t row = vector / a.row_vectors, col = (int64_t)(vector % a.row_vectors) * VEC;
    ActPlace place = {row < a.rows ? a.cols - col : 0, row * a.cols + col,
                      row * a.cols * inputs + col};
    return place;
}

/*
One vector of 8 outputs a thread; kinds with one input see the tensor as a single row.
  bytes    2 per input and 2 per output
  limiter  memory bandwidth; measured: see dev/SPEED.md
*/
template <ActKind KIND, int INPUTS>
__global__ static void __launch_bounds__(FLAT_THREADS) act_forward_kernel(ActArgs a) {
    ActPlace at = act_place(a, INPUTS);
    if (at.count <= 0) return;
    float x[VEC], up[VEC] = {};
    load_vec(x, a.x + at.x_at, at.count, a.whole);
    if (INPUTS == 2) load_vec(up, a.x + at.x_at + a.cols, at.count, a.whole);
    for (int j = 0; j < VEC; j++) x[j] = act_forward<KIND>({x[j], up[j]});
    store_vec(a.out + at.out_at, x, at.count, a.whole);
}

/*
As the forward kernel; dx may be x, since a thread writes only what it has read.
  bytes    2 per output, 4 per input
  limiter  memory bandwidth; measured: see dev/SPEED.md
*/
template <ActKind KIND, int INPUTS>
__global__ static void __launch_bounds__(FLAT_THREADS) act_backward_kernel(ActArgs a) {
    ActPlace at = act_place(a, INPUTS);
    if (at.count <= 0) return;
    float x[VEC], up[VEC] = {}, dout[VEC];
    load_vec(x, a.x + at.x_at, at.count, a.whole);
    if (INPUTS == 2) load_vec(up, a.x + at.x_at + a.cols, at.count, a.whole);
    load_vec(dout, a.dout + at.out_at, at.count, a.whole);
    for (int j = 0; j < VEC; j++) {
        ActPair grad = act_backward<KIND>({x[j], up[j]}, dout[j]);
        x[j] = grad.x;
        up[j] = grad.up;
    }
    store_vec(a.dx + at.x_at, x, at.count, a.whole);
    if (INPUTS == 2) store_vec(a.dx + at.x_at + a.cols, up, at.count, a.whole);
}

// In the order of ActKind.
static const struct {
    void (*forward)(ActArgs);
    void (*backward)(ActArgs);
} act_kernels[NUM_ACTS] = {
    {act_forward_kernel<ACT_GELU, 1>, act_backward_kernel<ACT_GELU, 1>},
    {act_forward_kernel<ACT_SWIGLU, 2>, act_backward_kernel<ACT_SWIGLU, 2>},
    {act_forward_kernel<ACT_RELU2, 1>, act_backward_kernel<ACT_RELU2, 1>},
};

/* Shapes of a launch; `out` is dout in the backward pass. */
static ActArgs act_args(Tensor out, Tensor x, ActKind kind) {
    expect_bf16(x, "activation x");
    ActArgs a = {};
    if (act_info[kind].inputs_per_output == 1) {
        out = flat(out);
        x = flat(x);
    }
    a.x = (const bf16 *)x.data;
    a.rows = out.rows;
    a.cols = out.cols;
    a.row_vectors = (uint32_t)ceil_div(out.cols, VEC);
    // In a gated kind the second half of a row starts at a vector only when the first is whole.
    a.whole = whole_vectors(out) && whole_vectors(x) &&
              (act_info[kind].inputs_per_output == 1 || out.cols % VEC == 0);
    return a;
}

void activation_forward_cuda(Device *d, Tensor out, Tensor x, ActKind kind) {
    activation_check(out, x, kind);
    ActArgs a = act_args(out, x, kind);
    a.out = (bf16 *)out.data;
    unsigned blocks = flat_blocks(a.rows * a.row_vectors);
    act_kernels[kind].forward<<<blocks, FLAT_THREADS, 0, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}

void activation_backward_cuda(Device *d, Tensor dx, Tensor dout, Tensor x, ActKind kind) {
    activation_check(dout, x, kind);
    activation_check(dout, dx, kind);
    ActArgs a = act_args(dout, x, kind);
    a.dout = (const bf16 *)dout.data;
    a.dx = (bf16 *)dx.data;
    a.whole = a.whole && (uintptr_t)dx.data % 16 == 0;
    unsigned blocks = flat_blocks(a.rows * a.row_vectors);
    act_kernels[kind].backward<<<blocks, FLAT_THREADS, 0, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}

// --- residual ---

typedef struct {
    bf16 *out;
    const bf16 *a, *b;   // all (count)
    int64_t count;
    bool whole;
} ResidualArgs;

/*
One vector of 8 elements a thread; out may be a or b.
  bytes    6 per element: 4 read, 2 written
  limiter  memory bandwidth; measured: see dev/SPEED.md
*/
__global__ static void __launch_bounds__(FLAT_THREADS) residual_kernel(ResidualArgs r) {
    int64_t i = ((int64_t)blockIdx.x * FLAT_THREADS + threadIdx.x) * VEC, left = r.count - i;
    if (left <= 0) return;
    float a[VEC], b[VEC];
    load_vec(a, r.a + i, left, r.whole);
    load_vec(b, r.b + i, left, r.whole);
    for (int j = 0; j < VEC; j++) a[j] += b[j];
    store_vec(r.out + i, a, left, r.whole);
}

void residual_forward_cuda(Device *d, Tensor out, Tensor a, Tensor b) {
    expect_bf16(out, "residual out");
    tensor_expect(a, "residual a", out.dtype, out.rows, out.cols);
    tensor_expect(b, "residual b", out.dtype, out.rows, out.cols);
    bool whole = whole_vectors(flat(out)) && whole_vectors(flat(a)) && whole_vectors(flat(b));
    ResidualArgs args = {(bf16 *)out.data, (const bf16 *)a.data, (const bf16 *)b.data,
                         tensor_count(out), whole};
    unsigned blocks = flat_blocks(ceil_div(args.count, VEC));
    residual_kernel<<<blocks, FLAT_THREADS, 0, device_cuda_stream(d)>>>(args);
    CUDA_CHECK_LAUNCH();
}
