/*
run_record -- the directories that a training run writes: claimed for this process alone, opened as
the run's record (metrics.h and plan.txt), and closed with how it ended, also where die() ends it.
*/
#ifndef LLMC_RUN_RECORD_H
#define LLMC_RUN_RECORD_H

#include "common.h"
#include "run.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Two runs in one directory would mix their records; what a killed run left half done goes. Rank 0
   claims, all ranks wait. */
void run_claim_directories(Run *r);
/* Dies where run_claim_directories or run_record_open would for want of a directory or a reference,
   and leaves no file. */
void run_check_directories(const Run *r);
/* From r->step on. One run of a process at a time: die() completes its run.json and aborts the
   other ranks. */
void run_record_open(Run *r);
void run_record_close(Run *r, ExitCode code, const char *reason);

#ifdef __cplusplus
}
#endif
#endif
