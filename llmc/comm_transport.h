/*
comm_transport -- how bytes get from rank to rank; comm_host.c makes the collectives out of it, so
that sums are the same whoever carries them. Not used by anything but comm_*.c.
  comm_mpi.c         MPI processes; comm_mpi_absent.c stands in for it in builds without MPI
  comm_socket.c      a full mesh of TCP connections
*/
#ifndef LLMC_COMM_TRANSPORT_H
#define LLMC_COMM_TRANSPORT_H

#include "comm.h"
#include "comm_launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One piece of an array for each rank: [size] elements, [size] first element. They count from an
   address that is given beside them; int, as MPI's are. */
typedef struct {
    int *counts, *starts;
} Pieces;

typedef struct Transport Transport;
struct Transport {
    const char *name;   // "mpi", "sockets"
    int rank, size, local_rank;
    void *impl;
    /* out.r of `send` goes to rank r, in.r of `receive` is what rank r has sent here. An element
       has `unit` bytes: 1, 2 or 4. The arrays do not overlap. */
    void (*exchange)(Transport *, const void *send, Pieces out, void *receive, Pieces in, int unit);
    /* In place: parts.r of data becomes what rank r has there, on every rank. */
    void (*gather)(Transport *, void *data, Pieces parts, int unit);
    void (*broadcast)(Transport *, void *data, int bytes);   // from rank 0
    void (*barrier)(Transport *);
    /* Ends the other ranks where the transport can; returns where it cannot. */
    void (*abort)(Transport *, int exit_code);
    void (*close)(Transport *);
};

/* Both die where the ranks do not come together as `launch` says. */
Transport *transport_mpi_open(const Launch *launch);
Transport *transport_socket_open(const Launch *launch, const CommOptions *options);

#ifdef __cplusplus
}
#endif
#endif
