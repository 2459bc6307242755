/*
run_phases -- precision.schedule in a run: when each entry begins in optimizer steps, the phase that
the model is in, and the learning rate with its resets. A phase is the number of entries that have
begun; what they change is model.c's to resolve. Switches happen between optimizer steps, before the
validation that belongs to the next one.
  tests     test_schedule.c, test_program_schedule.c
*/
#ifndef LLMC_RUN_PHASES_H
#define LLMC_RUN_PHASES_H

#include "run.h"

#ifdef __cplusplus
extern "C" {
#endif

/* First steps of the entries, for a run of r->steps; dies (EXIT_CONFIG) for one that lies outside
   of training, or before the one it follows, and for a reset of the learning rate that the run is
   too short for. */
void run_phases_resolve(Run *r);
/* Lines that say when which rules begin; "" without a schedule. Caller frees. */
char *run_phases_text(const Run *r);
/* Learning rate of a step. */
float run_phases_lr(const Run *r, int64_t step);
/* Number of entries that have begun at a step. */
int run_phases_at(const Run *r, int64_t step);
/* model_begin_phase of a step in its phase; says when that is a new one. */
void run_phases_begin(Run *r, int64_t step);
/* Brings the model into the phase of step r->step after run_phases_trigger. */
void run_phases_enter(Run *r);
int run_phases_has_sqrt3(const Run *r);
/* 1 while an entry waits for "sqrt3", and those before it have begun. */
int run_phases_wait(const Run *r);
/* Lets that entry begin at a step. */
void run_phases_trigger(Run *r, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
