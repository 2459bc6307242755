/*
run_checkpoint -- a run's state to and from its checkpoints: what of a Run survives beside the
tensors (step, position, tokens, the guard's windows), and whether a checkpoint may go on as this
run. Which checkpoint is meant is resume's business, the files are checkpoint's.
*/
#ifndef LLMC_RUN_CHECKPOINT_H
#define LLMC_RUN_CHECKPOINT_H

#include "run.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- saving: all ranks call these alike ---

/* Before the model takes its memory: takes that of a snapshot, where ckpt.background asks for one
   and there is room. */
void run_saver_open(Run *r);
/* Says how checkpoints will be written. */
void run_saver_describe(const Run *r);
/* Begins a checkpoint of r->step; one that is still being written is waited for. Where it cannot be
   written all ranks go on, with a warning that says why and when the next try comes. The record up
   to here reaches the disk before the checkpoint gets its name. Nothing is done where ckpt.dir has
   this step's checkpoint by this run. */
void run_save(Run *r);
/* Reports a checkpoint that has been written meanwhile. Costs nothing where none is under way. */
void run_save_poll(Run *r);
/* Waits for what is under way. Dies with EXIT_DATA when the last checkpoint was not written. */
void run_saver_finish(Run *r);
void run_saver_close(Run *r);

// --- loading ---

/* Before run_load for training: whether this run may go on from the checkpoint. Refuses another run
   (resume_compare), other data, a past that is longer than the run or in which other entries of
   precision.schedule had begun, and what checkpoint_check does; says what has changed. */
void run_rehearse_load(Run *r, const char *path);
/* The model must have its memory. With `training` also the optimizer's state. Dies as
   checkpoint_load does, for evaluation as resume_compare does, too. */
void run_load(Run *r, const char *path, int training);
/* Memory and weights for evaluation, of the checkpoint that ckpt.resume means; dies with EXIT_DATA
   where there is none. Its GEMM algorithms go on. */
void run_load_trained(Run *r);

#ifdef __cplusplus
}
#endif
#endif
