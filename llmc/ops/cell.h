/*
cell -- the arithmetic of every cell of a recipe (recipe.h Operand), one block at a time, for C and
CUDA alike: what the CPU reference and the generic GPU kernel compute with, bit for bit. One
expression, one FP32 rounding; compile without contraction. The plain NVFP4 of training has its own
faster code (nvfp4.h), which is tested against this.

Names: v the elements of a block as they will be rounded, m_b the largest magnitude of the block (of
the tile, where it is square), m_t of the tensor as `amax` says, E the largest element, T the top
scale (operand_top_scale), fl() one FP32 rounding.

  tensor    S_enc = min(fl(fl(E T) / m_t), FLT_MAX), 1 when m_t is 0 or there is no tensor scale;
            S_dec = fl(1 / S_enc); an m_t of infinity or NaN makes every value NaN
  nearest   arithmetic 2: s = fl(m_b fl(S_enc fl(1/E))); 1: s = fl(fl(m_b / E) S_enc)
            headroom: s = fl(s 17/16);  scale = the scale format's number nearest to
            min(s, FLT_MAX), ties to even, saturating; zero: as zero_scale says (1, or the least)
            mult = min(fl(1 / fl(scale S_dec)), FLT_MAX)
            scale f32 (no tensor scale): scale = fl(m_b / E), mult = min(fl(E / m_b), FLT_MAX); both
            1 when m_b is 0
  outer     o = fl(fl(m_o / T) / E) of the maximum m_o of its elements, 1 when that is 0;
            scale = nearest to fl(fl(m_b / o) / E); mult = min(fl(1 / fl(scale o)), FLT_MAX)
  powers    scale = 2^e in E8M0, of amax's exponent field (0 for subnormals) and e_max = floor(log2 E)
            floor  e = floor(log2 m_b) - e_max
            even   the same of m_b's bits + 0x200000
            ceil   e of fl(m_b fl(1/E)): its exponent, + 1 when its mantissa is not 0 (of a
                   subnormal: when that is above 0x400000)
            quest  e = floor(log2 fl(fl(f32(2.92247856 / 6) std) + f32(1e-8))), std = sqrt(mean
                   (v - mean)^2) with pairwise sums
            The code e + 127 is kept within what bf16 holds of all products: [2,252] for E2M1 and
            E1M2, [3,246] for E4M3, [10,239] for E5M2.
            mult = 2^-e; headroom (floor): mult = 0.75 2^-e, and the operand's dequant_div is 0.75
  encode    g = fl(m_t / fl(E T)), 1 when m_t is 0; scale m = nearest to fl(E / fl(m_b / g)), which
            is 1 where that is 0 or m_b is; y = fl(fl(v / g) m)
  element   y = fl(v mult); q = y rounded as `rounding` says, saturating to E; NaN gives +E
            stochastic: up with probability floor(2^bits frac) / 2^bits, frac its place between its
            neighbours
  value     q scale (exact in operand_values_dtype);  outer: fl(fl(q scale) o);
            encode: fl(q / m);  f32 scales: fl(q scale)
  select    with base = fl(fl(m_b / E) S_enc): candidates of nearest(min(base, FLT_MAX)) and
            nearest(min(fl(1.5 base), FLT_MAX)), both rounded with the same draws; the error of an
            element is e = fl(fl(fl(fl(q scale) m_t) / fl(E T)) - v), of a block the pairwise sum of
            fl(e e), or of |e|, of a square tile the pairwise sum of its rows' sums. The second is
            taken where its error is smaller.
  eden      u = f32(6 / (17/16 * 0.93)), g = fl(m_t / fl(256 u)), 1 when m_t is 0; s = nearest to
            fl(m_b / fl(g u)); mult = min(fl(1 / fl(s g)), FLT_MAX); q to nearest; r = fl(fl(q s) g);
            S = fl(sum fl(v v) / sum fl(v r)), pairwise, 1 where the divisor is not above 0;
            scale = fl(S s) rounded to E4M3: stochastically with 16 bits (word 0 of the block's
            group of draws, low half) from 2^-6 on, to nearest below; saturating
  mask      keeps an element where |y| < E
Pairwise sums: neighbours first, of as many elements as the block has (a power of two; a missing
element at the edge of a tensor is 0).

Tensor's decode scale in alpha: *amax / dequant_div: E T; of eden 256 u; without a tensor scale 1, or
0.75 as above.

Hadamard of size d (4 to 128): signs first, butterflies of stride 1, 2, 4 ... in f32, times
f32(1 / sqrt(d)), rounded to bf16. Fixed signs: the low d bits of HADAMARD_SIGNS; redrawn: Philox of
counter {0, 0, RNG_STREAM_SIGNS | tag >> 4, step}, four words, bit i of the 128 for element i.

  source    dev/NUMERICS.md 1 to 5, which names papers and equations
  tests     test_cell.c; test_recipe_vectors.c against an independent implementation in numpy
*/
#ifndef LLMC_OPS_CELL_H
#define LLMC_OPS_CELL_H

#include "../recipe.h"
#include "../rng.h"

/* What eden takes for the largest element: 6 / (17/16 * 0.93), a little less than what clips least. */
#define EDEN_ELEM_MAX 0x1.849d64p+2f

/* Signs of the fixed transform, 128 bits from the lowest on: the first 16 are 0xD7E8 (dev/NUMERICS.md
   4), the others Philox's of counter and key 0. */
#define HADAMARD_SIGNS {0x6627D7E8u, 0xE169C58Du, 0xBC57AC4Cu, 0x9B00DBD8u}

#endif
