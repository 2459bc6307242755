// test_gemm_fp8_cuda -- products of FP8 codes on FP8 tensor cores, through cuBLASLt, against
// sums in double of what the codes stand for: the three GEMMs of a linear with their formats and
// epilogues, accumulation that is promoted to f32, alpha, the algorithms that tuning chooses, and
// the same products emulated.
#include "../llmc/device_cuda.cuh"
#include "../llmc/ops.h"
#include "quantize_setup.h"
#include "test.h"

static Device *gpu;

// Of sums that are promoted to f32 every 128 of K, relative to the RMS of the result, about 1.3e-4
// on sm_90; with fast accumulation 1.3e-3 at K = 4096 (dev/NUMERICS.md 8.3).
static const double ACCURATE = 4e-4;

typedef struct {
    FormatId a, b;
    int64_t m, n, k;
    DType d;
    int bias, accumulate;
} Case;

// fprop, dgrad and wgrad of recipe fp8; sizes that are no multiples of a tile.
static const Case cases[] = {
    {FORMAT_E4M3, FORMAT_E4M3, 256, 192, 768, DT_BF16, 1, 0},
    {FORMAT_E4M3, FORMAT_E4M3, 80, 48, 4096, DT_BF16, 0, 0},
    {FORMAT_E5M2, FORMAT_E4M3, 256, 144, 2304, DT_BF16, 0, 0},
    {FORMAT_E5M2, FORMAT_E4M3, 144, 256, 4096, DT_F32, 0, 1},
    {FORMAT_E5M2, FORMAT_E4M3, 32, 16, 16, DT_F32, 0, 1},
    {FORMAT_E4M3, FORMAT_E5M2, 128, 128, 1024, DT_F32, 0, 0},
};

static void *on_gpu(const void *host, size_t bytes) {
    void *p = device_alloc(gpu, bytes, "test");
    gpu->upload(gpu, p, host, bytes);
    return p;
}

/* One case on both devices. */
typedef struct {
    Case c;
    Tensor x, w;
    Setup a, b;   // row operands of x (m,k) and of w (n,k)
    QOperand gpu_a, gpu_b;
    float *before;   // d before an accumulating product
    bf16_t *bias;
    void *gpu_bias, *gpu_d;
    double *want;
} Problem;

static QOperand operand_on_gpu(const Setup *s) {
    QOperand q = s->row;
    q.data = on_gpu(q.data, setup_bytes(&s->row));
    q.amax = (float *)on_gpu(q.amax, sizeof(float));
    return q;
}

static void decode_all(double *out, const Setup *s) {
    for (int64_t r = 0; r < s->row.rows; r++) {
        for (int64_t k = 0; k < s->row.k; k++) {
            bf16_t value = ((bf16_t *)s->row.data)[r * s->row.k + k];
            out[r * s->row.k + k] =
                s->row.form == FORM_PACKED ? quantize_decode(&s->row, r, k) : bf16_to_f32(value);
        }
    }
}

static void expected(Problem *p) {
    const Case *c = &p->c;
    double *a = (double *)xmalloc((size_t)(c->m * c->k) * sizeof(double));
    double *b = (double *)xmalloc((size_t)(c->n * c->k) * sizeof(double));
    decode_all(a, &p->a);
    decode_all(b, &p->b);
    double alpha =
        (double)p->a.amax[0] / p->a.row.dequant_div * p->b.amax[0] / p->b.row.dequant_div;
    for (int64_t i = 0; i < c->m * c->n; i++) {
        double sum = 0;
        const double *left = a + i / c->n * c->k, *right = b + i % c->n * c->k;
        for (int64_t k = 0; k < c->k; k++) sum += left[k] * right[k];
        p->want[i] = alpha * sum + (c->accumulate ? p->before[i] : 0);
        if (c->bias) p->want[i] += bf16_to_f32(p->bias[i % c->n]);
    }
    free(a), free(b);
}

static void problem_make(Problem *p, const Case *c, OperandForm form) {
    p->c = *c;
    p->x = setup_tensor(DT_BF16, c->m, c->k, FILL_NORMAL, 21);
    p->w = setup_tensor(DT_BF16, c->n, c->k, FILL_NORMAL, 22);
    setup_make(&p->a, p->x, form, fp8_cell(c->a), fp8_cell(c->a));
    setup_make(&p->b, p->w, form, fp8_cell(c->b), fp8_cell(c->b));
    setup_run(&p->a);
    setup_run(&p->b);
    p->gpu_a = operand_on_gpu(&p->a);
    p->gpu_b = operand_on_gpu(&p->b);
    int64_t count = c->m * c->n;
    p->want = (double *)xmalloc((size_t)count * sizeof(double));
    p->before = (float *)xmalloc((size_t)count * sizeof(float));
    p->bias = (bf16_t *)xmalloc((size_t)c->n * sizeof(bf16_t));
    for (int64_t i = 0; i < count; i++) p->before[i] = (float)setup_normal((uint64_t)i, 23);
    for (int64_t i = 0; i < c->n; i++)
        p->bias[i] = bf16_from_f32((float)setup_normal((uint64_t)i, 24));
    p->gpu_d = device_alloc(gpu, dtype_bytes(c->d, count), "d");
    p->gpu_bias = on_gpu(p->bias, (size_t)c->n * sizeof(bf16_t));
    expected(p);
}

static void problem_free(Problem *p) {
    void *const memory[] = {p->gpu_a.data, p->gpu_a.amax, p->gpu_b.data,
                            p->gpu_b.amax, p->gpu_bias,   p->gpu_d};
    for (int i = 0; i < ARRAY_LEN(memory); i++) gpu->free(gpu, memory[i]);
    setup_free(&p->a), setup_free(&p->b);
    free(p->x.data), free(p->w.data), free(p->want), free(p->before), free(p->bias);
}

static Tensor d_of(const Problem *p) { return tensor_view(p->gpu_d, p->c.d, p->c.m, p->c.n); }

static GemmEpilogue epilogue_of(const Problem *p) {
    GemmEpilogue e = {};
    if (p->c.bias) e.bias = tensor_view(p->gpu_bias, DT_BF16, 1, p->c.n);
    e.accumulate = p->c.accumulate;
    return e;
}

/* The product as it is in memory; caller frees. */
static void *run(Problem *p) {
    size_t bytes = tensor_bytes(d_of(p));
    if (p->c.accumulate) gpu->upload(gpu, p->gpu_d, p->before, bytes);
    gemm_cuda(gpu, d_of(p), &p->gpu_a, &p->gpu_b, epilogue_of(p));
    void *got = xmalloc(bytes);
    gpu->download(gpu, got, p->gpu_d, bytes);
    return got;
}

/* RMS of what the product is off, relative to its own. */
static double error_of(const Problem *p, const void *got) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < p->c.m * p->c.n; i++) {
        double value =
            p->c.d == DT_F32 ? ((const float *)got)[i] : bf16_to_f32(((const bf16_t *)got)[i]);
        error += (value - p->want[i]) * (value - p->want[i]);
        size += p->want[i] * p->want[i];
    }
    return sqrt(error / size);
}

CASE(products_of_codes_and_of_their_values) {
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        const Case *c = &cases[i];
        // A result rounded to bf16 is off by up to 2^-9 of each element.
        double rounding = c->d == DT_BF16 ? 0x1p-9 : 0;
        for (int form = FORM_VALUES; form <= FORM_PACKED; form++) {
            if (form == FORM_PACKED && !gpu->native_fp8) continue;
            Problem p;
            problem_make(&p, c, (OperandForm)form);
            void *first = run(&p), *second = run(&p);
            double error = error_of(&p, first);
            printf("%s by %s, %lld x %lld x %lld, %s: %.2e\n", formats[c->a].name,
                   formats[c->b].name, (long long)c->m, (long long)c->n, (long long)c->k,
                   form == FORM_PACKED ? "codes" : "values", error);
            EXPECT(error <= rounding + (form == FORM_PACKED ? ACCURATE : 1e-6),
                   "case %d, form %d: off by %.2e", i, form, error);
            EXPECT_BITS(second, first, tensor_bytes(d_of(&p)), "case %d, second run", i);
            free(first), free(second);
            problem_free(&p);
        }
    }
}

/* Whatever algorithm is the fastest, it is an accurate one, and has the same bits every time. */
CASE(tuned_algorithms_are_accurate_too) {
    if (!gpu->native_fp8) return;
    static const Case tuned[] = {{FORMAT_E5M2, FORMAT_E4M3, 768, 768, 8192, DT_F32, 0, 1},
                                 {FORMAT_E4M3, FORMAT_E4M3, 512, 768, 3072, DT_BF16, 1, 0}};
    for (int i = 0; i < ARRAY_LEN(tuned); i++) {
        Problem p;
        problem_make(&p, &tuned[i], FORM_PACKED);
        gemm_tune_cuda(gpu, d_of(&p), &p.gpu_a, &p.gpu_b, epilogue_of(&p));
        void *first = run(&p), *second = run(&p);
        double error = error_of(&p, first);
        EXPECT(error <= (tuned[i].d == DT_BF16 ? 0x1p-9 : 0) + ACCURATE, "case %d: off by %.2e", i,
               error);
        EXPECT_BITS(second, first, tensor_bytes(d_of(&p)), "case %d", i);
        free(first), free(second);
        problem_free(&p);
    }
}

/* What a tensor of zeros, and one that is lost, do to a product. */
CASE(alpha_is_read_on_the_device) {
    static const Case c = {FORMAT_E4M3, FORMAT_E4M3, 32, 32, 64, DT_F32, 0, 1};
    static const float amaxes[] = {0.0f, INFINITY, NAN};
    for (int i = 0; i < ARRAY_LEN(amaxes); i++) {
        Problem p;
        problem_make(&p, &c, gpu->native_fp8 ? FORM_PACKED : FORM_VALUES);
        gpu->upload(gpu, p.gpu_a.amax, &amaxes[i], sizeof(float));
        float *got = (float *)run(&p);
        if (i == 0) EXPECT_BITS(got, p.before, tensor_bytes(d_of(&p)), "0 was added");
        else EXPECT(!isfinite(got[0]), "amax %g gives %g", amaxes[i], got[0]);
        free(got);
        problem_free(&p);
    }
}

CASE(without_fp8_units_codes_are_refused) {
    static const Case c = {FORMAT_E4M3, FORMAT_E4M3, 32, 32, 64, DT_F32, 0, 0};
    Problem p;
    problem_make(&p, &c, FORM_PACKED);
    Device older = *gpu;
    older.native_fp8 = 0;
    EXPECT_ABORTS("has no tensor cores for it",
                  gemm_cuda(&older, d_of(&p), &p.gpu_a, &p.gpu_b, epilogue_of(&p)));
    problem_free(&p);
}

int main(int argc, char **argv) {
    gpu = device_cuda_open(0);
    int status = test_run(argc, argv);
    gpu->close(gpu);
    return status;
}
