/*
test_quantize_fp8_sim -- the source of the GPU's kernels for operands with one scale for a tensor,
run on the host by fibres.h against the CPU's, bit for bit: both forms, every pair of formats, one
operand and both, ragged and whole shapes; that nothing is written beyond an operand. The hardware's
conversion and the launches themselves need a GPU: test_quantize_fp8_cuda.cu.
*/
#include "fibres.h"

#include "../llmc/ops/quantize_fp8.cuh"

#include "quantize_setup.h"
#include "test.h"

enum { ROW = 1, TOKEN = 2, BOTH_OPERANDS = ROW | TOKEN, GUARD = 64, UNTOUCHED = 0xA5 };

/* An operand with guards around its memory, which the kernel may not touch. */
typedef struct {
    QOperand operand;
    uint8_t *data;
    size_t bytes;
} Guarded;

static Guarded guarded_like(const QOperand *host) {
    Guarded g = {};
    g.operand = *host;
    g.bytes = setup_bytes(host);
    g.data = (uint8_t *)xmalloc(g.bytes + 2 * GUARD);
    memset(g.data, UNTOUCHED, g.bytes + 2 * GUARD);
    g.operand.data = g.data + GUARD;
    return g;
}

static void expect_same(const Guarded *got, const QOperand *want, const char *where) {
    int touched = 0;
    for (int i = 0; i < GUARD; i++)
        touched += (got->data[i] != UNTOUCHED) + (got->data[GUARD + got->bytes + i] != UNTOUCHED);
    EXPECT(touched == 0, "%d bytes beyond the operand were written, %s", touched, where);
    EXPECT_BITS(got->operand.data, want->data, got->bytes, "%s", where);
}

static void thread_main(void *launch) {
    ((Fp8Launch *)launch)->kernel(((Fp8Launch *)launch)->args);
}

static void compare(Tensor x, OperandForm form, FormatId row, FormatId token, int which,
                    const char *where) {
    Setup s;
    setup_make(&s, x, form, fp8_cell(row), fp8_cell(token));
    setup_run(&s);
    Guarded got_row = guarded_like(&s.row), got_token = guarded_like(&s.token);
    Fp8Launch launch = fp8_launch(form, which & ROW ? &got_row.operand : NULL,
                                  which & TOKEN ? &got_token.operand : NULL, x);
    REQUIRE(launch.kernel, "no kernel for this pair");
    for (unsigned block = 0; block < launch.blocks; block++)
        fibre_run_block(thread_main, &launch, FP8_THREADS, (int)block);
    if (which & ROW) expect_same(&got_row, &s.row, where);
    if (which & TOKEN) expect_same(&got_token, &s.token, where);
    free(got_row.data), free(got_token.data), setup_free(&s);
}

// Whole and partial tiles of 128 x 64.
static const int shapes[][2] = {{16, 16}, {48, 80}, {128, 64}, {256, 192}, {144, 272}, {272, 144}};

CASE(codes_and_values_at_every_shape) {
    for (int i = 0; i < 2 * 4 * 3 * ARRAY_LEN(shapes); i++) {
        OperandForm form = i % 2 ? FORM_PACKED : FORM_VALUES;
        FormatId row = i / 2 % 2 ? FORMAT_E5M2 : FORMAT_E4M3;
        FormatId token = i / 4 % 2 ? FORMAT_E5M2 : FORMAT_E4M3;
        int which = i / 8 % 3 + 1;
        const int *shape = shapes[i / 24];
        Tensor x = setup_tensor(DT_BF16, shape[0], shape[1], (Fill)(i % NUM_FILLS), (uint32_t)i);
        char where[96];
        snprintf(where, sizeof(where), "form %d, %s and %s, operands %d, %d x %d", form,
                 formats[row].name, formats[token].name, which, shape[0], shape[1]);
        compare(x, form, row, token, which, where);
        free(x.data);
    }
}

/* Numbers of a warp's words in shared memory, as it writes and as it reads them: none falls on
   another's bank. */
CASE(a_warp_meets_every_bank_once) {
    for (int i = 0; i < 8; i++) {
        uint32_t banks = 0;
        for (int lane = 0; lane < 32; lane++)
            banks |= 1u << fp8_tile_word(lane % 8 * 8 + i, lane / 8) % 32;
        EXPECT_EQ_I64(banks, 0xFFFFFFFFu, "write %d", i);
    }
    for (int col = 0; col < FP8_TILE_COLS; col++) {
        uint32_t banks = 0;   // of the 8 threads that read a column, 16 bytes each
        for (int part = 0; part < 8; part++) banks |= 0xFu << fp8_tile_word(col, 4 * part) % 32;
        EXPECT_EQ_I64(banks, 0xFFFFFFFFu, "column %d", col);
    }
}

/* Operands of the other form, and NVFP4's, are left to other kernels. */
CASE(launches_of_what_is_not_theirs) {
    Tensor x = setup_tensor(DT_BF16, 16, 16, FILL_NORMAL, 1);
    Setup s;
    setup_make(&s, x, FORM_PACKED, fp8_cell(FORMAT_E4M3), nvfp4_cell());
    EXPECT(!fp8_launch(FORM_VALUES, &s.row, &s.token, x).kernel, "form");
    EXPECT(!fp8_launch(FORM_PACKED, NULL, &s.token, x).kernel, "NVFP4");
    EXPECT(!fp8_launch(FORM_PACKED, NULL, NULL, x).kernel, "nothing");
    EXPECT(!fp8_launch(FORM_PACKED, &s.row, &s.token, x).args.token, "NVFP4 beside E4M3");
    setup_free(&s), free(x.data);
}

TEST_MAIN_END
