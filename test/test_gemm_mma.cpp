/*
test_gemm_mma -- the source of the NVFP4 GEMM's kernel, run on the host by fibres.h: against double
precision and, bit for bit, against a chain of fp4_step, on whole and ragged shapes; that no copy
leaves its operand and no access of shared memory lacks its barrier; and that each of a list of
planted faults is caught by these same checks.
*/
#include "fibres.h"

#include "../llmc/ops/gemm_mma.cuh"

#include "../llmc/common.h"
#include "../llmc/ops/quantize.h"
#include "../llmc/rng.h"
#include "test.h"

// --- problems ---

static uint32_t random_bits(void) {
    static uint32_t draws;
    uint32_t at = draws++;
    return philox4x32_10(rng_group_counter(at / 4, 7, 8), 9, 10).w[at % 4];
}

typedef struct {
    int m, n, k;
    int to_bf16, with_bias, accumulate;
} Shape;

enum { GUARD = 64 };   // bytes before and after d that must stay as they are

typedef struct {
    Shape shape;
    MmaGemm gemm;
    uint8_t *codes[2], *scales[2];
    float amax[2];
    uint8_t *d, *initial;   // with their guards
    size_t d_bytes;
    void *bias;
} Problem;

/* Mostly within a few binades, a few zero, subnormal or the largest. */
static uint8_t random_scale(void) {
    static const uint8_t rare[4] = {0x00, 0x03, 0x08, 0x7E};
    uint32_t bits = random_bits();
    return bits % 32 == 0 ? rare[bits >> 8 & 3] : (uint8_t)(0x30 + (bits >> 8) % 24);
}

static MmaSide make_side(Problem *p, int which, int rows) {
    int k = p->shape.k;
    size_t code_bytes = quantize_packed_bytes(rows, k);
    size_t scale_bytes = quantize_scales_bytes(rows, k);
    uint8_t *codes = p->codes[which] = (uint8_t *)xmalloc(code_bytes);
    uint8_t *scales = p->scales[which] = (uint8_t *)xmalloc(scale_bytes);
    for (size_t i = 0; i < code_bytes; i++) codes[i] = (uint8_t)random_bits();
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < k / 16; c++)
            scales[quantize_scale_offset(r, c, round_up(k / 16, 4))] = random_scale();
    p->amax[which] = 0.5f + rng_uniform(random_bits());
    fibre_allow(codes, code_bytes);
    fibre_allow(scales, scale_bytes);
    MmaSide side = {codes, scales, &p->amax[which], rows};
    return side;
}

static float stored(const void *data, int bf16, int64_t i) {
    return bf16 ? bf16_to_f32(((const bf16_t *)data)[i]) : ((const float *)data)[i];
}

static void *random_values(int64_t count, int bf16) {
    void *data = xmalloc((size_t)count * (bf16 ? 2 : 4));
    for (int64_t i = 0; i < count; i++) {
        float v = rng_uniform(random_bits()) - 0.5f;
        if (bf16) ((bf16_t *)data)[i] = bf16_from_f32(v);
        else ((float *)data)[i] = v;
    }
    return data;
}

static void problem_make(Problem *p, Shape shape) {
    memset(p, 0, sizeof(*p));
    p->shape = shape;
    fibre_forbid();
    p->gemm.a = make_side(p, 0, shape.m);
    p->gemm.b = make_side(p, 1, shape.n);
    p->gemm.k = shape.k;
    p->gemm.alpha_mult = 1.0f / 1024;
    int64_t count = (int64_t)shape.m * shape.n;
    p->d_bytes = (size_t)count * (shape.to_bf16 ? 2 : 4);
    p->initial = (uint8_t *)xmalloc(p->d_bytes + 2 * GUARD);
    p->d = (uint8_t *)xmalloc(p->d_bytes + 2 * GUARD);
    memset(p->initial, 0xA5, p->d_bytes + 2 * GUARD);
    void *before = random_values(count, shape.to_bf16);
    memcpy(p->initial + GUARD, before, p->d_bytes);
    free(before);
    p->gemm.d = p->d + GUARD;
    p->bias = shape.with_bias ? random_values(shape.n, shape.to_bf16) : NULL;
    p->gemm.bias = p->bias;
    p->gemm.accumulate = shape.accumulate;
}

static void problem_free(Problem *p) {
    for (int i = 0; i < 2; i++) free(p->codes[i]), free(p->scales[i]);
    free(p->d), free(p->initial), free(p->bias);
}

template <class Layout, class Out> static void thread_main(void *problem) {
    gemm_mma_kernel<Layout, Out>(((Problem *)problem)->gemm);
}

template <class Layout> static FibreFaults problem_run(Problem *p) {
    memcpy(p->d, p->initial, p->d_bytes + 2 * GUARD);
    int64_t blocks = ceil_div(p->shape.m, MMA_TILE) * ceil_div(p->shape.n, MMA_TILE);
    auto kernel = p->shape.to_bf16 ? thread_main<Layout, uint16_t> : thread_main<Layout, float>;
    fibre_take_faults();
    for (int64_t block = 0; block < blocks; block++)
        fibre_run_block(kernel, p, MMA_THREADS, (int)block);
    return fibre_take_faults();
}

// --- what it should be ---

static double side_value(const Problem *p, int which, int64_t row, int64_t at) {
    int64_t k = p->shape.k;
    uint8_t byte = p->codes[which][row * (k / 2) + at / 2];
    int64_t scale = quantize_scale_offset(row, at / 16, round_up(k / 16, 4));
    return (double)e2m1_decode(at % 2 ? byte >> 4 : byte & 15) *
           e4m3_decode(p->scales[which][scale]);
}

/* alpha, and what is added to alpha times the sum. */
static float problem_alpha(const Problem *p) {
    return p->amax[0] * p->amax[1] * p->gemm.alpha_mult;
}
static float problem_addend(const Problem *p, int64_t row, int64_t col) {
    int bf16 = p->shape.to_bf16;
    float addend = p->bias ? stored(p->bias, bf16, col) : 0.0f;
    if (p->shape.accumulate) addend += stored(p->initial + GUARD, bf16, row * p->shape.n + col);
    return addend;
}

/* Elements of d that are farther from double precision than truncation allows, and bytes outside
   of d that were written. */
static int64_t count_errors(const Problem *p) {
    int64_t errors = 0, m = p->shape.m, n = p->shape.n, k = p->shape.k;
    double *a = (double *)xmalloc((size_t)(m * k) * sizeof(double));
    double *b = (double *)xmalloc((size_t)(n * k) * sizeof(double));
    for (int64_t i = 0; i < m * k; i++) a[i] = side_value(p, 0, i / k, i % k);
    for (int64_t i = 0; i < n * k; i++) b[i] = side_value(p, 1, i / k, i % k);
    double alpha = problem_alpha(p);
    double rounding = p->shape.to_bf16 ? 0x1p-8 : 0x1p-23;
    for (int64_t i = 0; i < m * n; i++) {
        double sum = 0, terms = 0, addend = problem_addend(p, i / n, i % n);
        for (int64_t at = 0; at < k; at++) {
            double term = a[i / n * k + at] * b[i % n * k + at];
            sum += term;
            terms += fabs(term);
        }
        double want = alpha * sum + addend;
        double allowed = alpha * (double)(k / 64 + 1) * 0x1p-23 * terms + rounding * fabs(want) +
                         0x1p-23 * fabs(addend);
        double got = stored(p->gemm.d, p->shape.to_bf16, i);
        if (!(fabs(got - want) <= allowed)) errors++;
    }
    for (size_t i = 0; i < GUARD; i++)
        errors += (p->d[i] != 0xA5) + (p->d[GUARD + p->d_bytes + i] != 0xA5);
    free(a), free(b);
    return errors;
}

/* Element (row, col) by a chain of steps. */
static float chained(const Problem *p, int64_t row, int64_t col) {
    int64_t at[2] = {row, col}, k = p->shape.k;
    float sum = 0;
    for (int64_t step = 0; step * 64 < k; step++) {
        uint32_t codes[2][8] = {}, scales[2] = {};
        for (int side = 0; side < 2; side++) {
            const uint8_t *from = p->codes[side] + at[side] * (k / 2) + step * 32;
            memcpy(codes[side], from, (size_t)min_i64(32, k / 2 - step * 32));
            for (int block = 0; block < 4 && step * 64 + block * 16 < k; block++)
                scales[side] |= (uint32_t)p->scales[side][quantize_scale_offset(
                                    at[side], step * 4 + block, round_up(k / 16, 4))]
                                << 8 * block;
        }
        sum = fp4_step(sum, codes[0], codes[1], scales[0], scales[1]);
    }
    return fmaf(problem_alpha(p), sum, problem_addend(p, row, col));
}

static int64_t count_other_bits(const Problem *p) {
    int64_t others = 0, n = p->shape.n;
    for (int64_t i = 0; i < p->shape.m * n; i++) {
        float want = chained(p, i / n, i % n);
        if (p->shape.to_bf16) want = bf16_to_f32(bf16_from_f32(want));
        others += bits_from_f32(stored(p->gemm.d, p->shape.to_bf16, i)) != bits_from_f32(want);
    }
    return others;
}

// --- cases ---

/* The registers of a 16x8x64 product are filled from matrices by the maps of the PTX manual. */
typedef struct {
    uint8_t a[16][64], b[8][64], a_scales[16][4], b_scales[8][4];
    float c[16][8], d[16][8];
} Product;

static void product_main(void *data) {
    Product *p = (Product *)data;
    int lane = (int)threadIdx.x, g = lane / 4, l = lane % 4;
    MmaOperands x = {{0}, {0}, random_bits(), random_bits()};   // words that nobody reads
    for (int r = 0; r < 4; r++)
        for (int i = 0; i < 8; i++)
            x.a[r] |= (uint32_t)p->a[g + 8 * (r % 2)][8 * l + 32 * (r / 2) + i] << 4 * i;
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < 8; i++) x.b[r] |= (uint32_t)p->b[g][8 * l + 32 * r + i] << 4 * i;
    if (l < 2) memcpy(&x.scales_a, p->a_scales[g + 8 * l], 4);
    if (l == 0) memcpy(&x.scales_b, p->b_scales[g], 4);
    MmaSums s;
    for (int i = 0; i < 4; i++) s.c[i] = p->c[g + i / 2 * 8][2 * l + i % 2];
    mma_16x8x64(&s, x);
    for (int i = 0; i < 4; i++) p->d[g + i / 2 * 8][2 * l + i % 2] = s.c[i];
}

static uint32_t eight_codes(const uint8_t *codes) {
    uint32_t word = 0;
    for (int i = 0; i < 8; i++) word |= (uint32_t)codes[i] << 4 * i;
    return word;
}

CASE(product_of_one_warp) {
    Product p;
    for (int i = 0; i < 16 * 64; i++) p.a[i / 64][i % 64] = random_bits() & 15;
    for (int i = 0; i < 8 * 64; i++) p.b[i / 64][i % 64] = random_bits() & 15;
    for (int i = 0; i < 64; i++) p.a_scales[i / 4][i % 4] = random_scale();
    for (int i = 0; i < 32; i++) p.b_scales[i / 4][i % 4] = random_scale();
    for (int i = 0; i < 128; i++) p.c[i / 8][i % 8] = (float)(int)(random_bits() % 65536) - 32768;
    fibre_run_block(product_main, &p, 32, 0);
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 8; n++) {
            uint32_t a[8], b[8], a_scales, b_scales;
            for (int i = 0; i < 8; i++) a[i] = eight_codes(p.a[m] + 8 * i);
            for (int i = 0; i < 8; i++) b[i] = eight_codes(p.b[n] + 8 * i);
            memcpy(&a_scales, p.a_scales[m], 4);
            memcpy(&b_scales, p.b_scales[n], 4);
            float want = fp4_step(p.c[m][n], a, b, a_scales, b_scales);
            EXPECT_BITS(&p.d[m][n], &want, 4, "row %d, column %d", m, n);
        }
}

static void check_shape(Shape shape) {
    Problem p;
    problem_make(&p, shape);
    FibreFaults faults = problem_run<MmaLayout>(&p);
    EXPECT_EQ_I64(count_errors(&p), 0, "of %dx%dx%d", shape.m, shape.n, shape.k);
    EXPECT_EQ_I64(count_other_bits(&p), 0, "of %dx%dx%d", shape.m, shape.n, shape.k);
    EXPECT_EQ_I64(faults.races, 0, "of %dx%dx%d", shape.m, shape.n, shape.k);
    EXPECT_EQ_I64(faults.outside, 0, "of %dx%dx%d", shape.m, shape.n, shape.k);
    problem_free(&p);
}

CASE(whole_tiles) { check_shape({128, 128, 256, 0, 0, 0}); }
CASE(whole_tiles_bf16_with_bias) { check_shape({128, 256, 128, 1, 1, 0}); }
CASE(one_element) { check_shape({1, 1, 32, 0, 0, 0}); }
CASE(ragged_and_more_tiles_of_k_than_stages) { check_shape({130, 72, 1056, 0, 0, 1}); }
CASE(odd_columns_bf16_with_bias) { check_shape({17, 131, 416, 1, 1, 0}); }
CASE(odd_columns_accumulating) { check_shape({33, 7, 96, 0, 1, 1}); }
CASE(as_many_tiles_of_k_as_stages) { check_shape({64, 40, 512, 0, 1, 0}); }
CASE(several_groups_of_tiles) { check_shape({1100, 129, 32, 1, 0, 0}); }

// --- planted faults ---

struct ScaleRow : MmaLayout {   // of the other pair of lanes
    MMA_FN int a_scale_row(int lane) { return (lane >> 2) + ((lane >> 1 & 1) << 3); }
};
struct RegisterOrder : MmaLayout {   // a's registers in the order of b's
    MMA_FN int a_row(int lane) { return b_row(lane); }
    MMA_FN int a_chunk(int lane) { return b_chunk(lane); }
};
struct ScaleStride : MmaLayout {   // the four groups of 32 rows one after the other
    MMA_FN int scale_offset(int row) { return row * 4; }
};
struct TileStep : MmaLayout {   // the last, half tile of k forgotten
    MMA_FN int64_t scale_tile(int row_tile, int step, int num_steps) {
        return MmaLayout::scale_tile(row_tile, step, num_steps - 1);
    }
};
struct NibbleOrder : MmaLayout {   // odd elements low
    MMA_FN void multiply(MmaSums *s, MmaOperands x) {
        for (uint32_t &word : x.a) word = (word >> 4 & 0x0F0F0F0Fu) | (word & 0x0F0F0F0Fu) << 4;
        mma_16x8x64(s, x);
    }
};
struct NoBarrier : MmaLayout {
    MMA_FN void barrier(void) {}
};
struct EarlyStart : MmaLayout {   // without waiting for the copies of its stage
    enum { IN_FLIGHT = MMA_STAGES - 1 };
};

/* Returns the races seen. */
template <class Layout> static int expect_caught(const char *name) {
    Problem p;
    problem_make(&p, {136, 24, 416, 0, 0, 0});
    FibreFaults faults = problem_run<Layout>(&p);
    int64_t errors = count_errors(&p);
    EXPECT(errors > 0, "%s passes for right", name);
    printf("  %s: %lld of %d elements wrong, %d races\n", name, (long long)errors,
           p.shape.m * p.shape.n, faults.races);
    problem_free(&p);
    return faults.races;
}

CASE(planted_faults_are_caught) {
    expect_caught<ScaleRow>("scale row");
    expect_caught<RegisterOrder>("register order");
    expect_caught<ScaleStride>("scale stride");
    expect_caught<TileStep>("tile step");
    expect_caught<NibbleOrder>("nibble order");
    EXPECT(expect_caught<NoBarrier>("missing barrier") > 0, "seen as a race too");
    EXPECT(expect_caught<EarlyStart>("early start") > 0, "seen as a race too");
}

TEST_MAIN_END
