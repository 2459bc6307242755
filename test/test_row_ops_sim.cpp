/*
test_row_ops_sim -- the sources of the GPU's kernels for cross_entropy, column_sum and the
activations, run on the host by fibres.h against the CPU reference: every path, rows taken in turns
by few blocks, rows that shared memory holds in part or not at all; that results do not depend on
either, that no barrier is missing and nothing is written beyond a tensor. The launches, and what
the multiprocessor's exp2 and reciprocal add, need a GPU: test_ops.cu.
*/
#include "fibres.h"

#include "../llmc/ops/activation.cuh"
#include "../llmc/ops/column_sum.cuh"
#include "../llmc/ops/cross_entropy.cuh"

#include "../llmc/ops.h"
#include "../llmc/ops/reduce.h"
#include "../llmc/rng.h"
#include "test.h"

enum { GUARD = 64, UNTOUCHED = 0xA5 };   // bytes on both sides of a tensor

// --- tensors ---

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

static float at(Tensor t, int64_t i) {
    return t.dtype == DT_F32 ? ((const float *)t.data)[i] : bf16_to_f32(((bf16_t *)t.data)[i]);
}

static void set(Tensor t, int64_t i, float x) {
    if (t.dtype == DT_F32) ((float *)t.data)[i] = x;
    else ((bf16_t *)t.data)[i] = bf16_from_f32(x);
}

/* About normal, mean 0. */
static Tensor random_tensor(DType type, int64_t rows, int64_t cols, float scale, uint32_t seed) {
    Tensor t = guarded(type, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        Philox4 bits = philox4x32_10(rng_group_counter((uint64_t)i, 0, 0), seed, 0);
        float sum = 0.0f;
        for (int j = 0; j < 4; j++) sum += rng_uniform(bits.w[j]);
        set(t, i, scale * (sum - 2.0f) * 1.7320508f);
    }
    return t;
}

static Tensor copy_of(Tensor t) {
    Tensor copy = guarded(t.dtype, t.rows, t.cols);
    memcpy(copy.data, t.data, tensor_bytes(t));
    return copy;
}

/* One bf16 ulp of what is wanted, and `floor`. */
static void expect_close(Tensor got, Tensor want, double floor, const char *where) {
    for (int64_t i = 0; i < tensor_count(want); i++) {
        float g = at(got, i), w = at(want, i);
        int exponent = 0;
        frexp(w, &exponent);
        if (isnan(w)) EXPECT(isnan(g), "element %lld is %g, want NaN; %s", (long long)i, g, where);
        else EXPECT_NEAR(g, w, ldexp(1.0, exponent - 8) + floor, "%lld; %s", (long long)i, where);
    }
}

static void expect_no_faults(const char *where) {
    FibreFaults faults = fibre_take_faults();
    EXPECT(faults.races == 0 && faults.outside == 0, "%d races, %d copies from outside, %s",
           faults.races, faults.outside, where);
}

// --- cross_entropy ---

typedef struct {
    int64_t rows, padded;
    int vocab;
    float dloss;
    int blocks, resident;   // vectors of a row in shared memory
} ClassifierCase;

static const ClassifierCase classifiers[] = {
    {5, 128, 100, 0.125f, 5, 16},        // fewer vectors than threads, padding inside a vector
    {9, 128, 64, 0.125f, 2, 16},         // whole vectors of padding; rows in turns
    {4, 30, 27, 1.0f, 2, 0},             // no whole vectors
    {3, 50304, 50257, 0.01f, 2, 6288},   // GPT-2's
    {7, 4096, 4096, 1.0f, 3, 512},       // no padding
    {5, 8192, 8001, 0.5f, 2, 300},       // shared memory holds fewer vectors than there are threads
    {5, 8192, 8001, 0.5f, 2, 700},       // ... some of the second vectors
    {5, 8192, 4093, 0.5f, 2, 700},       // ... and some padding
    {3, 32128, 32000, 0.0f, 1, 4016},    // evaluation
    {2, 262144, 262143, 0.25f, 1, 6000},   // the widest
};

static void classifier_thread(void *args) { cross_entropy_kernel(*(CrossEntropyArgs *)args); }

static void run_classifier(const ClassifierCase *c, Tensor losses, Tensor logits, Tensor targets) {
    CrossEntropyArgs a = {};
    a.losses = (float *)losses.data;
    a.logits = (bf16 *)logits.data;
    a.targets = (const int32_t *)targets.data;
    a.rows = c->rows;
    a.cols = c->padded;
    a.num_blocks = c->blocks;
    a.resident = c->resident;
    a.vocab = c->vocab;
    a.dloss = c->dloss;
    a.whole = whole_vectors(logits);
    fibre_allow(logits.data, tensor_bytes(logits));
    for (int block = 0; block < c->blocks; block++)
        fibre_run_block(classifier_thread, &a, ROW_THREADS, block);
    fibre_forbid();
}

static Tensor random_targets(const ClassifierCase *c) {
    Tensor t = guarded(DT_I32, c->rows, 1);
    for (int64_t i = 0; i < c->rows; i++) {
        Philox4 bits = philox4x32_10(rng_group_counter((uint64_t)i, 0, 0), 77, 0);
        ((int32_t *)t.data)[i] = i ? (int32_t)(bits.w[0] % (uint32_t)c->vocab) : c->vocab - 1;
    }
    return t;
}

/* In double: over the widest row the reference's sum in f32 is the less exact one. */
static double exact_loss(Tensor logits, int64_t n, int vocab, int target) {
    double maximum = -INFINITY, sum = 0.0;
    for (int v = 0; v < vocab; v++) maximum = fmax(maximum, at(logits, n * logits.cols + v));
    for (int v = 0; v < vocab; v++) sum += exp(at(logits, n * logits.cols + v) - maximum);
    return log(sum) + maximum - at(logits, n * logits.cols + target);
}

/* Takes the logits over. */
static void compare_classifier(const ClassifierCase *c, Tensor logits, const char *where) {
    Device *cpu = device_cpu_open(1);
    size_t bytes = 64 * ((size_t)c->padded + 64) * sizeof(float);
    void *scratch = device_alloc(cpu, bytes, "scratch");
    device_set_scratch(cpu, scratch, bytes);
    Tensor targets = random_targets(c), want = copy_of(logits), other = copy_of(logits);
    Tensor start = copy_of(logits);
    Tensor losses[3];   // of the reference, of the case's blocks, of others
    for (int i = 0; i < 3; i++) losses[i] = guarded(DT_F32, c->rows, 1);
    cross_entropy_cpu(cpu, losses[0], want, targets, c->vocab, c->dloss);
    run_classifier(c, losses[1], logits, targets);
    expect_no_faults(where);
    for (int64_t n = 0; n < c->rows; n++) {
        double loss = exact_loss(start, n, c->vocab, ((int32_t *)targets.data)[n]);
        float got = at(losses[1], n);
        if (isnan(loss)) EXPECT(isnan(got), "loss %lld is %g; %s", (long long)n, got, where);
        else EXPECT_NEAR(got, loss, 1e-6 * fabs(loss), "loss %lld; %s", (long long)n, where);
    }
    if (c->dloss == 0.0f) EXPECT_BITS(logits.data, want.data, tensor_bytes(want), "%s", where);
    else expect_close(logits, want, 1e-6 * c->dloss, where);
    ClassifierCase apart = *c;   // a block for each row, which it reads from global memory
    apart.blocks = (int)c->rows;
    apart.resident = 0;
    run_classifier(&apart, losses[2], other, targets);
    EXPECT_BITS(other.data, logits.data, tensor_bytes(want), "gradient of other blocks; %s", where);
    EXPECT_BITS(losses[2].data, losses[1].data, 4 * (size_t)c->rows, "their losses; %s", where);
    for (int i = 0; i < 3; i++) release(losses[i]);
    release(targets), release(want), release(other), release(start), release(logits);
    cpu->free(cpu, scratch);
    cpu->close(cpu);
}

CASE(cross_entropy) {
    for (int i = 0; i < ARRAY_LEN(classifiers); i++) {
        const ClassifierCase *c = &classifiers[i];
        char where[64];
        snprintf(where, sizeof(where), "case %d", i);
        compare_classifier(c, random_tensor(DT_BF16, c->rows, c->padded, 3, (uint32_t)i), where);
    }
}

/* Infinite and absent logits, alone, in every column of a warp and in whole rows. */
CASE(cross_entropy_of_what_is_not_finite) {
    static const ClassifierCase c = {8, 4352, 4333, 0.125f, 3, 400};
    Tensor logits = random_tensor(DT_BF16, c.rows, c.padded, 3, 1);
    for (int64_t v = 0; v < c.padded; v++) {
        if (v < 256 || v >= 4096) set(logits, v, -INFINITY);   // of the first warp
        set(logits, 2 * c.padded + v, -INFINITY);
        set(logits, 6 * c.padded + v, v % 2 ? 3e38f : -3e38f);
    }
    set(logits, 3 * c.padded + 700, INFINITY);
    set(logits, 4 * c.padded + 4332, NAN);
    set(logits, 5 * c.padded + 4340, NAN);   // padding takes no part
    compare_classifier(&c, logits, "not finite");
}

// --- column_sum ---

typedef struct {
    int64_t rows, cols;   // the reason stands beside each
} Shape;

static const Shape column_shapes[] = {
    {1, 8},        // one row
    {100, 30},     // columns no multiple of a vector
    {300, 256},    // exact spans, three splits
    {1000, 264},   // a third span that is nearly empty
    {70, 2052},    // whole vectors in no row but the first
    {2500, 136},   // splits with an uneven number of rows
};

typedef struct {
    ColumnSums sums;
    const void *dout;
    DType type;
    int whole;
} ColumnLaunch;

static void column_thread(void *launch) {
    const ColumnLaunch *l = (const ColumnLaunch *)launch;
    if (l->type == DT_F32) {
        const float *dout = (const float *)l->dout;
        if (l->whole) column_sum_kernel<float, true>(l->sums, dout);
        else column_sum_kernel<float, false>(l->sums, dout);
    } else {
        const bf16 *dout = (const bf16 *)l->dout;
        if (l->whole) column_sum_kernel<bf16, true>(l->sums, dout);
        else column_sum_kernel<bf16, false>(l->sums, dout);
    }
}

/* The blocks in ascending or descending order: another one is the last of each span. */
static void run_column_sum(Tensor db, Tensor dout, int descending) {
    ColumnSums sums = column_sums((float *)db.data, NULL, dout.rows, dout.cols);
    int blocks = sums.spans * sums.splits;
    Tensor partials = guarded(DT_F32, blocks, COLUMN_SPAN);
    sums.partials = (float *)partials.data;
    ColumnLaunch launch = {sums, dout.data, dout.dtype,
                           whole_vectors(dout) && dout.cols % VEC == 0};
    for (int i = 0; i < blocks; i++) {
        int block = descending ? blocks - 1 - i : i;
        fibre_run_block(column_thread, &launch, COLUMN_THREADS, block);
    }
    release(partials);
}

CASE(column_sum) {
    for (int i = 0; i < 2 * ARRAY_LEN(column_shapes); i++) {
        Shape s = column_shapes[i / 2];
        Tensor dout = random_tensor(i % 2 ? DT_F32 : DT_BF16, s.rows, s.cols, 1, (uint32_t)i);
        Tensor db = random_tensor(DT_F32, 1, s.cols, 1, 99), start = copy_of(db);
        Tensor again = copy_of(db);
        run_column_sum(db, dout, 0);
        run_column_sum(again, dout, 1);
        for (int64_t c = 0; c < s.cols; c++) {
            double want = at(start, c), size = fabs(want);
            for (int64_t n = 0; n < s.rows; n++) {
                want += at(dout, n * s.cols + c);
                size += fabs((double)at(dout, n * s.cols + c));
            }
            EXPECT_NEAR(at(db, c), want, 1e-6 * size, "column %lld of %lld x %lld", (long long)c,
                        (long long)s.rows, (long long)s.cols);
        }
        EXPECT_BITS(again.data, db.data, tensor_bytes(db), "blocks in another order");
        release(dout), release(db), release(start), release(again);
    }
    for (int i = 0; i < COLUMN_MAX_SPANS; i++)
        EXPECT(column_tickets[i] == 0, "ticket %d is left at %u", i, column_tickets[i]);
}

// --- activations ---

static const Shape activation_shapes[] = {
    {1, 8},       // one vector
    {5, 13},      // nothing is a multiple of a vector
    {3, 30},      // gated: rows of 60 values, halves of no whole number of vectors
    {33, 1032},   // many blocks, the last not full
};

typedef struct {
    void (*kernel)(ActArgs);
    ActArgs args;
} ActLaunch;

static void activation_thread(void *launch) {
    ((ActLaunch *)launch)->kernel(((ActLaunch *)launch)->args);
}

static void (*const act_kernels[NUM_ACTS][2])(ActArgs) = {
    {act_forward_kernel<ACT_GELU, 1>, act_backward_kernel<ACT_GELU, 1>},
    {act_forward_kernel<ACT_SWIGLU, 2>, act_backward_kernel<ACT_SWIGLU, 2>},
    {act_forward_kernel<ACT_RELU2, 1>, act_backward_kernel<ACT_RELU2, 1>},
};

/* dx may be x. */
static void run_activation(ActKind kind, Tensor out, Tensor dx, Tensor dout, Tensor x) {
    int inputs = act_info[kind].inputs_per_output, backward = dx.data != NULL;
    Tensor outputs = backward ? dout : out;
    ActLaunch launch = {};
    launch.kernel = act_kernels[kind][backward];
    ActArgs *a = &launch.args;
    a->rows = inputs == 1 ? 1 : outputs.rows;
    a->cols = tensor_count(outputs) / a->rows;
    a->row_vectors = (uint32_t)ceil_div(a->cols, VEC);
    a->whole = inputs == 1 || a->cols % VEC == 0;
    a->out = (bf16 *)out.data;
    a->dx = (bf16 *)dx.data;
    a->x = (const bf16 *)x.data;
    a->dout = (const bf16 *)dout.data;
    for (int64_t b = 0; b < ceil_div(a->rows * a->row_vectors, ACT_BLOCK); b++)
        fibre_run_block(activation_thread, &launch, ACT_THREADS, (int)b);
}

static void compare_activation(ActKind kind, Tensor dout, Tensor x, const char *where) {
    Tensor none = {}, out = guarded(DT_BF16, dout.rows, dout.cols), want_out = copy_of(out);
    Tensor dx = guarded(DT_BF16, x.rows, x.cols), want_dx = copy_of(dx), in_place = copy_of(x);
    activation_forward_cpu(NULL, want_out, x, kind);
    activation_backward_cpu(NULL, want_dx, dout, x, kind);
    run_activation(kind, out, none, none, x);
    run_activation(kind, none, dx, dout, x);
    run_activation(kind, none, in_place, dout, in_place);
    expect_close(out, want_out, 2e-6, where);
    expect_close(dx, want_dx, 2e-6, where);
    EXPECT_BITS(in_place.data, dx.data, tensor_bytes(dx), "in place; %s", where);
    release(out), release(want_out), release(dx), release(want_dx), release(in_place);
    release(dout), release(x);
}

CASE(activations) {
    for (int i = 0; i < NUM_ACTS * ARRAY_LEN(activation_shapes); i++) {
        ActKind kind = (ActKind)(i % NUM_ACTS);
        Shape s = activation_shapes[i / NUM_ACTS];
        Tensor dout = random_tensor(DT_BF16, s.rows, s.cols, 1, 1);
        int64_t inputs = s.cols * act_info[kind].inputs_per_output;
        Tensor x = random_tensor(DT_BF16, s.rows, inputs, 3, 2);
        compare_activation(kind, dout, x, act_info[kind].name);
    }
}

/* All bf16 numbers but NaN, for swiglu as gates. */
CASE(activations_of_every_number) {
    for (int kind = 0; kind < NUM_ACTS; kind++) {
        int inputs = act_info[kind].inputs_per_output;
        Tensor x = guarded(DT_BF16, 512, 128 * inputs), dout = guarded(DT_BF16, 512, 128);
        for (int64_t i = 0; i < 65536; i++) {
            bf16_t number = (bf16_t)i;
            if (!isfinite(bf16_to_f32(number))) number = 0;
            ((bf16_t *)x.data)[i / 128 * x.cols + i % 128] = number;
            if (inputs == 2) set(x, i / 128 * x.cols + 128 + i % 128, 0.75f);
            set(dout, i, 1.0f);
        }
        compare_activation((ActKind)kind, dout, x, act_info[kind].name);
    }
}

TEST_MAIN_END
