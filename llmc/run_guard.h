/*
run_guard -- what a run does about a step that the device has skipped (ops/step_state.h decides,
without asking the host): counts skips in a row and ends the run at guard.max_skips of them, or at
the first that is not finite with guard.nan=stop. For one that is not finite it finds out where it
began: the weights are what they were, so every rank computes its micro-batches again, one by one,
and looks at the residual stream and at each gradient as backward completes it. What it finds is
said and kept as a replay file, log.dir/replay_step_00000123.json:
  step, position, seed, tokens    the step from 0; first sequence of its batch; seen before
  train_loss, grad_norm, lr       of the step; null where not finite
  world_size, accumulation        ranks, and micro-batches of each
  rank, micro_batch, sequence     where it began, from 0; sequence is a position of the data order
  forward, gradient               last linear before the residual stream is not finite; the first
                                  gradient that is not, in backward's order; null: none
  sequences                       of that micro-batch: rows of token ids, batch.seq_len + 1 each
  checkpoint, config              to go on from, or null; config.resolved.json
At most 8 files a log.dir; of further steps no origin is looked for. scripts/replay.py computes the
step again from one of them.
  tests     test_program_guard.c
*/
#ifndef LLMC_RUN_GUARD_H
#define LLMC_RUN_GUARD_H

#include "run.h"

#ifdef __cplusplus
extern "C" {
#endif

/* After a step was trained and before it is counted, on every rank. Dies with EXIT_DIVERGED. */
void run_guard_step(Run *r);

#ifdef __cplusplus
}
#endif
#endif
