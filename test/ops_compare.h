/*
ops_compare -- runs one op on two devices from the same inputs and compares what it wrote: the
harness of test_ops.cu and test_ops_extras_cuda.cu. An op's arguments are described once; the
reference runs on the CPU, the other device runs it twice. Outputs are filled with 0xFF before every
run, both runs must give the same bits, inputs must stay as they were, and each output has a
tolerance of its own.
*/
#ifndef TEST_OPS_COMPARE_H
#define TEST_OPS_COMPARE_H

#include "../llmc/common.h"
#include "../llmc/ops.h"
#include "../llmc/rng.h"
#include "test.h"

enum { MAX_ARGS = 12 };

typedef enum { ARG_IN, ARG_OUT, ARG_INOUT } ArgRole;

typedef enum { TOLERATE_NOTHING, TOLERATE_NMSE, TOLERATE_ULPS } ToleranceKind;

/* TOLERATE_ULPS: |got - want| <= ulps * (bf16 ulp of want) + floor + of_largest * (largest |want|)
   + bound[i], and the NMSE limit where one is set; TOLERATE_NMSE: that limit alone. */
typedef struct {
    ToleranceKind kind;
    double nmse;
    double ulps, floor, of_largest;
    const float *bound;   // NULL, or as many values as the argument
} Tolerance;

static const Tolerance same_bits = {TOLERATE_NOTHING, 0, 0, 0, 0, NULL};
static const Tolerance f32_close = {TOLERATE_NMSE, 1e-10, 0, 0, 0, NULL};

/* `floor`: what f32 rounding of the terms of a cancelling sum may leave. */
static inline Tolerance within_ulps(double ulps, double floor) {
    Tolerance t = {TOLERATE_ULPS, 0, ulps, floor, 0, NULL};
    return t;
}

typedef struct {
    const char *name;
    ArgRole role;
    Tolerance tolerance;
    Tensor cpu, gpu;   // on each device
    void *initial;     // host: contents before the op; 0xFF for ARG_OUT
} Arg;

typedef struct {
    Device *cpu, *gpu;
    void *cpu_scratch, *gpu_scratch;
    Arg args[MAX_ARGS];
    int num_args;
    uint64_t seed;
    uint32_t draws;   // random values so far, in groups of 4
} OpTest;

typedef void OpCall(const Ops *ops, Device *d, const Tensor *t, const void *how);

/* The devices of all tests; opened by main. */
static Device *test_cpu, *test_gpu;

static inline OpTest op_test(OpLimits limits, uint64_t seed) {
    OpTest t;
    memset(&t, 0, sizeof(t));
    t.cpu = test_cpu;
    t.gpu = test_gpu;
    t.seed = seed;
    size_t cpu_bytes = ops_cpu.scratch_bytes(&limits), gpu_bytes = ops_cuda.scratch_bytes(&limits);
    t.cpu_scratch = device_alloc(t.cpu, cpu_bytes, "scratch");
    t.gpu_scratch = device_alloc(t.gpu, gpu_bytes, "scratch");
    device_set_scratch(t.cpu, t.cpu_scratch, cpu_bytes);
    device_set_scratch(t.gpu, t.gpu_scratch, gpu_bytes);
    return t;
}

static inline void op_test_end(OpTest *t) {
    for (int i = 0; i < t->num_args; i++) {
        t->cpu->free(t->cpu, t->args[i].cpu.data);
        t->gpu->free(t->gpu, t->args[i].gpu.data);
        free(t->args[i].initial);
    }
    t->cpu->free(t->cpu, t->cpu_scratch);
    t->gpu->free(t->gpu, t->gpu_scratch);
}

// --- contents ---

static inline Philox4 op_test_draw(OpTest *t) {
    Philox4 counter = {{t->draws++, 0, 0, 0}};
    return philox4x32_10(counter, (uint32_t)t->seed, (uint32_t)(t->seed >> 32));
}

/* About normal, mean 0: a sum of four uniform values has variance 1/3. */
static inline float op_test_normal(OpTest *t) {
    Philox4 bits = op_test_draw(t);
    float sum = 0.0f;
    for (int i = 0; i < 4; i++) sum += rng_uniform(bits.w[i]);
    return (sum - 2.0f) * 1.7320508f;
}

static inline float value_at(const void *data, DType type, int64_t i) {
    if (type == DT_BF16) return bf16_to_f32(((const bf16_t *)data)[i]);
    return ((const float *)data)[i];
}

static inline void set_value(void *data, DType type, int64_t i, float x) {
    if (type == DT_BF16) ((bf16_t *)data)[i] = bf16_from_f32(x);
    else ((float *)data)[i] = x;
}

static inline int add_arg(OpTest *t, const char *name, ArgRole role, Tensor shape,
                          Tolerance tolerance) {
    if (t->num_args == MAX_ARGS) {
        fprintf(stderr, "ops_compare.h: raise MAX_ARGS\n");
        exit(1);
    }
    size_t bytes = tensor_bytes(shape);
    Arg *a = &t->args[t->num_args];
    a->name = name;
    a->role = role;
    a->tolerance = tolerance;
    a->cpu = a->gpu = shape;
    a->cpu.data = device_alloc(t->cpu, bytes, name);
    a->gpu.data = device_alloc(t->gpu, bytes, name);
    a->initial = malloc(bytes ? bytes : 1);
    memset(a->initial, 0xFF, bytes);
    return t->num_args++;
}

static inline int add_out(OpTest *t, const char *name, DType type, int64_t rows, int64_t cols,
                          Tolerance tolerance) {
    return add_arg(t, name, ARG_OUT, tensor_view(NULL, type, rows, cols), tolerance);
}

/* An argument with random contents, mean 0 and deviation `scale`. */
static inline int add_random(OpTest *t, const char *name, ArgRole role, Tensor shape, float scale,
                             Tolerance tolerance) {
    int at = add_arg(t, name, role, shape, tolerance);
    for (int64_t i = 0; i < tensor_count(shape); i++)
        set_value(t->args[at].initial, shape.dtype, i, scale * op_test_normal(t));
    return at;
}

static inline int add_in(OpTest *t, const char *name, DType type, int64_t rows, int64_t cols) {
    return add_random(t, name, ARG_IN, tensor_view(NULL, type, rows, cols), 1.0f, same_bits);
}

/* Integers in [0, limit). */
static inline int add_ids(OpTest *t, const char *name, int64_t rows, int64_t cols, int limit) {
    int at = add_arg(t, name, ARG_IN, tensor_view(NULL, DT_I32, rows, cols), same_bits);
    for (int64_t i = 0; i < rows * cols; i++)
        ((int32_t *)t->args[at].initial)[i] = (int32_t)(op_test_draw(t).w[0] % (uint32_t)limit);
    return at;
}

/* Bytes given by the caller, such as a StepState. */
static inline int add_bytes(OpTest *t, const char *name, ArgRole role, const void *bytes,
                            size_t count) {
    Tensor shape = tensor_view(NULL, DT_U8, 1, (int64_t)count);
    int at = add_arg(t, name, role, shape, same_bits);
    memcpy(t->args[at].initial, bytes, count);
    return at;
}

// --- comparison ---

static inline double bf16_ulp(float x) {
    if (x == 0.0f || !isfinite(x)) return ldexp(1.0, -133);
    int exponent;
    frexp(fabs((double)x), &exponent);   // |x| in [2^(exponent-1), 2^exponent)
    return ldexp(1.0, exponent < -125 ? -133 : exponent - 8);
}

static inline void compare_nmse(const Arg *a, const void *got, const char *about) {
    double error = 0.0, power = 0.0;
    for (int64_t i = 0; i < tensor_count(a->cpu); i++) {
        double g = value_at(got, a->cpu.dtype, i), w = value_at(a->cpu.data, a->cpu.dtype, i);
        error += (g - w) * (g - w);
        power += w * w;
    }
    EXPECT_NEAR(error / (power > 0.0 ? power : 1.0), 0.0, a->tolerance.nmse, "NMSE of %s; %s",
                a->name, about);
}

static inline double largest_value(const void *data, Tensor shape) {
    double largest = 0.0;
    for (int64_t i = 0; i < tensor_count(shape); i++)
        largest = fmax(largest, fabs((double)value_at(data, shape.dtype, i)));
    return largest;
}

static inline void compare_ulps(const Arg *a, const void *got, const char *about) {
    double floor = a->tolerance.floor;
    if (a->tolerance.of_largest > 0.0)
        floor += a->tolerance.of_largest * largest_value(a->cpu.data, a->cpu);
    for (int64_t i = 0; i < tensor_count(a->cpu); i++) {
        float g = value_at(got, a->cpu.dtype, i), w = value_at(a->cpu.data, a->cpu.dtype, i);
        double allowed = a->tolerance.ulps * bf16_ulp(w) + floor;
        if (a->tolerance.bound) allowed += a->tolerance.bound[i];
        EXPECT_NEAR(g, w, allowed, "%s[%lld,%lld]; %s", a->name, (long long)(i / a->cpu.cols),
                    (long long)(i % a->cpu.cols), about);
    }
}

static inline void compare_arg(const Arg *a, const void *got, const char *about) {
    if (a->role == ARG_IN) {
        EXPECT_BITS(got, a->initial, tensor_bytes(a->cpu), "input %s was written; %s", a->name,
                    about);
        return;
    }
    switch (a->tolerance.kind) {
    case TOLERATE_NOTHING:
        EXPECT_BITS(got, a->cpu.data, tensor_bytes(a->cpu), "%s; %s", a->name, about);
        break;
    case TOLERATE_NMSE: compare_nmse(a, got, about); break;
    case TOLERATE_ULPS:
        compare_ulps(a, got, about);
        if (a->tolerance.nmse > 0.0) compare_nmse(a, got, about);
        break;
    }
}

/* Runs the op on the CPU and twice on the other device, and compares; `about` names the case. */
static inline void compare_op(OpTest *t, OpCall *call, const void *how, const char *about) {
    Tensor cpu[MAX_ARGS], gpu[MAX_ARGS];
    void *first[MAX_ARGS];
    for (int i = 0; i < t->num_args; i++) {
        cpu[i] = t->args[i].cpu;
        gpu[i] = t->args[i].gpu;
        memcpy(cpu[i].data, t->args[i].initial, tensor_bytes(cpu[i]));
        first[i] = malloc(tensor_bytes(cpu[i]) + 1);
    }
    call(&ops_cpu, t->cpu, cpu, how);
    for (int run = 0; run < 2; run++) {
        for (int i = 0; i < t->num_args; i++)
            t->gpu->upload(t->gpu, gpu[i].data, t->args[i].initial, tensor_bytes(gpu[i]));
        call(&ops_cuda, t->gpu, gpu, how);
        for (int i = 0; i < t->num_args; i++) {
            void *got = run == 0 ? first[i] : malloc(tensor_bytes(gpu[i]) + 1);
            t->gpu->download(t->gpu, got, gpu[i].data, tensor_bytes(gpu[i]));
            if (run == 0) {
                compare_arg(&t->args[i], got, about);
                continue;
            }
            EXPECT_BITS(got, first[i], tensor_bytes(gpu[i]), "second run of %s; %s",
                        t->args[i].name, about);
            free(got);
        }
    }
    for (int i = 0; i < t->num_args; i++) free(first[i]);
}

// --- what the programs share ---

enum { NUM_SEEDS = 3 };

/* Limits that no test exceeds; attention is announced by its own test. */
static inline OpLimits limits_of(int64_t rows, int64_t cols, int64_t vocab) {
    OpLimits l;
    memset(&l, 0, sizeof(l));
    AttentionDims small = {1, 16, 1, 1, 16};
    l.tokens = rows;
    l.max_cols = cols;
    l.max_weight = cols * vocab;
    l.logits_rows = rows;
    l.padded_vocab = vocab;
    l.num_elements = rows * cols;
    l.attention = small;
    return l;
}

static inline Tensor shaped(DType type, int64_t rows, int64_t cols) {
    return tensor_view(NULL, type, rows, cols);
}

static const Tensor no_tensor = {NULL, DT_F32, 0, 0};

typedef struct {
    int64_t rows, cols;   // the reason stands beside each
} Shape;

#define FOR_SHAPES_AND_SEEDS(shapes)                                                               \
    for (int s = 0; s < ARRAY_LEN(shapes); s++)                                                    \
        for (uint64_t seed = 1; seed <= NUM_SEEDS; seed++)

static inline const char *describe(Shape s, uint64_t seed) {
    static char text[96];
    snprintf(text, sizeof(text), "(%lld,%lld), seed %llu", (long long)s.rows, (long long)s.cols,
             (unsigned long long)seed);
    return text;
}

static inline int op_test_main(int argc, char **argv) {
    test_cpu = device_cpu_open(0);
    test_gpu = device_cuda_open(0);
    printf("%s against %s\n", test_gpu->name, test_cpu->name);
    int status = test_run(argc, argv);
    test_gpu->close(test_gpu);
    test_cpu->close(test_cpu);
    return status;
}

#endif
