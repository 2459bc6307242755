/* selftest -- runs the parts on one device and keeps the table; see selftest.h. */
#include "selftest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "rng.h"
#include "selftest_parts.h"

enum { PATTERN = 1048573 };   // a prime: rows of a tensor start at different places of the pattern

// --- the table ---

void selftest_compare(SelftestWorst *w, double error, double bound, const char *what, int64_t row,
                      int64_t col) {
    double ratio = error == 0.0 ? 0.0 : error / bound;
    if (isnan(ratio)) ratio = INFINITY;
    if (w->what && ratio <= w->ratio) return;
    SelftestWorst worse = {ratio, error, bound, what, row, col};
    *w = worse;
}

/* Takes the line. */
static void add_line(Selftest *t, char *line) {
    char *table = format_string("%s%s\n", t->report.table ? t->report.table : "", line);
    free(t->report.table);
    t->report.table = table;
    free(line);
}

static void add_row(Selftest *t, char *line) {
    if (t->options->verbose) log_line("%s", line);
    add_line(t, line);
}

static void count(Selftest *t, int passed, int packed) {
    t->report.passed += passed;
    t->report.failed += !passed;
    t->report.native_failed += !passed && packed;
}

/* A ratio in percent, rounded away from 100, which would not tell a pass from a failure. */
static void describe_ratio(char *text, size_t size, double ratio) {
    if (ratio > 9.99) snprintf(text, size, ">999 %%");
    else snprintf(text, size, "%4.0f %%", ratio <= 1 ? floor(100 * ratio) : ceil(100 * ratio));
}

void selftest_judge(Selftest *t, SelftestRow row, const SelftestWorst *worst) {
    int passed = worst->what && worst->ratio <= 1.0;
    count(t, passed, row.packed);
    char *at = passed ? xstrdup("")
                      : format_string(": %s (%lld,%lld)", worst->what ? worst->what : "nothing",
                                      (long long)worst->row, (long long)worst->col);
    char ratio[16];
    describe_ratio(ratio, sizeof(ratio), worst->ratio);
    add_row(t, format_string("%s  %-48s  %11.1e  %7.1e  %s  %s%s", passed ? "PASS" : "FAIL",
                             row.name, worst->error, worst->bound, ratio, row.note, at));
    free(at);
}

void selftest_fail(Selftest *t, SelftestRow row) {
    count(t, 0, row.packed);
    add_row(t, format_string("FAIL  %-48s  %s", row.name, row.note));
}

static void add_header(Selftest *t) {
    add_row(t, format_string("      %-48s  worst error  allowed   of it  against", "check"));
}

static void add_legend(Selftest *t) {
    static const char *const lines[] = {
        "errors are absolute, those of products parts of sqrt(sum terms^2): of a sum's size at "
        "random signs",
        "allowed is what roundings may add up to; that of a BF16 result alone comes near it: 99 % "
        "is sound",
        "formulas, exact sums: in double precision, 64 elements of a product; emulated: all "
        "elements",
        "plain: BF16; alpha: large and small tensor scales; padding: sizes that fill no tile of "
        "scales;",
        "long sums: over 16384 tokens; gemm: the linears of the model",
    };
    for (int i = 0; i < ARRAY_LEN(lines); i++) add_row(t, xstrdup(lines[i]));
}

// --- contents ---

float selftest_normal(uint32_t stream, uint64_t i) {
    Philox4 draw = philox4x32_10(rng_group_counter(i, stream, 0), 0x5E1F7E57u, 0);
    float sum = 0.0f;   // of four uniform values: variance 1/3
    for (int w = 0; w < 4; w++) sum += rng_uniform(draw.w[w]);
    return (sum - 2.0f) * 1.7320508f;
}

static float *new_pattern(void) {
    float *pattern = (float *)xmalloc(PATTERN * sizeof(float));
#pragma omp parallel for
    for (int i = 0; i < PATTERN; i++) {
        Philox4 size = philox4x32_10(rng_group_counter((uint64_t)(i / 16), 1, 0), 0x5E1F7E57u, 0);
        pattern[i] = ldexpf(selftest_normal(0, (uint64_t)i), (int)(size.w[0] % 5) - 2);
    }
    return pattern;
}

double selftest_value(const Selftest *t, DType type, int64_t shift, double scale, int64_t i) {
    float value = (float)(scale * t->pattern[(shift + i) % PATTERN]);
    return type == DT_BF16 ? bf16_to_f32(bf16_from_f32(value)) : value;
}

double selftest_read(const void *data, DType type, int64_t i) {
    return type == DT_BF16 ? bf16_to_f32(((const bf16_t *)data)[i]) : ((const float *)data)[i];
}

void selftest_fill(const Selftest *t, Tensor x, int64_t shift, double scale) {
    Device *d = t->device;
    int64_t total = tensor_count(x), done = min_i64(total, PATTERN);
    char *first = (char *)xmalloc(dtype_bytes(x.dtype, done));
#pragma omp parallel for
    for (int64_t i = 0; i < done; i++) {
        float value = (float)selftest_value(t, x.dtype, shift, scale, i);
        if (x.dtype == DT_BF16) ((bf16_t *)first)[i] = bf16_from_f32(value);
        else ((float *)first)[i] = value;
    }
    d->upload(d, x.data, first, dtype_bytes(x.dtype, done));
    free(first);
    for (int64_t more; done < total; done += more) {
        more = min_i64(done, total - done);
        d->copy(d, (char *)x.data + dtype_bytes(x.dtype, done), x.data, dtype_bytes(x.dtype, more));
    }
}

void selftest_decode_row(double *out, const uint8_t *codes, const uint8_t *scales, int64_t row,
                         int64_t k) {
    // A tile of 128 rows x 4 scales is 512 bytes: 32 lines of 16, each with four rows' four scales.
    int64_t line = row & 31, quarter = row >> 5 & 3;
    for (int64_t i = 0; i < k; i++) {
        int64_t block = i >> 4;
        uint8_t scale = scales[(block >> 2) * 512 + line * 16 + quarter * 4 + (block & 3)];
        uint8_t code = codes[i >> 1] >> ((i & 1) ? 4 : 0) & 15;
        out[i] = (double)e2m1_decode(code) * (double)e4m3_decode(scale);
    }
}

// --- the run ---

/* What scratch must hold for the small ops and for the model's products. */
static OpLimits limits_of(const SelftestOptions *o) {
    OpLimits l;
    memset(&l, 0, sizeof(l));
    l.tokens = max_i64(o->tokens, 16384);   // of the longest contraction of our own
    l.max_cols = l.dim = l.logits_rows = l.padded_vocab = 1024;
    l.cols_divisor = 8;
    l.max_weight = l.num_elements = (int64_t)1 << 20;
    for (int id = 0; id < model_num_linears(o->model); id++) {
        const Linear *linear = model_linear(o->model, id);
        l.max_cols = max_i64(l.max_cols, max_i64(linear->in, linear->out));
        l.max_weight = max_i64(l.max_weight, (int64_t)linear->in * linear->out);
    }
    return l;
}

static void *take_scratch(Device *d, const Ops *ops, OpLimits limits) {
    size_t bytes = 0;
    for (int i = 0; i < SELFTEST_ATTENTIONS; i++) {
        limits.attention = selftest_attention[i];
        size_t needed = ops->scratch_bytes(&limits);
        bytes = needed > bytes ? needed : bytes;
    }
    void *scratch = device_alloc(d, bytes, "scratch of the self-test");
    device_set_scratch(d, scratch, bytes);
    return scratch;
}

SelftestReport selftest_run(const SelftestOptions *o) {
    Selftest t;
    memset(&t, 0, sizeof(t));
    t.options = o;
    t.device = o->device;
    t.ops = o->ops;
    t.state.step = 5;
    t.state.token_base = 1024;
    t.pattern = new_pattern();
    OpLimits limits = limits_of(o), small = limits;
    small.tokens = small.max_cols = small.max_weight = 1024;
    void *before = t.device->scratch, *reference_scratch = NULL;
    size_t bytes_before = t.device->scratch_bytes;
    void *scratch = take_scratch(t.device, t.ops, limits);
    if (t.device->kind != DEVICE_CPU) {
        t.reference = device_cpu_open(0);
        reference_scratch = take_scratch(t.reference, &ops_cpu, small);
    }

    add_header(&t);
    selftest_ops(&t);
    selftest_quantize(&t);
    selftest_linears(&t);
    add_legend(&t);
    add_line(&t, format_string("%d passed, %d failed", t.report.passed, t.report.failed));

    t.device->synchronize(t.device);
    t.device->free(t.device, scratch);
    device_set_scratch(t.device, before, bytes_before);
    if (t.reference) {
        t.reference->free(t.reference, reference_scratch);
        t.reference->close(t.reference);
    }
    free(t.pattern);
    return t.report;
}
