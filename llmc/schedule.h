/*
schedule -- the learning rate as a function of the optimizer step, counted from 0.
  warm-up   step s < warmup_steps uses lr * (s + 1) / warmup_steps: never 0, and lr at its last step
  cosine    from lr at step warmup_steps to final_frac * lr at the last step, half a cosine between
  linear    the same two ends, a straight line between
  wsd       lr, then over the last decay_frac of all steps (at least one) a straight line down
  constant  lr to the end; final_frac is not used
With total_steps = N the last step is N - 1, and there every decaying type gives final_frac * lr
exactly: progress divides by the steps between the two ends, N - 1 - warmup_steps, not by N. Where
no step lies between (N = warmup_steps + 1), the last step is the floor.
  tests     test_schedule.c
*/
#ifndef LLMC_SCHEDULE_H
#define LLMC_SCHEDULE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { SCHED_COSINE, SCHED_WSD, SCHED_LINEAR, SCHED_CONSTANT, NUM_SCHEDULES } ScheduleType;

extern const char *const schedule_names[NUM_SCHEDULES];   // as in sched.type

typedef struct {
    ScheduleType type;
    double lr;              // peak, > 0
    int64_t warmup_steps;   // 0 <= warmup_steps < total_steps
    double decay_frac;      // wsd: share of all steps that decay, in (0, 1]
    double final_frac;      // floor as a share of lr, in [0, 1]
    int64_t total_steps;    // > 0
} Schedule;

/* 0 <= step < total_steps; CHECKed, as are the ranges above. */
float schedule_lr(const Schedule *s, int64_t step);

/* First step whose rate is below the one that warm-up reached; total_steps for a constant rate.
   What "the start of LR decay" means to precision.schedule. */
int64_t schedule_decay_start(const Schedule *s);

#ifdef __cplusplus
}
#endif
#endif
