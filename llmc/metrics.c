/* metrics -- the files of a run's record and the lines on standard output; see metrics.h. */
#include "metrics.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common.h"
#include "json_count.h"
#include "metrics_reference.h"
#include "outfile.h"

enum { TIMED_STEPS = 20, LINE_BYTES = 1024 };
static const char WHAT[] = "log.dir";   // the key named by messages

struct Metrics {
    MetricsOptions options;
    int has_files;
    OutFile jsonl, main_log;
    Reference *reference;            // NULL: none
    char started[32];                // UTC
    double recent_ms[TIMED_STEPS];   // ring of step times, for the ETA
    int64_t num_timed;
    int64_t steps_seen;
    int warned, warned_of_val;   // of the gaps
};

// --- text ---

typedef struct {
    char text[LINE_BYTES];
    int used;
} Line;

static void add(Line *l, const char *format, ...) PRINTF_LIKE(2, 3);
static void add(Line *l, const char *format, ...) {
    va_list args;
    va_start(args, format);
    l->used += vsnprintf(l->text + l->used, (size_t)(LINE_BYTES - l->used), format, args);
    va_end(args);
    CHECK(l->used < LINE_BYTES, "line of %d bytes", l->used);
}

static void write_line(OutFile *f, const Line *l) {
    outfile_write(f, l->text, (size_t)l->used);   // in one call: a kill leaves no half of two lines
}

/* ,"key":value with the nine digits that tell every float32 apart; null stands for what JSON has no
   number for. */
static void add_json(Line *l, const char *key, double value) {
    if (isfinite(value)) add(l, ",\"%s\":%.9g", key, value);
    else add(l, ",\"%s\":null", key);
}

static void utc_now(char out[32]) {
    time_t now = time(NULL);
    struct tm parts;
    gmtime_r(&now, &parts);
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &parts);
}

// --- opening: what is kept of an earlier part of the run ---

/* The step that a line is about, or -1 for one that is no whole record. */
static int64_t step_of_json(const char *line) {
    cJSON *json = cJSON_Parse(line);
    int64_t step = json_count(cJSON_GetObjectItemCaseSensitive(json, "step"));
    cJSON_Delete(json);
    return step;
}

static int64_t step_of_main_log(const char *line) {
    long long step;
    return sscanf(line, "s:%lld ", &step) == 1 ? step : -1;
}

/* Drops the lines of steps from first_step on, and a last line that a kill cut short. */
static void keep_lines_before(const char *path, int64_t first_step,
                              int64_t (*step_of)(const char *)) {
    if (!file_exists(path)) return;
    size_t bytes, kept = 0;
    char *text = read_text_file(path, WHAT, &bytes);
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        int64_t step = step_of(line);
        *end = '\n';
        if (step < 0 || step >= first_step) continue;
        memmove(text + kept, line, (size_t)(end + 1 - line));
        kept += (size_t)(end + 1 - line);
    }
    if (kept < bytes) outfile_replace(path, WHAT, text, kept);
    free(text);
}

static OutFile continue_file(const Metrics *m, const char *name, int64_t (*step_of)(const char *)) {
    char *path = format_string("%s/%s", m->options.dir, name);
    keep_lines_before(path, m->options.first_step, step_of);
    OutFile f = outfile_append(path, WHAT);
    free(path);
    return f;
}

static void warn_if_replacing(const Metrics *m) {
    char *path = format_string("%s/metrics.jsonl", m->options.dir);
    if (file_exists(path)) log_warn("%s: '%s' of an earlier run is replaced", WHAT, path);
    free(path);
}

static void replace_in_dir(const Metrics *m, const char *name, const char *text) {
    char *path = format_string("%s/%s", m->options.dir, name);
    outfile_replace(path, WHAT, text, strlen(text));
    free(path);
}

/* exit_reason NULL: the run is still on. */
static void write_run_json(const Metrics *m, int exit_code, const char *exit_reason) {
    const MetricsOptions *o = &m->options;
    char ended[32];
    utc_now(ended);
    cJSON *run = cJSON_CreateObject();
    cJSON_AddStringToObject(run, "git_hash", o->git_hash);
    cJSON_AddStringToObject(run, "build", o->build);
    cJSON_AddStringToObject(run, "device", o->device);
    cJSON_AddStringToObject(run, "precision", o->precision);
    cJSON_AddStringToObject(run, "backend", o->backend);
    cJSON_AddNumberToObject(run, "world_size", o->world_size);
    cJSON_AddNumberToObject(run, "first_step", (double)o->first_step);
    cJSON_AddNumberToObject(run, "total_steps", (double)o->total_steps);
    cJSON_AddStringToObject(run, "started", m->started);
    if (exit_reason) {
        cJSON_AddStringToObject(run, "ended", ended);
        cJSON_AddNumberToObject(run, "exit_code", exit_code);
        cJSON_AddStringToObject(run, "exit_reason", exit_reason);
    } else {
        cJSON_AddNullToObject(run, "ended");
        cJSON_AddNullToObject(run, "exit_code");
        cJSON_AddNullToObject(run, "exit_reason");
    }
    char *json = cJSON_Print(run), *text = format_string("%s\n", json);
    replace_in_dir(m, "run.json", text);
    free(text);
    cJSON_free(json);
    cJSON_Delete(run);
}

static void warn_if_short(const Reference *reference, const char *dir, int64_t end_tokens) {
    int64_t end = reference_end_tokens(reference);
    if (end >= end_tokens) return;
    log_warn("log.reference: '%s' ends at %" PRId64 " tokens, this run at %" PRId64
             ": the lines after that have no gap",
             dir, end, end_tokens);
}

/* The losses of an earlier part of the run, so that the gap goes on as if nothing had happened. */
static void show_earlier_steps(const Metrics *m) {
    char *path = format_string("%s/metrics.jsonl", m->options.dir), *rest;
    char *text = read_text_file(path, WHAT, NULL);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        cJSON *json = cJSON_Parse(line);
        int64_t tokens = json_count(cJSON_GetObjectItemCaseSensitive(json, "tokens"));
        const cJSON *loss = cJSON_GetObjectItemCaseSensitive(json, "train_loss");
        if (loss && tokens >= 0)
            reference_train_gap(m->reference, tokens, (float)cJSON_GetNumberValue(loss));
        cJSON_Delete(json);
    }
    free(text);
    free(path);
}

Metrics *metrics_open(const MetricsOptions *options) {
    CHECK(options->print_every > 0, "print_every %d", options->print_every);
    Metrics *m = (Metrics *)xmalloc(sizeof(*m));
    m->options = *options;
    m->has_files = options->dir[0] != '\0';
    utc_now(m->started);
    if (options->reference[0]) {
        m->reference = reference_open(options->reference);
        log_line(
            "gap: (loss - reference) / reference at equal tokens, means of the last %d steps; of "
            "validations where the reference has one there; positive = worse than %s",
            REFERENCE_WINDOW, options->reference);
        warn_if_short(m->reference, options->reference,
                      options->total_steps * options->tokens_per_step);
    }
    if (!m->has_files) return m;
    make_directory(options->dir, WHAT);
    replace_in_dir(m, "config.resolved.json", options->config);
    write_run_json(m, 0, NULL);
    if (options->first_step == 0) warn_if_replacing(m);
    m->jsonl = continue_file(m, "metrics.jsonl", step_of_json);
    m->main_log = continue_file(m, "main.log", step_of_main_log);
    if (m->reference) show_earlier_steps(m);
    return m;
}

void metrics_check(const char *dir, const char *reference, int64_t end_tokens) {
    if (reference[0]) {
        Reference *r = reference_open(reference);
        warn_if_short(r, reference, end_tokens);
        reference_close(r);
    }
    outfile_check_directory(dir, WHAT);
}

// --- steps ---

/* NaN where the device's peak is unknown. */
static double mfu_of(const Metrics *m, double tokens_per_s) {
    const MetricsOptions *o = &m->options;
    return o->peak_flops > 0 ? tokens_per_s * o->flops_per_token / o->peak_flops : NAN;
}

/* The first step of a process also pays for its warm-up, so it is not timed. */
static void take_time(Metrics *m, double ms) {
    if (m->steps_seen++ > 0) m->recent_ms[m->num_timed++ % TIMED_STEPS] = ms;
}

static void add_eta(Line *l, const Metrics *m, int64_t step) {
    int n = (int)min_i64(m->num_timed, TIMED_STEPS);
    if (n == 0) {
        add(l, " | eta --:--:--");
        return;
    }
    double sum_ms = 0;
    for (int i = 0; i < n; i++) sum_ms += m->recent_ms[i];
    double left_s = sum_ms / n * (double)(m->options.total_steps - step - 1) / 1000.0;
    long long s = llround(left_s);
    add(l, " | eta %02lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
}

static void add_z(Line *l, double z) {
    if (isfinite(z)) add(l, " (%+.1fz)", z);
}

/* In percent; what rounds to nothing has no sign. */
static void add_gap(Line *l, double gap) {
    if (isfinite(gap)) add(l, " | gap %+.1f%%", fabs(gap) < 0.05 ? 0.0 : gap);
}

static void add_tokens_per_s(Line *l, double v) {
    if (v >= 1e6) add(l, " | %.2fM tok/s", v / 1e6);
    else if (v >= 1e4) add(l, " | %.0fk tok/s", v / 1e3);
    else add(l, " | %.0f tok/s", v);
}

static void print_step(const Metrics *m, const StepRecord *r, double tokens_per_s, double gap) {
    Line l = {.used = 0};
    double mfu = mfu_of(m, tokens_per_s);
    add(&l, "step %" PRId64 "/%" PRId64, r->step + 1, m->options.total_steps);
    add(&l, " | loss %.4f", r->loss);
    add_z(&l, r->loss_z);
    add(&l, " | norm %.2f", r->grad_norm);
    add_z(&l, r->norm_z);
    add(&l, " | lr %.1e | %.1f ms", r->lr, r->time_ms);
    if (isfinite(mfu)) add(&l, " | %.1f%% MFU", 100 * mfu);
    else add(&l, " | n/a MFU");
    add_tokens_per_s(&l, tokens_per_s);
    add(&l, " | %s", m->options.precision);
    if (r->skipped) add(&l, " | skipped");
    add_gap(&l, gap);
    add_eta(&l, m, r->step);
    log_line("%s", l.text);
}

static void write_step(Metrics *m, const StepRecord *r, double tokens_per_s, double gap) {
    Line l = {.used = 0};
    add(&l, "{\"step\":%" PRId64 ",\"tokens\":%" PRId64, r->step, r->tokens);
    add_json(&l, "train_loss", r->loss);
    add_json(&l, "grad_norm", r->grad_norm);
    add_json(&l, "lr", r->lr);
    add_json(&l, "time_ms", r->time_ms);
    add_json(&l, "tokens_per_s", tokens_per_s);
    add_json(&l, "mfu", mfu_of(m, tokens_per_s));
    if (isfinite(gap)) add_json(&l, "gap_percent", gap);
    if (r->skipped) add(&l, ",\"skipped\":true");
    if (r->phase > 0) add(&l, ",\"phase\":%d", r->phase);
    if (!isfinite(r->loss) || !isfinite(r->grad_norm)) add(&l, ",\"nonfinite\":true");
    add(&l, "}\n");
    write_line(&m->jsonl, &l);

    Line main_log = {.used = 0};
    add(&main_log, "s:%" PRId64 " trl:%.4f lr:%.6f norm:%.2f\n", r->step, r->loss, r->lr,
        r->grad_norm);
    write_line(&m->main_log, &main_log);
}

/* Of each kind of loss once a run. */
static void warn_of_gap(const Metrics *m, int *warned, int64_t step, const char *what, double gap) {
    double limit = m->options.reference_warn;
    if (limit == 0 || *warned || !(gap > limit)) return;
    *warned = 1;
    log_warn("step %" PRId64 ": the %s is %.1f%% above that of %s, log.reference_warn is %g%%",
             step, what, gap, m->options.reference, limit);
}

void metrics_step(Metrics *m, const StepRecord *r) {
    const MetricsOptions *o = &m->options;
    double tokens_per_s = (double)o->tokens_per_step / (r->time_ms / 1000.0);
    double gap = m->reference ? reference_train_gap(m->reference, r->tokens, r->loss) : NAN;
    take_time(m, r->time_ms);
    if (m->has_files) write_step(m, r, tokens_per_s, gap);
    // Not of the first steps, whose mean is of few.
    if (m->reference && reference_is_smooth(m->reference))
        warn_of_gap(m, &m->warned, r->step + 1, "loss", gap);
    int is_end = r->step == o->first_step || r->step + 1 == o->total_steps;
    if (is_end || (r->step + 1) % o->print_every == 0) print_step(m, r, tokens_per_s, gap);
}

void metrics_validation(Metrics *m, const ValidationRecord *r) {
    int64_t within = m->options.tokens_per_step / 2;
    double gap = m->reference ? reference_val_gap(m->reference, r->tokens, within, r->loss) : NAN;
    warn_of_gap(m, &m->warned_of_val, r->step, "validation loss", gap);
    Line l = {.used = 0};
    add(&l, "step %" PRId64 "/%" PRId64 " | val loss %.4f", r->step, m->options.total_steps,
        r->loss);
    if (r->also_bf16) add(&l, " | in BF16 %.4f", r->loss_bf16);
    add_gap(&l, gap);
    log_line("%s", l.text);
    if (!m->has_files) return;

    int is_finite = isfinite(r->loss) && (!r->also_bf16 || isfinite(r->loss_bf16));
    Line json = {.used = 0}, main_log = {.used = 0};
    add(&json, "{\"step\":%" PRId64 ",\"tokens\":%" PRId64, r->step, r->tokens);
    add_json(&json, "val_loss", r->loss);
    if (r->also_bf16) add_json(&json, "val_loss_bf16", r->loss_bf16);
    if (isfinite(gap)) add_json(&json, "gap_percent", gap);
    add(&json, "%s}\n", is_finite ? "" : ",\"nonfinite\":true");
    write_line(&m->jsonl, &json);
    add(&main_log, "s:%" PRId64 " tel:%.4f\n", r->step, r->loss);
    write_line(&m->main_log, &main_log);
}

void metrics_object(Metrics *m, int64_t step, const char *members) {
    if (!m->has_files) return;
    char *line = format_string("{\"step\":%" PRId64 ",%s}\n", step, members);
    outfile_write(&m->jsonl, line, strlen(line));
    free(line);
}

void metrics_event(Metrics *m, int64_t step, const char *event, int64_t value) {
    if (!m->has_files) return;
    Line json = {.used = 0}, main_log = {.used = 0};
    add(&json, "{\"step\":%" PRId64 ",\"event\":\"%s\",\"value\":%" PRId64 "}\n", step, event,
        value);
    write_line(&m->jsonl, &json);
    add(&main_log, "s:%" PRId64 " %s:%" PRId64 "\n", step, event, value);
    write_line(&m->main_log, &main_log);
}

void metrics_sync(Metrics *m) {
    if (!m->has_files) return;
    outfile_sync(&m->jsonl);
    outfile_sync(&m->main_log);
}

void metrics_close(Metrics *m, int exit_code, const char *exit_reason) {
    if (m->has_files) {
        write_run_json(m, exit_code, exit_reason);
        outfile_close(&m->jsonl);
        outfile_close(&m->main_log);
    }
    if (m->reference) reference_close(m->reference);
    free(m);
}
