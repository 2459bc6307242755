/*
gemm_cache -- the algorithms of a run's GEMMs: from the checkpoint that it goes on from, else from a
file of earlier runs on the same device with the same libraries, else by measurement; on all ranks
those of rank 0. Knows texts of algorithms, not what is in them that a library would.

Which algorithm computes a product decides the order of its sums, and so the last bits of the
losses. Measurements differ from one to the next: two runs have equal losses where they have equal
algorithms, which the file and the checkpoint are for.
  tests     test_gemm_cache.c
*/
#ifndef LLMC_GEMM_CACHE_H
#define LLMC_GEMM_CACHE_H

#include "comm.h"
#include "gemm_rates.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the cache has for this device; NULL for nothing. Caller frees. */
char *gemm_cache_read(const Device *d);
/* Adds what was measured of these algorithms to the file, in place of what it has for the same
   products. The newest 2048 stay; what other processes add meanwhile does too. */
void gemm_cache_merge(const Device *d, const char *text);

/* Settles the algorithms of a training run with micro-batches of `tokens`, and measures its rates:
   after model_measure and before the model's memory is taken. All ranks call it; `checkpoint_text`
   is that of checkpoint_gemm_algorithms, or NULL. Returns rank 0's gemm_rates_measure, NULL on the
   others and on a CPU, where nothing is done. Caller frees. */
GemmRate *gemm_cache_prepare(Model *m, int64_t tokens, Comm *host, const char *checkpoint_text);

#ifdef __cplusplus
}
#endif
#endif
