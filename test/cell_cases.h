/*
cell_cases -- every format by every mechanism of a recipe's cells, as far as recipe_check lets them
be: what the tests of the kernel of any cell run through, on the host and on a GPU. A format is an
element, a block scale, the rule that finds it and an outer scale; a mechanism changes one more
field. Each pair is tried alone and beside other mechanisms, drawn at random.
*/
#ifndef TEST_CELL_CASES_H
#define TEST_CELL_CASES_H

#include "quantize_setup.h"

#include "../llmc/ops/quantize_cpu.h"

/* One operand to make. */
typedef struct {
    Operand how;
    int token;
    OperandForm form;
    DType values, x_type;
    int requantized;   // x holds values of an operand; 2: of one without a tensor scale
    int lost;          // some elements of x are NaN or infinite
    int64_t rows, cols;
    Fill fill;
    uint32_t seed;
} CellCase;

/* Its memory on the host. A CellWork must not be moved. */
typedef struct {
    Tensor x;
    QOperand operand;
    Quantizer how;
    float amax, source_amax;
    StepState state;
} CellWork;

// --- what there is ---

static const DType element_types[] = {DT_E2M1, DT_E1M2, DT_E4M3, DT_E5M2};
static const DType scale_types[] = {DT_E4M3, DT_E8M0, DT_UE5M3, DT_F32, DT_E1M6,
                                    DT_E2M5, DT_E3M4, DT_E5M2,  DT_E6M1};
static const char *const rule_names[] = {"nearest", "floor", "ceil", "even", "quest", "encode"};

typedef enum {
    MECH_NONE,
    MECH_BLOCK,
    MECH_SQUARE,
    MECH_HADAMARD,
    MECH_SIGNS,
    MECH_ROUNDING,
    MECH_DITHER,
    MECH_HEADROOM,
    MECH_SELECT,
    MECH_AMAX,
    MECH_ZERO,
    MECH_TOP,
    MECH_ARITHMETIC,
    MECH_MASK,
    MECH_REQUANTIZED,
    MECH_X_F32,
    MECH_VALUES_F32,
    MECH_PACKED,
    MECH_LOST
} MechanismKind;
typedef struct {
    const char *name;
    MechanismKind kind;
    int value;
} Mechanism;
static const Mechanism mechanisms[] = {
    {"1x16", MECH_NONE, 0},
    {"1x8", MECH_BLOCK, 8},
    {"1x32", MECH_BLOCK, 32},
    {"1x64", MECH_BLOCK, 64},
    {"1x128", MECH_BLOCK, 128},
    {"8x8", MECH_SQUARE, 8},
    {"16x16", MECH_SQUARE, 16},
    {"32x32", MECH_SQUARE, 32},
    {"64x64", MECH_SQUARE, 64},
    {"128x128", MECH_SQUARE, 128},
    {"ht4", MECH_HADAMARD, 4},
    {"ht8", MECH_HADAMARD, 8},
    {"ht16", MECH_HADAMARD, 16},
    {"ht32", MECH_HADAMARD, 32},
    {"ht64", MECH_HADAMARD, 64},
    {"ht128", MECH_HADAMARD, 128},
    {"no signs", MECH_SIGNS, SIGNS_NONE},
    {"drawn signs", MECH_SIGNS, SIGNS_STEP},
    {"sr8", MECH_DITHER, 8},
    {"sr16", MECH_DITHER, 16},
    {"sr24", MECH_DITHER, 24},
    {"away", MECH_ROUNDING, ROUND_AWAY},
    {"eden", MECH_ROUNDING, ROUND_EDEN},
    {"headroom", MECH_HEADROOM, 1},
    {"4/6 mse", MECH_SELECT, SELECT_MSE},
    {"4/6 mae", MECH_SELECT, SELECT_MAE},
    {"amax none", MECH_AMAX, AMAX_NONE},
    {"amax held", MECH_AMAX, AMAX_HELD},
    {"zero one", MECH_ZERO, ZERO_ONE},
    {"zero least", MECH_ZERO, ZERO_LEAST},
    {"top 448", MECH_TOP, 448},
    {"top 256", MECH_TOP, 256},
    {"top 2048", MECH_TOP, 2048},
    {"formula 1", MECH_ARITHMETIC, 1},
    {"mask", MECH_MASK, 1},
    {"requantized", MECH_REQUANTIZED, 1},
    {"x in f32", MECH_X_F32, 1},
    {"values f32", MECH_VALUES_F32, 1},
    {"codes", MECH_PACKED, 1},
    {"not finite", MECH_LOST, 1},
};
enum { NUM_MECHANISMS = ARRAY_LEN(mechanisms) };

/* NULL, or why no recipe may have this cell. */
static inline const char *cell_refusal(Operand o) {
    LinearPlan plan = recipe_find("bf16")->plan;
    o.mask = 0;   // what it asks of other cells is not this cell's
    o.source = SOURCE_TENSOR;
    if (o.tile == TILE_SQUARE) plan.cell[GEMM_FPROP][SIDE_B] = o;
    else plan.cell[GEMM_WGRAD][SIDE_A] = plan.cell[GEMM_WGRAD][SIDE_B] = o;
    return recipe_error(&plan, 128, 128, 128);
}

/* Cell number i of all that formats can be, legal or not. */
enum {
    NUM_CELL_FORMATS = ARRAY_LEN(element_types) * ARRAY_LEN(scale_types) * ARRAY_LEN(rule_names) * 2
};
static inline Operand cell_format(int i) {
    Operand o = nvfp4_cell();
    o.elem = element_types[i % ARRAY_LEN(element_types)], i /= ARRAY_LEN(element_types);
    o.scale = scale_types[i % ARRAY_LEN(scale_types)], i /= ARRAY_LEN(scale_types);
    o.scale_rule = (ScaleRule)(i % ARRAY_LEN(rule_names)), i /= ARRAY_LEN(rule_names);
    o.outer = i ? 128 : 0;
    o.amax = o.scale == DT_E8M0 || o.scale == DT_F32 || o.outer ? AMAX_NONE : AMAX_CURRENT;
    o.top_scale = 0;
    return o;
}

static inline const char *cell_format_name(const Operand *o) {
    static char name[64];
    snprintf(name, sizeof(name), "%s/%s %s%s", dtype_info[o->elem].name, dtype_info[o->scale].name,
             rule_names[o->scale_rule], o->outer ? " outer" : "");
    return name;
}

/* --- cases --- */

static inline void apply_mechanism(CellCase *c, const Mechanism *m) {
    Operand *o = &c->how;
    switch (m->kind) {
    case MECH_NONE: break;
    case MECH_SQUARE:
        o->tile = TILE_SQUARE;
        o->block = m->value;
        break;
    case MECH_BLOCK: o->block = m->value; break;
    case MECH_HADAMARD: o->hadamard = m->value; break;
    case MECH_SIGNS:
        o->signs = (Signs)m->value;
        if (!o->hadamard) o->hadamard = 32;
        break;
    case MECH_DITHER:
        o->rounding = ROUND_STOCHASTIC;
        o->dither_bits = m->value;
        break;
    case MECH_ROUNDING:
        o->rounding = (Rounding)m->value;
        if (m->value == ROUND_EDEN) o->top_scale = 256;
        break;
    case MECH_HEADROOM: o->headroom = 1; break;
    case MECH_SELECT:
        o->select = (Select)m->value;
        o->top_scale = 256;
        break;
    case MECH_AMAX: o->amax = (AmaxRule)m->value; break;
    case MECH_ZERO: o->zero_scale = (ZeroScale)m->value; break;
    case MECH_TOP: o->top_scale = m->value; break;
    case MECH_ARITHMETIC: o->arithmetic = m->value; break;
    case MECH_MASK: o->mask = 1; break;
    case MECH_REQUANTIZED: c->requantized = m->value; break;
    case MECH_X_F32: c->x_type = DT_F32; break;
    case MECH_VALUES_F32: c->values = DT_F32; break;
    case MECH_PACKED: c->form = FORM_PACKED; break;
    case MECH_LOST: c->lost = 1; break;
    }
}

static const int cell_shapes[][2] = {{32, 32},   {160, 96}, {96, 160}, {256, 384},
                                     {128, 128}, {288, 64}, {64, 416}};

/* Case number `variant` of a format and a mechanism: alone at first, later with up to three others.
   Returns whether there may be such a cell. */
static inline int cell_case(CellCase *c, Operand format, const Mechanism *m, int variant) {
    uint32_t seed = (uint32_t)(m - mechanisms) * 977 + (uint32_t)variant * 131 +
                    (uint32_t)format.elem * 17 + (uint32_t)format.scale * 7 +
                    (uint32_t)format.scale_rule * 3 + (uint32_t)format.outer;
    Philox4 r = philox4x32_10(rng_group_counter(seed, 3, 0), 21, 22);
    memset(c, 0, sizeof(*c));
    c->how = format;
    c->token = (int)(r.w[0] & 1);
    c->x_type = DT_BF16;
    c->fill = (Fill)((r.w[0] >> 1 & 0xFFFF) % NUM_FILLS);
    c->seed = seed;
    for (int i = 0; variant && i < 3; i++)
        apply_mechanism(c, &mechanisms[(r.w[1] >> 10 * i & 1023) % NUM_MECHANISMS]);
    apply_mechanism(c, m);
    if (cell_refusal(c->how)) return 0;
    if (c->form == FORM_PACKED && !operand_is_nvfp4(&c->how)) return 0;
    if (c->values != DT_F32) c->values = operand_values_dtype(&c->how);
    const int *shape = cell_shapes[r.w[2] % ARRAY_LEN(cell_shapes)];
    int64_t multiple = max_i64(32, c->how.hadamard);
    c->rows = c->token ? round_up(shape[0], multiple) : shape[0];
    c->cols = c->token ? shape[1] : round_up(shape[1], multiple);
    return 1;
}

/* A recipe's cell at one of the shapes. */
enum { NUM_CELL_SHAPES = ARRAY_LEN(cell_shapes) };
static inline CellCase cell_case_of(Operand how, int token, int shape) {
    CellCase c;
    memset(&c, 0, sizeof(c));
    c.how = how;
    c.token = token;
    c.values = operand_values_dtype(&how);
    c.x_type = DT_BF16;
    c.requantized = how.source == SOURCE_REQUANTIZED;
    int64_t multiple = max_i64(32, how.hadamard);
    c.rows = round_up(cell_shapes[shape][0], multiple);
    c.cols = round_up(cell_shapes[shape][1], multiple);
    c.seed = (uint32_t)shape;
    return c;
}

/* Formats with a tensor's scale alone: directions, forms, types and inputs. */
enum { NUM_BLOCKLESS_CASES = 64 * NUM_FILLS };
static inline CellCase blockless_case(int i) {
    CellCase c = cell_case_of(formats[i & 1 ? FORMAT_E5M2 : FORMAT_E4M3].cell, i >> 1 & 1, 1);
    c.form = i >> 2 & 1 ? FORM_PACKED : FORM_VALUES;
    c.values = i >> 3 & 1 ? DT_F32 : DT_BF16;
    c.x_type = i >> 4 & 1 ? DT_F32 : DT_BF16;
    c.requantized = i >> 5 & 1;
    c.fill = (Fill)(i / 64);
    c.lost = c.fill == FILL_GRID;
    return c;
}

/* Tensors that are not quantised, into another type. */
enum { NUM_CONVERSION_CASES = 8 };
static inline CellCase conversion_case(int i) {
    CellCase c = cell_case_of(formats[i & 4 ? FORMAT_F32 : FORMAT_BF16].cell, i & 1, 1);
    c.values = i & 4 || i & 2 ? DT_F32 : DT_BF16;
    c.x_type = i & 4 && i & 2 ? DT_F32 : DT_BF16;
    c.fill = FILL_WIDE;
    return c;
}

static inline void spoil(Tensor x) {
    static const float values[] = {INFINITY, -INFINITY, NAN, 3e38f};
    for (int i = 0; i < 4; i++) {
        int64_t at = 37 + i * (tensor_count(x) / 4);
        if (x.dtype == DT_F32) ((float *)x.data)[at] = values[i];
        else ((bf16_t *)x.data)[at] = bf16_from_f32(values[i]);
    }
}

/* Operand memory begins as `untouched` bytes. */
static inline void cell_work_make(CellWork *w, const CellCase *c, int untouched) {
    memset(w, 0, sizeof(*w));
    w->x = setup_tensor(c->x_type, c->rows, c->cols, c->fill, c->seed);
    if (c->lost) spoil(w->x);
    w->state.step = 5;
    w->state.token_base = 1024;
    w->how = setup_quantizer(c->how, c->token, &w->state);
    w->how.first_row = 64;
    w->source_amax = 3.7f;
    if (c->requantized) w->how.source_div = 6.0f * 256.0f;
    if (c->requantized == 1) w->how.source_amax = &w->source_amax;
    QOperand *o = &w->operand;
    o->form = c->form;
    o->format = c->how.format;
    o->dtype = c->values;
    o->amax = c->how.amax == AMAX_NONE ? NULL : &w->amax;
    o->dequant_div = quantize_dequant_div(&c->how);
    o->rows = c->token ? c->cols : c->rows;
    o->k = c->token ? c->rows : c->cols;
    o->k_contiguous = c->form == FORM_PACKED || !c->token;
    size_t bytes = setup_bytes(o);
    o->data = xmalloc(bytes);
    memset(o->data, untouched, bytes);
    if (c->form == FORM_PACKED && c->how.block) {
        o->scales = (uint8_t *)xmalloc(quantize_scales_bytes(o->rows, o->k));
        memset(o->scales, untouched, quantize_scales_bytes(o->rows, o->k));
    }
    if (!c->how.mask) return;
    o->mask = (uint8_t *)xmalloc((size_t)(o->rows * o->k / 8));
    memset(o->mask, untouched, (size_t)(o->rows * o->k / 8));
}

static inline void cell_work_free(CellWork *w) {
    free(w->x.data), free(w->operand.data), free(w->operand.scales), free(w->operand.mask);
}

/* The reference. */
static inline void cell_work_run(CellWork *w) {
    QOperand *o = &w->operand;
    if (o->amax) amax_reference(o, &w->how, w->x);
    if (operand_is_fp8(&w->how.how)) quantize_fp8_cpu(o, &w->how, w->x);
    else quantize_reference(o, &w->how, w->x);
}

/* For a failure's text. */
static inline const char *cell_case_text(const CellCase *c, const char *format, const char *m) {
    static char text[256];
    char cell[128];
    snprintf(text, sizeof(text), "%s, %s: %s, %s%s%s%s%s, %lld x %lld, fill %d", format, m,
             operand_describe(&c->how, cell, sizeof(cell)), c->token ? "token" : "row",
             c->form == FORM_PACKED ? ", codes" : "", c->requantized ? ", requantized" : "",
             c->x_type == DT_F32 ? ", x f32" : "", c->values == DT_F32 ? ", values f32" : "",
             (long long)c->rows, (long long)c->cols, (int)c->fill);
    return text;
}

#endif
