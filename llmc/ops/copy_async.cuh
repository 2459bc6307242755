// copy_async -- copies from global to shared memory that run while the thread goes on (cp.async),
// and the block's dynamic shared memory. A host compiler can take this file too, after
// test/fibres.h, which defines CUDA's keywords and the fibre_ functions. Source: PTX ISA 9.0,
// "cp.async".
#pragma once
#include <stdint.h>

// The block's dynamic shared memory, aligned to 128 bytes.
static __device__ __forceinline__ uint8_t *block_shared_memory(void) {
#ifdef __CUDACC__
    extern __shared__ __align__(128) uint8_t block_shared[];
    return block_shared;
#else
    return fibre_shared_memory();
#endif
}

// Starts a copy of 16 bytes to shared memory; zeros when not inside, then nothing is read.
static __device__ __forceinline__ void copy_async_16(void *shared, const void *global,
                                                     bool inside) {
#ifdef __CUDACC__
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(global), "r"(inside ? 16 : 0)
                 : "memory");
#else
    fibre_copy_async(shared, global, 16, inside);
#endif
}

// Ends a group of this thread's copies; a group may be empty.
static __device__ __forceinline__ void copy_async_commit(void) {
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    fibre_copy_commit();
#endif
}

// Waits for this thread's copies but those of the last `in_flight` groups; the barrier that makes
// them visible to others is the caller's.
template <int in_flight> static __device__ __forceinline__ void copy_async_wait(void) {
#ifdef __CUDACC__
    asm volatile("cp.async.wait_group %0;" ::"n"(in_flight) : "memory");
#else
    fibre_copy_wait(in_flight);
#endif
}

// What this thread copied, after it waited, or what lies there since a barrier.
static __device__ __forceinline__ uint4 load_shared_16(const void *shared) {
#ifdef __CUDACC__
    return *reinterpret_cast<const uint4 *>(shared);
#else
    uint4 v;
    fibre_read_shared(&v, shared, 16);
    return v;
#endif
}

static __device__ __forceinline__ float load_shared_4(const float *shared) {
#ifdef __CUDACC__
    return *shared;
#else
    float v;
    fibre_read_shared(&v, shared, 4);
    return v;
#endif
}

static __device__ __forceinline__ void store_shared_16(void *shared, uint4 v) {
#ifdef __CUDACC__
    *reinterpret_cast<uint4 *>(shared) = v;
#else
    fibre_write_shared(shared, &v, 16);
#endif
}
