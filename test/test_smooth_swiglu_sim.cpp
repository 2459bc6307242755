/*
test_smooth_swiglu_sim -- the kernels of smooth_swiglu.cuh, run on the host by fibres.h against the
CPU reference: rows of less than a vector, of several turns of a block, gates that start within a
vector; nothing is written beyond a tensor, scales have the same bits.
*/
#include "fibres.h"

#include "../llmc/ops/smooth_swiglu.cuh"

#include "../llmc/ops.h"
#include "../llmc/rng.h"
#include "test.h"

enum { GUARD = 64, UNTOUCHED = 0xA5 };   // bytes on both sides of a tensor

static Tensor guarded(DType type, int64_t rows, int64_t cols) {
    Tensor t = tensor_view(NULL, type, rows, cols);
    uint8_t *memory = (uint8_t *)xmalloc(tensor_bytes(t) + 2 * GUARD);
    memset(memory, UNTOUCHED, tensor_bytes(t) + 2 * GUARD);
    t.data = memory + GUARD;
    return t;
}

static void release(Tensor t) {
    const uint8_t *memory = (const uint8_t *)t.data - GUARD;
    int touched = 0;
    for (int i = 0; i < GUARD; i++)
        touched += (memory[i] != UNTOUCHED) + (memory[GUARD + tensor_bytes(t) + i] != UNTOUCHED);
    EXPECT(touched == 0, "%d bytes beside a tensor were written", touched);
    free((void *)memory);
}

static Tensor random_tensor(int64_t rows, int64_t cols, uint32_t seed) {
    Tensor t = guarded(DT_BF16, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        Philox4 bits = philox4x32_10(rng_group_counter((uint64_t)i, 0, 0), seed, 0);
        ((bf16_t *)t.data)[i] = bf16_from_f32(8.0f * rng_uniform(bits.w[0]) - 4.0f);
    }
    return t;
}

static Tensor copy_of(Tensor t) {
    Tensor copy = guarded(t.dtype, t.rows, t.cols);
    memcpy(copy.data, t.data, tensor_bytes(t));
    return copy;
}

/* One bf16 ulp of what is wanted, and what f32 leaves of a factor that cancels. */
static void expect_close(Tensor got, Tensor want, const char *what) {
    for (int64_t i = 0; i < tensor_count(want); i++) {
        float w = bf16_to_f32(((bf16_t *)want.data)[i]);
        int exponent = 0;
        frexp(w, &exponent);
        EXPECT_NEAR(bf16_to_f32(((bf16_t *)got.data)[i]), w, ldexp(1.0, exponent - 8) + 2e-6,
                    "%s %lld of (%lld,%lld)", what, (long long)i, (long long)want.rows,
                    (long long)want.cols);
    }
}

static void forward_thread(void *args) { smooth_forward_kernel(*(SmoothArgs *)args); }
static void backward_thread(void *args) { smooth_backward_kernel(*(SmoothArgs *)args); }
static void scale_thread(void *args) { scale_rows_kernel(*(ScaleRowsArgs *)args); }

static void run(void (*thread)(void *), void *args, int64_t rows) {
    for (int64_t row = 0; row < rows; row++)
        fibre_run_block(thread, args, SMOOTH_THREADS, (int)row);
}

static void compare(int64_t N, int64_t F) {
    Tensor x = random_tensor(N, 2 * F, 1), dout = random_tensor(N, F, 2),
           b = random_tensor(1, F, 3);
    for (int64_t f = 0; f < F; f++) ((bf16_t *)x.data)[F + f] = 0;   // the first row has no up
    Tensor out = guarded(DT_BF16, N, F), want = guarded(DT_BF16, N, F);
    Tensor scale = guarded(DT_F32, N, 1), want_scale = guarded(DT_F32, N, 1), none = {};
    Tensor dx = copy_of(x), want_dx = guarded(DT_BF16, N, 2 * F);
    bool whole = F % VEC == 0;
    SmoothArgs a = {
        (bf16 *)out.data, NULL, (const bf16 *)x.data, NULL, (float *)scale.data, F, whole};
    run(forward_thread, &a, N);
    smooth_swiglu_forward_cpu(NULL, want, want_scale, x);
    EXPECT_BITS(scale.data, want_scale.data, tensor_bytes(scale), "scales");
    expect_close(out, want, "out");
    a.x = a.dx = (bf16 *)dx.data;   // in place
    a.dout = (const bf16 *)dout.data;
    run(backward_thread, &a, N);
    smooth_swiglu_backward_cpu(NULL, want_dx, dout, scale, x);
    expect_close(dx, want_dx, "dx");
    for (int has_bias = 0; has_bias < 2; has_bias++) {
        ScaleRowsArgs s = {(bf16 *)out.data,
                           (const bf16 *)dout.data,
                           has_bias ? (const bf16 *)b.data : NULL,
                           a.scale,
                           F,
                           whole};
        run(scale_thread, &s, N);
        scale_rows_cpu(NULL, want, dout, scale, has_bias ? b : none);
        expect_close(out, want, has_bias ? "rows and bias" : "rows");
    }
    const Tensor all[] = {x, dout, b, out, want, scale, want_scale, dx, want_dx};
    for (int i = 0; i < ARRAY_LEN(all); i++) release(all[i]);
}

CASE(rows_of_all_kinds) {
    static const int64_t sizes[][2] = {{1, 1}, {3, 13}, {4, 48}, {2, 2052}, {3, 4096}};
    for (int i = 0; i < ARRAY_LEN(sizes); i++) compare(sizes[i][0], sizes[i][1]);
}

TEST_MAIN_END
