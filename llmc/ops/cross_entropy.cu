// cross_entropy -- the fused classifier on a GPU: loss and gradient in one kernel, see its header.
#include "cross_entropy.h"

#include "../device_cuda.cuh"
#include "cross_entropy.cuh"

static int current_device_attribute(cudaDeviceAttr attribute) {
    int device, value;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
    return value;
}

/* Vectors of a row that fit the shared memory of ROW_BLOCKS blocks a multiprocessor. */
static int resident_vectors(Tensor logits) {
    if (!whole_vectors(logits)) return 0;
    cudaFuncAttributes kernel;
    CUDA_CHECK(cudaFuncGetAttributes(&kernel, cross_entropy_kernel));
    int reserved = current_device_attribute(cudaDevAttrReservedSharedMemoryPerBlock);
    int share = current_device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / ROW_BLOCKS;
    int most = current_device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    int64_t bytes = min_i64(share - reserved, most) - (int64_t)kernel.sharedSizeBytes;
    return (int)min_i64(bytes / (int)sizeof(uint4), ceil_div(logits.cols, VEC));
}

/* As many blocks as run at once. */
static int64_t resident_blocks(size_t shared_bytes) {
    int blocks;
    CUDA_CHECK(cudaFuncSetAttribute(
        cross_entropy_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes));
    CUDA_CHECK(cudaFuncSetAttribute(cross_entropy_kernel,
                                    cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
    CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, cross_entropy_kernel,
                                                             ROW_THREADS, shared_bytes));
    return (int64_t)blocks * current_device_attribute(cudaDevAttrMultiProcessorCount);
}

void cross_entropy_cuda(Device *d, Tensor losses, Tensor logits, Tensor targets, int vocab,
                        float dloss) {
    cross_entropy_check(losses, logits, targets, vocab);
    expect_bf16(logits, "cross_entropy logits");
    CrossEntropyArgs a = {};
    a.losses = (float *)losses.data;
    a.logits = (bf16 *)logits.data;
    a.targets = (const int32_t *)targets.data;
    a.rows = logits.rows;
    a.cols = logits.cols;
    a.resident = resident_vectors(logits);
    a.vocab = vocab;
    a.dloss = dloss;
    a.whole = whole_vectors(logits);
    size_t shared_bytes = (size_t)a.resident * sizeof(uint4);
    a.num_blocks = (int)min_i64(a.rows, resident_blocks(shared_bytes));
    cross_entropy_kernel<<<(unsigned)a.num_blocks, ROW_THREADS, shared_bytes,
                           device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}
