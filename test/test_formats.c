/*
test_formats -- every code of every small format, its ties, its saturation and its stochastic
counts; the random generator's known answers; packing and the tiled layout of scales. Against the
tables of the formats' definitions, written out here, and against brute force.
*/
#include "../llmc/dtype.h"

#include <math.h>

#include "../llmc/common.h"
#include "../llmc/ops/nvfp4.h"
#include "../llmc/ops/quantize.h"
#include "../llmc/rng.h"
#include "test.h"

static const float e2m1_table[16] = {0,     .5f,  1,  1.5f,  2,  3,  4,  6,
                                     -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};

// --- E2M1 ---

CASE(e2m1_codes_round_trip) {
    for (int c = 0; c < 16; c++) {
        float value = e2m1_decode((uint8_t)c);
        EXPECT_BITS(&value, &e2m1_table[c], 4, "code %d", c);
        EXPECT_EQ_I64(e2m1_encode(value), c, "nearest of %g", value);
    }
}

/* The bounds of dev/NUMERICS.md 1.1: code c + 1 begins at bounds[c]; included where the tie goes
   up. */
CASE(e2m1_ties_go_to_even) {
    static const struct {
        float bound;
        int included;
    } bounds[7] = {{.25f, 0}, {.75f, 1}, {1.25f, 0}, {1.75f, 1}, {2.5f, 0}, {3.5f, 1}, {5, 0}};
    for (int c = 0; c < 7; c++) {
        float b = bounds[c].bound;
        EXPECT_EQ_I64(e2m1_encode(nextafterf(b, 0)), c, "below %g", b);
        EXPECT_EQ_I64(e2m1_encode(b), c + bounds[c].included, "at %g", b);
        EXPECT_EQ_I64(e2m1_encode(nextafterf(b, 9)), c + 1, "above %g", b);
        EXPECT_EQ_I64(e2m1_encode(-b), 8 + c + bounds[c].included, "at -%g", b);
    }
}

CASE(e2m1_saturates_and_keeps_the_sign_of_zero) {
    EXPECT_EQ_I64(e2m1_encode(6.0001f), 7);
    EXPECT_EQ_I64(e2m1_encode(1e30f), 7);
    EXPECT_EQ_I64(e2m1_encode(INFINITY), 7);
    EXPECT_EQ_I64(e2m1_encode(-INFINITY), 15);
    EXPECT_EQ_I64(e2m1_encode(NAN), 7);
    EXPECT_EQ_I64(e2m1_encode(-NAN), 7);
    EXPECT_EQ_I64(e2m1_encode(-0.0f), 8);
    EXPECT_EQ_I64(e2m1_encode(-0.1f), 8);
    EXPECT_EQ_I64(e2m1_encode(1e-45f), 0);
}

CASE(e2m1_stochastic_counts_over_all_8_bit_draws) {
    static const struct {
        float x;
        int low, high, num_low;
    } rows[] = {{.25f, 0, 1, 128},  {2.5f, 4, 5, 128}, {5, 6, 7, 128},       {1.9f, 3, 4, 52},
                {3.9f, 5, 6, 26},   {5.99f, 6, 7, 2},  {-1.1f, 10, 11, 205}, {0x1p-9f, 0, 1, 255},
                {.001f, 0, 1, 256}, {6.2f, 6, 7, 0},   {-7e30f, 14, 15, 0},  {-.001f, 8, 9, 256}};
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        int num_low = 0, num_high = 0;
        for (uint32_t draw = 0; draw < 256; draw++) {
            int code = e2m1_encode_stochastic(rows[i].x, draw, 8);
            num_low += code == rows[i].low;
            num_high += code == rows[i].high;
        }
        EXPECT_EQ_I64(num_low, rows[i].num_low, "%g rounded down", rows[i].x);
        EXPECT_EQ_I64(num_high, 256 - rows[i].num_low, "%g rounded up", rows[i].x);
    }
}

/* The first draw that rounds up is 2^bits - floor(2^bits * frac), for any width; computed in
   double, which is exact. */
CASE(e2m1_stochastic_threshold_of_every_width) {
    static const int widths[] = {8, 16, 24};
    for (int w = 0; w < 3; w++) {
        for (int i = 0; i < 2000; i++) {
            Philox4 random = philox4x32_10(rng_group_counter((uint64_t)i, 1, 2), 3, 4);
            float a = 6.0f * rng_uniform(random.w[0]) * (i % 7 ? 1.0f : 0x1p-9f);
            int low = 0;
            while (low < 6 && a >= e2m1_table[low + 1]) low++;
            double step = (double)e2m1_table[low + 1] - e2m1_table[low];
            double frac = ((double)a - e2m1_table[low]) / step, one = ldexp(1, widths[w]);
            int64_t first_up = (int64_t)one - (int64_t)floor(frac * one);
            if (first_up < (int64_t)one)
                EXPECT_EQ_I64(e2m1_encode_stochastic(a, (uint32_t)first_up, widths[w]), low + 1,
                              "%a", a);
            EXPECT_EQ_I64(e2m1_encode_stochastic(-a, (uint32_t)first_up - 1, widths[w]), low + 8,
                          "%a", a);
        }
    }
}

CASE(e2m1_stochastic_leaves_the_grid_alone) {
    for (int c = 0; c < 16; c++)
        for (uint32_t draw = 0; draw < 256; draw++)
            EXPECT_EQ_I64(e2m1_encode_stochastic(e2m1_table[c], draw, 8), c, "draw %u", draw);
    for (int c = 0; c < 16; c++)
        EXPECT_EQ_I64(e2m1_encode_stochastic(e2m1_table[c], 0xFFFFFF, 24), c, "24 bits");
    EXPECT_EQ_I64(e2m1_encode_stochastic(NAN, 0, 8), 7);
}

// --- E4M3 ---

static double e4m3_table(int code) {
    int exponent = code >> 3, mantissa = code & 7;
    return exponent ? ldexp(1 + mantissa / 8.0, exponent - 7) : ldexp(mantissa, -9);
}

CASE(e4m3_codes_round_trip) {
    for (int c = 0; c < 0x7F; c++) {
        float value = e4m3_decode((uint8_t)c);
        EXPECT_EQ_I64(value == (float)e4m3_table(c), 1, "code %d is %g", c, value);
        EXPECT_EQ_I64(e4m3_encode(value), c, "nearest of %g", value);
        EXPECT_EQ_I64(e4m3_encode(-value), c | 0x80, "nearest of -%g", value);
        EXPECT(c == 0 || value > e4m3_decode((uint8_t)(c - 1)), "code %d does not grow", c);
    }
    EXPECT(e4m3_decode(0x38) == 1 && e4m3_decode(0x7E) == E4M3_MAX, "1 and 448");
    EXPECT(e4m3_decode(0xB8) == -1, "-1");
    EXPECT(isnan(e4m3_decode(0x7F)) && isnan(e4m3_decode(0xFF)), "NaN codes");
}

CASE(e4m3_ties_go_to_even) {
    for (int c = 0; c < 0x7E; c++) {
        float tie = (float)((e4m3_table(c) + e4m3_table(c + 1)) / 2);
        EXPECT_EQ_I64(e4m3_encode(nextafterf(tie, 0)), c, "below %g", tie);
        EXPECT_EQ_I64(e4m3_encode(tie), c + (c & 1), "at %g", tie);
        EXPECT_EQ_I64(e4m3_encode(nextafterf(tie, 999)), c + 1, "above %g", tie);
    }
    EXPECT_EQ_I64(e4m3_encode(0x1p-10f), 0x00);
    EXPECT_EQ_I64(e4m3_encode(0x1.8p-10f), 0x01);
    EXPECT_EQ_I64(e4m3_encode(0x1.8p-9f), 0x02);
}

CASE(e4m3_saturates) {
    static const float large[] = {448, 448.1f, 463.9f, 464, 480, 1e9f, FLT_MAX, INFINITY};
    for (int i = 0; i < ARRAY_LEN(large); i++) {
        EXPECT_EQ_I64(e4m3_encode(large[i]), 0x7E, "%g", large[i]);
        EXPECT_EQ_I64(e4m3_encode(-large[i]), 0xFE, "-%g", large[i]);
    }
    EXPECT_EQ_I64(e4m3_encode(NAN), 0x7F);
}

// --- E5M2 ---

static double e5m2_table(int code) {
    int exponent = code >> 2, mantissa = code & 3;
    return exponent ? ldexp(1 + mantissa / 4.0, exponent - 15) : ldexp(mantissa, -16);
}

CASE(e5m2_codes_round_trip) {
    for (int c = 0; c < 0x7C; c++) {
        float value = e5m2_decode((uint8_t)c);
        EXPECT(value == (float)e5m2_table(c), "code %d is %g", c, value);
        EXPECT_EQ_I64(e5m2_encode(value), c, "nearest of %g", value);
        EXPECT_EQ_I64(e5m2_encode(-value), c | 0x80, "nearest of -%g", value);
        EXPECT(bf16_to_f32(bf16_from_f32(value)) == value, "%g is no bf16 number", value);
    }
    EXPECT(e5m2_decode(0x3C) == 1 && e5m2_decode(0x7B) == E5M2_MAX, "1 and 57344");
    EXPECT(e5m2_decode(0x04) == 0x1p-14f && e5m2_decode(0x81) == -0x1p-16f, "smallest numbers");
    EXPECT(e5m2_decode(0x7C) == INFINITY && e5m2_decode(0xFC) == -INFINITY, "infinities");
    for (int c = 0x7D; c <= 0x7F; c++)
        EXPECT(isnan(e5m2_decode((uint8_t)c)) && isnan(e5m2_decode((uint8_t)(c | 0x80))), "%d", c);
}

CASE(e5m2_ties_go_to_even) {
    for (int c = 0; c < 0x7B; c++) {
        float tie = (float)((e5m2_table(c) + e5m2_table(c + 1)) / 2);
        EXPECT_EQ_I64(e5m2_encode(nextafterf(tie, 0)), c, "below %g", tie);
        EXPECT_EQ_I64(e5m2_encode(tie), c + (c & 1), "at %g", tie);
        EXPECT_EQ_I64(e5m2_encode(nextafterf(tie, 1e6f)), c + 1, "above %g", tie);
    }
}

CASE(e5m2_saturates) {
    static const float large[] = {57344, 57345, 61440, 65536, 1e9f, FLT_MAX, INFINITY};
    for (int i = 0; i < ARRAY_LEN(large); i++) {
        EXPECT_EQ_I64(e5m2_encode(large[i]), 0x7B, "%g", large[i]);
        EXPECT_EQ_I64(e5m2_encode(-large[i]), 0xFB, "-%g", large[i]);
    }
    EXPECT_EQ_I64(e5m2_encode(NAN), 0x7F);
    EXPECT_EQ_I64(e5m2_encode(-0.0f), 0x80);
}

/* The branch-free rounding of the fast paths against the oracle: every bf16 number, and every tie
   with its neighbours. */
CASE(nvfp4_scale_rounding_is_e4m3) {
    for (uint32_t b = 0; b <= 0x7F80; b++) {
        float s = bf16_to_f32((bf16_t)b), rounded = nvfp4_round_scale(s);
        EXPECT_EQ_I64(nvfp4_scale_code(rounded), e4m3_encode(s), "%a", s);
        EXPECT(rounded == e4m3_decode(e4m3_encode(s)), "%a gives %g", s, rounded);
    }
    for (int c = 0; c < 0x7E; c++) {
        float tie = (float)((e4m3_table(c) + e4m3_table(c + 1)) / 2);
        float around[3] = {nextafterf(tie, 0), tie, nextafterf(tie, 999)};
        for (int i = 0; i < 3; i++)
            EXPECT_EQ_I64(nvfp4_scale_code(nvfp4_round_scale(around[i])), e4m3_encode(around[i]),
                          "%a", around[i]);
    }
    EXPECT_EQ_I64(nvfp4_scale_code(nvfp4_round_scale(NAN)), 0x7F);
}

// --- bfloat16 ---

CASE(bf16_rounds_to_nearest_even) {
    EXPECT_EQ_I64(bf16_from_f32(1.0f), 0x3F80);
    EXPECT_EQ_I64(bf16_from_f32(f32_from_bits(0x3F808000)), 0x3F80, "tie to even, down");
    EXPECT_EQ_I64(bf16_from_f32(f32_from_bits(0x3F808001)), 0x3F81, "just above the tie");
    EXPECT_EQ_I64(bf16_from_f32(f32_from_bits(0x3F818000)), 0x3F82, "tie to even, up");
    EXPECT_EQ_I64(bf16_from_f32(FLT_MAX), 0x7F80, "rounds to infinity");
    EXPECT_EQ_I64(bf16_from_f32(-INFINITY), 0xFF80);
    EXPECT_EQ_I64(bf16_from_f32(f32_from_bits(0x7F800001)), 0x7FC0, "NaN stays NaN and quiet");
    EXPECT_EQ_I64(bf16_from_f32(f32_from_bits(0xFFFFFFFF)), 0xFFFF);
    EXPECT_EQ_I64(bf16_from_f32(1e-45f), 0x0000, "less than half a subnormal");
    for (uint32_t b = 0; b < 0x10000; b++)
        if ((b & 0x7FFF) <= 0x7F80) EXPECT_EQ_I64(bf16_from_f32(bf16_to_f32((bf16_t)b)), b);
}

/* Emulation rests on this: an E2M1 element times its E4M3 scale is a bf16 number. */
CASE(e2m1_times_e4m3_is_exact_in_bf16) {
    int pairs = 0;
    float smallest = INFINITY, largest = 0;
    for (int q = 1; q < 8; q++) {
        for (int s = 1; s < 0x7F; s++, pairs++) {
            float product = e2m1_decode((uint8_t)q) * e4m3_decode((uint8_t)s);
            EXPECT(bf16_to_f32(bf16_from_f32(product)) == product, "%d x %d", q, s);
            smallest = fminf(smallest, product);
            largest = fmaxf(largest, product);
        }
    }
    EXPECT_EQ_I64(pairs, 882);
    EXPECT(smallest == 0x1p-10f && largest == 2688, "range %g to %g", smallest, largest);
}

CASE(dtype_sizes) {
    static const size_t bytes_of_6[NUM_DTYPES] = {24, 12, 24, 6, 3, 6, 6,
                                                 3,  6,  6,  6, 6, 6, 6};
    for (int t = 0; t < NUM_DTYPES; t++)
        EXPECT_EQ_I64(dtype_bytes((DType)t, 6), bytes_of_6[t], "%s", dtype_info[t].name);
    EXPECT_ABORTS("3 values of e2m1", dtype_bytes(DT_E2M1, 3));
    EXPECT_EQ_I64(dtype_bytes(DT_U8, (INT64_C(1) << 60) - 1), (INT64_C(1) << 60) - 1);
    EXPECT_DIES(EXIT_OOM, "values of f32 need 2^60 bytes or more: lower batch.micro",
                dtype_bytes(DT_F32, INT64_MAX / 16));
}

// --- random bits ---

CASE(philox_known_answers) {
    static const struct {
        Philox4 counter;
        uint32_t key[2];
        Philox4 want;
    } rows[] = {
        {{{0, 0, 0, 0}}, {0, 0}, {{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}}},
        {{{~0u, ~0u, ~0u, ~0u}}, {~0u, ~0u}, {{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}}},
        {{{0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}},
         {0xA4093822, 0x299F31D0},
         {{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}}},
        {{{0, 0, 5, 0}}, {1234, 0}, {{0xF942741C, 0xB7A11B7A, 0x8B27A0CC, 0xBD95ACC8}}}};
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        Philox4 got = philox4x32_10(rows[i].counter, rows[i].key[0], rows[i].key[1]);
        EXPECT_BITS(got.w, rows[i].want.w, 16, "row %d", i);
    }
}

CASE(counters_and_tags_have_their_places) {
    Philox4 counter = rng_group_counter(0x123456789ABCDEF0ull, 7, 9);
    Philox4 want = {{0x9ABCDEF0, 0x12345678, 7, 9}};
    EXPECT_BITS(counter.w, want.w, 16);
    EXPECT_EQ_I64(rng_quantize_tag(5, 2, 1, 3), 5 << 8 | 2 << 4 | 1 << 2 | 3);
    EXPECT(rng_uniform(0) == 0 && rng_uniform(~0u) < 1 && rng_uniform(1u << 31) == .5f, "uniform");
}

// --- packing and the layout of scales ---

CASE(codes_pack_even_element_low) {
    uint8_t codes[8] = {0x21}, scales[512] = {[0] = 0x40};   // codes 1 and 2 under a scale of 2
    EXPECT(quantize_decode_packed(codes, scales, 1, 16, 0, 0) == 1, "element 0");
    EXPECT(quantize_decode_packed(codes, scales, 1, 16, 0, 1) == 2, "element 1");
    EXPECT(quantize_decode_packed(codes, scales, 1, 16, 0, 2) == 0, "element 2");
    EXPECT_EQ_I64(quantize_packed_bytes(48, 32), 768);
}

CASE(scale_offsets_of_the_tiled_layout) {
    static const int rows[][3] = {{0, 0, 0},       {0, 4, 512},    {1, 0, 16},
                                  {31, 0, 496},    {32, 0, 4},     {33, 5, 533},
                                  {127, 31, 4095}, {128, 0, 4096}, {130, 7, 4643}};
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        EXPECT_EQ_I64(quantize_scale_offset(rows[i][0], rows[i][1], 32), rows[i][2], "line %d", i);
    }
}

/* The layout as cuBLAS documents it, written down once more. */
static int64_t closed_form(int64_t r, int64_t c, int64_t padded_cols) {
    return ((r >> 7) * (padded_cols >> 2) + (c >> 2)) * 512 + (r & 31) * 16 + (r >> 5 & 3) * 4 +
           (c & 3);
}

/* Walks the bytes in the order the hardware reads them: tiles of 128 x 4 row by row; in a tile 32
   lines of 16 bytes, a line holding 4 scales of each of 4 rows that are 32 apart. Returns how many
   are not where they should be. */
static int64_t count_misplaced(int64_t rows, int64_t cols) {
    int64_t padded_rows = round_up(rows, 128), padded_cols = round_up(cols, 4), at = 0, wrong = 0;
    for (int64_t tile_row = 0; tile_row < padded_rows; tile_row += 128)
        for (int64_t tile_col = 0; tile_col < padded_cols; tile_col += 4)
            for (int i = 0; i < 512; i++, at++) {
                int64_t r = tile_row + i / 4 % 4 * 32 + i / 16, c = tile_col + i % 4;
                wrong += quantize_scale_offset(r, c, padded_cols) != at;
                wrong += closed_form(r, c, padded_cols) != at;
            }
    return wrong + ((int64_t)quantize_scales_bytes(rows, 16 * cols) != at);
}

CASE(scale_offsets_of_576_shapes) {
    static const int rows[] = {1,  2,   15,  16,  17,  31,  32,  33,  63,  64,  65,  96,
                               127, 128, 129, 130, 160, 255, 256, 257, 300, 384, 512, 513};
    static const int cols[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  12,  15,  16,
                               17, 20, 31, 32, 33, 40, 63, 64, 65, 100, 127, 129};
    int shapes = 0;
    for (int i = 0; i < ARRAY_LEN(rows); i++)
        for (int j = 0; j < ARRAY_LEN(cols); j++, shapes++)
            EXPECT_EQ_I64(count_misplaced(rows[i], cols[j]), 0, "%d x %d", rows[i], cols[j]);
    EXPECT_EQ_I64(shapes, 576);
}

TEST_MAIN_END
