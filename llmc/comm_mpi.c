/*
comm_mpi -- the transport of ranks that MPI started. Only copies bytes: sums are comm_host.c's, so
that their order does not depend on the MPI library.
*/
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "comm_transport.h"
#include "common.h"

static void mpi_check(int status, const char *call) {
    if (status == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(status, text, &length);
    die(EXIT_DEVICE, "%s failed: %.*s", call, length, text);
}
#define MPI_CHECK(call) mpi_check((call), #call)

static MPI_Datatype type_of(int unit) {
    return unit == 4 ? MPI_UINT32_T : unit == 2 ? MPI_UINT16_T : MPI_UINT8_T;
}

static void mpi_exchange(Transport *t, const void *send, Pieces out, void *receive, Pieces in,
                         int unit) {
    MPI_Datatype type = type_of(unit);
    (void)t;
    MPI_CHECK(MPI_Alltoallv(send, out.counts, out.starts, type, receive, in.counts, in.starts, type,
                            MPI_COMM_WORLD));
}

static void mpi_gather(Transport *t, void *data, Pieces parts, int unit) {
    (void)t;
    MPI_CHECK(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, parts.counts, parts.starts,
                             type_of(unit), MPI_COMM_WORLD));
}

static void mpi_broadcast(Transport *t, void *data, int bytes) {
    (void)t;
    MPI_CHECK(MPI_Bcast(data, bytes, MPI_BYTE, 0, MPI_COMM_WORLD));
}

static void mpi_barrier(Transport *t) {
    (void)t;
    MPI_CHECK(MPI_Barrier(MPI_COMM_WORLD));
}

static void mpi_abort(Transport *t, int exit_code) {
    (void)t;
    MPI_Abort(MPI_COMM_WORLD, exit_code);
}

static void mpi_close(Transport *t) {
    MPI_CHECK(MPI_Finalize());
    free(t);
}

/* mpirun and the library that this program was linked with may be of two MPIs: then each process
   believes that it is alone. */
static void refuse_foreign_mpi(const Transport *t, const Launch *launch) {
    if (launch->size == 0 || launch->size == t->size) return;
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(library, &length);
    die(EXIT_DEVICE,
        "%s started %d ranks, but this program's MPI (%.*s) sees %d: what started them "
        "is of another MPI. Start with the mpirun of that library, build again with the mpicc of "
        "the other, or set parallel.rendezvous=file to do without MPI",
        launch->by, launch->size, (int)strcspn(library, ",\n"), library, t->size);
}

Transport *transport_mpi_open(const Launch *launch) {
    int provided;
    Transport *t = (Transport *)xmalloc(sizeof(Transport));
    t->name = "mpi";
    t->exchange = mpi_exchange;
    t->gather = mpi_gather;
    t->broadcast = mpi_broadcast;
    t->barrier = mpi_barrier;
    t->abort = mpi_abort;
    t->close = mpi_close;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
        die(EXIT_DEVICE, "MPI_Init_thread failed");
    // Errors come back as codes, so that die() can name the rank.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &t->rank));
    MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &t->size));
    refuse_foreign_mpi(t, launch);

    MPI_Comm host;
    MPI_CHECK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host));
    MPI_CHECK(MPI_Comm_rank(host, &t->local_rank));
    MPI_CHECK(MPI_Comm_free(&host));
    return t;
}
