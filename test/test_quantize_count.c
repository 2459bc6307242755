/*
test_quantize_count -- the counts of what quantising does: against the shares that are known of
normal numbers (dev/NUMERICS.md 10, invariant 32) and against tensors whose counts are plain to see.
*/
#include "../llmc/ops/quantize_count.h"

#include "quantize_setup.h"
#include "test.h"

static Quantizer of_cell(Operand cell) {
    Quantizer how;
    memset(&how, 0, sizeof(how));
    how.how = cell;
    return how;
}

static QuantizeCounts counts_of(const Quantizer *how, Tensor x, float amax) {
    QuantizeCounts counts = {0};
    quantize_count(&counts, how, x, amax);
    return counts;
}

static float largest(Tensor x) {
    float most = 0;
    for (int64_t i = 0; i < tensor_count(x); i++)
        most = fmaxf(most, fabsf(((const float *)x.data)[i]));
    return most;
}

CASE(mxfp4_clips_as_many_normal_numbers_as_its_rule_says) {
    const struct {
        ScaleRule rule;
        double percent, tolerance;
    } rows[] = {{RULE_FLOOR, 2.3, 0.2}, {RULE_EVEN, 0.6, 0.1}, {RULE_CEIL, 0, 0}};
    Tensor x = setup_tensor(DT_F32, 1024, 512, FILL_NORMAL, 3);
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        Operand cell = formats[FORMAT_MXFP4].cell;
        cell.scale_rule = rows[i].rule;
        Quantizer how = of_cell(cell);
        QuantizeCounts c = counts_of(&how, x, 0);
        EXPECT_EQ_I64(c.elements, 1024 * 512);
        EXPECT_EQ_I64(c.blocks, 1024 * 512 / 32);
        EXPECT_NEAR(100.0 * (double)c.saturated / (double)c.elements, rows[i].percent,
                    rows[i].tolerance, "rule %d", i);
        EXPECT_EQ_I64(c.zero_scales, 0);
    }
    free(x.data);
}

/* In the first row blocks of a large number; of what is below the least scale; with elements that
   are lost; with one that clips. All else is 0. */
CASE(elements_and_scales_that_are_lost) {
    Tensor x = setup_tensor(DT_F32, 16, 64, FILL_ZERO, 0);
    float *v = (float *)x.data;
    v[0] = 2688.0f;                                            // the tensor's scale is 1
    for (int i = 16; i < 32; i++) v[i] = 1e-3f;                // a scale of 2^-10 / 6 and less is 0
    v[32] = 6.0f, v[33] = 0.2f, v[34] = 0.25f, v[35] = 0.3f;   // scale 1: 0.25 and less round to 0
    v[48] = 6.2f;                                              // scale 1 again: 6.2 is clipped
    Quantizer how = of_cell(nvfp4_cell());
    QuantizeCounts c = counts_of(&how, x, 2688.0f);
    EXPECT_EQ_I64(c.elements, 16 * 64);
    EXPECT_EQ_I64(c.blocks, 16 * 4);
    EXPECT_EQ_I64(c.zero_scales, 64 - 3);
    EXPECT_EQ_I64(c.underflowed, 16 + 2);
    EXPECT_EQ_I64(c.saturated, 1);
    EXPECT_EQ_I64(c.zeros, 16 * 64 - 22);
    how.token_operand =
        1;   // blocks down the columns, each with one number or none
    c = counts_of(&how, x, 2688.0f);
    EXPECT_EQ_I64(c.blocks, 64);
    EXPECT_EQ_I64(c.zero_scales, 64 - 6);   // 1e-3 / 6 is too little for a scale
    EXPECT_EQ_I64(c.underflowed, 16);
    free(x.data);
}

CASE(fp8_loses_what_is_small_beside_the_largest) {
    Tensor x = setup_tensor(DT_F32, 4, 16, FILL_ZERO, 0);
    float *v = (float *)x.data;
    v[0] = 448.0f, v[1] = 0x1p-9f, v[2] = 0x1p-10f, v[3] = -0x1p-11f;
    Quantizer how = of_cell(fp8_cell(FORMAT_E4M3));
    QuantizeCounts c = counts_of(&how, x, 448.0f);
    EXPECT_EQ_I64(c.elements, 64);
    EXPECT_EQ_I64(c.underflowed, 2);   // halves of the least number and less
    EXPECT_EQ_I64(c.saturated, 0);
    EXPECT_EQ_I64(c.blocks, 0);
    c = counts_of(&how, x, 224.0f);   // a maximum of earlier steps
    EXPECT_EQ_I64(c.saturated, 1);
    EXPECT_EQ_I64(c.underflowed, 1);
    free(x.data);
}

/* Of every format that is quantised: counts are shares, and both directions have all elements. */
CASE(every_format_is_counted) {
    Tensor x = setup_tensor(DT_F32, 128, 256, FILL_OUTLIER, 5);
    StepState state;
    memset(&state, 0, sizeof(state));
    for (int f = 0; f < NUM_FORMATS; f++) {
        Operand cell = formats[f].cell;
        if (!operand_is_quantized(&cell)) continue;
        for (int token = 0; token < 2; token++) {
            Quantizer how = of_cell(cell);
            how.token_operand = token;
            how.state = &state;
            QuantizeCounts c = counts_of(&how, x, largest(x));
            EXPECT_EQ_I64(c.elements, 128 * 256, "%s", formats[f].name);
            EXPECT_EQ_I64(c.blocks, cell.block ? 128 * 256 / cell.block : 0, "%s", formats[f].name);
            EXPECT(c.saturated * 10 < c.elements && c.underflowed < c.elements, "%s",
                   formats[f].name);
        }
    }
    free(x.data);
}

TEST_MAIN_END
