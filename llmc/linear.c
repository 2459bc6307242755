/* linear -- the three GEMMs of a layer; see linear.h. */
#include "linear.h"

#include <string.h>

#include "common.h"
#include "rng.h"

/* --- plan --- */

static const Operand *cell(const Linear *l, GemmKind g, Side s) { return &l->plan.cell[g][s]; }

static int is_quantized(const Linear *l, GemmKind g, Side s) {
    return format_is_quantized(cell(l, g, s)->format);
}

static int gemm_is_quantized(const Linear *l, GemmKind g) {
    return is_quantized(l, g, SIDE_A) || is_quantized(l, g, SIDE_B);
}

int linear_quantized_gemms(const Linear *l) {
    int count = 0;
    for (int g = 0; g < NUM_GEMMS; g++) count += gemm_is_quantized(l, (GemmKind)g);
    return count;
}

int linear_keeps_input(const Linear *l) { return !is_quantized(l, GEMM_WGRAD, SIDE_B); }

void linear_declare(Linear *l, ParamTable *t, const char *name, int in, int out, int has_bias,
                    float std) {
    char param[128];
    CHECK(strlen(name) < sizeof(l->name), "linear name %s is too long", name);
    memcpy(l->name, name, strlen(name) + 1);
    l->in = in;
    l->out = out;
    snprintf(param, sizeof(param), "%s.weight", name);
    l->weight = param_table_add(t, param, out, in, out, 1, INIT_NORMAL, std);
    l->bias = -1;
    if (!has_bias) return;
    snprintf(param, sizeof(param), "%s.bias", name);
    l->bias = param_table_add(t, param, 1, out, 1, 0, INIT_ZERO, 0);
}

/* --- buffers --- */

static int shares_fprop_codes(const Linear *l) {
    return is_quantized(l, GEMM_DGRAD, SIDE_B) &&
           cell(l, GEMM_DGRAD, SIDE_B)->source == SOURCE_TRANSPOSED;
}

void linear_place_weights(Linear *l, Arena *a) {
    l->amax = arena_tensor(a, DT_F32, 1, NUM_GEMMS * NUM_SIDES);
    if (is_quantized(l, GEMM_FPROP, SIDE_B))
        l->w_values[0] = arena_tensor(a, DT_BF16, l->out, l->in);
    if (is_quantized(l, GEMM_DGRAD, SIDE_B) && !shares_fprop_codes(l)) {
        l->w_values[1] = arena_tensor(a, DT_BF16, l->out, l->in);
    }
}

void linear_place_saved(const Linear *l, LinearSaved *saved, Arena *a, int64_t tokens) {
    if (!linear_keeps_input(l)) saved->token_values = arena_tensor(a, DT_BF16, tokens, l->in);
}

/* --- operands --- */

static float *amax_slot(const Linear *l, GemmKind g, Side s) {
    return (float *)l->amax.data + (int)g * NUM_SIDES + (int)s;
}

/* A quantised operand of a tensor (R,C) whose values go to `values`. */
static QOperand quantized_operand(const Linear *l, GemmKind g, Side s, Tensor values,
                                  int along_rows) {
    const Operand *o = cell(l, g, s);
    QOperand q;
    memset(&q, 0, sizeof(q));
    q.form = FORM_VALUES;
    q.format = o->format;
    q.dtype = values.dtype;
    q.data = values.data;
    if (formats[o->format].tensor_scale) {
        q.amax = amax_slot(l, g, s);
        q.dequant_mult = 1.0f / (formats[o->format].elem_max * (float)o->top_scale);
    }
    q.rows = along_rows ? values.cols : values.rows;
    q.k = along_rows ? values.rows : values.cols;
    q.k_contiguous = !along_rows;
    return q;
}

static Quantizer quantizer(const Engine *e, const Linear *l, GemmKind g, Side s, int token_operand,
                           int is_weight) {
    Quantizer how = {*cell(l, g, s), token_operand,
                     !is_weight,     rng_quantize_tag((uint32_t)l->id, (uint32_t)g, (uint32_t)s, 0),
                     e->seed,        e->state};
    return how;
}

/* The operands of one tensor for two GEMMs: `row` contracts along its columns, `token` along its
   rows. Each is the tensor itself or its quantised values in the buffer given; an operand whose
   buffer and need are absent is skipped. */
typedef struct {
    GemmKind gemm;
    Side side;
    Tensor values;
    QOperand *operand;
} OperandRequest;

static void make_operands(Engine *e, const Linear *l, Tensor x, OperandRequest row,
                          OperandRequest token, int is_weight) {
    QOperand *row_q = NULL, *token_q = NULL;
    Quantizer row_how = quantizer(e, l, row.gemm, row.side, 0, is_weight);
    Quantizer token_how = quantizer(e, l, token.gemm, token.side, 1, is_weight);
    if (row.operand) {
        *row.operand = operand_from_tensor(x, cell(l, row.gemm, row.side)->format, 1);
        if (is_quantized(l, row.gemm, row.side)) {
            *row.operand = quantized_operand(l, row.gemm, row.side, row.values, 0);
            row_q = row.operand;
        }
    }
    if (token.operand) {
        *token.operand = operand_from_tensor(x, cell(l, token.gemm, token.side)->format, 0);
        if (is_quantized(l, token.gemm, token.side)) {
            *token.operand = quantized_operand(l, token.gemm, token.side, token.values, 1);
            token_q = token.operand;
        }
    }
    if (!row_q && !token_q) return;
    e->ops->amax_pair(e->device, row_q, row_q ? &row_how : NULL, token_q,
                      token_q ? &token_how : NULL, x);
    e->ops->quantize_pair(e->device, row_q, row_q ? &row_how : NULL, token_q,
                          token_q ? &token_how : NULL, x);
}

void linear_prepare(Engine *e, Linear *l) {
    Tensor weight = e->params->params[l->weight].value;
    OperandRequest fprop = {GEMM_FPROP, SIDE_B, l->w_values[0], &l->w[GEMM_FPROP]};
    OperandRequest dgrad = {GEMM_DGRAD, SIDE_B, l->w_values[1],
                            shares_fprop_codes(l) ? NULL : &l->w[GEMM_DGRAD]};
    make_operands(e, l, weight, fprop, dgrad, 1);
    if (!shares_fprop_codes(l)) return;
    QOperand transposed = l->w[GEMM_FPROP];   // square tiles: the same values, read the other way
    transposed.rows = l->in;
    transposed.k = l->out;
    transposed.k_contiguous = 0;
    l->w[GEMM_DGRAD] = transposed;
}

/* The first `rows` rows of a buffer seen as (rows, cols). */
static Tensor buffer_as(Tensor buffer, int64_t rows, int64_t cols) {
    if (tensor_empty(buffer)) return buffer;
    CHECK(rows * cols <= tensor_count(buffer), "operand of %lld x %lld does not fit its buffer",
          (long long)rows, (long long)cols);
    return tensor_view(buffer.data, buffer.dtype, rows, cols);
}

QOperand linear_input(Engine *e, Linear *l, LinearSaved *saved, Tensor x) {
    QOperand row_x;
    OperandRequest row = {GEMM_FPROP, SIDE_A, buffer_as(e->row_values, x.rows, x.cols), &row_x};
    OperandRequest token = {GEMM_WGRAD, SIDE_B, buffer_as(saved->token_values, x.rows, x.cols),
                            e->training ? &saved->token_x : NULL};
    saved->x = x;
    make_operands(e, l, x, row, token, 0);
    return row_x;
}

LinearGrad linear_output_grad(Engine *e, Linear *l, Tensor dy) {
    LinearGrad grad;
    grad.dy = dy;
    OperandRequest row = {GEMM_DGRAD, SIDE_A, buffer_as(e->row_values, dy.rows, dy.cols),
                          &grad.row};
    OperandRequest token = {GEMM_WGRAD, SIDE_A, buffer_as(e->token_values, dy.rows, dy.cols),
                            &grad.token};
    make_operands(e, l, dy, row, token, 0);
    return grad;
}

/* --- the three GEMMs --- */

static void run_gemm(Engine *e, const Linear *l, GemmKind g, Tensor d, const QOperand *a,
                     const QOperand *b, GemmEpilogue epilogue) {
    e->quantized_gemms += gemm_is_quantized(l, g);
    e->ops->gemm(e->device, d, a, b, epilogue);
}

void linear_forward(Engine *e, const Linear *l, Tensor out, const QOperand *x) {
    GemmEpilogue epilogue = {{0}, 0};
    if (l->bias >= 0) epilogue.bias = e->params->params[l->bias].value;
    run_gemm(e, l, GEMM_FPROP, out, x, &l->w[GEMM_FPROP], epilogue);
}

void linear_backward(Engine *e, const Linear *l, Tensor dx, const LinearGrad *grad,
                     const LinearSaved *saved) {
    GemmEpilogue overwrite = {{0}, 0}, accumulate = {{0}, 1};
    // out = x W^T
    run_gemm(e, l, GEMM_DGRAD, dx, &grad->row, &l->w[GEMM_DGRAD], overwrite);
    run_gemm(e, l, GEMM_WGRAD, e->params->params[l->weight].grad, &grad->token, &saved->token_x,
             accumulate);
    // ... + bias
    if (l->bias >= 0) e->ops->column_sum(e->device, e->params->params[l->bias].grad, grad->dy);
}
