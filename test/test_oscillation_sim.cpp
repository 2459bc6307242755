/*
test_oscillation_sim -- the kernels of decode.cuh and oscillation.cuh, run on the host by fibres.h
against the CPU reference, bit for bit: operands packed and as values, in both layouts, sizes with
padding between scales; every code of each format; sums and resets of random movements.
*/
#include "fibres.h"

#include "../llmc/ops/decode.cuh"
#include "../llmc/ops/oscillation.cuh"

#include "../llmc/ops.h"
#include "../llmc/rng.h"
#include "test.h"

static uint32_t draw(int64_t i, uint32_t stream) {
    return philox4x32_10(rng_group_counter((uint64_t)i, stream, 0), 5, 0).w[0];
}

static void decode_thread(void *args) { decode_kernel(*(DecodeArgs *)args); }

typedef struct {
    DecodeArgs decode;
    bf16_t *out;
} ValuesArgs;
static void values_thread(void *args) {
    ValuesArgs *a = (ValuesArgs *)args;
    decode_values_kernel(a->decode, a->out);
}

/* The kernel and the reference of packed NVFP4's values. */
static void compare_values(const QOperand *q) {
    int64_t count = q->rows * q->k;
    bf16_t *got = (bf16_t *)xmalloc((size_t)count * 2),
           *want = (bf16_t *)xmalloc((size_t)count * 2);
    ValuesArgs a = {decode_args(tensor_view(NULL, DT_F32, q->rows, q->k), q), got};
    for (int64_t block = 0; block < ceil_div(count / VEC, FLAT_THREADS); block++)
        fibre_run_block(values_thread, &a, FLAT_THREADS, (int)block);
    decode_values_cpu(NULL, tensor_view(want, DT_BF16, q->rows, q->k), q);
    EXPECT_BITS(got, want, (size_t)count * 2, "values");
    for (int64_t i = 0; i < count; i++)
        EXPECT_NEAR(bf16_to_f32(want[i]), quantize_decode(q, i / q->k, i % q->k), 0.0, "value");
    free(got);
    free(want);
}

static void compare_decode(const QOperand *q, const char *what) {
    int64_t count = q->rows * q->k;
    float *got = (float *)xmalloc((size_t)count * 4), *want = (float *)xmalloc((size_t)count * 4);
    DecodeArgs a = decode_args(tensor_view(got, DT_F32, q->rows, q->k), q);
    for (int64_t block = 0; block < ceil_div(count, FLAT_THREADS); block++)
        fibre_run_block(decode_thread, &a, FLAT_THREADS, (int)block);
    decode_cpu(NULL, tensor_view(want, DT_F32, q->rows, q->k), q);
    EXPECT_BITS(got, want, (size_t)count * 4, "%s", what);
    free(got);
    free(want);
}

CASE(packed_operands) {
    static const FormatId packed[] = {FORMAT_NVFP4, FORMAT_E4M3, FORMAT_E5M2};
    for (int i = 0; i < ARRAY_LEN(packed); i++) {
        QOperand q = {};
        q.form = FORM_PACKED;
        q.format = packed[i];
        q.rows = 144;
        q.k = 80;
        size_t codes = quantize_codes_bytes(q.format, q.rows, q.k);
        size_t scales = quantize_scales_bytes(q.rows, q.k);
        uint8_t *data = (uint8_t *)xmalloc(codes);
        for (size_t b = 0; b < codes; b++) data[b] = (uint8_t)draw((int64_t)b, 1);
        // Codes of FP8 that are no numbers are never made.
        for (size_t b = 0; b < codes && q.format != FORMAT_NVFP4; b++) data[b] &= 0xFB;
        q.data = data;
        if (q.format == FORMAT_NVFP4) q.scales = (uint8_t *)xmalloc(scales);
        for (size_t b = 0; q.scales && b < scales; b++)
            q.scales[b] = (uint8_t)(draw((int64_t)b, 2) % 0x7F);
        float amax = 3.7f;
        q.amax = &amax;
        q.dequant_div = 2688;
        compare_decode(&q, formats[q.format].name);
        if (q.format == FORMAT_NVFP4) compare_values(&q);
        free(q.scales);
        free(data);
    }
}

CASE(values) {
    static const DType dtypes[] = {DT_BF16, DT_F32};
    for (int i = 0; i < 4; i++) {
        QOperand q = {};
        float values[33 * 21];
        q.dtype = dtypes[i % 2];
        q.rows = 33;
        q.k = 21;
        q.k_contiguous = i / 2;
        q.dequant_div = 0.75f;
        q.data = values;
        for (int64_t v = 0; v < ARRAY_LEN(values); v++) {
            float x = rng_uniform(draw(v, 3)) - 0.5f;
            if (q.dtype == DT_F32) values[v] = x;
            else ((bf16_t *)values)[v] = bf16_from_f32(x);
        }
        compare_decode(&q, dtype_info[q.dtype].name);
    }
}

// --- the op ---

enum { COUNT = 600, ARRAYS = 4 };   // last_w, last_q, moved_w, moved_q

typedef struct {
    float kept[ARRAYS][COUNT], master[COUNT];
    bf16_t value[COUNT];
    int64_t count;
} Weights;

static Oscillation oscillation_of(Weights *w) {
    Oscillation o = {
        tensor_view(w->kept[0], DT_F32, 1, COUNT), tensor_view(w->kept[1], DT_F32, 1, COUNT),
        tensor_view(w->kept[2], DT_F32, 1, COUNT), tensor_view(w->kept[3], DT_F32, 1, COUNT)};
    return o;
}

static void accumulate_thread(void *a) { oscillation_accumulate_kernel(*(OscillationArgs *)a); }
static void reset_thread(void *a) { oscillation_reset_kernel(*(OscillationArgs *)a); }

static void run(void (*thread)(void *), OscillationArgs *a) {
    for (int64_t block = 0; block < ceil_div(COUNT, FLAT_THREADS); block++)
        fibre_run_block(thread, a, FLAT_THREADS, (int)block);
}

static void expect_same(const Weights *got, const Weights *want, const char *when) {
    EXPECT_BITS(got->kept, want->kept, sizeof(got->kept), "kept, %s", when);
    EXPECT_BITS(got->master, want->master, sizeof(got->master), "master, %s", when);
    EXPECT_BITS(got->value, want->value, sizeof(got->value), "value, %s", when);
    EXPECT_EQ_I64(got->count, want->count, "%s", when);
}

CASE(movements_and_resets) {
    Weights got, want;
    float q[COUNT];
    for (int64_t i = 0; i < COUNT; i++) {
        for (int k = 0; k < ARRAYS; k++)
            want.kept[k][i] = rng_uniform(draw(i, 10 + (uint32_t)k)) * (k < 2 ? 1 : 0);
        want.master[i] = rng_uniform(draw(i, 20)) - 0.5f;
        want.value[i] = bf16_from_f32(want.master[i]);
        q[i] = 2 * rng_uniform(draw(i, 21)) - 1.0f;
    }
    want.count = 7;
    got = want;
    Tensor decoded = tensor_view(q, DT_F32, 1, COUNT);
    Tensor master = tensor_view(want.master, DT_F32, 1, COUNT);
    Tensor value = tensor_view(want.value, DT_BF16, 1, COUNT);
    Oscillation o = oscillation_of(&got);
    OscillationArgs a = oscillation_args(&o);
    a.w = a.master = got.master;
    a.q = q;
    a.value = (bf16 *)got.value;
    a.count = (unsigned long long *)&got.count;
    a.threshold = 1.5f;
    run(accumulate_thread, &a);
    oscillation_accumulate_cpu(NULL, oscillation_of(&want), master, decoded);
    expect_same(&got, &want, "summed");
    for (int dropped = 1; dropped >= 0; dropped--) {
        StepState state = {};
        state.stop_votes = (float)dropped;
        a.state = &state;
        got.count = 0;
        run(reset_thread, &a);
        oscillation_reset_cpu(NULL, oscillation_of(&want), master, value, 1.5f, &want.count,
                              &state);
        expect_same(&got, &want, dropped ? "dropped" : "reset");
    }
    EXPECT(want.count > COUNT / 4 && want.count < 3 * COUNT / 4, "%lld", (long long)want.count);
}

TEST_MAIN_END
