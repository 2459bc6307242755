/*
comm -- ranks and the collectives between them. Counts are elements, never bytes. Knows dtypes, not
parameters.
  comm_none.c  one rank: every collective is the identity
  comm_mpi.c   ranks on CPUs, and the rendezvous of GPU ranks
  comm_nccl.cu ranks on GPUs; the id travels over the host communicator
The Makefile links exactly one host communicator and one device communicator.
*/
#ifndef LLMC_COMM_H
#define LLMC_COMM_H

#include "device.h"
#include "dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { COMM_SUM, COMM_MAX } CommOp;

typedef struct Comm Comm;
struct Comm {
    const char *name;       // "none", "mpi", "nccl"
    int rank, size;
    int local_rank;         // rank among those on this host: the GPU ordinal
    void *impl;
    /* Collectives work in place on memory of the device that the communicator serves. They begin
       after what the device has queued so far; what it queues from then on may run beside them, and
       must not touch their data before `wait`. Host communicators are done when they return. */
    void (*all_reduce)(Comm *, float *data, int64_t count, CommOp op);
    /* Rank r's part of data is elements [cuts[r], cuts[r + 1]); size + 1 cuts, not falling, the
       same on every rank. Sums, in f32 or bf16: afterwards a rank's own part holds the sum over
       all ranks, the rest is undefined. */
    void (*reduce_scatter)(Comm *, void *data, DType dtype, const int64_t *cuts);
    /* Parts likewise: afterwards every rank holds each part as the rank that owns it had it. */
    void (*all_gather)(Comm *, void *data, DType dtype, const int64_t *cuts);
    /* From rank 0, `count` values of `dtype`. */
    void (*broadcast)(Comm *, void *data, DType dtype, int64_t count);
    /* What the device queues from here on comes after all collectives so far. */
    void (*wait)(Comm *);
    void (*barrier)(Comm *);
    void (*abort)(Comm *, int exit_code);   // ends every rank
    void (*close)(Comm *);
};

/* The ranks of this job, in host memory. Started by mpirun: MPI is initialised. Otherwise one rank
   and MPI is not touched. A build without MPI dies with EXIT_CONFIG when it finds itself under
   mpirun -np 2 or more. */
Comm *comm_host_open(void);
/* The same ranks for device memory: the host communicator itself on a CPU, NCCL on a GPU (never
   started for one rank). Dies with EXIT_DEVICE naming the rank. */
Comm *comm_device_open(Comm *host, Device *device);

#ifdef __cplusplus
}
#endif
#endif
