// test_quantize_cuda -- the quantisers of the GPU against those of the CPU, bit for bit: amax,
// values, codes and scales of every cell, at sizes that are no multiples of a tile, with zeros,
// subnormals and 1e38. Ends with the speed of the two passes beside that of a copy.
#include "../llmc/device_cuda.cuh"
#include "../llmc/ops/hadamard.h"
#include "../llmc/ops/quantize.h"
#include "../llmc/ops/quantize_cpu.h"
#include "quantize_twin.cuh"
#include "test.h"

static void expect_same_operand(const QOperand *on_gpu, const QOperand *host, const char *where) {
    expect_equal(on_gpu->amax, host->amax, sizeof(float), "amax", where);
    expect_equal(on_gpu->data, host->data, setup_bytes(host),
                 host->form == FORM_PACKED ? "codes" : "values", where);
    if (host->scales)
        expect_equal(on_gpu->scales, host->scales, quantize_scales_bytes(host->rows, host->k),
                     "scales", where);
}

/* Quantises on both devices and compares the operands in `which`. */
static void compare(Tensor x, OperandForm form, Operand row, Operand token, int which,
                    const char *where) {
    Twin t;
    twin_make(&t, x, form, row, token);
    run_gpu(&t, which);
    if (which & ROW) {
        amax_reference(&t.host.row, &t.host.row_how, x);
        quantize_reference(&t.host.row, &t.host.row_how, x);
        expect_same_operand(&t.row, &t.host.row, where);
    }
    if (which & TOKEN) {
        amax_reference(&t.host.token, &t.host.token_how, x);
        quantize_reference(&t.host.token, &t.host.token_how, x);
        expect_same_operand(&t.token, &t.host.token, where);
    }
    twin_free(&t);
}

// Partial tiles of 32 x 256 (values) and 64 x 128 (codes) in either direction, one and several
// blocks, odd numbers of strips; words and tiles of scales that are full and that are not.
static const int shapes[][2] = {{16, 16},    {48, 80},   {32, 256}, {64, 272}, {16, 528},
                                {272, 1040}, {144, 32},  {80, 240}, {64, 128}, {128, 256},
                                {272, 144},  {192, 128}, {112, 384}};

static void compare_all_cells(OperandForm form) {
    for (int i = 0; i < NUM_VARIANTS * NUM_FILLS; i++) {
        Fill fill = (Fill)(i % NUM_FILLS);
        int variant = i / NUM_FILLS, other = (variant * 7 + 3) % NUM_VARIANTS;
        const int *shape = shapes[(i + i / 56) % ARRAY_LEN(shapes)];
        Tensor x = setup_tensor(DT_BF16, shape[0], shape[1], fill, (uint32_t)i);
        char where[96];
        snprintf(where, sizeof(where), "cells %d and %d, fill %d, %d x %d", variant, other, fill,
                 shape[0], shape[1]);
        compare(x, form, cell_variant(variant), cell_variant(other), BOTH, where);
        free(x.data);
    }
}

CASE(values_of_every_cell_and_input) { compare_all_cells(FORM_VALUES); }
CASE(codes_and_scales_of_every_cell_and_input) { compare_all_cells(FORM_PACKED); }

/* The cells of recipe nvfp4, and all that the kernel of pairs serves, at every shape: one operand
   alone, and both. */
static void compare_pairs(OperandForm form) {
    for (int i = 0; i < 8 * ARRAY_LEN(shapes); i++) {
        Operand row = nvfp4_cell(), token = row;
        if (i & 1) row.rounding = ROUND_STOCHASTIC;
        if (i & 2) token.rounding = ROUND_STOCHASTIC;
        if (i & 4) token.hadamard = 16;
        const int *shape = shapes[i / 8];
        Tensor x = setup_tensor(DT_BF16, shape[0], shape[1], FILL_NORMAL, (uint32_t)i);
        for (int which = ROW; which <= BOTH; which++) {
            char where[96];
            snprintf(where, sizeof(where), "options %d, operands %d, %d x %d", i % 8, which,
                     shape[0], shape[1]);
            compare(x, form, row, token, which, where);
        }
        free(x.data);
    }
}

CASE(pairs_of_values_at_every_shape) { compare_pairs(FORM_VALUES); }
CASE(pairs_of_codes_at_every_shape) { compare_pairs(FORM_PACKED); }

/* As many blocks as fill the GPU several times over. */
CASE(pairs_of_a_whole_batch) {
    Tensor x = setup_tensor(DT_BF16, 8192, 768, FILL_NORMAL, 6);
    Operand row = nvfp4_cell(), token = row;
    token.rounding = ROUND_STOCHASTIC;
    token.hadamard = 16;
    compare(x, FORM_VALUES, row, token, BOTH, "values");
    compare(x, FORM_PACKED, row, token, BOTH, "codes");
    free(x.data);
}

/* One operand as values, the other as codes: two kernels. */
CASE(two_forms_of_one_tensor) {
    Tensor x = setup_tensor(DT_BF16, 80, 272, FILL_NORMAL, 7);
    for (int packed = ROW; packed <= TOKEN; packed++) {
        Twin values, codes;
        twin_make(&values, x, FORM_VALUES, nvfp4_cell(), nvfp4_cell());
        twin_make(&codes, x, FORM_PACKED, nvfp4_cell(), nvfp4_cell());
        Twin *row = packed == ROW ? &codes : &values, *token = packed == ROW ? &values : &codes;
        amax_pair_cuda(gpu, &row->row, &row->row_how, &token->token, &token->token_how, row->x);
        quantize_pair_cuda(gpu, &row->row, &row->row_how, &token->token, &token->token_how, row->x);
        setup_run(&row->host);
        setup_run(&token->host);
        expect_same_operand(&row->row, &row->host.row, "row operand");
        expect_same_operand(&token->token, &token->host.token, "token operand");
        twin_free(&values), twin_free(&codes);
    }
    free(x.data);
}

/* Every bf16 number once in each direction of a block's neighbourhood: the rounding itself, value
   by value. */
CASE(every_bf16_magnitude) {
    Tensor x = setup_tensor(DT_BF16, 256, 256, FILL_ZERO, 0);
    for (uint32_t i = 0; i < 65536; i++) {
        uint32_t bits = i * 40503u & 0xFFFF;   // a permutation, so that blocks mix magnitudes
        ((bf16_t *)x.data)[i] = (bits & 0x7FFF) < 0x7F80 ? (bf16_t)bits : 0;
    }
    for (int i = 0; i < NUM_VARIANTS; i += 5) {
        compare(x, FORM_VALUES, cell_variant(i), cell_variant(i), BOTH, "values of all numbers");
        compare(x, FORM_PACKED, cell_variant(i), cell_variant(i), BOTH, "codes of all numbers");
    }
    free(x.data);
}

CASE(what_is_not_finite_gives_the_same_nan) {
    static const float values[] = {INFINITY, -INFINITY, NAN,
                                   3e38f};   // the last overflows in the transform
    for (int i = 0; i < ARRAY_LEN(values); i++) {
        Tensor x = setup_tensor(DT_BF16, 48, 272, FILL_NORMAL, 1);
        for (int r = 0; r < 16; r++)
            ((bf16_t *)x.data)[r * 272 + 40] = bf16_from_f32(r % 3 ? values[i] : -values[i]);
        for (int variant = 0; variant < 24; variant++) {
            compare(x, FORM_VALUES, cell_variant(variant), cell_variant(variant), BOTH, "values");
            compare(x, FORM_PACKED, cell_variant(variant), cell_variant(variant), BOTH, "codes");
        }
        free(x.data);
    }
}

/* A later step and token base: what a replayed graph reads from StepState. */
CASE(state_is_read_on_the_device) {
    Tensor x = setup_tensor(DT_BF16, 64, 272, FILL_NORMAL, 2);
    Operand how = nvfp4_cell();
    how.rounding = ROUND_STOCHASTIC;
    Twin t;
    twin_make(&t, x, FORM_VALUES, how, how);
    uint16_t *before = (uint16_t *)xmalloc(setup_bytes(&t.row)),
             *after = (uint16_t *)xmalloc(setup_bytes(&t.row));
    run_gpu(&t, BOTH);
    gpu->download(gpu, before, t.row.data, setup_bytes(&t.row));
    t.host.state.step = 0x80000001u;
    t.host.state.token_base = (int64_t)1 << 36;   // the group's high word matters
    gpu->upload(gpu, t.state, &t.host.state, sizeof(StepState));
    run_gpu(&t, BOTH);
    gpu->download(gpu, after, t.row.data, setup_bytes(&t.row));
    setup_run(&t.host);
    expect_same_operand(&t.row, &t.host.row, "row operand");
    expect_same_operand(&t.token, &t.host.token, "token operand");
    int differ = 0, nonzero = 0;
    for (int i = 0; i < 64 * 272; i++) {
        differ += before[i] != after[i];
        nonzero += (after[i] & 0x7FFF) != 0;
    }
    EXPECT(differ > 64 * 272 / 20, "%d values differ", differ);
    EXPECT(nonzero > 64 * 272 / 2, "%d values are not zero", nonzero);
    free(before), free(after), twin_free(&t), free(x.data);
}

CASE(hadamard_op) {
    for (int i = 0; i < 2 * ARRAY_LEN(shapes); i++) {
        const int *shape = shapes[i / 2];
        Fill fill = (Fill)(i % NUM_FILLS);
        Tensor x = setup_tensor(DT_BF16, shape[0], shape[1], fill, (uint32_t)i);
        // Without the numbers that make infinities: the devices' NaN differ in their bits.
        for (int64_t j = 0; fill == FILL_HUGE && j < tensor_count(x); j += 64)
            ((bf16_t *)x.data)[j] = 0;
        Tensor on_gpu =
            tensor_view(device_alloc(gpu, tensor_bytes(x), "x"), DT_BF16, x.rows, x.cols);
        gpu->upload(gpu, on_gpu.data, x.data, tensor_bytes(x));
        Hadamard h = {i % 4 ? 16 : 4, i % 4 < 2 ? SIGNS_FIXED : SIGNS_NONE, 0, 0, NULL};
        hadamard_cuda(gpu, on_gpu, on_gpu, i % 2, h);
        hadamard_cpu(NULL, x, x, i % 2, h);
        expect_equal(on_gpu.data, x.data, tensor_bytes(x), "transform",
                     i % 2 ? "along rows" : "along columns");
        gpu->free(gpu, on_gpu.data), free(x.data);
    }
}

/* Every size with all signs, forward along the columns, and back with and without a mask, in both
   dtypes; the last warp has fewer elements than lanes. */
CASE(hadamard_sizes_and_inverse) {
    const int rows = 17, cols = 384;
    StepState state;
    memset(&state, 0, sizeof(state));
    state.step = 3;
    StepState *state_gpu = (StepState *)device_alloc(gpu, sizeof(state), "state");
    gpu->upload(gpu, state_gpu, &state, sizeof(state));
    Tensor bits = setup_tensor(DT_BF16, rows, cols / 16, FILL_NORMAL, 4);   // a byte of 8
    void *mask_gpu = device_alloc(gpu, tensor_bytes(bits), "mask");
    gpu->upload(gpu, mask_gpu, bits.data, tensor_bytes(bits));
    for (int i = 0; i < 6 * 3 * 5; i++) {
        Hadamard h = {4 << i % 6, (Signs)(i / 6 % 3), 77u << 4, 99, &state}, h_gpu = h;
        h_gpu.state = state_gpu;
        int kind = i / 18;   // forward; back in bf16, in f32, each without and with a mask
        Tensor x = setup_tensor(kind > 2 ? DT_F32 : DT_BF16, rows, cols, FILL_NORMAL, (uint32_t)i);
        Tensor on_gpu = tensor_view(device_alloc(gpu, tensor_bytes(x), "x"), x.dtype, rows, cols);
        gpu->upload(gpu, on_gpu.data, x.data, tensor_bytes(x));
        if (kind == 0) {
            hadamard_cuda(gpu, on_gpu, on_gpu, 0, h_gpu);
            hadamard_cpu(NULL, x, x, 0, h);
        } else {
            int masked = kind % 2 == 0;
            hadamard_inverse_cuda(gpu, on_gpu, masked ? (const uint8_t *)mask_gpu : NULL, h_gpu);
            hadamard_inverse_cpu(NULL, x, masked ? (const uint8_t *)bits.data : NULL, h);
        }
        char what[32];
        snprintf(what, sizeof(what), "size %d, signs %d", h.size, (int)h.signs);
        expect_equal(on_gpu.data, x.data, tensor_bytes(x), kind ? "inverse" : "transform", what);
        gpu->free(gpu, on_gpu.data), free(x.data);
    }
    gpu->free(gpu, state_gpu), gpu->free(gpu, mask_gpu), free(bits.data);
}

CASE(arguments_the_gpu_refuses) {
    Tensor x = setup_tensor(DT_BF16, 32, 32, FILL_NORMAL, 3);
    Setup s;
    setup_make(&s, x, FORM_VALUES, nvfp4_cell(), nvfp4_cell());
    Tensor shifted = tensor_view((bf16_t *)x.data + 1, DT_BF16, 32, 32);
    EXPECT_ABORTS("not aligned to 16 bytes",
                  amax_pair_cuda(gpu, &s.row, &s.row_how, NULL, NULL, shifted));
    setup_free(&s), free(x.data);
}

// --- speed ---

static void print_speed(OperandForm form, int64_t rows, int64_t cols) {
    static const struct {
        const char *name;
        Tile tile;
        int hadamard;
        Rounding rounding;
    } pairs[] = {{"x: nearest, token operand transformed", TILE_ROW, 16, ROUND_NEAREST},
                 {"dy: stochastic, token operand transformed", TILE_ROW, 16, ROUND_STOCHASTIC},
                 {"w: square tiles, nearest", TILE_SQUARE, 0, ROUND_NEAREST}};
    Tensor x = setup_tensor(DT_BF16, 512, cols, FILL_NORMAL, 4);
    double n = (double)rows * (double)cols;
    double written = form == FORM_PACKED ? 9.0 / 16 : 2;   // bytes an element and operand
    for (int i = 0; i < ARRAY_LEN(pairs); i++) {
        Operand row = nvfp4_cell(), token;
        row.tile = pairs[i].tile;
        row.rounding = pairs[i].rounding;
        token = row;
        token.hadamard = pairs[i].hadamard;
        Tensor all = tensor_view(xmalloc(dtype_bytes(DT_BF16, rows * cols)), DT_BF16, rows, cols);
        for (int64_t r = 0; r < rows; r += 512)
            memcpy((bf16_t *)all.data + r * cols, x.data, tensor_bytes(x));
        Twin t;
        twin_make(&t, all, form, row, token);
        Timed timed = {&t, device_alloc(gpu, tensor_bytes(all), "copy")};
        double copy = gigabytes_per_s(time_copy, timed, 4 * n);
        double amax = gigabytes_per_s(time_amax, timed, 2 * n);
        double quantize = gigabytes_per_s(time_quantize, timed, (2 + 2 * written) * n);
        printf("(%lld, %lld) %s, %s: copy %.0f GB/s, amax %.0f GB/s (%.0f %%), quantize %.0f GB/s "
               "(%.0f %%)\n",
               (long long)rows, (long long)cols, form == FORM_PACKED ? "codes" : "values",
               pairs[i].name, copy, amax, 100 * amax / copy, quantize, 100 * quantize / copy);
        gpu->free(gpu, timed.copy), twin_free(&t), free(all.data);
    }
    free(x.data);
}

CASE(speed) {
    for (int form = FORM_VALUES; form <= FORM_PACKED; form++) {
        print_speed((OperandForm)form, 65536, 768);
        print_speed((OperandForm)form, 65536, 3072);
    }
}

int main(int argc, char **argv) {
    gpu = device_cuda_open(0);
    omp_set_num_threads(1);   // thousands of small tensors on the CPU's side
    int status = test_run(argc, argv);
    gpu->close(gpu);
    return status;
}
