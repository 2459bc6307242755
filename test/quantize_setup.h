/*
quantize_setup -- what the tests of the quantisers share on both devices: inputs that reach every
branch of the arithmetic, every variant of a cell, and one tensor's pair of operands with their
memory on the host.
*/
#ifndef TEST_QUANTIZE_SETUP_H
#define TEST_QUANTIZE_SETUP_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../llmc/common.h"
#include "../llmc/ops/quantize.h"
#include "../llmc/rng.h"

/* Of test.h, of the bits of a float. */
#define EXPECT_HEX(got, want_bits, ...) EXPECT_EQ_I64(bits_from_f32(got), want_bits, __VA_ARGS__)

// --- inputs ---

typedef enum {
    FILL_NORMAL,      // N(0,1)
    FILL_ZERO,        // +0 and -0
    FILL_OUTLIER,     // N(0,1) with one element of 30000: blocks far below the tensor's scale
    FILL_SUBNORMAL,   // around the smallest numbers: S_enc is at its cap
    FILL_HUGE,        // up to 1e38: the transform overflows in some groups
    FILL_GRID,        // small multiples of 1/8: many ties, zero blocks
    FILL_WIDE,        // exponents all over the range
    NUM_FILLS
} Fill;

static inline double setup_normal(uint64_t i, uint32_t seed) {
    Philox4 r = philox4x32_10(rng_group_counter(i, 1, seed), 11, 12);
    double u = (r.w[0] + 1.0) / 4294967297.0, angle = 6.283185307179586 * (r.w[1] / 4294967296.0);
    return sqrt(-2 * log(u)) * cos(angle);
}

static inline float fill_value(Fill fill, uint64_t i, uint32_t seed) {
    Philox4 r = philox4x32_10(rng_group_counter(i, 2, seed), 13, 14);
    float n = (float)setup_normal(i, seed), sign = r.w[0] & 1 ? -1.0f : 1.0f;
    switch (fill) {
    case FILL_ZERO: return sign * 0.0f;
    case FILL_OUTLIER: return i == 77 ? 30000.0f : n;
    case FILL_SUBNORMAL: return n * 0x1p-128f;
    case FILL_HUGE: return i % 64 ? n * 1e36f : sign * 1e38f;
    case FILL_GRID: return r.w[1] % 3 ? 0.125f * (float)((int)(r.w[2] % 97) - 48) : sign * 0.0f;
    case FILL_WIDE: return sign * ldexpf(1 + rng_uniform(r.w[1]), (int)(r.w[2] % 90) - 60);
    default: return n;
    }
}

/* A new host tensor; free its data. */
static inline Tensor setup_tensor(DType dtype, int64_t rows, int64_t cols, Fill fill,
                                  uint32_t seed) {
    Tensor x = tensor_view(xmalloc(dtype_bytes(dtype, rows * cols)), dtype, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        float v = fill_value(fill, (uint64_t)i, seed);
        if (dtype == DT_F32) ((float *)x.data)[i] = v;
        else ((bf16_t *)x.data)[i] = bf16_from_f32(v);
    }
    return x;
}

// --- cells ---

static inline Operand nvfp4_cell(void) {
    return formats[FORMAT_NVFP4].cell;
}

/* MXFP4 as its format has it. */
static inline Operand mxfp4_rows(void) {
    return formats[FORMAT_MXFP4].cell;
}

/* Of a format without blocks. */
static inline Operand fp8_cell(FormatId format) {
    return formats[format].cell;
}

/* Every combination of the options of a cell. */
enum { NUM_VARIANTS = 2 * 3 * 4 * 2 * 2 * 2 };
static inline Operand cell_variant(int i) {
    static const int widths[4] = {8, 8, 16, 24};
    Operand o = nvfp4_cell();
    o.tile = i % 2 ? TILE_SQUARE : TILE_ROW, i /= 2;
    o.hadamard = i % 3 ? 16 : 0;
    o.signs = i % 3 == 2 ? SIGNS_NONE : SIGNS_FIXED, i /= 3;
    o.rounding = i % 4 ? ROUND_STOCHASTIC : ROUND_NEAREST;
    o.dither_bits = widths[i % 4], i /= 4;
    o.headroom = i % 2, i /= 2;
    o.top_scale = i % 2 ? 256 : 448, i /= 2;
    o.arithmetic = i % 2 ? 1 : 2;
    return o;
}

// --- operands ---

/* Both operands of x. The memory of `state` and `amax` is the struct's own: it must not be moved.
   */
typedef struct {
    Tensor x;
    QOperand row, token;
    Quantizer row_how, token_how;
    float amax[2];
    StepState state;
} Setup;

static inline QOperand setup_operand(OperandForm form, Operand how, int64_t rows, int64_t k,
                                     int token) {
    QOperand o;
    memset(&o, 0, sizeof(o));
    o.form = form;
    o.format = how.format;
    o.dtype = operand_values_dtype(&how);
    o.dequant_div = quantize_dequant_div(&how);
    o.rows = rows;
    o.k = k;
    o.k_contiguous = form == FORM_PACKED || !token;
    o.data = xmalloc(form == FORM_PACKED ? quantize_codes_bytes(how.format, rows, k)
                                         : dtype_bytes(o.dtype, rows * k));
    if (how.mask) o.mask = (uint8_t *)xmalloc((size_t)(rows * k / 8));
    if (form != FORM_PACKED || !format_has_blocks(how.format)) return o;
    o.scales = (uint8_t *)xmalloc(quantize_scales_bytes(rows, k));
    memset(o.scales, 0xFF,
           quantize_scales_bytes(rows, k));   // what the quantiser leaves alone would show as NaN
    return o;
}

static inline Quantizer setup_quantizer(Operand how, int token, const StepState *state) {
    Quantizer q;
    memset(&q, 0, sizeof(q));
    q.how = how;
    q.token_operand = token;
    q.rows_are_tokens = 1;
    q.tag = rng_quantize_tag(3, token ? GEMM_WGRAD : GEMM_DGRAD, SIDE_A, 0);
    q.seed = 0x123456789ABCDEFull;
    q.state = state;
    return q;
}

static inline void setup_make(Setup *s, Tensor x, OperandForm form, Operand row, Operand token) {
    memset(s, 0, sizeof(*s));
    s->x = x;
    s->state.step = 5;
    s->state.token_base = 1024;
    s->row = setup_operand(form, row, x.rows, x.cols, 0);
    s->token = setup_operand(form, token, x.cols, x.rows, 1);
    s->row.amax = &s->amax[0];
    s->token.amax = &s->amax[1];
    s->row_how = setup_quantizer(row, 0, &s->state);
    s->token_how = setup_quantizer(token, 1, &s->state);
}

static inline void setup_free(Setup *s) {
    free(s->row.data), free(s->row.scales), free(s->row.mask);
    free(s->token.data), free(s->token.scales), free(s->token.mask);
}

static inline size_t setup_bytes(const QOperand *o) {
    return o->form == FORM_PACKED ? quantize_codes_bytes(o->format, o->rows, o->k)
                                  : dtype_bytes(o->dtype, o->rows * o->k);
}

/* Value i of FORM_VALUES, as it lies. */
static inline float setup_value(const QOperand *o, int64_t i) {
    return o->dtype == DT_F32 ? ((const float *)o->data)[i]
                              : bf16_to_f32(((const bf16_t *)o->data)[i]);
}

static inline void setup_amax(Setup *s) {
    amax_pair_cpu(NULL, &s->row, &s->row_how, &s->token, &s->token_how, s->x);
}
static inline void setup_round(Setup *s) {
    quantize_pair_cpu(NULL, &s->row, &s->row_how, &s->token, &s->token_how, s->x);
}
static inline void setup_run(Setup *s) {
    setup_amax(s);
    setup_round(s);
}

#endif
