/*
bench_ops_cpu -- time of each CPU op at the sizes of the demo's model: 2048 tokens, dim 128, 4
heads, sequences of 256, a byte vocabulary. Not a test: it checks nothing.
  build/cpu/dev/bench_ops_cpu
*/
#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "../llmc/common.h"
#include "../llmc/ops.h"
#include "../llmc/rng.h"

enum { N = 2048, C = 128, F = 512, VOCAB = 257, PADDED_VOCAB = 384, REPEATS = 20 };

static const AttentionDims DIMS = {8, 256, 4, 4, 32};

static Device *device;
static Tensor x, y, wide, wide2, qkv, dqkv, lse, w, b, dw, db, logits, losses, targets, table;
static NormStats stats;
static AdamWTensors adamw;

/* Normal enough: a sum of uniforms, of the variance of a normalised activation. */
static Tensor random_tensor(DType dtype, int64_t rows, int64_t cols) {
    Tensor t = tensor_view(xmalloc(dtype_bytes(dtype, rows * cols)), dtype, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        Philox4 draw = philox4x32_10(rng_group_counter((uint64_t)i, 0, 0), 1, 0);
        float sum = 0.0f;
        for (int j = 0; j < 4; j++) sum += rng_uniform(draw.w[j]) - 0.5f;
        if (dtype == DT_BF16) ((bf16_t *)t.data)[i] = bf16_from_f32(sum * 1.7f);
        if (dtype == DT_F32) ((float *)t.data)[i] = sum * 1.7f;
        if (dtype == DT_I32) ((int32_t *)t.data)[i] = (int32_t)(draw.w[0] % VOCAB);
    }
    return t;
}

static void open_device(void) {
    device = device_cpu_open(0);
    OpLimits limits = {N, F, C * F, N, PADDED_VOCAB, 1 << 20, DIMS};
    size_t bytes = ops_cpu.scratch_bytes(&limits);
    device_set_scratch(device, device_alloc(device, bytes, "scratch"), bytes);
    x = random_tensor(DT_BF16, N, C);
    y = random_tensor(DT_BF16, N, C);
    wide = random_tensor(DT_BF16, N, F);
    wide2 = random_tensor(DT_BF16, N, F);
    qkv = random_tensor(DT_BF16, N, 3 * C);
    dqkv = random_tensor(DT_BF16, N, 3 * C);
    lse = random_tensor(DT_F32, DIMS.B * DIMS.num_heads, DIMS.T);
    w = random_tensor(DT_BF16, 1, C);
    b = random_tensor(DT_BF16, 1, C);
    dw = random_tensor(DT_F32, 1, F);
    db = random_tensor(DT_F32, 1, C);
    logits = random_tensor(DT_BF16, N, PADDED_VOCAB);
    losses = random_tensor(DT_F32, N, 1);
    targets = random_tensor(DT_I32, N, 1);
    table = random_tensor(DT_F32, PADDED_VOCAB, C);
    stats = (NormStats){random_tensor(DT_F32, N, 1), random_tensor(DT_F32, N, 1)};
    adamw = (AdamWTensors){random_tensor(DT_BF16, 1, 1 << 20), random_tensor(DT_F32, 1, 1 << 20),
                           random_tensor(DT_F32, 1, 1 << 20), random_tensor(DT_F32, 1, 1 << 20),
                           random_tensor(DT_F32, 1, 1 << 20)};
    for (int i = 0; i < 1 << 20; i++) ((float *)adamw.v.data)[i] = 1.0f;
}

// --- one function an op ---

static void layernorm_forward(void) { ops_cpu.norm[0].forward(device, y, stats, x, w, b, 1e-5f); }
static void layernorm_backward(void) {
    Tensor dw_c = tensor_view(dw.data, DT_F32, 1, C);
    ops_cpu.norm[0].backward(device, y, dw_c, db, x, x, w, stats);
}
static void attention_forward(void) { ops_cpu.attention_forward(device, y, lse, qkv, DIMS); }
static void attention_backward(void) {
    ops_cpu.attention_backward(device, dqkv, x, y, lse, qkv, DIMS);
}
static void gelu_forward(void) { ops_cpu.activation_forward(device, wide2, wide, ACT_GELU); }
static void gelu_backward(void) {
    ops_cpu.activation_backward(device, wide2, wide2, wide, ACT_GELU);
}
static void residual(void) { ops_cpu.residual_forward(device, y, x, x); }
static void cross_entropy(void) {
    ops_cpu.cross_entropy(device, losses, logits, targets, VOCAB, 1.0f / N);
}
static void column_sum(void) { ops_cpu.column_sum(device, dw, wide); }
static void embedding_backward(void) {
    Tensor ids = tensor_view(targets.data, DT_I32, DIMS.B, DIMS.T), none = {NULL, DT_F32, 0, 0};
    ops_cpu.embedding_backward(device, table, none, x, ids);
}
static void optimizer(void) {
    StepState s = {.lr = 1e-3f, .bias_correction1 = 1, .bias_correction2 = 1, .grad_scale = 1};
    AdamWConfig config = {0.9f, 0.95f, 1e-8f, 0.1f};
    ops_cpu.adamw(device, adamw, config, &s);
}
static void global_norm(void) {
    float norm;
    ops_cpu.global_norm(device, &norm, adamw.master);
}

static double best_ms(void (*run)(void)) {
    double best = INFINITY;
    for (int i = 0; i < REPEATS; i++) {
        double begin = now_ms();
        run();
        best = fmin(best, now_ms() - begin);
    }
    return best;
}

// --- products of one linear ---

static struct {
    Tensor d;
    QOperand a, b;
    GemmEpilogue epilogue;
} product;

static void gemm(void) {
    ops_cpu.gemm(device, product.d, &product.a, &product.b, product.epilogue);
}

static void bench_gemm(const char *name, Tensor d, Tensor a, Tensor b, int transposed) {
    product.d = d;
    product.a = operand_from_tensor(a, FORMAT_BF16, transposed < 2);
    product.b = operand_from_tensor(b, FORMAT_BF16, transposed < 1);
    product.epilogue.accumulate = transposed == 2;
    double ms = best_ms(gemm);
    double flops = 2.0 * (double)product.a.rows * (double)product.b.rows * (double)product.a.k;
    printf("gemm %-22s %8.3f ms  %6.1f GFLOP/s\n", name, ms, flops / ms * 1e-6);
}

int main(void) {
    static const struct {
        const char *name;
        void (*run)(void);
    } benches[] = {
        {"layernorm_forward", layernorm_forward},
        {"layernorm_backward", layernorm_backward},
        {"attention_forward", attention_forward},
        {"attention_backward", attention_backward},
        {"gelu_forward", gelu_forward},
        {"gelu_backward", gelu_backward},
        {"residual", residual},
        {"cross_entropy", cross_entropy},
        {"column_sum (2048,512)", column_sum},
        {"embedding_backward", embedding_backward},
        {"adamw 2^20", optimizer},
        {"global_norm 2^20", global_norm},
    };
    open_device();
    printf("%s, %d threads, %s; best of %d\n", device->name, device->num_threads, sgemm_name,
           REPEATS);
    for (int i = 0; i < ARRAY_LEN(benches); i++)
        printf("%-27s %8.3f ms\n", benches[i].name, best_ms(benches[i].run));
    Tensor weight = random_tensor(DT_BF16, F, C), dweight = random_tensor(DT_F32, F, C);
    Tensor down = random_tensor(DT_BF16, C, F);
    bench_gemm("fprop (2048,512,128)", wide2, x, weight, 0);
    bench_gemm("fprop (2048,128,512)", y, wide, down, 0);
    bench_gemm("dgrad (2048,128,512)", y, wide, weight, 1);
    bench_gemm("wgrad (512,128,2048)", dweight, wide, x, 2);
    return 0;
}
