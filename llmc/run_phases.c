/* run_phases -- when the entries of precision.schedule begin; see run_phases.h. */
#include "run_phases.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "plan.h"

static const ScheduleList *entries_of(const Run *r) { return &r->config.precision.schedule; }

static int64_t first_step(const Run *r, const ScheduleEntry *entry, int i) {
    switch (entry->kind) {
    case MOMENT_STEP: return (int64_t)entry->at;
    case MOMENT_SHARE: return llround(entry->at * (double)r->steps);
    case MOMENT_SQRT3: return INT64_MAX;
    default: break;
    }
    int64_t decay = schedule_decay_start(&r->schedule);
    if (decay >= r->steps)
        die(EXIT_CONFIG,
            "config: precision.schedule[%d].at is \"lr_decay\", but sched.type %s never lowers the "
            "learning rate in this run; give a step or a share",
            i, schedule_names[r->schedule.type]);
    return decay;
}

/* The learning rate's way from entry i on. */
static Schedule reset_schedule(const Run *r, int i) {
    const ScheduleEntry *entry = &entries_of(r)->items[i];
    double peak = entry->peak > 0 ? entry->peak : r->config.optim.lr;
    Schedule s = {SCHED_COSINE,        peak,
                  entry->warmup_steps, 1,
                  entry->final_frac,   r->steps - r->phase_starts[i]};
    return s;
}

static void refuse_entry(const Run *r, int i) {
    int64_t start = r->phase_starts[i], before = i > 0 ? r->phase_starts[i - 1] : 0;
    const ScheduleEntry *entry = &entries_of(r)->items[i];
    if (start == INT64_MAX) return;
    if (start < 1 || start >= r->steps)
        die(EXIT_CONFIG,
            "config: precision.schedule[%d] begins after step %" PRId64 ", but the run has %" PRId64
            " steps; legal: after step 1 to %" PRId64,
            i, start, r->steps, r->steps - 1);
    if (start < before)
        die(EXIT_CONFIG,
            "config: precision.schedule[%d] begins after step %" PRId64 ", before entry %d, after "
            "step %" PRId64 "; entries are in the order of their moments",
            i, start, i - 1, before);
    if (entry->resets_lr && entry->warmup_steps >= r->steps - start)
        die(EXIT_CONFIG,
            "config: precision.schedule[%d].lr.warmup_steps is %" PRId64 ", but %" PRId64
            " steps are left after step %" PRId64 "; legal: 0 to %" PRId64,
            i, entry->warmup_steps, r->steps - start, start, r->steps - start - 1);
}

void run_phases_resolve(Run *r) {
    const ScheduleList *list = entries_of(r);
    r->phase_starts = (int64_t *)xmalloc((size_t)list->count * sizeof(int64_t));
    for (int i = 0; i < list->count; i++) {
        r->phase_starts[i] = first_step(r, &list->items[i], i);
        refuse_entry(r, i);
    }
}

int run_phases_at(const Run *r, int64_t step) {
    int phase = 0;
    while (phase < entries_of(r)->count && r->phase_starts[phase] <= step) phase++;
    return phase;
}

static void add(char *text, size_t size, const char *format, ...) PRINTF_LIKE(3, 4);
static void add(char *text, size_t size, const char *format, ...) {
    size_t at = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + at, size - at, format, args);
    va_end(args);
}

/* When entry i begins; as the config has it where the run's length is not known. */
static void add_moment(char *text, size_t size, const Run *r, int i) {
    const ScheduleEntry *entry = &entries_of(r)->items[i];
    add(text, size, "phase %d     ", i + 1);
    if (r->phase_starts && r->phase_starts[i] != INT64_MAX)
        add(text, size, "after step %" PRId64 " of %" PRId64, r->phase_starts[i], r->steps);
    else if (entry->kind == MOMENT_STEP) add(text, size, "after step %.0f", entry->at);
    else if (entry->kind == MOMENT_SHARE)
        add(text, size, "after %g %% of the steps", 100 * entry->at);
    else if (entry->kind == MOMENT_LR_DECAY) add(text, size, "when the learning rate decays");
    else
        add(text, size,
            "once the gradients' signal is below sqrt(3) times their noise (log.telemetry_every "
            "looks)");
}

static void add_changes(char *text, size_t size, const Run *r, int i) {
    const ScheduleEntry *entry = &entries_of(r)->items[i];
    for (int k = 0; rule_key(k); k++) {
        const char *value = rule_get(&entry->rule, rule_key(k));
        if (value) add(text, size, "%s %s %s", k ? "," : ":", rule_key(k), value);
    }
    if (!entry->resets_lr) return;
    add(text, size,
        "; learning rate warmed up again in %" PRId64 " steps to %g, then down to %g of it",
        entry->warmup_steps, entry->peak > 0 ? entry->peak : r->config.optim.lr, entry->final_frac);
}

char *run_phases_text(Run *r) {
    enum { ROOM = 768 };   // of one entry's words
    char *text = xstrdup("");
    for (int i = 0; i < entries_of(r)->count; i++) {
        char words[ROOM] = "";
        add_moment(words, ROOM, r, i);
        add_changes(words, ROOM, r, i);
        char *lines =
            rule_sets(&entries_of(r)->items[i].rule) ? plan_phase_text(&r->model, i + 1) : NULL;
        char *longer = format_string("%s%s\n%s", text, words, lines ? lines : "");
        free(lines);
        free(text);
        text = longer;
    }
    return text;
}

float run_phases_lr(const Run *r, int64_t step) {
    for (int i = run_phases_at(r, step) - 1; i >= 0; i--) {
        if (!entries_of(r)->items[i].resets_lr) continue;
        Schedule s = reset_schedule(r, i);
        return schedule_lr(&s, step - r->phase_starts[i]);
    }
    return schedule_lr(&r->schedule, step);
}

/* Of a phase after the first, whose first step is known. */
static void announce(Run *r) {
    int phase = r->model.phase;
    plan_precision_tag(&r->model, &r->config, r->precision_tag, sizeof(r->precision_tag));
    log_line("precision   phase %d of precision.schedule from step %" PRId64
             " on: %s, quantised operands in %d of %d GEMMs of a micro-step",
             phase, r->phase_starts[phase - 1] + 1, r->precision_tag,
             plan_quantized_gemms(&r->model), plan_all_gemms(&r->model));
}

int run_phases_behind(const Run *r, int64_t step) {
    return step > 0 ? run_phases_at(r, step - 1) : 0;
}

void run_phases_begin(Run *r, int64_t step) {
    int was = r->model.phase;
    model_begin_phase(&r->model, step, run_phases_behind(r, step));
    if (r->model.phase != was) announce(r);
}

void run_phases_enter(Run *r) {
    int phase = run_phases_at(r, r->step);
    if (phase == r->model.phase) return;
    model_set_phase(&r->model, phase);
    model_prepare_weights(&r->model);
    announce(r);
    metrics_event(r->metrics, r->step, "phase", phase);
}

int run_phases_has_sqrt3(const Run *r) {
    const ScheduleList *list = entries_of(r);
    return list->count > 0 && list->items[list->count - 1].kind == MOMENT_SQRT3;
}

int run_phases_wait(const Run *r) {
    int last = entries_of(r)->count - 1;
    if (!run_phases_has_sqrt3(r) || r->phase_starts[last] != INT64_MAX) return 0;
    return last == 0 || r->phase_starts[last - 1] <= r->step;
}

/* A reset of the learning rate needs steps to warm up in; where too few are left it is shorter. */
void run_phases_trigger(Run *r, int64_t step) {
    CHECK(run_phases_has_sqrt3(r), "no entry of precision.schedule waits");
    int last = entries_of(r)->count - 1;
    if (step >= r->steps) return;
    r->phase_starts[last] = step;
    ScheduleEntry *entry = &r->config.precision.schedule.items[last];
    entry->warmup_steps = min_i64(entry->warmup_steps, r->steps - step - 1);
}

void run_phases_conclude(const Run *r) {
    int last = entries_of(r)->count - 1;
    if (!run_phases_has_sqrt3(r) || r->phase_starts[last] != INT64_MAX) return;
    log_warn("precision.schedule[%d] never began: in no look of log.telemetry_every was the "
             "gradients' signal below sqrt(3) times their noise",
             last);
}

/* --- resuming --- */

/* In what the entries behind the checkpoint are not those of this run; "" for nothing. */
static void compare_past(const Run *r, const RunPast *past, char *text, size_t size) {
    double begun = past->num_values > 0 ? past->values[0] : 0;   // of any size: a file says so
    if (past->num_alike < begun) {
        add(text, size, "precision.schedule[%d] had begun, and is another entry now, or gone",
            past->num_alike);
        return;
    }
    for (int i = 0; i < begun && i < past->num_values - 1; i++) {
        int64_t start = r->phase_starts[i];
        if (start == INT64_MAX || (double)start == past->values[1 + i]) continue;
        add(text, size,
            "precision.schedule[%d] had begun after step %.0f, which is step %" PRId64
            " now (\"at\": %.0f keeps it)",
            i, past->values[1 + i], start, past->values[1 + i]);
        return;
    }
    if (run_phases_behind(r, past->step) > begun)
        add(text, size,
            "precision.schedule[%.0f] begins after step %" PRId64 ", which has passed without it",
            begun, r->phase_starts[(int)begun]);
}

void run_phases_resume(Run *r, const RunPast *past) {
    char other[256] = "";
    compare_past(r, past, other, sizeof(other));
    if (other[0] && strcmp(r->config.ckpt.resume, "auto") == 0)
        die(EXIT_CONFIG,
            "%s, at step %" PRId64 ", is a checkpoint of another run: %s. Later entries may "
            "change, those of the past may not. Set another log.dir for a run of its own, or "
            "ckpt.resume=%s to go on from it with the change",
            past->path, past->step, other, past->path);
    if (other[0]) log_line("changed since the checkpoint: %s", other);
    int count = entries_of(r)->count;
    if (run_phases_has_sqrt3(r) && past->num_values > count && past->values[0] >= count)
        run_phases_trigger(r, (int64_t)past->values[count]);
}
