// test_ops_extras_cuda -- CUDA ops that single keys of precision ask for, against their CPU
// reference: Smooth-SwiGLU, OsciReset and what it reads, OutControl. As test_ops.cu.
#include "ops_compare.h"

// --- Smooth-SwiGLU ---

static const Shape smooth_shapes[] = {
    {5, 13},       // nothing is a multiple of a vector; the second half starts in the middle
    {3, 30},       // halves of no whole number of vectors
    {64, 384},     // whole vectors, threads without one
    {700, 4104},   // several turns of a block, the last not full
};

static void smooth_forward(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    (void)how;
    ops->smooth_swiglu_forward(d, t[0], t[1], t[2]);
}

static void smooth_backward(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    (void)how;
    ops->smooth_swiglu_backward(d, t[0], t[1], t[2], t[0]);
}

static void scale_rows(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    int has_bias = *(const int *)how;
    ops->scale_rows(d, t[0], t[0], t[1], has_bias ? t[2] : tensor_view(NULL, DT_BF16, 0, 0));
}

CASE(smooth_swiglu) {
    FOR_SHAPES_AND_SEEDS(smooth_shapes) {
        Shape shape = smooth_shapes[s];
        int64_t N = shape.rows, F = shape.cols;
        OpTest t = op_test(limits_of(N, 2 * F, 16), seed);
        add_out(&t, "out", DT_BF16, N, F, within_ulps(1, 2e-6));
        add_out(&t, "scale", DT_F32, N, 1, same_bits);
        add_random(&t, "x", ARG_IN, shaped(DT_BF16, N, 2 * F), 3, same_bits);
        compare_op(&t, smooth_forward, NULL, describe(shape, seed));
        op_test_end(&t);
        t = op_test(limits_of(N, 2 * F, 16), seed);
        add_random(&t, "x, then dx", ARG_INOUT, shaped(DT_BF16, N, 2 * F), 3, within_ulps(1, 2e-6));
        add_in(&t, "dout", DT_BF16, N, F);
        int scale = add_in(&t, "scale", DT_F32, N, 1);
        float *scales = (float *)t.args[scale].initial;
        for (int64_t n = 0; n < N; n++) scales[n] = 0.5f + fabsf(scales[n]);
        compare_op(&t, smooth_backward, NULL, describe(shape, seed));
        op_test_end(&t);
        for (int has_bias = 0; has_bias < 2; has_bias++) {
            t = op_test(limits_of(N, F, 16), seed);
            add_random(&t, "x", ARG_INOUT, shaped(DT_BF16, N, F), 1, within_ulps(1, 2e-6));
            add_in(&t, "scale", DT_F32, N, 1);
            add_in(&t, "b", DT_BF16, 1, F);
            compare_op(&t, scale_rows, &has_bias, describe(shape, seed));
            op_test_end(&t);
        }
    }
}

// --- OsciReset ---

static const Shape flat_shapes[] = {
    {1, 1},        // less than a block
    {1, 4096},     // whole blocks
    {1, 100003},   // the last block not full
};

static void oscillation(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    Oscillation o = {t[0], t[1], t[2], t[3]};
    ops->oscillation_accumulate(d, o, t[4], t[6]);
    ops->oscillation_reset(d, o, t[4], t[5], 1.5f, (int64_t *)t[7].data,
                           (const StepState *)t[8].data);
    (void)how;
}

CASE(oscillation) {
    FOR_SHAPES_AND_SEEDS(flat_shapes) {
        for (int dropped = 0; dropped < 2; dropped++) {
            Shape shape = flat_shapes[s];
            StepState state = {};
            state.stop_votes = (float)dropped;
            Tensor f32 = shaped(DT_F32, 1, shape.cols);
            OpTest t = op_test(limits_of(1, shape.cols, 16), seed);
            const char *const names[] = {"last_w", "last_q", "moved_w", "moved_q", "master"};
            for (int i = 0; i < ARRAY_LEN(names); i++)
                add_random(&t, names[i], ARG_INOUT, f32, 1, same_bits);
            add_random(&t, "value", ARG_INOUT, shaped(DT_BF16, 1, shape.cols), 1, same_bits);
            add_random(&t, "q", ARG_IN, f32, 1, same_bits);
            add_out(&t, "count", DT_U8, 1, sizeof(int64_t), same_bits);
            add_bytes(&t, "state", ARG_IN, &state, sizeof(state));
            compare_op(&t, oscillation, NULL, dropped ? "dropped" : describe(shape, seed));
            op_test_end(&t);
        }
    }
}

/* t: sum, to_bf16, to_f32, f32, bf16. */
static void convert_and_add(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    (void)how;
    ops->add(d, t[0], t[3]);
    ops->add(d, t[0], t[4]);
    ops->convert(d, t[1], t[3]);
    ops->convert(d, t[2], t[4]);
}

CASE(convert_and_add) {
    FOR_SHAPES_AND_SEEDS(flat_shapes) {
        Shape shape = flat_shapes[s];
        Tensor f32 = shaped(DT_F32, 1, shape.cols), bf16 = shaped(DT_BF16, 1, shape.cols);
        OpTest t = op_test(limits_of(1, shape.cols, 16), seed);
        add_random(&t, "sum", ARG_INOUT, f32, 1, same_bits);
        add_out(&t, "to_bf16", DT_BF16, 1, shape.cols, same_bits);
        add_out(&t, "to_f32", DT_F32, 1, shape.cols, same_bits);
        add_random(&t, "f32", ARG_IN, f32, 1, same_bits);
        add_random(&t, "bf16", ARG_IN, bf16, 1, same_bits);
        compare_op(&t, convert_and_add, NULL, describe(shape, seed));
        op_test_end(&t);
    }
}

/* t: out, codes, scales, amax. */
static void decode(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    QOperand q = *(const QOperand *)how;
    q.data = t[1].data;
    q.scales = (uint8_t *)t[2].data;
    q.amax = (float *)t[3].data;
    ops->decode(d, t[0], &q);
}

CASE(decode) {
    static const struct {
        OperandForm form;
        FormatId format;
        DType dtype;
        int k_contiguous;
    } cases[] = {{FORM_PACKED, FORMAT_NVFP4, DT_U8, 1},   {FORM_PACKED, FORMAT_E4M3, DT_U8, 1},
                 {FORM_PACKED, FORMAT_E5M2, DT_U8, 1},    {FORM_VALUES, FORMAT_NVFP4, DT_BF16, 1},
                 {FORM_VALUES, FORMAT_NVFP4, DT_BF16, 0}, {FORM_VALUES, FORMAT_MXFP4, DT_F32, 0}};
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        const int64_t rows = 160, k = 208;   // scales have padding
        int is_packed = cases[i].form == FORM_PACKED;
        QOperand q = {};
        q.form = cases[i].form;
        q.format = cases[i].format;
        q.dtype = cases[i].dtype;
        q.rows = rows;
        q.k = k;
        q.k_contiguous = cases[i].k_contiguous;
        q.dequant_div = 2688;
        OpTest t = op_test(limits_of(16, 16, 16), 1);
        add_out(&t, "out", DT_F32, rows, k, same_bits);
        size_t bytes =
            is_packed ? quantize_codes_bytes(q.format, rows, k) : dtype_bytes(q.dtype, rows * k);
        int codes =
            is_packed ? add_random(&t, "codes", ARG_IN, shaped(DT_BF16, 1, bytes / 2), 1, same_bits)
                      : add_random(&t, "values", ARG_IN, shaped(q.dtype, rows, k), 1, same_bits);
        // Codes of E4M3 and E5M2 that are no numbers are never made.
        uint8_t *code = (uint8_t *)t.args[codes].initial;
        for (size_t b = 0; is_packed && q.format != FORMAT_NVFP4 && b < bytes; b++) code[b] &= 0xFB;
        size_t scales = quantize_scales_bytes(rows, k);
        int at = add_random(&t, "scales", ARG_IN, shaped(DT_BF16, 1, scales / 2), 1, same_bits);
        for (size_t b = 0; b < scales; b++) ((uint8_t *)t.args[at].initial)[b] &= 0x7B;
        float amax = 3.7f;
        add_bytes(&t, "amax", ARG_IN, &amax, sizeof(amax));
        compare_op(&t, decode, &q, formats[q.format].name);
        op_test_end(&t);
    }
}

// --- OutControl ---

static const Shape channel_shapes[] = {
    {1, 32},       // one group
    {37, 200},     // the last group of a row not full; columns no multiple of a warp
    {1024, 768},   // many blocks
};

/* t: values, amax, rest, chosen, x. */
static void control(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    (void)how;
    QOperand q = operand_from_tensor(t[0], FORMAT_NVFP4, 1);
    q.amax = (float *)t[1].data;
    q.dequant_div = 2688;
    ops->channels_drop(d, t[2], t[4], t[3]);
    ops->channels_add(d, &q, t[4], t[3]);
}

/* t: sums, total, x, state. */
static void watch(const Ops *ops, Device *d, const Tensor *t, const void *how) {
    StepRange steps = {1, 1};
    (void)how;
    ops->channel_squares(d, t[0], t[2], steps, (const StepState *)t[3].data);
    ops->channels_advance(d, t[1], t[0], (const StepState *)t[3].data);
}

CASE(channels) {
    FOR_SHAPES_AND_SEEDS(channel_shapes) {
        Shape shape = channel_shapes[s];
        int64_t N = shape.rows, C = shape.cols;
        float amax = seed == 1 ? 0.0f : 3.7f;
        OpTest t = op_test(limits_of(N, C, 16), seed);
        add_random(&t, "values", ARG_INOUT, shaped(DT_F32, N, C), 1, same_bits);
        add_bytes(&t, "amax", ARG_INOUT, &amax, sizeof(amax));
        add_out(&t, "rest", DT_BF16, N, C, same_bits);
        int chosen = add_in(&t, "chosen", DT_F32, 1, C);
        float *is_chosen = (float *)t.args[chosen].initial;
        for (int64_t c = 0; c < C; c++) is_chosen[c] = is_chosen[c] > 1 ? 1.0f : 0.0f;
        add_random(&t, "x", ARG_IN, shaped(DT_BF16, N, C), 100, same_bits);
        compare_op(&t, control, NULL, describe(shape, seed));
        op_test_end(&t);
        StepState state = {};
        t = op_test(limits_of(N, C, 16), seed);
        add_random(&t, "sums", ARG_INOUT, shaped(DT_F32, 1, C), 1, same_bits);
        add_random(&t, "total", ARG_INOUT, shaped(DT_F32, 1, C), 1, f32_close);
        add_in(&t, "x", DT_BF16, N, C);
        add_bytes(&t, "state", ARG_IN, &state, sizeof(state));
        compare_op(&t, watch, NULL, describe(shape, seed));
        op_test_end(&t);
    }
}

int main(int argc, char **argv) { return op_test_main(argc, argv); }
