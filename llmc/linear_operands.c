/* linear_operands -- what the GEMMs of a linear multiply: the operands of its weight, its input and
   the gradient of its output; see linear.h. */
#include <string.h>

#include "common.h"
#include "linear_parts.h"

enum { CODES_ALIGN = 16 };   // bytes: rows of codes one behind the other

/* One operand to be made: of which GEMM and side, in which buffer unless it is the tensor itself,
   and where its description goes. */
typedef struct {
    GemmKind gemm;
    Side side;
    Tensor buffer;
    QOperand *operand;   // NULL: not asked for
    uint8_t *mask;       // fprop's, or NULL
} OperandRequest;

/* What operands are made of. */
typedef struct {
    Tensor x;
    int is_weight;
    // x is decoded values of an operand, with its tensor's scale; see Quantizer
    const float *source_amax;
    float source_div;
} Material;

static Material tensor_material(Tensor x, int is_weight) {
    Material m = {x, is_weight, NULL, 0};
    return m;
}

/* The values of a row operand. */
static Material decoded_material(const QOperand *q, int is_weight) {
    CHECK(q->form == FORM_VALUES && q->k_contiguous, "decoded values of an operand of form %d",
          (int)q->form);
    Material m = {tensor_view(q->data, q->dtype, q->rows, q->k), is_weight, q->amax,
                  q->dequant_div};
    return m;
}

/* --- one operand --- */

/* An operand of x, still to be filled: a row operand contracts along x's columns, a token operand
   along its rows. */
static QOperand made_operand(const Engine *e, const Linear *l, const OperandRequest *request,
                             Tensor x, int token_operand) {
    const Operand *o = linear_cell(l, request->gemm, request->side);
    QOperand q;
    memset(&q, 0, sizeof(q));
    q.form = linear_gemm_form(e, l, request->gemm);
    q.format = o->format;
    q.dtype = linear_values_dtype(l, request->gemm);
    q.data = request->buffer.data;
    q.rows = token_operand ? x.cols : x.rows;
    q.k = token_operand ? x.rows : x.cols;
    q.k_contiguous = q.form == FORM_PACKED || !token_operand;
    q.mask = request->mask;
    size_t bytes = linear_format_bytes(q.form, q.format, q.dtype, q.rows, q.k);
    CHECK(bytes <= tensor_bytes(request->buffer),
          "%s: operand of %lld x %lld does not fit its buffer", l->name, (long long)q.rows,
          (long long)q.k);
    if (q.form == FORM_PACKED && format_has_blocks(q.format)) q.scales = linear_packed_scales(&q);
    if (q.form == FORM_PACKED && request->gemm == GEMM_WGRAD)
        q.slices = linear_wgrad_slices(e, l, q.k);
    q.dequant_div = quantize_dequant_div(o);
    if (o->amax != AMAX_NONE) q.amax = linear_amax(l, request->gemm, request->side);
    return q;
}

static Quantizer quantizer(const Engine *e, const Linear *l, const OperandRequest *request,
                           const Material *m, int token_operand) {
    Quantizer how;
    memset(&how, 0, sizeof(how));
    how.how = *linear_cell(l, request->gemm, request->side);
    how.token_operand = token_operand;
    how.rows_are_tokens = !m->is_weight;
    how.tag = linear_tag(l, request->gemm, request->side);
    how.seed = e->seed;
    how.state = e->state;
    how.hardware_rounding = e->hardware_rounding;
    how.source_amax = m->source_amax;
    how.source_div = m->source_div;
    return how;
}

/* Makes the operand the tensor itself, or says how it is to be made. Returns whether it is. */
static int begin_operand(const Engine *e, const Linear *l, const OperandRequest *request, Tensor x,
                         int token_operand) {
    if (!request->operand) return 0;
    if (linear_is_made(l, request->gemm, request->side)) {
        *request->operand = made_operand(e, l, request, x, token_operand);
        return 1;
    }
    FormatId format = linear_cell(l, request->gemm, request->side)->format;
    *request->operand = operand_from_tensor(x, format, !token_operand);
    return 0;
}

/* --- the two operands of one tensor --- */

/* Two operands to be made in one pass, either NULL: `row` contracts along the tensor's columns,
   `token` along its rows. */
typedef struct {
    QOperand *row, *token;
    Quantizer row_how, token_how;
} Pair;

/* The maxima that the pair is quantised with: the tensor's own, or what earlier steps left. */
static void find_maxima(Engine *e, const Pair *p, Tensor x, AmaxSlots slots) {
    QOperand *row = p->row && p->row->amax ? p->row : NULL;
    QOperand whole_token, *token = NULL;
    if (p->token && p->token->amax) {
        whole_token = *p->token;   // the tensor's scale is that of all slices
        whole_token.slices = 1;
        token = &whole_token;
    }
    if (!row && !token) return;
    e->ops->amax_pair(e->device, row, row ? &p->row_how : NULL, token, token ? &p->token_how : NULL,
                      x);
    if (slots.count > 0) e->ops->amax_settle(e->device, slots, e->state, e->records);
}

static void quantize(Engine *e, Pair *p, Tensor x) {
    int slices = p->token ? quantize_num_slices(p->token) : 1;
    for (int i = 0; i < slices; i++) {
        // Of rows [first, first + count) of x: a part of the row operand's rows and one slice.
        int64_t count = x.rows / slices, first = i * count;
        QOperand row_part, token_part;
        if (p->row) row_part = quantize_rows(p->row, first, count);
        if (p->token) token_part = slices > 1 ? quantize_slice(p->token, i) : *p->token;
        p->row_how.first_row = p->token_how.first_row = first;
        e->ops->quantize_pair(e->device, p->row ? &row_part : NULL, p->row ? &p->row_how : NULL,
                              p->token ? &token_part : NULL, p->token ? &p->token_how : NULL,
                              tensor_rows(x, first, count));
    }
}

static void make_pair(Engine *e, const Linear *l, Material m, OperandRequest row,
                      OperandRequest token) {
    Pair p = {NULL, NULL, quantizer(e, l, &row, &m, 0), quantizer(e, l, &token, &m, 1)};
    AmaxSlots slots = {.count = 0};
    if (begin_operand(e, l, &row, m.x, 0)) {
        p.row = row.operand;
        linear_add_slot(&slots, l, row.gemm, row.side);
    }
    if (begin_operand(e, l, &token, m.x, 1)) {
        p.token = token.operand;
        linear_add_slot(&slots, l, token.gemm, token.side);
    }
    if (!p.row && !p.token) return;
    find_maxima(e, &p, m.x, slots);
    quantize(e, &p, m.x);
}

/* fprop's operand of what is left without the chosen channels, then these. */
static void make_controlled(Engine *e, const Linear *l, Material m, OperandRequest row) {
    OperandRequest no_token = {GEMM_WGRAD, SIDE_A, {0}, NULL, NULL};
    Tensor rest = tensor_view(e->rest_buffer.data, m.x.dtype, m.x.rows, m.x.cols);
    e->ops->channels_drop(e->device, rest, m.x, l->channels.chosen);
    make_pair(e, l, tensor_material(rest, m.is_weight), row, no_token);
    e->ops->channels_add(e->device, row.operand, m.x, l->channels.chosen);
}

static void make_operands(Engine *e, const Linear *l, Material m, OperandRequest row,
                          OperandRequest token) {
    if (row.operand && row.gemm == GEMM_FPROP && linear_controls_channels(l)) {
        make_controlled(e, l, m, row);
        row.operand = NULL;
    }
    make_pair(e, l, m, row, token);
}

/* The token operand alone, of the values of the row operand. */
static void requantize(Engine *e, const Linear *l, const QOperand *row, OperandRequest token,
                       int is_weight) {
    OperandRequest no_row = {GEMM_FPROP, SIDE_A, {0}, NULL, NULL};
    make_operands(e, l, decoded_material(row, is_weight), no_row, token);
}

/* The same values for the product that contracts along the other dimension. */
static QOperand read_other_way(QOperand q) {
    int64_t rows = q.rows;
    q.rows = q.k;
    q.k = rows;
    q.k_contiguous = 0;
    q.mask = NULL;
    return q;
}

/* --- weight, input, gradient --- */

void linear_prepare(Engine *e, Linear *l) {
    Tensor weight = e->params->params[l->weight].value;
    int shared = linear_shares_weight(e, l);
    int requantized = !shared && linear_reads_values(l, GEMM_DGRAD);
    OperandRequest fprop = {GEMM_FPROP, SIDE_B, l->w_buffers[0], &l->w[GEMM_FPROP],
                            (uint8_t *)l->w_mask.data};
    OperandRequest dgrad = {GEMM_DGRAD, SIDE_B, l->w_buffers[1],
                            shared || requantized ? NULL : &l->w[GEMM_DGRAD], NULL};
    make_operands(e, l, tensor_material(weight, 1), fprop, dgrad);
    if (shared) l->w[GEMM_DGRAD] = read_other_way(l->w[GEMM_FPROP]);
    if (!requantized) return;
    dgrad.operand = &l->w[GEMM_DGRAD];
    requantize(e, l, &l->w[GEMM_FPROP], dgrad, 1);
}

/* --- weights of which ranks keep rows --- */

int linear_rows_have_codes(const Engine *e, const Linear *l) {
    const Operand *w = linear_cell(l, GEMM_FPROP, SIDE_B);
    return operand_is_nvfp4(w) && w->rounding == ROUND_NEAREST && w->amax == AMAX_CURRENT &&
           !w->mask && !linear_controls_channels(l) &&
           linear_gemm_form(e, l, GEMM_FPROP) == FORM_VALUES &&
           linear_values_dtype(l, GEMM_FPROP) == DT_BF16;
}

int linear_shares_codes(const Engine *e, const Linear *l) {
    return linear_rows_have_codes(e, l) && linear_shares_weight(e, l);
}

size_t linear_codes_bytes(const Linear *l, int64_t rows) {
    FormatId format = linear_cell(l, GEMM_FPROP, SIDE_B)->format;
    if (rows == 0) return 0;
    size_t bytes = linear_format_bytes(FORM_PACKED, format, DT_BF16, rows, l->in);
    return (size_t)round_up((int64_t)bytes, CODES_ALIGN);
}

float *linear_codes_amax(const Linear *l) { return linear_amax(l, GEMM_FPROP, SIDE_B); }

/* fprop's operand of some rows of the weight. */
static QOperand operand_of_rows(const Linear *l, void *codes, int64_t rows, float *amax) {
    const Operand *w = linear_cell(l, GEMM_FPROP, SIDE_B);
    QOperand q;
    memset(&q, 0, sizeof(q));
    q.form = FORM_PACKED;
    q.format = w->format;
    q.data = codes;
    q.rows = rows;
    q.k = l->in;
    q.k_contiguous = 1;
    q.amax = amax;
    q.dequant_div = quantize_dequant_div(w);
    q.scales = linear_packed_scales(&q);
    return q;
}

static Quantizer weight_quantizer(const Engine *e, const Linear *l) {
    OperandRequest request = {GEMM_FPROP, SIDE_B, {0}, NULL, NULL};
    Tensor none = {0};
    Material m = tensor_material(none, 1);
    return quantizer(e, l, &request, &m, 0);
}

void linear_find_amax(Engine *e, const Linear *l, float *amax, Tensor rows) {
    Quantizer how = weight_quantizer(e, l);
    QOperand q = operand_of_rows(l, rows.data, rows.rows, amax);   // no codes are written
    e->ops->amax_pair(e->device, &q, &how, NULL, NULL, rows);
}

void linear_make_codes(Engine *e, const Linear *l, void *codes, Tensor rows) {
    Quantizer how = weight_quantizer(e, l);
    QOperand q = operand_of_rows(l, codes, rows.rows, linear_codes_amax(l));
    e->ops->quantize_pair(e->device, &q, &how, NULL, NULL, rows);
}

void linear_take_codes(const Engine *e, Linear *l) {
    Tensor weight = e->params->params[l->weight].value;
    OperandRequest fprop = {GEMM_FPROP, SIDE_B, l->w_buffers[0], NULL, NULL};
    l->w[GEMM_FPROP] = made_operand(e, l, &fprop, weight, 0);
    if (linear_shares_weight(e, l)) l->w[GEMM_DGRAD] = read_other_way(l->w[GEMM_FPROP]);
}

void linear_decode_rows(Engine *e, const Linear *l, int64_t first, int64_t rows, void *codes) {
    Tensor values = tensor_view(l->w_buffers[0].data, DT_BF16, l->out, l->in);
    QOperand q = operand_of_rows(l, codes, rows, linear_codes_amax(l));
    e->ops->decode_values(e->device, tensor_rows(values, first, rows), &q);
}

/* Operands of x: the row operand, where it is wanted or others are made of its values, and where
   `saved` is not NULL the token operand and fprop's mask. */
static QOperand make_input(Engine *e, const Linear *l, LinearSaved *saved, Tensor x,
                           int wants_row) {
    QOperand row_x;
    memset(&row_x, 0, sizeof(row_x));
    int from_values = saved && linear_reads_values(l, GEMM_WGRAD);
    int as_they_are = from_values && linear_takes_over(l, GEMM_WGRAD);
    OperandRequest row = {GEMM_FPROP, SIDE_A, e->row_buffer, NULL, NULL};
    OperandRequest token = {GEMM_WGRAD, SIDE_B, {0}, NULL, NULL};
    if (saved) {
        token.buffer = saved->token_buffer;
        saved->mask = row.mask = linear_saved_mask(e, l, saved, x.rows);
    }
    if (as_they_are) row.buffer = saved->token_buffer;
    if (wants_row || from_values || row.mask) row.operand = &row_x;
    if (saved && !from_values) token.operand = &saved->token_x;
    make_operands(e, l, tensor_material(x, 0), row, token);
    if (as_they_are) {
        saved->token_x = read_other_way(row_x);
    } else if (from_values) {
        token.operand = &saved->token_x;
        requantize(e, l, &row_x, token, 0);
    }
    return row_x;
}

static void show_input(const Engine *e, const Linear *l, GemmKind g, Tensor x) {
    if (e->observer) e->observer->input(e->observer->self, l, g, x);
}

QOperand linear_input(Engine *e, Linear *l, LinearSaved *saved, Tensor x) {
    show_input(e, l, GEMM_FPROP, x);
    return make_input(e, l, e->training ? saved : NULL, x, 1);
}

void linear_save_input(Engine *e, Linear *l, LinearSaved *saved, Tensor x) {
    make_input(e, l, saved, x, 0);
}

LinearGrad linear_output_grad(Engine *e, Linear *l, Tensor dy) {
    LinearGrad grad;
    grad.dy = dy;
    show_input(e, l, GEMM_DGRAD, dy);
    OperandRequest row = {GEMM_DGRAD, SIDE_A, e->row_buffer, &grad.row, NULL};
    OperandRequest token = {GEMM_WGRAD, SIDE_A, e->token_buffer, &grad.token, NULL};
    make_operands(e, l, tensor_material(dy, 0), row, token);
    return grad;
}
