/* telemetry -- which linears are looked at, with which memory, in which passes; see telemetry.h. */
#include "telemetry.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "plain.h"
#include "telemetry_parts.h"

// --- which linears ---

/* All that the pattern names. */
static int choose_by_pattern(Telemetry *t, Model *m, const char *pattern) {
    Rule rule = rule_default();
    const char *error = rule_set(&rule, "layers", pattern);
    if (error) die(EXIT_CONFIG, "config: log.telemetry_layers: %s", error);
    int count = 0;
    for (int id = 0; id < model_num_linears(m); id++)
        if (rule_matches(&rule, model_linear(m, id)->name)) t->linears[count++].id = id;
    if (count == 0) {
        die(EXIT_CONFIG,
            "config: log.telemetry_layers: \"%s\" is no linear of this model, which has %s to %s",
            pattern, model_linear(m, 0)->name, model_linear(m, model_num_linears(m) - 1)->name);
    }
    return count;
}

/* From the first to the last, at equal distances. */
static int choose_spread(Telemetry *t, Model *m) {
    int all = model_num_linears(m), count = (int)min_i64(all, TELEMETRY_LINEARS);
    for (int i = 0; i < count; i++) t->linears[i].id = count > 1 ? i * (all - 1) / (count - 1) : 0;
    return count;
}

Telemetry *telemetry_open(const Config *c, Model *m) {
    if (c->log.telemetry_every == 0) return NULL;
    Telemetry *t = (Telemetry *)xmalloc(sizeof(*t));
    t->linears = (WatchedLinear *)xmalloc((size_t)model_num_linears(m) * sizeof(WatchedLinear));
    t->model = m;
    t->tokens = (int64_t)c->batch.micro * c->batch.seq_len;
    t->num_linears = c->log.telemetry_layers[0] ? choose_by_pattern(t, m, c->log.telemetry_layers)
                                                : choose_spread(t, m);
    t->has_noise = c->log.gradient_noise;
    if (t->has_noise) t->noise = gradient_noise_open(m);
    telemetry_look_on(t);
    return t;
}

// --- memory ---

static int64_t widest(Telemetry *t) {
    int64_t cols = 0;
    for (int i = 0; i < t->num_linears; i++) {
        const Linear *l = model_linear(t->model, t->linears[i].id);
        cols = max_i64(cols, max_i64(l->in, l->out));
    }
    return cols;
}

/* On the device. */
static void layout(Telemetry *t, Model *m) {
    Arena *a = &m->arenas[ARENA_TELEMETRY];
    DType dtype = m->config.dtype;
    for (int i = 0; i < t->num_linears; i++) {
        WatchedLinear *w = &t->linears[i];
        const Linear *l = model_linear(m, w->id);
        int64_t cols = min_i64(l->in, TELEMETRY_COLUMNS);
        w->x_columns = arena_tensor(a, dtype, t->tokens, cols);
        w->shadow = arena_tensor(a, DT_F32, min_i64(l->out, TELEMETRY_COLUMNS), cols);
    }
    t->dy_columns = arena_tensor(a, dtype, t->tokens, TELEMETRY_COLUMNS);
    t->shadow = arena_tensor(a, dtype, TELEMETRY_ROWS, widest(t));
    if (t->has_noise) gradient_noise_place(&t->noise, m, a);
}

void telemetry_measure(Telemetry *t, Model *m) {
    Arena *a = &m->arenas[ARENA_TELEMETRY];
    *a = arena_measure(a->name, m->engine.device);
    layout(t, m);
}

static Tensor host_buffer(DType dtype, int64_t cols) {
    void *data = xmalloc(dtype_bytes(dtype, TELEMETRY_ROWS * cols));
    return tensor_view(data, dtype, TELEMETRY_ROWS, cols);
}

void telemetry_place(Telemetry *t, Model *m) {
    telemetry_measure(t, m);
    arena_commit(&m->arenas[ARENA_TELEMETRY]);
    layout(t, m);
    int64_t cols = widest(t);
    DType dtype = m->config.dtype;
    for (int i = 0; i < t->num_linears; i++)
        t->linears[i].x_rows = host_buffer(dtype, model_linear(m, t->linears[i].id)->in);
    t->dy_rows = host_buffer(dtype, cols);
    t->w_rows = host_buffer(dtype, cols);
    t->out_rows = host_buffer(DT_F32, cols);   // of gradients, too
    t->shadow_rows = host_buffer(DT_F32, cols);
    t->values = host_buffer(DT_F32, cols);
}

void telemetry_close(Telemetry *t) {
    if (!t) return;
    for (int i = 0; i < t->num_linears; i++) free(t->linears[i].x_rows.data);
    free(t->dy_rows.data);
    free(t->w_rows.data);
    free(t->out_rows.data);
    free(t->shadow_rows.data);
    free(t->values.data);
    if (t->has_noise) gradient_noise_close(&t->noise);
    free(t->linears);
    free(t);
}

// --- passes ---

/* Leaves the gradients of the micro-batch. */
static void run_pass(Telemetry *t, Model *m, const TelemetryBatch *b) {
    Engine *e = &m->engine;
    e->device->upload(e->device, e->state, &t->state, sizeof(t->state));
    model_zero_gradients(m);
    model_pass(m, b->tokens, b->targets, b->B, b->T, b->loss_scale);
    model_finish_gradients(m);
}

static double measure_noise(Telemetry *t, Model *m, const TelemetryBatch *b) {
    gradient_noise_keep(&t->noise, m);
    PlainPeriod period = plain_begin(m, 1u << GEMM_DGRAD | 1u << GEMM_WGRAD);
    run_pass(t, m, b);
    plain_end(m, &period);
    return gradient_noise_measure(&t->noise, m);
}

// --- the record ---

static void write_reports(const Telemetry *t, int64_t step, Metrics *metrics) {
    for (int i = 0; i < t->num_linears; i++) {
        const WatchedLinear *w = &t->linears[i];
        for (int g = 0; g < NUM_GEMMS; g++) {
            char members[REPORT_BYTES];
            report_members(&w->report[g], model_linear(t->model, w->id)->name, (GemmKind)g,
                           members);
            metrics_object(metrics, step, members);
        }
    }
}

static void write_noise(const Telemetry *t, int64_t step, double ratio, Metrics *metrics) {
    const GradientNoise *n = &t->noise;
    enum { ENTRY = sizeof(((Linear *)0)->name) + 32 };   // "name":number,
    size_t room = (size_t)(n->count + 1) * ENTRY;
    char *text = (char *)xmalloc(room), number[32];
    int used = snprintf(text, room, "\"gradient_snr\":%s,\"gradient_snr_of\":{",
                        number_or_null(ratio, number));
    int is_finite = isfinite(ratio);
    for (int i = 0; i < n->count; i++) {
        is_finite &= isfinite(n->ratio[i]) != 0;
        used +=
            snprintf(text + used, room - (size_t)used, "%s\"%s\":%s", i ? "," : "",
                     model_linear(t->model, n->ids[i])->name, number_or_null(n->ratio[i], number));
    }
    snprintf(text + used, room - (size_t)used, "}%s", is_finite ? "" : ",\"nonfinite\":true");
    metrics_object(metrics, step, text);
    free(text);
}

/* The ratio in a summary, where a NaN's sign would mean nothing. */
static void describe_noise(double ratio, char *text, size_t size) {
    if (isnan(ratio)) snprintf(text, size, " | gradient SNR n/a");
    else if (isinf(ratio)) snprintf(text, size, " | no gradient noise");
    else snprintf(text, size, " | gradient SNR %.2f", ratio);
}

/* The range of the gains, and where the noise is largest. */
static void print_summary(const Telemetry *t, int64_t step, double ratio, double time_ms) {
    double least_gain = INFINITY, most_gain = -INFINITY, least_db = INFINITY;
    const char *worst = "";
    GemmKind worst_gemm = GEMM_FPROP;
    for (int i = 0; i < t->num_linears * NUM_GEMMS; i++) {
        const WatchedLinear *w = &t->linears[i / NUM_GEMMS];
        const ProductStats *s = &w->report[i % NUM_GEMMS].product;
        least_gain = fmin(least_gain, s->gain);
        most_gain = fmax(most_gain, s->gain);
        if (!(s->sqnr_db < least_db)) continue;
        least_db = s->sqnr_db;
        worst = model_linear(t->model, w->id)->name;
        worst_gemm = (GemmKind)(i % NUM_GEMMS);
    }
    char noise[64] = "", least[192] = "no noise", gains[64] = "n/a";
    if (t->has_noise) describe_noise(ratio, noise, sizeof(noise));
    if (least_gain <= most_gain)
        snprintf(gains, sizeof(gains), "%.4f to %.4f", least_gain, most_gain);
    else snprintf(least, sizeof(least), "SQNR n/a");
    if (isfinite(least_db)) {
        snprintf(least, sizeof(least), "SQNR from %.1f dB (%s of %s)", least_db,
                 gemm_names[worst_gemm], worst);
    }
    log_line("telemetry before step %lld | gain %s | %s%s | %.0f ms", (long long)step + 1, gains,
             least, noise, time_ms);
}

double telemetry_run(Telemetry *t, Model *m, const TelemetryBatch *batch, Metrics *metrics) {
    double started = now_ms(), ratio = NAN;
    memset(&t->state, 0, sizeof(t->state));
    t->state.step = (uint32_t)batch->step;
    m->engine.observer = &t->observer;
    run_pass(t, m, batch);
    m->engine.observer = NULL;
    telemetry_compare_gradients(t);
    write_reports(t, batch->step, metrics);
    if (t->has_noise) {
        ratio = measure_noise(t, m, batch);
        write_noise(t, batch->step, ratio, metrics);
    }
    print_summary(t, batch->step, ratio, now_ms() - started);
    return ratio;
}
