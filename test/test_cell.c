/*
test_cell -- the arithmetic of cells: every small format against its definition, scale rules against
the tables and worked vectors of dev/NUMERICS.md 1.5 and 2.6. The operands made with it:
test_cell_operands.c; what it does to normal data: test_cell_statistics.c.
*/
#include "../llmc/common.h"
#include "../llmc/ops/cell.h"
#include "../llmc/ops/quantize.h"
#include "quantize_setup.h"
#include "test.h"

// --- numbers ---

static const DType small_types[] = {DT_E2M1, DT_E1M2, DT_E4M3, DT_E5M2, DT_UE5M3,
                                    DT_E1M6, DT_E2M5, DT_E3M4, DT_E6M1};

/* Value of a code without sign, by the definition. */
static double code_value(Minifloat f, int code) {
    int exponent = code >> f.mantissa_bits, one = 1 << f.mantissa_bits;
    double mantissa = (double)(code & (one - 1)) / one;
    return exponent ? ldexp(1 + mantissa, exponent - f.bias) : ldexp(mantissa, 1 - f.bias);
}

static int num_codes(Minifloat f) {
    int count = 0;
    while (count < 1 << (f.exponent_bits + f.mantissa_bits) && code_value(f, count) <= f.max)
        count++;
    return count;
}

/* dev/NUMERICS.md 1.1 to 1.5. */
CASE(ranges_of_the_formats) {
    static const struct {
        DType type;
        int codes;   // from 0 on
        double max, min, min_normal;
    } rows[] = {
        {DT_E2M1, 8, 6, .5, 1},
        {DT_E1M2, 8, 1.75, .25, 1},
        {DT_E4M3, 127, 448, 0x1p-9, 0x1p-6},
        {DT_E5M2, 124, 57344, 0x1p-16, 0x1p-14},
        {DT_UE5M3, 248, 61440, 0x1p-17, 0x1p-14},
        {DT_E1M6, 128, 3.96875, 0x1p-5, 2},
        {DT_E2M5, 128, 7.875, 0x1p-5, 1},
        {DT_E3M4, 128, 31, 0x1p-6, .25},
        {DT_E6M1, 128, 6442450944.0, 0x1p-31, 0x1p-30},
    };
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        Minifloat f = minifloat(rows[i].type);
        const char *name = dtype_info[rows[i].type].name;
        EXPECT_EQ_I64(num_codes(f), rows[i].codes, "%s", name);
        EXPECT(f.max == rows[i].max && code_value(f, rows[i].codes - 1) == rows[i].max, "%s", name);
        EXPECT(f.min == rows[i].min && code_value(f, 1) == rows[i].min, "%s", name);
        EXPECT(code_value(f, 1 << f.mantissa_bits) == rows[i].min_normal, "%s", name);
    }
}

static float above(float x) { return nextafterf(x, INFINITY); }
static float below(float x) { return nextafterf(x, -INFINITY); }

/* Every number stays, and between two neighbours the middle decides. */
CASE(numbers_round_to_their_neighbours) {
    for (int t = 0; t < ARRAY_LEN(small_types); t++) {
        Minifloat f = minifloat(small_types[t]);
        const char *name = dtype_info[small_types[t]].name;
        int count = num_codes(f);
        for (int code = 0; code + 1 < count; code++) {
            float low = (float)code_value(f, code), high = (float)code_value(f, code + 1);
            float middle = (low + high) / 2;
            for (int sign = -1; sign <= 1; sign += 2) {
                float s = (float)sign;
                EXPECT_HEX(minifloat_nearest(f, s * low), bits_from_f32(s * low));
                EXPECT_HEX(minifloat_nearest(f, s * middle),
                           bits_from_f32(s * (code % 2 ? high : low)));
                EXPECT_HEX(minifloat_nearest(f, s * below(middle)), bits_from_f32(s * low));
                EXPECT_HEX(minifloat_nearest(f, s * above(middle)), bits_from_f32(s * high));
                EXPECT_HEX(minifloat_away(f, s * low), bits_from_f32(s * low));
                EXPECT_HEX(minifloat_away(f, s * middle), bits_from_f32(s * high));
                EXPECT_HEX(minifloat_away(f, s * below(middle)), bits_from_f32(s * low));
                float quarter = low + (high - low) / 4;
                EXPECT_HEX(minifloat_stochastic(f, s * quarter, 191, 8), bits_from_f32(s * low));
                EXPECT_HEX(minifloat_stochastic(f, s * quarter, 192, 8), bits_from_f32(s * high));
                EXPECT_HEX(minifloat_stochastic(f, s * low, 255, 8), bits_from_f32(s * low));
            }
        }
        float largest[] = {f.max, above(f.max), 1.5f * f.max, 1e38f, INFINITY, NAN};
        for (int i = 0; i < ARRAY_LEN(largest); i++) {
            EXPECT(minifloat_nearest(f, largest[i]) == f.max, "%s of %g", name, largest[i]);
            EXPECT(minifloat_away(f, largest[i]) == f.max, "%s of %g", name, largest[i]);
            EXPECT(minifloat_stochastic(f, largest[i], 255, 8) == f.max, "%s", name);
            if (isnan(largest[i])) continue;
            EXPECT(minifloat_nearest(f, -largest[i]) == -f.max, "%s of %g", name, -largest[i]);
        }
        EXPECT_HEX(minifloat_nearest(f, -0x1p-149f), 0x80000000);
    }
}

CASE(numbers_are_those_of_the_oracles) {
    for (uint64_t i = 0; i < 200000; i++) {
        float x = fill_value(FILL_WIDE, i, 1) * 0x1p15f;
        uint32_t draw = philox4x32_10(rng_group_counter(i, 3, 0), 1, 2).w[0];
        EXPECT_HEX(minifloat_nearest(minifloat(DT_E2M1), x),
                   bits_from_f32(e2m1_decode(e2m1_encode(x))));
        EXPECT_HEX(minifloat_nearest(minifloat(DT_E4M3), x),
                   bits_from_f32(e4m3_decode(e4m3_encode(x))));
        EXPECT_HEX(minifloat_nearest(minifloat(DT_E5M2), x),
                   bits_from_f32(e5m2_decode(e5m2_encode(x))));
        for (int bits = 8; bits <= 24; bits += 8) {
            uint32_t d = draw >> (32 - bits);
            EXPECT_HEX(minifloat_stochastic(minifloat(DT_E2M1), x, d, bits),
                       bits_from_f32(e2m1_decode(e2m1_encode_stochastic(x, d, bits))));
        }
    }
}

/* Products of an element and a scale that bf16 does not hold: operand_values_dtype says where. */
CASE(values_that_bf16_holds) {
    static const DType scales[] = {DT_E4M3, DT_E5M2, DT_UE5M3, DT_E2M5, DT_E3M4, DT_E6M1, DT_E1M6};
    for (int i = 0; i < 4 * ARRAY_LEN(scales); i++) {
        Minifloat elem = minifloat(small_types[i % 4]), f = minifloat(scales[i / 4]);
        int inexact = 0, products = 0;
        for (int q = 1; q < num_codes(elem); q++) {
            for (int s = 1; s < num_codes(f); s++, products++) {
                float v = (float)(code_value(elem, q) * code_value(f, s));
                inexact += bf16_to_f32(bf16_from_f32(v)) != v;
            }
        }
        Operand how = nvfp4_cell();
        how.elem = small_types[i % 4], how.scale = scales[i / 4];
        EXPECT_EQ_I64(operand_values_dtype(&how), inexact ? DT_F32 : DT_BF16, "%s times %s",
                      dtype_info[how.elem].name, dtype_info[how.scale].name);
        if (how.elem != DT_E2M1) continue;
        EXPECT_EQ_I64(inexact, how.scale == DT_E1M6 ? 63 : 0, "%s", dtype_info[how.scale].name);
        if (how.scale == DT_E1M6) EXPECT_EQ_I64(products, 889);
        if (how.scale == DT_E4M3) EXPECT_EQ_I64(products, 882);
    }
}

CASE(sums_take_neighbours_first) {
    float v[8] = {1, 0x1p-24f, 0x1p-24f, 0x1p-24f, 3, -3, 0x1p-24f, 0};
    EXPECT(cell_pairwise_sum(v, 8) == (1 + 0x1p-23f) + 0x1p-24f);   // 1 + 2^-24 is a tie, to 1
    float one[1] = {5};
    EXPECT(cell_pairwise_sum(one, 1) == 5);
}

// --- scale rules ---

static Operand mxfp4_cell(ScaleRule rule) {
    Operand how = formats[FORMAT_MXFP4].cell;
    how.scale_rule = rule;
    return how;
}

static int scale_exponent(const Operand *how, float block_max) {
    Cell cell = cell_make(how);
    CellScale s = cell_scale(&cell, cell_tensor(&cell, 0), block_max, 0, 0);
    EXPECT(s.scale * s.mult == (how->headroom ? .75f : 1), "the product of scale and multiplier");
    return ilogbf(s.scale);
}

CASE(exponents_of_mxfp4) {
    static const struct {
        float amax;
        int floor, ceil, even;
    } rows[] = {{1, -2, -2, -2},
                {2.9f, -1, -1, -1},
                {3, -1, -1, -1},
                {3.01f, -1, 0, -1},
                {4, 0, 0, 0},
                {6, 0, 0, 0},
                {6.5f, 0, 1, 0},
                {7, 0, 1, 1},
                {7.5f, 0, 1, 1},
                {8, 1, 1, 1},
                {0, -125, -125, -125},
                {1e-40f, -125, -125, -125},
                {3.4e38f, 125, 125, 125}};
    Operand floors = mxfp4_cell(RULE_FLOOR), ceils = mxfp4_cell(RULE_CEIL),
            evens = mxfp4_cell(RULE_EVEN), roomy = floors;
    roomy.headroom = 1;
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        EXPECT_EQ_I64(scale_exponent(&floors, rows[i].amax), rows[i].floor, "floor %g",
                      rows[i].amax);
        EXPECT_EQ_I64(scale_exponent(&roomy, rows[i].amax), rows[i].floor, "floor %g",
                      rows[i].amax);
        EXPECT_EQ_I64(scale_exponent(&ceils, rows[i].amax), rows[i].ceil, "ceil %g", rows[i].amax);
        EXPECT_EQ_I64(scale_exponent(&evens, rows[i].amax), rows[i].even, "even %g", rows[i].amax);
    }
}

/* Within these powers bf16 holds every product, in its subnormal numbers too; above, not. */
CASE(powers_stay_where_bf16_holds_the_products) {
    static const struct {
        DType elem;
        int low, high;   // codes
    } rows[] = {{DT_E2M1, 2, 252}, {DT_E1M2, 2, 252}, {DT_E4M3, 3, 246}, {DT_E5M2, 10, 239}};
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        Operand how = mxfp4_cell(RULE_FLOOR);
        how.elem = rows[i].elem;
        Minifloat f = minifloat(how.elem);
        EXPECT_EQ_I64(scale_exponent(&how, 0) + 127, rows[i].low, "%s", dtype_info[how.elem].name);
        EXPECT_EQ_I64(scale_exponent(&how, INFINITY) + 127, rows[i].high, "%s",
                      dtype_info[how.elem].name);
        for (int code = rows[i].low; code <= rows[i].high; code++) {
            for (int q = 0; q < num_codes(f); q++) {
                double v = ldexp(code_value(f, q), code - 127);
                EXPECT(bf16_to_f32(bf16_from_f32((float)v)) == v, "%s: code %d, element %d",
                       dtype_info[how.elem].name, code, q);
            }
        }
    }
}

CASE(quest_takes_the_power_below_its_clipping) {
    Operand how = mxfp4_cell(RULE_QUEST);
    Cell cell = cell_make(&how);
    for (int i = 1; i < 1000; i++) {
        double std = i * .01, clip = std * (2.92247856 / 6) + 1e-8;
        EXPECT(cell_quest_scale(&cell, (float)std).scale == exp2(floor(log2(clip))), "std %g", std);
    }
    EXPECT(cell_quest_scale(&cell, 0).scale == 0x1p-27f, "a block of zeros");
}

// --- worked vectors 13 to 17 ---

/* Row 0 of 16 x 32 holds x, the rest is 0; the tensor's maximum is given. */
static void quantize_row(Setup *s, float (*space)[32], Operand how, OperandForm form,
                         const float *x, int count, float amax) {
    memset(space, 0, 16 * sizeof(*space));
    memcpy(space, x, (size_t)count * sizeof(*x));
    setup_make(s, tensor_view(space, DT_F32, 16, 32), form, how, how);
    s->amax[0] = s->amax[1] = amax;
    quantize_pair_cpu(NULL, &s->row, &s->row_how, NULL, NULL, s->x);
}

static void expect_codes(Operand how, const float x[16], float amax, int scale,
                         const uint8_t bytes[8]) {
    float space[16][32];
    Setup s;
    quantize_row(&s, space, how, FORM_PACKED, x, 16, amax);
    EXPECT_EQ_I64(s.row.scales[0], scale, "scale");
    EXPECT_BITS(s.row.data, bytes, 8, "codes");
    setup_free(&s);
    float values[16];   // what the codes stand for, in the other form
    quantize_row(&s, space, how, FORM_VALUES, x, 16, amax);
    for (int i = 0; i < 16; i++) {
        uint8_t code = bytes[i / 2] >> i % 2 * 4 & 15;
        values[i] = e2m1_decode(code) * e4m3_decode((uint8_t)scale);
        EXPECT(setup_value(&s.row, i) == values[i], "value %d", i);
    }
    setup_free(&s);
}

static Operand select_cell(Select select) {
    Operand how = recipe_find("four_over_six")->plan.cell[GEMM_FPROP][SIDE_A];
    how.select = select;
    return how;
}

CASE(worked_vector_13_four_over_six) {
    static const float a[16] = {10, 20, 30, 40},
                       b[16] = {6,    5.75, 5.5,  5.25, 5,    4.75, 4.5, 4.25,
                                3.75, 3.25, 2.75, 2.25, 1.75, 1.25, .75, .25};
    static const uint8_t a4[8] = {0x42, 0x65}, a6[8] = {0x53, 0x76},
                         b4[8] = {0x66, 0x66, 0x55, 0x55, 0x44, 0x34, 0x22, 0x01},
                         b6[8] = {0x77, 0x77, 0x66, 0x66, 0x56, 0x45, 0x24, 0x02};
    for (int select = SELECT_MSE; select <= SELECT_MAE; select++) {
        expect_codes(select_cell((Select)select), a, 40, 0x7C, a4);
        expect_codes(select_cell((Select)select), b, 12, 0x74, b4);
    }
    // Without selection what divides by 6 is taken.
    expect_codes(select_cell(SELECT_NONE), a, 40, 0x78, a6);
    expect_codes(select_cell(SELECT_NONE), b, 12, 0x70, b6);
    Operand how = select_cell(SELECT_MSE);
    Cell cell = cell_make(&how);
    CellTensor t = cell_tensor(&cell, 12);
    for (int candidate = 0; candidate < 2; candidate++) {
        CellScale s = cell_scale(&cell, t, 6, 0, candidate);
        float errors[16], absolute[16];
        Cell mae = cell;
        mae.how.select = SELECT_MAE;
        for (int i = 0; i < 16; i++) {
            float q = cell_round(&cell, cell_quotient(&cell, t, s, b[i]), 0);
            errors[i] = cell_select_error(&cell, t, s, q, b[i]);
            absolute[i] = cell_select_error(&mae, t, s, q, b[i]);
        }
        EXPECT_NEAR(cell_pairwise_sum(errors, 16) / 16, candidate ? .1328125 : .203125, 1e-6);
        EXPECT_NEAR(cell_pairwise_sum(absolute, 16) / 16, candidate ? .28125 : .375, 1e-6);
    }
}

CASE(worked_vector_14_mxfp4) {
    static const float x[32] = {7,   -7,    6.5,  6,    5,    4.5, 3.5,   3,    2.5,  2,   1.75,
                                1.5, 1.25,  1,    .75,  .5,   .25, 0,     -0.f, -.25, -.5, -.75,
                                -1,  -1.25, -1.5, -2.5, -3.5, -5,  -6.25, .375, .625, .875};
    static const uint8_t bytes[2][16] = {{0xF7, 0x77, 0x66, 0x56, 0x44, 0x34, 0x22, 0x12, 0x00,
                                          0x88, 0xA9, 0xAA, 0xCB, 0xEE, 0x1F, 0x21},
                                         {0xE6, 0x55, 0x44, 0x34, 0x22, 0x22, 0x11, 0x01, 0x00,
                                          0x88, 0x98, 0x99, 0xAA, 0xCC, 0x0D, 0x11}};
    for (int ceil = 0; ceil < 2; ceil++) {
        float space[16][32];
        Setup s;
        quantize_row(&s, space, mxfp4_cell(ceil ? RULE_CEIL : RULE_FLOOR), FORM_VALUES, x, 32, 0);
        for (int i = 0; i < 32; i++) {
            float want = e2m1_decode(bytes[ceil][i / 2] >> i % 2 * 4 & 15) * (ceil ? 2.f : 1.f);
            EXPECT_HEX(setup_value(&s.row, i), bits_from_f32(want));
        }
        setup_free(&s);
    }
}

CASE(worked_vector_15_ms_eden) {
    static const float y[16] = {-15.5f, -7.5f, 7.5f, -.5f, 7.5f, -.5f,  -15.5f, 8.5f,
                                8.5f,   16.5f, 1.5f, 1.5f, 1.5f, -2.5f, 10.5f,  -17.5f};
    static const uint8_t bytes[8] = {0xDF, 0x85, 0x85, 0x5F, 0x75, 0x11, 0xA1, 0xF6};
    Operand how = recipe_find("quartet2")->plan.cell[GEMM_DGRAD][SIDE_A];
    how.hadamard = 0;
    Cell cell = cell_make(&how);
    CellTensor t = cell_tensor(&cell, 35);
    EXPECT_NEAR(EDEN_ELEM_MAX, 6 / (17. / 16 * .93), 3e-7);
    EXPECT_NEAR(t.unit, 0.022515869, 1e-9);
    CellScale s = cell_scale(&cell, t, 17.5f, 0, 0);
    EXPECT_EQ_I64(e4m3_encode(s.scale), 0x70);
    float vv[16], vr[16];
    for (int i = 0; i < 16; i++) {
        float q = cell_round(&cell, cell_quotient(&cell, t, s, y[i]), 0);
        EXPECT_EQ_I64(e2m1_encode(q), bytes[i / 2] >> i % 2 * 4 & 15, "element %d", i);
        vv[i] = y[i] * y[i];
        vr[i] = y[i] * cell_eden_value(t, s, q);
    }
    float sum_vv = cell_pairwise_sum(vv, 16), sum_vr = cell_pairwise_sum(vr, 16);
    EXPECT(sum_vv == 1496, "%g", sum_vv);
    EXPECT_NEAR(sum_vr, 1600.24778, 2e-4);
    EXPECT_NEAR(sum_vv / sum_vr * s.scale, 119.66147, 2e-5);
    int low = 0, high = 0;
    for (uint32_t draw = 0; draw < 65536; draw++) {
        float scale = cell_eden_scale(&cell, s, sum_vv, sum_vr, draw);
        low += scale == 112, high += scale == 120;
    }
    EXPECT_EQ_I64(low + high, 65536);
    EXPECT_NEAR(high / 65536., .9577, 5e-5);
    // The op draws one of the two, by the low half of the group's first word.
    float space[16][32];
    Setup made;
    quantize_row(&made, space, how, FORM_PACKED, y, 16, 35);
    EXPECT_BITS(made.row.data, bytes, 8, "codes");
    uint64_t seed = made.row_how.seed;
    for (uint32_t step = 0; step < 50; step++) {
        made.state.step = step;
        quantize_pair_cpu(NULL, &made.row, &made.row_how, NULL, NULL, made.x);
        Philox4 draw = philox4x32_10(rng_group_counter(1024 * 2, made.row_how.tag, step),
                                     (uint32_t)seed, (uint32_t)(seed >> 32));
        float want = cell_eden_scale(&cell, s, sum_vv, sum_vr, draw.w[0] & 0xFFFF);
        EXPECT(e4m3_decode(made.row.scales[0]) == want, "step %u", step);
    }
    setup_free(&made);
    // Below 2^-6 scales are rounded to nearest.
    CellScale small = {0x1.1p-7f, 1, 1};
    for (uint32_t draw = 0; draw < 65536; draw += 4369)
        EXPECT(cell_eden_scale(&cell, small, 1, 1, draw) == 0x1p-7f, "draw %u", draw);
    EXPECT(cell_eden_scale(&cell, s, 1, -1, 0) == 128,
           "a sum that is not above 0 corrects nothing");
}

CASE(worked_vector_16_outer_scales) {
    Operand how = recipe_find("tetrajet2")->plan.cell[GEMM_FPROP][SIDE_A];
    Cell cell = cell_make(&how);
    CellScale s = cell_scale(&cell, cell_tensor(&cell, 0), 17.5f, 35, 0);
    EXPECT_HEX(s.outer, 0x3C555555);
    EXPECT_EQ_I64(e4m3_encode(s.scale), 0x76);
    EXPECT(s.mult == 1.0f / (s.scale * s.outer), "multiplier");
    EXPECT(cell_value(&cell, s, 6) == 6 * s.scale * s.outer, "value");
    EXPECT(cell_scale(&cell, cell_tensor(&cell, 0), 1e-9f, 35, 0).scale == 0x1p-9f, "the least");
    CellScale zero = cell_scale(&cell, cell_tensor(&cell, 0), 0, 0, 0);
    EXPECT(zero.outer == 1 && zero.scale == 0x1p-9f, "zeros");
    for (uint64_t i = 0; i < 1000; i++) {   // in this order: two divisions
        float most = fabsf(fill_value(FILL_NORMAL, i, 8)), outer = most / 448 / 6;
        s = cell_scale(&cell, cell_tensor(&cell, 0), most / 3, most, 0);
        EXPECT_HEX(s.outer, bits_from_f32(outer), "maximum %g", most);
        EXPECT(s.scale == minifloat_nearest(cell.scale, most / 3 / outer / 6), "maximum %g", most);
    }
}

CASE(worked_vector_17_encode_multiplier) {
    Operand how = recipe_find("fp4_all_the_way_encode")->plan.cell[GEMM_FPROP][SIDE_A];
    static const struct {
        int top;
        double unit;
        float scale;
        double y;
    } rows[] = {{240, .00277778, .0078125f, 5.344}, {448, .00148810, .00390625f, 4.9875}};
    for (int i = 0; i < 2; i++) {
        how.top_scale = rows[i].top;
        Cell cell = cell_make(&how);
        CellTensor t = cell_tensor(&cell, 4);
        CellScale s = cell_scale(&cell, t, 1.9f, 0, 0);
        EXPECT_NEAR(t.unit, rows[i].unit, 1e-8, "top %d", rows[i].top);
        EXPECT(s.scale == rows[i].scale, "top %d: %g", rows[i].top, s.scale);
        EXPECT_NEAR(cell_quotient(&cell, t, s, 1.9f), rows[i].y, 5e-4, "top %d", rows[i].top);
        EXPECT(cell_value(&cell, s, 5) == 5 / s.scale, "a value is divided");
        EXPECT(cell_scale(&cell, t, 0, 0, 0).scale == 1, "of zeros");
        EXPECT(cell_scale(&cell, t, 4000, 0, 0).scale == 1, "of what is far above a held maximum");
        s = cell_scale(&cell, t, .4f, 0, 0);
        for (uint64_t e = 0; e < 1000; e++) {   // in this order
            float v = fill_value(FILL_NORMAL, e, 9), y = v / t.unit;
            EXPECT_HEX(cell_quotient(&cell, t, s, v), bits_from_f32(y * s.scale), "%g", v);
        }
    }
}

CASE(scales_that_round_to_zero) {
    static const struct {
        ZeroScale policy;
        float scale;
    } rows[] = {{ZERO_KEEP, 0}, {ZERO_ONE, 1}, {ZERO_LEAST, 0x1p-9f}};
    for (int i = 0; i < 3; i++) {
        Operand how = nvfp4_cell();
        how.zero_scale = rows[i].policy;
        Cell cell = cell_make(&how);
        CellTensor t = cell_tensor(&cell, 1);
        EXPECT(cell_scale(&cell, t, 1e-6f, 0, 0).scale == rows[i].scale, "policy %d", i);
        EXPECT(cell_scale(&cell, t, 1, 0, 0).scale == 448, "policy %d", i);
    }
}

CASE(scales_in_f32) {
    Operand how = formats[FORMAT_INT4].cell;
    Cell cell = cell_make(&how);
    CellScale s = cell_scale(&cell, cell_tensor(&cell, 0), 3, 0, 0);
    EXPECT(s.scale == 3 / 1.75f && s.mult == 1.75f / 3, "%g %g", s.scale, s.mult);
    s = cell_scale(&cell, cell_tensor(&cell, 0), 0, 0, 0);
    EXPECT(s.scale == 1 && s.mult == 1, "of zeros");
    s = cell_scale(&cell, cell_tensor(&cell, 0), 0x1p-140f, 0, 0);
    EXPECT(s.mult == FLT_MAX, "of the smallest numbers");
}

TEST_MAIN_END
