/*
selftest_linears -- the three GEMMs of a linear layer at full size, through linear.h: operands are
made and multiplied by what training calls. A second engine, which emulates, gives the reference of
packed products; exact sums come from the operands as they lie in memory.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "common.h"
#include "rng.h"
#include "selftest_parts.h"

enum {
    SAMPLES = 8,            // rows and columns of d: 64 elements
    SLAB_BYTES = 1 << 25,   // of what is copied to the host at a time
    MIN_TOKENS = 128,
    SHIFT_X = 0,   // where each tensor's contents begin in the pattern
    SHIFT_W = 123457,
    SHIFT_DY = 345679,
    SHIFT_D = 567891,
    SHIFT_BIAS = 789013
};
/* Of codes, in one GEMM in software: a seventh of a second on an H200. */
#define SOFTWARE_PRODUCTS ((int64_t)1 << 38)

/* A linear to be tested: one of the model's, or one of our own. */
typedef struct {
    const char *label;
    Linear l;
    int has_bias;
    DType dtype;
    int64_t tokens;
    double x_scale, w_scale, dy_scale;
    char note[48];   // of fewer tokens than asked for
} Subject;

/* What an engine makes of the subject's tensors. */
typedef struct {
    Engine engine;
    Linear l;
    LinearSaved saved;
    QOperand x;
    LinearGrad grad;
} Maker;

typedef struct {
    Selftest *t;
    const Subject *s;
    Param params[2];   // weight, bias
    ParamTable table;
    Tensor x, dy, out, dx;
    Maker made, emulated;
    int has_packed;   // `emulated` and the next two are there for packed products alone
    Tensor reference, magnitudes;   // f32, of one product at a time
} Bench;

/* One GEMM of the bench. */
typedef struct {
    GemmKind kind;
    Tensor d;
    const QOperand *a, *b;
    const QOperand *emulated_a, *emulated_b;   // values of the same codes; overwritten
    GemmEpilogue epilogue;
    double d_scale;   // of what d holds before: NaN where it is overwritten
} Product;

// --- memory ---

static int64_t scratch(const Maker *m, const Subject *s, GemmKind g) {
    return (int64_t)linear_scratch_bytes(&m->engine, &m->l, g, s->tokens);
}

static void place_maker(Maker *m, const Subject *s, Arena *a) {
    linear_place_amax(&m->l, a);
    linear_place_weights(&m->engine, &m->l, a);
    linear_place_saved(&m->engine, &m->l, &m->saved, a, s->tokens);
    int64_t row = max_i64(scratch(m, s, GEMM_FPROP), scratch(m, s, GEMM_DGRAD));
    m->engine.row_buffer = arena_tensor(a, DT_U8, 1, row);
    m->engine.token_buffer = arena_tensor(a, DT_U8, 1, scratch(m, s, GEMM_WGRAD));
    m->engine.state = (StepState *)arena_tensor(a, DT_U8, 1, sizeof(StepState)).data;
}

static void place(Bench *b, Arena *a) {
    const Subject *s = b->s;
    int64_t in = s->l.in, out = s->l.out, N = s->tokens;
    b->x = arena_tensor(a, s->dtype, N, in);
    b->dy = arena_tensor(a, s->dtype, N, out);
    b->out = arena_tensor(a, s->dtype, N, out);
    b->dx = arena_tensor(a, s->dtype, N, in);
    b->params[0].value = arena_tensor(a, s->dtype, out, in);
    b->params[0].grad = arena_tensor(a, DT_F32, out, in);
    b->params[1].value = arena_tensor(a, s->dtype, 1, out);
    place_maker(&b->made, s, a);
    if (!b->has_packed) return;
    place_maker(&b->emulated, s, a);
    int64_t largest = max_i64(in * out, N * max_i64(in, out));
    b->reference = arena_tensor(a, DT_F32, 1, largest);
    b->magnitudes = arena_tensor(a, DT_F32, 1, largest);
}

static void begin_maker(Maker *m, Bench *b, Fp4Gemm fp4, int fp8) {
    m->engine.device = b->t->device;
    m->engine.ops = b->t->ops;
    m->engine.params = &b->table;
    m->engine.seed = 0x123456789ABCDEFu;
    m->engine.fp4 = fp4;
    m->engine.fp8 = fp8;
    m->engine.training = 1;
    m->l = b->s->l;
    memset(&m->l.maxima, 0, sizeof(m->l.maxima));   // a run's are none of ours
    m->l.weight = 0;
    m->l.bias = b->s->has_bias ? 1 : -1;
}

/* Lays the bench out in memory of its own; NULL when there is not enough. */
static void *begin_bench(Bench *b, Selftest *t, const Subject *s, size_t *bytes) {
    memset(b, 0, sizeof(*b));
    b->t = t;
    b->s = s;
    b->table.params = b->params;
    b->table.count = ARRAY_LEN(b->params);
    begin_maker(&b->made, b, t->options->fp4, t->options->fp8);
    begin_maker(&b->emulated, b, FP4_EMULATED, 0);
    for (int g = 0; g < NUM_GEMMS; g++)
        b->has_packed |= linear_gemm_form(&b->made.engine, &s->l, (GemmKind)g) == FORM_PACKED;
    Arena arena = arena_measure("self-test", t->device);
    place(b, &arena);
    *bytes = arena.used;
    arena.base = (char *)t->device->alloc(t->device, arena.used);
    if (!arena.base) return NULL;
    arena.size = arena.used;
    arena.used = 0;
    place(b, &arena);
    return arena.base;
}

// --- exact sums ---

/* One operand's decode scale, from its cell and not from what the product reads. */
static double decode_scale(const Bench *b, const Operand *cell, const QOperand *q) {
    if (!operand_is_quantized(cell)) return 1.0;
    float amax = 1.0f;
    if (cell->amax != AMAX_NONE) b->t->device->download(b->t->device, &amax, q->amax, sizeof(amax));
    return (double)amax / quantize_dequant_div(cell);
}

/* Which rows of d, or of an operand: the first, the last, and others. */
static int64_t sample(int i, int64_t count) {
    if (i < 2) return i * (count - 1);
    Philox4 draw = philox4x32_10(rng_group_counter((uint64_t)i, 2, 0), (uint32_t)count, 0);
    return draw.w[0] % count;
}

/* Packed FP8: a byte a value. */
static void decode_fp8(const Bench *b, const QOperand *q, double *rows) {
    uint8_t *codes = (uint8_t *)xmalloc((size_t)q->k);
    for (int i = 0; i < SAMPLES; i++) {
        const uint8_t *row = (const uint8_t *)q->data + sample(i, q->rows) * q->k;
        b->t->device->download(b->t->device, codes, row, (size_t)q->k);
        for (int64_t k = 0; k < q->k; k++)
            rows[i * q->k + k] =
                q->format == FORMAT_E4M3 ? e4m3_decode(codes[k]) : e5m2_decode(codes[k]);
    }
    free(codes);
}

static void decode_packed(const Bench *b, const QOperand *q, double *rows) {
    Device *d = b->t->device;
    int slices = quantize_num_slices(q);
    int64_t k = q->k / slices, strip = ceil_div(k, 64) * 512;   // scales of 128 rows
    uint8_t *codes = (uint8_t *)xmalloc((size_t)k / 2), *scales = (uint8_t *)xmalloc((size_t)strip);
    for (int s = 0; s < slices; s++) {
        QOperand slice = quantize_slice(q, s);
        for (int i = 0; i < SAMPLES; i++) {
            int64_t row = sample(i, q->rows);
            d->download(d, codes, (uint8_t *)slice.data + row * k / 2, (size_t)k / 2);
            d->download(d, scales, slice.scales + row / 128 * strip, (size_t)strip);
            selftest_decode_row(rows + i * q->k + s * k, codes, scales, row, k);
        }
    }
    free(codes), free(scales);
}

/* Rows of values that lie along k, or across it in a tensor that comes to the host in slabs. */
static void decode_values(const Bench *b, const QOperand *q, double *rows) {
    Device *d = b->t->device;
    int64_t width = q->k_contiguous ? q->k : q->rows;
    size_t line = dtype_bytes(q->dtype, width);
    int64_t height = q->k_contiguous ? 1 : min_i64(q->k, max_i64(1, SLAB_BYTES / (int64_t)line));
    char *slab = (char *)xmalloc((size_t)height * line);
    for (int i = 0; i < SAMPLES && q->k_contiguous; i++) {
        d->download(d, slab, (char *)q->data + sample(i, q->rows) * (int64_t)line, line);
        for (int64_t k = 0; k < q->k; k++) rows[i * q->k + k] = selftest_read(slab, q->dtype, k);
    }
    for (int64_t k = 0; k < q->k && !q->k_contiguous; k += height) {
        int64_t count = min_i64(height, q->k - k);
        d->download(d, slab, (char *)q->data + k * (int64_t)line, (size_t)count * line);
        for (int i = 0; i < SAMPLES; i++)
            for (int64_t j = 0; j < count; j++)
                rows[i * q->k + k + j] =
                    selftest_read(slab, q->dtype, j * width + sample(i, q->rows));
    }
    free(slab);
}

/* The sampled rows of an operand without its tensor scale, (SAMPLES, k); caller frees. */
static double *decode_samples(const Bench *b, const QOperand *q) {
    double *rows = (double *)xmalloc((size_t)(SAMPLES * q->k) * sizeof(double));
    if (q->form == FORM_VALUES) decode_values(b, q, rows);
    else if (format_is_fp8(q->format)) decode_fp8(b, q, rows);
    else decode_packed(b, q, rows);
    return rows;
}

/* What the epilogue adds to element (row, col): bias, or what d held before. */
static double addend(const Bench *b, const Product *p, int64_t row, int64_t col) {
    const Selftest *t = b->t;
    if (p->epilogue.accumulate)
        return selftest_value(t, DT_F32, SHIFT_D, p->d_scale, row * p->d.cols + col);
    if (tensor_empty(p->epilogue.bias)) return 0.0;
    return selftest_value(t, p->d.dtype, SHIFT_BIAS, 1, col);
}

/* Roundings of alpha, of the sum with what is added, and of d. */
static double roundings(const Product *p, double product, double added) {
    double size = fabs(product) + fabs(added);
    return size * 0x1p-21 + (p->d.dtype == DT_BF16 ? fabs(product + added) * 0x1p-8 : 0);
}

static int is_packed_fp8(const Product *p) {
    return p->a->form == FORM_PACKED && format_is_fp8(p->a->format);
}

static void compare_samples(SelftestWorst *worst, const Bench *b, const Product *p) {
    const Operand *cells = b->s->l.plan.cell[p->kind];
    double alpha = decode_scale(b, &cells[SIDE_A], p->a) * decode_scale(b, &cells[SIDE_B], p->b);
    double *rows_a = decode_samples(b, p->a), *rows_b = decode_samples(b, p->b);
    size_t line = dtype_bytes(p->d.dtype, p->d.cols);
    void *d_row = xmalloc(line);
    for (int i = 0; i < SAMPLES; i++) {
        int64_t row = sample(i, p->d.rows);
        b->t->device->download(b->t->device, d_row, (char *)p->d.data + row * (int64_t)line, line);
        for (int j = 0; j < SAMPLES; j++) {
            int64_t col = sample(j, p->d.cols);
            double sum = 0, square = 0, added = addend(b, p, row, col);
            for (int64_t k = 0; k < p->a->k; k++) {
                double term = rows_a[i * p->a->k + k] * rows_b[j * p->a->k + k];
                sum += term;
                square += term * term;
            }
            double size = sqrt(square) * alpha, share = ((double)p->a->k / 16 + 16) * 0x1p-21;
            if (is_packed_fp8(p)) share = 0x1p-10;
            double bound = share * size + roundings(p, sum * alpha, added);
            double error = selftest_read(d_row, p->d.dtype, col) - (sum * alpha + added);
            selftest_compare(worst, fabs(error) / size, bound / size, "exact sum", row, col);
        }
    }
    free(rows_a), free(rows_b), free(d_row);
}

// --- packed against emulated ---

/* The magnitudes of values, in place: the sign is the top bit of each value's last byte. */
static void make_magnitudes(const Bench *b, const QOperand *q) {
    Device *d = b->t->device;
    int64_t width = (int64_t)dtype_bytes(q->dtype, 1), total = q->rows * q->k * width;
    uint8_t *values = (uint8_t *)xmalloc((size_t)min_i64(SLAB_BYTES, total));
    for (int64_t first = 0; first < total; first += SLAB_BYTES) {
        int64_t count = min_i64(SLAB_BYTES, total - first);
        uint8_t *there = (uint8_t *)q->data + first;
        d->download(d, values, there, (size_t)count);
#pragma omp parallel for
        for (int64_t i = width - 1; i < count; i += width) values[i] &= 0x7F;
        d->upload(d, there, values, (size_t)count);
    }
    free(values);
}

/* Rows of d, of the emulated product and of the sums of its terms' magnitudes, on the host. */
typedef struct {
    void *d;
    float *reference, *magnitudes;
} Slab;

static void compare_row(SelftestWorst *worst, const Bench *b, const Product *p, const Slab *slab,
                        int64_t first, int64_t row) {
    double steps = ((double)p->a->k / 64 + 1) * 0x1p-23, root = sqrt((double)p->a->k);
    if (is_packed_fp8(p)) steps = 0x1p-10;
    for (int64_t col = 0; col < p->d.cols; col++) {
        int64_t at = (row - first) * p->d.cols + col;
        double product = slab->reference[at], added = addend(b, p, row, col);
        double terms = fabs((double)slab->magnitudes[at]), size = terms / root;
        double bound = steps * terms + roundings(p, product, added);
        double error = selftest_read(slab->d, p->d.dtype, at) - (product + added);
        selftest_compare(worst, fabs(error) / size, bound / size, "emulated", row, col);
    }
}

static void compare_slab(SelftestWorst *worst, const Bench *b, const Product *p, const Slab *slab,
                         int64_t first, int64_t rows) {
#pragma omp parallel
    {
        SelftestWorst mine = {0};
#pragma omp for
        for (int64_t row = first; row < first + rows; row++)
            compare_row(&mine, b, p, slab, first, row);
#pragma omp critical
        if (mine.what)
            selftest_compare(worst, mine.error, mine.bound, mine.what, mine.row, mine.col);
    }
}

static void compare_emulated(SelftestWorst *worst, Bench *b, const Product *p) {
    Device *d = b->t->device;
    GemmEpilogue none = {{0}, 0};
    int64_t m = p->d.rows, n = p->d.cols;
    Tensor reference = tensor_view(b->reference.data, DT_F32, m, n);
    Tensor magnitudes = tensor_view(b->magnitudes.data, DT_F32, m, n);
    linear_multiply(&b->emulated.engine, reference, p->emulated_a, p->emulated_b, none);
    make_magnitudes(b, p->emulated_a);
    make_magnitudes(b, p->emulated_b);
    linear_multiply(&b->emulated.engine, magnitudes, p->emulated_a, p->emulated_b, none);
    int64_t rows = min_i64(m, max_i64(1, SLAB_BYTES / (n * (int64_t)sizeof(float))));
    size_t count = (size_t)(rows * n);
    Slab slab = {xmalloc(count * 4), (float *)xmalloc(count * 4), (float *)xmalloc(count * 4)};
    for (int64_t first = 0; first < m; first += rows) {
        int64_t here = min_i64(rows, m - first);
        Tensor of_d = tensor_rows(p->d, first, here);
        Tensor of_reference = tensor_rows(reference, first, here);
        Tensor of_magnitudes = tensor_rows(magnitudes, first, here);
        d->download(d, slab.d, of_d.data, tensor_bytes(of_d));
        d->download(d, slab.reference, of_reference.data, tensor_bytes(of_reference));
        d->download(d, slab.magnitudes, of_magnitudes.data, tensor_bytes(of_magnitudes));
        compare_slab(worst, b, p, &slab, first, here);
    }
    free(slab.d), free(slab.reference), free(slab.magnitudes);
}

// --- one product ---

static void describe(char *name, size_t size, const Subject *s, GemmKind g, const char *how,
                     int64_t tokens) {
    const int64_t sizes[NUM_GEMMS][3] = {
        {tokens, s->l.out, s->l.in}, {tokens, s->l.in, s->l.out}, {s->l.out, s->l.in, tokens}};
    const char *a = formats[s->l.plan.cell[g][SIDE_A].format].name;
    const char *b = formats[s->l.plan.cell[g][SIDE_B].format].name;
    int same = strcmp(a, b) == 0;
    snprintf(name, size, "%s %s %lldx%lldx%lld %s%s%s%s%s", s->label, gemm_names[g],
             (long long)sizes[g][0], (long long)sizes[g][1], (long long)sizes[g][2], a,
             same ? "" : "*", same ? "" : b, how[0] ? " " : "", how);
}

/* What the library says against products that it is to do; NULL: nothing. */
static const char *refusal(const Bench *b, const Product *p) {
    const Selftest *t = b->t;
    int packed = p->a->form == FORM_PACKED;
    if (!linear_uses_own_kernel(&b->made.engine, p->a)) {
        const char *error = t->ops->gemm_error(t->device, p->d, p->a, p->b, p->epilogue);
        if (error) return error;
    }
    if (!packed) return NULL;
    GemmEpilogue none = {{0}, 0};
    Tensor reference = tensor_view(b->reference.data, DT_F32, p->d.rows, p->d.cols);
    return t->ops->gemm_error(t->device, reference, p->emulated_a, p->emulated_b, none);
}

static void run_product(Bench *b, const Product *p) {
    const Selftest *t = b->t;
    int packed = p->a->form == FORM_PACKED;
    int quantized = linear_gemm_is_quantized(&b->s->l, p->kind);
    char name[128];
    const char *how = quantized ? backend_gemm_name(&b->made.engine, &b->s->l, p->kind) : "";
    describe(name, sizeof(name), b->s, p->kind, how, b->s->tokens);
    const char *refused = refusal(b, p);
    if (refused) {
        char *note = format_string("refused: %s", refused);
        SelftestRow row = {name, packed, note};
        selftest_fail(b->t, row);
        free(note);
        return;
    }
    SelftestWorst worst = {0};
    selftest_fill(t, p->d, SHIFT_D, p->d_scale);
    linear_multiply(&b->made.engine, p->d, p->a, p->b, p->epilogue);
    compare_samples(&worst, b, p);
    if (packed) compare_emulated(&worst, b, p);
    char *note = format_string("exact sums%s (%s%s)", packed ? ", emulated" : "",
                               backend_kernel(&b->made.engine, &b->s->l, p->kind), b->s->note);
    SelftestRow row = {name, packed, note};
    selftest_judge(b->t, row, &worst);
    free(note);
}

// --- the three of a linear ---

static void fill_bench(Bench *b) {
    const Subject *s = b->s;
    Device *d = b->t->device;
    selftest_fill(b->t, b->x, SHIFT_X, s->x_scale);
    selftest_fill(b->t, b->dy, SHIFT_DY, s->dy_scale);
    selftest_fill(b->t, b->params[0].value, SHIFT_W, s->w_scale);
    selftest_fill(b->t, b->params[1].value, SHIFT_BIAS, 1);
    d->upload(d, b->made.engine.state, &b->t->state, sizeof(StepState));
    if (b->has_packed) d->upload(d, b->emulated.engine.state, &b->t->state, sizeof(StepState));
}

static void run_forward(Bench *b) {
    Maker *made = &b->made, *emulated = &b->emulated;
    linear_prepare(&made->engine, &made->l);
    made->x = linear_input(&made->engine, &made->l, &made->saved, b->x);
    if (b->has_packed) {
        linear_prepare(&emulated->engine, &emulated->l);
        emulated->x = linear_input(&emulated->engine, &emulated->l, &emulated->saved, b->x);
    }
    Product fprop = {GEMM_FPROP,   b->out,
                     &made->x,     &made->l.w[GEMM_FPROP],
                     &emulated->x, &emulated->l.w[GEMM_FPROP],
                     {{0}, 0},     NAN};
    if (b->s->has_bias) fprop.epilogue.bias = b->params[1].value;
    run_product(b, &fprop);
}

static void run_backward(Bench *b) {
    Maker *made = &b->made, *emulated = &b->emulated;
    made->grad = linear_output_grad(&made->engine, &made->l, b->dy);
    if (b->has_packed) {
        // Anew: of the weight fprop has left the magnitudes.
        linear_prepare(&emulated->engine, &emulated->l);
        emulated->grad = linear_output_grad(&emulated->engine, &emulated->l, b->dy);
    }
    Product dgrad = {GEMM_DGRAD,
                     b->dx,
                     &made->grad.row,
                     &made->l.w[GEMM_DGRAD],
                     &emulated->grad.row,
                     &emulated->l.w[GEMM_DGRAD],
                     {{0}, 0},
                     NAN};
    run_product(b, &dgrad);
    // As large as the product, so that neither hides the other.
    double size = sqrt((double)b->s->tokens) * b->s->x_scale * b->s->dy_scale;
    Product wgrad = {GEMM_WGRAD,
                     b->params[0].grad,
                     &made->grad.token,
                     &made->saved.token_x,
                     &emulated->grad.token,
                     &emulated->saved.token_x,
                     {{0}, 1},
                     size};
    run_product(b, &wgrad);
}

static void run_subject(Selftest *t, const Subject *asked) {
    Subject s = *asked;
    size_t bytes;
    Bench b;
    void *memory;
    while (!(memory = begin_bench(&b, t, &s, &bytes))) {
        if (s.tokens / 2 < MIN_TOKENS) {
            die(EXIT_OOM, "out of memory on %s: the self-test of %s needs %zu MiB", t->device->name,
                s.l.name, bytes >> 20);
        }
        s.tokens = s.tokens / 2 / MIN_TOKENS * MIN_TOKENS;
    }
    t->report.reduced |= s.tokens < asked->tokens;
    if (s.tokens < asked->tokens)
        snprintf(s.note, sizeof(s.note), ", no memory for %lld tokens", (long long)asked->tokens);
    fill_bench(&b);
    run_forward(&b);
    run_backward(&b);
    t->device->free(t->device, memory);
}

// --- which linears ---

static int same_products(const Linear *a, const Linear *b) {
    return a->in == b->in && a->out == b->out && (a->bias < 0) == (b->bias < 0) &&
           memcmp(&a->plan, &b->plan, sizeof(a->plan)) == 0;
}

/* The linear, or NULL where an earlier one has the same products. */
static const Linear *distinct_linear(const SelftestOptions *o, int id) {
    const Linear *l = model_linear(o->model, id);
    for (int before = 0; before < id; before++)
        if (same_products(l, model_linear(o->model, before))) return NULL;
    return l;
}

/* Fewer tokens where packed products run in software. */
static int64_t affordable_tokens(const SelftestOptions *o, const Linear *l) {
    if (strcmp(backend_name(o->fp4, o->device), "software") != 0) return o->tokens;
    int64_t affordable = SOFTWARE_PRODUCTS / ((int64_t)l->in * l->out);
    return min_i64(o->tokens, max_i64(MIN_TOKENS, affordable / MIN_TOKENS * MIN_TOKENS));
}

char *selftest_products(const SelftestOptions *o) {
    char *text = xstrdup("");
    for (int id = 0; id < model_num_linears(o->model); id++) {
        const Linear *l = distinct_linear(o, id);
        for (int g = 0; l && g < NUM_GEMMS; g++) {
            const Operand *cell = l->plan.cell[g];
            char a[64], b[64];
            char *longer = format_string("%sproduct %s %dx%d%s %s * %s\n", text, gemm_names[g],
                                         l->out, l->in, l->bias < 0 ? "" : " + bias",
                                         operand_describe(&cell[SIDE_A], a, sizeof(a)),
                                         operand_describe(&cell[SIDE_B], b, sizeof(b)));
            free(text);
            text = longer;
        }
    }
    return text;
}

/* Linears of our own. Tensor scales far from 1 and from each other; sizes that fill no tile of
   scales (rows no multiple of 128, k / 16 none of 4), with a bias; sums over many tokens. */
static const struct {
    const char *label, *recipe;
    int in, out, has_bias;
    int64_t tokens;
    double x_scale, w_scale, dy_scale;
} own_linears[] = {
    {"plain, bias", "bf16", 72, 56, 1, 40, 1, 1, 1},
    {"alpha", "nvfp4", 128, 256, 0, 128, 0x1p-24, 0x1p12, 0x1.8p9},
    {"padding, bias", "nvfp4", 96, 160, 1, 416, 1, 1, 1},
    {"long sums", "nvfp4", 128, 128, 0, 16384, 1, 1, 1},
};

static Subject own_subject(int i) {
    Subject s;
    memset(&s, 0, sizeof(s));
    s.label = own_linears[i].label;
    snprintf(s.l.name, sizeof(s.l.name), "%s", s.label);
    s.l.in = own_linears[i].in;
    s.l.out = own_linears[i].out;
    s.l.plan = recipe_find(own_linears[i].recipe)->plan;
    s.has_bias = own_linears[i].has_bias;
    s.dtype = DT_BF16;
    s.tokens = own_linears[i].tokens;
    s.x_scale = own_linears[i].x_scale;
    s.w_scale = own_linears[i].w_scale;
    s.dy_scale = own_linears[i].dy_scale;
    return s;
}

static Subject model_subject(const SelftestOptions *o, const Linear *l) {
    Subject s;
    memset(&s, 0, sizeof(s));
    s.label = "gemm";
    s.l = *l;
    s.has_bias = l->bias >= 0;
    s.dtype = o->model->config.dtype;
    s.tokens = affordable_tokens(o, l);
    if (s.tokens < o->tokens) snprintf(s.note, sizeof(s.note), ", not all tokens: slow");
    s.x_scale = s.w_scale = s.dy_scale = 1;
    return s;
}

void selftest_linears(Selftest *t) {
    const SelftestOptions *o = t->options;
    for (int i = 0; i < ARRAY_LEN(own_linears); i++) {
        Subject s = own_subject(i);
        run_subject(t, &s);
    }
    for (int id = 0; id < model_num_linears(o->model); id++) {
        const Linear *l = distinct_linear(o, id);
        if (!l) continue;
        Subject s = model_subject(o, l);
        run_subject(t, &s);
    }
}
