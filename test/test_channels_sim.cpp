/*
test_channels_sim -- the kernels of channels.cuh, run on the host by fibres.h against the CPU
reference: dropped and added channels bit for bit, with and without a tensor's scale and where there
is none left; sums of squares, and in which steps they are taken.
*/
#include "fibres.h"

#include "../llmc/ops/channels.cuh"

#include "../llmc/ops.h"
#include "../llmc/rng.h"
#include "test.h"

enum { ROWS = 21, COLS = 200 };   // neither a multiple of what a block takes

typedef struct {
    bf16_t x[ROWS * COLS], rest[ROWS * COLS];
    float values[ROWS * COLS], chosen[COLS], sums[COLS], current[COLS], amax;
    StepState state;
} Data;

static float uniform(int64_t i, uint32_t stream) {
    return rng_uniform(philox4x32_10(rng_group_counter((uint64_t)i, stream, 0), 9, 0).w[0]);
}

static void fill(Data *d) {
    memset(d, 0, sizeof(*d));
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        float v = uniform(i, 1) - 0.5f;
        d->x[i] = bf16_from_f32(i % 97 == 5 ? v * 1e4f : i % 61 == 7 ? 0.0f : v);
        d->values[i] = v;
    }
    for (int64_t c = 0; c < COLS; c++) {
        d->chosen[c] = uniform(c, 2) < 0.2f ? 1.0f : 0.0f;
        d->sums[c] = uniform(c, 3);
        d->current[c] = uniform(c, 4);
    }
    d->state.step = 9;
}

static ChannelArgs args_of(Data *d) {
    ChannelArgs a = {};
    a.x = (const bf16 *)d->x;
    a.out = (bf16 *)d->rest;
    a.values = d->values;
    a.chosen = d->chosen;
    a.rows = ROWS;
    a.cols = COLS;
    a.sums = d->sums;
    a.current = d->current;
    a.state = &d->state;
    a.cell = cell_make(&formats[FORMAT_MXFP8].cell);
    return a;
}

static Tensor matrix(void *data, DType dtype) { return tensor_view(data, dtype, ROWS, COLS); }
static Tensor row(float *data) { return tensor_view(data, DT_F32, 1, COLS); }

static void squares_thread(void *a) { channel_squares_kernel(*(ChannelArgs *)a); }
static void advance_thread(void *a) { channels_advance_kernel(*(ChannelArgs *)a); }
static void drop_thread(void *a) { channels_drop_kernel(*(ChannelArgs *)a); }
static void scale_thread(void *a) { channels_scale_kernel(*(ChannelArgs *)a); }
static void add_thread(void *a) { channels_add_kernel(*(ChannelArgs *)a); }

static void run(void (*thread)(void *), ChannelArgs *a, int threads, int64_t blocks) {
    for (int64_t block = 0; block < blocks; block++)
        fibre_run_block(thread, a, threads, (int)block);
}

CASE(dropped_and_added_channels) {
    static const float maxima[] = {3.7f, 0, -1};   // -1: no tensor scale
    for (int i = 0; i < ARRAY_LEN(maxima); i++) {
        Data got, want;
        fill(&got);
        fill(&want);
        got.amax = want.amax = maxima[i];
        ChannelArgs a = args_of(&got);
        a.amax = maxima[i] < 0 ? NULL : &got.amax;
        a.dequant_div = 2688;
        run(drop_thread, &a, FLAT_THREADS, ceil_div(ROWS * COLS / VEC, FLAT_THREADS));
        if (a.amax) run(scale_thread, &a, 1, 1);
        int64_t groups = ROWS * ceil_div(COLS, CHANNEL_GROUP);
        run(add_thread, &a, FLAT_THREADS, ceil_div(groups, FLAT_THREADS / WARP));
        QOperand q = operand_from_tensor(matrix(want.values, DT_F32), FORMAT_NVFP4, 1);
        q.amax = maxima[i] < 0 ? NULL : &want.amax;
        q.dequant_div = 2688;
        Tensor x = matrix(want.x, DT_BF16);
        channels_drop_cpu(NULL, matrix(want.rest, DT_BF16), x, row(want.chosen));
        channels_add_cpu(NULL, &q, x, row(want.chosen));
        EXPECT_BITS(got.rest, want.rest, sizeof(got.rest), "rest, maximum %g", maxima[i]);
        EXPECT_BITS(got.values, want.values, sizeof(got.values), "values, maximum %g", maxima[i]);
        EXPECT_BITS(&got.amax, &want.amax, sizeof(float), "maximum %g", maxima[i]);
    }
}

CASE(sums_of_squares) {
    static const StepRange ranges[] = {{10, 10}, {11, 20}, {1, 9}};   // the step is number 10
    for (int i = 0; i < ARRAY_LEN(ranges); i++) {
        Data got, want;
        fill(&got);
        fill(&want);
        ChannelArgs a = args_of(&got);
        a.steps = ranges[i];
        run(squares_thread, &a, WARP * SQUARES_LANES, ceil_div(COLS, WARP));
        channel_squares_cpu(NULL, row(want.sums), matrix(want.x, DT_BF16), ranges[i], &want.state);
        for (int c = 0; c < COLS; c++)
            EXPECT_NEAR(got.sums[c], want.sums[c], 1e-6 * want.sums[c], "column %d", c);
        EXPECT((want.sums[0] != uniform(0, 3)) == (i == 0), "range %d", i);
        for (int dropped = 0; dropped < 2; dropped++) {
            want.state.stop_votes = got.state.stop_votes = (float)dropped;
            memcpy(got.sums, want.sums, sizeof(want.sums));
            run(advance_thread, &a, FLAT_THREADS, ceil_div(COLS, FLAT_THREADS));
            channels_advance_cpu(NULL, row(want.sums), row(want.current), &want.state);
            EXPECT_BITS(got.sums, want.sums, sizeof(got.sums), "total");
            EXPECT_BITS(got.current, want.current, sizeof(got.current), "current");
        }
    }
}

TEST_MAIN_END
