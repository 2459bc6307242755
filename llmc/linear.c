/* linear -- the three GEMMs of a layer; see linear.h. */
#include "linear.h"

#include <string.h>

#include "common.h"
#include "rng.h"

enum { SCALES_ALIGN = 16 };   // bytes: what native GEMMs ask of block scales

/* One operand to be made: of which GEMM and side, in which buffer if it is quantised, and where its
   description goes. */
typedef struct {
    GemmKind gemm;
    Side side;
    Tensor buffer;
    QOperand *operand;
} OperandRequest;

/* --- plan --- */

static const Operand *cell(const Linear *l, GemmKind g, Side s) { return &l->plan.cell[g][s]; }

static int is_quantized(const Linear *l, GemmKind g, Side s) {
    return operand_is_quantized(cell(l, g, s));
}

int linear_gemm_is_quantized(const Linear *l, GemmKind g) {
    return is_quantized(l, g, SIDE_A) || is_quantized(l, g, SIDE_B);
}

int linear_quantized_gemms(const Linear *l) {
    int count = 0;
    for (int g = 0; g < NUM_GEMMS; g++) count += linear_gemm_is_quantized(l, (GemmKind)g);
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

OperandForm linear_gemm_form(const Engine *e, const Linear *l, GemmKind g) {
    const Operand *a = cell(l, g, SIDE_A), *b = cell(l, g, SIDE_B);
    int both_fp4 = operand_is_nvfp4(a) && operand_is_nvfp4(b);
    int both_fp8 =
        operand_is_fp8(a) && operand_is_fp8(b) && (a->elem == DT_E4M3 || b->elem == DT_E4M3);
    int packed = (both_fp4 && e->fp4 != FP4_EMULATED) || (both_fp8 && e->fp8);
    return packed ? FORM_PACKED : FORM_VALUES;
}

/* Decoded bf16 values; or codes and, aligned behind them, block scales. */
size_t linear_format_bytes(OperandForm form, FormatId format, int64_t rows, int64_t k) {
    if (form == FORM_VALUES) return dtype_bytes(DT_BF16, rows * k);
    size_t codes = quantize_codes_bytes(format, rows, k);
    if (!format_has_blocks(format)) return codes;
    return (size_t)round_up((int64_t)codes, SCALES_ALIGN) + quantize_scales_bytes(rows, k);
}

size_t linear_scratch_bytes(const Engine *e, const Linear *l, GemmKind g, int64_t tokens) {
    if (!is_quantized(l, g, SIDE_A)) return 0;
    int64_t cols = g == GEMM_FPROP ? l->in : l->out;
    int64_t rows = g == GEMM_WGRAD ? cols : tokens, k = g == GEMM_WGRAD ? tokens : cols;
    return linear_format_bytes(linear_gemm_form(e, l, g), cell(l, g, SIDE_A)->format, rows, k);
}

size_t linear_saved_bytes(const Engine *e, const Linear *l, int64_t tokens) {
    if (linear_keeps_input(l)) return 0;
    FormatId format = cell(l, GEMM_WGRAD, SIDE_B)->format;
    return linear_format_bytes(linear_gemm_form(e, l, GEMM_WGRAD), format, l->in, tokens);
}

uint8_t *linear_packed_scales(const QOperand *q) {
    int64_t codes_bytes = (int64_t)quantize_codes_bytes(q->format, q->rows, q->k);
    return (uint8_t *)q->data + round_up(codes_bytes, SCALES_ALIGN);
}

/* The transposed codes of fprop's weight: the same decoded values read the other way. Packed codes
   are stored along the contraction, so there dgrad has its own, which come out equal. */
static int shares_fprop_codes(const Engine *e, const Linear *l) {
    return is_quantized(l, GEMM_DGRAD, SIDE_B) &&
           cell(l, GEMM_DGRAD, SIDE_B)->source == SOURCE_TRANSPOSED &&
           linear_gemm_form(e, l, GEMM_FPROP) == FORM_VALUES &&
           linear_gemm_form(e, l, GEMM_DGRAD) == FORM_VALUES;
}

/* For the operand b of GEMM g, which outlives the call that makes it. */
static Tensor operand_buffer(const Engine *e, const Linear *l, GemmKind g, Arena *a, int64_t rows,
                             int64_t k) {
    FormatId format = cell(l, g, SIDE_B)->format;
    size_t bytes = linear_format_bytes(linear_gemm_form(e, l, g), format, rows, k);
    return arena_tensor(a, DT_U8, 1, (int64_t)bytes);
}

void linear_place_weights(const Engine *e, Linear *l, Arena *a) {
    l->amax = arena_tensor(a, DT_F32, 1, NUM_GEMMS * NUM_SIDES);
    if (is_quantized(l, GEMM_FPROP, SIDE_B)) {
        l->w_buffers[0] = operand_buffer(e, l, GEMM_FPROP, a, l->out, l->in);
    }
    if (is_quantized(l, GEMM_DGRAD, SIDE_B) && !shares_fprop_codes(e, l)) {
        l->w_buffers[1] = operand_buffer(e, l, GEMM_DGRAD, a, l->in, l->out);
    }
}

void linear_place_saved(const Engine *e, const Linear *l, LinearSaved *saved, Arena *a,
                        int64_t tokens) {
    int64_t bytes = (int64_t)linear_saved_bytes(e, l, tokens);
    if (bytes > 0) saved->token_buffer = arena_tensor(a, DT_U8, 1, bytes);
}

/* --- operands --- */

static float *amax_slot(const Linear *l, GemmKind g, Side s) {
    return (float *)l->amax.data + (int)g * NUM_SIDES + (int)s;
}

/* The library's kernels of NVFP4 do not split k themselves; see gemm_slices. */
int linear_wgrad_slices(const Engine *e, const Linear *l, int64_t tokens) {
    int nvfp4 = operand_is_nvfp4(cell(l, GEMM_WGRAD, SIDE_A));
    return nvfp4 && e->fp4 == FP4_LIBRARY ? gemm_slices(e->device, l->out, l->in, tokens) : 1;
}

/* A quantised operand of x, still to be filled: a row operand contracts along x's columns, a token
   operand along its rows. */
static QOperand quantized_operand(const Engine *e, const Linear *l, OperandRequest request,
                                  Tensor x, int token_operand) {
    const Operand *o = cell(l, request.gemm, request.side);
    QOperand q;
    memset(&q, 0, sizeof(q));
    q.form = linear_gemm_form(e, l, request.gemm);
    q.format = o->format;
    q.dtype = DT_BF16;
    q.data = request.buffer.data;
    q.rows = token_operand ? x.cols : x.rows;
    q.k = token_operand ? x.rows : x.cols;
    q.k_contiguous = q.form == FORM_PACKED || !token_operand;
    size_t bytes = linear_format_bytes(q.form, q.format, q.rows, q.k);
    CHECK(bytes <= tensor_bytes(request.buffer),
          "%s: operand of %lld x %lld does not fit its buffer", l->name, (long long)q.rows,
          (long long)q.k);
    if (q.form == FORM_PACKED && format_has_blocks(q.format)) q.scales = linear_packed_scales(&q);
    if (q.form == FORM_PACKED && request.gemm == GEMM_WGRAD)
        q.slices = linear_wgrad_slices(e, l, q.k);
    q.dequant_div = quantize_dequant_div(o);
    if (o->amax != AMAX_NONE) q.amax = amax_slot(l, request.gemm, request.side);
    return q;
}

static Quantizer quantizer(const Engine *e, const Linear *l, OperandRequest request,
                           int token_operand, int is_weight) {
    Quantizer how;
    memset(&how, 0, sizeof(how));
    how.how = *cell(l, request.gemm, request.side);
    how.token_operand = token_operand;
    how.rows_are_tokens = !is_weight;
    how.tag = rng_quantize_tag((uint32_t)l->id, (uint32_t)request.gemm, (uint32_t)request.side, 0);
    how.seed = e->seed;
    how.state = e->state;
    how.hardware_rounding = e->hardware_rounding;
    return how;
}

/* Makes the operand the tensor itself, or says how it is to be quantised. Returns whether it is. */
static int begin_operand(const Engine *e, const Linear *l, OperandRequest request, Tensor x,
                         int token_operand) {
    if (!request.operand) return 0;
    if (is_quantized(l, request.gemm, request.side)) {
        *request.operand = quantized_operand(e, l, request, x, token_operand);
        return 1;
    }
    FormatId format = cell(l, request.gemm, request.side)->format;
    *request.operand = operand_from_tensor(x, format, !token_operand);
    return 0;
}

/* The operands of one tensor for two GEMMs: `row` contracts along its columns, `token` along its
   rows. A request without an operand is skipped. */
static void make_operands(Engine *e, const Linear *l, Tensor x, OperandRequest row,
                          OperandRequest token, int is_weight) {
    Quantizer row_how = quantizer(e, l, row, 0, is_weight);
    Quantizer token_how = quantizer(e, l, token, 1, is_weight);
    QOperand *row_q = begin_operand(e, l, row, x, 0) ? row.operand : NULL;
    QOperand *token_q = begin_operand(e, l, token, x, 1) ? token.operand : NULL;
    if (!row_q && !token_q) return;
    int slices = token_q ? quantize_num_slices(token_q) : 1;
    QOperand whole_token = {0};   // the tensor's scale is that of all slices
    if (token_q) whole_token = *token_q;
    whole_token.slices = 1;
    e->ops->amax_pair(e->device, row_q, row_q ? &row_how : NULL, token_q ? &whole_token : NULL,
                      token_q ? &token_how : NULL, x);
    for (int i = 0; i < slices; i++) {
        // Of rows [first, first + count) of x: a part of the row operand's rows and one slice.
        int64_t count = x.rows / slices, first = i * count;
        QOperand row_part, token_part;
        if (row_q) row_part = quantize_rows(row_q, first, count);
        if (token_q) token_part = slices > 1 ? quantize_slice(token_q, i) : *token_q;
        row_how.first_row = token_how.first_row = first;
        e->ops->quantize_pair(e->device, row_q ? &row_part : NULL, row_q ? &row_how : NULL,
                              token_q ? &token_part : NULL, token_q ? &token_how : NULL,
                              tensor_rows(x, first, count));
    }
}

void linear_prepare(Engine *e, Linear *l) {
    Tensor weight = e->params->params[l->weight].value;
    int shared = shares_fprop_codes(e, l);
    OperandRequest fprop = {GEMM_FPROP, SIDE_B, l->w_buffers[0], &l->w[GEMM_FPROP]};
    OperandRequest dgrad = {GEMM_DGRAD, SIDE_B, l->w_buffers[1], shared ? NULL : &l->w[GEMM_DGRAD]};
    make_operands(e, l, weight, fprop, dgrad, 1);
    if (!shared) return;
    QOperand transposed = l->w[GEMM_FPROP];
    transposed.rows = l->in;
    transposed.k = l->out;
    transposed.k_contiguous = 0;
    l->w[GEMM_DGRAD] = transposed;
}

/* Of x, for wgrad; no operand is asked for where `saved` is NULL. */
static OperandRequest saved_request(LinearSaved *saved) {
    OperandRequest request = {GEMM_WGRAD, SIDE_B, {0}, NULL};
    if (!saved) return request;
    request.buffer = saved->token_buffer;
    request.operand = &saved->token_x;
    return request;
}

static void show_input(const Engine *e, const Linear *l, GemmKind g, Tensor x) {
    if (e->observer) e->observer->input(e->observer->self, l, g, x);
}

QOperand linear_input(Engine *e, Linear *l, LinearSaved *saved, Tensor x) {
    QOperand row_x;
    show_input(e, l, GEMM_FPROP, x);
    OperandRequest row = {GEMM_FPROP, SIDE_A, e->row_buffer, &row_x};
    make_operands(e, l, x, row, saved_request(e->training ? saved : NULL), 0);
    return row_x;
}

void linear_save_input(Engine *e, Linear *l, LinearSaved *saved, Tensor x) {
    OperandRequest no_row = {GEMM_FPROP, SIDE_A, {0}, NULL};
    make_operands(e, l, x, no_row, saved_request(saved), 0);
}

LinearGrad linear_output_grad(Engine *e, Linear *l, Tensor dy) {
    LinearGrad grad;
    grad.dy = dy;
    show_input(e, l, GEMM_DGRAD, dy);
    OperandRequest row = {GEMM_DGRAD, SIDE_A, e->row_buffer, &grad.row};
    OperandRequest token = {GEMM_WGRAD, SIDE_A, e->token_buffer, &grad.token};
    make_operands(e, l, dy, row, token, 0);
    return grad;
}

/* --- the three GEMMs --- */

int linear_uses_own_kernel(const Engine *e, const QOperand *q) {
    return q->form == FORM_PACKED && q->format == FORMAT_NVFP4 && e->fp4 == FP4_MMA;
}

void linear_multiply(Engine *e, Tensor d, const QOperand *a, const QOperand *b,
                     GemmEpilogue epilogue) {
    int own_kernel = linear_uses_own_kernel(e, a);
    (own_kernel ? e->ops->gemm_mma : e->ops->gemm)(e->device, d, a, b, epilogue);
}

static void run_gemm(Engine *e, const Linear *l, GemmKind g, Tensor d, const QOperand *a,
                     const QOperand *b, GemmEpilogue epilogue) {
    e->quantized_gemms += linear_gemm_is_quantized(l, g);
    linear_multiply(e, d, a, b, epilogue);
    if (e->observer) e->observer->product(e->observer->self, l, g, d, a, b);
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
