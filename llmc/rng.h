/*
rng -- Philox4x32-10, a counter-based generator: random bits are a pure function of (key, counter),
so that recomputation, resume and any rank count reproduce the same draws. One header for C and
CUDA; no state.

Draws of a quantiser (design: one uint32 counter word per meaning):
  key      run seed, low and high word
  counter  { group low, group high, tag, optimizer step }
  tag      linear id << 8 | GEMM << 4 | operand << 2 | sub-draw
  group    row operand: token * (columns / 16) + column / 16, element = column % 16
           token operand: (token / 16) * columns + column,    element = token % 16
           where token counts within the step's global batch (for a weight: its row)
  dither   8 bits: element e takes byte e % 4 of word e / 4 of sub-draw 0
           16 bits: sub-draw e / 8, word (e % 8) / 2, low half for even e
           24 bits: sub-draw e / 4, word e % 4, its top 24 bits
Host-side draws (initialisation, sampling, data order) use RNG_STREAM_* tags with the top bit set.

  source  Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; known answers in
          test_formats.c
*/
#ifndef LLMC_RNG_H
#define LLMC_RNG_H

#include <stdint.h>

#ifdef __CUDACC__
#define RNG_HD __host__ __device__ static inline
#else
#define RNG_HD static inline
#endif

typedef struct { uint32_t w[4]; } Philox4;

#define PHILOX_ROUNDS 10
#define PHILOX_BUMP0  0x9E3779B9u   // what the two key words grow by from round to round
#define PHILOX_BUMP1  0xBB67AE85u

RNG_HD Philox4 philox4x32_round(Philox4 c, uint32_t key0, uint32_t key1) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c.w[0];
    uint64_t p1 = (uint64_t)0xCD9E8D57u * c.w[2];
    Philox4 out = {{(uint32_t)(p1 >> 32) ^ c.w[1] ^ key0, (uint32_t)p1,
                    (uint32_t)(p0 >> 32) ^ c.w[3] ^ key1, (uint32_t)p0}};
    return out;
}

RNG_HD Philox4 philox4x32_10(Philox4 counter, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        counter = philox4x32_round(counter, key0, key1);
        key0 += PHILOX_BUMP0;
        key1 += PHILOX_BUMP1;
    }
    return counter;
}

/* The counter of one group of 16 elements. */
RNG_HD Philox4 rng_group_counter(uint64_t group, uint32_t tag, uint32_t step) {
    Philox4 counter = {{(uint32_t)group, (uint32_t)(group >> 32), tag, step}};
    return counter;
}

/* Tag of a quantiser's draws; gemm and operand as in recipe.h, sub_draw 0..3. */
RNG_HD uint32_t rng_quantize_tag(uint32_t linear_id, uint32_t gemm, uint32_t operand,
                                 uint32_t sub_draw) {
    return linear_id << 8 | gemm << 4 | operand << 2 | sub_draw;
}

/* Streams of host-side draws. Linear ids stay below 2^23, so these never meet a quantiser's tag. */
#define RNG_STREAM_INIT    0x80000000u   // + parameter index: initial weights
#define RNG_STREAM_DATA    0x81000000u   // + source index: order of sequences
#define RNG_STREAM_SAMPLE  0x82000000u   // token sampling
#define RNG_STREAM_SIGNS   0x83000000u   // | a quantiser's tag >> 4: signs of one GEMM's transform

/* Uniform in [0, 1) with 24 bits. */
RNG_HD float rng_uniform(uint32_t bits) { return (float)(bits >> 8) * (1.0f / 16777216.0f); }

#endif
