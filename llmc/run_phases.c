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
            "config: precision.schedule[%d] begins at step %" PRId64 ", but the run has steps 0 to "
            "%" PRId64 "; legal: 1 to %" PRId64,
            i, start, r->steps - 1, r->steps - 1);
    if (start < before)
        die(EXIT_CONFIG,
            "config: precision.schedule[%d] begins at step %" PRId64 ", before entry %d, at step "
            "%" PRId64 "; entries are in the order of their moments",
            i, start, i - 1, before);
    if (entry->resets_lr && entry->warmup_steps >= r->steps - start)
        die(EXIT_CONFIG,
            "config: precision.schedule[%d].lr.warmup_steps is %" PRId64 ", but %" PRId64
            " steps are left from step %" PRId64 " on; legal: 0 to %" PRId64,
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

char *run_phases_text(const Run *r) {
    const ScheduleList *list = entries_of(r);
    size_t size = 1 + 512 * (size_t)list->count;
    char *text = (char *)xmalloc(size);
    text[0] = '\0';
    for (int i = 0; i < list->count; i++) {
        const ScheduleEntry *entry = &list->items[i];
        if (r->phase_starts[i] == INT64_MAX)
            add(text, size,
                "phase %d     when the gradients' signal "
                "falls below sqrt(3) times their noise",
                i + 1);
        else
            add(text, size, "phase %d     from step %" PRId64 " of %" PRId64, i + 1,
                r->phase_starts[i] + 1, r->steps);
        for (int k = 0; rule_key(k); k++) {
            const char *value = rule_get(&entry->rule, rule_key(k));
            if (value) add(text, size, "%s %s %s", k ? "," : ":", rule_key(k), value);
        }
        if (entry->resets_lr)
            add(text, size,
                "; learning rate warmed up again in %" PRId64 " steps to %g, then down to "
                "%g of it",
                entry->warmup_steps, entry->peak > 0 ? entry->peak : r->config.optim.lr,
                entry->final_frac);
        add(text, size, "\n");
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

static void announce(Run *r) {
    plan_precision_tag(&r->model, &r->config, r->precision_tag, sizeof(r->precision_tag));
    log_line("precision   phase %d of precision.schedule from step %" PRId64
             " on: %s, %d of the GEMMs of a micro-step with quantised operands",
             r->model.phase, r->model.step + 1, r->precision_tag, plan_quantized_gemms(&r->model));
}

void run_phases_begin(Run *r, int64_t step) {
    int was = r->model.phase;
    model_begin_phase(&r->model, step, run_phases_at(r, step));
    if (r->model.phase != was) announce(r);
}

void run_phases_enter(Run *r) {
    int phase = run_phases_at(r, r->step);
    if (phase == r->model.phase) return;
    model_set_phase(&r->model, phase);
    model_prepare_weights(&r->model);
    announce(r);
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
