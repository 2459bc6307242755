/* amax -- CPU reference of amax.h. */
#include "amax.h"

#include <math.h>
#include <string.h>

#include "../common.h"

void amax_check(const AmaxSlots *slots) {
    CHECK(slots->count <= AMAX_MAX_SLOTS, "%d amax slots", slots->count);
    for (int i = 0; i < slots->count; i++) {
        const AmaxSlot *s = &slots->slot[i];
        CHECK(s->rule == AMAX_DELAYED || s->rule == AMAX_HELD, "amax rule %d keeps nothing",
              (int)s->rule);
        CHECK(s->in_use && s->current && s->kept && (s->history || s->rule == AMAX_HELD),
              "an amax slot without memory");
    }
}

static float larger(float a, float b) { return bits_from_f32(b) > bits_from_f32(a) ? b : a; }

static int is_sampled(const AmaxSlot *s, const StepState *state) {
    return *s->kept == 0.0f || state->step % AMAX_HOLD == 0;
}

void amax_settle_cpu(Device *d, AmaxSlots slots, const StepState *state, int record) {
    (void)d;
    amax_check(&slots);
    for (int i = 0; i < slots.count; i++) {
        const AmaxSlot *s = &slots.slot[i];
        float own = *s->in_use, kept = *s->kept;
        if (record) *s->current = larger(*s->current, own);
        if (s->rule == AMAX_DELAYED) *s->in_use = kept == 0.0f ? s->initial : kept;
        else *s->in_use = is_sampled(s, state) ? own : kept;
    }
}

/* One step older; returns the largest of all. */
static float roll(float *history, float latest) {
    memmove(history, history + 1, (AMAX_HISTORY - 1) * sizeof(*history));
    history[AMAX_HISTORY - 1] = latest;
    float most = 0.0f;
    for (int i = 0; i < AMAX_HISTORY; i++) most = larger(most, history[i]);
    return most;
}

void amax_advance_cpu(Device *d, AmaxSlots slots, const StepState *state) {
    (void)d;
    amax_check(&slots);
    for (int i = 0; i < slots.count; i++) {
        const AmaxSlot *s = &slots.slot[i];
        float last = *s->current;
        *s->current = 0.0f;
        if (last == 0.0f || state->stop_votes > 0.0f) continue;
        int usable = isfinite(last);
        float kept = last;
        if (s->rule == AMAX_DELAYED) kept = roll(s->history, usable ? last : 0.0f);
        else usable = usable && is_sampled(s, state);
        if (usable) *s->kept = kept;
    }
}
