/*
parallel -- one model trained by several ranks, each on its own micro-batches: gradients are summed
bucket by bucket while backward still runs, and each rank updates what is its own (zero.h).

  parallel_open
  each step   parallel_begin, a micro-step, ...   the last one sends (from level 2 on: each one)
              parallel_step                       sums, decision, update; all ranks have the weights
A bucket is on its way from the stage that completes it until the next one is complete, or the pass
ends; then the device's work is behind it. Levels differ in who gets what, never in a sum: every
level has the same bits where a step has one micro-step; with more of them level 2 adds up sums over
ranks, the others sum up what each rank added. (NCCL may add the terms of more than two ranks in
another order for another collective.) One rank is left alone: nothing here does anything then.
  source    Rajbhandari et al. 2020, arXiv:1910.02054; Li et al. 2020, arXiv:2006.15704 section 3.2
  tests     test_parallel_zero.c
*/
#ifndef LLMC_PARALLEL_H
#define LLMC_PARALLEL_H

#include "comm.h"
#include "config.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    Comm *comm;               // of the device's memory
    Model *model;
    const Config *config;
    PassObserver observer;
    int sent;                 // the bucket that may still be on its way; -1: none
    int64_t *cuts;            // (ranks + 1) of a bucket, from its own beginning
    int64_t *codes_at;        // (buckets) of level 3: this rank's codes of each, in rank_codes
} Parallel;

/* Dies with EXIT_CONFIG on what ranks at this level of parallel.zero cannot do. */
void parallel_refuse(const Config *c, int ranks);
/* `m` after model_split. */
void parallel_open(Parallel *p, Comm *comm, Model *m, const Config *c);
void parallel_close(Parallel *p);

/* Before each micro-step. */
void parallel_begin(Parallel *p, int is_last);
/* In the place of a micro-step that this rank leaves out because it was asked to stop: takes part
   in what the others send. The gradients are of no use then. */
void parallel_pass_by(Parallel *p);
/* After the last micro-step: everything from model_finish_gradients to optimizer_step. */
void parallel_step(Parallel *p);

/* How gradients and weights travel, a line for the plan; "" for one rank. Returns buffer. */
const char *parallel_describe(Model *m, const Config *c, int accumulation, char *buffer,
                              int size);

#ifdef __cplusplus
}
#endif
#endif
