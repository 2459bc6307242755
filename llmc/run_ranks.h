/*
run_ranks -- the ranks of a run, opened, and found to be of one mind: the same program and the same
config. What may differ between hosts (threads, parallel.interface, parallel.rendezvous_file) may.
*/
#ifndef LLMC_RUN_RANKS_H
#define LLMC_RUN_RANKS_H

#include "run.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills r->host. Dies with EXIT_CONFIG, on the rank that differs from rank 0, naming the keys or
   the two programs. */
void run_open_ranks(Run *r);
/* The GPU of this rank: its local rank, or the only one that it is shown. Dies with EXIT_DEVICE
   where there are more ranks on this host than GPUs. */
int run_gpu_of_rank(const Run *r, int num_gpus);
/* Dies with EXIT_DEVICE where two ranks have one GPU. `gpu` names it within its host. */
void run_check_gpus(const Run *r, const char *gpu);

#ifdef __cplusplus
}
#endif
#endif
