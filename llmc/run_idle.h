/*
run_idle -- keys of precision that would do nothing in this run. One whose time never comes is
refused, since the run would not be the one that was meant; one for which the recipe quantises
nothing is only warned of, because a run and its BF16 reference should differ in the recipe alone.
Not here: rules and entries of the schedule that match nothing (model.c), values that are illegal
everywhere (config_check.c).
  tests     test_program_phases.c
*/
#ifndef LLMC_RUN_IDLE_H
#define LLMC_RUN_IDLE_H

#include "run.h"

#ifdef __cplusplus
extern "C" {
#endif

/* After run_take_length. Dies (EXIT_CONFIG) naming the key and what to set instead. */
void run_check_idle(Run *r);

#ifdef __cplusplus
}
#endif
#endif
