/* run_checkpoint -- a run's state to and from its checkpoints; see run_checkpoint.h. */
#include "run_checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "comm_watchdog.h"
#include "common.h"
#include "plan.h"
#include "resume.h"
#include "run_phases.h"

enum { NUM_RUN_FIELDS = 5, PHASE_VALUES = 1 + CONFIG_MAX_ENTRIES };

/* Of a run with a schedule: the number of entries that the last step was trained with, and how many
   steps had been done when each of them began. */
static double phase_values[PHASE_VALUES];
static int num_phase_values;

/* Sequences of data.train: with another number of them a position means another sequence. */
static double data_sequences;
static int num_data_sequences;
static int num_skips;   // 1

/* `fields` lives as long as the result. */
static CheckpointState checkpoint_state(Run *r, CheckpointField fields[NUM_RUN_FIELDS]) {
    Guard *g = &r->guard;
    CheckpointField loss = {"guard_loss", FIELD_REALS, g->loss.values, &g->loss.count,
                            GUARD_WINDOW};
    CheckpointField norm = {"guard_norm", FIELD_REALS, g->norm.values, &g->norm.count,
                            GUARD_WINDOW};
    fields[0] = loss;
    fields[1] = norm;
    CheckpointField phase = {"schedule", FIELD_COUNTS_IF_ANY, phase_values, &num_phase_values,
                             PHASE_VALUES};
    CheckpointField data = {"data_sequences", FIELD_COUNTS_IF_ANY, &data_sequences,
                            &num_data_sequences, 1};
    num_skips = 1;
    CheckpointField skips = {"guard_skips", FIELD_COUNTS_IF_ANY, &g->skips, &num_skips, 1};
    fields[2] = data;
    fields[3] = skips;
    fields[4] = phase;
    CheckpointState s;
    memset(&s, 0, sizeof(s));
    s.step = r->step;
    s.position = r->position;
    s.tokens = r->tokens;
    s.seed = r->config.seed;
    s.fields = fields;
    s.num_fields = NUM_RUN_FIELDS;
    s.kept = r->model.kept;
    s.num_kept = r->model.num_kept;
    return s;
}

static void note_phase(const Run *r) {
    int begun = run_phases_behind(r, r->step);
    num_phase_values = 1 + begun;
    phase_values[0] = begun;
    for (int i = 0; i < begun; i++) phase_values[1 + i] = (double)r->phase_starts[i];
}

static void note_data(const Run *r) {
    num_data_sequences = 1;
    data_sequences = (double)dataloader_num_sequences(r->train);
}

/* A shard that went missing, or a new one, would put other data behind every position. */
static void compare_data(const Run *r, const char *path) {
    int64_t now = dataloader_num_sequences(r->train), then = (int64_t)data_sequences;
    if (num_data_sequences == 0 || now == then) return;
    if (strcmp(r->config.ckpt.resume, "auto") != 0) {
        log_line("changed since the checkpoint: data.train held %lld sequences, now %lld; new data "
                 "order",
                 (long long)then, (long long)now);
        return;
    }
    die(EXIT_DATA,
        "data.train holds %lld sequences, but %lld when %s was saved: a shard is missing or new, "
        "and the order of the data would be another. Put the files back as they were, or set "
        "ckpt.resume=%s to go on with these",
        (long long)now, (long long)then, path, path);
}

/* For evaluation, which comes before any step, the phase is the checkpoint's. */
static void take_phase(Run *r, const char *path) {
    const ScheduleList *list = &r->config.precision.schedule;
    if (num_phase_values == 0) return;
    int64_t phase = (int64_t)phase_values[0];   // of any size: a file says so
    if (phase > list->count)
        die(EXIT_CONFIG,
            "%s is in phase %lld of its precision.schedule, the config has %d entries; give the "
            "run's own config, LOG.DIR or its config.resolved.json",
            path, (long long)phase, list->count);
    model_set_phase(&r->model, (int)phase);
    plan_precision_tag(&r->model, &r->config, r->precision_tag, sizeof(r->precision_tag));
}

// --- tensors and ranks ---

/* Where this rank has what; the ranges are the caller's to free. Without training each rank holds
   all weights. */
static CheckpointTensors tensors_of(Run *r, int training) {
    CheckpointTensors t = {&r->model.params, r->device, r->host, NULL, r->host->size};
    if (training && r->model.zero.level > 0)
        t.ranges = checkpoint_parts_of(t.params, &r->model.zero, &t.num_ranges);
    else t.ranges = checkpoint_whole_tensors(t.params, r->host->size);
    return t;
}

// --- saving ---

enum { STAGING_BYTES = 8 << 20, FREE_SHARE = 32 };
static const double MIB = 1024.0 * 1024.0;

typedef struct RunSaver {
    void *staging;          // STAGING_BYTES: tensors pass through it on their way to files
    void *snapshot;         // device memory, or NULL
    CheckpointSave *save;   // under way, or NULL
    int64_t step;           // of the newest try; -1: none
    char *problem;          // of the newest try, where it is over and failed
    double began, waited;   // ms: when it began, and how long training waited for it
    char how[160];          // for the start of the run
} RunSaver;

/* Whether any checkpoint is due while training goes on. */
static int saves_on_the_way(const Run *r) {
    int64_t every = r->config.ckpt.every;
    return every > 0 && r->step + every < r->steps;
}

/* A snapshot beside all that the run has planned, with a share of the device for what libraries
   take unplanned. On all ranks or on none: they wait for the slowest anyway. */
static size_t snapshot_bytes(Run *r) {
    CheckpointField fields[NUM_RUN_FIELDS];
    CheckpointState s = checkpoint_state(r, fields);
    CheckpointTensors t = tensors_of(r, 1);
    size_t bytes = checkpoint_snapshot_bytes(&t, &s, r->host->rank), free_bytes, total_bytes;
    r->device->memory(r->device, &free_bytes, &total_bytes);
    size_t reserve = r->device->kind == DEVICE_CPU ? 0 : total_bytes / FREE_SHARE;
    size_t planned = plan_memory_bytes(&r->model) + bytes + reserve;
    float lacking = planned > free_bytes ? (float)((double)(planned - free_bytes) / MIB) : 0;
    r->host->all_reduce(r->host, &lacking, 1, COMM_MAX);
    free((void *)t.ranges);
    if (lacking == 0) return bytes;
    snprintf(r->saver->how, sizeof(r->saver->how),
             "training waits for them: a copy of what is saved, %.1f MiB, lacks %.1f MiB of memory",
             (double)bytes / MIB, lacking);
    return 0;
}

void run_saver_open(Run *r) {
    RunSaver *saver = r->saver = (RunSaver *)xmalloc(sizeof(*saver));
    saver->step = -1;
    saver->staging = xmalloc(STAGING_BYTES);
    snprintf(saver->how, sizeof(saver->how), "%s",
             r->config.ckpt.background ? "at the end" : "training waits for them");
    if (!r->config.ckpt.background || !saves_on_the_way(r)) return;
    size_t bytes = snapshot_bytes(r);
    if (bytes == 0) return;
    saver->snapshot = device_alloc(r->device, bytes, "snapshot of checkpoints");
    snprintf(saver->how, sizeof(saver->how),
             "written while training goes on, from a copy, %.1f MiB", (double)bytes / MIB);
}

void run_saver_describe(const Run *r) { log_line("checkpoints %s", r->saver->how); }

/* "again at step 200", or that this was the last one. */
static void next_try(const Run *r, char *text, size_t bytes) {
    int64_t every = r->config.ckpt.every, until = r->config.ckpt.until;
    int64_t last = until > 0 ? min_i64(until, r->steps) : r->steps, next = last;
    if (every > 0) next = min_i64(next, (r->step / every + 1) * every);
    if (r->step >= last) snprintf(text, bytes, "it was the last one");
    else
        snprintf(text, bytes, "training goes on, the next try comes at step %lld", (long long)next);
}

static void report_save(Run *r, char *problem) {
    RunSaver *saver = r->saver;
    const char *dir = r->config.ckpt.dir;
    saver->save = NULL;
    saver->problem = problem;
    if (!problem) {
        r->saved_step = saver->step;
        log_line("checkpoint  %s/step_%08lld, %.1f s, training waited %.3f s", dir,
                 (long long)saver->step, (now_ms() - saver->began) / 1000.0,
                 saver->waited / 1000.0);
        return;
    }
    char next[96], *last = r->saved_step < 0 ? NULL : checkpoint_find(dir);
    next_try(r, next, sizeof(next));
    log_warn("CHECKPOINT OF STEP %lld NOT WRITTEN: %s; %s. Last good one: %s",
             (long long)saver->step, problem, next, last ? last : "none of this run");
    free(last);
}

/* Returns whether none is under way any more. */
static int finish_save(Run *r, int wait) {
    RunSaver *saver = r->saver;
    char *problem;
    double started = now_ms();
    if (!saver->save) return 1;
    int done = checkpoint_done(saver->save, wait, &problem);
    saver->waited += now_ms() - started;
    if (done) report_save(r, problem);
    return done;
}

void run_save_poll(Run *r) { finish_save(r, 0); }

static void begin_save(Run *r) {
    RunSaver *saver = r->saver;
    const Config *c = &r->config;
    CheckpointField fields[NUM_RUN_FIELDS];
    CheckpointState s = checkpoint_state(r, fields);
    CheckpointTensors t = tensors_of(r, 1);
    CheckpointPolicy policy = {c->ckpt.dir,    (int)c->ckpt.keep, c->ckpt.major_every,
                               saver->staging, STAGING_BYTES,     saver->snapshot};
    if (r->host->rank == 0 && r->metrics) metrics_sync(r->metrics);
    note_phase(r);
    note_data(r);
    if (c->precision.schedule.count == 0) s.num_fields--;
    s.config = r->config_json;
    char *algorithms = r->ops->gemm_choices_save(r->device);
    s.gemm_algorithms = algorithms;
    saver->step = r->step;
    saver->began = now_ms();
    saver->save = checkpoint_begin(&policy, &t, &s);
    saver->waited = now_ms() - saver->began;
    free(algorithms);
    free((void *)t.ranges);
}

void run_save(Run *r) {
    RunSaver *saver = r->saver;
    watchdog_enter("checkpoint");
    finish_save(r, 1);
    if (r->saved_step != r->step) {   // else nothing was trained since
        free(saver->problem);
        saver->problem = NULL;
        begin_save(r);
        finish_save(r, saver->snapshot == NULL);
    }
    watchdog_leave();
}

void run_saver_finish(Run *r) {
    finish_save(r, 1);
    if (r->saver->problem)
        die(EXIT_DATA, "the checkpoint of step %lld was not written: %s", (long long)r->saver->step,
            r->saver->problem);
}

void run_saver_close(Run *r) {
    RunSaver *saver = r->saver;
    if (saver->snapshot) r->device->free(r->device, saver->snapshot);
    free(saver->staging);
    free(saver->problem);
    free(saver);
    r->saver = NULL;
}

// --- loading ---

static void refuse_longer_past(const Run *r, const char *path, int64_t step) {
    if (step <= r->steps) return;
    die(EXIT_CONFIG,
        "the run has %lld steps, but %s is at step %lld; raise train.steps (or train.tokens, "
        "train.epochs), or set ckpt.resume=never",
        (long long)r->steps, path, (long long)step);
}

/* 1 where the checkpoint's run had quantised other operands, or otherwise. */
static int has_other_operands;

void run_rehearse_load(Run *r, const char *path) {
    has_other_operands = resume_compare(&r->config, path, 1);
    CheckpointField fields[NUM_RUN_FIELDS];
    CheckpointState s = checkpoint_state(r, fields);
    CheckpointTensors t = tensors_of(r, 1);
    checkpoint_check(path, &t, &s, 1);
    free((void *)t.ranges);
    compare_data(r, path);
    refuse_longer_past(r, path, s.step);
    int alike = config_equal_elements(&r->config, s.config, "precision.schedule");
    RunPast past = {path, s.step, phase_values, num_phase_values, alike};
    run_phases_resume(r, &past);
    free(s.config);
}

/* Says of which operands what earlier steps should have left is not there. */
static void warn_of_new_maxima(Run *r, const char *path) {
    const Linear *first = NULL;
    int unset = model_unset_maxima(&r->model, run_phases_at(r, r->step), &first);
    if (unset == 0) return;
    log_warn("%s has no delayed or held maximum for %d operands of this run, those of %s among "
             "them: they start anew, as in a run's first step",
             path, unset, first->name);
}

void run_load(Run *r, const char *path, int training) {
    if (!training) resume_compare(&r->config, path, 0);
    CheckpointField fields[NUM_RUN_FIELDS];
    CheckpointState s = checkpoint_state(r, fields);
    CheckpointTensors t = tensors_of(r, training);
    checkpoint_load(path, &t, &s, training);
    free((void *)t.ranges);
    r->step = s.step;
    r->position = s.position;
    r->tokens = s.tokens;
    if (strcmp(r->config.ckpt.resume, "auto") == 0) r->saved_step = s.step;
    if (!training) take_phase(r, path);
    else if (has_other_operands) warn_of_new_maxima(r, path);
    free(s.config);
    log_line("loaded      %s: step %lld, sequence %lld", path, (long long)r->step,
             (long long)r->position);
}

void run_load_trained(Run *r) {
    run_fit(r, 0);
    model_place(&r->model, &r->config, r->device, r->ops, 0);
    char *checkpoint = resume_find(&r->config, 0);
    if (!checkpoint) {
        die(EXIT_DATA, "there is no checkpoint in ckpt.dir %s; set ckpt.resume to the path of one",
            r->config.ckpt.dir);
    }
    run_load(r, checkpoint, 0);
    char *algorithms = checkpoint_gemm_algorithms(checkpoint);
    if (algorithms) r->ops->gemm_choices_load(r->device, algorithms);
    free(algorithms);
    free(checkpoint);
    model_begin_step(&r->model, r->step);
}
