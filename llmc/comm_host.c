/*
comm_host -- collectives in host memory, over whatever carries bytes between the ranks.

Sums have one order, rank 0 + rank 1 + ..., whatever the transport, the message size or the arrival
of messages: every rank receives its slice of the data from all others, adds it up in rank order,
and the finished slices are gathered. All ranks end with the same bits. This moves as many bytes as
a ring, and leaves to the transport only copying.
*/
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm_transport.h"
#include "comm_watchdog.h"
#include "common.h"

enum {
    REDUCE_CHUNK = 1 << 20,     // elements a message, and of the staging area: 4 MiB
    BROADCAST_CHUNK = 1 << 26   // bytes
};

typedef struct {
    Transport *transport;
    void *staging;       // (size, slice): every rank's copy of this rank's slice
    Pieces parts, own;   // of every rank; this rank's, once for each sender, within staging
    int64_t *cuts;       // [size + 1] of an all-reduce, or counted in bytes
} HostComm;

/* NaN wins a maximum, as it does a sum: a rank that diverged must not be hidden by the others. */
static float combine(float a, float b, CommOp op) {
    if (op == COMM_SUM) return a + b;
    return (b > a || isnan(b)) && !isnan(a) ? b : a;
}

/* Piece `index` of every rank's part, at most `most` elements each, into m->parts, which count from
   *base. Returns 0 when no rank has any left. */
static int take_pieces(Comm *c, const int64_t *cuts, int64_t index, int64_t most, int64_t *base) {
    HostComm *m = (HostComm *)c->impl;
    int any = 0;
    *base = -1;
    for (int r = 0; r < c->size; r++) {
        int64_t begin = min_i64(cuts[r] + index * most, cuts[r + 1]);
        m->parts.counts[r] = (int)min_i64(most, cuts[r + 1] - begin);
        any |= m->parts.counts[r] > 0;
        if (*base < 0) *base = begin;
        CHECK(begin - *base <= INT32_MAX, "parts of a collective that begin %lld elements apart",
              (long long)(begin - *base));
        m->parts.starts[r] = (int)(begin - *base);
    }
    return any;
}

/* The copies of this rank's piece, in staging, to their sum or maximum in rank order; sums of bf16
   are f32 until the end. */
static void combine_copies(Comm *c, void *out, DType dtype, int count, CommOp op) {
    const HostComm *m = (const HostComm *)c->impl;
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
    HostComm *m = (HostComm *)c->impl;
    CHECK(dtype == DT_F32 || dtype == DT_BF16, "sums of %s", dtype_info[dtype].name);
    int unit = (int)dtype_bytes(dtype, 1);
    int64_t most = ceil_div(REDUCE_CHUNK, c->size), base;
    for (int64_t index = 0; take_pieces(c, cuts, index, most, &base); index++) {
        int own = m->parts.counts[c->rank];
        for (int r = 0; r < c->size; r++) {
            m->own.counts[r] = own;
            m->own.starts[r] = r * own;
        }
        char *from = (char *)data + base * unit;
        m->transport->exchange(m->transport, from, m->parts, m->staging, m->own, unit);
        combine_copies(c, from + (int64_t)m->parts.starts[c->rank] * unit, dtype, own, op);
    }
}

static void gather_parts(Comm *c, void *data, int unit, const int64_t *cuts) {
    HostComm *m = (HostComm *)c->impl;
    int64_t base;
    for (int64_t index = 0; take_pieces(c, cuts, index, REDUCE_CHUNK, &base); index++)
        m->transport->gather(m->transport, (char *)data + base * unit, m->parts, unit);
}

static void host_reduce_scatter(Comm *c, void *data, DType dtype, const int64_t *cuts) {
    if (c->size == 1) return;
    watchdog_begin("reduce_scatter", cuts[c->size] - cuts[0]);
    reduce_parts(c, data, dtype, cuts, COMM_SUM);
    watchdog_end();
}

static void host_all_gather(Comm *c, void *data, DType dtype, const int64_t *cuts) {
    HostComm *m = (HostComm *)c->impl;
    if (c->size == 1) return;
    watchdog_begin("all_gather", cuts[c->size] - cuts[0]);
    if (dtype == DT_F32 || dtype == DT_BF16) {
        gather_parts(c, data, (int)dtype_bytes(dtype, 1), cuts);
    } else {
        for (int r = 0; r <= c->size; r++) m->cuts[r] = (int64_t)dtype_bytes(dtype, cuts[r]);
        gather_parts(c, data, 1, m->cuts);
    }
    watchdog_end();
}

static void host_all_reduce(Comm *c, float *data, int64_t count, CommOp op) {
    HostComm *m = (HostComm *)c->impl;
    if (c->size == 1) return;
    watchdog_begin("all_reduce", count);
    for (int r = 0; r <= c->size; r++) m->cuts[r] = min_i64(r * ceil_div(count, c->size), count);
    reduce_parts(c, data, DT_F32, m->cuts, op);
    gather_parts(c, data, sizeof(float), m->cuts);
    watchdog_end();
}

static void host_broadcast(Comm *c, void *data, DType dtype, int64_t count) {
    Transport *t = ((HostComm *)c->impl)->transport;
    if (c->size == 1) return;
    watchdog_begin("broadcast", count);
    int64_t bytes = (int64_t)dtype_bytes(dtype, count);
    for (int64_t begin = 0; begin < bytes; begin += BROADCAST_CHUNK) {
        int chunk = (int)min_i64(BROADCAST_CHUNK, bytes - begin);
        t->broadcast(t, (char *)data + begin, chunk);
    }
    watchdog_end();
}

static void host_wait(Comm *c) { (void)c; }

static void host_barrier(Comm *c) {
    Transport *t = ((HostComm *)c->impl)->transport;
    if (c->size == 1) return;
    watchdog_begin("barrier", 0);
    t->barrier(t);
    watchdog_end();
}

static void host_abort(Comm *c, int exit_code, const char *message) {
    Transport *t = ((HostComm *)c->impl)->transport;
    if (c->size > 1 && !watchdog_tell(exit_code, message)) t->abort(t, exit_code);
}

static Comm *the_ranks;   // that die() ends

static void end_ranks(ExitCode code, const char *message) {
    if (the_ranks) the_ranks->abort(the_ranks, code, message);
}

static void host_close(Comm *c) {
    HostComm *m = (HostComm *)c->impl;
    if (c == the_ranks) the_ranks = NULL;
    if (m->transport) {
        watchdog_close(m->transport);
        m->transport->close(m->transport);
        free(m->staging);
        free(m->parts.counts);
        free(m->cuts);
    }
    free(m);
    free(c);
}

static void take_transport(Comm *c, Transport *t) {
    HostComm *m = (HostComm *)c->impl;
    c->name = t->name;
    c->rank = t->rank;
    c->size = t->size;
    c->local_rank = t->local_rank;
    size_t size = (size_t)t->size;
    m->transport = t;
    m->staging = xmalloc((size_t)ceil_div(REDUCE_CHUNK, t->size) * size * sizeof(float));
    m->cuts = (int64_t *)xmalloc((size + 1) * sizeof(int64_t));
    m->parts.counts = (int *)xmalloc(4 * size * sizeof(int));
    m->parts.starts = m->parts.counts + size;
    m->own.counts = m->parts.starts + size;
    m->own.starts = m->own.counts + size;
}

char *comm_share_text(Comm *host, const char *text) {
    int64_t bytes = host->rank == 0 ? (int64_t)strlen(text) + 1 : 0;
    host->broadcast(host, &bytes, DT_U8, (int64_t)sizeof(bytes));
    char *shared = (char *)xmalloc((size_t)bytes);
    if (host->rank == 0) memcpy(shared, text, (size_t)bytes);
    host->broadcast(host, shared, DT_U8, bytes);
    return shared;
}

void comm_gather_blocks(Comm *host, void *data, size_t bytes) {
    int64_t *cuts = (int64_t *)xmalloc(((size_t)host->size + 1) * sizeof(int64_t));
    for (int r = 0; r <= host->size; r++) cuts[r] = (int64_t)bytes * r;
    host->all_gather(host, data, DT_U8, cuts);
    free(cuts);
}

Comm *comm_host_open(const CommOptions *options) {
    static const CommOptions defaults = {RENDEZVOUS_AUTO, "", ".", "", COMM_TIMEOUT_S};
    if (!options) options = &defaults;
    Comm *c = (Comm *)xmalloc(sizeof(Comm));
    c->name = "none";
    c->size = 1;
    c->impl = xmalloc(sizeof(HostComm));
    c->all_reduce = host_all_reduce;
    c->reduce_scatter = host_reduce_scatter;
    c->all_gather = host_all_gather;
    c->broadcast = host_broadcast;
    c->wait = host_wait;
    c->barrier = host_barrier;
    c->abort = host_abort;
    c->close = host_close;
    Launch launch = launch_find(options->rendezvous);
    if (!launch.uses_mpi && launch.size == 1) return c;
    if (launch.size > 0) log_set_rank(launch.rank, launch.size);
    take_transport(c, launch.uses_mpi ? transport_mpi_open(&launch)
                                      : transport_socket_open(&launch, options));
    log_set_rank(c->rank, c->size);
    if (c->size == 1) return c;
    the_ranks = c;
    set_die_hook(end_ranks);
    watchdog_open(((HostComm *)c->impl)->transport, options);
    return c;
}
