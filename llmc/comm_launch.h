/*
comm_launch -- what the environment says of this process: who started it, as which of how many
ranks. Opens nothing.
*/
#ifndef LLMC_COMM_LAUNCH_H
#define LLMC_COMM_LAUNCH_H

#include "comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *by;     // "mpirun", "RANK and WORLD_SIZE", "Slurm"; NULL: by nobody, one rank
    int uses_mpi;       // the ranks find each other through MPI
    int rank, size;     // size 0: only MPI knows
    int local_rank;     // -1: not said
    const char *hint;   // where the variables may mislead; "" for none
    char job[128];      // of this start of this job, where the launcher names it; else ""
} Launch;

/* Dies with EXIT_CONFIG, naming the variables, when they contradict each other. */
Launch launch_find(Rendezvous rendezvous);

#ifdef __cplusplus
}
#endif
#endif
