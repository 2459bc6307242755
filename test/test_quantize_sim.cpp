/*
test_quantize_sim -- the source of the GPU's kernel for pairs of operands, run on the host by
fibres.h against the CPU reference, bit for bit: both forms, every mode, one operand and both,
ragged and whole shapes, inputs that are not finite; that nothing is written beyond an operand; and
the conversion to codes in software against the oracle. The other kernels, the hardware's conversion
and the launches themselves need a GPU: test_quantize_cuda.cu.
*/
#include "fibres.h"

#include "../llmc/ops/quantize_pair.cuh"

#include "../llmc/ops/quantize_cpu.h"
#include "quantize_setup.h"
#include "test.h"

// --- one problem by both ---

enum { ROW = 1, TOKEN = 2, BOTH_OPERANDS = ROW | TOKEN, GUARD = 64, UNTOUCHED = 0xA5 };

/* An operand with guards around its memory, in blocks that the kernel may not leave. */
typedef struct {
    QOperand operand;
    uint8_t *data, *scales;
    size_t data_bytes, scale_bytes;
} Guarded;

static uint8_t *guarded_bytes(size_t bytes) {
    uint8_t *memory = (uint8_t *)xmalloc(bytes + 2 * GUARD);
    memset(memory, UNTOUCHED, bytes + 2 * GUARD);
    return memory;
}

static Guarded guarded_like(const QOperand *host) {
    Guarded g = {};
    g.operand = *host;
    g.data_bytes = setup_bytes(host);
    g.data = guarded_bytes(g.data_bytes);
    g.operand.data = g.data + GUARD;
    if (!host->scales) return g;
    g.scale_bytes = quantize_scales_bytes(host->rows, host->k);
    g.scales = guarded_bytes(g.scale_bytes);
    g.operand.scales = g.scales + GUARD;
    if (scales_have_padding(host)) memset(g.operand.scales, 0, g.scale_bytes);
    return g;
}

static void guarded_free(Guarded *g) { free(g->data), free(g->scales); }

static void expect_guards(const uint8_t *memory, size_t bytes, const char *where) {
    int touched = 0;
    for (int i = 0; i < GUARD; i++)
        touched += (memory[i] != UNTOUCHED) + (memory[GUARD + bytes + i] != UNTOUCHED);
    EXPECT(touched == 0, "%d bytes beyond the operand were written, %s", touched, where);
}

static void expect_same(const Guarded *got, const QOperand *want, const char *where) {
    EXPECT_BITS(got->operand.data, want->data, got->data_bytes, "data, %s", where);
    expect_guards(got->data, got->data_bytes, where);
    if (!want->scales) return;
    EXPECT_BITS(got->operand.scales, want->scales, got->scale_bytes, "scales, %s", where);
    expect_guards(got->scales, got->scale_bytes, where);
}

static void thread_main(void *launch) {
    ((PairLaunch *)launch)->kernel(((PairLaunch *)launch)->args);
}

/* Runs what the launcher would; the maxima are the reference's. */
static void run_pair(OperandForm form, const QOperand *row, const Quantizer *row_how,
                     const QOperand *token, const Quantizer *token_how, Tensor x) {
    PairLaunch launch = pair_launch(form, row, row_how, token, token_how, x);
    REQUIRE(launch.kernel, "no kernel for this pair");
    for (unsigned block = 0; block < launch.blocks; block++)
        fibre_run_block(thread_main, &launch, PAIR_THREADS, (int)block);
}

static void compare(Tensor x, OperandForm form, Operand row, Operand token, int which,
                    const char *where) {
    Setup s;
    setup_make(&s, x, form, row, token);
    s.row_how.first_row = s.token_how.first_row = 48;
    Guarded got_row = guarded_like(&s.row), got_token = guarded_like(&s.token);
    amax_reference(&s.row, &s.row_how, x);
    amax_reference(&s.token, &s.token_how, x);
    run_pair(form, which & ROW ? &got_row.operand : NULL, &s.row_how,
             which & TOKEN ? &got_token.operand : NULL, &s.token_how, x);
    if (which & ROW) {
        quantize_reference(&s.row, &s.row_how, x);
        expect_same(&got_row, &s.row, where);
    }
    if (which & TOKEN) {
        quantize_reference(&s.token, &s.token_how, x);
        expect_same(&got_token, &s.token, where);
    }
    guarded_free(&got_row), guarded_free(&got_token), setup_free(&s);
}

// --- cases ---

/* Options of a pair: bit 0, 1: the row, the token operand is stochastic; bit 2: the token operand
   is transformed. */
enum { NUM_OPTIONS = 8 };
static Operand row_cell(int options) {
    Operand o = nvfp4_cell();
    if (options & 1) o.rounding = ROUND_STOCHASTIC;
    return o;
}
static Operand token_cell(int options) {
    Operand o = nvfp4_cell();
    if (options & 2) o.rounding = ROUND_STOCHASTIC;
    if (options & 4) o.hadamard = 16;
    return o;
}

// Whole and partial tiles of 32 x 256 and 64 x 128, and words of scales that are not full.
static const int shapes[][2] = {{16, 16},   {48, 80},   {64, 128},  {32, 256}, {80, 240},
                                {128, 256}, {144, 32},  {16, 528},  {64, 272}, {272, 144},
                                {192, 128}, {112, 384}, {272, 1040}};

static void compare_at_every_shape(OperandForm form) {
    for (int i = 0; i < ARRAY_LEN(shapes); i++) {
        int rows = shapes[i][0], cols = shapes[i][1];
        Tensor x = setup_tensor(DT_BF16, rows, cols, FILL_NORMAL, (uint32_t)i);
        for (int job = 0; job < NUM_OPTIONS * BOTH_OPERANDS; job++) {
            int options = job / BOTH_OPERANDS, which = job % BOTH_OPERANDS + 1;
            if (rows * cols > 50000 && which != BOTH_OPERANDS) continue;   // seen at other shapes
            char where[96];
            snprintf(where, sizeof(where), "options %d, operands %d, %d x %d", options, which, rows,
                     cols);
            compare(x, form, row_cell(options), token_cell(options), which, where);
        }
        free(x.data);
    }
}

CASE(values_at_every_shape) { compare_at_every_shape(FORM_VALUES); }
CASE(codes_at_every_shape) { compare_at_every_shape(FORM_PACKED); }

/* The arithmetic of every cell that the kernel knows, over all inputs. */
CASE(codes_of_every_cell_and_input) {
    int compared = 0;
    for (int i = 0; i < NUM_VARIANTS * NUM_FILLS; i++) {
        Fill fill = (Fill)(i % NUM_FILLS);
        Operand token = cell_variant(i / NUM_FILLS), row = token;
        row.hadamard = 0;
        Quantizer how = setup_quantizer(token, 1, NULL);
        QOperand operand = {};
        if (pair_mode(&operand, &how) == MODE_NONE) continue;
        Tensor x = setup_tensor(DT_BF16, 80, 144, fill, (uint32_t)i);
        char where[64];
        snprintf(where, sizeof(where), "cell %d, fill %d", i / NUM_FILLS, fill);
        compare(x, FORM_PACKED, row, token, BOTH_OPERANDS, where);
        free(x.data);
        compared++;
    }
    // Of the tiles one of two, of the ways of rounding two of four.
    EXPECT(compared == NUM_FILLS * NUM_VARIANTS / 4, "%d compared", compared);
}

CASE(what_is_not_finite_gives_the_same_codes) {
    static const float values[] = {INFINITY, -INFINITY, NAN,
                                   3e38f};   // the last overflows in the transform
    for (int i = 0; i < ARRAY_LEN(values); i++) {
        Tensor x = setup_tensor(DT_BF16, 48, 272, FILL_NORMAL, 1);
        for (int r = 0; r < 16; r++)
            ((bf16_t *)x.data)[r * 272 + 40] = bf16_from_f32(r % 3 ? values[i] : -values[i]);
        for (int options = 0; options < NUM_OPTIONS; options++) {
            compare(x, FORM_VALUES, row_cell(options), token_cell(options), BOTH_OPERANDS,
                    "values");
            compare(x, FORM_PACKED, row_cell(options), token_cell(options), BOTH_OPERANDS, "codes");
        }
        free(x.data);
    }
}

/* All bf16 numbers, and floats on both sides of every midpoint. */
static void expect_codes(const float v[8]) {
    uint32_t want = 0, got = e2m1x8_encode(v);
    for (int i = 0; i < 8; i++) want |= (uint32_t)e2m1_encode(v[i]) << 4 * i;
    EXPECT(got == want, "codes of %g, %g, ...: %08x, want %08x", v[0], v[1], got, want);
}

CASE(codes_in_software_are_those_of_the_oracle) {
    float v[8];
    for (uint32_t i = 0; i < 65536; i++) {
        v[i % 8] = bf16_to_f32(bf16_from_f32(bf16_to_f32((bf16_t)i)));   // NaN: a quiet one
        if (i % 8 == 7) expect_codes(v);
    }
    for (uint32_t midpoint = 1; midpoint < 16 * 4; midpoint++) {
        float at = 0.125f * (float)midpoint;
        const float near[8] = {at,  nextafterf(at, 0),  nextafterf(at, 9),  at,
                               -at, -nextafterf(at, 0), -nextafterf(at, 9), -at};
        expect_codes(near);
    }
}

/* What the simulation itself adds: rounding towards zero, against the definition. */
CASE(fma_towards_zero) {
    static const float a[] = {1.0f, -3.0f, 0x1.fffffep+3f, 0x1.8p-30f, 6291456.0f};
    for (int i = 0; i < ARRAY_LEN(a) * ARRAY_LEN(a) * ARRAY_LEN(a); i++) {
        float x = a[i % 5], y = 0x1.000002p0f * a[i / 5 % 5], z = a[i / 25];
        long double exact = (long double)x * y + z;
        float got = __fmaf_rz(x, y, z);
        long double next = nextafterf(got, got > 0 ? INFINITY : -INFINITY);
        EXPECT(fabsl(got) <= fabsl(exact) && fabsl(exact) < fabsl(next), "%a * %a + %a gives %a", x,
               y, z, got);
    }
}

TEST_MAIN_END
