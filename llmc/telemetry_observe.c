/* telemetry_observe -- products and operands of watched linears as they run; see telemetry.h. */
#include <math.h>
#include <string.h>

#include "common.h"
#include "rng.h"
#include "telemetry_parts.h"

static WatchedLinear *watched(Telemetry *t, const Linear *l) {
    for (int i = 0; i < t->num_linears; i++)
        if (t->linears[i].id == l->id) return &t->linears[i];
    return NULL;
}

static FormatId plain_format(Tensor x) { return x.dtype == DT_F32 ? FORMAT_F32 : FORMAT_BF16; }

static Tensor first_rows(Tensor x) { return tensor_rows(x, 0, min_i64(x.rows, TELEMETRY_ROWS)); }

static Tensor weight_of(const Telemetry *t, const Linear *l) {
    return t->model->params.params[l->weight].value;
}

/* A host buffer filled with a tensor of the device. */
static Tensor download(const Telemetry *t, Tensor buffer, Tensor from) {
    Device *d = t->model->engine.device;
    Tensor to = tensor_view(buffer.data, from.dtype, from.rows, from.cols);
    d->download(d, to.data, from.data, tensor_bytes(from));
    return to;
}

/* The first columns of x, in rows of their own. */
static void copy_columns(const Telemetry *t, Tensor to, Tensor x) {
    Device *d = t->model->engine.device;
    d->copy_rows(d, to.data, dtype_bytes(to.dtype, to.cols), x.data, dtype_bytes(x.dtype, x.cols),
                 dtype_bytes(x.dtype, to.cols), to.rows);
}

static Tensor dy_columns(const Telemetry *t, Tensor dy) {
    return tensor_view(t->dy_columns.data, dy.dtype, t->tokens,
                       min_i64(dy.cols, TELEMETRY_COLUMNS));
}

static void on_input(void *self, const Linear *l, GemmKind g, Tensor x) {
    Telemetry *t = (Telemetry *)self;
    WatchedLinear *w = watched(t, l);
    if (!w) return;
    if (g == GEMM_FPROP) {
        t->x = x;
        copy_columns(t, w->x_columns, x);
        w->x_rows = download(t, w->x_rows, first_rows(x));
    } else {
        t->dy = x;
        copy_columns(t, dy_columns(t, x), x);
        t->dy_rows = download(t, t->dy_rows, first_rows(x));
    }
}

// --- products ---

/* Of rows that were quantised, k of them along the weight's columns or rows. */
static void compare_rows(Telemetry *t, const Linear *l, GemmKind g, Tensor out,
                         ProductStats *stats) {
    Engine *e = &t->model->engine;
    GemmEpilogue epilogue = {{0}, 0};
    Tensor weight = weight_of(t, l), rows = first_rows(g == GEMM_FPROP ? t->x : t->dy), bias = {0};
    if (g == GEMM_FPROP && l->bias >= 0) epilogue.bias = t->model->params.params[l->bias].value;
    FormatId plain = plain_format(rows);
    QOperand a = operand_from_tensor(rows, plain, 1),
             b = operand_from_tensor(weight, plain, g == GEMM_FPROP);
    Tensor shadow = tensor_view(t->shadow.data, out.dtype, rows.rows, out.cols);
    e->ops->gemm(e->device, shadow, &a, &b, epilogue);
    if (!tensor_empty(epilogue.bias)) bias = download(t, t->w_rows, epilogue.bias);
    *stats = product_stats(download(t, t->out_rows, first_rows(out)),
                           download(t, t->shadow_rows, shadow), bias);
}

static void make_gradient_shadow(Telemetry *t, WatchedLinear *w) {
    Engine *e = &t->model->engine;
    GemmEpilogue overwrite = {{0}, 0};
    Tensor dy = dy_columns(t, t->dy);
    QOperand a = operand_from_tensor(dy, plain_format(dy), 0),
             b = operand_from_tensor(w->x_columns, plain_format(dy), 0);
    e->ops->gemm(e->device, w->shadow, &a, &b, overwrite);
}

void telemetry_compare_gradients(Telemetry *t) {
    for (int i = 0; i < t->num_linears; i++) {
        WatchedLinear *w = &t->linears[i];
        const Linear *l = model_linear(t->model, w->id);
        Tensor gradient = t->model->params.params[l->weight].grad, none = {0};
        w->report[GEMM_WGRAD].product =
            product_stats(download(t, t->out_rows, tensor_rows(gradient, 0, w->shadow.rows)),
                          download(t, t->shadow_rows, w->shadow), none);
    }
}

// --- operands ---

/* How the operand of these rows is made. Draws count tokens from the micro-batch's first one, which
   is the first of the step. */
static Quantizer quantizer_of(const Telemetry *t, const Linear *l, GemmKind g, Side s) {
    Quantizer how;
    memset(&how, 0, sizeof(how));
    how.how = l->plan.cell[g][s];
    how.token_operand = g == GEMM_WGRAD || (g == GEMM_DGRAD && s == SIDE_B);
    how.rows_are_tokens = !(s == SIDE_B && g != GEMM_WGRAD);
    how.tag = rng_quantize_tag((uint32_t)l->id, (uint32_t)g, (uint32_t)s, 0);
    how.seed = t->model->engine.seed;
    how.state = &t->state;
    return how;
}

static float maximum_of(const Telemetry *t, const float *amax) {
    Device *d = t->model->engine.device;
    float value = 0;
    if (amax) d->download(d, &value, amax, sizeof(value));
    return value;
}

/* The decoded values of fprop's operand, with `amax` that operand's. */
static Tensor values_of(const Telemetry *t, const Quantizer *how, Tensor rows, float *amax) {
    QOperand q;
    memset(&q, 0, sizeof(q));
    q.form = FORM_VALUES;
    q.format = how->how.format;
    q.dtype = DT_F32;
    q.data = t->values.data;
    q.rows = rows.rows;
    q.k = rows.cols;
    q.k_contiguous = 1;
    q.dequant_div = quantize_dequant_div(&how->how);
    if (how->how.amax != AMAX_NONE) q.amax = amax;
    quantize_pair_cpu(NULL, &q, how, NULL, NULL, rows);
    return tensor_view(q.data, DT_F32, rows.rows, rows.cols);
}

/* `rows` are those of the tensor that the operand, q on the device, was made of. */
static OperandStats operand_stats(const Telemetry *t, const Linear *l, GemmKind g, Side s,
                                  const QOperand *q, Tensor rows) {
    OperandStats stats;
    memset(&stats, 0, sizeof(stats));
    stats.is_quantized = operand_is_quantized(&l->plan.cell[g][s]);
    if (!stats.is_quantized) return stats;
    GemmKind made_for = s == SIDE_B && linear_takes_over(l, g) ? GEMM_FPROP : g;
    Side fprop_side = g == GEMM_DGRAD ? SIDE_B : SIDE_A;
    Quantizer how = quantizer_of(t, l, made_for, made_for == g ? s : fprop_side);
    float fprop_amax = 0;
    if (made_for == g && s == SIDE_B && linear_reads_values(l, g)) {
        Quantizer source = quantizer_of(t, l, GEMM_FPROP, fprop_side);
        int has_amax = source.how.amax != AMAX_NONE;
        float *slot = (float *)l->amax.data + GEMM_FPROP * NUM_SIDES + (int)fprop_side;
        if (has_amax) fprop_amax = maximum_of(t, slot);
        rows = values_of(t, &source, rows, &fprop_amax);
        how.source_amax = has_amax ? &fprop_amax : NULL;
        how.source_div = quantize_dequant_div(&source.how);
    }
    stats.amax = q->amax ? maximum_of(t, q->amax) : largest_magnitude(rows);
    quantize_count(&stats.counts, &how, rows, stats.amax);
    return stats;
}

static void on_product(void *self, const Linear *l, GemmKind g, Tensor d, const QOperand *a,
                       const QOperand *b) {
    Telemetry *t = (Telemetry *)self;
    WatchedLinear *w = watched(t, l);
    if (!w) return;
    GemmReport *r = &w->report[g];
    if (g == GEMM_WGRAD) make_gradient_shadow(t, w);
    else compare_rows(t, l, g, d, &r->product);
    Tensor b_rows = w->x_rows;
    if (g != GEMM_WGRAD && operand_is_quantized(&l->plan.cell[g][SIDE_B]))
        b_rows = download(t, t->w_rows, first_rows(weight_of(t, l)));
    r->operand[SIDE_A] =
        operand_stats(t, l, g, SIDE_A, a, g == GEMM_FPROP ? w->x_rows : t->dy_rows);
    r->operand[SIDE_B] = operand_stats(t, l, g, SIDE_B, b, b_rows);
}

void telemetry_look_on(Telemetry *t) {
    LinearObserver observer = {t, on_input, on_product};
    t->observer = observer;
}
