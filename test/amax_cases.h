/*
amax_cases -- slots of maxima that are kept from step to step, driven through the ops of one device:
for test_amax.c, which says what must come out, and test_amax_cuda.cu, which wants the same bits.
*/
#ifndef TEST_AMAX_CASES_H
#define TEST_AMAX_CASES_H

#include "../llmc/common.h"
#include "../llmc/ops.h"

/* Two slots, of either rule, in device memory. */
typedef struct {
    Device *d;
    const Ops *ops;
    float *values;   // in_use, current, kept of both, then the history
    StepState *state;
    AmaxSlots slots;
} AmaxBench;

enum { AMAX_DELAYED_AT, AMAX_HELD_AT, AMAX_BENCH_VALUES = 6 + AMAX_HISTORY };

static inline void amax_bench_open(AmaxBench *b, Device *d, const Ops *ops) {
    b->d = d;
    b->ops = ops;
    b->values = (float *)d->alloc(d, AMAX_BENCH_VALUES * sizeof(float));
    b->state = (StepState *)d->alloc(d, sizeof(StepState));
    d->zero(d, b->values, AMAX_BENCH_VALUES * sizeof(float));
    d->zero(d, b->state, sizeof(StepState));
    memset(&b->slots, 0, sizeof(b->slots));
    b->slots.count = 2;
    for (int i = 0; i < 2; i++) {
        AmaxSlot *s = &b->slots.slot[i];
        s->rule = i == AMAX_DELAYED_AT ? AMAX_DELAYED : AMAX_HELD;
        s->initial = 448.0f;
        s->in_use = b->values + i;
        s->current = b->values + 2 + i;
        s->kept = b->values + 4 + i;
        s->history = i == AMAX_DELAYED_AT ? b->values + 6 : NULL;
    }
}

static inline void amax_bench_close(AmaxBench *b) {
    b->d->free(b->d, b->values);
    b->d->free(b->d, b->state);
}

static inline void amax_set_step(AmaxBench *b, uint32_t step, float stop_votes) {
    StepState s;
    memset(&s, 0, sizeof(s));
    s.step = step;
    s.stop_votes = stop_votes;
    b->d->upload(b->d, b->state, &s, sizeof(s));
}

typedef struct {
    float v[2];
} AmaxInUse;

/* Both operands' tensors have this maximum; what each is quantised with. */
static inline AmaxInUse amax_settle_both(AmaxBench *b, float maximum, int record) {
    AmaxInUse in_use = {{maximum, maximum}};
    b->d->upload(b->d, b->values, in_use.v, sizeof(in_use));
    b->ops->amax_settle(b->d, b->slots, b->state, record);
    b->d->download(b->d, in_use.v, b->values, sizeof(in_use));
    return in_use;
}

static inline void amax_advance_both(AmaxBench *b) {
    b->ops->amax_advance(b->d, b->slots, b->state);
}

#endif
