/* gemm_rates -- operands at random, a few products, a clock; see gemm_rates.h. */
#include "gemm_rates.h"

#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "common.h"
#include "rng.h"

enum { PATTERN_BYTES = 1 << 20, WARM_UP = 2, MIN_MS = 5, MAX_REPEATS = 256 };

/* One product of a linear: d (m,n) over k, in one of the forms that operands have. */
typedef struct {
    GemmKind kind;
    OperandForm form;
    int64_t m, n, k;
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

/* Bf16 values of both signs and moderate size; read as codes they are all codes alike. Zeros would
   be multiplied faster than what training has. */
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
    q.format = p->form == FORM_PACKED ? FORMAT_NVFP4 : FORMAT_BF16;
    q.dtype = DT_BF16;
    q.rows = side == SIDE_A ? p->m : p->n;
    q.k = p->k;
    q.k_contiguous = p->form == FORM_PACKED || !strided;
    q.dequant_mult = 1.0f;
    q.data = new_data(d, pattern, linear_operand_bytes(p->form, q.rows, q.k));
    if (!q.data || p->form != FORM_PACKED) return q;
    // Behind the codes; the pattern's high byte 0x3F is a scale near 1, the low one any but NaN.
    q.dequant_mult = 1.0f / (6 * 448);
    q.scales = linear_packed_scales(&q);
    q.amax = (float *)new_data(d, pattern, sizeof(float));
    return q;
}

static void free_operand(Device *d, QOperand *q) {
    if (q->amax) d->free(d, q->amax);
    if (q->data) d->free(d, q->data);
}

// --- clock ---

static double rate_of(Engine *e, const Product *p, Tensor d, const QOperand *a, const QOperand *b) {
    GemmEpilogue epilogue = {{0}, p->kind == GEMM_WGRAD};
    if (e->ops->gemm_error(e->device, d, a, b, epilogue)) return 0;
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
    double flops = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    return elapsed > 0 ? flops * (repeats / 4) / (elapsed * 1e-3) : 0;
}

static double measure(Engine *e, const Product *p, const void *pattern) {
    Device *dev = e->device;
    DType out = p->kind == GEMM_WGRAD ? DT_F32 : DT_BF16;
    QOperand a = new_operand(dev, p, SIDE_A, pattern), b = new_operand(dev, p, SIDE_B, pattern);
    void *data = new_data(dev, pattern, dtype_bytes(out, p->m * p->n));
    int fits = a.data && b.data && data;
    double rate = fits ? rate_of(e, p, tensor_view(data, out, p->m, p->n), &a, &b) : 0;
    dev->synchronize(dev);
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
        const int64_t sizes[NUM_GEMMS][3] = {   // m, n, k
            {tokens, l->out, l->in}, {tokens, l->in, l->out}, {l->out, l->in, tokens}};
        for (int g = 0; g < NUM_GEMMS; g++) {
            Product p;
            memset(&p, 0, sizeof(p));
            p.kind = (GemmKind)g;
            p.m = sizes[g][0];
            p.n = sizes[g][1];
            p.k = sizes[g][2];
            GemmRate *rate = &rates[id * NUM_GEMMS + g];
            rate->bf16 = measured_rate(e, p, &list, pattern);
            p.form = linear_gemm_form(e, l, p.kind);
            int software = p.form == FORM_PACKED && !backend_is_native(e->fp4, e->device);
            rate->planned = software ? 0 : measured_rate(e, p, &list, pattern);
        }
    }
    free(pattern);
    free(list.items);
    return rates;
}
