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

enum { NUM_RUN_FIELDS = 5, PHASE_VALUES = 2 };

/* Of a run with a schedule: the phase, and where "sqrt3" came, the step of that. */
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
    s.num_fields = r->config.precision.schedule.count > 0 ? NUM_RUN_FIELDS : NUM_RUN_FIELDS - 1;
    s.kept = r->model.kept;
    s.num_kept = r->model.num_kept;
    return s;
}

/* The phase of the step that is next. */
static void note_phase(const Run *r) {
    int last = r->config.precision.schedule.count - 1;
    num_phase_values = 1;
    phase_values[0] = run_phases_at(r, r->step);
    if (!run_phases_has_sqrt3(r) || r->phase_starts[last] == INT64_MAX) return;
    phase_values[num_phase_values++] = (double)r->phase_starts[last];
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

/* In training the phase follows from the step, and model_begin_step brings it. */
static void resume_phase(Run *r, const char *path, int training) {
    const ScheduleList *list = &r->config.precision.schedule;
    if (num_phase_values == 0) return;
    int64_t phase = (int64_t)phase_values[0];   // of any size: a file says so
    if (training) {
        if (run_phases_has_sqrt3(r) && num_phase_values > 1)
            run_phases_trigger(r, (int64_t)phase_values[1]);
        if (list->count > 0 && run_phases_at(r, r->step) < phase)
            log_warn("%s was in phase %lld of precision.schedule, this run goes on in phase %d",
                     path, (long long)phase, run_phases_at(r, r->step));
        return;
    }
    if (phase > list->count)
        die(EXIT_CONFIG,
            "%s is in phase %lld of its precision.schedule, the config has %d entries; give the "
            "run's own config, LOG.DIR or its config.resolved.json",
            path, (long long)phase, list->count);
    model_set_phase(&r->model, (int)phase);
    plan_precision_tag(&r->model, &r->config, r->precision_tag, sizeof(r->precision_tag));
}

void run_save(Run *r) {
    const Config *c = &r->config;
    if (r->saved_step == r->step) return;
    watchdog_enter("checkpoint");
    if (r->host->rank == 0) {
        if (r->metrics) metrics_sync(r->metrics);
        CheckpointField fields[NUM_RUN_FIELDS];
        CheckpointState s = checkpoint_state(r, fields);
        note_phase(r);
        note_data(r);
        s.config = r->config_json;
        char *algorithms = r->ops->gemm_choices_save(r->device);
        s.gemm_algorithms = algorithms;
        CheckpointPolicy policy = {c->ckpt.dir, (int)c->ckpt.keep, c->ckpt.major_every, r->staging,
                                   RUN_STAGING_BYTES};
        double started = now_ms();
        checkpoint_save(&policy, &r->model.params, r->device, &s);
        free(algorithms);
        log_line("checkpoint  %s/step_%08lld, %.1f s", c->ckpt.dir, (long long)r->step,
                 (now_ms() - started) / 1000.0);
    }
    r->host->barrier(r->host);
    r->saved_step = r->step;
    watchdog_leave();
}

static void refuse_longer_past(const Run *r, const char *path, int64_t step) {
    if (step <= r->steps) return;
    die(EXIT_CONFIG,
        "the run has %lld steps, but %s is at step %lld; raise train.steps (or train.tokens, "
        "train.epochs), or set ckpt.resume=never",
        (long long)r->steps, path, (long long)step);
}

void run_rehearse_load(Run *r, const char *path) {
    resume_compare(&r->config, path, 1);
    CheckpointField fields[NUM_RUN_FIELDS];
    CheckpointState s = checkpoint_state(r, fields);
    checkpoint_check(path, &r->model.params, &s, 1);
    free(s.config);
    compare_data(r, path);
    refuse_longer_past(r, path, s.step);
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
    int other_operands = resume_compare(&r->config, path, training);
    CheckpointField fields[NUM_RUN_FIELDS];
    CheckpointState s = checkpoint_state(r, fields);
    checkpoint_load(path, &r->model.params, r->device, &s, training);
    if (training) compare_data(r, path);
    if (training) refuse_longer_past(r, path, s.step);
    r->step = s.step;
    r->position = s.position;
    r->tokens = s.tokens;
    if (strcmp(r->config.ckpt.resume, "auto") == 0) r->saved_step = s.step;
    resume_phase(r, path, training);
    if (training && other_operands) warn_of_new_maxima(r, path);
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
