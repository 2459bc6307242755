/*
quantize -- operands and their memory, the contract's checks, and who makes an operand on the CPU:
quantize_fast.c the plain cells of NVFP4, quantize_fp8.c those without blocks, quantize_cell.c, the
reference, all others.
*/
#include "quantize.h"

#include <math.h>

#include "../common.h"
#include "cell.h"
#include "nvfp4.h"
#include "quantize_cpu.h"

// --- operands ---

QOperand operand_from_tensor(Tensor x, FormatId format, int k_contiguous) {
    QOperand o = {.form = FORM_VALUES,
                  .format = format,
                  .dtype = x.dtype,
                  .data = x.data,
                  .dequant_div = 1.0f,
                  .rows = k_contiguous ? x.rows : x.cols,
                  .k = k_contiguous ? x.cols : x.rows,
                  .k_contiguous = k_contiguous};
    return o;
}

size_t quantize_codes_bytes(FormatId format, int64_t rows, int64_t k) {
    return dtype_bytes(formats[format].cell.elem, rows * k);
}

size_t quantize_packed_bytes(int64_t rows, int64_t k) {
    return quantize_codes_bytes(FORMAT_NVFP4, rows, k);
}

size_t quantize_scales_bytes(int64_t rows, int64_t k) {
    return (size_t)(round_up(rows, 128) * round_up(ceil_div(k, NVFP4_BLOCK), 4));
}

int64_t quantize_scale_offset(int64_t r, int64_t c, int64_t padded_cols) {
    int64_t tile = r / 128 * (padded_cols / 4) + c / 4;   // of 128 rows x 4 scales, 512 bytes
    return tile * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4;
}

int quantize_num_slices(const QOperand *q) { return q->slices > 1 ? q->slices : 1; }

QOperand quantize_slice(const QOperand *q, int i) {
    int count = quantize_num_slices(q);
    CHECK(q->form == FORM_PACKED && i < count && q->k % count == 0,
          "slice %d of %d, of k %lld in form %d", i, count, (long long)q->k, (int)q->form);
    QOperand slice = *q;
    slice.k = q->k / count;
    slice.slices = 1;
    slice.data = (uint8_t *)q->data + (size_t)i * quantize_codes_bytes(q->format, q->rows, slice.k);
    if (q->scales) slice.scales = q->scales + (size_t)i * quantize_scales_bytes(q->rows, slice.k);
    return slice;
}

QOperand quantize_rows(const QOperand *q, int64_t first, int64_t count) {
    CHECK(q->k_contiguous && first + count <= q->rows, "rows %lld to %lld of an operand of %lld",
          (long long)first, (long long)(first + count), (long long)q->rows);
    QOperand part = *q;
    part.rows = count;
    if (q->mask) part.mask = q->mask + first * q->k / 8;
    if (q->form == FORM_VALUES) {
        part.data = (char *)q->data + dtype_bytes(q->dtype, first * q->k);
        return part;
    }
    part.data = (uint8_t *)q->data + quantize_codes_bytes(q->format, first, q->k);
    if (!q->scales) return part;
    CHECK(first % 128 == 0, "packed rows from %lld on", (long long)first);
    part.scales = q->scales + quantize_scales_bytes(first, q->k);
    return part;
}

float quantize_dequant_div(const Operand *how) {
    if (how->rounding == ROUND_EDEN) return 256.0f * EDEN_ELEM_MAX;
    if (how->amax == AMAX_NONE) return how->headroom && how->scale == DT_E8M0 ? 0.75f : 1.0f;
    return operand_elem_max(how) * operand_top_scale(how);
}

int quantize_has_hardware_rounding(const Device *d) {
    return d->compute_capability == 100 || d->compute_capability == 103;
}

int quantize_can_round_in_hardware(const Operand *how, int token_operand) {
    return operand_is_plain_nvfp4(how) && how->rounding == ROUND_STOCHASTIC &&
           how->dither_bits == 8 && how->tile == TILE_ROW && (!how->hadamard || token_operand);
}

float operand_alpha_mult(const QOperand *a, const QOperand *b) {
    return 1.0f / (a->dequant_div * b->dequant_div);
}

float quantize_decode_packed(const uint8_t *codes, const uint8_t *scales, int64_t rows, int64_t k,
                             int64_t at_row, int64_t at_k) {
    CHECK(at_row < rows && at_k < k, "element (%lld,%lld) of an operand of %lld x %lld",
          (long long)at_row, (long long)at_k, (long long)rows, (long long)k);
    uint8_t pair = codes[(at_row * k + at_k) / 2];
    uint8_t code = at_k % 2 ? pair >> 4 : pair & 15;
    int64_t padded_cols = round_up(ceil_div(k, NVFP4_BLOCK), 4);
    uint8_t scale = scales[quantize_scale_offset(at_row, at_k / NVFP4_BLOCK, padded_cols)];
    return e2m1_decode(code) * e4m3_decode(scale);
}

float quantize_decode(const QOperand *q, int64_t row, int64_t k) {
    const uint8_t *codes = (const uint8_t *)q->data;
    CHECK(q->form == FORM_PACKED && row < q->rows && k < q->k, "element (%lld,%lld) of %lld x %lld",
          (long long)row, (long long)k, (long long)q->rows, (long long)q->k);
    switch (formats[q->format].cell.elem) {
    case DT_E4M3: return e4m3_decode(codes[row * q->k + k]);
    case DT_E5M2: return e5m2_decode(codes[row * q->k + k]);
    default: return quantize_decode_packed(codes, q->scales, q->rows, q->k, row, k);
    }
}

// --- the contract's checks ---

static int is_power_of_two_in(int value, int least, int most) {
    return value >= least && value <= most && (value & (value - 1)) == 0;
}

static void check_blockless(const Operand *how, const char *what) {
    CHECK(how->elem == DT_E4M3 || how->elem == DT_E5M2,
          "%s: the quantiser does not know %s without blocks", what, dtype_info[how->elem].name);
    CHECK(!how->hadamard && how->rounding == ROUND_NEAREST,
          "%s: %s is rounded to nearest, as it is", what, dtype_info[how->elem].name);
}

static void check_scales(const Operand *how, const char *what) {
    int is_power = how->scale_rule != RULE_NEAREST && how->scale_rule != RULE_ENCODE;
    CHECK(is_power_of_two_in(how->block, 8, 128), "%s: blocks of %d", what, how->block);
    CHECK(is_power == (how->scale == DT_E8M0), "%s: scale %s with rule %d", what,
          dtype_info[how->scale].name, (int)how->scale_rule);
    CHECK(how->scale != DT_BF16 && how->scale != DT_E2M1 && how->scale != DT_E1M2,
          "%s: the quantiser does not know scales of %s", what, dtype_info[how->scale].name);
    CHECK(how->outer == 0 || how->outer == 128, "%s: outer blocks of %d", what, how->outer);
    CHECK(how->arithmetic == 1 || how->arithmetic == 2, "%s: arithmetic %d", what, how->arithmetic);
    int has_tensor_scale = how->amax != AMAX_NONE;
    CHECK(has_tensor_scale || (how->scale_rule != RULE_ENCODE && how->rounding != ROUND_EDEN &&
                               how->select == SELECT_NONE),
          "%s: encode, eden and selections need a tensor scale", what);
    int is_row_only = how->outer || how->scale_rule == RULE_QUEST || how->rounding == ROUND_EDEN;
    CHECK(how->tile == TILE_ROW || !is_row_only, "%s: such cells have rows, not square tiles",
          what);
}

static void check_cell(const Quantizer *q, const char *what) {
    const Operand *how = &q->how;
    if (!operand_is_quantized(how)) {
        CHECK(how->elem == DT_BF16 || how->elem == DT_F32,
              "%s: the quantiser does not know %s without scales", what,
              dtype_info[how->elem].name);
        return;
    }
    if (!operand_has_blocks(how)) {
        check_blockless(how, what);
        return;
    }
    CHECK(how->elem == DT_E2M1 || how->elem == DT_E1M2 || how->elem == DT_E4M3 ||
              how->elem == DT_E5M2,
          "%s: the quantiser does not know blocks of %s", what, dtype_info[how->elem].name);
    check_scales(how, what);
    CHECK(how->hadamard == 0 || is_power_of_two_in(how->hadamard, 4, 128), "%s: Hadamard of %d",
          what, how->hadamard);
    int bits = how->dither_bits;
    int draws = how->rounding == ROUND_STOCHASTIC || how->rounding == ROUND_EDEN;
    CHECK(how->rounding != ROUND_STOCHASTIC || bits == 8 || bits == 16 || bits == 24,
          "%s: %d dither bits", what, bits);
    CHECK(q->state || !(draws || (how->hadamard && how->signs == SIGNS_STEP)),
          "%s: random numbers without a StepState", what);
}

static void check_form(const QOperand *o, const Quantizer *q, const char *what) {
    const Operand *how = &q->how;
    if (o->form == FORM_PACKED) {
        int has_scales = o->scales || !operand_has_blocks(how);
        CHECK(operand_is_nvfp4(how) || operand_is_fp8(how), "%s: such cells have no codes", what);
        CHECK(quantize_num_slices(o) == 1, "%s: made slice by slice", what);
        CHECK(has_scales && o->k_contiguous, "%s: packed, without scales or not k-contiguous",
              what);
        return;
    }
    CHECK(o->dtype == DT_F32 || (o->dtype == DT_BF16 && operand_values_dtype(how) == DT_BF16),
          "%s: values in %s", what, dtype_info[o->dtype].name);
    CHECK(!o->k_contiguous == !!q->token_operand, "%s: values stay in the layout of x", what);
}

static void check_operand(const QOperand *o, const Quantizer *q, int token, Tensor x) {
    const char *what = token ? "token operand" : "row operand";
    CHECK(q && !q->token_operand == !token, "%s: the Quantizer is the other direction's", what);
    const Operand *how = &q->how;
    check_cell(q, what);
    CHECK(o->format == how->format, "%s: format %d, cell's %d", what, o->format, how->format);
    int64_t rows = token ? x.cols : x.rows, k = token ? x.rows : x.cols;
    CHECK(o->rows == rows && o->k == k, "%s is %lld x %lld, x makes %lld x %lld", what,
          (long long)o->rows, (long long)o->k, (long long)rows, (long long)k);
    int is_quantized = operand_is_quantized(how);
    CHECK(!is_quantized || !how->hadamard || k % how->hadamard == 0,
          "%s: Hadamard of %d along %lld", what, how->hadamard, (long long)k);
    CHECK(o->data && (o->amax || how->amax == AMAX_NONE), "%s has no memory", what);
    CHECK(o->dequant_div == quantize_dequant_div(how), "%s: dequant_div %g does not fit top %d",
          what, o->dequant_div, how->top_scale);
    CHECK(!o->mask || (is_quantized && operand_has_blocks(how)), "%s: a mask without blocks", what);
    CHECK(!q->source_amax || q->source_div != 0.0f, "%s: a source's maximum without its div", what);
    check_form(o, q, what);
}

void quantize_check(const QOperand *row, const Quantizer *row_how, const QOperand *token,
                    const Quantizer *token_how, Tensor x) {
    CHECK(row || token, "nothing to quantise into");
    CHECK(x.dtype == DT_BF16 || x.dtype == DT_F32, "x is %s", dtype_info[x.dtype].name);
    CHECK(x.rows % NVFP4_BLOCK == 0 && x.cols % NVFP4_BLOCK == 0,
          "x is %lld x %lld: no multiples of %d", (long long)x.rows, (long long)x.cols,
          NVFP4_BLOCK);
    if (row) check_operand(row, row_how, 0, x);
    if (token) check_operand(token, token_how, 1, x);
}

// --- the op ---

/* What the vectorised path knows of transforms and sources. */
static int amax_is_fast(const Quantizer *q) {
    const Operand *how = &q->how;
    int transforms = !how->hadamard || (how->hadamard == 16 && how->signs != SIGNS_STEP);
    return transforms && q->source_div == 0.0f;
}

/* It leaves to the reference packed codes, and the NaN values of a tensor that is lost. */
static int rounds_fast(const QOperand *o, const Quantizer *q) {
    return operand_is_plain_nvfp4(&q->how) && amax_is_fast(q) && o->form == FORM_VALUES &&
           o->dtype == DT_BF16 && !o->mask && isfinite(*o->amax);
}

void amax_pair_cpu(Device *d, QOperand *row, const Quantizer *row_how, QOperand *token,
                   const Quantizer *token_how, Tensor x) {
    (void)d;
    quantize_check(row, row_how, token, token_how, x);
    QOperand *operands[2] = {row, token};
    const Quantizer *const hows[2] = {row_how, token_how};
    for (int i = 0; i < 2; i++) {
        QOperand *o = operands[i];
        if (!o) continue;
        int has_scale = hows[i]->how.amax != AMAX_NONE;
        if (has_scale && amax_is_fast(hows[i])) continue;
        if (has_scale) amax_reference(o, hows[i], x);
        operands[i] = NULL;
    }
    if (operands[0] || operands[1]) amax_pair_fast(operands[0], row_how, operands[1], token_how, x);
}

void quantize_pair_cpu(Device *d, QOperand *row, const Quantizer *row_how, QOperand *token,
                       const Quantizer *token_how, Tensor x) {
    (void)d;
    quantize_check(row, row_how, token, token_how, x);
    QOperand *operands[2] = {row, token};
    const Quantizer *const hows[2] = {row_how, token_how};
    for (int i = 0; i < 2; i++) {
        QOperand *o = operands[i];
        if (!o || rounds_fast(o, hows[i])) continue;
        if (operand_is_fp8(&hows[i]->how)) quantize_fp8_cpu(o, hows[i], x);
        else quantize_reference(o, hows[i], x);
        operands[i] = NULL;
    }
    if (operands[0] || operands[1])
        quantize_pair_fast(operands[0], row_how, operands[1], token_how, x);
}
