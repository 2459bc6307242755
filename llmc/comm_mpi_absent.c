/* comm_mpi_absent -- in the place of comm_mpi.c in a build without MPI: says so. */
#include "comm_transport.h"
#include "common.h"

Transport *transport_mpi_open(const Launch *launch) {
    die(EXIT_CONFIG,
        "started by %s, but this build has no MPI: each process would train alone. "
        "Install libopenmpi-dev and build again, or set parallel.rendezvous=file to do without MPI",
        launch->by);
}
