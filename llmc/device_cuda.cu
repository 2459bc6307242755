// device_cuda -- one CUDA GPU behind the Device interface: its memory, one stream that orders all
// work, and the cuBLASLt handle. Holds no kernel; what the ops compute is in ops/*.cu.
#include "device_cuda.cuh"

#include <cstdlib>
#include <cstring>

#include "device_facts.h"

// What is uploaded passes through pinned host memory: two buffers in turn, each filled from its
// beginning once the copies out of it are done. 4 MiB are 524,288 tokens with their targets: so far
// the host, which fills one buffer, may be ahead of the device, which reads the other.
enum { NUM_UPLOAD_BUFFERS = 2, UPLOAD_BYTES = 4 << 20, UPLOAD_ALIGNMENT = 256 };
typedef struct {
    char *data[NUM_UPLOAD_BUFFERS];          // UPLOAD_BYTES each
    cudaEvent_t taken[NUM_UPLOAD_BUFFERS];   // after the last copy out of it
    int turn;                                // the one that is being filled
    size_t used;                             // bytes of it
} UploadBuffers;

// What is read beside the work comes over a stream and through a pinned buffer of its own. At
// 50 GB/s 4 MiB take 80 us, beside which a copy's start does not count.
enum { BESIDE_BYTES = 4 << 20 };
typedef struct {
    cudaStream_t stream;
    char *pinned;   // BESIDE_BYTES
} BesideReader;

typedef struct {
    int ordinal;
    cudaStream_t stream;
    UploadBuffers uploads;
    BesideReader beside;
    cublasLtHandle_t cublaslt;
    void *workspace;          // GEMM_WORKSPACE_BYTES
    DeviceScalars *scalars;   // device memory
    DeviceAttachment attachments[NUM_ATTACHMENTS];
} CudaDevice;

// NVIDIA's cuBLAS documentation recommends 32 MiB for Hopper and Blackwell. A weight gradient whose
// K is split keeps an f32 copy of itself for each part: of 3072 x 1024 in four parts (350M) 48 MiB,
// of 3840 x 1280 (774M) 75 MiB.
static const size_t GEMM_WORKSPACE_BYTES = (size_t)128 << 20;

// Compute capabilities with FP4 tensor cores (PTX ISA: block-scaled mma of e2m1).
static const int fp4_capabilities[] = {100, 103, 120, 121};

// --- errors ---

void cuda_check(cudaError_t status, const char *call, const char *file, int line) {
    if (status == cudaSuccess) return;
    ExitCode code = status == cudaErrorMemoryAllocation ? EXIT_OOM : EXIT_DEVICE;
    die(code, "CUDA call failed at %s:%d: %s: %s (%s)", file, line, call,
        cudaGetErrorString(status), cudaGetErrorName(status));
}

void cublas_check(cublasStatus_t status, const char *call, const char *file, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    ExitCode code = status == CUBLAS_STATUS_ALLOC_FAILED ? EXIT_OOM : EXIT_DEVICE;
    die(code, "cuBLAS call failed at %s:%d: %s: %s", file, line, call,
        cublasLtGetStatusString(status));
}

// --- what the ops ask for ---

static CudaDevice *cuda_device(Device *d) {
    CHECK(d->kind == DEVICE_CUDA, "%s is no CUDA device", d->name);
    return (CudaDevice *)d->impl;
}

cudaStream_t device_cuda_stream(Device *d) { return cuda_device(d)->stream; }

cublasLtHandle_t device_cuda_cublaslt(Device *d) { return cuda_device(d)->cublaslt; }

void *device_cuda_workspace(Device *d, size_t *bytes) {
    *bytes = GEMM_WORKSPACE_BYTES;
    return cuda_device(d)->workspace;
}

DeviceScalars *device_cuda_scalars(Device *d) { return cuda_device(d)->scalars; }

DeviceAttachment *device_cuda_attachment(Device *d, AttachmentId id) {
    return &cuda_device(d)->attachments[id];
}

// --- the Device interface ---

static void *cuda_alloc(Device *d, size_t bytes) {
    (void)d;
    void *p = NULL;
    cudaError_t status = cudaMalloc(&p, bytes ? bytes : 1);
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();   // not sticky: the caller reports it with what was asked for
        return NULL;
    }
    CUDA_CHECK(status);
    return p;
}

static void cuda_free(Device *d, void *p) {
    (void)d;
    CUDA_CHECK(cudaFree(p));
}

// The part of the buffers that comes next; *bytes becomes its size, where that is less. Waits only
// where the copies out of a buffer are not done when its turn comes again.
static char *next_upload(UploadBuffers *u, size_t *bytes) {
    if (u->used == UPLOAD_BYTES) {
        u->turn = (u->turn + 1) % NUM_UPLOAD_BUFFERS;
        u->used = 0;
        CUDA_CHECK(cudaEventSynchronize(u->taken[u->turn]));   // of a new event: returns at once
    }
    char *part = u->data[u->turn] + u->used;
    *bytes = (size_t)min_i64((int64_t)*bytes, (int64_t)(UPLOAD_BYTES - u->used));
    u->used += (size_t)round_up((int64_t)*bytes, UPLOAD_ALIGNMENT);
    return part;
}

// From the caller's own pageable memory, CUDA may first wait for all work queued before (CUDA
// runtime API, "API synchronization behavior"): the device would stand idle after each micro-step.
static void cuda_upload(Device *d, void *dst, const void *host, size_t bytes) {
    CudaDevice *c = cuda_device(d);
    for (size_t done = 0; done < bytes;) {
        size_t count = bytes - done;
        char *part = next_upload(&c->uploads, &count);
        memcpy(part, (const char *)host + done, count);
        CUDA_CHECK(
            cudaMemcpyAsync((char *)dst + done, part, count, cudaMemcpyHostToDevice, c->stream));
        CUDA_CHECK(cudaEventRecord(c->uploads.taken[c->uploads.turn], c->stream));
        done += count;
    }
}

static void cuda_download(Device *d, void *host, const void *src, size_t bytes) {
    cudaStream_t stream = device_cuda_stream(d);
    CUDA_CHECK(cudaMemcpyAsync(host, src, bytes, cudaMemcpyDeviceToHost, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
}

static void cuda_download_beside(Device *d, void *host, const void *src, size_t bytes) {
    CudaDevice *c = cuda_device(d);
    CUDA_CHECK(cudaSetDevice(c->ordinal));   // each thread has a current device of its own
    for (size_t done = 0; done < bytes;) {
        size_t count = (size_t)min_i64((int64_t)(bytes - done), BESIDE_BYTES);
        CUDA_CHECK(cudaMemcpyAsync(c->beside.pinned, (const char *)src + done, count,
                                   cudaMemcpyDeviceToHost, c->beside.stream));
        CUDA_CHECK(cudaStreamSynchronize(c->beside.stream));
        memcpy((char *)host + done, c->beside.pinned, count);
        done += count;
    }
}

static void cuda_copy(Device *d, void *dst, const void *src, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, device_cuda_stream(d)));
}

static void cuda_copy_rows(Device *d, void *dst, size_t dst_stride, const void *src,
                           size_t src_stride, size_t bytes, int64_t rows) {
    CUDA_CHECK(cudaMemcpy2DAsync(dst, dst_stride, src, src_stride, bytes, (size_t)rows,
                                 cudaMemcpyDeviceToDevice, device_cuda_stream(d)));
}

static void cuda_zero(Device *d, void *dst, size_t bytes) {
    CUDA_CHECK(cudaMemsetAsync(dst, 0, bytes, device_cuda_stream(d)));
}

static void cuda_synchronize(Device *d) {
    CUDA_CHECK(cudaStreamSynchronize(device_cuda_stream(d)));
}

static void cuda_memory(Device *d, size_t *free_bytes, size_t *total_bytes) {
    (void)d;
    CUDA_CHECK(cudaMemGetInfo(free_bytes, total_bytes));
}

// Recordings are CUDA graphs. Thread-local: calls of another thread, such as NCCL, do not end them.
static void cuda_record_begin(Device *d) {
    CUDA_CHECK(cudaStreamBeginCapture(device_cuda_stream(d), cudaStreamCaptureModeThreadLocal));
}

static DeviceRecording *cuda_record_end(Device *d) {
    cudaGraph_t graph;
    cudaGraphExec_t recording;
    CUDA_CHECK(cudaStreamEndCapture(device_cuda_stream(d), &graph));
    CUDA_CHECK(cudaGraphInstantiate(&recording, graph, 0));
    CUDA_CHECK(cudaGraphDestroy(graph));
    return (DeviceRecording *)recording;
}

static void cuda_replay(Device *d, DeviceRecording *recording) {
    CUDA_CHECK(cudaGraphLaunch((cudaGraphExec_t)recording, device_cuda_stream(d)));
}

static void cuda_forget(Device *d, DeviceRecording *recording) {
    cuda_synchronize(d);
    CUDA_CHECK(cudaGraphExecDestroy((cudaGraphExec_t)recording));
}

static void close_uploads(UploadBuffers *u) {
    for (int i = 0; i < NUM_UPLOAD_BUFFERS; i++) {
        CUDA_CHECK(cudaEventDestroy(u->taken[i]));
        CUDA_CHECK(cudaFreeHost(u->data[i]));
    }
}

static void cuda_close(Device *d) {
    CudaDevice *c = cuda_device(d);
    CUDA_CHECK(cudaStreamSynchronize(c->stream));
    for (int i = 0; i < NUM_ATTACHMENTS; i++) {
        if (c->attachments[i].data) c->attachments[i].destroy(c->attachments[i].data);
    }
    CUDA_CHECK(cudaFreeHost(c->beside.pinned));
    CUDA_CHECK(cudaStreamDestroy(c->beside.stream));
    close_uploads(&c->uploads);
    CUDA_CHECK(cudaFree(c->scalars));
    CUDA_CHECK(cudaFree(c->workspace));
    CUBLAS_CHECK(cublasLtDestroy(c->cublaslt));
    CUDA_CHECK(cudaStreamDestroy(c->stream));
    free(c);
    free(d);
}

// --- opening ---

static int has_fp4_units(int compute_capability) {
    for (int i = 0; i < ARRAY_LEN(fp4_capabilities); i++) {
        if (fp4_capabilities[i] == compute_capability) return 1;
    }
    return 0;
}

/* Name and abilities of the GPU; dies when the program has no code for it. */
static void describe_gpu(Device *d, int ordinal) {
    cudaDeviceProp prop;
    CUDA_CHECK(cudaGetDeviceProperties(&prop, ordinal));
    snprintf(d->name, sizeof(d->name), "%.*s", (int)sizeof(d->name) - 1, prop.name);
    d->compute_capability = prop.major * 10 + prop.minor;
    if (d->compute_capability < 80)
        die(EXIT_DEVICE,
            "GPU %d (%s) has compute capability %d.%d; BF16 tensor cores need 8.0 or newer: choose "
            "another GPU or run with device=cpu",
            ordinal, d->name, prop.major, prop.minor);
    for (int i = 0; i < (int)sizeof(prop.uuid.bytes); i++)
        snprintf(d->uuid + 2 * i, 3, "%02x", (unsigned char)prop.uuid.bytes[i]);
    d->native_fp4 = has_fp4_units(d->compute_capability);
    d->native_fp8 = d->compute_capability >= 89;
    d->num_threads = prop.multiProcessorCount;
    d->peak_bf16_flops = device_peak_bf16(d->name);
}

/* "driver 13.0, runtime 13.0, cuBLASLt 13.1.0". */
static void describe_libraries(Device *d) {
    int driver, runtime, cublaslt = (int)cublasLtGetVersion();
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
    snprintf(d->libraries, sizeof(d->libraries), "driver %d.%d, runtime %d.%d, cuBLASLt %d.%d.%d",
             driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
             cublaslt / 10000, cublaslt % 10000 / 100, cublaslt % 100);
}

static void open_uploads(UploadBuffers *u) {
    for (int i = 0; i < NUM_UPLOAD_BUFFERS; i++) {
        CUDA_CHECK(cudaMallocHost((void **)&u->data[i], UPLOAD_BYTES));
        CUDA_CHECK(cudaEventCreateWithFlags(&u->taken[i], cudaEventDisableTiming));
    }
}

static CudaDevice *open_libraries(int ordinal) {
    CudaDevice *c = (CudaDevice *)xmalloc(sizeof(CudaDevice));
    c->ordinal = ordinal;
    CUDA_CHECK(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
    open_uploads(&c->uploads);
    CUDA_CHECK(cudaStreamCreateWithFlags(&c->beside.stream, cudaStreamNonBlocking));
    CUDA_CHECK(cudaMallocHost((void **)&c->beside.pinned, BESIDE_BYTES));
    CUBLAS_CHECK(cublasLtCreate(&c->cublaslt));
    CUDA_CHECK(cudaMalloc(&c->workspace, GEMM_WORKSPACE_BYTES));
    CUDA_CHECK(cudaMalloc(&c->scalars, sizeof(DeviceScalars)));
    DeviceScalars scalars = {0.0f, 0.0f, 1.0f};
    CUDA_CHECK(cudaMemcpy(c->scalars, &scalars, sizeof(scalars), cudaMemcpyHostToDevice));
    // A copy on the default stream from pageable memory may still be under way when it returns,
    // and this stream does not wait for that one.
    CUDA_CHECK(cudaDeviceSynchronize());
    return c;
}

int device_cuda_count(void) {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError();   // no driver or no GPU is an answer here, not an error of a later call
    return 0;
}

/* The first call that makes a context is where a GPU refuses a second process. */
static void take_gpu(int ordinal) {
    cudaError_t status = cudaSetDevice(ordinal);
    if (status == cudaSuccess) status = cudaFree(NULL);
    if (status == cudaErrorDevicesUnavailable)
        die(EXIT_DEVICE,
            "GPU %d is taken: it admits one process (compute mode exclusive), and another has it; "
            "nvidia-smi shows which. Choose other GPUs by CUDA_VISIBLE_DEVICES",
            ordinal);
    CUDA_CHECK(status);
}

Device *device_cuda_open(int ordinal) {
    int count = device_cuda_count();
    if (ordinal < 0 || ordinal >= count)
        die(EXIT_DEVICE, "there is no GPU %d: CUDA finds %d (is the driver loaded?)", ordinal,
            count);
    take_gpu(ordinal);
    Device *d = (Device *)xmalloc(sizeof(Device));
    d->kind = DEVICE_CUDA;
    describe_gpu(d, ordinal);
    describe_libraries(d);
    d->impl = open_libraries(ordinal);
    d->alloc = cuda_alloc;
    d->free = cuda_free;
    d->upload = cuda_upload;
    d->download = cuda_download;
    d->download_beside = cuda_download_beside;
    d->copy = cuda_copy;
    d->copy_rows = cuda_copy_rows;
    d->zero = cuda_zero;
    d->synchronize = cuda_synchronize;
    d->memory = cuda_memory;
    d->record_begin = cuda_record_begin;
    d->record_end = cuda_record_end;
    d->replay = cuda_replay;
    d->forget = cuda_forget;
    d->close = cuda_close;
    return d;
}
