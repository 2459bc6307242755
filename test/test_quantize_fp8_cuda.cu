// test_quantize_fp8_cuda -- operands with one scale for a tensor, by the GPU, against the CPU's bit
// for bit: both forms, every pair of formats, one operand and both, ragged and whole shapes,
// every bf16 number, what is not finite, and beside NVFP4. Ends with the speed beside that of a
// copy.
#include "../llmc/device_cuda.cuh"
#include "../llmc/ops/quantize.h"
#include "quantize_twin.cuh"
#include "test.h"

static void compare(Tensor x, OperandForm form, Operand row, Operand token, int which,
                    const char *where) {
    Twin t;
    twin_make(&t, x, form, row, token);
    run_gpu(&t, which);
    setup_run(&t.host);
    if (which & ROW) {
        expect_equal(t.row.amax, t.host.row.amax, sizeof(float), "amax of the row operand", where);
        expect_equal(t.row.data, t.host.row.data, setup_bytes(&t.row), "row operand", where);
    }
    if (which & TOKEN) {
        expect_equal(t.token.amax, t.host.token.amax, sizeof(float), "token amax", where);
        expect_equal(t.token.data, t.host.token.data, setup_bytes(&t.token), "token operand",
                     where);
    }
    twin_free(&t);
}

// Whole and partial tiles of 128 x 64.
static const int shapes[][2] = {{16, 16},   {48, 80},   {128, 64}, {256, 192},
                                {144, 272}, {272, 144}, {16, 528}, {1040, 32}};

CASE(every_pair_shape_and_input) {
    for (int i = 0; i < 2 * 4 * 3 * ARRAY_LEN(shapes) * 2; i++) {
        int rest = i;
        OperandForm form = rest % 2 ? FORM_PACKED : FORM_VALUES;
        rest /= 2;
        FormatId row = rest % 2 ? FORMAT_E5M2 : FORMAT_E4M3;
        FormatId token = rest / 2 % 2 ? FORMAT_E5M2 : FORMAT_E4M3;
        rest /= 4;
        int which = rest % 3 + 1;
        rest /= 3;
        const int *shape = shapes[rest % ARRAY_LEN(shapes)];
        Fill fill = (Fill)(i % NUM_FILLS);
        Tensor x = setup_tensor(DT_BF16, shape[0], shape[1], fill, (uint32_t)i);
        char where[96];
        snprintf(where, sizeof(where), "form %d, %s and %s, operands %d, fill %d, %d x %d", form,
                 formats[row].name, formats[token].name, which, fill, shape[0], shape[1]);
        compare(x, form, fp8_cell(row), fp8_cell(token), which, where);
        free(x.data);
    }
}

/* As many blocks as fill the GPU several times over. */
CASE(a_whole_batch) {
    Tensor x = setup_tensor(DT_BF16, 16384, 768, FILL_NORMAL, 6);
    compare(x, FORM_PACKED, fp8_cell(FORMAT_E5M2), fp8_cell(FORMAT_E5M2), BOTH, "codes");
    compare(x, FORM_VALUES, fp8_cell(FORMAT_E4M3), fp8_cell(FORMAT_E4M3), BOTH, "values");
    free(x.data);
}

/* The hardware's conversion, number by number, at scales that put ties, subnormal codes and
   saturation everywhere. The amax is planted: what it says is not the tensor's. */
CASE(every_bf16_number_at_many_scales) {
    Tensor x = setup_tensor(DT_BF16, 256, 256, FILL_ZERO, 0);
    for (uint32_t i = 0; i < 65536; i++) ((bf16_t *)x.data)[i] = (bf16_t)i;
    static const float amaxes[] = {448.0f, 57344.0f, 3.0f, 5.5f,     0.1f,
                                   1e-37f, 1e30f,    0,    INFINITY, NAN};
    for (int i = 0; i < 2 * ARRAY_LEN(amaxes); i++) {
        FormatId f = i % 2 ? FORMAT_E5M2 : FORMAT_E4M3;
        for (int form = FORM_VALUES; form <= FORM_PACKED; form++) {
            Twin t;
            twin_make(&t, x, (OperandForm)form, fp8_cell(f), fp8_cell(f));
            const float planted[2] = {amaxes[i / 2], amaxes[i / 2]};
            gpu->upload(gpu, t.amax, planted, sizeof(planted));
            memcpy(t.host.amax, planted, sizeof(planted));
            quantize_pair_cuda(gpu, &t.row, &t.host.row_how, &t.token, &t.host.token_how, t.x);
            setup_round(&t.host);
            char where[64];
            snprintf(where, sizeof(where), "%s, form %d, amax %g", formats[f].name, form,
                     planted[0]);
            expect_equal(t.row.data, t.host.row.data, setup_bytes(&t.row), "row", where);
            expect_equal(t.token.data, t.host.token.data, setup_bytes(&t.token), "token", where);
            twin_free(&t);
        }
    }
    free(x.data);
}

CASE(what_is_not_finite) {
    static const float values[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < ARRAY_LEN(values); i++) {
        Tensor x = setup_tensor(DT_BF16, 48, 80, FILL_NORMAL, 1);
        ((bf16_t *)x.data)[777] = bf16_from_f32(values[i]);
        for (int form = FORM_VALUES; form <= FORM_PACKED; form++)
            compare(x, (OperandForm)form, fp8_cell(FORMAT_E4M3), fp8_cell(FORMAT_E5M2), BOTH,
                    "not finite");
        free(x.data);
    }
}

CASE(beside_nvfp4) {
    Tensor x = setup_tensor(DT_BF16, 144, 272, FILL_NORMAL, 2);
    for (int form = FORM_VALUES; form <= FORM_PACKED; form++) {
        compare(x, (OperandForm)form, fp8_cell(FORMAT_E4M3), nvfp4_cell(), BOTH, "token in NVFP4");
        compare(x, (OperandForm)form, nvfp4_cell(), fp8_cell(FORMAT_E5M2), BOTH, "row in NVFP4");
    }
    free(x.data);
}

// --- speed ---

static void time_both(Timed t) {
    time_amax(t);
    time_quantize(t);
}

static void print_speed(OperandForm form, int64_t rows, int64_t cols) {
    Tensor part = setup_tensor(DT_BF16, 512, cols, FILL_NORMAL, 4);
    Tensor x = tensor_view(xmalloc(dtype_bytes(DT_BF16, rows * cols)), DT_BF16, rows, cols);
    for (int64_t r = 0; r < rows; r += 512)
        memcpy((bf16_t *)x.data + r * cols, part.data, tensor_bytes(part));
    Twin t;
    twin_make(&t, x, form, fp8_cell(FORMAT_E4M3), fp8_cell(FORMAT_E4M3));
    Timed timed = {&t, device_alloc(gpu, tensor_bytes(x), "copy")};
    double n = (double)rows * (double)cols, written = form == FORM_PACKED ? 2 : 4;
    double copy = gigabytes_per_s(time_copy, timed, 4 * n);
    double amax = gigabytes_per_s(time_amax, timed, 2 * n);
    double quantize = gigabytes_per_s(time_quantize, timed, (2 + written) * n);
    double both = gigabytes_per_s(time_both, timed, (4 + written) * n);
    printf("(%lld, %lld) %s: copy %.0f GB/s, amax %.0f GB/s (%.0f %%), quantize %.0f GB/s (%.0f "
           "%%), one after the other %.0f GB/s\n",
           (long long)rows, (long long)cols, form == FORM_PACKED ? "codes" : "values", copy, amax,
           100 * amax / copy, quantize, 100 * quantize / copy, both);
    gpu->free(gpu, timed.copy), twin_free(&t), free(x.data), free(part.data);
}

CASE(speed) {
    for (int form = FORM_PACKED; form >= FORM_VALUES; form--) {
        print_speed((OperandForm)form, 65536, 768);
        print_speed((OperandForm)form, 65536, 3072);
        print_speed((OperandForm)form, 3072, 768);
    }
}

int main(int argc, char **argv) {
    gpu = device_cuda_open(0);
    int status = test_run(argc, argv);
    gpu->close(gpu);
    return status;
}
