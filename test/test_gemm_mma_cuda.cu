// test_gemm_mma_cuda -- the NVFP4 GEMM on a GPU: by the instruction where there is one, else by its
// emulation. One product of a warp and whole GEMMs of odd shapes equal the CPU's fp4_step bit for
// bit, and normal data the CPU's f32 GEMM of the decoded values but for the last rounding; two runs
// give the same bits. Ends with the time of a large one.
#include "../llmc/device_cuda.cuh"
#include "../llmc/ops/fp4_step.h"
#include "../llmc/ops/gemm_mma.h"
#include "../llmc/ops/gemm_mma_ptx.cuh"
#include "quantize_setup.h"
#include "test.h"

static Device *cpu, *gpu;

static uint32_t random_bits(void) {
    static uint32_t draws;
    uint32_t at = draws++;
    return philox4x32_10(rng_group_counter(at / 4, 15, 16), 17, 18).w[at % 4];
}

static void *to_gpu(const void *host, size_t bytes, const char *what) {
    void *there = device_alloc(gpu, bytes, what);
    gpu->upload(gpu, there, host, bytes);
    return there;
}

// --- products of one warp ---

// a: 16 rows of 8 words, b: 8 columns of 8 words, as memory has them.
typedef struct {
    uint32_t a[16][8], b[8][8], a_scales[16], b_scales[8];
    float c[16][8];
} Product;

__global__ static void product_kernel(Product *p, int count) {
    int lane = (int)threadIdx.x, g = lane / 4, l = lane % 4;
    for (int i = (int)blockIdx.x; i < count; i += (int)gridDim.x) {
        MmaOperands x;
        MmaSums s;
        for (int r = 0; r < 4; r++) x.a[r] = p[i].a[g + 8 * (r % 2)][l + r / 2 * 4];
        for (int r = 0; r < 2; r++) x.b[r] = p[i].b[g][l + r * 4];
        x.scales_a = l < 2 ? p[i].a_scales[g + 8 * l] : 0x7F7F7F7Fu;   // else not to be read
        x.scales_b = l == 0 ? p[i].b_scales[g] : 0x7F7F7F7Fu;
        for (int r = 0; r < 4; r++) s.c[r] = p[i].c[g + r / 2 * 8][2 * l + r % 2];
        mma_16x8x64(&s, x);
        for (int r = 0; r < 4; r++) p[i].c[g + r / 2 * 8][2 * l + r % 2] = s.c[r];
    }
}

/* Codes and scales anything but NaN; or few codes, extreme scales and a c of any size. */
static void fill_product(Product *p, int adversarial) {
    uint32_t *words = (uint32_t *)p;
    for (size_t i = 0; i < offsetof(Product, a_scales) / 4; i++)
        words[i] = random_bits() & (adversarial ? random_bits() & random_bits() : 0xFFFFFFFFu);
    static const uint8_t extreme[4] = {0x7E, 0x01, 0x00, 0x70};
    uint8_t *scales = (uint8_t *)p->a_scales;
    for (size_t i = 0; i < sizeof(p->a_scales) + sizeof(p->b_scales); i++)
        scales[i] = adversarial ? extreme[random_bits() & 3] : (uint8_t)(random_bits() % 0x7F);
    uint32_t exponents = adversarial ? 60 : 20;
    for (int i = 0; i < 128; i++)
        p->c[i / 8][i % 8] =
            ldexpf(rng_uniform(random_bits()) - 0.5f, (int)(random_bits() % exponents));
}

CASE(products_equal_the_step_rule) {
    enum { COUNT = 2048 };   // 128 steps each
    Product *want = (Product *)xmalloc(COUNT * sizeof(Product));
    Product *got = (Product *)xmalloc(COUNT * sizeof(Product));
    for (int i = 0; i < COUNT; i++) fill_product(&want[i], i % 2);
    Product *there = (Product *)to_gpu(want, COUNT * sizeof(Product), "products");
    product_kernel<<<64, 32, 0, device_cuda_stream(gpu)>>>(there, COUNT);
    CUDA_CHECK_LAUNCH();
    gpu->download(gpu, got, there, COUNT * sizeof(Product));
    for (int i = 0; i < COUNT; i++)
        for (int m = 0; m < 16; m++)
            for (int n = 0; n < 8; n++) {
                Product *p = &want[i];
                p->c[m][n] = fp4_step(p->c[m][n], p->a[m], p->b[n], p->a_scales[m], p->b_scales[n]);
                EXPECT_BITS(&got[i].c[m][n], &p->c[m][n], 4, "product %d, row %d, column %d", i, m,
                            n);
            }
    gpu->free(gpu, there);
    free(want), free(got);
}

// --- whole GEMMs ---

typedef struct {
    int64_t m, n, k;
    DType to;
    int with_bias, accumulate;
} Shape;

// Packed and decoded forms of one quantised tensor on the host, the packed one on the GPU.
typedef struct {
    Tensor x;
    Setup packed, values;
    QOperand there;
} Matrix;

static void quantize_row(Setup *s, Tensor x, OperandForm form, int64_t rows) {
    setup_make(s, x, form, nvfp4_cell(), nvfp4_cell());
    amax_pair_cpu(cpu, &s->row, &s->row_how, NULL, NULL, x);
    quantize_pair_cpu(cpu, &s->row, &s->row_how, NULL, NULL, x);
    s->row.rows = rows;
}

/* Quantisers take multiples of 16 rows; the GEMM gets the first ones of them. */
static void matrix_make(Matrix *s, int64_t rows, int64_t k, Fill fill, uint32_t seed) {
    s->x = setup_tensor(DT_BF16, round_up(rows, 16), k, fill, seed);
    quantize_row(&s->packed, s->x, FORM_PACKED, rows);
    quantize_row(&s->values, s->x, FORM_VALUES, rows);
    s->there = s->packed.row;
    s->there.data = to_gpu(s->packed.row.data, setup_bytes(&s->packed.row), "codes");
    s->there.scales =
        (uint8_t *)to_gpu(s->packed.row.scales, quantize_scales_bytes(rows, k), "scales");
    s->there.amax = (float *)to_gpu(s->packed.row.amax, sizeof(float), "amax");
}

static void matrix_free(Matrix *s) {
    gpu->free(gpu, s->there.data);
    gpu->free(gpu, s->there.scales);
    gpu->free(gpu, s->there.amax);
    setup_free(&s->packed);
    setup_free(&s->values);
    free(s->x.data);
}

typedef struct {
    Shape shape;
    Matrix a, b;
    Tensor d, bias;   // host; d as it was before
    Tensor d_gpu, bias_gpu;
} Problem;

static void problem_make(Problem *p, Shape shape, Fill fill) {
    memset(p, 0, sizeof(*p));
    p->shape = shape;
    matrix_make(&p->a, shape.m, shape.k, fill, 1);
    matrix_make(&p->b, shape.n, shape.k, fill, 2);
    p->d = setup_tensor(shape.to, shape.m, shape.n, FILL_NORMAL, 3);
    p->d_gpu = p->d;
    p->d_gpu.data = to_gpu(p->d.data, tensor_bytes(p->d), "d");
    if (!shape.with_bias) return;
    p->bias = p->bias_gpu = setup_tensor(shape.to, 1, shape.n, FILL_NORMAL, 4);
    p->bias_gpu.data = to_gpu(p->bias.data, tensor_bytes(p->bias), "bias");
}

static void problem_free(Problem *p) {
    matrix_free(&p->a);
    matrix_free(&p->b);
    gpu->free(gpu, p->d_gpu.data);
    if (p->bias_gpu.data) gpu->free(gpu, p->bias_gpu.data);
    free(p->d.data), free(p->bias.data);
}

/* What the GPU makes of the problem, in new host memory. */
static Tensor problem_run(Problem *p) {
    Tensor got = p->d;
    got.data = xmalloc(tensor_bytes(p->d));
    gpu->upload(gpu, p->d_gpu.data, p->d.data, tensor_bytes(p->d));
    GemmEpilogue epilogue = {p->bias_gpu, p->shape.accumulate};
    gemm_mma_cuda(gpu, p->d_gpu, &p->a.there, &p->b.there, epilogue);
    gpu->download(gpu, got.data, p->d_gpu.data, tensor_bytes(p->d));
    return got;
}

static float value_at(Tensor t, int64_t i) {
    return t.dtype == DT_BF16 ? bf16_to_f32(((bf16_t *)t.data)[i]) : ((float *)t.data)[i];
}

static float addend_at(const Problem *p, int64_t i) {
    float addend = p->bias.data ? value_at(p->bias, i % p->shape.n) : 0.0f;
    return p->shape.accumulate ? addend + value_at(p->d, i) : addend;
}

static float problem_alpha(const Problem *p) {
    const QOperand *a = &p->a.packed.row, *b = &p->b.packed.row;
    return *a->amax * *b->amax * operand_alpha_mult(a, b);
}

/* The codes and scales of 64 of k from `step` on in a row; zeros beyond the end. */
static void step_operand(const QOperand *q, int64_t row, int64_t step, uint32_t codes[8],
                         uint32_t *scales) {
    const uint8_t *from = (const uint8_t *)q->data + row * (q->k / 2) + step * 32;
    memset(codes, 0, 32);
    memcpy(codes, from, (size_t)min_i64(32, q->k / 2 - step * 32));
    *scales = 0;
    for (int64_t c = step * 4; c < min_i64(step * 4 + 4, q->k / 16); c++)
        *scales |= (uint32_t)q->scales[quantize_scale_offset(row, c, round_up(q->k / 16, 4))]
                   << 8 * (c - step * 4);
}

static float chained(const Problem *p, int64_t i) {
    float sum = 0;
    for (int64_t step = 0; step * 64 < p->shape.k; step++) {
        uint32_t a[8], b[8], a_scales, b_scales;
        step_operand(&p->a.packed.row, i / p->shape.n, step, a, &a_scales);
        step_operand(&p->b.packed.row, i % p->shape.n, step, b, &b_scales);
        sum = fp4_step(sum, a, b, a_scales, b_scales);
    }
    return fmaf(problem_alpha(p), sum, addend_at(p, i));
}

/* Every `stride`th element equals the chain of steps; all of them in a second run. */
static void check_bits(Shape shape, Fill fill, int64_t stride) {
    Problem p;
    problem_make(&p, shape, fill);
    Tensor got = problem_run(&p), again = problem_run(&p);
    EXPECT_BITS(again.data, got.data, tensor_bytes(got), "second run");
    for (int64_t i = 0; i < tensor_count(got); i += stride) {
        float want = chained(&p, i), is = value_at(got, i);
        if (shape.to == DT_BF16) want = bf16_to_f32(bf16_from_f32(want));
        EXPECT_BITS(&is, &want, 4, "(%lld,%lld,%lld) row %lld, column %lld", (long long)shape.m,
                    (long long)shape.n, (long long)shape.k, (long long)(i / shape.n),
                    (long long)(i % shape.n));
    }
    free(got.data), free(again.data);
    problem_free(&p);
}

CASE(odd_shapes_equal_chains_of_steps) {
    static const Shape shapes[] = {
        {16, 16, 32, DT_F32, 0, 0},    {128, 128, 128, DT_BF16, 0, 0},
        {144, 80, 96, DT_F32, 1, 0},   {272, 144, 416, DT_BF16, 1, 0},
        {48, 400, 1056, DT_F32, 0, 1}, {1, 131, 2048, DT_BF16, 1, 0},
        {33, 7, 160, DT_F32, 1, 1},    {1168, 16, 64, DT_BF16, 0, 0},
    };
    for (int i = 0; i < ARRAY_LEN(shapes); i++) {
        check_bits(shapes[i], FILL_NORMAL, 1);
        check_bits(shapes[i], FILL_WIDE, 1);
    }
}

CASE(long_sums_equal_chains_of_steps) {
    check_bits({256, 256, 16384, DT_F32, 0, 0}, FILL_NORMAL, 61);
    check_bits({256, 256, 16384, DT_F32, 0, 0}, FILL_OUTLIER, 61);
}

static double dot(const QOperand *a, const QOperand *b, int64_t m, int64_t n) {
    const bf16_t *x = (const bf16_t *)a->data + m * a->k, *y = (const bf16_t *)b->data + n * b->k;
    double sum = 0;
    for (int64_t k = 0; k < a->k; k++) sum += (double)bf16_to_f32(x[k]) * bf16_to_f32(y[k]);
    return sum;
}

/* All sums of normal data are exact in f32 at this length, in any order: what differs from the
   exact product of the decoded values is the rounding of alpha, bias and d. (Not compared with
   gemm_cpu: OpenBLAS rounds once for each part that it cuts K into.) */
CASE(normal_data_equal_the_exact_product) {
    Shape shape = {528, 272, 4096, DT_F32, 1, 1};
    Problem p;
    problem_make(&p, shape, FILL_NORMAL);
    Tensor got = problem_run(&p);
    const QOperand *a = &p.a.values.row, *b = &p.b.values.row;
    double alpha = problem_alpha(&p);
    for (int64_t i = 0; i < tensor_count(got); i++) {
        double product = alpha * dot(a, b, i / got.cols, i % got.cols);
        double want = product + addend_at(&p, i);
        double size = fabs(product) + 2 * fabs(addend_at(&p, i));
        EXPECT_NEAR(value_at(got, i), want, size * 0x1p-22, "element %lld", (long long)i);
    }
    free(got.data);
    problem_free(&p);
}

CASE(speed) {
    Problem p;
    problem_make(&p, {4096, 4096, 4096, DT_BF16, 0, 0}, FILL_NORMAL);
    free(problem_run(&p).data);
    gpu->synchronize(gpu);
    double begin = now_ms();
    GemmEpilogue none = {};
    gemm_mma_cuda(gpu, p.d_gpu, &p.a.there, &p.b.there, none);
    gpu->synchronize(gpu);
    double ms = now_ms() - begin;
    EXPECT(ms > 0, "clock");
    printf("  4096 x 4096 x 4096, %s: %.2f ms, %.1f Tflop/s\n",
           gemm_mma_available(gpu) ? "FP4 tensor cores" : "in software", ms,
           2 * pow(4096, 3) / ms * 1e-9);
    problem_free(&p);
}

int main(int argc, char **argv) {
    cpu = device_cpu_open(0);
    gpu = device_cuda_open(0);
    return test_run(argc, argv);
}
