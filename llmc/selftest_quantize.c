/*
selftest_quantize -- the quantisers: worked vectors, the operands of a linear in both forms, and
means of stochastic rounding. Products are selftest_linears.c.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "rng.h"
#include "selftest_parts.h"

enum { BLOCK = 16, MAX_NAME = 96 };

/* One operand of a tensor (R,C) as a device made it, on the host. */
typedef struct {
    int64_t rows, k;
    float amax;
    uint8_t *codes, *scales;   // of FORM_PACKED
    bf16_t *values;            // of FORM_VALUES, in the tensor's layout
} Made;

/* Which operand: a cell and the direction of its contraction. */
typedef struct {
    Operand how;
    GemmKind gemm;
    Side side;
    int token;
    int hardware;   // rounded by the GPU's convert
} Wanted;

// --- making operands on a device ---

static Made made_new(Wanted w, int64_t rows, int64_t cols) {
    Made m = {w.token ? cols : rows, w.token ? rows : cols, 0, NULL, NULL, NULL};
    m.codes = (uint8_t *)xmalloc(quantize_packed_bytes(m.rows, m.k));
    m.scales = (uint8_t *)xmalloc(quantize_scales_bytes(m.rows, m.k));
    m.values = (bf16_t *)xmalloc(dtype_bytes(DT_BF16, rows * cols));
    return m;
}

static void made_free(Made *m) { free(m->codes), free(m->scales), free(m->values); }

static void *upload_new(Device *d, const void *data, size_t bytes) {
    void *there = device_alloc(d, bytes, "operand");
    d->upload(d, there, data, bytes);
    return there;
}

/* Memory that the quantiser leaves alone would show as 0xFF. */
static void *new_filled(Device *d, size_t bytes) {
    void *ones = xmalloc(bytes);
    memset(ones, 0xFF, bytes);
    void *there = upload_new(d, ones, bytes);
    free(ones);
    return there;
}

static QOperand operand_new(Device *d, Wanted w, const Made *m, OperandForm form) {
    QOperand q;
    memset(&q, 0, sizeof(q));
    q.form = form;
    q.format = w.how.format;
    q.dtype = DT_BF16;
    q.rows = m->rows;
    q.k = m->k;
    q.k_contiguous = form == FORM_PACKED || !w.token;
    q.dequant_div = E2M1_MAX * (float)w.how.top_scale;
    q.amax = (float *)new_filled(d, sizeof(float));
    q.data = new_filled(d, form == FORM_PACKED ? quantize_packed_bytes(q.rows, q.k)
                                               : dtype_bytes(DT_BF16, q.rows * q.k));
    if (form == FORM_PACKED)
        q.scales = (uint8_t *)new_filled(d, quantize_scales_bytes(q.rows, q.k));
    return q;
}

/* Takes what the device wrote, and frees it there. */
static void operand_take(Device *d, Made *m, QOperand *q) {
    d->download(d, &m->amax, q->amax, sizeof(float));
    if (q->form == FORM_PACKED) {
        d->download(d, m->codes, q->data, quantize_packed_bytes(q->rows, q->k));
        d->download(d, m->scales, q->scales, quantize_scales_bytes(q->rows, q->k));
        d->free(d, q->scales);
    } else {
        d->download(d, m->values, q->data, dtype_bytes(DT_BF16, q->rows * q->k));
    }
    d->free(d, q->data);
    d->free(d, q->amax);
}

/* Both operands of the bf16 tensor x (rows, cols), in one pass as the layers make them. made[0] is
   the row operand, made[1] the token operand. */
static void make_pair(const Selftest *t, const Ops *ops, Device *d, Tensor x, const Wanted w[2],
                      OperandForm form, Made made[2]) {
    QOperand q[2];
    Quantizer how[2];
    Tensor there = x;
    there.data = upload_new(d, x.data, tensor_bytes(x));
    StepState *state = (StepState *)upload_new(d, &t->state, sizeof(t->state));
    memset(how, 0, sizeof(how));
    for (int i = 0; i < 2; i++) {
        q[i] = operand_new(d, w[i], &made[i], form);
        how[i].how = w[i].how;
        how[i].token_operand = w[i].token;
        how[i].rows_are_tokens = 1;
        how[i].tag = rng_quantize_tag(7, (uint32_t)w[i].gemm, (uint32_t)w[i].side, 0);
        how[i].seed = 0x123456789ABCDEFu;
        how[i].hardware_rounding = w[i].hardware;
        how[i].state = state;
    }
    ops->amax_pair(d, &q[0], &how[0], &q[1], &how[1], there);
    ops->quantize_pair(d, &q[0], &how[0], &q[1], &how[1], there);
    for (int i = 0; i < 2; i++) operand_take(d, &made[i], &q[i]);
    d->free(d, there.data);
    d->free(d, state);
}

/* Element i along k of row `row` of an operand, among values in the tensor's layout. */
static int64_t value_at(const Made *m, int token, int64_t row, int64_t i) {
    return token ? i * m->rows + row : row * m->k + i;
}

// --- worked vectors, as test_quantize.c has them ---

typedef struct {
    const char *name;
    float amax;   // of the tensor
    int hadamard;
    uint8_t scale, codes[8];
    float x[16];
} Vector;

static const Vector vectors[] = {
    {"all codes",
     2688,
     0,
     0x38,
     {0x00, 0x21, 0x22, 0x43, 0x44, 0x65, 0x66, 0x77},
     {0, .25f, .5f, .75f, 1, 1.25f, 1.5f, 1.75f, 2, 2.5f, 3, 3.5f, 4, 5, 5.5f, 6}},
    {"signs and ties",
     2688,
     0,
     0x7E,
     {0xF7, 0x35, 0xA2, 0x01, 0x66, 0x44, 0x22, 0x80},
     {2688, -2688, 1344, 672, 448, -448, 224, 112, 2240, 1568, 1120, 784, 560, 336, 111, -0.0f}},
    {"arbitrary values",
     4.25f,
     0,
     0x75,
     {0xD2, 0x54, 0xEF, 0xA1, 0xD8, 0x45, 0x50, 0xD3},
     {.3046875f, -1.0390625f, .75f, .9375f, -1.953125f, -1.3046875f, .1279296875f, -.31640625f,
      -.0167236328125f, -.8515625f, .87890625f, .77734375f, .06591796875f, 1.125f, .466796875f,
      -.859375f}},
    {"order of roundings",
     25.5f,
     0,
     0x7B,
     {0xF7, 0x35, 0x21, 0xE4, 0x80, 0x47, 0x01, 0x56},
     {19.125f, -19.125f, 9.5625f, 4.78125f, 1.59375f, 3.1875f, 6.375f, -12.75f, .5f, -0.0f, 17, 8,
      2.390625f, .796875f, 15.9375f, 11.15625f}},
    {"Hadamard",
     17.5f,
     16,
     0x7E,
     {0xDF, 0x85, 0x85, 0x5F, 0x75, 0x11, 0xA1, 0xF6},
     {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
};

/* The block is row 0 and column 0 of a tensor 16 x 16, whose maximum lies in its last element. The
   Hadamard vector's own maximum is the tensor's. */
static void vector_tensor(const Vector *v, bf16_t x[BLOCK * BLOCK]) {
    memset(x, 0, BLOCK * BLOCK * sizeof(*x));
    for (int i = 0; i < BLOCK; i++) x[i] = x[BLOCK * i] = bf16_from_f32(v->x[i]);
    if (!v->hadamard) x[BLOCK * BLOCK - 1] = bf16_from_f32(v->amax);
}

static void run_vector(const Selftest *t, const Vector *v, SelftestWorst *worst) {
    const LinearPlan *plan = &recipe_find("nvfp4")->plan;
    Wanted w[2] = {{plan->cell[GEMM_FPROP][SIDE_A], GEMM_FPROP, SIDE_A, 0, 0},
                   {plan->cell[GEMM_FPROP][SIDE_A], GEMM_WGRAD, SIDE_B, 1, 0}};
    bf16_t x[BLOCK * BLOCK];
    vector_tensor(v, x);
    Made made[2];
    for (int i = 0; i < 2; i++) {
        w[i].how.hadamard = v->hadamard;
        made[i] = made_new(w[i], BLOCK, BLOCK);
    }
    Tensor tensor = tensor_view(x, DT_BF16, BLOCK, BLOCK);
    make_pair(t, t->ops, t->device, tensor, w, FORM_PACKED, made);
    make_pair(t, t->ops, t->device, tensor, w, FORM_VALUES, made);
    for (int i = 0; i < 2; i++) {
        const Made *m = &made[i];
        selftest_compare(worst, fabs((double)m->amax - v->amax), 0, v->name, i, 16);
        selftest_compare(worst, abs(m->scales[0] - v->scale), 0, v->name, i, 17);
        for (int e = 0; e < BLOCK; e++) {
            uint8_t want = v->codes[e / 2] >> e % 2 * 4 & 15,
                    got = m->codes[e / 2] >> e % 2 * 4 & 15;
            float value = e2m1_decode(want) * e4m3_decode(v->scale);
            bf16_t decoded = m->values[value_at(m, i, 0, e)];
            int same = got == want && decoded == bf16_from_f32(value);
            selftest_compare(worst, same ? 0 : 1, 0, v->name, i, e);
        }
        made_free(&made[i]);
    }
}

static void run_vectors(Selftest *t) {
    SelftestWorst worst = {0};
    for (int i = 0; i < ARRAY_LEN(vectors); i++) run_vector(t, &vectors[i], &worst);
    SelftestRow row = {"quantize worked vectors", 0, "known codes, scales and values, bit for bit"};
    selftest_judge(t, row, &worst);
}

// --- the operands of a linear ---

/* What the recipe does with each tensor of a linear. */
static const struct {
    const char *name;
    GemmKind gemm[2];   // of the row operand and of the token operand
    Side side[2];
} tensors[] = {
    {"x", {GEMM_FPROP, GEMM_WGRAD}, {SIDE_A, SIDE_B}},
    {"w", {GEMM_FPROP, GEMM_DGRAD}, {SIDE_B, SIDE_B}},
    {"dy", {GEMM_DGRAD, GEMM_WGRAD}, {SIDE_A, SIDE_A}},
};

/* The block as it is rounded, in double: transformed where the cell says so. */
static void load_block(double v[BLOCK], const Wanted *w, const Made *m, Tensor x, int64_t row,
                       int64_t block) {
    double in[BLOCK];
    for (int e = 0; e < BLOCK; e++)
        in[e] = selftest_read(x.data, DT_BF16, value_at(m, w->token, row, block * BLOCK + e));
    memcpy(v, in, sizeof(in));
    for (int c = 0; c < BLOCK && w->how.hadamard; c++) {
        v[c] = 0;
        for (int r = 0; r < BLOCK; r++) {
            int minus = (0xD7E8 >> r & 1) ^ __builtin_parity((unsigned)(r & c));
            v[c] += (minus ? -0.25 : 0.25) * in[r];
        }
    }
}

static double largest_of(const double v[BLOCK]) {
    double largest = 0;
    for (int e = 0; e < BLOCK; e++) largest = fmax(largest, fabs(v[e]));
    return largest;
}

/* The maximum that a block's scale is made of: its own, or that of its 16 x 16 tile. */
static double scale_amax(const Wanted *w, const Made *m, Tensor x, int64_t row, int64_t block) {
    int64_t first = w->how.tile == TILE_SQUARE ? row / BLOCK * BLOCK : row;
    int64_t count = w->how.tile == TILE_SQUARE ? BLOCK : 1;
    double largest = 0, v[BLOCK];
    for (int64_t i = first; i < first + count; i++) {
        load_block(v, w, m, x, i, block);
        largest = fmax(largest, largest_of(v));
    }
    return largest;
}

/* Packed codes decode to the values, bit for bit, and lie within a step of what was rounded: a
   step of E2M1 near its top is 2 of 6, half of it to nearest, a block scale is off by 1/16 at most,
   and a transform ends in bf16. */
static void compare_forms(SelftestWorst *worst, const Wanted *w, const Made *m, Tensor x) {
    double step = w->how.rounding == ROUND_STOCHASTIC ? 2.0 : 1.0, largest = 0;
    double bound = step / 6 * (17.0 / 16) + 0x1p-8, mult = m->amax / (6.0 * w->how.top_scale);
    double *decoded = (double *)xmalloc((size_t)m->k * sizeof(double));
    int64_t tiles = ceil_div(m->k, 64), nonzero = 0;
    for (int64_t row = 0; row < m->rows; row++) {
        selftest_decode_row(decoded, m->codes + row * m->k / 2, m->scales + row / 128 * tiles * 512,
                            row, m->k);
        for (int64_t block = 0; block < m->k / BLOCK; block++) {
            double v[BLOCK], amax = scale_amax(w, m, x, row, block);
            load_block(v, w, m, x, row, block);
            largest = fmax(largest, largest_of(v));
            for (int e = 0; e < BLOCK; e++) {
                int64_t k = block * BLOCK + e;
                double value = selftest_read(m->values, DT_BF16, value_at(m, w->token, row, k));
                selftest_compare(worst, fabs(decoded[k] - value), 0, "packed", row, k);
                selftest_compare(worst, fabs(value * mult - v[e]), bound * amax, "value", row, k);
            }
        }
    }
    selftest_compare(worst, fabs(m->amax - largest), w->how.hadamard ? largest * 0x1.01p-8 : 0,
                     "amax", 0, 0);
    for (size_t i = 0; i < quantize_scales_bytes(m->rows, m->k); i++) nonzero += m->scales[i] != 0;
    selftest_compare(worst, nonzero > m->rows * m->k / BLOCK, 0, "padding of scales", 0, 0);
    free(decoded);
}

static int64_t count_differing(const void *a, const void *b, size_t bytes) {
    int64_t count = 0;
    for (size_t i = 0; i < bytes; i++) count += ((const uint8_t *)a)[i] != ((const uint8_t *)b)[i];
    return count;
}

static void compare_made(SelftestWorst *worst, const Made *got, const Made *want) {
    size_t codes = quantize_packed_bytes(got->rows, got->k);
    size_t scales = quantize_scales_bytes(got->rows, got->k);
    size_t values = dtype_bytes(DT_BF16, got->rows * got->k);
    selftest_compare(worst, (double)count_differing(&got->amax, &want->amax, sizeof(float)), 0,
                     "bytes of amax, CPU", 0, 0);
    selftest_compare(worst, (double)count_differing(got->codes, want->codes, codes), 0,
                     "bytes of codes, CPU", 0, 0);
    selftest_compare(worst, (double)count_differing(got->scales, want->scales, scales), 0,
                     "bytes of scales, CPU", 0, 0);
    selftest_compare(worst, (double)count_differing(got->values, want->values, values), 0,
                     "bytes of values, CPU", 0, 0);
}

static void make_forms(const Selftest *t, const Ops *ops, Device *d, Tensor x, const Wanted w[2],
                       Made made[2]) {
    for (int i = 0; i < 2; i++) made[i] = made_new(w[i], x.rows, x.cols);
    make_pair(t, ops, d, x, w, FORM_PACKED, made);
    make_pair(t, ops, d, x, w, FORM_VALUES, made);
}

/* Rows and columns that fill no tile of scales. */
static void run_tensor(Selftest *t, int which) {
    enum { ROWS = 144, COLS = 80 };
    const LinearPlan *plan = &recipe_find("nvfp4")->plan;
    Wanted w[2];
    Made made[2], reference[2];
    bf16_t x[ROWS * COLS];
    Tensor tensor = tensor_view(x, DT_BF16, ROWS, COLS);
    char name[MAX_NAME], described[2][48];
    SelftestWorst worst = {0};
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = bf16_from_f32((float)selftest_value(t, DT_BF16, which, 1, i));
    for (int i = 0; i < 2; i++) {
        GemmKind g = tensors[which].gemm[i];
        Side s = tensors[which].side[i];
        Wanted one = {plan->cell[g][s], g, s, i, 0};
        w[i] = one;
        operand_describe(&w[i].how, described[i], sizeof(described[i]));
    }
    make_forms(t, t->ops, t->device, tensor, w, made);
    for (int i = 0; i < 2; i++) compare_forms(&worst, &w[i], &made[i], tensor);
    if (t->reference) {
        make_forms(t, &ops_cpu, t->reference, tensor, w, reference);
        for (int i = 0; i < 2; i++) {
            compare_made(&worst, &made[i], &reference[i]);
            made_free(&reference[i]);
        }
    }
    for (int i = 0; i < 2; i++) made_free(&made[i]);
    snprintf(name, sizeof(name), "quantize %s, packed and values", tensors[which].name);
    char *note = format_string("%s (%s | %s)", t->reference ? "exact values, CPU" : "exact values",
                               described[0], described[1]);
    SelftestRow row = {name, 0, note};
    selftest_judge(t, row, &worst);
    free(note);
}

// --- stochastic rounding ---

/* Sixteen values that the block's scale, and the tensor's, leave as they are, in each of DRAWS
   blocks: between two codes but for the first. Their means over the blocks come near the values;
   without draws, or with draws of one value, they do not. */
static void compare_means(SelftestWorst *worst, const Wanted *w, const Made *m,
                          const double exact[BLOCK]) {
    int64_t draws = m->rows * m->k / BLOCK;
    double sums[BLOCK] = {0}, mult = m->amax / (6.0 * w->how.top_scale);
    for (int64_t row = 0; row < m->rows; row++)
        for (int64_t k = 0; k < m->k; k++)
            sums[k % BLOCK] += selftest_read(m->values, DT_BF16, value_at(m, w->token, row, k));
    for (int e = 0; e < BLOCK; e++) {
        double step = exact[e] < 2 ? 0.5 : exact[e] < 4 ? 1 : 2;
        // Six standard deviations of a mean of draws, and what a dither of few bits cuts off.
        double bound = step * (3 / sqrt((double)draws) + ldexp(1, -w->how.dither_bits));
        double error = fabs(sums[e] * mult / (double)draws - exact[e]);
        selftest_compare(worst, error, bound, "mean of value", w->token, e);
    }
}

static void fill_means(Tensor x, int token, double exact[BLOCK]) {
    for (int e = 0; e < BLOCK; e++) exact[e] = e == 0 ? 6 : 0.0625 + 0.34375 * e;
    for (int64_t i = 0; i < tensor_count(x); i++) {
        int64_t along = token ? i / x.cols : i % x.cols;
        ((bf16_t *)x.data)[i] = bf16_from_f32((float)exact[along % BLOCK]);
    }
}

/* What the packed codes decode to, in place of the values. */
static void decode_packed(Made *m, int token) {
    int64_t tiles = ceil_div(m->k, 64);
    double *decoded = (double *)xmalloc((size_t)m->k * sizeof(double));
    for (int64_t row = 0; row < m->rows; row++) {
        selftest_decode_row(decoded, m->codes + row * m->k / 2, m->scales + row / 128 * tiles * 512,
                            row, m->k);
        for (int64_t i = 0; i < m->k; i++)
            m->values[value_at(m, token, row, i)] = bf16_from_f32((float)decoded[i]);
    }
    free(decoded);
}

/* Of the values alone: packed codes decode to the same, or run_tensor fails. What the GPU's convert
   rounds is packed, and has no values to be equal to. */
static void run_stochastic(Selftest *t, int hardware) {
    enum { ROWS = 128, COLS = 256 };
    const LinearPlan *plan = &recipe_find("nvfp4")->plan;
    SelftestWorst worst = {0};
    bf16_t *x = (bf16_t *)xmalloc(ROWS * COLS * sizeof(bf16_t));
    Tensor tensor = tensor_view(x, DT_BF16, ROWS, COLS);
    Wanted w[2] = {{plan->cell[GEMM_DGRAD][SIDE_A], GEMM_DGRAD, SIDE_A, 0, hardware},
                   {plan->cell[GEMM_WGRAD][SIDE_A], GEMM_WGRAD, SIDE_A, 1, hardware}};
    for (int i = 0; i < 2; i++) w[i].how.hadamard = 0;
    for (int i = 0; i < 2 && hardware; i++) w[i].how.dither_bits = 8;
    for (int i = 0; i < 2; i++) {
        double exact[BLOCK];
        Made made[2];
        fill_means(tensor, i, exact);
        make_forms(t, t->ops, t->device, tensor, w, made);
        if (hardware) decode_packed(&made[i], w[i].token);
        compare_means(&worst, &w[i], &made[i], exact);
        for (int form = 0; form < 2; form++) made_free(&made[form]);
    }
    SelftestRow row = {hardware ? "stochastic rounding, hardware" : "stochastic rounding", 0,
                       "exact means (2048 draws, both directions)"};
    selftest_judge(t, row, &worst);
    free(x);
}

void selftest_quantize(Selftest *t) {
    run_vectors(t);
    for (int i = 0; i < ARRAY_LEN(tensors); i++) run_tensor(t, i);
    run_stochastic(t, 0);
    if (t->options->model->engine.hardware_rounding) run_stochastic(t, 1);
}
