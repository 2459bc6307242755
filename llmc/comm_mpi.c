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
    REDUCE_CHUNK = 1 << 20,     // elements a message, and of the staging area: 4 MiB
    BROADCAST_CHUNK = 1 << 26   // bytes; MPI counts are int
};

typedef struct {
    void *staging;     // (size, slice): every rank's copy of this rank's slice
    int *counts;       // [size] elements of each rank's slice
    int *starts;       // [size] its first element within the data
    int *own_counts;   // [size] this rank's slice, once per sender
    int *own_starts;   // [size] where each sender's copy lies in staging
    int64_t *cuts;     // [size + 1] of an all-reduce
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

static MPI_Datatype mpi_type(DType dtype) {
    return dtype == DT_F32 ? MPI_FLOAT : dtype == DT_BF16 ? MPI_UINT16_T : MPI_BYTE;
}

/* Piece `index` of every rank's part, at most `most` elements each, into counts and starts, which
   count from *base: MPI's are int. Returns 0 when no rank has any left. */
static int take_pieces(Comm *c, const int64_t *cuts, int64_t index, int64_t most, int64_t *base) {
    MpiComm *m = (MpiComm *)c->impl;
    int any = 0;
    *base = -1;
    for (int r = 0; r < c->size; r++) {
        int64_t begin = min_i64(cuts[r] + index * most, cuts[r + 1]);
        m->counts[r] = (int)min_i64(most, cuts[r + 1] - begin);
        any |= m->counts[r] > 0;
        if (*base < 0) *base = begin;
        CHECK(begin - *base <= INT32_MAX, "parts of a collective that begin %lld elements apart",
              (long long)(begin - *base));
        m->starts[r] = (int)(begin - *base);
    }
    return any;
}

/* The copies of this rank's piece, in staging, to their sum or maximum in rank order; sums of bf16
   are f32 until the end. */
static void combine_copies(Comm *c, void *out, DType dtype, int count, CommOp op) {
    const MpiComm *m = (const MpiComm *)c->impl;
    for (int i = 0; i < count; i++) {
        if (dtype == DT_F32) {
            const float *copies = (const float *)m->staging + i;
            float result = copies[0];
            for (int r = 1; r < c->size; r++)
                result = combine(result, copies[(int64_t)r * count], op);
            ((float *)out)[i] = result;
        } else {
            const bf16_t *copies = (const bf16_t *)m->staging + i;
            float result = bf16_to_f32(copies[0]);
            for (int r = 1; r < c->size; r++)
                result = combine(result, bf16_to_f32(copies[(int64_t)r * count]), op);
            ((bf16_t *)out)[i] = bf16_from_f32(result);
        }
    }
}

static void reduce_parts(Comm *c, void *data, DType dtype, const int64_t *cuts, CommOp op) {
    MpiComm *m = (MpiComm *)c->impl;
    MPI_Datatype type = mpi_type(dtype);
    CHECK(dtype == DT_F32 || dtype == DT_BF16, "sums of %s", dtype_info[dtype].name);
    int64_t most = ceil_div(REDUCE_CHUNK, c->size), base;
    for (int64_t index = 0; take_pieces(c, cuts, index, most, &base); index++) {
        int own = m->counts[c->rank];
        for (int r = 0; r < c->size; r++) {
            m->own_counts[r] = own;
            m->own_starts[r] = r * own;
        }
        char *from = (char *)data + dtype_bytes(dtype, base);
        MPI_CHECK(c, MPI_Alltoallv(from, m->counts, m->starts, type, m->staging, m->own_counts,
                                   m->own_starts, type, MPI_COMM_WORLD));
        combine_copies(c, from + dtype_bytes(dtype, m->starts[c->rank]), dtype, own, op);
    }
}

static void mpi_reduce_scatter(Comm *c, void *data, DType dtype, const int64_t *cuts) {
    if (c->size > 1) reduce_parts(c, data, dtype, cuts, COMM_SUM);
}

static void mpi_all_gather(Comm *c, void *data, DType dtype, const int64_t *cuts) {
    MpiComm *m = (MpiComm *)c->impl;
    int64_t base;
    if (c->size == 1) return;
    for (int64_t index = 0; take_pieces(c, cuts, index, REDUCE_CHUNK, &base); index++) {
        MPI_CHECK(c, MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL,
                                    (char *)data + dtype_bytes(dtype, base), m->counts, m->starts,
                                    mpi_type(dtype), MPI_COMM_WORLD));
    }
}

static void mpi_all_reduce(Comm *c, float *data, int64_t count, CommOp op) {
    MpiComm *m = (MpiComm *)c->impl;
    if (c->size == 1) return;
    for (int r = 0; r <= c->size; r++) m->cuts[r] = min_i64(r * ceil_div(count, c->size), count);
    reduce_parts(c, data, DT_F32, m->cuts, op);
    mpi_all_gather(c, data, DT_F32, m->cuts);
}

static void mpi_broadcast(Comm *c, void *data, DType dtype, int64_t count) {
    if (c->size == 1) return;
    int64_t bytes = (int64_t)dtype_bytes(dtype, count);
    for (int64_t begin = 0; begin < bytes; begin += BROADCAST_CHUNK) {
        int chunk = (int)min_i64(BROADCAST_CHUNK, bytes - begin);
        MPI_CHECK(c, MPI_Bcast((char *)data + begin, chunk, MPI_BYTE, 0, MPI_COMM_WORLD));
    }
}

static void mpi_wait(Comm *c) { (void)c; }

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
        free(m->cuts);
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
    m->staging = xmalloc(staged * sizeof(float));
    m->cuts = (int64_t *)xmalloc(((size_t)c->size + 1) * sizeof(int64_t));
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
    c->reduce_scatter = mpi_reduce_scatter;
    c->all_gather = mpi_all_gather;
    c->broadcast = mpi_broadcast;
    c->wait = mpi_wait;
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
