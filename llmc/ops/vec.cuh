// vec -- what memory-bound kernels share: eight values at a time through 16-byte accesses, and sums
// and maxima over warps, sums over blocks, in a fixed order. Device helpers only; no kernel. A
// host compiler can take this file too, after test/fibres.h, which defines CUDA's keywords and
// those of its functions that are used here.
#pragma once
#ifdef __CUDACC__
#include <cuda_bf16.h>
#endif
#include <math.h>
#include <stdint.h>

#include "../common.h"
#include "../dtype.h"
#include "../tensor.h"

#ifdef __CUDACC__
typedef __nv_bfloat16 bf16;
#else
typedef bf16_t bf16;
#endif

enum { VEC = 8, WARP = 32 };   // values per access (16 bytes of bf16, two times 16 of f32); lanes

// --- bf16 and pairs of them in a word ---

static __device__ __forceinline__ float low_float(uint32_t pair) {
    return __uint_as_float(pair << 16);
}
static __device__ __forceinline__ float high_float(uint32_t pair) {
    return __uint_as_float(pair & 0xFFFF0000u);
}

/* The larger of both halves; of a NaN and a number the number. */
static __device__ __forceinline__ uint32_t max_bf16x2(uint32_t a, uint32_t b) {
#ifdef __CUDACC__
    __nv_bfloat162 pair =
        __hmax2(*reinterpret_cast<__nv_bfloat162 *>(&a), *reinterpret_cast<__nv_bfloat162 *>(&b));
    return *reinterpret_cast<uint32_t *>(&pair);
#else
    float low = fmaxf(low_float(a), low_float(b)), high = fmaxf(high_float(a), high_float(b));
    return bf16_from_f32(low) | (uint32_t)bf16_from_f32(high) << 16;
#endif
}

static __device__ __forceinline__ float float_of(bf16 x) {
#ifdef __CUDACC__
    return __bfloat162float(x);
#else
    return bf16_to_f32(x);
#endif
}

/* To nearest even. */
static __device__ __forceinline__ bf16 round_bf16(float x) {
#ifdef __CUDACC__
    return __float2bfloat16_rn(x);
#else
    return bf16_from_f32(x);
#endif
}

static __device__ __forceinline__ uint32_t round_bf16x2(float low, float high) {
#ifdef __CUDACC__
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
#else
    return bf16_from_f32(low) | (uint32_t)bf16_from_f32(high) << 16;
#endif
}

// --- accesses ---
// `whole`: every full vector of this array starts at a multiple of 16 bytes; the same for all
// threads, so the branch costs nothing. count: values from here to the end of the row or array;
// a vector with fewer than VEC is read value by value, the rest of v is 0.

static __device__ __forceinline__ void unpack(float v[VEC], uint4 packed) {
    const uint32_t w[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = low_float(w[i]);
        v[2 * i + 1] = high_float(w[i]);
    }
}

static __device__ __forceinline__ uint4 pack(const float v[VEC]) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = round_bf16x2(v[2 * i], v[2 * i + 1]);
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* Eight bf16 as they lie in memory: a quarter of the registers of eight floats in waiting. */
static __device__ __forceinline__ uint4 load_packed(const bf16 *p, int64_t count, bool whole) {
    if (whole && count >= VEC) return *reinterpret_cast<const uint4 *>(p);
    uint32_t w[4] = {0, 0, 0, 0};
    const uint16_t *bits = reinterpret_cast<const uint16_t *>(p);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        if (i < count) w[i / 2] |= (uint32_t)bits[i] << (i % 2 * 16);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

static __device__ __forceinline__ void load_vec(float v[VEC], const bf16 *p, int64_t count,
                                                bool whole) {
    unpack(v, load_packed(p, count, whole));
}

static __device__ __forceinline__ void load_vec(float v[VEC], const float *p, int64_t count,
                                                bool whole) {
    if (whole && count >= VEC) {
        float4 low = reinterpret_cast<const float4 *>(p)[0];
        float4 high = reinterpret_cast<const float4 *>(p)[1];
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
        v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = i < count ? p[i] : 0.0f;
}

static __device__ __forceinline__ void store_vec(bf16 *p, const float v[VEC], int64_t count,
                                                 bool whole) {
    if (whole && count >= VEC) {
        *reinterpret_cast<uint4 *>(p) = pack(v);
        return;
    }
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        if (i < count) p[i] = round_bf16(v[i]);
    }
}

static __device__ __forceinline__ void store_vec(float *p, const float v[VEC], int64_t count,
                                                 bool whole) {
    if (whole && count >= VEC) {
        reinterpret_cast<float4 *>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
        reinterpret_cast<float4 *>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
        return;
    }
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        if (i < count) p[i] = v[i];
    }
}

/* Host: whether `whole` may be set for all rows of t. Flat loops pass a tensor of one row. */
static inline bool whole_vectors(Tensor t) {
    return (uintptr_t)t.data % 16 == 0 && (t.rows == 1 || t.cols % VEC == 0);
}

/* Activations and weights are bf16 on a GPU; f32 ones are for the CPU reference. */
static inline void expect_bf16(Tensor t, const char *what) {
    CHECK(t.dtype == DT_BF16, "%s is %s; CUDA takes bf16", what, dtype_info[t.dtype].name);
}

static inline Tensor flat(Tensor t) { return tensor_view(t.data, t.dtype, 1, tensor_count(t)); }

// --- reductions: the same tree every time, every thread gets the result ---

static __device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        x += __shfl_xor_sync(0xFFFFFFFFu, x, offset);
    }
    return x;
}

static __device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, offset));
    }
    return x;
}

/* Sum over the block. shared: one float a warp. */
static __device__ __forceinline__ float block_sum(float x, float *shared) {
    x = warp_sum(x);
    int num_warps = (int)blockDim.x / WARP;
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    float total = 0.0f;
    for (int i = 0; i < num_warps; i++) total += shared[i];
    __syncthreads();   // before the next sum overwrites them
    return total;
}

// --- launches ---

enum { FLAT_THREADS = 256 };

/* Host: blocks of FLAT_THREADS threads, one vector a thread. Kernels count vectors in 32 bits. */
static inline unsigned flat_blocks(int64_t vectors) {
    CHECK(vectors < INT64_C(1) << 32, "%lld vectors in one kernel", (long long)vectors);
    return (unsigned)ceil_div(vectors, FLAT_THREADS);
}
