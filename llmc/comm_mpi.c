/*
comm_mpi -- ranks as MPI processes over host memory; also the rendezvous of GPU ranks. Started
without mpirun it is one rank and MPI is not touched.

Sums have one order, rank 0 + rank 1 + ..., whatever the MPI library, the message size or the
arrival of messages: every rank receives its slice of the data from all others, adds it up in
rank order, and the finished slices are gathered. All ranks end with the same bits. This moves as
many bytes as a ring, and leaves to MPI only copying.
*/
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "common.h"

enum {
    REDUCE_CHUNK = 1 << 20,     // elements reduced at a time: bounds the staging area to 4 MiB
    BROADCAST_CHUNK = 1 << 26   // bytes; MPI counts are int
};

typedef struct {
    float *staging;    // (size, slice): every rank's copy of this rank's slice
    int *counts;       // [size] elements of each rank's slice
    int *starts;       // [size] its first element within the chunk
    int *own_counts;   // [size] this rank's slice, once per sender
    int *own_starts;   // [size] where each sender's copy lies in staging
} MpiComm;

static void mpi_check(Comm *c, int status, const char *call) {
    if (status == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(status, text, &length);
    die(EXIT_DEVICE, "rank %d of %d: %s failed: %.*s", c->rank, c->size, call, length, text);
}
#define MPI_CHECK(c, call) mpi_check((c), (call), #call)

/* NaN wins a maximum, as it does a sum: a rank that diverged must not be hidden by the others. */
static float combine(float a, float b, CommOp op) {
    if (op == COMM_SUM) return a + b;
    return (b > a || isnan(b)) && !isnan(a) ? b : a;
}

static void reduce_chunk(Comm *c, float *data, int count, CommOp op) {
    MpiComm *m = (MpiComm *)c->impl;
    int slice = (int)ceil_div(count, c->size);
    for (int r = 0; r < c->size; r++) {
        m->starts[r] = (int)min_i64((int64_t)r * slice, count);
        m->counts[r] = (int)min_i64(slice, count - m->starts[r]);
    }
    int own = m->counts[c->rank];
    for (int r = 0; r < c->size; r++) {
        m->own_counts[r] = own;
        m->own_starts[r] = r * own;
    }
    MPI_CHECK(c, MPI_Alltoallv(data, m->counts, m->starts, MPI_FLOAT, m->staging, m->own_counts,
                               m->own_starts, MPI_FLOAT, MPI_COMM_WORLD));
    float *result = data + m->starts[c->rank];
    memcpy(result, m->staging, (size_t)own * sizeof(float));
    for (int r = 1; r < c->size; r++) {
        const float *other = m->staging + (int64_t)r * own;
        for (int i = 0; i < own; i++) result[i] = combine(result[i], other[i], op);
    }
    MPI_CHECK(c, MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, m->counts, m->starts,
                                MPI_FLOAT, MPI_COMM_WORLD));
}

static void mpi_all_reduce(Comm *c, float *data, int64_t count, CommOp op) {
    if (c->size == 1) return;
    for (int64_t begin = 0; begin < count; begin += REDUCE_CHUNK) {
        reduce_chunk(c, data + begin, (int)min_i64(REDUCE_CHUNK, count - begin), op);
    }
}

static void mpi_broadcast(Comm *c, void *data, DType dtype, int64_t count) {
    if (c->size == 1) return;
    int64_t bytes = (int64_t)dtype_bytes(dtype, count);
    for (int64_t begin = 0; begin < bytes; begin += BROADCAST_CHUNK) {
        int chunk = (int)min_i64(BROADCAST_CHUNK, bytes - begin);
        MPI_CHECK(c, MPI_Bcast((char *)data + begin, chunk, MPI_BYTE, 0, MPI_COMM_WORLD));
    }
}

static void mpi_barrier(Comm *c) {
    if (c->size > 1) MPI_CHECK(c, MPI_Barrier(MPI_COMM_WORLD));
}

static void mpi_abort(Comm *c, int exit_code) {
    if (c->impl) MPI_Abort(MPI_COMM_WORLD, exit_code);
    exit(exit_code);
}

static void mpi_close(Comm *c) {
    MpiComm *m = (MpiComm *)c->impl;
    if (m) {
        MPI_CHECK(c, MPI_Finalize());
        free(m->staging);
        free(m->counts);
        free(m);
    }
    free(c);
}

/* A process that mpirun or srun started finds one of these in its environment. */
static int launched_by_mpi(void) {
    return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK") || getenv("PMI_RANK");
}

static void start_mpi(Comm *c) {
    int provided;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        die(EXIT_DEVICE, "MPI_Init_thread failed");
    }
    // Errors come back as codes, so that die() can name the rank.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_CHECK(c, MPI_Comm_rank(MPI_COMM_WORLD, &c->rank));
    MPI_CHECK(c, MPI_Comm_size(MPI_COMM_WORLD, &c->size));

    MPI_Comm host;
    MPI_CHECK(c,
              MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host));
    MPI_CHECK(c, MPI_Comm_rank(host, &c->local_rank));
    MPI_CHECK(c, MPI_Comm_free(&host));

    MpiComm *m = (MpiComm *)xmalloc(sizeof(MpiComm));
    size_t staged = (size_t)ceil_div(REDUCE_CHUNK, c->size) * (size_t)c->size;
    m->staging = (float *)xmalloc(staged * sizeof(float));
    m->counts = (int *)xmalloc(4 * (size_t)c->size * sizeof(int));
    m->starts = m->counts + c->size;
    m->own_counts = m->starts + c->size;
    m->own_starts = m->own_counts + c->size;
    c->impl = m;
}

Comm *comm_host_open(void) {
    Comm *c = (Comm *)xmalloc(sizeof(Comm));
    c->name = "mpi";
    c->size = 1;
    c->all_reduce = mpi_all_reduce;
    c->broadcast = mpi_broadcast;
    c->barrier = mpi_barrier;
    c->abort = mpi_abort;
    c->close = mpi_close;
    if (launched_by_mpi()) {
        start_mpi(c);
    } else {
        c->name = "none";
    }
    return c;
}
