// comm_nccl -- ranks on GPUs. Collectives are queued on the device's stream, in order with its
// kernels; only barrier waits. The id of the communicator travels over the host communicator.
#include <nccl.h>
#include <cstdlib>

#include "comm.h"
#include "device_cuda.cuh"

typedef struct {
    Comm *host;   // not owned
    Device *device;
    ncclComm_t handle;
} NcclComm;

static void nccl_check(const Comm *c, ncclResult_t status, const char *call) {
    if (status == ncclSuccess) return;
    die(EXIT_DEVICE, "rank %d of %d: %s failed: %s: %s", c->rank, c->size, call,
        ncclGetErrorString(status), ncclGetLastError(NULL));
}
#define NCCL_CHECK(c, call) nccl_check((c), (call), #call)

static void nccl_all_reduce(Comm *c, float *data, int64_t count, CommOp op) {
    NcclComm *n = (NcclComm *)c->impl;
    NCCL_CHECK(c, ncclAllReduce(data, data, (size_t)count, ncclFloat,
                                op == COMM_SUM ? ncclSum : ncclMax, n->handle,
                                device_cuda_stream(n->device)));
}

static void nccl_broadcast(Comm *c, void *data, DType dtype, int64_t count) {
    NcclComm *n = (NcclComm *)c->impl;
    NCCL_CHECK(c, ncclBroadcast(data, data, dtype_bytes(dtype, count), ncclUint8, 0, n->handle,
                                device_cuda_stream(n->device)));
}

static void nccl_barrier(Comm *c) {
    NcclComm *n = (NcclComm *)c->impl;
    n->device->synchronize(n->device);
    n->host->barrier(n->host);
}

static void nccl_abort(Comm *c, int exit_code) {
    NcclComm *n = (NcclComm *)c->impl;
    n->host->abort(n->host, exit_code);
}

static void nccl_close(Comm *c) {
    NcclComm *n = (NcclComm *)c->impl;
    n->device->synchronize(n->device);
    NCCL_CHECK(c, ncclCommDestroy(n->handle));
    free(n);
    free(c);
}

Comm *comm_device_open(Comm *host, Device *device) {
    if (device->kind == DEVICE_CPU || host->size == 1) return host;
    Comm *c = (Comm *)xmalloc(sizeof(Comm));
    NcclComm *n = (NcclComm *)xmalloc(sizeof(NcclComm));
    c->name = "nccl";
    c->rank = host->rank;
    c->size = host->size;
    c->local_rank = host->local_rank;
    c->impl = n;
    c->all_reduce = nccl_all_reduce;
    c->broadcast = nccl_broadcast;
    c->barrier = nccl_barrier;
    c->abort = nccl_abort;
    c->close = nccl_close;
    n->host = host;
    n->device = device;

    ncclUniqueId id;
    if (host->rank == 0) NCCL_CHECK(c, ncclGetUniqueId(&id));
    host->broadcast(host, &id, DT_U8, (int64_t)sizeof(id));
    NCCL_CHECK(c, ncclCommInitRank(&n->handle, c->size, id, c->rank));
    return c;
}
