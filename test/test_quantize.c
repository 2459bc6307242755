/*
test_quantize -- the NVFP4 quantisers of the CPU: worked vectors byte for byte (their derivation is
dev/numerics_vectors.py), what must not depend on scale, sign, order, direction, threads or batch,
and the vectorised path against the reference bit for bit. Statistics: test_quantize_statistics.c.
*/
#include "../llmc/ops/quantize.h"

#include <float.h>
#include <omp.h>

#include "../llmc/ops/hadamard.h"
#include "../llmc/ops/nvfp4.h"
#include "../llmc/ops/quantize_cpu.h"
#include "quantize_setup.h"
#include "test.h"

// --- worked vectors ---

typedef struct {
    const char *name;
    float amax;   // of the tensor
    int arithmetic;
    uint32_t quant_mult, raw_scale, scale, element_mult;   // bits of S_enc, s and coeff; code of s8
    uint8_t bytes[8];
    float x[16];
} Vector;

/* The block as row 0 of a 16 x 16 tensor of zeros whose amax is given. */
static void check_vector(const Vector *v) {
    Operand how = nvfp4_cell();
    how.arithmetic = v->arithmetic;
    Nvfp4Tensor t = nvfp4_tensor(v->amax, &how);
    float block_amax = 0, data[256] = {0};
    for (int i = 0; i < 16; i++) block_amax = fmaxf(block_amax, fabsf(data[i] = v->x[i]));
    float raw = nvfp4_raw_scale(t, block_amax);
    EXPECT_HEX(t.quant_mult, v->quant_mult, "%s S_enc", v->name);
    EXPECT_HEX(raw, v->raw_scale, "%s s", v->name);
    EXPECT_HEX(nvfp4_element_mult(t, e4m3_decode(e4m3_encode(raw))), v->element_mult, "%s coeff",
               v->name);
    Setup s;
    setup_make(&s, tensor_view(data, DT_F32, 16, 16), FORM_PACKED, how, how);
    s.amax[0] = s.amax[1] = v->amax;
    setup_round(&s);
    EXPECT_EQ_I64(s.row.scales[0], v->scale, "%s s8", v->name);
    EXPECT_BITS(s.row.data, v->bytes, 8, "%s codes", v->name);
    setup_free(&s);
}

// clang-format off
static const Vector vectors[] = {
    // name, amax, arithmetic, bits of S_enc, bits of s, s8, bits of coeff; codes; block
    {"V1", 0, 2, 0x3F800000, 0, 0x00, 0x7F7FFFFF,
     {0},
     {0}},
    {"V2", 2688, 2, 0x3F800000, 0, 0x00, 0x7F7FFFFF,
     {0},
     {0}},
    {"V3", 2688, 2, 0x3F800000, 0x3F800000, 0x38, 0x3F800000,
     {0x00, 0x21, 0x22, 0x43, 0x44, 0x65, 0x66, 0x77},
     {0, .25f, .5f, .75f, 1, 1.25f, 1.5f, 1.75f, 2, 2.5f, 3, 3.5f, 4, 5, 5.5f, 6}},
    {"V3b", 2688, 2, 0x3F800000, 0x3F800000, 0x38, 0x3F800000,
     {0x80, 0xA9, 0xAA, 0xCB, 0xCC, 0xED, 0xEE, 0xFF},
     {0, -.25f, -.5f, -.75f, -1, -1.25f, -1.5f, -1.75f, -2, -2.5f, -3, -3.5f, -4, -5, -5.5f,
      -6}},
    {"V4", 2688, 2, 0x3F800000, 0x43E00000, 0x7E, 0x3B124925,
     {0xF7, 0x35, 0xA2, 0x01, 0x66, 0x44, 0x22, 0x80},
     {2688, -2688, 1344, 672, 448, -448, 224, 112, 2240, 1568, 1120, 784, 560, 336, 111,
      -0.0f}},
    {"V5", 2688, 2, 0x3F800000, 0x3B2AAAAB, 0x01, 0x44000000,
     {0xF7, 0xE6, 0x47, 0xA2, 0x80, 0x70, 0x4E, 0x00},
     {0x1p-6f, -0x1p-6f, 0x1p-7f, -0x1p-7f, 3 * 0x1p-8f, 0x1p-8f, 0x1p-9f, -0x1p-9f, 0, -0.0f,
      0x1p-11f, 0x1p-6f, -0x1p-7f, 0x1p-8f, 0, 0}},
    {"V6", 2688, 2, 0x3F800000, 0x3A2AAAAB, 0x00, 0x7F7FFFFF,
     {0xF7, 0x07, 0x08, 0x00, 0xF7, 0x07, 0x00, 0x00},
     {0x1p-8f, -0x1p-8f, 0x1p-9f, 0, -0.0f, 0, 0, 0, 0x1p-10f, -0x1p-10f, 0x1p-8f}},
    {"V7", 20480, 2, 0x3E066666, 0x43E00000, 0x7E, 0x39999999,
     {0x07, 0x08, 0x80, 0x11, 0x90, 0x11, 0xB3, 0x65},
     {20480, 1, -1, .5f, 100, -640, 1280, 2560, 853, -854, 1706, 1707, 4267, -5120, 10240,
      15360}},
    {"V7b", 20480, 2, 0x3E066666, 0x3D866666, 0x18, 0x40066666,
     {0xC4, 0xA2, 0x31, 0xE1, 0xF7, 0x75, 0x80, 0x60},
     {1, -1, .5f, -.5f, .25f, .75f, .125f, -2, 3, -3, 1.5f, 2.5f, .0625f, -0.0f, 0, 2}},
    {"V8", 4.25f, 2, 0x441E1E1E, 0x434DE1E2, 0x75, 0x40429B39,
     {0xD2, 0x54, 0xEF, 0xA1, 0xD8, 0x45, 0x50, 0xD3},
     {.3046875f, -1.0390625f, .75f, .9375f, -1.953125f, -1.3046875f, .1279296875f,
      -.31640625f, -.0167236328125f, -.8515625f, .87890625f, .77734375f, .06591796875f,
      1.125f, .466796875f, -.859375f}},
    {"V9", 0x1p-120f, 2, 0x7F7FFFFF, 0x422AAAAA, 0x63, 0x7CBA2E8C,
     {0xD7, 0x03},
     {0x1p-120f, -0x1p-121f, 0x1p-122f}},
    {"V9b", 0x1p-126f, 2, 0x7F7FFFFF, 0x3F2AAAAA, 0x33, 0x7F7FFFFF,
     {0xE6, 0x04},
     {0x1p-126f, -0x1p-126f, 0x1p-127f}},
    {"V10", 25.5f, 2, 0x42D2D2D3, 0x43A80001, 0x7B, 0x3E995382,
     {0xF7, 0x35, 0x21, 0xE4, 0x80, 0x47, 0x01, 0x56},
     {19.125f, -19.125f, 9.5625f, 4.78125f, 1.59375f, 3.1875f, 6.375f, -12.75f, .5f, -0.0f,
      17, 8, 2.390625f, .796875f, 15.9375f, 11.15625f}},
    {"V10, arithmetic 1", 25.5f, 1, 0x42D2D2D3, 0x43A80000, 0x7A, 0x3EA8A8A8,
     {0xF7, 0x35, 0x21, 0xE4, 0x80, 0x57, 0x12, 0x67},
     {19.125f, -19.125f, 9.5625f, 4.78125f, 1.59375f, 3.1875f, 6.375f, -12.75f, .5f, -0.0f,
      17, 8, 2.390625f, .796875f, 15.9375f, 11.15625f}},
};
// clang-format on

CASE(worked_vectors_1_to_10) {
    for (int i = 0; i < ARRAY_LEN(vectors); i++) check_vector(&vectors[i]);
}

CASE(worked_vector_8_decodes) {
    static const uint8_t codes[8] = {0xD2, 0x54}, scales[512] = {0x75};
    static const uint32_t want[4] = {0x3EA86186, 0xBF7C9249, 0x3F286186, 0x3F7C9249};
    for (int i = 0; i < 4; i++) {
        float q = quantize_decode_packed(codes, scales, 1, 16, 0, i) / 208;
        EXPECT_HEX(q * (208 * 4.25f * (1.0f / 2688)), want[i], "element %d", i);
    }
}

CASE(worked_vector_11_square_tile) {
    static const uint8_t row0[8] = {0xCF, 0x9B, 0x41, 0x54, 0xCD, 0x9C, 0x31, 0x74};
    static const uint8_t one_dimensional[16] = {0x77, 0x73, 0x77, 0x73, 0x77, 0x73, 0x77, 0x73,
                                                0x77, 0x75, 0x77, 0x75, 0x76, 0x75, 0x76, 0x75};
    float x[256];
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++)
            x[16 * i + j] = (float)((7 * i + 3 * j) % 23 - 11) / 8 * ((i + j) % 5 ? 1.0f : 2.0f);
    Operand square = nvfp4_cell();
    square.tile = TILE_SQUARE;
    Setup s;
    setup_make(&s, tensor_view(x, DT_F32, 16, 16), FORM_PACKED, square, square);
    s.amax[0] = s.amax[1] = 5;
    setup_round(&s);
    EXPECT_BITS(s.row.data, row0, 8, "row 0");
    EXPECT_EQ_I64(crc32_update(0, s.row.data, 128), 0x00E136E2);
    EXPECT_EQ_I64(crc32_update(0, s.token.data, 128), 0x40B4CB2B);
    for (int r = 0; r < 16; r++) EXPECT_EQ_I64(s.row.scales[16 * r], 0x77, "scale of row %d", r);
    s.row_how.how = nvfp4_cell();
    setup_round(&s);
    for (int r = 0; r < 16; r++)
        EXPECT_EQ_I64(s.row.scales[16 * r], one_dimensional[r], "scale of row %d", r);
    setup_free(&s);
}

CASE(worked_vector_12_hadamard) {
    static const float want[16] = {-15.5f, -7.5f, 7.5f, -.5f, 7.5f, -.5f,  -15.5f, 8.5f,
                                   8.5f,   16.5f, 1.5f, 1.5f, 1.5f, -2.5f, 10.5f,  -17.5f};
    static const uint8_t bytes[8] = {0xDF, 0x85, 0x85, 0x5F, 0x75, 0x11, 0xA1, 0xF6};
    float x[256] = {0}, v[16];
    for (int i = 0; i < 16; i++) v[i] = x[i] = x[16 * i] = (float)(i + 1);   // row 0 and column 0
    x[0] = 1;
    hadamard16(v, HADAMARD_SIGN_MASK);
    EXPECT_BITS(v, want, sizeof(want));
    Operand how = nvfp4_cell();
    how.hadamard = 16;
    Setup s;
    setup_make(&s, tensor_view(x, DT_F32, 16, 16), FORM_PACKED, how, how);
    setup_run(&s);
    EXPECT(s.amax[0] == 17.5f && s.amax[1] == 17.5f, "amax %g and %g", s.amax[0], s.amax[1]);
    EXPECT_BITS(s.row.data, bytes, 8, "along a row");
    EXPECT_BITS(s.token.data, bytes, 8, "down a column");
    EXPECT_EQ_I64(s.row.scales[0], 0x7E);
    setup_free(&s);
}

// --- the Hadamard transform ---

CASE(hadamard_is_orthonormal_and_starts_with_the_signs) {
    float r[16][16];   // row i: the transform of unit vector i
    for (int i = 0; i < 16; i++) {
        memset(r[i], 0, sizeof(r[i]));
        r[i][i] = 1;
        hadamard16(r[i], HADAMARD_SIGN_MASK);
        for (int c = 0; c < 16; c++) {
            int minus = (HADAMARD_SIGN_MASK >> i & 1) ^ (__builtin_popcount((unsigned)(i & c)) & 1);
            EXPECT(r[i][c] == (minus ? -.25f : .25f), "e%d, element %d", i, c);
        }
    }
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < 16; j++) {
            double dot = 0;
            for (int c = 0; c < 16; c++) dot += (double)r[i][c] * r[j][c];
            EXPECT(dot == (i == j), "rows %d and %d: %g", i, j, dot);
        }
    }
    EXPECT_EQ_I64(hadamard_sign_mask(SIGNS_FIXED), 0xD7E8);
    EXPECT_EQ_I64(hadamard_sign_mask(SIGNS_NONE), 0);
}

/* What wgrad needs: transforming both operands along the contraction leaves their product alone.
   */
CASE(hadamard_cancels_in_a_product) {
    for (uint32_t trial = 0; trial < 64; trial++) {
        float a[16], b[16];
        double want = 0, got = 0;
        for (int i = 0; i < 16; i++) {
            a[i] = (float)setup_normal((uint64_t)i, trial),
            b[i] = (float)setup_normal(16u + (uint64_t)i, trial);
            want += (double)a[i] * b[i];
        }
        hadamard16(a, HADAMARD_SIGN_MASK);
        hadamard16(b, HADAMARD_SIGN_MASK);
        for (int i = 0; i < 16; i++) got += (double)a[i] * b[i];
        EXPECT_NEAR(got, want, 1e-5, "trial %u", trial);
    }
}

CASE(hadamard_op_runs_both_ways) {
    Tensor x = setup_tensor(DT_BF16, 48, 32, FILL_NORMAL, 1);
    const Hadamard h = {16, SIGNS_FIXED, 0, 0, NULL};
    bf16_t down[48 * 32], turned[32 * 48], along[32 * 48];
    for (int r = 0; r < 48; r++)
        for (int c = 0; c < 32; c++) turned[c * 48 + r] = ((bf16_t *)x.data)[r * 32 + c];
    hadamard_cpu(NULL, tensor_view(down, DT_BF16, 48, 32), x, 1, h);
    hadamard_cpu(NULL, tensor_view(along, DT_BF16, 32, 48), tensor_view(turned, DT_BF16, 32, 48), 0,
                 h);
    for (int r = 0; r < 48; r++)
        for (int c = 0; c < 32; c++)
            EXPECT_EQ_I64(down[r * 32 + c], along[c * 48 + r], "(%d,%d)", r, c);
    hadamard_cpu(NULL, x, x, 1, h);
    EXPECT_BITS(x.data, down, sizeof(down), "in place");
    EXPECT_ABORTS("multiple of 16",
                  hadamard_cpu(NULL, tensor_view(down, DT_BF16, 24, 32),
                               tensor_view(x.data, DT_BF16, 24, 32), 1, h));
    free(x.data);
}

/* amax and block maxima are those of the rounded transform, which hadamard_cpu gives. */
CASE(token_operand_sees_the_transformed_tensor) {
    Tensor x = setup_tensor(DT_BF16, 64, 80, FILL_NORMAL, 2);
    Tensor y = setup_tensor(DT_BF16, 64, 80, FILL_ZERO, 0);
    hadamard_cpu(NULL, y, x, 1, (Hadamard){16, SIGNS_FIXED, 0, 0, NULL});
    Operand plain = nvfp4_cell(), transformed = plain;
    transformed.hadamard = 16;
    Setup a, b;
    setup_make(&a, x, FORM_VALUES, plain, transformed);
    setup_make(&b, y, FORM_VALUES, plain, plain);
    setup_run(&a);
    setup_run(&b);
    EXPECT_HEX(a.amax[1], bits_from_f32(b.amax[1]), "amax of the transform");
    EXPECT(a.amax[0] != a.amax[1], "raw and transformed amax agree");
    EXPECT_BITS(a.token.data, b.token.data, setup_bytes(&a.token), "values");
    setup_free(&a), setup_free(&b), free(x.data), free(y.data);
}

CASE(row_operand_does_not_know_the_token_operands_transform) {
    Tensor x = setup_tensor(DT_BF16, 32, 48, FILL_NORMAL, 3);
    Operand plain = nvfp4_cell(), transformed = plain;
    transformed.hadamard = 16;
    Setup a, b;
    setup_make(&a, x, FORM_VALUES, plain, plain);
    setup_make(&b, x, FORM_VALUES, plain, transformed);
    setup_run(&a);
    setup_run(&b);
    EXPECT_BITS(a.row.data, b.row.data, setup_bytes(&a.row), "row operand");
    EXPECT(memcmp(a.token.data, b.token.data, setup_bytes(&a.token)) != 0,
           "the transform changes nothing");
    setup_free(&a), setup_free(&b), free(x.data);
}

// --- what codes must not depend on ---

CASE(powers_of_two_move_only_the_tensor_scale) {
    Tensor x = setup_tensor(DT_BF16, 16, 64, FILL_NORMAL, 4),
           scaled = setup_tensor(DT_BF16, 16, 64, FILL_ZERO, 0);
    Operand how = nvfp4_cell();
    Setup a, b;
    setup_make(&a, x, FORM_PACKED, how, how);
    setup_make(&b, scaled, FORM_PACKED, how, how);
    setup_run(&a);
    for (int e = -98; e <= 96; e += 2) {
        for (int i = 0; i < 16 * 64; i++)
            ((bf16_t *)scaled.data)[i] =
                bf16_from_f32(ldexpf(bf16_to_f32(((bf16_t *)x.data)[i]), e));
        setup_run(&b);
        EXPECT(b.amax[0] == ldexpf(a.amax[0], e), "2^%d amax", e);
        EXPECT(nvfp4_quant_mult(b.amax[0], 448) == ldexpf(nvfp4_quant_mult(a.amax[0], 448), -e),
               "2^%d S_enc", e);
        EXPECT_BITS(b.row.data, a.row.data, setup_bytes(&a.row), "2^%d codes", e);
        EXPECT_BITS(b.row.scales, a.row.scales, quantize_scales_bytes(16, 64), "2^%d scales", e);
    }
    setup_free(&a), setup_free(&b), free(x.data), free(scaled.data);
}

CASE(negation_flips_sign_bits_and_permutation_permutes) {
    Tensor x = setup_tensor(DT_BF16, 16, 32, FILL_NORMAL, 5),
           y = setup_tensor(DT_BF16, 16, 32, FILL_ZERO, 0);
    Operand how = nvfp4_cell();
    Setup a, b;
    setup_make(&a, x, FORM_PACKED, how, how);
    setup_make(&b, y, FORM_PACKED, how, how);
    setup_run(&a);
    for (int i = 0; i < 512; i++) ((bf16_t *)y.data)[i] = ((bf16_t *)x.data)[i] ^ 0x8000;
    setup_run(&b);
    EXPECT_BITS(a.row.scales, b.row.scales, quantize_scales_bytes(16, 32), "scales");
    for (int i = 0; i < 256; i++)
        EXPECT_EQ_I64(((uint8_t *)b.row.data)[i], ((uint8_t *)a.row.data)[i] ^ 0x88, "byte %d", i);
    for (int i = 0; i < 512; i++)
        ((bf16_t *)y.data)[i] = ((bf16_t *)x.data)[i ^ 15];   // reversed in its block
    setup_run(&b);
    EXPECT_BITS(a.row.scales, b.row.scales, quantize_scales_bytes(16, 32), "scales");
    for (int i = 0; i < 256; i++) {
        uint8_t pair = ((uint8_t *)a.row.data)[i ^ 7];
        EXPECT_EQ_I64(((uint8_t *)b.row.data)[i], (uint8_t)(pair >> 4 | pair << 4), "byte %d", i);
    }
    setup_free(&a), setup_free(&b), free(x.data), free(y.data);
}

CASE(the_block_of_the_tensor_maximum_has_scale_448) {
    Operand how = nvfp4_cell();
    for (int e = -100; e <= 100; e += 25) {
        for (uint32_t m = 0; m < 128; m++) {
            float amax = f32_from_bits((uint32_t)(e + 127) << 23 | m << 16);
            EXPECT_EQ_I64(e4m3_encode(nvfp4_raw_scale(nvfp4_tensor(amax, &how), amax)), 0x7E,
                          "amax %a", amax);
        }
    }
}

CASE(each_operand_is_quantised_along_its_contraction) {
    Tensor x = setup_tensor(DT_BF16, 64, 64, FILL_NORMAL, 6);
    Operand how = nvfp4_cell();
    ((bf16_t *)x.data)[0] = bf16_from_f32(9);   // the maximum, far from the probe
    Setup a, b;
    setup_make(&a, x, FORM_PACKED, how, how);
    setup_make(&b, x, FORM_PACKED, how, how);
    setup_run(&a);
    int row = 37, col = 21;
    ((bf16_t *)x.data)[row * 64 + col] = bf16_from_f32(3.9f);   // below amax, above its blocks'
    setup_run(&b);
    EXPECT(a.amax[0] == b.amax[0], "the probe is the maximum");
    int64_t row_at = quantize_scale_offset(row, col / 16, 4),
            token_at = quantize_scale_offset(col, row / 16, 4);
    for (int64_t i = 0; i < (int64_t)quantize_scales_bytes(64, 64); i++) {
        EXPECT_EQ_I64(a.row.scales[i] != b.row.scales[i], i == row_at, "row scale %lld",
                      (long long)i);
        EXPECT_EQ_I64(a.token.scales[i] != b.token.scales[i], i == token_at, "token scale %lld",
                      (long long)i);
    }
    setup_free(&a), setup_free(&b), free(x.data);
}

static Tensor transposed(Tensor x) {
    Tensor y = setup_tensor(DT_BF16, x.cols, x.rows, FILL_ZERO, 0);
    for (int64_t r = 0; r < x.rows; r++)
        for (int64_t c = 0; c < x.cols; c++)
            ((bf16_t *)y.data)[c * x.rows + r] = ((bf16_t *)x.data)[r * x.cols + c];
    return y;
}

/* A token operand of x is the row operand of x^T, for every cell that rounds to nearest. */
CASE(token_operand_is_row_operand_of_the_transpose) {
    Tensor x = setup_tensor(DT_BF16, 48, 144, FILL_NORMAL, 7), y = transposed(x);
    for (int i = 0; i < NUM_VARIANTS; i++) {
        Operand how = cell_variant(i);
        if (how.rounding != ROUND_NEAREST) continue;
        Setup a, b;
        setup_make(&a, x, FORM_PACKED, how, how);
        setup_make(&b, y, FORM_PACKED, how, how);
        setup_run(&a);
        setup_run(&b);
        EXPECT_BITS(a.token.data, b.row.data, setup_bytes(&a.token), "codes, variant %d", i);
        EXPECT_BITS(a.token.scales, b.row.scales, quantize_scales_bytes(144, 48),
                    "scales, variant %d", i);
        setup_free(&a), setup_free(&b);
    }
    free(x.data), free(y.data);
}

/* Square tiles serve both directions: the values of W^T are those of W. Rows of 16 do not. */
CASE(square_tiles_commute_with_transposition) {
    Tensor x = setup_tensor(DT_BF16, 256, 256, FILL_NORMAL, 8);
    Operand row = nvfp4_cell(), square = row;
    square.tile = TILE_SQUARE;
    Setup s;
    setup_make(&s, x, FORM_VALUES, square, square);
    setup_run(&s);
    EXPECT_BITS(s.row.data, s.token.data, setup_bytes(&s.row), "square tiles");
    setup_free(&s);
    setup_make(&s, x, FORM_VALUES, row, row);
    setup_run(&s);
    double differ = 0, sum_d2 = 0, sum_x2 = 0, mult = (double)s.amax[0] / 2688;
    for (int i = 0; i < 65536; i++) {
        double a = bf16_to_f32(((bf16_t *)s.row.data)[i]),
               b = bf16_to_f32(((bf16_t *)s.token.data)[i]);
        double v = bf16_to_f32(((bf16_t *)x.data)[i]);
        differ += a != b, sum_d2 += (a - b) * (a - b) * mult * mult, sum_x2 += v * v;
    }
    EXPECT_NEAR(differ / 65536, .77, .02, "share of values that differ");
    EXPECT_NEAR(sqrt(sum_d2 / sum_x2), .129, .004, "relative RMS difference");
    setup_free(&s), free(x.data);
}

CASE(results_do_not_depend_on_threads) {
    Tensor x = setup_tensor(DT_BF16, 208, 96, FILL_NORMAL, 9);
    Operand how = cell_variant(2 * 1 + 6 * 1);
    int threads = omp_get_max_threads();
    Setup a, b;
    setup_make(&a, x, FORM_VALUES, how, how);
    setup_make(&b, x, FORM_VALUES, how, how);
    omp_set_num_threads(1);
    setup_run(&a);
    omp_set_num_threads(3);
    setup_run(&b);
    omp_set_num_threads(threads);
    EXPECT_BITS(a.amax, b.amax, sizeof(a.amax), "amax");
    EXPECT_BITS(a.row.data, b.row.data, setup_bytes(&a.row), "row");
    EXPECT_BITS(a.token.data, b.token.data, setup_bytes(&a.token), "token");
    setup_free(&a), setup_free(&b), free(x.data);
}

/* Draws follow the token's place in the step's batch: 64 rows at once are two micro-batches of
   32, given one amax. */
CASE(micro_batches_draw_what_the_whole_batch_draws) {
    Tensor x = setup_tensor(DT_BF16, 64, 80, FILL_NORMAL, 10);
    for (int i = 0; i < NUM_VARIANTS; i++) {
        Operand how = cell_variant(i);
        if (how.tile == TILE_SQUARE || how.rounding == ROUND_NEAREST) continue;
        Setup all, part;
        setup_make(&all, x, FORM_VALUES, how, how);
        setup_run(&all);
        for (int half = 0; half < 2; half++) {
            setup_make(&part, tensor_rows(x, half * 32, 32), FORM_VALUES, how, how);
            memcpy(part.amax, all.amax, sizeof(part.amax));
            part.state.token_base += half * 32;
            setup_round(&part);
            size_t bytes = setup_bytes(&part.row);
            EXPECT_BITS(part.row.data, (char *)all.row.data + (size_t)half * bytes, bytes,
                        "row, variant %d", i);
            EXPECT_BITS(part.token.data, (char *)all.token.data + (size_t)half * bytes, bytes,
                        "token, variant %d", i);
            setup_free(&part);
        }
        setup_free(&all);
    }
    free(x.data);
}

// --- random bits ---

/* The layout of rng.h, spelled out for single elements. */
CASE(elements_take_the_draws_of_rng_h) {
    Tensor x = setup_tensor(DT_BF16, 32, 48, FILL_NORMAL, 11);
    static const int widths[3] = {8, 16, 24};
    for (int w = 0; w < 3; w++) {
        Operand how = nvfp4_cell();
        how.rounding = ROUND_STOCHASTIC;
        how.dither_bits = widths[w];
        Setup s;
        setup_make(&s, x, FORM_PACKED, how, how);
        setup_run(&s);
        for (int token = 0; token < 2; token++) {
            const QOperand *o = token ? &s.token : &s.row;
            for (int row = 0; row < o->rows; row += 5) {
                for (int k = 0; k < o->k; k++) {
                    int e = k % 16, sub = widths[w] == 8 ? 0 : widths[w] == 16 ? e / 8 : e / 4;
                    uint64_t group = token ? (uint64_t)((1024 / 16 + k / 16) * 48 + row)
                                           : (uint64_t)((1024 + row) * 3 + k / 16);
                    uint32_t tag = 3u << 8 | (token ? 2u : 1u) << 4 | 0u << 2 | (uint32_t)sub;
                    Philox4 r =
                        philox4x32_10(rng_group_counter(group, tag, 5), 0x89ABCDEF, 0x01234567);
                    uint32_t draw = widths[w] == 8    ? r.w[e / 4] >> e % 4 * 8 & 0xFF
                                    : widths[w] == 16 ? r.w[e % 8 / 2] >> e % 2 * 16 & 0xFFFF
                                                      : r.w[e % 4] >> 8;
                    int64_t at = token ? (int64_t)k * 48 + row : (int64_t)row * 48 + k;
                    uint8_t scale = o->scales[quantize_scale_offset(row, k / 16, 4)];
                    Nvfp4Tensor t = nvfp4_tensor(*o->amax, &how);
                    float y = bf16_to_f32(((bf16_t *)x.data)[at]) *
                              nvfp4_element_mult(t, e4m3_decode(scale));
                    uint8_t pair = ((uint8_t *)o->data)[(row * o->k + k) / 2];
                    EXPECT_EQ_I64(k % 2 ? pair >> 4 : pair & 15,
                                  e2m1_encode_stochastic(y, draw, widths[w]), "%d bits, %s (%d,%d)",
                                  widths[w], token ? "token" : "row", row, k);
                }
            }
        }
        setup_free(&s);
    }
    free(x.data);
}

static double share_differing(const Setup *a, const Setup *b) {
    int64_t n = tensor_count(a->x), differ = 0;
    for (int64_t i = 0; i < n; i++)
        differ += ((bf16_t *)a->row.data)[i] != ((bf16_t *)b->row.data)[i];
    return (double)differ / (double)n;
}

CASE(everything_that_names_a_draw_changes_it) {
    Tensor x = setup_tensor(DT_BF16, 64, 128, FILL_NORMAL, 12);
    Operand how = nvfp4_cell();
    how.rounding = ROUND_STOCHASTIC;
    Setup a, b;
    setup_make(&a, x, FORM_VALUES, how, how);
    setup_make(&b, x, FORM_VALUES, how, how);
    setup_run(&a);
    setup_run(&b);
    EXPECT(share_differing(&a, &b) == 0, "the same draw gives other values");
    static const char *const names[] = {"step",   "token base", "seed",   "seed, high word",
                                        "linear", "gemm",       "operand"};
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        Quantizer how_a = a.row_how;
        StepState state = a.state;
        if (i == 0) state.step++;
        if (i == 1) state.token_base += 64;
        if (i == 2) how_a.seed ^= 1;
        if (i == 3) how_a.seed ^= 1ull << 40;
        if (i >= 4) how_a.tag ^= rng_quantize_tag(i == 4, i == 5, i == 6, 0);
        how_a.state = &state;
        quantize_pair_cpu(NULL, &b.row, &how_a, NULL, NULL, x);
        EXPECT(share_differing(&a, &b) > .05, "%s: %g of the values differ", names[i],
               share_differing(&a, &b));
    }
    setup_free(&a), setup_free(&b), free(x.data);
}

// --- special values ---

CASE(special_tensors_give_no_nan) {
    static const float amaxes[] = {0, 0x1p-133f, 0x1p-126f, 0x1p-120f,  1e-30f,
                                   1, 1e30f,     1e38f,     0x1.FEp127f};
    for (int i = 0; i < ARRAY_LEN(amaxes); i++) {
        for (int fill = 0; fill < 2;
             fill++) {   // one element that is not zero; then +-0 and +-amax mixed
            bf16_t data[256] = {0};
            bf16_t most = bf16_from_f32(amaxes[i]);
            for (int e = 0; e < 256 && fill; e++)
                data[e] = (bf16_t)(e % 3 ? e % 2 << 15 : most | e % 2 << 15);
            data[17] = most;
            Operand how = nvfp4_cell();
            Setup s;
            setup_make(&s, tensor_view(data, DT_BF16, 16, 16), FORM_VALUES, how, how);
            setup_run(&s);
            EXPECT(s.amax[0] == bf16_to_f32(most), "amax %g is %g", amaxes[i], s.amax[0]);
            for (int e = 0; e < 256; e++)
                EXPECT(isfinite(bf16_to_f32(((bf16_t *)s.row.data)[e])), "amax %g, element %d",
                       amaxes[i], e);
            if (amaxes[i] >= 1e-30f)   // below, S_enc is capped
                EXPECT(bf16_to_f32(((bf16_t *)s.row.data)[17]) == 2688,
                       "the maximum decodes to 6 * 448");
            setup_free(&s);
        }
    }
}

CASE(what_is_not_finite_gives_nan_everywhere) {
    static const float values[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 3; i++) {
        for (int form = 0; form < 2; form++) {
            Tensor x = setup_tensor(DT_BF16, 32, 32, FILL_NORMAL, 17);
            ((bf16_t *)x.data)[100] = bf16_from_f32(values[i]);
            Operand how = nvfp4_cell();
            Setup s;
            setup_make(&s, x, (OperandForm)form, how, how);
            setup_run(&s);
            EXPECT(!isfinite(s.amax[0]) && !isfinite(s.amax[1]), "amax %g", s.amax[0]);
            for (int e = 0; e < 1024; e++) {
                float v = form == FORM_VALUES
                              ? bf16_to_f32(((bf16_t *)s.row.data)[e])
                              : quantize_decode_packed((uint8_t *)s.row.data, s.row.scales, 32, 32,
                                                       e / 32, e % 32);
                EXPECT(isnan(v), "element %d is %g", e, v);
            }
            setup_free(&s), free(x.data);
        }
    }
}

/* Blocks that hold grid values with one +-6, and one of 448 times the grid: everything is exact
   and alpha is 1. */
CASE(grid_values_pass_unchanged) {
    float x[256];
    for (int i = 0; i < 256; i++)
        x[i] = e2m1_decode((uint8_t)(i % 16 == 3 ? 7 : (i * 7 + i / 16) % 16)) *
               (i / 16 == 5 ? 448.0f : 1.0f);
    Operand how = nvfp4_cell();
    Setup s;
    setup_make(&s, tensor_view(x, DT_F32, 16, 16), FORM_VALUES, how, how);
    setup_run(&s);
    EXPECT(s.amax[0] == 2688, "amax %g", s.amax[0]);
    for (int i = 0; i < 256; i++)
        EXPECT(bf16_to_f32(((bf16_t *)s.row.data)[i]) == x[i], "element %d", i);
    EXPECT(2688.0f * 2688.0f * operand_alpha_mult(&s.row, &s.token) == 1, "alpha");
    setup_free(&s);
}

CASE(alpha_multipliers) {
    QOperand a = {.amax = &(float){1}, .dequant_div = 2688}, b = a,
             plain = {.dequant_div = 1};
    EXPECT_HEX(operand_alpha_mult(&a, &b), 0x34149B93);
    EXPECT_HEX(4.25f * 25.5f * operand_alpha_mult(&a, &b), 0x377BA571);
    EXPECT_HEX(operand_alpha_mult(&a, &plain), 0x39C30C31);
    EXPECT_HEX(operand_alpha_mult(&plain, &plain), 0x3F800000);
    b.dequant_div = 1536;
    EXPECT(operand_alpha_mult(&a, &b) == 1.0f / (2688.0f * 1536.0f), "mixed tops");
}

// --- forms and paths ---

CASE(packed_decodes_to_values) {
    Tensor x = setup_tensor(DT_BF16, 144, 80, FILL_OUTLIER, 18);
    for (int i = 0; i < NUM_VARIANTS; i++) {
        Operand how = cell_variant(i);
        Setup v, p;
        setup_make(&v, x, FORM_VALUES, how, how);
        setup_make(&p, x, FORM_PACKED, how, how);
        setup_run(&v);
        setup_run(&p);
        for (int64_t r = 0; r < 144; r++) {
            for (int64_t c = 0; c < 80; c++) {
                bf16_t row = ((bf16_t *)v.row.data)[r * 80 + c],
                       token = ((bf16_t *)v.token.data)[r * 80 + c];
                float row_p =
                    quantize_decode_packed((uint8_t *)p.row.data, p.row.scales, 144, 80, r, c);
                float token_p =
                    quantize_decode_packed((uint8_t *)p.token.data, p.token.scales, 80, 144, c, r);
                EXPECT_EQ_I64(row, bf16_from_f32(row_p), "variant %d, row operand", i);
                EXPECT_EQ_I64(token, bf16_from_f32(token_p), "variant %d, token operand", i);
            }
        }
        setup_free(&v), setup_free(&p);
    }
    free(x.data);
}

CASE(padding_of_scales_is_zero) {
    Tensor x = setup_tensor(DT_BF16, 16, 80, FILL_NORMAL, 19);
    Operand how = nvfp4_cell();
    Setup s;
    setup_make(&s, x, FORM_PACKED, how, how);
    setup_run(&s);
    for (int64_t r = 0; r < 128; r++)
        for (int64_t c = 0; c < 8; c++)
            EXPECT_EQ_I64(s.row.scales[quantize_scale_offset(r, c, 8)] != 0, r < 16 && c < 5,
                          "(%d,%d)", (int)r, (int)c);
    setup_free(&s), free(x.data);
}

/* Every cell, shapes that are no multiples of a chunk, every kind of input, both dtypes. */
CASE(fast_path_is_the_reference) {
    static const int shapes[][2] = {{16, 16}, {48, 80}, {32, 192}, {80, 144}};
    for (int i = 0; i < NUM_VARIANTS * NUM_FILLS; i++) {
        Operand how = cell_variant(i % NUM_VARIANTS),
                other = cell_variant((i * 7 + 3) % NUM_VARIANTS);
        const int *shape = shapes[i % ARRAY_LEN(shapes)];
        Fill fill = (Fill)(i / NUM_VARIANTS);
        Tensor x = setup_tensor(i % 5 ? DT_BF16 : DT_F32, shape[0], shape[1], fill, (uint32_t)i);
        Setup fast, plain;
        setup_make(&fast, x, FORM_VALUES, how, other);
        setup_make(&plain, x, FORM_VALUES, how, other);
        fast.row_how.rows_are_tokens = plain.row_how.rows_are_tokens = i % 3 > 0;
        setup_run(&fast);
        amax_reference(&plain.row, &plain.row_how, x);
        amax_reference(&plain.token, &plain.token_how, x);
        quantize_reference(&plain.row, &plain.row_how, x);
        quantize_reference(&plain.token, &plain.token_how, x);
        EXPECT_BITS(fast.amax, plain.amax, sizeof(fast.amax), "amax, fill %d, variant %d", fill,
                    i % NUM_VARIANTS);
        EXPECT_BITS(fast.row.data, plain.row.data, setup_bytes(&fast.row),
                    "row, fill %d, variant %d", fill, i % NUM_VARIANTS);
        EXPECT_BITS(fast.token.data, plain.token.data, setup_bytes(&fast.token),
                    "token, fill %d, variant %d", fill, i % NUM_VARIANTS);
        setup_free(&fast), setup_free(&plain), free(x.data);
    }
}

CASE(either_operand_alone) {
    Tensor x = setup_tensor(DT_BF16, 32, 80, FILL_NORMAL, 20);
    Operand how = cell_variant(2 + 6);
    Setup both, alone;
    setup_make(&both, x, FORM_VALUES, how, how);
    setup_make(&alone, x, FORM_VALUES, how, how);
    setup_run(&both);
    amax_pair_cpu(NULL, &alone.row, &alone.row_how, NULL, NULL, x);
    quantize_pair_cpu(NULL, &alone.row, &alone.row_how, NULL, NULL, x);
    amax_pair_cpu(NULL, NULL, NULL, &alone.token, &alone.token_how, x);
    quantize_pair_cpu(NULL, NULL, NULL, &alone.token, &alone.token_how, x);
    EXPECT_BITS(both.row.data, alone.row.data, setup_bytes(&both.row), "row");
    EXPECT_BITS(both.token.data, alone.token.data, setup_bytes(&both.token), "token");
    setup_free(&both), setup_free(&alone), free(x.data);
}

CASE(wrong_arguments_abort) {
    Tensor x = setup_tensor(DT_BF16, 32, 32, FILL_NORMAL, 21);
    Operand how = nvfp4_cell();
    Setup s;
    setup_make(&s, x, FORM_VALUES, how, how);
    EXPECT_ABORTS("other direction", amax_pair_cpu(NULL, &s.row, &s.token_how, NULL, NULL, x));
    EXPECT_ABORTS("nothing to quantise", amax_pair_cpu(NULL, NULL, NULL, NULL, NULL, x));
    EXPECT_ABORTS("no multiples of 16", s.x.rows = 24, setup_amax(&s));
    EXPECT_ABORTS("16 x 32", s.x.rows = 16, setup_amax(&s));
    EXPECT_ABORTS("does not fit top 256", s.row_how.how.top_scale = 256, setup_amax(&s));
    EXPECT_ABORTS("dither bits", s.row_how.how.rounding = ROUND_STOCHASTIC,
                  s.row_how.how.dither_bits = 4, setup_amax(&s));
    EXPECT_ABORTS("does not know blocks of bf16", s.row_how.how.elem = DT_BF16, setup_amax(&s));
    EXPECT_ABORTS("format 2, cell's 8", s.row_how.how.format = FORMAT_UE5M3, setup_amax(&s));
    setup_free(&s), free(x.data);
}

/* Thousands of small tensors: a team of threads would cost more than it gives. */
int main(int argc, char **argv) {
    omp_set_num_threads(1);
    return test_run(argc, argv);
}
