/*
run_phases -- precision.schedule in a run: when each entry begins in optimizer steps, the phase that
the model is in, and the learning rate with its resets. A phase is the number of entries that have
begun; what they change is model.c's to resolve. Switches happen between optimizer steps, behind the
validation there: that is of the weights that the old phase left, in its precision.
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
/* Of each entry when it begins, what it says, and the GEMMs that it changes; "" without a schedule.
   Before run_phases_resolve the moments are those of the config. Caller frees. */
char *run_phases_text(Run *r);
/* Learning rate of a step. */
float run_phases_lr(const Run *r, int64_t step);
/* Number of entries that have begun at a step. */
int run_phases_at(const Run *r, int64_t step);
/* The phase that the step before this one was trained in; 0 before the first. */
int run_phases_behind(const Run *r, int64_t step);
/* model_begin_phase of a step, still in the phase of the step before it. A run that resumes in a
   later phase than the first says so. */
void run_phases_begin(Run *r, int64_t step);
/* Brings the model into the phase of step r->step, which is trained next; says and records it where
   that is a new one. */
void run_phases_enter(Run *r);
/* What a checkpoint knows of the schedule it was trained with. `values`: how many entries had begun
   by its last step, then how many steps had been done when each of these began; none of a run
   without a schedule. */
typedef struct {
    const char *path;
    int64_t step;
    const double *values;
    int num_values;
    int num_alike;   // leading entries of its config that are also those of this run's
} RunPast;
/* Refuses (EXIT_CONFIG) other entries in the past than those that had begun, but only says so where
   ckpt.resume names the checkpoint. "sqrt3" has come where it had. */
void run_phases_resume(Run *r, const RunPast *past);
int run_phases_has_sqrt3(const Run *r);
/* 1 while an entry waits for "sqrt3", and those before it have begun. */
int run_phases_wait(const Run *r);
/* Lets that entry begin at a step. */
void run_phases_trigger(Run *r, int64_t step);
/* After the last step: warns of one that waited in vain. */
void run_phases_conclude(const Run *r);

#ifdef __cplusplus
}
#endif
#endif
