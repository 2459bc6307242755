// attention_mma -- the PTX instructions that the attention kernels are made of, one function each:
// matrix loads from shared memory, the 16x8x16 bf16 product, asynchronous copies, 2^x. What blocks
// and tiles are built from them is in attention_tile.cuh. All of it exists from sm_80 on. Source:
// PTX ISA 9.0, "Warp-level matrix instructions" and "cp.async".
#pragma once
#include <cuda_bf16.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;

// Four 8x8 bf16 matrices over one warp: lane l holds elements (l / 4, 2 * (l % 4)) and the next one
// of each.
struct Frag {
    uint32_t r[4];
};

static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

// Lane l gives the address of row l % 8 of matrix l / 8: 8 bf16 values, aligned to 16 bytes.
static __device__ __forceinline__ Frag ldmatrix(const bf16 *row) {
    Frag f;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
                 : "r"(shared_address(row))
                 : "memory");
    return f;
}

// The same, each matrix transposed on the way.
static __device__ __forceinline__ Frag ldmatrix_transposed(const bf16 *row) {
    Frag f;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
                 : "r"(shared_address(row))
                 : "memory");
    return f;
}

// c (16x8 f32) += a (16x16) b (16x8). Lane l holds c at rows l / 4 and l / 4 + 8, columns 2 * (l %
// 4) and the next.
static __device__ __forceinline__ void mma_16x8x16(float *c, const Frag &a, uint32_t b0,
                                                   uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}

// Starts a copy of 16 (or 8) bytes to shared memory; zeros when not inside, then nothing is read.
static __device__ __forceinline__ void copy_async_16(void *shared, const void *global,
                                                     bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(inside ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void copy_async_8(void *shared, const void *global, bool inside) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(inside ? 8 : 0)
                 : "memory");
}
// Waits for the copies that this thread started; the barrier that makes them visible to others is
// the caller's.
static __device__ __forceinline__ void copy_async_wait(void) {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// 2^x to 2 ulp, 0 for -infinity.
static __device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The lower half of the register is `low`; both round to nearest even.
static __device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    uint32_t u;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(high), "f"(low));
    return u;
}
