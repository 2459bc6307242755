/* guard -- windows of accepted losses and norms, and the limits that follow; see guard.h. */
#include "guard.h"

#include <math.h>
#include <string.h>

#include "common.h"

typedef struct {
    double mean, deviation;
} Statistics;   // deviation 0: nothing to measure by

Guard guard_make(double loss_z, double norm_z) {
    CHECK(loss_z >= 0 && norm_z >= 0, "z limits %g and %g", loss_z, norm_z);
    Guard g = {.loss_z = loss_z, .norm_z = norm_z};
    return g;
}

static void window_push(GuardWindow *w, double value) {
    if (w->count == GUARD_WINDOW) {
        memmove(w->values, w->values + 1, (GUARD_WINDOW - 1) * sizeof(w->values[0]));
        w->count--;
    }
    w->values[w->count++] = value;
}

void guard_push(Guard *g, double loss, double norm, int skipped) {
    g->skips = skipped ? g->skips + 1 : 0;
    if (skipped || !isfinite(loss) || !isfinite(norm)) return;
    window_push(&g->loss, loss);
    window_push(&g->norm, norm);
}

/* Two passes: the sum of squares alone would lose the small deviation of a settled loss. */
static Statistics window_statistics(const GuardWindow *w) {
    Statistics s = {0, 0};
    if (w->count < GUARD_WINDOW) return s;
    for (int i = 0; i < GUARD_WINDOW; i++) s.mean += w->values[i] / GUARD_WINDOW;
    double sum_squares = 0;
    for (int i = 0; i < GUARD_WINDOW; i++) {
        double distance = w->values[i] - s.mean;
        sum_squares += distance * distance;
    }
    s.deviation = sqrt(sum_squares / GUARD_WINDOW);
    return s;
}

static float window_limit(const GuardWindow *w, double z) {
    Statistics s = window_statistics(w);
    if (z == 0 || s.deviation == 0) return INFINITY;
    return (float)(s.mean + z * s.deviation);
}

float guard_loss_max(const Guard *g) { return window_limit(&g->loss, g->loss_z); }
float guard_norm_max(const Guard *g) { return window_limit(&g->norm, g->norm_z); }

double guard_z(const GuardWindow *w, double value) {
    Statistics s = window_statistics(w);
    return s.deviation == 0 ? NAN : (value - s.mean) / s.deviation;
}
