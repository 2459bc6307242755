/*
run_idle -- keys of precision that would do nothing in this run: they are refused, since the run
would not be the one that was meant. Not here: rules and entries of the schedule that match nothing
(model.c), values that are illegal everywhere (config_check.c).
  tests     test_run_idle.c
*/
#ifndef LLMC_RUN_IDLE_H
#define LLMC_RUN_IDLE_H

#include "run.h"

#ifdef __cplusplus
extern "C" {
#endif

/* After run_take_length. Dies (EXIT_CONFIG) naming the key and what to set instead. */
void run_refuse_idle(Run *r);

#ifdef __cplusplus
}
#endif
#endif
