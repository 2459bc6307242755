/*
comm -- ranks and the collectives between them. Counts are elements, never bytes. Knows dtypes, not
parameters.
  comm_host.c      ranks in host memory, and the rendezvous of GPU ranks; bytes travel over one of
    comm_mpi.c     MPI, for ranks that mpirun or srun started with it
    comm_socket.c  TCP, for ranks that were only told their number (RANK, SLURM_PROCID)
  comm_nccl.cu     ranks on GPUs; the id travels over the host communicator
  comm_watchdog.h  notices ranks that die or stand still, whatever the communicator
Without MPI or NCCL the Makefile links comm_mpi_absent.c, comm_device_host.c.
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
    const char *name;       // "none", "mpi", "sockets", "nccl"
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
    /* Tells the other ranks, which end with the same code and the message, or has MPI end them.
       Returns: the caller ends itself. */
    void (*abort)(Comm *, int exit_code, const char *message);
    void (*close)(Comm *);
};

// how ranks find each other; auto: as what started them suggests
typedef enum { RENDEZVOUS_AUTO, RENDEZVOUS_MPI, RENDEZVOUS_FILE, NUM_RENDEZVOUS } Rendezvous;
extern const char *const rendezvous_names[NUM_RENDEZVOUS];

typedef struct {
    Rendezvous rendezvous;
    const char *file;        // on a file system that all ranks see; "": one in `directory`
    const char *directory;   // is made when needed
    const char *interface;   // name or IPv4 address that other ranks reach this one by; "": any
    double timeout_s;        // for ranks to come, and until the watchdog ends them; 0: for ever
} CommOptions;

/* The ranks of this job, in host memory; NULL takes defaults. What started this process says how
   many there are: mpirun (MPI is initialised), RANK and WORLD_SIZE, Slurm; otherwise it is one rank
   and nothing is started. From here on, with several ranks, die() ends all of them, and the
   watchdog runs. Dies with EXIT_CONFIG where what started it contradicts itself or needs an MPI
   that this build does not have, with EXIT_DEVICE where ranks do not come; all say which. */
Comm *comm_host_open(const CommOptions *options);
/* Rank 0's text on every rank; caller frees. `text` counts on rank 0 only. */
char *comm_share_text(Comm *host, const char *text);
/* Blocks of equal size, one of each rank: rank r's lies at data + r * bytes, and afterwards does so
   on every rank. */
void comm_gather_blocks(Comm *host, void *data, size_t bytes);
/* The same ranks for device memory: the host communicator itself on a CPU, NCCL on a GPU (never
   started for one rank). Dies with EXIT_DEVICE naming the rank. */
Comm *comm_device_open(Comm *host, Device *device);

#ifdef __cplusplus
}
#endif
#endif
