/*
test_metrics -- the files of a run's record and its printed lines against literals; a resumed run's
files against those of one that was never interrupted; the gap to a reference; places that cannot be
written.
*/
#include "../llmc/metrics.h"

#include <cjson/cJSON.h>
#include <sys/stat.h>

#include "../llmc/common.h"
#include "test.h"

static const char *in_dir(const char *dir, const char *name) {
    static char path[1024];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static char *content(const char *dir, const char *name) {
    return read_text_file(in_dir(dir, name), "test", NULL);
}

static void expect_content(const char *dir, const char *name, const char *want) {
    char *got = content(dir, name);
    EXPECT(strcmp(got, want) == 0, "%s is\n%s\nwant\n%s", name, got, want);
    free(got);
}

static MetricsOptions options_of(const char *dir) {
    MetricsOptions o = {.dir = dir,
                        .reference = "",
                        .config = "{\n  \"seed\": 7\n}\n",
                        .git_hash = "7d9ecdf1a2b3",
                        .build = "cpu",
                        .device = "Some \"CPU\"",
                        .backend = "emulated",
                        .precision = "nvfp4(emulated)",
                        .world_size = 1,
                        .print_every = 1,
                        .total_steps = 1000,
                        .tokens_per_step = 524288,
                        .flops_per_token = 8e8,
                        .peak_flops = 989e12};
    return o;
}

static void validate(Metrics *m, int64_t step, int64_t tokens, double loss) {
    ValidationRecord r = {step, tokens, loss, 0, 0};
    metrics_validation(m, &r);
}

static StepRecord record_of(int64_t step, double loss) {
    StepRecord r = {step, (step + 1) * 524288, loss, 0.61, 6e-4f, 812.4, NAN, NAN, 0, 0};
    return r;
}

// --- standard output, kept in a file while a case looks at it ---

static int kept_stdout = -1;

static void capture_begin(void) {
    fflush(stdout);
    kept_stdout = dup(STDOUT_FILENO);
    if (!freopen(test_scratch("stdout"), "w", stdout)) perror("stdout");
}

static char *capture_end(void) {
    fflush(stdout);
    dup2(kept_stdout, STDOUT_FILENO);
    close(kept_stdout);
    return content(test_temp_dir(), "stdout");
}

/* What a run with these options prints for steps first_step .. last. */
static char *printed_steps(const MetricsOptions *o, int64_t last, double loss) {
    capture_begin();
    Metrics *m = metrics_open(o);
    for (int64_t step = o->first_step; step <= last; step++) {
        StepRecord r = record_of(step, loss);
        metrics_step(m, &r);
    }
    metrics_close(m, 0, "done");
    return capture_end();
}

/* That the first line with `begin` in it also holds `want`. */
static void expect_in_line(const char *text, const char *begin, const char *want) {
    const char *line = strstr(text, begin);
    char copy[512] = "";
    if (line) snprintf(copy, sizeof(copy), "%.*s", (int)strcspn(line, "\n"), line);
    EXPECT(strstr(copy, want) != NULL, "no \"%s\" in \"%s\" of\n%s", want, copy, text);
}

// --- files ---

CASE(lines_of_the_files) {
    const char *dir = test_scratch("lines/deep/er");
    MetricsOptions o = options_of(dir);
    o.print_every = 1000;   // files hold every step all the same
    Metrics *m = metrics_open(&o);
    capture_begin();
    validate(m, 0, 0, 10.984375);
    for (int64_t step = 0; step < 3; step++) {
        StepRecord r = record_of(step, 4.10234546661377);
        r.time_ms = 500;
        r.skipped = step == 1;
        if (step == 2) r.grad_norm = INFINITY;
        metrics_step(m, &r);
    }
    validate(m, 3, 3 * 524288, NAN);
    metrics_close(m, 0, "done");
    free(capture_end());
    expect_content(
        dir, "metrics.jsonl",
        "{\"step\":0,\"tokens\":0,\"val_loss\":10.984375}\n"
        "{\"step\":0,\"tokens\":524288,\"train_loss\":4.10234547,\"grad_norm\":0.61,"
        "\"lr\":0.000600000028,\"time_ms\":500,\"tokens_per_s\":1048576,\"mfu\":0.8481909}\n"
        "{\"step\":1,\"tokens\":1048576,\"train_loss\":4.10234547,\"grad_norm\":0.61,"
        "\"lr\":0.000600000028,\"time_ms\":500,\"tokens_per_s\":1048576,\"mfu\":0.8481909,"
        "\"skipped\":true}\n"
        "{\"step\":2,\"tokens\":1572864,\"train_loss\":4.10234547,\"grad_norm\":null,"
        "\"lr\":0.000600000028,\"time_ms\":500,\"tokens_per_s\":1048576,\"mfu\":0.8481909,"
        "\"nonfinite\":true}\n"
        "{\"step\":3,\"tokens\":1572864,\"val_loss\":null,\"nonfinite\":true}\n");
    expect_content(dir, "main.log",
                   "s:0 tel:10.9844\n"
                   "s:0 trl:4.1023 lr:0.000600 norm:0.61\n"
                   "s:1 trl:4.1023 lr:0.000600 norm:0.61\n"
                   "s:2 trl:4.1023 lr:0.000600 norm:inf\n"
                   "s:3 tel:nan\n");
    expect_content(dir, "config.resolved.json", "{\n  \"seed\": 7\n}\n");
}

CASE(every_float32_survives_the_file) {
    const char *dir = test_scratch("floats");
    MetricsOptions o = options_of(dir);
    o.print_every = 1000;
    const float losses[] = {1.0f / 3, 3.4028234e38f, 1e-45f, 4.000001f, 0.1f};
    capture_begin();
    Metrics *m = metrics_open(&o);
    for (int i = 0; i < ARRAY_LEN(losses); i++) {
        StepRecord r = record_of(i, losses[i]);
        metrics_step(m, &r);
    }
    metrics_close(m, 0, "done");
    free(capture_end());
    char *text = content(dir, "metrics.jsonl"), *rest;
    int i = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        cJSON *json = cJSON_Parse(line);
        float loss = (float)cJSON_GetNumberValue(cJSON_GetObjectItem(json, "train_loss"));
        EXPECT_BITS(&loss, &losses[i], sizeof(loss), "step %d", i);
        cJSON_Delete(json);
        i++;
    }
    EXPECT_EQ_I64(i, ARRAY_LEN(losses));
    free(text);
}

static void expect_text(const cJSON *json, const char *key, const char *want) {
    const char *got = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, key));
    EXPECT(got && strcmp(got, want) == 0, "%s is %s, want %s", key, got ? got : "absent", want);
}

CASE(run_json_tells_how_it_ended) {
    const char *dir = test_scratch("run_json");
    MetricsOptions o = options_of(dir);
    Metrics *m = metrics_open(&o);
    char *text = content(dir, "run.json");
    cJSON *json = cJSON_Parse(text);
    expect_text(json, "git_hash", "7d9ecdf1a2b3");
    expect_text(json, "device", "Some \"CPU\"");
    expect_text(json, "precision", "nvfp4(emulated)");
    EXPECT(cJSON_IsNull(cJSON_GetObjectItem(json, "ended")) &&
               cJSON_IsNull(cJSON_GetObjectItem(json, "exit_code")),
           "while it runs: %s", text);
    cJSON_Delete(json);
    free(text);

    metrics_close(m, 130, "interrupted");
    text = content(dir, "run.json");
    json = cJSON_Parse(text);
    expect_text(json, "exit_reason", "interrupted");
    EXPECT_EQ_I64(cJSON_GetNumberValue(cJSON_GetObjectItem(json, "exit_code")), 130);
    EXPECT(strlen(cJSON_GetStringValue(cJSON_GetObjectItem(json, "ended"))) == 20, "%s", text);
    EXPECT(!file_exists(in_dir(dir, "run.json.tmp")));
    cJSON_Delete(json);
    free(text);
}

// --- resume ---

/* Steps as a training loop reports them: every second step begins with a validation. */
static void run_steps(const char *dir, int64_t begin, int64_t end) {
    MetricsOptions o = options_of(dir);
    o.first_step = begin;
    o.print_every = 1000;
    capture_begin();
    Metrics *m = metrics_open(&o);
    for (int64_t step = begin; step < end; step++) {
        StepRecord r = record_of(step, 5.0 - 0.01 * (double)step);
        if (step % 2 == 0) validate(m, step, step * 524288, 6.0 - 0.01 * (double)step);
        metrics_step(m, &r);
    }
    metrics_close(m, 0, "done");
    free(capture_end());
}

static void expect_same_files(const char *a, const char *b, const char *name) {
    char *want = content(b, name);
    expect_content(a, name, want);
    free(want);
}

static void append_text(const char *path, const char *text) {
    FILE *f = fopen(path, "a");
    fputs(text, f);
    fclose(f);
}

CASE(an_interrupted_run_leaves_the_same_files) {
    const char *whole = test_scratch("whole"), *parts = test_scratch("parts");
    run_steps(whole, 0, 20);
    run_steps(parts, 0, 13);   // killed after step 12, while writing; last checkpoint at 8
    append_text(in_dir(parts, "metrics.jsonl"), "{\"step\":13,\"tok");
    append_text(in_dir(parts, "main.log"), "s:1");
    run_steps(parts, 8, 20);
    expect_same_files(parts, whole, "metrics.jsonl");
    expect_same_files(parts, whole, "main.log");
    EXPECT(!file_exists(in_dir(parts, "metrics.jsonl.tmp")));
    run_steps(parts, 0, 20);   // from the start again
    expect_same_files(parts, whole, "metrics.jsonl");
    expect_same_files(parts, whole, "main.log");
}

CASE(a_line_cut_short_before_the_resumed_step_is_dropped) {
    const char *whole = test_scratch("whole2"), *parts = test_scratch("parts2");
    run_steps(whole, 0, 6);
    run_steps(parts, 0, 4);
    append_text(in_dir(parts, "metrics.jsonl"), "{\"step\":3,\n{\"step\":3,\"tok");
    run_steps(parts, 4, 6);
    expect_same_files(parts, whole, "metrics.jsonl");
}

// --- the printed lines ---

CASE(step_line) {
    MetricsOptions o = options_of("");
    o.first_step = 119;
    o.flops_per_token = 0.412 * 989e12 / (524288 / 0.8124);
    char *text = printed_steps(&o, 120, 4.10234);
    const char *want = "step 120/1000 | loss 4.1023 | norm 0.61 | lr 6.0e-04 | 812.4 ms | 41.2% "
                       "MFU | 645k tok/s | "
                       "nvfp4(emulated) | eta --:--:--\n"
                       "step 121/1000 | loss 4.1023 | norm 0.61 | lr 6.0e-04 | 812.4 ms | 41.2% "
                       "MFU | 645k tok/s | "
                       "nvfp4(emulated) | eta 00:11:54\n";
    EXPECT(strcmp(text, want) == 0, "got\n%s\nwant\n%s", text, want);
    free(text);
}

CASE(step_line_of_an_unknown_device_with_statistics) {
    MetricsOptions o = options_of("");
    o.peak_flops = 0;
    o.tokens_per_step = 1024;
    o.total_steps = 200000;
    capture_begin();
    Metrics *m = metrics_open(&o);
    StepRecord r = record_of(0, NAN);
    r.loss_z = 0.26;
    r.norm_z = -1.44;
    r.time_ms = 2000;
    r.skipped = 1;
    metrics_step(m, &r);
    r.step = 1;
    metrics_step(m, &r);
    metrics_close(m, 0, "done");
    char *text = capture_end();
    const char *want =
        "step 2/200000 | loss nan (+0.3z) | norm 0.61 (-1.4z) | lr 6.0e-04 | "
        "2000.0 ms | n/a MFU | 512 tok/s | nvfp4(emulated) | skipped | eta 111:06:36\n";
    EXPECT(strstr(text, want) != NULL, "got\n%s\nwant\n%s", text, want);
    free(text);
}

CASE(eta_is_of_the_last_steps) {
    MetricsOptions o = options_of("");
    o.total_steps = 161;
    capture_begin();
    Metrics *m = metrics_open(&o);
    for (int step = 0; step < 61; step++) {
        StepRecord r = record_of(step, 4);
        r.time_ms = step == 0 ? 60000 : step < 41 ? 3000 : 1000;
        metrics_step(m, &r);
    }
    metrics_close(m, 0, "done");
    char *text = capture_end();
    expect_in_line(text, "step 2/", "eta 00:07:57");    // 159 of 3 s, the first not counted
    expect_in_line(text, "step 51/", "eta 00:03:40");   // 110 of 2 s
    expect_in_line(text, "step 61/", "eta 00:01:40");   // 100 of 1 s
    free(text);
}

CASE(print_every_keeps_the_ends) {
    MetricsOptions o = options_of("");
    o.print_every = 10;
    o.total_steps = 25;
    char *text = printed_steps(&o, 24, 4);
    int lines = 0;
    for (char *c = text; *c; c++) lines += *c == '\n';
    EXPECT_EQ_I64(lines, 4);
    EXPECT(strstr(text, "step 1/25 ") && strstr(text, "step 10/25 ") &&
               strstr(text, "step 20/25 ") && strstr(text, "step 25/25 "),
           "%s", text);
    free(text);
}

// --- the gap to a reference ---

static const char *reference_run(const char *name) {
    const char *dir = test_scratch(name);
    mkdir(dir, 0777);
    append_text(in_dir(dir, "metrics.jsonl"),
                "{\"step\":0,\"tokens\":1000,\"val_loss\":5.0}\n"
                "{\"step\":0,\"tokens\":1000,\"train_loss\":4.0}\n"
                "{\"step\":1,\"tokens\":2000,\"train_loss\":null,\"nonfinite\":true}\n"
                "{\"step\":2,\"tokens\":3000,\"train_loss\":9.0}\n"
                "{\"step\":2,\"tokens\":3000,\"train_loss\":2.0}\n"   // done again: replaces
                "{\"step\":3,\"tok");                                 // killed while writing
    return dir;
}

static char *printed_with_reference(const char *dir, const int64_t *tokens, const double *losses,
                                    int count) {
    MetricsOptions o = options_of("");
    o.reference = dir;
    capture_begin();
    Metrics *m = metrics_open(&o);
    for (int i = 0; i < count; i++) {
        StepRecord r = record_of(i, losses[i]);
        r.tokens = tokens[i];
        metrics_step(m, &r);
        if (i == 0) validate(m, 0, tokens[0], 5.5);
    }
    metrics_close(m, 0, "done");
    return capture_end();
}

CASE(gap_at_equal_tokens) {
    const int64_t tokens[] = {1000, 2000, 3000, 3001};
    const double losses[] = {4.1, 2.9, NAN, 2.0};
    char *text = printed_with_reference(reference_run("ref"), tokens, losses, 4);
    expect_in_line(text, "gap:", "positive = worse than");
    expect_in_line(text, "step 1/1000", "| gap +2.5% |");   // 4.1 to 4.0
    expect_in_line(text, "step 0/1000", "| val loss 5.5000 | gap +10.0%");
    // Between 4.0 and 2.0 lies 3.0; (4.1 + 2.9) to (4.0 + 3.0) is nothing, and NaN takes no part.
    expect_in_line(text, "step 2/1000", "| gap +0.0% |");
    expect_in_line(text, "step 3/1000", "| gap +0.0% |");
    EXPECT(strstr(strstr(text, "step 4/1000"), "gap") == NULL, "beyond the reference: %s", text);
    free(text);
}

CASE(gap_is_of_the_last_steps) {
    int64_t tokens[60];
    double losses[60];
    for (int i = 0; i < 60; i++) {
        tokens[i] = 1000;
        losses[i] = i < 30 ? 8.0 : 3.8;
    }
    char *text = printed_with_reference(reference_run("ref_window"), tokens, losses, 60);
    expect_in_line(text, "step 30/1000", "| gap +100.0% |");
    expect_in_line(text, "step 40/1000", "| gap +47.5% |");   // half of each
    expect_in_line(text, "step 49/1000", "| gap +0.2% |");    // one of twenty left
    expect_in_line(text, "step 50/1000", "| gap -5.0% |");
    free(text);
}

CASE(gap_is_in_the_files_and_goes_on_after_a_resume) {
    const char *whole = test_scratch("gap_whole"), *parts = test_scratch("gap_parts");
    const int ends[2][2] = {{12, 12}, {7, 12}};   // in one go; interrupted after 7
    for (int run = 0; run < 2; run++) {
        MetricsOptions o = options_of(run ? parts : whole);
        o.reference = reference_run(run ? "gap_ref2" : "gap_ref");
        o.print_every = 1000;
        capture_begin();
        for (int part = 0, step = 0; step < ends[run][1]; part++) {
            o.first_step = step;
            Metrics *m = metrics_open(&o);
            for (; step < ends[run][part]; step++) {
                StepRecord r = record_of(step, (float)(4.0 + 0.1 * step));
                r.tokens = 1000;
                metrics_step(m, &r);
            }
            metrics_close(m, 0, "done");
        }
        free(capture_end());
    }
    expect_same_files(parts, whole, "metrics.jsonl");
    char *text = content(whole, "metrics.jsonl");
    expect_in_line(text, "\"step\":4,", "\"gap_percent\":5}");   // mean of 4.0 .. 4.4 to 4.0
    free(text);
}

CASE(gap_of_a_validation_and_its_loss_in_bf16) {
    const char *dir = test_scratch("val_bf16");
    MetricsOptions o = options_of(dir);
    o.reference = reference_run("ref_val");
    o.tokens_per_step = 1024;
    capture_begin();
    Metrics *m = metrics_open(&o);
    ValidationRecord r = {4, 1000, 5.5, 1, 5.25};
    metrics_validation(m, &r);
    r.loss_bf16 = NAN;
    r.tokens = 487;   // more than half a step before the reference's
    metrics_validation(m, &r);
    metrics_close(m, 0, "done");
    char *text = capture_end();
    expect_in_line(text, "step 4/1000",
                   "step 4/1000 | val loss 5.5000 | in BF16 5.2500 | gap +10.0%");
    free(text);
    expect_content(dir, "metrics.jsonl",
                   "{\"step\":4,\"tokens\":1000,\"val_loss\":5.5,\"val_loss_bf16\":5.25,"
                   "\"gap_percent\":10}\n"
                   "{\"step\":4,\"tokens\":487,\"val_loss\":5.5,\"val_loss_bf16\":null,"
                   "\"nonfinite\":true}\n");
}

/* Between two distant validations of the reference a straight line would say nothing. */
CASE(a_validation_is_compared_with_one_at_its_place) {
    static const struct {
        int64_t tokens;
        const char *gap;
    } cases[] = {{1000, "gap +10.0%"}, {1500, "gap +10.0%"},  {1513, NULL},
                 {4000, NULL},         {7490, "gap +175.0%"}, {7600, "gap +175.0%"}};
    MetricsOptions o = options_of("");
    o.reference = reference_run("ref_near");
    append_text(in_dir(o.reference, "metrics.jsonl"),
                "\n{\"step\":8,\"tokens\":8000,\"val_loss\":2.0}\n");
    o.tokens_per_step = 1024;
    o.reference_warn = 100;
    capture_begin();
    Metrics *m = metrics_open(&o);
    for (int i = 0; i < ARRAY_LEN(cases); i++) validate(m, 10 + i, cases[i].tokens, 5.5);
    metrics_close(m, 0, "done");
    char *text = capture_end();
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        char line[64];
        snprintf(line, sizeof(line), "step %d/1000 | val loss 5.5000%s%s", 10 + i,
                 cases[i].gap ? " | " : "\n", cases[i].gap ? cases[i].gap : "");
        EXPECT(strstr(text, line), "%s in\n%s", line, text);
    }
    free(text);
}

/* What goes to standard error when `count` steps have the losses. */
static char *warnings_of(const char *name, double limit, int64_t tokens_per_step,
                         const double *losses, int count) {
    MetricsOptions o = options_of("");
    o.reference = reference_run(name);
    o.reference_warn = limit;
    o.tokens_per_step = tokens_per_step;
    int kept = dup(STDERR_FILENO);
    capture_begin();
    if (!freopen(test_scratch("stderr"), "w", stderr)) perror("stderr");
    Metrics *m = metrics_open(&o);
    for (int i = 0; i < count; i++) {
        StepRecord r = record_of(i, losses[i]);
        r.tokens = 1000;
        metrics_step(m, &r);
    }
    validate(m, count, 1000, losses[count - 1]);
    validate(m, count, 1000, losses[count - 1]);
    metrics_close(m, 0, "done");
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    free(capture_end());
    return content(test_temp_dir(), "stderr");
}

CASE(a_gap_past_the_limit_is_warned_of_once) {
    double losses[60];
    for (int i = 0; i < 60; i++) losses[i] = i < 2 ? 80.0 : i < 30 ? 4.0 : 4.4;
    char *text = warnings_of("warn1", 3.0, 3, losses, 60);
    expect_in_line(text, "step 20: the loss is 190.0% above", "log.reference_warn is 3%");
    const char *first = strstr(text, "reference_warn");
    EXPECT(first && !strstr(first + 1, "reference_warn"), "%s", text);
    free(text);
    losses[0] = losses[1] = 4.0;
    text = warnings_of("warn2", 3.0, 3, losses, 60);
    expect_in_line(text, "step 37: the loss is 3.5% above", "log.reference_warn");   // 7 of 20
    free(text);
    text = warnings_of("warn3", 10.5, 3, losses, 60);
    EXPECT(text[0] == '\0', "%s", text);
    free(text);
    losses[59] = 5.5;   // a validation's, beside 5.0; of training the mean is 10 % above
    text = warnings_of("warn4", 12, 3, losses, 60);
    EXPECT(text[0] == '\0', "%s", text);
    free(text);
    text = warnings_of("warn5", 9, 3, losses, 60);
    expect_in_line(text, "step 60: the validation loss is 10.0% above", "log.reference_warn is 9%");
    EXPECT(!strstr(strstr(text, "validation") + 1, "validation"), "twice: %s", text);
    free(text);
}

CASE(a_reference_that_ends_early_is_said) {
    double loss = 4.0;
    char *text = warnings_of("short", 0, 4, &loss, 1);   // 4000 tokens in all
    expect_in_line(text, "log.reference", "ends at 3000 tokens, this run at 4000");
    free(text);
}

CASE(bad_references_are_named) {
    MetricsOptions o = options_of("");
    o.reference = test_scratch("no_such_run");
    EXPECT_DIES(EXIT_DATA, "log.reference", metrics_open(&o));
    EXPECT_DIES(EXIT_DATA, "no_such_run/metrics.jsonl", metrics_open(&o));
    const char *empty = test_scratch("empty_run");
    mkdir(empty, 0777);
    append_text(in_dir(empty, "metrics.jsonl"), "not a record\n");
    o.reference = empty;
    EXPECT_DIES(EXIT_DATA, "holds no training step", metrics_open(&o));
}

// --- places that cannot be written ---

CASE(unwritable_log_dir_is_named) {
    append_text(test_scratch("plain_file"), "x");
    MetricsOptions o = options_of(test_scratch("plain_file/log"));
    EXPECT_DIES(EXIT_DATA, "log.dir", metrics_open(&o));
    o.dir = test_scratch("plain_file");
    EXPECT_DIES(EXIT_DATA, "log.dir", metrics_open(&o));
    o.dir = test_scratch("blocked");
    mkdir(o.dir, 0777);
    mkdir(in_dir(o.dir, "main.log"), 0777);
    EXPECT_DIES(EXIT_DATA, "main.log", metrics_open(&o));
}

static Metrics *open_run;
static void close_open_run(ExitCode code, const char *message) {
    metrics_close(open_run, code, message);
}

CASE(a_full_disk_ends_the_run_and_is_recorded) {
    const char *dir = test_scratch("full");
    EXPECT_DIES(EXIT_DATA, "metrics.jsonl' after 0 bytes: File too large", {
        MetricsOptions o = options_of(dir);
        open_run = metrics_open(&o);
        set_die_hook(close_open_run);
        struct rlimit limit = {2000, 2000};
        setrlimit(RLIMIT_FSIZE, &limit);
        append_text(in_dir(dir, "metrics.jsonl"), "");
        if (truncate(in_dir(dir, "metrics.jsonl"), 2000) != 0) perror("truncate");
        StepRecord r = record_of(0, 4);
        metrics_step(open_run, &r);
    });
    char *text = content(dir, "run.json");
    EXPECT(strstr(text, "\"exit_code\":\t3") && strstr(text, "File too large"), "%s", text);
    free(text);
}

TEST_MAIN_END
