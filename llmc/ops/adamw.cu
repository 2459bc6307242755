// adamw -- one optimizer step on a GPU, bit for bit what adamw.c computes: every operation is
// rounded by itself, in the reference's order.
#include "adamw.h"

#include "../device_cuda.cuh"
#include "vec.cuh"

typedef struct {
    bf16 *value;
    float *master, *m, *v;
    const float *grad;   // all (count)
    int64_t count;
    AdamWConfig config;
    const StepState *state;   // device memory
    bool whole;
} AdamWArgs;

static __device__ __forceinline__ void adamw_one(float *master, float *m, float *v, float grad,
                                                 const AdamWConfig &config,
                                                 const StepState &state) {
    float beta1 = config.beta1, beta2 = config.beta2;
    float g = __fmul_rn(grad, state.grad_scale);
    *m = __fadd_rn(__fmul_rn(beta1, *m), __fmul_rn(1.0f - beta1, g));
    *v = __fadd_rn(__fmul_rn(beta2, *v), __fmul_rn(1.0f - beta2, __fmul_rn(g, g)));
    float m_hat = __fdiv_rn(*m, state.bias_correction1);
    float v_hat = __fdiv_rn(*v, state.bias_correction2);
    float step = __fdiv_rn(m_hat, __fadd_rn(__fsqrt_rn(v_hat), config.eps));
    float update = __fadd_rn(step, __fmul_rn(config.weight_decay, *master));
    *master = __fsub_rn(*master, __fmul_rn(state.lr, update));
}

/*
One vector of 8 elements a thread.
  bytes    30 per element: grad read; master, m, v read and written; value written
  limiter  memory bandwidth; measured: see dev/SPEED.md
*/
__global__ static void __launch_bounds__(FLAT_THREADS) adamw_kernel(AdamWArgs a) {
    int64_t i = ((int64_t)blockIdx.x * FLAT_THREADS + threadIdx.x) * VEC, left = a.count - i;
    if (left <= 0 || a.state->skip) return;
    float master[VEC], m[VEC], v[VEC], grad[VEC];
    load_vec(master, a.master + i, left, a.whole);
    load_vec(m, a.m + i, left, a.whole);
    load_vec(v, a.v + i, left, a.whole);
    load_vec(grad, a.grad + i, left, a.whole);
    for (int j = 0; j < VEC; j++) {
        adamw_one(&master[j], &m[j], &v[j], grad[j], a.config, *a.state);
    }
    store_vec(a.master + i, master, left, a.whole);
    store_vec(a.m + i, m, left, a.whole);
    store_vec(a.v + i, v, left, a.whole);
    store_vec(a.value + i, master, left, a.whole);
}

void adamw_cuda(Device *d, AdamWTensors t, AdamWConfig config, const StepState *state) {
    adamw_check(t);
    expect_bf16(t.value, "adamw value");
    bool whole = whole_vectors(t.value) && whole_vectors(t.master) && whole_vectors(t.m) &&
                 whole_vectors(t.v) && whole_vectors(t.grad);
    AdamWArgs a = {(bf16 *)t.value.data,
                   (float *)t.master.data,
                   (float *)t.m.data,
                   (float *)t.v.data,
                   (const float *)t.grad.data,
                   t.master.cols,
                   config,
                   state,
                   whole};
    unsigned blocks = flat_blocks(ceil_div(a.count, VEC));
    adamw_kernel<<<blocks, FLAT_THREADS, 0, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}
