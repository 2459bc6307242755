/*
quantize -- CPU reference: one block of 16 after another, in the order of the formulas of
quantize.h, for every option and both forms. What training runs for FORM_VALUES is quantize_fast.c,
equal to this bit for bit; formats without blocks are quantize_fp8.c's.
*/
#include "quantize.h"

#include <math.h>
#include <string.h>

#include "../common.h"
#include "../rng.h"
#include "cell.h"
#include "hadamard.h"
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

static void check_blockless(const Quantizer *q, const char *what) {
    const Operand *how = &q->how;
    const Format *format = &formats[how->format];
    CHECK(format->cell.amax != AMAX_NONE &&
              (format->cell.elem == DT_E4M3 || format->cell.elem == DT_E5M2),
          "%s: the quantiser does not know the format %s", what, format->name);
    CHECK(!how->hadamard && how->rounding == ROUND_NEAREST,
          "%s: %s is rounded to nearest, as it is", what, format->name);
}

static void check_cell(const Quantizer *q, const char *what) {
    const Operand *how = &q->how;
    const Format *format = &formats[how->format];
    if (!format_has_blocks(how->format)) {
        check_blockless(q, what);
        return;
    }
    CHECK(operand_is_plain_nvfp4(how), "%s: the quantiser does not know the format %s", what,
          format->name);
    CHECK(how->hadamard == 0 || how->hadamard == 16, "%s: Hadamard of %d", what, how->hadamard);
    CHECK(how->top_scale == 448 || how->top_scale == 256, "%s: top %d", what, how->top_scale);
    CHECK(how->arithmetic == 1 || how->arithmetic == 2, "%s: arithmetic %d", what, how->arithmetic);
    if (how->rounding != ROUND_STOCHASTIC) return;
    int bits = how->dither_bits;
    CHECK(bits == 8 || bits == 16 || bits == 24, "%s: %d dither bits", what, bits);
    CHECK(q->state, "%s: stochastic rounding without a StepState", what);
}

static void check_operand(const QOperand *o, const Quantizer *q, int token, Tensor x) {
    const char *what = token ? "token operand" : "row operand";
    CHECK(q && !q->token_operand == !token, "%s: the Quantizer is the other direction's", what);
    check_cell(q, what);
    CHECK(o->format == q->how.format, "%s: format %d, cell's %d", what, o->format, q->how.format);
    int64_t rows = token ? x.cols : x.rows, k = token ? x.rows : x.cols;
    CHECK(o->rows == rows && o->k == k, "%s is %lld x %lld, x makes %lld x %lld", what,
          (long long)o->rows, (long long)o->k, (long long)rows, (long long)k);
    CHECK(o->data && o->amax, "%s has no memory", what);
    CHECK(o->dequant_div == quantize_dequant_div(&q->how), "%s: dequant_div %g does not fit top %d",
          what, o->dequant_div, q->how.top_scale);
    if (o->form == FORM_PACKED) {
        int has_scales = o->scales || !format_has_blocks(o->format);
        CHECK(quantize_num_slices(o) == 1, "%s: made slice by slice", what);
        CHECK(has_scales && o->k_contiguous, "%s: packed, without scales or not k-contiguous",
              what);
    } else {
        CHECK(o->dtype == DT_BF16, "%s: values in %s", what, dtype_info[o->dtype].name);
        CHECK(o->k_contiguous == !token, "%s: values stay in the layout of x", what);
    }
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

// --- the reference ---

/* Where element e of block `block` in row `row` of the operand lies in x, and in VALUES. */
static int64_t element_at(const Quantizer *q, Tensor x, int64_t row, int64_t block, int e) {
    int64_t k = block * NVFP4_BLOCK + e;
    return q->token_operand ? k * x.cols + row : row * x.cols + k;
}

/* The block as it will be rounded: transformed where the cell says so. */
static void load_block(float v[NVFP4_BLOCK], const Quantizer *q, Tensor x, int64_t row,
                       int64_t block) {
    for (int e = 0; e < NVFP4_BLOCK; e++) {
        int64_t at = element_at(q, x, row, block, e);
        v[e] = x.dtype == DT_F32 ? ((const float *)x.data)[at]
                                 : bf16_to_f32(((const bf16_t *)x.data)[at]);
    }
    if (!q->how.hadamard) return;
    hadamard16(v, hadamard_sign_mask(q->how.signs));
    for (int e = 0; e < NVFP4_BLOCK; e++) v[e] = bf16_to_f32(bf16_from_f32(v[e]));
}

/* Magnitudes compare as the integers of their bits, and NaN is the largest: it is never lost. */
static uint32_t block_amax_bits(const float v[NVFP4_BLOCK]) {
    uint32_t amax = 0;
    for (int e = 0; e < NVFP4_BLOCK; e++) {
        uint32_t magnitude = bits_from_f32(v[e]) & 0x7FFFFFFFu;
        if (magnitude > amax) amax = magnitude;
    }
    return amax;
}

void amax_reference(QOperand *o, const Quantizer *how, Tensor x) {
    uint32_t amax = 0;
#pragma omp parallel for schedule(static) reduction(max : amax)
    for (int64_t row = 0; row < o->rows; row++) {
        for (int64_t block = 0; block < o->k / NVFP4_BLOCK; block++) {
            float v[NVFP4_BLOCK];
            load_block(v, how, x, row, block);
            uint32_t block_amax = block_amax_bits(v);
            if (block_amax > amax) amax = block_amax;
        }
    }
    if (amax > 0x7F800000u) amax = 0x7FFFFFFFu;   // one NaN for all devices
    *o->amax = f32_from_bits(amax);
}

/* Random bits of a block, as many words as its dither needs, in the order of the elements. */
static void draw_words(uint32_t words[16], const Quantizer *q, Tensor x, int64_t row,
                       int64_t block) {
    uint64_t group = quantize_group(q, x.cols, row, block);
    for (int sub = 0; sub < quantize_num_subdraws(q->how.dither_bits); sub++) {
        Philox4 counter = rng_group_counter(group, q->tag | (uint32_t)sub, q->state->step);
        Philox4 draw = philox4x32_10(counter, (uint32_t)q->seed, (uint32_t)(q->seed >> 32));
        memcpy(words + 4 * sub, draw.w, sizeof(draw.w));
    }
}

static uint32_t element_draw(const uint32_t words[16], int bits, int e) {
    if (bits == 8) return words[e / 4] >> 8 * (e % 4) & 0xFF;
    if (bits == 16) return words[e / 2] >> 16 * (e % 2) & 0xFFFF;
    return words[e] >> 8;
}

static void encode_block(uint8_t codes[NVFP4_BLOCK], const float v[NVFP4_BLOCK], float mult,
                         const Quantizer *q, Tensor x, int64_t row, int64_t block) {
    if (q->how.rounding == ROUND_NEAREST) {
        for (int e = 0; e < NVFP4_BLOCK; e++) codes[e] = e2m1_encode(v[e] * mult);
        return;
    }
    uint32_t words[16];
    int bits = q->how.dither_bits;
    draw_words(words, q, x, row, block);
    for (int e = 0; e < NVFP4_BLOCK; e++)
        codes[e] = e2m1_encode_stochastic(v[e] * mult, element_draw(words, bits, e), bits);
}

static void store_block(QOperand *o, const uint8_t codes[NVFP4_BLOCK], uint8_t scale,
                        const Quantizer *q, Tensor x, int64_t row, int64_t block) {
    if (o->form == FORM_VALUES) {
        bf16_t *values = (bf16_t *)o->data;
        for (int e = 0; e < NVFP4_BLOCK; e++)
            values[element_at(q, x, row, block, e)] =
                bf16_from_f32(e2m1_decode(codes[e]) * e4m3_decode(scale));
        return;
    }
    uint8_t *bytes = (uint8_t *)o->data + (row * o->k + block * NVFP4_BLOCK) / 2;
    for (int i = 0; i < NVFP4_BLOCK / 2; i++) bytes[i] = codes[2 * i] | codes[2 * i + 1] << 4;
    int64_t padded_cols = round_up(o->k / NVFP4_BLOCK, 4);
    o->scales[quantize_scale_offset(row, block, padded_cols)] = scale;
}

/* The 16 blocks of one 16 x 16 tile: rows [row, row + 16) of the operand, block `block` of each.
   */
static void quantize_tile(QOperand *o, const Quantizer *q, Tensor x, Nvfp4Tensor t, int64_t row,
                          int64_t block) {
    float v[16][NVFP4_BLOCK];
    uint32_t amax[16], tile_amax = 0;
    for (int i = 0; i < 16; i++) {
        load_block(v[i], q, x, row + i, block);
        amax[i] = block_amax_bits(v[i]);
        if (amax[i] > tile_amax) tile_amax = amax[i];
    }
    for (int i = 0; i < 16; i++) {
        float block_amax = f32_from_bits(q->how.tile == TILE_SQUARE ? tile_amax : amax[i]);
        uint8_t scale = e4m3_encode(nvfp4_raw_scale(t, block_amax));
        float mult = nvfp4_element_mult(t, e4m3_decode(scale));
        uint8_t codes[NVFP4_BLOCK];
        encode_block(codes, v[i], mult, q, x, row + i, block);
        store_block(o, codes, scale, q, x, row + i, block);
    }
}

void quantize_reference(QOperand *o, const Quantizer *how, Tensor x) {
    Nvfp4Tensor t = nvfp4_tensor(*o->amax, &how->how);
    if (o->form == FORM_PACKED) memset(o->scales, 0, quantize_scales_bytes(o->rows, o->k));
#pragma omp parallel for schedule(static)
    for (int64_t tile_row = 0; tile_row < o->rows / 16; tile_row++)
        for (int64_t block = 0; block < o->k / NVFP4_BLOCK; block++)
            quantize_tile(o, how, x, t, tile_row * 16, block);
}

// --- the op ---

void amax_pair_cpu(Device *d, QOperand *row, const Quantizer *row_how, QOperand *token,
                   const Quantizer *token_how, Tensor x) {
    (void)d;
    quantize_check(row, row_how, token, token_how, x);
    amax_pair_fast(row, row_how, token, token_how, x);
}

/* What the vectorised path leaves to the reference: packed codes, and the NaN values of a tensor
   that is lost. */
static int wants_reference(const QOperand *o) {
    return o->form == FORM_PACKED || !isfinite(*o->amax);
}

void quantize_pair_cpu(Device *d, QOperand *row, const Quantizer *row_how, QOperand *token,
                       const Quantizer *token_how, Tensor x) {
    (void)d;
    quantize_check(row, row_how, token, token_how, x);
    QOperand *operands[2] = {row, token};
    const Quantizer *const hows[2] = {row_how, token_how};
    for (int i = 0; i < 2; i++) {
        QOperand *o = operands[i];
        if (!o) continue;
        if (!format_has_blocks(o->format)) quantize_fp8_cpu(o, hows[i], x);
        else if (wants_reference(o)) quantize_reference(o, hows[i], x);
        else continue;
        operands[i] = NULL;
    }
    if (operands[0] || operands[1])
        quantize_pair_fast(operands[0], row_how, operands[1], token_how, x);
}
