/*
resume -- where ckpt.resume points, and whether the checkpoint there belongs to this run. Reads
configs and directories; the tensors are checkpoint's business.
*/
#ifndef LLMC_RESUME_H
#define LLMC_RESUME_H

#include "config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The checkpoint at a path, which may also be a run's directory; NULL where there is none. Caller
   frees. */
char *resume_at(const char *path);
/* The checkpoint that ckpt.resume means; NULL when there is nothing to resume, EXIT_DATA when a
   path has none. "never" is for training: what only looks at a model takes the newest. Caller
   frees. */
char *resume_find(const Config *c, int training);
/* Logs what has changed since the checkpoint at `path` was written. What "auto" finds may be
   another run's: then EXIT_CONFIG, with the values that tell. A path is meant, whatever changes.
   Returns 1 where operands may be others than those of the run before. */
int resume_compare(const Config *c, const char *path, int training);

#ifdef __cplusplus
}
#endif
#endif
