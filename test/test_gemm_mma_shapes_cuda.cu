// test_gemm_mma_shapes_cuda -- the own NVFP4 GEMM beside the emulated product at the sizes of
// models: every GEMM of GPT-2 124M and of one Llama-2 7B layer. Normal data sum without rounding up
// to K = 16384, so the two are equal bit for bit there, and beyond they differ by no more than the
// bound on the step rule's truncations. Adversarial data is compared with sums in double, as the
// emulated product's own error is of the bound's size there: it is printed beside.
#include "../llmc/device_cuda.cuh"
#include "../llmc/ops/gemm_mma.h"
#include "quantize_setup.h"
#include "test.h"

static Device *gpu;

enum {
    PATTERN = 1048573,   // values that a tensor repeats; a prime, so that rows differ
    EXACT_K = 16384,
    THREADS = 256,
};

static void *gpu_alloc(size_t bytes) { return device_alloc(gpu, bytes, "a test's tensor"); }

// --- operands: one tensor, quantised into codes and into values, all on the GPU ---

typedef struct {
    QOperand packed, values;
} Matrix;

static Tensor gpu_tensor(Fill fill, uint32_t seed, int64_t rows, int64_t cols) {
    Tensor pattern = setup_tensor(DT_BF16, 1, PATTERN, fill, seed);
    int64_t bytes = 2 * rows * cols, filled = min_i64(bytes, 2 * PATTERN);
    char *data = (char *)gpu_alloc((size_t)bytes);
    gpu->upload(gpu, data, pattern.data, (size_t)filled);
    while (filled < bytes) {
        int64_t more = min_i64(filled, bytes - filled);
        gpu->copy(gpu, data + filled, data, (size_t)more);
        filled += more;
    }
    free(pattern.data);
    return tensor_view(data, DT_BF16, rows, cols);
}

static QOperand gpu_operand(OperandForm form, int64_t rows, int64_t k, float *amax) {
    QOperand q;
    memset(&q, 0, sizeof(q));
    q.form = form;
    q.format = FORMAT_NVFP4;
    q.dtype = DT_BF16;
    q.rows = rows;
    q.k = k;
    q.k_contiguous = 1;
    q.amax = amax;
    q.dequant_div = 6.0f * 448.0f;
    int packed = form == FORM_PACKED;
    q.data = gpu_alloc(packed ? quantize_packed_bytes(rows, k) : dtype_bytes(DT_BF16, rows * k));
    if (packed) q.scales = (uint8_t *)gpu_alloc(quantize_scales_bytes(rows, k));
    return q;
}

static Matrix matrix_make(Fill fill, uint32_t seed, int64_t rows, int64_t k) {
    Tensor x = gpu_tensor(fill, seed, rows, k);
    float *amax = (float *)gpu_alloc(sizeof(float));
    Matrix m = {gpu_operand(FORM_PACKED, rows, k, amax), gpu_operand(FORM_VALUES, rows, k, amax)};
    Quantizer how = setup_quantizer(nvfp4_cell(), 0, NULL);
    amax_pair_cuda(gpu, &m.packed, &how, NULL, NULL, x);
    quantize_pair_cuda(gpu, &m.packed, &how, NULL, NULL, x);
    quantize_pair_cuda(gpu, &m.values, &how, NULL, NULL, x);
    gpu->synchronize(gpu);
    gpu->free(gpu, x.data);
    return m;
}

static void matrix_free(Matrix *m) {
    gpu->free(gpu, m->packed.data);
    gpu->free(gpu, m->packed.scales);
    gpu->free(gpu, m->packed.amax);
    gpu->free(gpu, m->values.data);
}

// --- comparison ---

typedef struct {
    unsigned long long unequal;
    float worst;   // of the differences, in bounds
} Comparison;

/* The own product against the emulated one, and both against the exact one. */
typedef struct {
    Comparison own_emulated, own_exact, emulated_exact;
} Comparisons;

static unsigned blocks_of(int64_t count) { return (unsigned)ceil_div(count, THREADS); }

/* The exact products of bf16 values, summed in double. */
__global__ static void exact_kernel(float *out, QOperand a, QOperand b, float alpha_mult) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= a.rows * b.rows) return;
    const __nv_bfloat16 *x = (const __nv_bfloat16 *)a.data + i / b.rows * a.k;
    const __nv_bfloat16 *y = (const __nv_bfloat16 *)b.data + i % b.rows * b.k;
    double sum = 0;
    for (int64_t k = 0; k < a.k; k++)
        sum += (double)__bfloat162float(x[k]) * (double)__bfloat162float(y[k]);
    out[i] = (float)(sum * (double)(*a.amax * *b.amax * alpha_mult));
}

__global__ static void drop_signs_kernel(uint16_t *values, int64_t count) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) values[i] &= 0x7FFF;
}

/* `terms` holds sum|terms|: the product of the magnitudes. */
__global__ static void compare_kernel(Comparison *c, const float *got, const float *want,
                                      const float *terms, float bound, int64_t count) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count || __float_as_uint(got[i]) == __float_as_uint(want[i])) return;
    atomicAdd(&c->unequal, 1ull);
    float ratio = fabsf(got[i] - want[i]) / (bound * terms[i]);
    // Not negative, so they compare as their bits; a NaN is the worst of all.
    atomicMax((unsigned *)&c->worst, ratio == ratio ? __float_as_uint(ratio) : 0x7F800000u);
}

static Comparison compare(const float *got, const float *want, const float *terms, int64_t k,
                          int64_t count) {
    Comparison result = {}, *there = (Comparison *)gpu_alloc(sizeof(Comparison));
    gpu->upload(gpu, there, &result, sizeof(result));
    float bound = (float)(k / 64 + 1) * 0x1p-23f;
    compare_kernel<<<blocks_of(count), THREADS, 0, device_cuda_stream(gpu)>>>(there, got, want,
                                                                              terms, bound, count);
    CUDA_CHECK_LAUNCH();
    gpu->download(gpu, &result, there, sizeof(result));
    gpu->free(gpu, there);
    return result;
}

static float *new_product(int64_t m, int64_t n) { return (float *)gpu_alloc((size_t)(m * n) * 4); }

static Comparisons compare_products(Fill fill, int64_t m, int64_t n, int64_t k) {
    Matrix a = matrix_make(fill, 1, m, k), b = matrix_make(fill, 2, n, k);
    float *own = new_product(m, n), *emulated = new_product(m, n), *terms = new_product(m, n);
    float *exact = new_product(m, n);
    cudaStream_t stream = device_cuda_stream(gpu);
    GemmEpilogue none = {};
    gemm_mma_cuda(gpu, tensor_view(own, DT_F32, m, n), &a.packed, &b.packed, none);
    gemm_cuda(gpu, tensor_view(emulated, DT_F32, m, n), &a.values, &b.values, none);
    int adversarial = fill != FILL_NORMAL;
    if (adversarial)
        exact_kernel<<<blocks_of(m * n), THREADS, 0, stream>>>(
            exact, a.values, b.values, operand_alpha_mult(&a.values, &b.values));
    drop_signs_kernel<<<blocks_of(m * k), THREADS, 0, stream>>>((uint16_t *)a.values.data, m * k);
    drop_signs_kernel<<<blocks_of(n * k), THREADS, 0, stream>>>((uint16_t *)b.values.data, n * k);
    gemm_cuda(gpu, tensor_view(terms, DT_F32, m, n), &a.values, &b.values, none);
    Comparisons c = {};
    c.own_emulated = compare(own, emulated, terms, k, m * n);
    if (adversarial) c.own_exact = compare(own, exact, terms, k, m * n);
    if (adversarial) c.emulated_exact = compare(emulated, exact, terms, k, m * n);
    float *products[] = {own, emulated, terms, exact};
    for (float *product : products) gpu->free(gpu, product);
    matrix_free(&a);
    matrix_free(&b);
    return c;
}

// --- shapes ---

typedef struct {
    const char *name;
    int64_t out, in;
} LayerLinear;

static void check(const LayerLinear *l, const char *gemm, Fill fill, int64_t m, int64_t n,
                  int64_t k) {
    Comparisons c = compare_products(fill, m, n, k);
    const char *data = fill == FILL_NORMAL ? "normal" : fill == FILL_OUTLIER ? "outlier" : "wide";
    printf("  %-12s %s (%lld,%lld,%lld) %-7s: %llu differ from emulated, by %.2g bounds\n", l->name,
           gemm, (long long)m, (long long)n, (long long)k, data, c.own_emulated.unequal,
           c.own_emulated.worst);
    if (fill != FILL_NORMAL) {
        printf("    from exact sums by %.2g bounds, emulated by %.2g\n", c.own_exact.worst,
               c.emulated_exact.worst);
        EXPECT(c.own_exact.worst <= 1.0f, "%s %s: %g bounds", l->name, gemm, c.own_exact.worst);
        return;
    }
    if (k <= EXACT_K)
        EXPECT_EQ_I64((int64_t)c.own_emulated.unequal, 0, "%s %s, normal data", l->name, gemm);
    EXPECT(c.own_emulated.worst <= 1.0f, "%s %s: %g bounds", l->name, gemm, c.own_emulated.worst);
}

static void check_linear(const LayerLinear *l, Fill fill, int64_t tokens) {
    check(l, "fprop", fill, tokens, l->out, l->in);
    check(l, "dgrad", fill, tokens, l->in, l->out);
    check(l, "wgrad", fill, l->out, l->in, tokens);
}

static const LayerLinear gpt2[] = {
    {"124m qkv", 2304, 768}, {"124m proj", 768, 768}, {"124m up", 3072, 768},
    {"124m down", 768, 3072}};
static const LayerLinear llama[] = {{"llama7b qkv", 12288, 4096},
                                    {"llama7b proj", 4096, 4096},
                                    {"llama7b up", 22016, 4096},
                                    {"llama7b down", 4096, 11008}};

CASE(gemms_of_gpt2_124m) {
    for (const LayerLinear &l : gpt2)
        for (Fill fill : {FILL_NORMAL, FILL_OUTLIER, FILL_WIDE}) check_linear(&l, fill, 16384);
}

CASE(gemms_of_a_llama_layer) {
    for (const LayerLinear &l : llama) check_linear(&l, FILL_NORMAL, 4096);
    check_linear(&llama[1], FILL_WIDE, 4096);
}

CASE(sums_over_65536_tokens) {
    for (Fill fill : {FILL_NORMAL, FILL_OUTLIER, FILL_WIDE})
        check(&gpt2[1], "wgrad", fill, gpt2[1].out, gpt2[1].in, 65536);
}

int main(int argc, char **argv) {
    gpu = device_cuda_open(0);
    return test_run(argc, argv);
}
