/*
comm_none -- the host communicator of a build without MPI: one rank, every collective the identity.
*/
#include <stdlib.h>
#include <unistd.h>

#include "comm.h"
#include "common.h"

static void none_all_reduce(Comm *c, float *data, int64_t count, CommOp op) {
    (void)c, (void)data, (void)count, (void)op;
}

static void none_parts(Comm *c, void *data, DType dtype, const int64_t *cuts) {
    (void)c, (void)data, (void)dtype, (void)cuts;
}

static void none_broadcast(Comm *c, void *data, DType dtype, int64_t count) {
    (void)c, (void)data, (void)dtype, (void)count;
}

static void none_wait(Comm *c) { (void)c; }

static void none_abort(Comm *c, int exit_code) {
    (void)c;
    _exit(exit_code);
}

static void none_close(Comm *c) { free(c); }

/* Where launchers tell a process how many there are: Open MPI, then MPICH, Intel MPI and Slurm. */
static int launched_ranks(void) {
    static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    for (int i = 0; i < ARRAY_LEN(variables); i++) {
        const char *value = getenv(variables[i]);
        if (value) return atoi(value);
    }
    return 1;
}

Comm *comm_host_open(void) {
    int ranks = launched_ranks();
    if (ranks > 1) {
        die(EXIT_CONFIG,
            "started as one of %d ranks, but this build has no MPI: each would train alone. "
            "Install libopenmpi-dev and build again, or start one process.",
            ranks);
    }
    Comm *c = (Comm *)xmalloc(sizeof(Comm));
    c->name = "none";
    c->size = 1;
    c->all_reduce = none_all_reduce;
    c->reduce_scatter = none_parts;
    c->all_gather = none_parts;
    c->broadcast = none_broadcast;
    c->wait = none_wait;
    c->barrier = none_wait;
    c->abort = none_abort;
    c->close = none_close;
    return c;
}
