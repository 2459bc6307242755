// bench_profile -- where the time of a training step goes: every op and every memory operation of
// some steps between two CUDA events, summed by op and shape and set beside its roofline: a copy
// measured in the same process for what moves bytes, a large BF16 GEMM for what multiplies. Tokens
// are random, weights initial. Not a test: it checks nothing.
//
//   build/cuda/dev/bench_profile [FILE | KEY=VALUE]... [steps=N] [gemm_tflops=X]
//   FILE, KEY=VALUE   as the program takes them; batch.total_tokens sets the micro-steps of a step
//   steps=N           steps without and then steps with events, default 5
//   gemm_tflops=X     the ceiling of products, instead of the one measured
//
// Counted are the bytes that must move if each tensor is read or written once, and the FLOPs of
// products (of attention the causal half). An op that is not in wrap_ops shows only in the gap
// between all ops and a step without events; a launch that comes late is in its op's time.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "backend.h"
#include "common.h"
#include "config.h"
#include "device_cuda.cuh"
#include "gemm_rates.h"
#include "model.h"
#include "optimizer.h"
#include "plan.h"

enum {
    WARM_UP = 3,
    REPEATS = 20,   // of what is timed for a ceiling
    GEMM_SIZE = 8192,
    PATTERN = 1 << 20,   // random values before they repeat
    LABEL_BYTES = 96
};
static const size_t COPY_BYTES = (size_t)1 << 30;

typedef struct {
    int64_t calls;
    double ms, bytes, flops;   // of all profiled steps
} Row;

typedef struct {
    Row *row;
    cudaEvent_t begin, end;
} Interval;

static struct {
    int on;
    cudaStream_t stream;
    std::map<std::string, Row> rows;
    std::vector<Interval> intervals;
    size_t num_intervals;   // of the step under way; the next one uses their events again
} profile;

static double copy_gb_s, gemm_tflops;   // the ceilings

// --- what a call's arguments say ---

typedef struct {
    std::vector<Tensor> tensors;   // in the order of the arguments, an absent one empty
    int64_t tokens;                // of a batch of token ids
    const QOperand *factors[2];    // of a GEMM
    GemmEpilogue epilogue;
    AttentionDims dims;
    size_t plain_bytes;   // of a memory operation
    char detail[48];
} Call;

static void append(Call *c, const char *text) {
    size_t used = strlen(c->detail);
    snprintf(c->detail + used, sizeof(c->detail) - used, " %s", text);
}

static void note(Call *c, Tensor t) {
    c->tensors.push_back(t);
    if (t.dtype == DT_I32) c->tokens = tensor_count(t);
}

static void note(Call *c, NormStats stats) { note(c, stats.mean), note(c, stats.rstd); }

static void note(Call *c, Residual r) { note(c, r.sum), note(c, r.x), note(c, r.branch); }

static void note(Call *c, AdamWTensors t) {
    for (Tensor tensor : {t.value, t.master, t.m, t.v, t.grad}) note(c, tensor);
}

/* An operand that the op makes: its bytes, in whichever form. */
static void note(Call *c, QOperand *q) {
    Tensor made = {};
    if (q && q->form == FORM_VALUES) made = tensor_view(q->data, q->dtype, q->rows, q->k);
    if (q && q->form == FORM_PACKED) {
        size_t bytes = quantize_packed_bytes(q->rows, q->k) + quantize_scales_bytes(q->rows, q->k);
        made = tensor_view(q->data, DT_U8, 1, (int64_t)bytes);
    }
    note(c, made);
}

static void note(Call *c, const Quantizer *how) {
    if (!how) return;
    append(c, how->token_operand ? "token" : "row");
    if (how->how.tile == TILE_SQUARE) append(c, "16x16");
    if (how->how.hadamard) append(c, "rht");
    if (how->how.rounding == ROUND_STOCHASTIC) append(c, "sr");
}

/* An operand that the op reads. */
static void note(Call *c, const QOperand *q) { c->factors[c->factors[0] ? 1 : 0] = q; }

static void note(Call *c, GemmEpilogue epilogue) { c->epilogue = epilogue; }
static void note(Call *c, AttentionDims dims) { c->dims = dims; }
static void note(Call *c, ActKind kind) { append(c, act_info[kind].name); }
static void note(Call *c, size_t bytes) { c->plain_bytes = bytes; }
/* Numbers and pointers that say nothing of work. */
template <typename T> static void note(Call *, const T &) {}

// How often each tensor of an op moves, in the order of its arguments; an op or a tensor that is
// not listed: once. 0 not at all, 2 read and written, g and G once and twice as many rows as there
// are tokens at most, q the query and key columns read and written.
static const struct {
    const char *op, *moves;
    int causal_products;   // of attention: its work is products, not bytes
} costs[] = {
    {"embedding_forward", "11gg", 0},
    {"embedding_backward", "GG11", 0},
    {"layernorm_backward", "2", 0},
    {"rmsnorm_backward", "2", 0},
    {"rope_forward", "q0", 0},
    {"rope_backward", "q0", 0},
    {"attention_forward", "", 2},
    {"attention_backward", "", 5},
    {"cross_entropy", "12", 0},
    {"amax_pair", "001", 0},
    {"adamw", "12221", 0},
    {"copy", "2", 0},
    {"upload", "0", 0},   // the host's business
    {"download", "0", 0},
};

static double bytes_moved(const Call *c, Tensor t, char how) {
    if (tensor_empty(t)) return 0;
    double bytes = (double)tensor_bytes(t), values = c->dims.num_kv_heads;
    if (how == 'g' || how == 'G') bytes *= fmin(1, (double)c->tokens / (double)t.rows);
    if (how == 'q') bytes *= 1 - values / (c->dims.num_heads + 2 * values);
    int times = how == '0' ? 0 : how == '1' || how == 'g' ? 1 : 2;
    return times * bytes;
}

static void count_work(Row *row, const char *op, const Call *c) {
    const char *moves = "";
    double products = 0;
    for (auto &cost : costs) {
        if (strcmp(cost.op, op) != 0) continue;
        moves = cost.moves;
        products = cost.causal_products;
    }
    const QOperand *a = c->factors[0], *b = c->factors[1];
    AttentionDims att = c->dims;
    if (a && b) row->flops += 2.0 * (double)a->rows * (double)b->rows * (double)a->k;
    row->flops += products * att.B * att.num_heads * att.head_dim * (double)att.T * att.T;
    if (b || products > 0) return;
    for (size_t i = 0; i < c->tensors.size(); i++)
        row->bytes += bytes_moved(c, c->tensors[i], i < strlen(moves) ? moves[i] : '1');
    row->bytes += (double)c->plain_bytes * (moves[0] == '2' ? 2 : moves[0] != '0');
}

/* "gemm 65536x3072x768 NT bf16 > bf16 +bias": m x n x k, which operands are transposed as BLAS
   counts, formats, and what becomes of d. */
static void gemm_label(char *label, const char *op, const Call *c) {
    const QOperand *a = c->factors[0], *b = c->factors[1];
    char other[32] = "";
    if (a->format != b->format) snprintf(other, sizeof(other), ",%s", formats[b->format].name);
    snprintf(label, LABEL_BYTES, "%s %lldx%lldx%lld %c%c %s%s%s > %s%s%s", op, (long long)a->rows,
             (long long)b->rows, (long long)a->k, a->k_contiguous ? 'N' : 'T',
             b->k_contiguous ? 'T' : 'N', formats[a->format].name, other,
             a->form == FORM_PACKED ? " packed" : "", dtype_info[c->tensors[0].dtype].name,
             c->epilogue.accumulate ? " +=" : "", tensor_empty(c->epilogue.bias) ? "" : " +bias");
}

static void op_label(char *label, const char *op, const Call *c) {
    AttentionDims a = c->dims;
    Tensor largest = {};
    for (Tensor t : c->tensors) {
        int larger = tensor_empty(largest) || tensor_bytes(t) > tensor_bytes(largest);
        if (!tensor_empty(t) && larger) largest = t;
    }
    if (c->factors[1]) {
        gemm_label(label, op, c);
    } else if (a.B > 0) {
        snprintf(label, LABEL_BYTES, "%s %dx%d tokens, %d/%d heads of %d", op, a.B, a.T,
                 a.num_heads, a.num_kv_heads, a.head_dim);
    } else if (!tensor_empty(largest)) {
        snprintf(label, LABEL_BYTES, "%s %lldx%lld %s%s", op, (long long)largest.rows,
                 (long long)largest.cols, dtype_info[largest.dtype].name, c->detail);
    } else {
        snprintf(label, LABEL_BYTES, "%s %zu bytes", op, c->plain_bytes);
    }
}

// --- recording ---

static Interval *next_interval(void) {
    if (profile.num_intervals == profile.intervals.size()) {
        Interval fresh = {};
        CUDA_CHECK(cudaEventCreate(&fresh.begin));
        CUDA_CHECK(cudaEventCreate(&fresh.end));
        profile.intervals.push_back(fresh);
    }
    return &profile.intervals[profile.num_intervals++];
}

/* One op of the table: `call` stands in its place, and runs and times it. */
template <int Slot, typename... Args> struct Timed {
    static inline void (*op)(Device *, Args...) = nullptr;
    static inline const char *name = nullptr;

    static void call(Device *device, Args... args) {
        if (!profile.on) return op(device, args...);
        Call c = {};
        char label[LABEL_BYTES];
        (note(&c, args), ...);
        op_label(label, name, &c);
        Interval *interval = next_interval();
        interval->row = &profile.rows[label];
        interval->row->calls++;
        count_work(interval->row, name, &c);
        profile.on = 0;   // what an op calls is its own time
        CUDA_CHECK(cudaEventRecord(interval->begin, profile.stream));
        op(device, args...);
        CUDA_CHECK(cudaEventRecord(interval->end, profile.stream));
        profile.on = 1;
    }
};

template <int Slot, typename... Args>
static void wrap(void (*&op)(Device *, Args...), const char *name) {
    Timed<Slot, Args...>::op = op;
    Timed<Slot, Args...>::name = name;
    op = Timed<Slot, Args...>::call;
}
/* Of the table's or the device's field: its name is the op's. */
#define WRAP(table, field) wrap<__COUNTER__>((table)->field, #field)
#define WRAP_NORM(table, kind, text)                                                               \
    wrap<__COUNTER__>((table)->norm[kind].forward, text "_forward");                               \
    wrap<__COUNTER__>((table)->norm[kind].residual_forward, text "_residual_forward");             \
    wrap<__COUNTER__>((table)->norm[kind].backward, text "_backward")

static void wrap_ops(Ops *ops) {
    WRAP_NORM(ops, NORM_LAYERNORM, "layernorm");
    WRAP_NORM(ops, NORM_RMSNORM, "rmsnorm");
    WRAP(ops, embedding_forward);
    WRAP(ops, embedding_backward);
    WRAP(ops, rope_forward);
    WRAP(ops, rope_backward);
    WRAP(ops, attention_forward);
    WRAP(ops, attention_backward);
    WRAP(ops, activation_forward);
    WRAP(ops, activation_backward);
    WRAP(ops, residual_forward);
    WRAP(ops, cross_entropy);
    WRAP(ops, amax_pair);
    WRAP(ops, quantize_pair);
    WRAP(ops, gemm);
    WRAP(ops, gemm_mma);
    WRAP(ops, column_sum);
    WRAP(ops, sum);
    WRAP(ops, global_norm);
    WRAP(ops, step_decide);
    WRAP(ops, adamw);
}

static void wrap_device(Device *d) {
    WRAP(d, upload);
    WRAP(d, download);
    WRAP(d, copy);
    WRAP(d, zero);
}

// --- ceilings ---

/* Milliseconds of one run of many, after a few that warm up. */
template <typename Run> static double time_ms(Device *d, Run run) {
    for (int i = 0; i < WARM_UP; i++) run();
    d->synchronize(d);
    double began = now_ms();
    for (int i = 0; i < REPEATS; i++) run();
    d->synchronize(d);
    return (now_ms() - began) / REPEATS;
}

static double measure_copy(Device *d) {
    void *from = device_alloc(d, COPY_BYTES, "the copy that is the ceiling");
    void *to = device_alloc(d, COPY_BYTES, "the copy that is the ceiling");
    d->zero(d, from, COPY_BYTES);
    double ms = time_ms(d, [&] { d->copy(d, to, from, COPY_BYTES); });   // cudaMemcpyAsync
    d->free(d, from);
    d->free(d, to);
    return 2.0 * (double)COPY_BYTES / ms * 1e-6;
}

/* Random values: of zeros a product is faster. */
static Tensor random_matrix(Device *d) {
    static bf16_t pattern[PATTERN];
    uint32_t state = 1;
    for (int i = 0; i < PATTERN; i++) {
        state = state * 1664525u + 1013904223u;
        pattern[i] = bf16_from_f32((float)(int32_t)state * 0x1p-31f);
    }
    Tensor t = tensor_view(NULL, DT_BF16, GEMM_SIZE, GEMM_SIZE);
    t.data = device_alloc(d, tensor_bytes(t), "the product that is the ceiling");
    for (size_t at = 0; at < tensor_bytes(t); at += sizeof(pattern))
        d->upload(d, (char *)t.data + at, pattern, sizeof(pattern));
    return t;
}

static double measure_gemm(Device *d) {
    Tensor a = random_matrix(d), b = random_matrix(d), out = random_matrix(d);
    QOperand left = operand_from_tensor(a, FORMAT_BF16, 1);
    QOperand right = operand_from_tensor(b, FORMAT_BF16, 1);
    ops_cuda.gemm_tune(d, out, &left, &right, {});
    double ms = time_ms(d, [&] { ops_cuda.gemm(d, out, &left, &right, {}); });
    for (Tensor t : {a, b, out}) d->free(d, t.data);
    return 2.0 * GEMM_SIZE * GEMM_SIZE * GEMM_SIZE / ms * 1e-9;
}

// --- the step ---

typedef struct {
    Config config;
    Device *device;
    Ops ops;
    Model model;
    int32_t *tokens;   // of one micro-batch, and its last target
    int accumulation;
    int64_t step;
    StepState state;   // as it was after the last step
} Bench;

static void open_bench(Bench *b, int num_args, char **args) {
    const Config *c = &b->config;
    config_parse(&b->config, num_args, args);
    b->accumulation = config_accumulation(c, 1);
    b->device = device_cuda_open(0);
    profile.stream = device_cuda_stream(b->device);
    b->ops = ops_cuda;
    wrap_ops(&b->ops);
    wrap_device(b->device);
    model_declare(&b->model, c);
    backend_choose(&b->model, c, b->device);
    model_measure(&b->model, c, b->device, &b->ops, 1);
    // As the program does, which chooses the GEMMs' algorithms so.
    free(gemm_rates_measure(&b->model, (int64_t)c->batch.micro * c->batch.seq_len));
    model_place(&b->model, c, b->device, &b->ops, 1);
    b->model.recorded[0].wanted = 0;   // a replay has no ops to time
    model_init(&b->model, c->seed);
    model_begin_step(&b->model, 0);
    int count = c->batch.micro * c->batch.seq_len + 1;
    b->tokens = (int32_t *)xmalloc((size_t)count * sizeof(int32_t));
    for (int i = 0; i < count; i++) {
        uint32_t mixed = ((uint32_t)i * 2654435761u) >> 8;
        b->tokens[i] = (int32_t)(mixed % (uint32_t)c->model.vocab);
    }
}

/* One step as the program's on one rank, apart from data and records. Returns its milliseconds. */
static double run_step(Bench *b) {
    const Config *c = &b->config;
    Device *d = b->device;
    int B = c->batch.micro, T = c->batch.seq_len;
    float loss_scale = 1.0f / (float)config_step_tokens(c, 1);
    double began = now_ms();
    StepState state = optimizer_state(c, b->step++, c->optim.lr, 1e30f, 1e30f);
    d->upload(d, b->model.engine.state, &state, sizeof(state));
    model_zero_gradients(&b->model);
    for (int i = 0; i < b->accumulation; i++) {
        int64_t token_base = (int64_t)i * B * T;
        d->upload(d, &b->model.engine.state->token_base, &token_base, sizeof(token_base));
        model_forward_backward(&b->model, b->tokens, b->tokens + 1, B, T, loss_scale);
    }
    model_finish_gradients(&b->model);
    optimizer_step(&b->model, c);
    model_begin_step(&b->model, b->step);
    d->download(d, &b->state, b->model.engine.state, sizeof(b->state));
    return now_ms() - began;
}

/* The median of so many steps without events. */
static double time_steps(Bench *b, int steps) {
    std::vector<double> ms;
    for (int i = 0; i < WARM_UP; i++) run_step(b);
    for (int i = 0; i < steps; i++) ms.push_back(run_step(b));
    std::sort(ms.begin(), ms.end());
    return ms[(size_t)steps / 2];
}

/* One step with events, its times added to the rows. */
static void profile_step(Bench *b) {
    profile.on = 1;
    run_step(b);
    profile.on = 0;
    b->device->synchronize(b->device);
    for (size_t i = 0; i < profile.num_intervals; i++) {
        float ms;
        const Interval &interval = profile.intervals[i];
        CUDA_CHECK(cudaEventElapsedTime(&ms, interval.begin, interval.end));
        interval.row->ms += ms;
    }
    profile.num_intervals = 0;
}

// --- the report ---

static double roofline_ms(const Row *row) {
    return row->bytes / copy_gb_s * 1e-6 + row->flops / gemm_tflops * 1e-9;
}

static void print_head(Bench *b) {
    char tag[64];
    plan_precision_tag(&b->model, &b->config, tag, sizeof(tag));
    printf("%s, %s; attention %s\n%d blocks of %d, %lld parameters, %s\n", b->device->name,
           b->device->libraries, b->ops.attention_name(), b->config.model.layers,
           b->config.model.dim, (long long)param_table_true_count(&b->model.params), tag);
    printf("step = %d micro-steps of %d x %d tokens; loss %.4f%s\n", b->accumulation,
           b->config.batch.micro, b->config.batch.seq_len, b->state.loss,
           b->state.skip ? ", UPDATES SKIPPED" : "");
    printf("ceilings: copy %.0f GB/s, GEMM %.1f TFLOP/s\n\n", copy_gb_s, gemm_tflops);
    printf("%-62s %6s %9s %7s  %-16s %9s %9s\n", "op, by time", "calls", "ms/step", "share",
           "        rate", "of roof", "ms above");
}

/* An op without counted work has neither a rate nor a roof. */
static void print_row(const char *label, const Row *row, int steps, double total_ms) {
    double roofline = roofline_ms(row), rate = row->flops > 0 ? row->flops * 1e-3 : row->bytes;
    printf("%-62s %6lld %9.3f %6.1f%%", label, (long long)(row->calls / steps), row->ms / steps,
           100 * row->ms / total_ms);
    if (roofline > 0) {
        printf("  %8.1f %-7s %8.1f%% %9.3f", rate / row->ms * 1e-6,
               row->flops > 0 ? "TFLOP/s" : "GB/s", 100 * roofline / row->ms,
               (row->ms - roofline) / steps);
    }
    printf("\n");
}

static void report(Bench *b, int steps, double plain_ms) {
    double total_ms = 0, roofline = 0, tokens = (double)config_step_tokens(&b->config, 1);
    double flops = tokens * model_flops_per_token(&b->model, b->config.batch.seq_len);
    double peak = b->device->peak_bf16_flops;
    std::vector<std::pair<std::string, Row>> rows(profile.rows.begin(), profile.rows.end());
    std::sort(rows.begin(), rows.end(), [](auto &x, auto &y) { return x.second.ms > y.second.ms; });
    for (auto &row : rows) {
        total_ms += row.second.ms;
        roofline += roofline_ms(&row.second) / steps;
    }
    print_head(b);
    for (auto &row : rows) print_row(row.first.c_str(), &row.second, steps, total_ms);
    double ops_ms = total_ms / steps;
    printf("\nall ops %.3f ms a step; at their rooflines %.3f ms, %.0f tokens/s\n", ops_ms,
           roofline, tokens / roofline * 1e3);
    printf("step without events %.3f ms (median of %d): %.0f tokens/s, %.1f TFLOP/s of the model",
           plain_ms, steps, tokens / plain_ms * 1e3, flops / plain_ms * 1e-9);
    if (peak > 0) printf(", MFU %.1f%%", 100 * flops / plain_ms * 1e3 / peak);
    printf("\ngap between that step and the ops %.3f ms, %.1f%%: launches, host, ops not wrapped\n",
           plain_ms - ops_ms, 100 * (plain_ms - ops_ms) / plain_ms);
}

/* Takes NAME=NUMBER out of args. */
static double take_number(int *num_args, char **args, const char *name, double value) {
    int kept = 0;
    size_t length = strlen(name);
    for (int i = 0; i < *num_args; i++) {
        int found = strncmp(args[i], name, length) == 0 && args[i][length] == '=';
        if (found) value = strtod(args[i] + length + 1, NULL);
        else args[kept++] = args[i];
        if (found && value < 1) die(EXIT_CONFIG, "%s: a number from 1 on is wanted", args[i]);
    }
    *num_args = kept;
    return value;
}

int main(int argc, char **argv) {
    static Bench b;
    char **args = argv + 1;
    int num_args = argc - 1, steps = (int)take_number(&num_args, args, "steps", 5);
    gemm_tflops = take_number(&num_args, args, "gemm_tflops", 0);
    open_bench(&b, num_args, args);
    copy_gb_s = measure_copy(b.device);
    if (gemm_tflops == 0) gemm_tflops = measure_gemm(b.device);
    double plain_ms = time_steps(&b, steps);
    for (int i = 0; i < steps; i++) profile_step(&b);
    report(&b, steps, plain_ms);
    return 0;
}
