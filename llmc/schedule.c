/* schedule -- one row a type: where its decay leaves the peak, and the shape of the way down. */
#include "schedule.h"

#include <math.h>

#include "common.h"

/* The last step at the peak rate; decay runs from there to the last step of all. */
static int64_t peak_until_warmup(const Schedule *s) {
    return min_i64(s->warmup_steps, s->total_steps - 2);   // the last step is the floor in any case
}

static int64_t peak_until_wsd(const Schedule *s) {
    int64_t decaying = max_i64(1, llround(s->decay_frac * (double)s->total_steps));
    return max_i64(s->warmup_steps, s->total_steps - decaying) - 1;
}

static int64_t peak_until_end(const Schedule *s) { return s->total_steps - 1; }

/* Share of the way from floor to peak that is left; 1 at progress 0 and 0 at progress 1. */
static double left_cosine(double progress) { return 0.5 * (1.0 + cos(M_PI * progress)); }
static double left_linear(double progress) { return 1.0 - progress; }
static double left_all(double progress) {
    (void)progress;
    return 1.0;
}

typedef struct {
    int64_t (*peak_until)(const Schedule *);
    double (*left)(double progress);
} ScheduleShape;

// clang-format off
const char *const schedule_names[NUM_SCHEDULES] = {
    [SCHED_COSINE]   = "cosine",
    [SCHED_WSD]      = "wsd",
    [SCHED_LINEAR]   = "linear",
    [SCHED_CONSTANT] = "constant",
};

static const ScheduleShape shapes[NUM_SCHEDULES] = {
    // type              peak_until         left
    [SCHED_COSINE]   = { peak_until_warmup, left_cosine },
    [SCHED_WSD]      = { peak_until_wsd,    left_linear },
    [SCHED_LINEAR]   = { peak_until_warmup, left_linear },
    [SCHED_CONSTANT] = { peak_until_end,    left_all    },
};
// clang-format on

static const ScheduleShape *checked_shape(const Schedule *s) {
    CHECK(s->type >= 0 && s->type < NUM_SCHEDULES, "schedule type %d", (int)s->type);
    CHECK(s->warmup_steps >= 0 && s->warmup_steps < s->total_steps,
          "%lld warm-up steps of %lld steps", (long long)s->warmup_steps,
          (long long)s->total_steps);
    CHECK(s->final_frac >= 0 && s->final_frac <= 1, "final_frac %g", s->final_frac);
    CHECK(s->type != SCHED_WSD || (s->decay_frac > 0 && s->decay_frac <= 1), "decay_frac %g",
          s->decay_frac);
    return &shapes[s->type];
}

float schedule_lr(const Schedule *s, int64_t step) {
    const ScheduleShape *shape = checked_shape(s);
    CHECK(step >= 0 && step < s->total_steps, "step %lld of %lld", (long long)step,
          (long long)s->total_steps);
    if (step < s->warmup_steps) {
        return (float)(s->lr * (double)(step + 1) / (double)s->warmup_steps);
    }
    int64_t last = s->total_steps - 1, peak = shape->peak_until(s);
    double progress = step <= peak ? 0 : (double)(step - peak) / (double)(last - peak);
    double left = shape->left(progress);
    return (float)(s->lr * left + s->lr * s->final_frac * (1 - left));   // exact at both ends
}

int64_t schedule_decay_start(const Schedule *s) { return checked_shape(s)->peak_until(s) + 1; }
