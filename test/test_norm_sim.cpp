/*
test_norm_sim -- the source of the GPU's norm kernels, run on the host by fibres.h against the CPU
reference: every instance of the kernels, rows that are fewer and more than blocks take at a time,
columns that end within a vector; that nothing is written beyond an output or read beyond an input;
and that a norm of a residual's sum has the bits of the two ops one after the other. Whether the
instructions do what the simulation does, and the launches themselves: test_ops.cu.
*/
#include "fibres.h"

#include "../llmc/ops/norm.cuh"

#include "../llmc/ops.h"
#include "../llmc/rng.h"
#include "test.h"

enum { GUARD = 64, UNTOUCHED = 0xA5, MULTIPROCESSORS = 1 };

typedef struct {
    int rows, cols;   // the reason stands beside each
} Shape;

static const Shape shapes[] = {
    {1, 8},       // one vector, one row
    {67, 30},     // no multiples: value by value
    {90, 256},    // rows that more than one block takes several times
    {203, 768},   // three full vectors a thread
    {41, 1024},   // four
    {70, 1032},   // two warps a row, the second nearly empty
    {29, 1600},   // two warps a row, vectors of which some threads have none
    {21, 3072},   // four warps, three vectors
    {35, 4090},   // four warps, value by value
    {19, 8192},   // the widest: a row a block
};

static const float eps = 1e-5f;

// --- tensors between guards ---

static Tensor guarded(DType type, int64_t rows, int64_t cols) {
    Tensor t = tensor_view(NULL, type, rows, cols);
    uint8_t *memory =
        (uint8_t *)aligned_alloc(64, (size_t)round_up(tensor_bytes(t), 64) + 2 * GUARD);
    memset(memory, UNTOUCHED, tensor_bytes(t) + 2 * GUARD);
    t.data = memory + GUARD;
    return t;
}

static void release(Tensor t) { free((uint8_t *)t.data - GUARD); }

static void expect_guards(Tensor t, const char *name, Shape s) {
    const uint8_t *memory = (const uint8_t *)t.data - GUARD;
    int touched = 0;
    for (int i = 0; i < GUARD; i++)
        touched += (memory[i] != UNTOUCHED) + (memory[GUARD + tensor_bytes(t) + i] != UNTOUCHED);
    EXPECT(touched == 0, "%d bytes beyond %s were written, %d x %d", touched, name, s.rows, s.cols);
}

/* Mean 0, deviation 1. */
static Tensor random_values(DType type, int64_t rows, int64_t cols, uint32_t seed) {
    Tensor t = guarded(type, rows, cols);
    for (int64_t i = 0; i < tensor_count(t); i++) {
        Philox4 draw = philox4x32_10(rng_group_counter((uint64_t)i, 0, 0), seed, 0);
        float sum = -2.0f;
        for (int j = 0; j < 4; j++) sum += rng_uniform(draw.w[j]);
        sum *= 1.7320508f;
        if (type == DT_BF16) ((bf16_t *)t.data)[i] = bf16_from_f32(sum);
        else ((float *)t.data)[i] = sum;
    }
    return t;
}

static Tensor copy_of(Tensor t) {
    Tensor copy = guarded(t.dtype, t.rows, t.cols);
    memcpy(copy.data, t.data, tensor_bytes(t));
    return copy;
}

static float value(Tensor t, int64_t i) {
    return t.dtype == DT_BF16 ? bf16_to_f32(((bf16_t *)t.data)[i]) : ((float *)t.data)[i];
}

/* As many bf16 ulps as test_ops.cu allows, and what f32 leaves where a sum cancels. */
static void expect_near(Tensor got, Tensor want, double ulps, double floor, const char *name,
                        Shape s) {
    for (int64_t i = 0; i < tensor_count(want); i++) {
        int exponent;
        frexp(value(want, i), &exponent);
        EXPECT_NEAR(value(got, i), value(want, i), ulps * ldexp(1.0, exponent - 8) + floor,
                    "%s[%lld,%lld], %d x %d", name, (long long)(i / want.cols),
                    (long long)(i % want.cols), s.rows, s.cols);
    }
    expect_guards(got, name, s);
}

static void expect_same(Tensor got, Tensor want, const char *name, Shape s) {
    EXPECT_BITS(got.data, want.data, tensor_bytes(want), "%s, %d x %d", name, s.rows, s.cols);
    expect_guards(got, name, s);
}

/* f32 sums in another order. */
static void expect_sums(Tensor got, Tensor want, const char *name, Shape s) {
    double error = 0, power = 0;
    for (int64_t i = 0; i < tensor_count(want); i++) {
        error += pow((double)value(got, i) - value(want, i), 2);
        power += pow(value(want, i), 2);
    }
    EXPECT_NEAR(error / power, 0, 1e-10, "NMSE of %s, %d x %d", name, s.rows, s.cols);
    expect_guards(got, name, s);
}

// --- the kernels' launches ---

template <class Launch> static void thread_main(void *launch) {
    ((Launch *)launch)->kernel(((Launch *)launch)->args);
}

template <class Launch> static void run_blocks(Launch *launch) {
    for (int block = 0; block < launch->args.shape.blocks; block++)
        fibre_run_block(thread_main<Launch>, launch, NORM_THREADS, block);
    FibreFaults faults = fibre_take_faults();
    EXPECT(faults.races == 0 && faults.outside == 0, "%d races, %d reads beyond inputs, %d x %d",
           faults.races, faults.outside, (int)launch->args.shape.rows, launch->args.shape.cols);
}

static NormShape shape_of(Tensor x) { return norm_shape(x.rows, x.cols, x.cols % VEC == 0); }

static void allow(Tensor t) { fibre_allow(t.data, tensor_bytes(t)); }

/* One set of arguments; the names are those of norm.h. */
typedef struct {
    Shape shape;
    Tensor x, branch, w, b, dout;
    Tensor sum, out, dx, dw, db;
    NormStats stats;
} Args;

static Args make_args(Shape s) {
    Args a = {};
    a.shape = s;
    a.x = random_values(DT_BF16, s.rows, s.cols, 1);
    a.branch = random_values(DT_BF16, s.rows, s.cols, 2);
    a.w = random_values(DT_BF16, 1, s.cols, 3);
    a.b = random_values(DT_BF16, 1, s.cols, 4);
    a.dout = random_values(DT_BF16, s.rows, s.cols, 5);
    a.dx = random_values(DT_BF16, s.rows, s.cols, 6);
    a.dw = random_values(DT_F32, 1, s.cols, 7);
    a.db = random_values(DT_F32, 1, s.cols, 8);
    a.sum = guarded(DT_BF16, s.rows, s.cols);
    a.out = guarded(DT_BF16, s.rows, s.cols);
    a.stats.mean = guarded(DT_F32, s.rows, 1);
    a.stats.rstd = guarded(DT_F32, s.rows, 1);
    return a;
}

/* The same inputs, outputs of its own. */
static Args twin(const Args *a) {
    Args t = *a;
    t.sum = copy_of(a->sum);
    t.out = copy_of(a->out);
    t.dx = copy_of(a->dx);
    t.dw = copy_of(a->dw);
    t.db = copy_of(a->db);
    t.stats.mean = copy_of(a->stats.mean);
    t.stats.rstd = copy_of(a->stats.rstd);
    return t;
}

static void release_outputs(Args *a) {
    const Tensor all[] = {a->sum, a->out, a->dx, a->dw, a->db, a->stats.mean, a->stats.rstd};
    for (Tensor t : all) release(t);
}

static void release_inputs(Args *a) {
    const Tensor all[] = {a->x, a->branch, a->w, a->b, a->dout};
    for (Tensor t : all) release(t);
}

template <bool CENTERED> static void simulate_forward(Args *a, bool residual) {
    NormForwardArgs f = {};
    f.out = (bf16 *)a->out.data;
    f.mean = (float *)a->stats.mean.data;
    f.rstd = (float *)a->stats.rstd.data;
    f.sum = (bf16 *)a->sum.data;
    f.x = (const bf16 *)a->x.data;
    f.branch = (const bf16 *)a->branch.data;
    f.w = (const bf16 *)a->w.data;
    f.b = (const bf16 *)a->b.data;
    f.eps = eps;
    f.shape = shape_of(a->x);
    fibre_forbid();
    allow(a->x);
    if (residual) allow(a->branch);
    NormForwardLaunch l = residual ? norm_forward_launch<CENTERED, true>(f, MULTIPROCESSORS)
                                   : norm_forward_launch<CENTERED, false>(f, MULTIPROCESSORS);
    run_blocks(&l);
}

static void sum_main(void *launch) {
    NormBackwardLaunch *l = (NormBackwardLaunch *)launch;
    if (l->args.db) norm_sum_kernel<true>(l->args);
    else norm_sum_kernel<false>(l->args);
}

template <bool CENTERED> static void simulate_backward(Args *a) {
    NormBackwardArgs f = {};
    int64_t sums = CENTERED ? 2 : 1, cols = a->x.cols;
    Tensor partials = guarded(DT_F32, NORM_PARTIALS * sums, cols);
    f.dx = (bf16 *)a->dx.data;
    f.dw = (float *)a->dw.data;
    f.db = CENTERED ? (float *)a->db.data : NULL;
    f.partials = (float *)partials.data;
    f.dout = (const bf16 *)a->dout.data;
    f.x = (const bf16 *)a->x.data;
    f.w = (const bf16 *)a->w.data;
    f.mean = (const float *)a->stats.mean.data;
    f.rstd = (const float *)a->stats.rstd.data;
    f.shape = shape_of(a->x);
    fibre_forbid();
    allow(a->x), allow(a->dout), allow(a->dx);
    NormBackwardLaunch l = norm_backward_launch<CENTERED>(f);
    // Fewer blocks than a GPU's launch, so that a thread has several rows.
    if (l.args.shape.blocks > 2) l.args.shape.blocks = 2;
    run_blocks(&l);
    for (int block = 0; block < ceil_div(cols * sums, WARP); block++)
        fibre_run_block(sum_main, &l, NORM_SUM_THREADS, block);
    expect_guards(partials, "the partial sums", a->shape);
    release(partials);
}

// --- the reference ---

static Device *reference(Shape s) {
    static Device *device;
    static void *scratch;
    OpLimits limits = {};
    limits.tokens = s.rows;
    limits.max_cols = s.cols;
    limits.attention = {1, 1, 1, 1, 1};
    if (!device) device = device_cpu_open(1);
    size_t bytes = ops_cpu.scratch_bytes(&limits);
    if (scratch) device->free(device, scratch);
    scratch = device_alloc(device, bytes, "scratch");
    device_set_scratch(device, scratch, bytes);
    return device;
}

static const Tensor no_tensor = {};

template <bool CENTERED> static void refer_forward(Args *a, Tensor x) {
    const NormOp *op = &ops_cpu.norm[CENTERED ? NORM_LAYERNORM : NORM_RMSNORM];
    op->forward(reference(a->shape), a->out, a->stats, x, a->w, CENTERED ? a->b : no_tensor, eps);
}

template <bool CENTERED> static void refer_backward(Args *a) {
    const NormOp *op = &ops_cpu.norm[CENTERED ? NORM_LAYERNORM : NORM_RMSNORM];
    op->backward(reference(a->shape), a->dx, a->dw, CENTERED ? a->db : no_tensor, a->dout, a->x,
                 a->w, a->stats);
}

// --- cases ---

template <bool CENTERED> static void compare_forward(void) {
    for (Shape s : shapes) {
        Args got = make_args(s), want = twin(&got);
        simulate_forward<CENTERED>(&got, false);
        refer_forward<CENTERED>(&want, want.x);
        expect_near(got.out, want.out, 1, 4e-6, "out", s);
        expect_sums(got.stats.rstd, want.stats.rstd, "rstd", s);
        if (CENTERED) expect_near(got.stats.mean, want.stats.mean, 0, 1e-6, "mean", s);
        else expect_same(got.stats.mean, want.stats.mean, "the mean, which rmsnorm has not", s);
        expect_same(got.sum, want.sum, "the sum without a residual", s);
        release_outputs(&got), release_outputs(&want), release_inputs(&got);
    }
}

CASE(layernorm_forward) { compare_forward<true>(); }
CASE(rmsnorm_forward) { compare_forward<false>(); }

/* Both by the simulated kernels, the sum also by the reference: all bits are the same. */
template <bool CENTERED> static void compare_residual(void) {
    for (Shape s : shapes) {
        Args got = make_args(s), parts = twin(&got);
        simulate_forward<CENTERED>(&got, true);
        ops_cpu.residual_forward(reference(s), parts.sum, parts.x, parts.branch);
        Tensor x = parts.x;
        parts.x = parts.sum;
        simulate_forward<CENTERED>(&parts, false);
        parts.x = x;
        expect_same(got.sum, parts.sum, "sum", s);
        expect_same(got.out, parts.out, "out", s);
        expect_same(got.stats.rstd, parts.stats.rstd, "rstd", s);
        expect_same(got.stats.mean, parts.stats.mean, "mean", s);
        release_outputs(&got), release_outputs(&parts), release_inputs(&got);
    }
}

CASE(layernorm_of_a_residual_has_the_bits_of_its_parts) { compare_residual<true>(); }
CASE(rmsnorm_of_a_residual_has_the_bits_of_its_parts) { compare_residual<false>(); }

template <bool CENTERED> static void compare_backward(void) {
    for (Shape s : shapes) {
        Args got = make_args(s);
        refer_forward<CENTERED>(&got, got.x);
        Args want = twin(&got);
        simulate_backward<CENTERED>(&got);
        refer_backward<CENTERED>(&want);
        expect_near(got.dx, want.dx, 1, 8e-6, "dx", s);
        expect_sums(got.dw, want.dw, "dw", s);
        if (CENTERED) expect_sums(got.db, want.db, "db", s);
        else expect_same(got.db, want.db, "db, which rmsnorm has not", s);
        release_outputs(&got), release_outputs(&want), release_inputs(&got);
    }
}

CASE(layernorm_backward) { compare_backward<true>(); }
CASE(rmsnorm_backward) { compare_backward<false>(); }

TEST_MAIN_END
