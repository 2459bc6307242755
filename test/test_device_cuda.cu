// test_device_cuda -- uploads of a GPU device: the bytes arrive whatever their sizes and however
// the host's memory is reused, in order with other work, and the host does not wait for the device.
#include "../llmc/device_cuda.cuh"
#include "test.h"

static Device *gpu;

enum { MIB = 1 << 20, MICRO_BATCH = 65536 * (int)sizeof(int32_t) };

/* Byte i of upload `turn`; no period of a power of two, so that parts that were swapped show. */
static uint8_t byte_of(int turn, size_t i) { return (uint8_t)(i % 251 + 7 * (size_t)turn); }

static void fill(uint8_t *host, int turn, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) host[i] = byte_of(turn, i);
}

// Ends when *go is set, or after 10 s, so that a host that waits for it finds the test failed and
// not hung. One thread.
__global__ void hold_kernel(volatile int *go) {
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (!*go && now - begin < 10000000000ull);
}

static int *go;   // pinned: read by the kernel, set by the host

static void hold_device(void) {
    *(volatile int *)go = 0;
    hold_kernel<<<1, 1, 0, device_cuda_stream(gpu)>>>(go);
    CUDA_CHECK_LAUNCH();
}

static int device_is_held(void) {
    cudaError_t status = cudaStreamQuery(device_cuda_stream(gpu));
    if (status != cudaSuccess && status != cudaErrorNotReady) CUDA_CHECK(status);
    return status == cudaErrorNotReady;
}

static void let_go(void) {
    *(volatile int *)go = 1;
    gpu->synchronize(gpu);
}

CASE(every_byte_of_every_size) {
    static const size_t sizes[] = {1,       8,           255,         256,         257,
                                   4 * MIB, 4 * MIB - 1, 4 * MIB + 1, 13 * MIB + 5};
    for (int i = 0; i < ARRAY_LEN(sizes); i++) {
        size_t bytes = sizes[i];
        uint8_t *host = (uint8_t *)xmalloc(bytes), *want = (uint8_t *)xmalloc(bytes);
        void *there = device_alloc(gpu, bytes, "test");
        fill(host, i, bytes);
        memcpy(want, host, bytes);
        gpu->upload(gpu, there, host, bytes);
        memset(host, 0, bytes);   // the device may not have read it yet
        gpu->download(gpu, host, there, bytes);
        EXPECT_BITS(host, want, bytes, "%zu bytes", bytes);
        gpu->free(gpu, there);
        free(host);
        free(want);
    }
}

/* As an optimizer step does: one host buffer, refilled at once for each of many micro-batches, more
   than both pinned buffers hold. The device has about 150 us of work for each, the host 50. */
CASE(host_memory_is_reused_at_once) {
    enum { TURNS = 100, BYTES = MICRO_BATCH + 12, WORK = 512 * MIB };
    uint8_t *want = (uint8_t *)xmalloc((size_t)TURNS * BYTES), *host = (uint8_t *)xmalloc(BYTES);
    uint8_t *there = (uint8_t *)device_alloc(gpu, (size_t)TURNS * BYTES, "test");
    void *work = device_alloc(gpu, WORK, "test");
    for (int turn = 0; turn < TURNS; turn++) fill(want + (size_t)turn * BYTES, turn, BYTES);
    for (int turn = 0; turn < TURNS; turn++) {
        gpu->zero(gpu, work, WORK);
        memcpy(host, want + (size_t)turn * BYTES, BYTES);
        gpu->upload(gpu, there + (size_t)turn * BYTES, host, BYTES);
    }
    for (int turn = 0; turn < TURNS; turn++) {
        gpu->download(gpu, host, there + (size_t)turn * BYTES, BYTES);
        EXPECT_BITS(host, want + (size_t)turn * BYTES, BYTES, "micro-batch %d", turn);
    }
    gpu->free(gpu, work);
    gpu->free(gpu, there);
    free(host);
    free(want);
}

CASE(the_host_does_not_wait) {
    enum { UPLOADS = 4 * MIB / MICRO_BATCH };
    int32_t *host = (int32_t *)xmalloc(MICRO_BATCH);
    void *there = device_alloc(gpu, MICRO_BATCH, "test");
    hold_device();
    for (int i = 0; i < UPLOADS; i++) gpu->upload(gpu, there, host, MICRO_BATCH);
    EXPECT(device_is_held(), "%d uploads waited for the work before them", (int)UPLOADS);
    let_go();
    gpu->free(gpu, there);
    free(host);
}

CASE(uploads_are_in_order_with_work) {
    int32_t before = 1, after = 2, seen_before = 0, seen_after = 0;
    int32_t *there = (int32_t *)device_alloc(gpu, sizeof(int32_t), "test"),
            *kept = (int32_t *)device_alloc(gpu, sizeof(int32_t), "test");
    hold_device();
    gpu->upload(gpu, there, &before, sizeof(before));
    gpu->copy(gpu, kept, there, sizeof(int32_t));
    gpu->upload(gpu, there, &after, sizeof(after));
    let_go();
    gpu->download(gpu, &seen_before, kept, sizeof(int32_t));
    gpu->download(gpu, &seen_after, there, sizeof(int32_t));
    EXPECT(seen_before == before && seen_after == after, "%d, then %d", seen_before, seen_after);
    gpu->free(gpu, there);
    gpu->free(gpu, kept);
}

CASE(rows_are_copied_to_other_strides) {
    enum { ROWS = 300, FROM = 70, TO = 33, BYTES = 17 };
    uint8_t *from = (uint8_t *)device_alloc(gpu, ROWS * FROM, "test"),
            *to = (uint8_t *)device_alloc(gpu, ROWS * TO, "test");
    uint8_t host[ROWS * FROM], got[ROWS * TO], want[ROWS * TO] = {0};
    fill(host, 7, sizeof(host));
    for (int r = 0; r < ROWS; r++) memcpy(want + r * TO, host + r * FROM, BYTES);
    gpu->upload(gpu, from, host, sizeof(host));
    gpu->zero(gpu, to, sizeof(got));
    gpu->copy_rows(gpu, to, TO, from, FROM, BYTES, ROWS);
    gpu->download(gpu, got, to, sizeof(got));
    EXPECT_BITS(got, want, sizeof(got));
    gpu->free(gpu, from);
    gpu->free(gpu, to);
}

int main(int argc, char **argv) {
    gpu = device_cuda_open(0);
    CUDA_CHECK(cudaMallocHost((void **)&go, sizeof(*go)));
    int status = test_run(argc, argv);
    CUDA_CHECK(cudaFreeHost(go));
    gpu->close(gpu);
    return status;
}
