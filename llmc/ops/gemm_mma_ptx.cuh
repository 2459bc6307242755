// gemm_mma_ptx -- the instructions that the NVFP4 GEMM is made of, one function each: matrix loads
// from shared memory, the block-scaled 16x8x64 product, rounding to bf16; copy_async.cuh has the
// copies. Each has up to three bodies: the instruction; where the GPU has none, the same arithmetic
// in software (fp4_step.h); and, for a host compiler, a call of the simulation that includes this
// file: it defines CUDA's keywords, threadIdx, blockIdx and the fibre_ functions below
// (test/fibres.h). Source: PTX ISA 9.0, "Warp-level matrix instructions". The fragments of the
// product, for lane t = 4 g + l, with 4-bit element i of a register in bits 4 i:
//   a  register r, element i: row g + 8 (r % 2), k = 8 l + 32 (r / 2) + i
//   b  register r, element i: column g, k = 8 l + 32 r + i
//   c  c[0], c[1]: row g, columns 2 l and 2 l + 1; c[2], c[3]: the same of row g + 8
//   scales  a word of a row or column has the scale of block i in byte i. That of row r comes from
//           lane 4 (r % 8) + r / 8, that of column n from lane 4 n; other lanes' words are not read
#pragma once
#include <stdint.h>
#include <string.h>

#include "../dtype.h"
#include "copy_async.cuh"
#include "fp4_step.h"

// An FP4 product in software belongs on GPUs that never had one. A target of sm_100 or later
// without its a or f suffix could do better and would do this in silence.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 && !defined(__CUDA_ARCH_SPECIFIC__) &&         \
    !defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && !defined(__CUDA_ARCH_FEAT_SM120_ALL)
#error "FP4 kernels need a family or specific target from sm_100 on: 100a, 103a or 120f, not 100"
#endif

// FEAT_SM120_ALL is what CUDA 12.8, older than the families, says of 120a.
#if defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
#define FP4_MMA_NATIVE (__CUDA_ARCH_FAMILY_SPECIFIC__ / 100 == 12)
#elif defined(__CUDA_ARCH_FEAT_SM120_ALL)
#define FP4_MMA_NATIVE 1
#else
#define FP4_MMA_NATIVE 0
#endif

#define MMA_FN static __device__ __forceinline__
#ifdef __CUDACC__
#define MMA_CALLED static __device__ __noinline__
#else
#define MMA_CALLED static inline
#endif

// One lane's part of c (16x8) += a (16x64) b (64x8).
struct MmaOperands {
    uint32_t a[4], b[2], scales_a, scales_b;
};
struct MmaSums {
    float c[4];
};

// --- memory ---

// Four 8x16-byte matrices: lane l gives the address of row l % 8 of matrix l / 8 and gets bytes
// 4 (l % 4)... of row l / 4 of each.
MMA_FN void ldmatrix_x4(uint32_t r[4], const void *row) {
#ifdef __CUDACC__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
#else
    int lane = (int)threadIdx.x % 32;
    uint32_t words[4];
    fibre_read_shared(words, row, 16);
    // Word w of the row that lane s read is what lane 4 (s % 8) + w gets of matrix s / 8.
    uint32_t lanes[4][32];
    for (int w = 0; w < 4; w++) fibre_gather(lanes[w], words[w]);
    for (int i = 0; i < 4; i++) r[i] = lanes[lane % 4][8 * i + lane / 4];
#endif
}

MMA_FN uint32_t load_shared_word(const void *p) {
#ifdef __CUDACC__
    return *(const uint32_t *)p;
#else
    uint32_t word;
    fibre_read_shared(&word, p, 4);
    return word;
#endif
}

// One access of 8 and of 4 bytes.
MMA_FN void store_aligned(float *d, const float v[2]) {
#ifdef __CUDACC__
    *reinterpret_cast<float2 *>(d) = make_float2(v[0], v[1]);
#else
    memcpy(d, v, 8);
#endif
}
MMA_FN void store_aligned(uint16_t *d, uint32_t pair) {
#ifdef __CUDACC__
    *reinterpret_cast<uint32_t *>(d) = pair;
#else
    memcpy(d, &pair, 4);
#endif
}

// --- arithmetic ---

// Nearest even; `low` comes first in memory.
MMA_FN uint32_t round_bf16_pair(float low, float high) {
#ifdef __CUDACC__
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return (uint32_t)bf16_from_f32(high) << 16 | bf16_from_f32(low);
#endif
}

MMA_FN uint32_t lane_word(uint32_t mine, int lane) {
#ifdef __CUDACC__
    return __shfl_sync(0xFFFFFFFFu, mine, lane);
#else
    return fibre_shuffle(mine, lane);
#endif
}

// The product in software: each lane fetches the two rows and two columns of its four sums. Not
// inlined: a kernel has dozens of products, and this one is long.
MMA_CALLED MmaSums mma_emulated(MmaSums s, MmaOperands x) {
    int lane = (int)threadIdx.x % 32, g = lane / 4, l = lane % 4;
    uint32_t a[2][8], b[2][8], scales_a[2], scales_b[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int word = 0; word < 8; word++) {   // elements 8 word... lie with lane word % 4
            a[i][word] = lane_word(x.a[i + word / 4 * 2], 4 * g + word % 4);
            b[i][word] = lane_word(x.b[word / 4], 4 * (2 * l + i) + word % 4);
        }
        scales_a[i] = lane_word(x.scales_a, 4 * g + i);
        scales_b[i] = lane_word(x.scales_b, 4 * (2 * l + i));
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        s.c[i] = fp4_step(s.c[i], a[i / 2], b[i % 2], scales_a[i / 2], scales_b[i % 2]);
    return s;
}

MMA_FN void mma_16x8x64(MmaSums *s, const MmaOperands &x) {
#if FP4_MMA_NATIVE
    asm volatile("mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col"
                 ".f32.e2m1.e2m1.f32.ue4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3}, {%10}, {0, 0}, {%11}, {0, 0};"
                 : "+f"(s->c[0]), "+f"(s->c[1]), "+f"(s->c[2]), "+f"(s->c[3])
                 : "r"(x.a[0]), "r"(x.a[1]), "r"(x.a[2]), "r"(x.a[3]), "r"(x.b[0]), "r"(x.b[1]),
                   "r"(x.scales_a), "r"(x.scales_b));
#else
    *s = mma_emulated(*s, x);
#endif
}
