/*
test_quantize_fp8 -- operands with one scale for a tensor on the CPU: known scales, codes against a
search of all of a format's numbers, where codes and values lie, what is not finite, tensors of two
formats, and products of codes against sums in double.
*/
#include <float.h>

#include "../llmc/ops.h"
#include "../llmc/ops/fp8.h"
#include "../llmc/ops/quantize_cpu.h"
#include "quantize_setup.h"
#include "test.h"

static const FormatId both_formats[2] = {FORMAT_E4M3, FORMAT_E5M2};

static uint8_t encode(FormatId f, float y) {
    return f == FORMAT_E4M3 ? e4m3_encode(y) : e5m2_encode(y);
}
static float decode(FormatId f, uint8_t code) {
    return f == FORMAT_E4M3 ? e4m3_decode(code) : e5m2_decode(code);
}

// --- scales ---

static float scale_of(FormatId f, float amax) {
    return fp8_scale(fp8_format(formats[f].cell.elem), amax);
}

CASE(known_scales) {
    EXPECT_EQ_I64(bits_from_f32(scale_of(FORMAT_E4M3, 3.0f)), 0x43155555);
    EXPECT_EQ_I64(bits_from_f32(scale_of(FORMAT_E4M3, 5.5f)), 0x42A2E8BA);
    EXPECT_EQ_I64(bits_from_f32(scale_of(FORMAT_E5M2, 0.1f)), 0x490C0000);
    for (int i = 0; i < 2; i++) {
        FormatId f = both_formats[i];
        EXPECT(scale_of(f, 0.0f) == 1 && scale_of(f, INFINITY) == 1 && scale_of(f, NAN) == 1, "%s",
               formats[f].name);
        EXPECT(scale_of(f, 1e-37f) == FLT_MAX && scale_of(f, 0x1p-149f) == FLT_MAX, "%s",
               formats[f].name);
        for (int e = -126; e < 112; e++)
            EXPECT(scale_of(f, ldexpf(operand_elem_max(&formats[f].cell), e)) == ldexpf(1, -e),
                   "%s, 2^%d", formats[f].name, e);
    }
}

CASE(decode_scales_and_alpha) {
    Operand e4m3 = fp8_cell(FORMAT_E4M3), e5m2 = fp8_cell(FORMAT_E5M2), nvfp4 = nvfp4_cell();
    EXPECT(quantize_dequant_div(&e4m3) == 448 && quantize_dequant_div(&e5m2) == 57344,
           "of formats without blocks top_scale means nothing");
    EXPECT(quantize_dequant_div(&nvfp4) == 2688, "6 * 448");
    float one = 1;
    QOperand a = {.amax = &one, .dequant_div = quantize_dequant_div(&e4m3)};
    QOperand b = {.amax = &one, .dequant_div = quantize_dequant_div(&e5m2)};
    QOperand c = {.amax = &one, .dequant_div = quantize_dequant_div(&nvfp4)};
    EXPECT(operand_alpha_mult(&a, &b) == 1.0f / (448.0f * 57344.0f), "e4m3 by e5m2");
    EXPECT(operand_alpha_mult(&b, &c) == 1.0f / (57344.0f * 2688.0f), "e5m2 by nvfp4");
}

// --- codes ---

/* By the format's definition: of all finite numbers the nearest, of two the one with an even code.
   */
static uint8_t search(FormatId f, float y) {
    if (isnan(y)) return 0x7F;
    int top = f == FORMAT_E4M3 ? 0x7E : 0x7B, best = 0;
    for (int code = 1; code <= top; code++) {
        double nearer = fabs((double)fabsf(y) - decode(f, (uint8_t)best)) -
                        fabs((double)fabsf(y) - decode(f, (uint8_t)code));
        if (nearer > 0 || (nearer == 0 && code % 2 == 0)) best = code;
    }
    return (uint8_t)(signbit(y) ? best | 0x80 : best);
}

static void expect_rounded(FormatId f, float y) {
    Fp8Format format = fp8_format(formats[f].cell.elem);
    EXPECT_EQ_I64(fp8_code(format, y), encode(f, y), "%s of %a", formats[f].name, y);
    EXPECT_EQ_I64(fp8_value(format, y), bf16_from_f32(decode(f, encode(f, y))), "%s of %a",
                  formats[f].name, y);
}

/* The branch-free rounding against the oracle: all bf16 numbers, and floats around all ties. */
CASE(rounding_is_that_of_the_oracle) {
    for (int i = 0; i < 2; i++) {
        for (uint32_t b = 0; b < 65536; b++)
            expect_rounded(both_formats[i], bf16_to_f32((bf16_t)b));
        for (int code = 0; code < 0x7B; code++) {
            float low = decode(both_formats[i], (uint8_t)code);
            float tie = (low + decode(both_formats[i], (uint8_t)(code + 1))) / 2;
            const float near[3] = {nextafterf(tie, 0), tie, nextafterf(tie, 1e9f)};
            for (int j = 0; j < 3; j++) {
                expect_rounded(both_formats[i], near[j]);
                expect_rounded(both_formats[i], -near[j]);
                EXPECT_EQ_I64(encode(both_formats[i], near[j]), search(both_formats[i], near[j]),
                              "%s of %a", formats[both_formats[i]].name, near[j]);
            }
        }
    }
}

/* Both operands of x, whose every element is checked against the search. */
static void expect_operands(Tensor x, OperandForm form, FormatId row, FormatId token,
                            const char *about) {
    Setup s;
    setup_make(&s, x, form, fp8_cell(row), fp8_cell(token));
    setup_run(&s);
    float row_scale = scale_of(row, s.amax[0]), token_scale = scale_of(token, s.amax[1]);
    for (int64_t r = 0; r < x.rows; r++) {
        for (int64_t c = 0; c < x.cols; c++) {
            int64_t at = r * x.cols + c, across = c * x.rows + r;
            float v =
                x.dtype == DT_F32 ? ((float *)x.data)[at] : bf16_to_f32(((bf16_t *)x.data)[at]);
            uint8_t row_code = search(row, v * row_scale),
                    token_code = search(token, v * token_scale);
            if (form == FORM_PACKED) {
                EXPECT_EQ_I64(((uint8_t *)s.row.data)[at], row_code, "%s: row (%d,%d)", about,
                              (int)r, (int)c);
                EXPECT_EQ_I64(((uint8_t *)s.token.data)[across], token_code, "%s: token (%d,%d)",
                              about, (int)c, (int)r);
                EXPECT(isnan(v) || quantize_decode(&s.token, c, r) == decode(token, token_code),
                       "%s: decoded", about);
            } else {
                EXPECT_EQ_I64(((bf16_t *)s.row.data)[at], bf16_from_f32(decode(row, row_code)),
                              "%s: row (%d,%d)", about, (int)r, (int)c);
                EXPECT_EQ_I64(((bf16_t *)s.token.data)[at],
                              bf16_from_f32(decode(token, token_code)), "%s: token (%d,%d)", about,
                              (int)r, (int)c);
            }
        }
    }
    setup_free(&s);
}

// Whole and partial tiles of 64 x 64.
static const int shapes[][2] = {{16, 16}, {48, 80}, {64, 64}, {144, 32}, {80, 192}};

CASE(codes_and_values_of_every_input) {
    for (int i = 0; i < NUM_FILLS * 8; i++) {
        Fill fill = (Fill)(i % NUM_FILLS);
        int options = i / NUM_FILLS;
        const int *shape = shapes[i % ARRAY_LEN(shapes)];
        Tensor x = setup_tensor(i % 3 ? DT_BF16 : DT_F32, shape[0], shape[1], fill, (uint32_t)i);
        char about[64];
        snprintf(about, sizeof(about), "options %d, fill %d, %d x %d", options, fill, shape[0],
                 shape[1]);
        expect_operands(x, options & 1 ? FORM_PACKED : FORM_VALUES, both_formats[options >> 1 & 1],
                        both_formats[options >> 2], about);
        free(x.data);
    }
}

/* The scale that an amax asks for, over the numbers it meets, is good to half a step. */
CASE(decoded_values_are_near_what_they_were) {
    static const double half_steps[2] = {0x1p-4, 0x1p-3};   // of numbers that are not subnormal
    for (int i = 0; i < 2; i++) {
        Tensor x = setup_tensor(DT_BF16, 64, 64, FILL_NORMAL, 3);
        Setup s;
        setup_make(&s, x, FORM_PACKED, fp8_cell(both_formats[i]), fp8_cell(both_formats[i]));
        setup_run(&s);
        double mult = (double)s.amax[0] / s.row.dequant_div, least = i ? 0x1p-14 : 0x1p-6;
        for (int64_t at = 0; at < 64 * 64; at++) {
            double v = bf16_to_f32(((bf16_t *)x.data)[at]);
            double got = quantize_decode(&s.row, at / 64, at % 64) * mult;
            EXPECT_NEAR(got, v, 1.001 * half_steps[i] * fmax(fabs(v), least * mult), "%g", v);
        }
        setup_free(&s), free(x.data);
    }
}

CASE(powers_of_two_leave_the_codes) {
    for (int e = -60; e <= 60; e += 30) {
        Tensor x = setup_tensor(DT_F32, 48, 80, FILL_NORMAL, 4),
               y = setup_tensor(DT_F32, 48, 80, FILL_NORMAL, 4);
        for (int64_t i = 0; i < tensor_count(y); i++)
            ((float *)y.data)[i] = ldexpf(((float *)x.data)[i], e);
        Setup a, b;
        setup_make(&a, x, FORM_PACKED, fp8_cell(FORMAT_E5M2), fp8_cell(FORMAT_E4M3));
        setup_make(&b, y, FORM_PACKED, fp8_cell(FORMAT_E5M2), fp8_cell(FORMAT_E4M3));
        setup_run(&a), setup_run(&b);
        EXPECT_BITS(b.row.data, a.row.data, setup_bytes(&a.row), "2^%d", e);
        EXPECT_BITS(b.token.data, a.token.data, setup_bytes(&a.token), "2^%d", e);
        setup_free(&a), setup_free(&b), free(x.data), free(y.data);
    }
}

// --- what is not finite, and zero ---

/* Products of such a tensor: NaN, or infinite, everywhere that the guard can see it. */
static float product_with(float planted, OperandForm form) {
    Tensor x = setup_tensor(DT_BF16, 16, 32, FILL_NORMAL, 5);
    ((bf16_t *)x.data)[37] = bf16_from_f32(planted);
    Setup s;
    setup_make(&s, x, form, fp8_cell(FORMAT_E4M3), fp8_cell(FORMAT_E4M3));
    setup_run(&s);
    EXPECT(form == FORM_VALUES || !isnan(planted) || ((uint8_t *)s.row.data)[37] == 0x7F,
           "the code of NaN");
    float d[16 * 16];
    Device *cpu = device_cpu_open(1);
    size_t bytes = 1 << 20;
    void *scratch = device_alloc(cpu, bytes, "scratch");
    device_set_scratch(cpu, scratch, bytes);
    GemmEpilogue none = {{0}, 0};
    gemm_cpu(cpu, tensor_view(d, DT_F32, 16, 16), &s.row, &s.row, none);
    cpu->free(cpu, scratch);
    cpu->close(cpu);
    setup_free(&s), free(x.data);
    return d[0];   // of row 0 with itself; what was planted is in row 1
}

CASE(what_is_not_finite_reaches_every_product) {
    for (int form = FORM_VALUES; form <= FORM_PACKED; form++) {
        EXPECT(isfinite(product_with(1.0f, (OperandForm)form)), "a plain tensor");
        EXPECT(isnan(product_with(NAN, (OperandForm)form)), "NaN");
        EXPECT(!isfinite(product_with(INFINITY, (OperandForm)form)), "infinity");
        EXPECT(!isfinite(product_with(-INFINITY, (OperandForm)form)), "-infinity");
    }
}

CASE(zeros_stay_zeros) {
    Tensor x = setup_tensor(DT_BF16, 16, 16, FILL_ZERO, 1);
    Setup s;
    setup_make(&s, x, FORM_PACKED, fp8_cell(FORMAT_E4M3), fp8_cell(FORMAT_E5M2));
    setup_run(&s);
    EXPECT(s.amax[0] == 0 && s.amax[1] == 0, "amax %g, %g", s.amax[0], s.amax[1]);
    for (int i = 0; i < 256; i++) {
        EXPECT_EQ_I64(((uint8_t *)s.row.data)[i], ((bf16_t *)x.data)[i] >> 8, "%d", i);
        EXPECT((((uint8_t *)s.token.data)[i] & 0x7F) == 0, "%d", i);
    }
    setup_free(&s), free(x.data);
}

// --- beside NVFP4 ---

/* Each operand of a pair is what it is alone. */
CASE(one_operand_with_blocks_and_one_without) {
    Tensor x = setup_tensor(DT_BF16, 48, 80, FILL_NORMAL, 8);
    for (int i = 0; i < 4; i++) {
        OperandForm form = i & 1 ? FORM_PACKED : FORM_VALUES;
        Operand row = i & 2 ? nvfp4_cell() : fp8_cell(FORMAT_E4M3);
        Operand token = i & 2 ? fp8_cell(FORMAT_E4M3) : nvfp4_cell();
        Setup mixed, rows, tokens;
        setup_make(&mixed, x, form, row, token);
        setup_make(&rows, x, form, row, row);
        setup_make(&tokens, x, form, token, token);
        setup_run(&mixed), setup_run(&rows), setup_run(&tokens);
        EXPECT_BITS(mixed.row.data, rows.row.data, setup_bytes(&rows.row), "row %d", i);
        EXPECT_BITS(mixed.token.data, tokens.token.data, setup_bytes(&tokens.token), "token %d", i);
        setup_free(&mixed), setup_free(&rows), setup_free(&tokens);
    }
    free(x.data);
}

CASE(arguments_that_are_refused) {
    Tensor x = setup_tensor(DT_BF16, 32, 32, FILL_NORMAL, 9);
    Setup s;
    setup_make(&s, x, FORM_PACKED, fp8_cell(FORMAT_E4M3), fp8_cell(FORMAT_E4M3));
    EXPECT_ABORTS("rounded to nearest", s.row_how.how.hadamard = 16, setup_amax(&s));
    EXPECT_ABORTS("rounded to nearest", s.row_how.how.rounding = ROUND_STOCHASTIC, setup_amax(&s));
    EXPECT_ABORTS("format 5, cell's 6", s.row_how.how.format = FORMAT_E5M2, setup_amax(&s));
    EXPECT_ABORTS("dequant_div", s.row.dequant_div = 1, setup_amax(&s));
    EXPECT_ABORTS("does not know bf16 without blocks", s.row_how.how.elem = DT_BF16,
                  setup_amax(&s));
    setup_free(&s), free(x.data);
}

/* Rows of a packed operand start at any row: it has no scales. */
CASE(rows_and_slices_of_codes) {
    uint8_t codes[96 * 64];
    QOperand q = {.form = FORM_PACKED,
                  .format = FORMAT_E5M2,
                  .data = codes,
                  .rows = 96,
                  .k = 64,
                  .k_contiguous = 1,
                  .slices = 2};
    QOperand slice = quantize_slice(&q, 1), rows;
    EXPECT(slice.data == codes + 96 * 32 && slice.k == 32 && !slice.scales, "slice");
    q.slices = 1;
    rows = quantize_rows(&q, 16, 32);
    EXPECT(rows.data == codes + 16 * 64 && rows.rows == 32 && !rows.scales, "rows");
    EXPECT_EQ_I64(quantize_codes_bytes(FORMAT_E5M2, 96, 64), 96 * 64);
    EXPECT_EQ_I64(quantize_codes_bytes(FORMAT_NVFP4, 96, 64), 96 * 32);
}

TEST_MAIN_END
