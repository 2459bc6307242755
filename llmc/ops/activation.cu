// activation -- nonlinearities and the residual addition on a GPU.
#include "activation.h"

#include "../device_cuda.cuh"
#include "activation.cuh"

// In the order of ActKind.
static const struct {
    void (*forward)(ActArgs);
    void (*backward)(ActArgs);
} act_kernels[NUM_ACTS] = {
    {act_forward_kernel<ACT_GELU, 1>, act_backward_kernel<ACT_GELU, 1>},
    {act_forward_kernel<ACT_SWIGLU, 2>, act_backward_kernel<ACT_SWIGLU, 2>},
    {act_forward_kernel<ACT_RELU2, 1>, act_backward_kernel<ACT_RELU2, 1>},
};

static unsigned act_blocks(const ActArgs &a) {
    int64_t vectors = a.rows * a.row_vectors;
    CHECK(vectors < INT64_C(1) << 32, "%lld vectors in one kernel", (long long)vectors);
    return (unsigned)ceil_div(vectors, ACT_BLOCK);
}

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
    act_kernels[kind].forward<<<act_blocks(a), ACT_THREADS, 0, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}

void activation_backward_cuda(Device *d, Tensor dx, Tensor dout, Tensor x, ActKind kind) {
    activation_check(dout, x, kind);
    activation_check(dout, dx, kind);
    ActArgs a = act_args(dout, x, kind);
    a.dout = (const bf16 *)dout.data;
    a.dx = (bf16 *)dx.data;
    a.whole = a.whole && (uintptr_t)dx.data % 16 == 0;
    act_kernels[kind].backward<<<act_blocks(a), ACT_THREADS, 0, device_cuda_stream(d)>>>(a);
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
