// comm_nccl -- ranks on GPUs. Collectives run on a stream of their own, beside the device's: each
// begins after what the device has queued so far, and `wait` puts the device's later work behind
// all of them. Only barrier waits on the host. The id of the communicator travels over the host
// communicator.
#include <nccl.h>
#include <cstdlib>

#include "comm.h"
#include "comm_watchdog.h"
#include "device_cuda.cuh"

typedef struct {
    Comm *host;   // not owned
    Device *device;
    ncclComm_t handle;
    cudaStream_t stream;
    cudaEvent_t ready, done;   // of the device's work so far, of the collectives so far
} NcclComm;

static void nccl_check(ncclResult_t status, const char *call) {
    if (status == ncclSuccess) return;
    // Most often because another rank has died, which the watchdog says with its name.
    watchdog_peer_lost();
    die(EXIT_DEVICE, "%s failed: %s: %s", call, ncclGetErrorString(status),
        ncclGetLastError(NULL));
}
#define NCCL_CHECK(call) nccl_check((call), #call)

/* The stream of a collective that reads what the device has queued so far. */
static cudaStream_t begin(NcclComm *n, const char *collective, int64_t count) {
    watchdog_begin(collective, count);
    watchdog_queued();
    CUDA_CHECK(cudaEventRecord(n->ready, device_cuda_stream(n->device)));
    CUDA_CHECK(cudaStreamWaitEvent(n->stream, n->ready, 0));
    return n->stream;
}

static void nccl_wait(Comm *c) {
    NcclComm *n = (NcclComm *)c->impl;
    CUDA_CHECK(cudaEventRecord(n->done, n->stream));
    CUDA_CHECK(cudaStreamWaitEvent(device_cuda_stream(n->device), n->done, 0));
}

static ncclDataType_t nccl_type(DType dtype) {
    return dtype == DT_F32 ? ncclFloat : dtype == DT_BF16 ? ncclBfloat16 : ncclUint8;
}

static void nccl_all_reduce(Comm *c, float *data, int64_t count, CommOp op) {
    NcclComm *n = (NcclComm *)c->impl;
    NCCL_CHECK(ncclAllReduce(data, data, (size_t)count, ncclFloat,
                                op == COMM_SUM ? ncclSum : ncclMax, n->handle,
                                begin(n, "all_reduce", count)));
}

/* Parts of one size, in order, are what NCCL's own collectives take. */
static int equal_parts(const Comm *c, const int64_t *cuts) {
    for (int r = 1; r < c->size; r++)
        if (cuts[r + 1] - cuts[r] != cuts[1] - cuts[0]) return 0;
    return 1;
}

static char *part(void *data, DType dtype, const int64_t *cuts, int rank) {
    return (char *)data + dtype_bytes(dtype, cuts[rank]);
}

static void nccl_reduce_scatter(Comm *c, void *data, DType dtype, const int64_t *cuts) {
    NcclComm *n = (NcclComm *)c->impl;
    CHECK(dtype == DT_F32 || dtype == DT_BF16, "sums of %s", dtype_info[dtype].name);
    cudaStream_t stream = begin(n, "reduce_scatter", cuts[c->size] - cuts[0]);
    if (equal_parts(c, cuts)) {
        NCCL_CHECK(ncclReduceScatter(part(data, dtype, cuts, 0),
                                        part(data, dtype, cuts, c->rank),
                                        (size_t)(cuts[1] - cuts[0]), nccl_type(dtype), ncclSum,
                                        n->handle, stream));
        return;
    }
    NCCL_CHECK(ncclGroupStart());
    for (int r = 0; r < c->size; r++) {
        size_t count = (size_t)(cuts[r + 1] - cuts[r]);
        char *at = part(data, dtype, cuts, r);
        if (count > 0)
            NCCL_CHECK(ncclReduce(at, at, count, nccl_type(dtype), ncclSum, r, n->handle,
                                     stream));
    }
    NCCL_CHECK(ncclGroupEnd());
}

static void nccl_all_gather(Comm *c, void *data, DType dtype, const int64_t *cuts) {
    NcclComm *n = (NcclComm *)c->impl;
    cudaStream_t stream = begin(n, "all_gather", cuts[c->size] - cuts[0]);
    if (equal_parts(c, cuts)) {
        NCCL_CHECK(ncclAllGather(part(data, dtype, cuts, c->rank), part(data, dtype, cuts, 0),
                                    dtype_bytes(dtype, cuts[1] - cuts[0]), ncclUint8, n->handle,
                                    stream));
        return;
    }
    NCCL_CHECK(ncclGroupStart());
    for (int r = 0; r < c->size; r++) {
        size_t bytes = dtype_bytes(dtype, cuts[r + 1] - cuts[r]);
        char *at = part(data, dtype, cuts, r);
        if (bytes > 0)
            NCCL_CHECK(ncclBroadcast(at, at, bytes, ncclUint8, r, n->handle, stream));
    }
    NCCL_CHECK(ncclGroupEnd());
}

static void nccl_broadcast(Comm *c, void *data, DType dtype, int64_t count) {
    NcclComm *n = (NcclComm *)c->impl;
    NCCL_CHECK(ncclBroadcast(data, data, dtype_bytes(dtype, count), ncclUint8, 0, n->handle,
                                begin(n, "broadcast", count)));
}

static void nccl_barrier(Comm *c) {
    NcclComm *n = (NcclComm *)c->impl;
    nccl_wait(c);
    n->device->synchronize(n->device);
    n->host->barrier(n->host);
}

static void nccl_abort(Comm *c, int exit_code, const char *message) {
    NcclComm *n = (NcclComm *)c->impl;
    n->host->abort(n->host, exit_code, message);
}

/* Of a kernel that waits for a rank that is no more, NCCL's own threads may know. */
static const char *nccl_fault(void *impl) {
    ncclResult_t status = ncclSuccess;
    if (ncclCommGetAsyncError(((NcclComm *)impl)->handle, &status) != ncclSuccess) return NULL;
    int fine = status == ncclSuccess || status == ncclInProgress;
    return fine ? NULL : ncclGetErrorString(status);
}

/* Ends kernels that would wait for ever, so that the process can end. */
static void nccl_stop(void *impl) { ncclCommAbort(((NcclComm *)impl)->handle); }

static void nccl_close(Comm *c) {
    NcclComm *n = (NcclComm *)c->impl;
    nccl_wait(c);
    n->device->synchronize(n->device);
    watchdog_device(NULL);
    NCCL_CHECK(ncclCommDestroy(n->handle));
    CUDA_CHECK(cudaEventDestroy(n->ready));
    CUDA_CHECK(cudaEventDestroy(n->done));
    CUDA_CHECK(cudaStreamDestroy(n->stream));
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
    c->reduce_scatter = nccl_reduce_scatter;
    c->all_gather = nccl_all_gather;
    c->broadcast = nccl_broadcast;
    c->wait = nccl_wait;
    c->barrier = nccl_barrier;
    c->abort = nccl_abort;
    c->close = nccl_close;
    n->host = host;
    n->device = device;

    // The highest priority: a collective that has its data is what other ranks wait for.
    int lowest, highest;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA_CHECK(cudaStreamCreateWithPriority(&n->stream, cudaStreamNonBlocking, highest));
    CUDA_CHECK(cudaEventCreateWithFlags(&n->ready, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&n->done, cudaEventDisableTiming));

    ncclUniqueId id;
    if (host->rank == 0) NCCL_CHECK(ncclGetUniqueId(&id));
    host->broadcast(host, &id, DT_U8, (int64_t)sizeof(id));
    NCCL_CHECK(ncclCommInitRank(&n->handle, c->size, id, c->rank));
    WatchdogDevice watched = {n, nccl_fault, nccl_stop};
    watchdog_device(&watched);
    return c;
}
