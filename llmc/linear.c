/* linear -- the three GEMMs of a layer; see linear.h. How operands are made is in
   linear_operands.c. */
#include "linear.h"

#include <string.h>

#include "common.h"
#include "linear_parts.h"

enum { SCALES_ALIGN = 16 };   // bytes: what native GEMMs ask of block scales; masks lie so, too

/* --- plan --- */

int linear_gemm_is_quantized(const Linear *l, GemmKind g) {
    return operand_is_quantized(linear_cell(l, g, SIDE_A)) ||
           operand_is_quantized(linear_cell(l, g, SIDE_B));
}

int linear_quantized_gemms(const Linear *l) {
    int count = 0;
    for (int g = 0; g < NUM_GEMMS; g++) count += linear_gemm_is_quantized(l, (GemmKind)g);
    return count;
}

/* Where side B of dgrad and wgrad comes from by the plan; plain, or beside a plain one of fprop, it
   is the tensor. */
static Source planned_source(const Linear *l, GemmKind g) {
    const Operand *o = &l->plan.cell[g][SIDE_B];
    const Operand *fprop = &l->plan.cell[GEMM_FPROP][g == GEMM_DGRAD ? SIDE_B : SIDE_A];
    int takes = g != GEMM_FPROP && operand_is_quantized(o) && operand_is_quantized(fprop);
    return takes ? o->source : SOURCE_TENSOR;
}

static Source source_of(const Linear *l, GemmKind g) {
    int is_plain = linear_is_plain(l, g) || linear_is_plain(l, GEMM_FPROP);
    return is_plain ? SOURCE_TENSOR : planned_source(l, g);
}

static int takes_over(Source source) {
    return source == SOURCE_TRANSPOSED || source == SOURCE_VALUES;
}

static int reads_values(Source source) {
    return source == SOURCE_VALUES || source == SOURCE_REQUANTIZED;
}

int linear_takes_over(const Linear *l, GemmKind g) { return takes_over(source_of(l, g)); }

int linear_reads_values(const Linear *l, GemmKind g) { return reads_values(source_of(l, g)); }

/* GEMMs that share an operand share its values; by the plan, so that fprop's stay what they were
   made as where a backward GEMM is plain for a while. */
static int shares_values(const Linear *l, GemmKind a, GemmKind b) {
    return a == b || ((a == GEMM_FPROP || takes_over(planned_source(l, a))) &&
                      (b == GEMM_FPROP || takes_over(planned_source(l, b))));
}

int linear_controls_channels(const Linear *l) {
    return l->channels.wanted && operand_is_quantized(linear_cell(l, GEMM_FPROP, SIDE_A)) &&
           operand_is_quantized(linear_cell(l, GEMM_FPROP, SIDE_B));
}

void linear_watch_channels(Engine *e, const Linear *l, Tensor x) {
    if (!e->training || !e->records || !linear_controls_channels(l)) return;
    const LinearChannels *c = &l->channels;
    e->ops->channel_squares(e->device, c->current, x, c->steps, e->state);
}

DType linear_values_dtype(const Linear *l, GemmKind g) {
    if (linear_is_plain(l, g)) return operand_values_dtype(linear_cell(l, g, SIDE_A));
    if (linear_controls_channels(l) && shares_values(l, g, GEMM_FPROP)) return DT_F32;
    for (int i = 0; i < NUM_GEMMS * NUM_SIDES; i++) {
        GemmKind other = (GemmKind)(i / NUM_SIDES);
        const Operand *o = &l->plan.cell[other][i % NUM_SIDES];
        if (shares_values(l, g, other) && operand_values_dtype(o) == DT_F32) return DT_F32;
    }
    return DT_BF16;
}

int linear_is_made(const Linear *l, GemmKind g, Side s) {
    const Operand *o = linear_cell(l, g, s);
    return operand_is_quantized(o) || o->elem != linear_values_dtype(l, g);
}

int linear_has_mask(const Linear *l, Side s) {
    const Operand *o = linear_cell(l, GEMM_FPROP, s);
    return operand_is_quantized(o) && o->mask;
}

int linear_keeps_input(const Linear *l) { return !linear_is_made(l, GEMM_WGRAD, SIDE_B); }

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

/* By the plan, values are read by a product of the other direction, or are those of another one. */
static int needs_values(const Linear *l, GemmKind g) {
    if (g != GEMM_FPROP) return planned_source(l, g) == SOURCE_VALUES;
    return reads_values(planned_source(l, GEMM_DGRAD)) ||
           reads_values(planned_source(l, GEMM_WGRAD));
}

OperandForm linear_gemm_form(const Engine *e, const Linear *l, GemmKind g) {
    const Operand *a = linear_cell(l, g, SIDE_A), *b = linear_cell(l, g, SIDE_B);
    int both_fp4 = operand_is_nvfp4(a) && operand_is_nvfp4(b);
    int both_fp8 =
        operand_is_fp8(a) && operand_is_fp8(b) && (a->elem == DT_E4M3 || b->elem == DT_E4M3);
    int packed = (both_fp4 && e->fp4 != FP4_EMULATED) || (both_fp8 && e->fp8);
    int as_values = needs_values(l, g) || linear_controls_channels(l);
    return packed && !as_values ? FORM_PACKED : FORM_VALUES;
}

/* Decoded values; or codes and, aligned behind them, block scales. */
size_t linear_format_bytes(OperandForm form, FormatId format, DType values, int64_t rows,
                           int64_t k) {
    if (form == FORM_VALUES) return dtype_bytes(values, rows * k);
    size_t codes = quantize_codes_bytes(format, rows, k);
    if (!format_has_blocks(format)) return codes;
    return (size_t)round_up((int64_t)codes, SCALES_ALIGN) + quantize_scales_bytes(rows, k);
}

/* Of an operand that is made; else 0. */
static size_t made_bytes(const Engine *e, const Linear *l, GemmKind g, Side s, int64_t rows,
                         int64_t k) {
    if (!linear_is_made(l, g, s)) return 0;
    return linear_format_bytes(linear_gemm_form(e, l, g), linear_cell(l, g, s)->format,
                               linear_values_dtype(l, g), rows, k);
}

size_t linear_scratch_bytes(const Engine *e, const Linear *l, GemmKind g, int64_t tokens) {
    int64_t cols = g == GEMM_FPROP ? l->in : l->out;
    int64_t rows = g == GEMM_WGRAD ? cols : tokens, k = g == GEMM_WGRAD ? tokens : cols;
    return made_bytes(e, l, g, SIDE_A, rows, k);
}

/* Where the mask of `tokens` rows lies in the buffer of the token operand, behind it. */
static int64_t mask_offset(const Engine *e, const Linear *l, int64_t tokens) {
    size_t operand = made_bytes(e, l, GEMM_WGRAD, SIDE_B, l->in, tokens);
    return round_up((int64_t)operand, SCALES_ALIGN);
}

size_t linear_saved_bytes(const Engine *e, const Linear *l, int64_t tokens) {
    if (!linear_has_mask(l, SIDE_A)) return made_bytes(e, l, GEMM_WGRAD, SIDE_B, l->in, tokens);
    return (size_t)(mask_offset(e, l, tokens) + tokens * l->in / 8);
}

uint8_t *linear_saved_mask(const Engine *e, const Linear *l, const LinearSaved *saved,
                           int64_t tokens) {
    if (!linear_has_mask(l, SIDE_A)) return NULL;
    return (uint8_t *)saved->token_buffer.data + mask_offset(e, l, tokens);
}

uint8_t *linear_packed_scales(const QOperand *q) {
    int64_t codes_bytes = (int64_t)quantize_codes_bytes(q->format, q->rows, q->k);
    return (uint8_t *)q->data + round_up(codes_bytes, SCALES_ALIGN);
}

/* Packed codes are stored along the contraction, so there dgrad has its own, which come out equal.
 */
int linear_shares_weight(const Engine *e, const Linear *l) {
    return linear_takes_over(l, GEMM_DGRAD) && linear_gemm_form(e, l, GEMM_FPROP) == FORM_VALUES &&
           linear_gemm_form(e, l, GEMM_DGRAD) == FORM_VALUES;
}

/* Memory, or none where nothing is asked for. */
static Tensor buffer(Arena *a, size_t bytes) {
    Tensor none = {0};
    return bytes > 0 ? arena_tensor(a, DT_U8, 1, (int64_t)bytes) : none;
}

void linear_place_amax(Linear *l, Arena *a) {
    l->amax = arena_tensor(a, DT_F32, 1, NUM_GEMMS * NUM_SIDES);
}

void linear_place_weights(const Engine *e, Linear *l, Arena *a) {
    Tensor none = {0};   // another phase's place is not this one's
    l->w_buffers[1] = l->w_mask = none;
    l->w_buffers[0] = buffer(a, made_bytes(e, l, GEMM_FPROP, SIDE_B, l->out, l->in));
    if (!linear_shares_weight(e, l))
        l->w_buffers[1] = buffer(a, made_bytes(e, l, GEMM_DGRAD, SIDE_B, l->in, l->out));
    if (e->training && linear_has_mask(l, SIDE_B))
        l->w_mask = arena_tensor(a, DT_U8, l->out, l->in / 8);
}

void linear_place_saved(const Engine *e, const Linear *l, LinearSaved *saved, Arena *a,
                        int64_t tokens) {
    saved->token_buffer = buffer(a, linear_saved_bytes(e, l, tokens));
}

/* The library's kernels of NVFP4 do not split k themselves; see gemm_slices. */
int linear_wgrad_slices(const Engine *e, const Linear *l, int64_t tokens) {
    int nvfp4 = operand_is_nvfp4(linear_cell(l, GEMM_WGRAD, SIDE_A));
    return nvfp4 && e->fp4 == FP4_LIBRARY ? gemm_slices(e->device, l->out, l->in, tokens) : 1;
}

/* --- maxima --- */

static int keeps_maximum(const Operand *o) {
    return operand_is_quantized(o) && (o->amax == AMAX_DELAYED || o->amax == AMAX_HELD);
}

int linear_keeps_maxima(const Linear *l) {
    for (int i = 0; i < NUM_GEMMS * NUM_SIDES; i++)
        if (keeps_maximum(linear_cell(l, (GemmKind)(i / NUM_SIDES), (Side)(i % NUM_SIDES))))
            return 1;
    return 0;
}

int linear_keeps_history(const Linear *l) {
    for (int i = 0; i < NUM_GEMMS * NUM_SIDES; i++) {
        const Operand *o = linear_cell(l, (GemmKind)(i / NUM_SIDES), (Side)(i % NUM_SIDES));
        if (keeps_maximum(o) && o->amax == AMAX_DELAYED) return 1;
    }
    return 0;
}

void linear_place_maxima(Linear *l, Arena *a, Tensor current) {
    memset(&l->maxima, 0, sizeof(l->maxima));
    if (!linear_keeps_maxima(l)) return;
    l->maxima.current = current;
    l->maxima.kept = arena_tensor(a, DT_F32, 1, NUM_GEMMS * NUM_SIDES);
    if (linear_keeps_history(l))
        l->maxima.history = arena_tensor(a, DT_F32, NUM_GEMMS * NUM_SIDES, AMAX_HISTORY);
}

void linear_add_slot(AmaxSlots *slots, const Linear *l, GemmKind g, Side s) {
    const Operand *o = linear_cell(l, g, s);
    const LinearMaxima *m = &l->maxima;
    if (!keeps_maximum(o) || tensor_empty(m->kept)) return;
    // One tensor's codes have one scale, whoever makes them.
    int is_fprops = s == SIDE_B && linear_takes_over(l, g);
    Side fprop_side = g == GEMM_DGRAD ? SIDE_B : SIDE_A;
    int at = is_fprops ? GEMM_FPROP * NUM_SIDES + (int)fprop_side : (int)g * NUM_SIDES + (int)s;
    AmaxSlot *slot = &slots->slot[slots->count++];
    slot->rule = o->amax;
    slot->initial = quantize_dequant_div(o);
    slot->in_use = linear_amax(l, g, s);
    slot->current = (float *)m->current.data + at;
    slot->kept = (float *)m->kept.data + at;
    slot->history = o->amax == AMAX_DELAYED ? (float *)m->history.data + at * AMAX_HISTORY : NULL;
}

/* Of all operands that have a maximum of their own. */
static AmaxSlots own_slots(const Linear *l) {
    AmaxSlots slots = {.count = 0};
    for (int i = 0; i < NUM_GEMMS * NUM_SIDES; i++) {
        GemmKind g = (GemmKind)(i / NUM_SIDES);
        Side s = (Side)(i % NUM_SIDES);
        if (s == SIDE_A || !linear_takes_over(l, g)) linear_add_slot(&slots, l, g, s);
    }
    return slots;
}

int linear_unset_maxima(const Engine *e, const Linear *l) {
    AmaxSlots slots = own_slots(l);
    int unset = 0;
    for (int i = 0; i < slots.count; i++) {
        float kept;
        e->device->download(e->device, &kept, slots.slot[i].kept, sizeof(kept));
        unset += kept == 0;
    }
    return unset;
}

void linear_advance(Engine *e, const Linear *l) {
    AmaxSlots slots = own_slots(l);
    if (slots.count > 0) e->ops->amax_advance(e->device, slots, e->state);
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

/* Back from fprop's transform of this side; elements that the mask drops are taken as 0. */
static void transform_back(Engine *e, const Linear *l, Side fprop_side, Tensor x,
                           const uint8_t *mask) {
    const Operand *o = linear_cell(l, GEMM_FPROP, fprop_side);
    if (!(o->hadamard || mask)) return;
    Hadamard h = {.size = o->hadamard ? o->hadamard : 1,
                  .signs = o->hadamard ? o->signs : SIGNS_NONE,
                  .tag = linear_tag(l, GEMM_FPROP, fprop_side),
                  .seed = e->seed,
                  .state = e->state};
    e->ops->hadamard_inverse(e->device, x, mask, h);
}

/* From the gradient of what fprop multiplied on this side to that of the tensor; g gave it. */
static void bring_back(Engine *e, const Linear *l, GemmKind g, Side fprop_side, Tensor gradient,
                       const uint8_t *mask) {
    if (linear_reads_values(l, g)) transform_back(e, l, fprop_side, gradient, mask);
}

void linear_decode_weight(Engine *e, const Linear *l, Tensor out) {
    e->ops->decode(e->device, out, &l->w[GEMM_FPROP]);
    if (operand_is_quantized(linear_cell(l, GEMM_FPROP, SIDE_B)))
        transform_back(e, l, SIDE_B, out, NULL);
}

static void run_gemm(Engine *e, const Linear *l, GemmKind g, Tensor d, const QOperand *a,
                     const QOperand *b, GemmEpilogue epilogue) {
    e->quantized_gemms += linear_gemm_is_quantized(l, g);
    linear_multiply(e, d, a, b, epilogue);
}

static void show_product(const Engine *e, const Linear *l, GemmKind g, Tensor d, const QOperand *a,
                         const QOperand *b) {
    if (e->observer) e->observer->product(e->observer->self, l, g, d, a, b);
}

void linear_forward(Engine *e, const Linear *l, Tensor out, const QOperand *x) {
    GemmEpilogue epilogue = {{0}, 0};
    if (l->bias >= 0) epilogue.bias = e->params->params[l->bias].value;
    run_gemm(e, l, GEMM_FPROP, out, x, &l->w[GEMM_FPROP], epilogue);
    show_product(e, l, GEMM_FPROP, out, x, &l->w[GEMM_FPROP]);
}

void linear_backward(Engine *e, const Linear *l, Tensor dx, const LinearGrad *grad,
                     const LinearSaved *saved) {
    GemmEpilogue overwrite = {{0}, 0}, accumulate = {{0}, 1};
    // out = x W^T
    run_gemm(e, l, GEMM_DGRAD, dx, &grad->row, &l->w[GEMM_DGRAD], overwrite);
    bring_back(e, l, GEMM_DGRAD, SIDE_A, dx, saved->mask);
    show_product(e, l, GEMM_DGRAD, dx, &grad->row, &l->w[GEMM_DGRAD]);
    Tensor dw = e->params->params[l->weight].grad;
    run_gemm(e, l, GEMM_WGRAD, dw, &grad->token, &saved->token_x, accumulate);
    show_product(e, l, GEMM_WGRAD, dw, &grad->token, &saved->token_x);
    // ... + bias
    if (l->bias >= 0) e->ops->column_sum(e->device, e->params->params[l->bias].grad, grad->dy);
}

int linear_has_finish(const Linear *l) {
    return linear_reads_values(l, GEMM_WGRAD) &&
           (linear_cell(l, GEMM_FPROP, SIDE_B)->hadamard || linear_has_mask(l, SIDE_B));
}

void linear_finish(Engine *e, const Linear *l) {
    bring_back(e, l, GEMM_WGRAD, SIDE_B, e->params->params[l->weight].grad,
               (const uint8_t *)l->w_mask.data);
}
