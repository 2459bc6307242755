/* gemm_rates -- operands at random, a few products, a clock; see gemm_rates.h. Operands are laid
   out and aligned as a model's are: an algorithm is chosen for that, too. */
#include "gemm_rates.h"

#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "common.h"
#include "rng.h"

enum { PATTERN_BYTES = 1 << 20, WARM_UP = 2, MIN_MS = 5, MAX_REPEATS = 256 };

/* One product of a linear: d (m,n) over k, in one of the forms that operands have. Every byte
   counts in a comparison. */
typedef struct {
    GemmKind kind;
    OperandForm form;
    FormatId formats[NUM_SIDES];   // FORMAT_BF16 of values, whatever they were decoded from
    DType values;                  // of those; bf16 of codes
    int32_t slices;
    int64_t m, n, k;
    int64_t has_bias;
} Product;

typedef struct {
    Product product;
    double rate;
} Measured;

/* The products measured so far; a model has few shapes and many linears. */
typedef struct {
    Measured *items;
    int count;
} MeasuredList;

// --- operands ---

/* Bf16 values of both signs and moderate size, as also two of them read as f32; read as FP4 codes
   they are all codes alike, as FP8 codes half of all, none of them infinity or NaN. Zeros would be
   multiplied faster than what training has. */
static void fill_pattern(uint16_t *pattern, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        Philox4 draw = philox4x32_10(rng_group_counter((uint64_t)i, 0, 0), 1, 0);
        pattern[i] = (uint16_t)((draw.w[0] & 0x80EFu) | 0x3F00u);
    }
}

/* Memory of `bytes`, with the pattern over and over; NULL when there is not enough. */
static void *new_data(Device *d, const void *pattern, size_t bytes) {
    char *data = (char *)d->alloc(d, bytes);
    if (!data) return NULL;
    size_t filled = bytes < PATTERN_BYTES ? bytes : PATTERN_BYTES;
    d->upload(d, data, pattern, filled);
    while (filled < bytes) {
        size_t more = bytes - filled < filled ? bytes - filled : filled;
        d->copy(d, data + filled, data, more);
        filled += more;
    }
    return data;
}

/* Values lie as their tensor does, which for wgrad, and for dgrad's weight, is strided along k. */
static QOperand new_operand(Device *d, const Product *p, Side side, const void *pattern) {
    QOperand q;
    memset(&q, 0, sizeof(q));
    int strided = p->kind == GEMM_WGRAD || (p->kind == GEMM_DGRAD && side == SIDE_B);
    q.form = p->form;
    q.format = p->formats[side];
    q.dtype = p->values;
    q.rows = side == SIDE_A ? p->m : p->n;
    q.k = p->k;
    q.k_contiguous = p->form == FORM_PACKED || !strided;
    q.slices = p->slices;
    q.dequant_div = 1.0f;
    q.data = new_data(d, pattern, linear_format_bytes(p->form, q.format, q.dtype, q.rows, q.k));
    if (!q.data || p->form != FORM_PACKED) return q;
    q.dequant_div = 6 * 448;
    q.amax = (float *)new_data(d, pattern, sizeof(float));
    // Behind the codes; the pattern's high byte 0x3F is a scale near 1, the low one any but NaN.
    if (format_has_blocks(q.format)) q.scales = linear_packed_scales(&q);
    return q;
}

static void free_operand(Device *d, QOperand *q) {
    if (q->amax) d->free(d, q->amax);
    if (q->data) d->free(d, q->data);
}

// --- clock ---

/* By the algorithm that training will use, which is chosen here. */
static double rate_of(Engine *e, Tensor d, const QOperand *a, const QOperand *b,
                      GemmEpilogue epilogue) {
    if (e->ops->gemm_error(e->device, d, a, b, epilogue)) return 0;
    if (!linear_uses_own_kernel(e, a)) e->ops->gemm_tune(e->device, d, a, b, epilogue);
    for (int i = 0; i < WARM_UP; i++) linear_multiply(e, d, a, b, epilogue);
    double elapsed = 0;
    int repeats = 4;
    for (; elapsed < MIN_MS && repeats <= MAX_REPEATS; repeats *= 4) {
        e->device->synchronize(e->device);
        double started = now_ms();
        for (int i = 0; i < repeats; i++) linear_multiply(e, d, a, b, epilogue);
        e->device->synchronize(e->device);
        elapsed = now_ms() - started;
    }
    double flops = 2.0 * (double)a->rows * (double)b->rows * (double)a->k;
    return elapsed > 0 ? flops * (repeats / 4) / (elapsed * 1e-3) : 0;
}

static double measure(Engine *e, const Product *p, const void *pattern) {
    Device *dev = e->device;
    DType out = p->kind == GEMM_WGRAD ? DT_F32 : DT_BF16;
    QOperand a = new_operand(dev, p, SIDE_A, pattern), b = new_operand(dev, p, SIDE_B, pattern);
    void *data = new_data(dev, pattern, dtype_bytes(out, p->m * p->n));
    void *bias = p->has_bias ? new_data(dev, pattern, dtype_bytes(DT_BF16, p->n)) : NULL;
    GemmEpilogue epilogue = {{0}, p->kind == GEMM_WGRAD};
    if (bias) epilogue.bias = tensor_view(bias, DT_BF16, 1, p->n);
    int fits = a.data && b.data && data && (bias || !p->has_bias);
    double rate = fits ? rate_of(e, tensor_view(data, out, p->m, p->n), &a, &b, epilogue) : 0;
    dev->synchronize(dev);
    if (bias) dev->free(dev, bias);
    if (data) dev->free(dev, data);
    free_operand(dev, &a);
    free_operand(dev, &b);
    return rate;
}

static double measured_rate(Engine *e, Product p, MeasuredList *list, const void *pattern) {
    for (int i = 0; i < list->count; i++) {
        if (memcmp(&list->items[i].product, &p, sizeof(p)) == 0) return list->items[i].rate;
    }
    list->items = (Measured *)xrealloc(list->items, (size_t)(list->count + 1) * sizeof(Measured));
    Measured *new_item = &list->items[list->count++];
    new_item->product = p;
    new_item->rate = measure(e, &p, pattern);
    return new_item->rate;
}

/* GEMM g of a linear over `tokens`, as planned or of bf16 values. */
static Product linear_product(const Engine *e, const Linear *l, GemmKind g, int planned,
                              int64_t tokens) {
    const int64_t sizes[NUM_GEMMS][3] = {// m, n, k
                                         {tokens, l->out, l->in},
                                         {tokens, l->in, l->out},
                                         {l->out, l->in, tokens}};
    OperandForm form = planned ? linear_gemm_form(e, l, g) : FORM_VALUES;
    Product p;
    memset(&p, 0, sizeof(p));
    p.kind = g;
    p.form = form;
    p.values = planned && form == FORM_VALUES ? linear_values_dtype(l, g) : DT_BF16;
    p.m = sizes[g][0];
    p.n = sizes[g][1];
    p.k = sizes[g][2];
    p.has_bias = g == GEMM_FPROP && l->bias >= 0;
    for (int s = 0; s < NUM_SIDES; s++)
        p.formats[s] = form == FORM_PACKED ? l->plan.cell[g][s].format : FORMAT_BF16;
    p.slices = 1;
    if (form == FORM_PACKED && g == GEMM_WGRAD) p.slices = linear_wgrad_slices(e, l, tokens);
    return p;
}

// --- the head ---

/* Tensors of the head for one micro-batch, as model.h has them: x and dx (tokens, C), logits (rows
   of a chunk, vocabulary), weight and its gradient (vocabulary, C). */
enum { HEAD_X, HEAD_DX, HEAD_LOGITS, HEAD_WEIGHT, HEAD_GRAD, NUM_HEAD_TENSORS };

/* The three products of each chunk, which differ where the last one is shorter, or where a chunk's
   first row is less aligned than the tensor. */
static void tune_chunks(Engine *e, const Tensor *t) {
    GemmEpilogue overwrite = {{0}, 0}, accumulate = {{0}, 1};
    QOperand w = operand_from_tensor(t[HEAD_WEIGHT], FORMAT_BF16, 1);
    QOperand w_transposed = operand_from_tensor(t[HEAD_WEIGHT], FORMAT_BF16, 0);
    for (int64_t begin = 0; begin < t[HEAD_X].rows; begin += t[HEAD_LOGITS].rows) {
        int64_t rows = min_i64(t[HEAD_LOGITS].rows, t[HEAD_X].rows - begin);
        Tensor x = tensor_rows(t[HEAD_X], begin, rows), dx = tensor_rows(t[HEAD_DX], begin, rows);
        Tensor logits = tensor_rows(t[HEAD_LOGITS], 0, rows);
        QOperand row_x = operand_from_tensor(x, FORMAT_BF16, 1);
        QOperand token_x = operand_from_tensor(x, FORMAT_BF16, 0);
        QOperand row_dy = operand_from_tensor(logits, FORMAT_BF16, 1);
        QOperand token_dy = operand_from_tensor(logits, FORMAT_BF16, 0);
        e->ops->gemm_tune(e->device, logits, &row_x, &w, overwrite);
        e->ops->gemm_tune(e->device, dx, &row_dy, &w_transposed, overwrite);
        e->ops->gemm_tune(e->device, t[HEAD_GRAD], &token_dy, &token_x, accumulate);
    }
}

static void tune_head(Model *m, int64_t tokens, const void *pattern) {
    Device *dev = m->engine.device;
    const Param *head = &m->params.params[m->head];
    const Tensor shapes[NUM_HEAD_TENSORS] = {
        [HEAD_X] = {NULL, DT_BF16, tokens, head->cols},
        [HEAD_DX] = {NULL, DT_BF16, tokens, head->cols},
        [HEAD_LOGITS] = {NULL, DT_BF16, min_i64(tokens, m->logits.rows), head->padded_rows},
        [HEAD_WEIGHT] = {NULL, DT_BF16, head->padded_rows, head->cols},
        [HEAD_GRAD] = {NULL, DT_F32, head->padded_rows, head->cols},
    };
    Tensor t[NUM_HEAD_TENSORS];
    int fits = 1;
    for (int i = 0; i < NUM_HEAD_TENSORS; i++) {
        t[i] = shapes[i];
        if (fits) t[i].data = new_data(dev, pattern, tensor_bytes(t[i]));
        fits = fits && t[i].data;
    }
    if (fits) tune_chunks(&m->engine, t);
    dev->synchronize(dev);
    for (int i = 0; i < NUM_HEAD_TENSORS; i++) {
        if (t[i].data) dev->free(dev, t[i].data);
    }
}

GemmRate *gemm_rates_measure(Model *m, int64_t tokens) {
    Engine *e = &m->engine;
    if (e->device->kind == DEVICE_CPU) return NULL;
    int count = model_num_linears(m);
    GemmRate *rates = (GemmRate *)xmalloc((size_t)count * NUM_GEMMS * sizeof(GemmRate));
    uint16_t *pattern = (uint16_t *)xmalloc(PATTERN_BYTES);
    fill_pattern(pattern, PATTERN_BYTES / (int64_t)sizeof(uint16_t));
    MeasuredList list = {NULL, 0};
    for (int id = 0; id < count; id++) {
        const Linear *l = model_linear(m, id);
        for (int i = 0; i < NUM_GEMMS; i++) {
            GemmKind g = (GemmKind)i;
            GemmRate *rate = &rates[id * NUM_GEMMS + i];
            Product plain = linear_product(e, l, g, 0, tokens);
            Product planned = linear_product(e, l, g, 1, tokens);
            int is_packed = planned.form == FORM_PACKED;
            int fp4_codes = is_packed && format_has_blocks(planned.formats[SIDE_A]);
            int software = fp4_codes && !backend_is_native(e->fp4, e->device);
            rate->bf16 = measured_rate(e, plain, &list, pattern);
            rate->planned = software ? 0 : measured_rate(e, planned, &list, pattern);
        }
    }
    tune_head(m, tokens, pattern);
    free(pattern);
    free(list.items);
    return rates;
}
