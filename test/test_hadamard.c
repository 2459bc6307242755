/*
test_hadamard -- the transform at every size with all signs, against its matrix in f64, and its
inverse, which undoes it: on both dtypes, and with masks. Its vectors of 16: test_quantize.c.
*/
#include "../llmc/ops/hadamard.h"

#include "../llmc/common.h"
#include "quantize_setup.h"
#include "test.h"

enum { ROWS = 3, COLS = 256 };
static const int sizes[] = {4, 8, 16, 32, 64, 128};
static const StepState state = {.step = 9};

static Hadamard hadamard_of(int size, Signs signs) {
    Hadamard h = {size, signs, rng_quantize_tag(5, GEMM_WGRAD, SIDE_B, 0), 77, &state};
    return h;
}

static CellSigns signs_of(Hadamard h) { return cell_signs(h.signs, h.tag, h.seed, h.state->step); }

static double matrix_entry(Hadamard h, int r, int c) {
    double sign = cell_sign(signs_of(h), r) ? -1 : 1;
    return __builtin_parity((unsigned)(r & c)) ? -sign / sqrt(h.size) : sign / sqrt(h.size);
}

CASE(transform_is_its_matrix) {
    Tensor x = setup_tensor(DT_F32, ROWS, COLS, FILL_NORMAL, 1);
    Tensor y = setup_tensor(DT_BF16, ROWS, COLS, FILL_ZERO, 0);
    for (int i = 0; i < 3 * ARRAY_LEN(sizes); i++) {
        Hadamard h = hadamard_of(sizes[i / 3], (Signs)(i % 3));
        EXPECT_NEAR(hadamard_factor(h.size), 1 / sqrt(h.size), 2e-8, "size %d", h.size);
        hadamard_cpu(NULL, y, x, 0, h);
        for (int at = 0; at < ROWS * COLS; at++) {
            int first = at / h.size * h.size;
            double want = 0;
            for (int r = 0; r < h.size; r++)
                want += ((float *)x.data)[first + r] * matrix_entry(h, r, at - first);
            EXPECT_NEAR(bf16_to_f32(((bf16_t *)y.data)[at]), want, fabs(want) / 250 + 1e-6,
                        "size %d, element %d", h.size, at);
        }
    }
    free(x.data), free(y.data);
}

/* In f32 to rounding, and exactly where the factor is a power of two and sums are exact. */
CASE(inverse_undoes_the_transform) {
    for (int i = 0; i < 3 * ARRAY_LEN(sizes); i++) {
        Hadamard h = hadamard_of(sizes[i / 3], (Signs)(i % 3));
        float v[128], back[128];
        for (int e = 0; e < h.size; e++)
            v[e] = back[e] = fill_value(FILL_GRID, (uint64_t)e, (uint32_t)i);
        hadamard_group(back, h.size, signs_of(h));
        hadamard_group_inverse(back, h.size, signs_of(h));
        int exact = ilogbf((float)h.size) % 2 == 0;
        for (int e = 0; e < h.size; e++)
            EXPECT_NEAR(back[e], v[e], exact ? 0 : 4e-6, "size %d, element %d", h.size, e);
    }
}

/* The op, against the inverse matrix applied to what its mask leaves. */
CASE(inverse_op_with_masks) {
    static uint8_t mask[ROWS * COLS / 8];
    for (int b = 0; b < ARRAY_LEN(mask); b++) mask[b] = (uint8_t)(b * 37 + 11);
    for (int i = 0; i < 12 * ARRAY_LEN(sizes); i++) {
        Hadamard h = hadamard_of(sizes[i / 12], (Signs)(i % 3));
        int masked = i / 3 % 2, f32 = i / 6 % 2;
        Tensor x = setup_tensor(f32 ? DT_F32 : DT_BF16, ROWS, COLS, FILL_NORMAL, (uint32_t)i);
        double before[ROWS * COLS];
        for (int at = 0; at < ROWS * COLS; at++) {
            before[at] = f32 ? ((float *)x.data)[at] : bf16_to_f32(((bf16_t *)x.data)[at]);
            if (masked && !(mask[at / 8] >> at % 8 & 1)) before[at] = 0;
        }
        hadamard_inverse_cpu(NULL, x, masked ? mask : NULL, h);
        for (int at = 0; at < ROWS * COLS; at++) {
            int first = at / h.size * h.size;
            double want = 0;
            for (int c = 0; c < h.size; c++)
                want += before[first + c] * matrix_entry(h, at - first, c);
            double got = f32 ? ((float *)x.data)[at] : bf16_to_f32(((bf16_t *)x.data)[at]);
            EXPECT_NEAR(got, want, f32 ? 4e-6 : fabs(want) / 250 + 1e-6, "size %d, element %d",
                        h.size, at);
        }
        free(x.data);
    }
}

/* What dgrad needs: the inverse is the transform's transpose, so that it takes the gradient of
   transformed elements to that of the elements. */
CASE(gradients_of_transformed_elements_go_back) {
    Hadamard h = hadamard_of(32, SIGNS_STEP);
    float direction[32], transformed[32], grad[32];
    double want = 0, got = 0;
    for (int i = 0; i < 32; i++) {
        direction[i] = transformed[i] = (float)setup_normal((uint64_t)i, 1);
        grad[i] = (float)setup_normal((uint64_t)i, 2);
    }
    hadamard_group(transformed, 32, signs_of(h));
    for (int i = 0; i < 32; i++) want += (double)grad[i] * transformed[i];
    hadamard_group_inverse(grad, 32, signs_of(h));
    for (int i = 0; i < 32; i++) got += (double)grad[i] * direction[i];
    EXPECT_NEAR(got, want, 1e-5);
}

CASE(arguments_that_are_refused) {
    Tensor x = setup_tensor(DT_BF16, 32, 96, FILL_NORMAL, 2);
    EXPECT_ABORTS("hadamard of size 12", hadamard_cpu(NULL, x, x, 0, hadamard_of(12, SIGNS_NONE)));
    EXPECT_ABORTS("hadamard of size 256",
                  hadamard_inverse_cpu(NULL, x, NULL, hadamard_of(256, SIGNS_NONE)));
    EXPECT_ABORTS("no multiple of 64",
                  hadamard_inverse_cpu(NULL, x, NULL, hadamard_of(64, SIGNS_NONE)));
    EXPECT_ABORTS("no multiple of 64", hadamard_cpu(NULL, x, x, 1, hadamard_of(64, SIGNS_NONE)));
    Hadamard h = hadamard_of(32, SIGNS_STEP);
    h.state = NULL;
    EXPECT_ABORTS("without a StepState", hadamard_inverse_cpu(NULL, x, NULL, h));
    free(x.data);
}

TEST_MAIN_END
