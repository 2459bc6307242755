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
  outer     o = fl(fl(m_o / T) / E) of the maximum m_o of its elements, 1 where o is 0;
            scale = nearest to fl(fl(m_b / o) / E); mult = min(fl(1 / fl(scale o)), FLT_MAX)
  powers    scale = 2^e in E8M0, of m_b's exponent field (0 for subnormals), e_max = floor(log2 E)
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
            fl(m_b / fl(g u)); mult = min(fl(1 / fl(s g)), FLT_MAX); q to nearest;
            r = fl(fl(q s) g); S = fl(sum fl(v v) / sum fl(v r)), pairwise, 1 where the divisor is
            not above 0; scale = fl(S s) rounded to E4M3: stochastically with 16 bits (word 0 of the
            block's group of draws, low half) from 2^-6 on, to nearest below; saturating
  mask      keeps an element where |y| < E
Pairwise sums: neighbours first, of as many elements as the block has (a power of two; a missing
element at the edge of a tensor is 0).

Tensor's decode scale in alpha: *amax / dequant_div: E T; of eden 256 u; without a tensor scale 1,
or 0.75 as above. Wherever a block scale is a number nearest to something, zero_scale holds, but for
encode and for eden's corrected scale.

Hadamard of size d (4 to 128): signs first, butterflies of stride 1, 2, 4 ... in f32, times
f32(1 / sqrt(d)), rounded to bf16. Fixed signs: the low d bits of HADAMARD_SIGNS; redrawn: Philox of
counter {0, 0, RNG_STREAM_SIGNS | tag >> 4, step}, four words, bit i of the 128 for element i.

  source    dev/NUMERICS.md 1 to 5, which names papers and equations
  tests     test_cell.c, test_cell_operands.c, test_cell_statistics.c, test_hadamard.c;
            test_recipe_vectors.c against an independent implementation in numpy
*/
#ifndef LLMC_OPS_CELL_H
#define LLMC_OPS_CELL_H

#include <float.h>
#include <math.h>

#include "../recipe.h"
#include "../rng.h"

#ifdef __CUDACC__
#define CELL_HD __host__ __device__ static inline
#else
#define CELL_HD static inline
#endif

/* What eden takes for the largest element: 6 / (17/16 * 0.93), a little less than clips least. */
#define EDEN_ELEM_MAX 0x1.849d64p+2f
enum { EDEN_SCALE_BITS = 16 };   // random bits of a block's corrected scale

/* Signs of the fixed transform, 128 bits from the lowest on: the first 16 are 0xD7E8
   (dev/NUMERICS.md 4), the others Philox's of counter and key 0. */
#define HADAMARD_SIGNS                                                                             \
    { 0x6627D7E8u, 0xE169C58Du, 0xBC57AC4Cu, 0x9B00DBD8u }

/* --- numbers --- */

CELL_HD uint32_t cell_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
CELL_HD float cell_float(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}
CELL_HD float cell_magnitude(float x) { return cell_float(cell_bits(x) & 0x7FFFFFFFu); }
CELL_HD float cell_with_sign_of(float magnitude, float x) {
    return cell_float(cell_bits(magnitude) | (cell_bits(x) & 0x80000000u));
}
CELL_HD float cell_power_of_two(int exponent) {   // of a normal number
    return cell_float((uint32_t)(exponent + 127) << 23);
}
CELL_HD float cell_finite(float x) { return x > FLT_MAX ? FLT_MAX : x; }   // NaN stays
CELL_HD float cell_nan(void) { return cell_float(0x7FFFFFFFu); }           // one for all devices

/* Exponent of the distance between neighbours at a magnitude: below the smallest normal number it
   no longer shrinks. */
CELL_HD int minifloat_step_exponent(Minifloat f, float magnitude) {
    int exponent = (int)(cell_bits(magnitude) >> 23) - 127, least = 1 - f.bias;
    return (exponent > least ? exponent : least) - f.mantissa_bits;
}

/* The number nearest to x, ties to even; saturates; NaN gives the largest; keeps the sign of zero.
   Adding 1.5 * 2^23 steps pushes out what lies below one step. */
CELL_HD float minifloat_nearest(Minifloat f, float x) {
    float magnitude = cell_magnitude(x);
    if (magnitude != magnitude) return f.max;
    if (magnitude > f.max) magnitude = f.max;
    float big = cell_power_of_two(minifloat_step_exponent(f, magnitude)) * (1.5f * 8388608.0f);
    return cell_with_sign_of((magnitude + big) - big, x);
}

/* A magnitude below the largest in steps: whole ones, and what is left of one, exactly. */
typedef struct {
    float step, fraction;
    uint32_t whole;
} MinifloatPlace;

CELL_HD MinifloatPlace minifloat_place(Minifloat f, float magnitude) {
    int exponent = minifloat_step_exponent(f, magnitude);
    float steps = magnitude * cell_power_of_two(-exponent);
    MinifloatPlace place;
    place.step = cell_power_of_two(exponent);
    place.whole = (uint32_t)steps;
    place.fraction = steps - (float)place.whole;
    return place;
}

/* As minifloat_nearest, but ties go away from zero. */
CELL_HD float minifloat_away(Minifloat f, float x) {
    float magnitude = cell_magnitude(x);
    if (magnitude != magnitude) return f.max;
    if (magnitude >= f.max) return cell_with_sign_of(f.max, x);
    MinifloatPlace p = minifloat_place(f, magnitude);
    return cell_with_sign_of((float)(p.whole + (p.fraction >= 0.5f)) * p.step, x);
}

/* Up with probability floor(2^bits fraction) / 2^bits; draw is uniform in [0, 2^bits), bits <= 24.
   Saturates; NaN gives the largest. */
CELL_HD float minifloat_stochastic(Minifloat f, float x, uint32_t draw, int bits) {
    float magnitude = cell_magnitude(x);
    if (magnitude != magnitude) return f.max;
    if (magnitude >= f.max) return cell_with_sign_of(f.max, x);
    MinifloatPlace p = minifloat_place(f, magnitude);
    uint32_t one = 1u << bits;
    int up = (uint32_t)(p.fraction * (float)one) + draw >= one;
    return cell_with_sign_of((float)(p.whole + up) * p.step, x);
}

/* Neighbours first, in place; n is a power of two. */
CELL_HD float cell_pairwise_sum(float *v, int n) {
    for (; n > 1; n /= 2)
        for (int i = 0; i < n / 2; i++) v[i] = v[2 * i] + v[2 * i + 1];
    return v[0];
}

/* --- a cell and its tensor --- */

typedef struct {
    Operand how;
    Minifloat elem, scale;
    float elem_max;                   // E
    float top;                        // T
    float div;                        // fl(E T), of eden fl(256 u)
    int exponent_min, exponent_max;   // of power-of-two scales
    int e_max;                        // floor(log2 E)
} Cell;

static inline Cell cell_make(const Operand *how) {
    Cell c;
    c.how = *how;
    c.elem = minifloat(how->elem);
    c.scale = minifloat(how->scale);
    c.elem_max = operand_elem_max(how);
    c.top = operand_top_scale(how);
    c.div = how->rounding == ROUND_EDEN ? 256.0f * EDEN_ELEM_MAX : c.elem_max * c.top;
    c.exponent_min = (how->elem == DT_E4M3 ? 3 : how->elem == DT_E5M2 ? 10 : 2) - 127;
    c.exponent_max = (how->elem == DT_E4M3 ? 246 : how->elem == DT_E5M2 ? 239 : 252) - 127;
    c.e_max = (int)(cell_bits(c.elem_max) >> 23) - 127;
    return c;
}

/* What the tensor's maximum says for all its blocks. */
typedef struct {
    float amax;           // m_t
    float quant_mult;     // S_enc
    float dequant_mult;   // S_dec
    float unit;           // g of encode and eden
} CellTensor;

/* amax of a cell without a tensor scale is not looked at. */
CELL_HD CellTensor cell_tensor(const Cell *c, float amax) {
    CellTensor t = {amax, 1.0f, 1.0f, 1.0f};
    if (c->how.amax == AMAX_NONE || amax == 0.0f) return t;
    int is_lost = !(amax <= FLT_MAX);
    t.quant_mult = is_lost ? cell_nan() : cell_finite(c->div / amax);
    t.dequant_mult = 1.0f / t.quant_mult;
    t.unit = is_lost ? cell_nan() : amax / c->div;
    return t;
}

/* --- block scales --- */

typedef struct {
    float scale;   // the block's, rounded: s, or m of encode
    float mult;    // elements are multiplied by it
    float outer;   // o, 1 where there is none
} CellScale;

/* A number of the scale's format; NaN stays. */
CELL_HD float cell_round_scale(const Cell *c, float s) {
    if (s != s) return cell_nan();
    float scale = minifloat_nearest(c->scale, s);
    if (scale != 0.0f || c->how.zero_scale == ZERO_KEEP) return scale;
    return c->how.zero_scale == ZERO_ONE ? 1.0f : c->scale.min;
}

CELL_HD CellScale cell_power_scale(const Cell *c, int exponent) {
    if (exponent < c->exponent_min) exponent = c->exponent_min;
    if (exponent > c->exponent_max) exponent = c->exponent_max;
    CellScale s = {cell_power_of_two(exponent), cell_power_of_two(-exponent), 1.0f};
    if (c->how.headroom) s.mult *= 0.75f;
    return s;
}

CELL_HD int cell_block_exponent(const Cell *c, float block_max) {
    uint32_t bits = cell_bits(block_max);
    if (c->how.scale_rule == RULE_CEIL) {
        bits = cell_bits(block_max * (1.0f / c->elem_max));
        uint32_t mantissa = bits & 0x7FFFFFu, field = bits >> 23;
        return (int)field - 127 + (mantissa > (field ? 0u : 0x400000u));
    }
    if (c->how.scale_rule == RULE_EVEN) bits += 0x200000u;
    return (int)(bits >> 23) - 127 - c->e_max;
}

/* Scale of the rule quest, of a block's standard deviation. */
CELL_HD CellScale cell_quest_scale(const Cell *c, float std) {
    float clip = (float)(2.92247856 / 6.0) * std + 1e-8f;
    return cell_power_scale(c, (int)(cell_bits(clip) >> 23) - 127);
}

CELL_HD CellScale cell_f32_scale(const Cell *c, float block_max) {
    CellScale s = {1.0f, 1.0f, 1.0f};
    if (block_max == 0.0f) return s;
    s.scale = block_max / c->elem_max;
    s.mult = cell_finite(c->elem_max / block_max);
    return s;
}

CELL_HD CellScale cell_outer_scale(const Cell *c, float block_max, float outer_max) {
    CellScale s = {1.0f, 1.0f, outer_max / c->top / c->elem_max};
    if (s.outer == 0.0f) s.outer = 1.0f;
    s.scale = cell_round_scale(c, block_max / s.outer / c->elem_max);
    s.mult = cell_finite(1.0f / (s.scale * s.outer));
    return s;
}

CELL_HD CellScale cell_encode_scale(const Cell *c, CellTensor t, float block_max) {
    CellScale s = {1.0f, 1.0f, 1.0f};
    float wanted = c->elem_max / (block_max / t.unit);
    if (block_max != 0.0f)
        s.scale = wanted != wanted ? cell_nan() : minifloat_nearest(c->scale, wanted);
    if (s.scale == 0.0f) s.scale = 1.0f;
    if (t.unit != t.unit) s.scale = cell_nan();
    s.mult = s.scale;
    return s;
}

/* Of eden: the scale that its elements are rounded with; cell_eden_scale corrects it. */
CELL_HD CellScale cell_eden_first_scale(const Cell *c, CellTensor t, float block_max) {
    CellScale s = {cell_round_scale(c, block_max / (t.unit * EDEN_ELEM_MAX)), 1.0f, 1.0f};
    s.mult = cell_finite(1.0f / (s.scale * t.unit));
    return s;
}

CELL_HD CellScale cell_nearest_scale(const Cell *c, CellTensor t, float block_max, int candidate) {
    int divides = c->how.arithmetic == 1 || c->how.select != SELECT_NONE;
    float s = divides ? block_max / c->elem_max * t.quant_mult
                      : block_max * (t.quant_mult * (1.0f / c->elem_max));
    if (candidate) s *= 1.5f;
    if (c->how.headroom) s *= 17.0f / 16.0f;
    CellScale out = {cell_round_scale(c, cell_finite(s)), 1.0f, 1.0f};
    out.mult = cell_finite(1.0f / (out.scale * t.dequant_mult));
    return out;
}

/* Scale of a block with maximum block_max (that of its square tile) under an outer block with
   maximum outer_max; candidate 0 or 1 of a selection. All rules but quest. */
CELL_HD CellScale cell_scale(const Cell *c, CellTensor t, float block_max, float outer_max,
                             int candidate) {
    if (c->how.scale == DT_E8M0) return cell_power_scale(c, cell_block_exponent(c, block_max));
    if (c->how.scale == DT_F32) return cell_f32_scale(c, block_max);
    if (c->how.outer) return cell_outer_scale(c, block_max, outer_max);
    if (c->how.scale_rule == RULE_ENCODE) return cell_encode_scale(c, t, block_max);
    if (c->how.rounding == ROUND_EDEN) return cell_eden_first_scale(c, t, block_max);
    return cell_nearest_scale(c, t, block_max, candidate);
}

/* --- elements --- */

/* y: what is rounded. */
CELL_HD float cell_quotient(const Cell *c, CellTensor t, CellScale s, float v) {
    return c->how.scale_rule == RULE_ENCODE ? v / t.unit * s.mult : v * s.mult;
}

/* q; draw has how.dither_bits bits and is looked at by stochastic rounding alone. */
CELL_HD float cell_round(const Cell *c, float y, uint32_t draw) {
    if (c->how.rounding == ROUND_STOCHASTIC)
        return minifloat_stochastic(c->elem, y, draw, c->how.dither_bits);
    return c->how.rounding == ROUND_AWAY ? minifloat_away(c->elem, y)
                                         : minifloat_nearest(c->elem, y);
}

/* Decoded value, without the tensor's scale. */
CELL_HD float cell_value(const Cell *c, CellScale s, float q) {
    float value = c->how.scale_rule == RULE_ENCODE ? q / s.scale : q * s.scale;
    if (c->how.outer) value *= s.outer;
    return value != value ? cell_nan() : value;
}

/* 1 where gradients pass a mask: the element did not clip. */
CELL_HD int cell_keeps(const Cell *c, float y) { return cell_magnitude(y) < c->elem_max; }

/* One element's share of the error of a selection's candidate. */
CELL_HD float cell_select_error(const Cell *c, CellTensor t, CellScale s, float q, float v) {
    float e = q * s.scale * t.amax / c->div - v;
    return c->how.select == SELECT_MSE ? e * e : cell_magnitude(e);
}

/* --- eden --- */

/* r: an element as its first scale decodes it, with the tensor's. */
CELL_HD float cell_eden_value(CellTensor t, CellScale s, float q) { return q * s.scale * t.unit; }

/* The block's scale corrected by S: vv the sum of v v, vr of v r, draw 16 random bits. */
CELL_HD float cell_eden_scale(const Cell *c, CellScale s, float vv, float vr, uint32_t draw) {
    float scale = (vr > 0.0f ? vv / vr : 1.0f) * s.scale;
    if (scale != scale) return cell_nan();
    return scale >= 0x1p-6f ? minifloat_stochastic(c->scale, scale, draw, EDEN_SCALE_BITS)
                            : minifloat_nearest(c->scale, scale);
}

/* --- the Hadamard transform --- */

CELL_HD float hadamard_factor(int size) {   // f32(1 / sqrt(size)), size a power of two
    float factor = 1.0f;
    for (; size >= 4; size /= 4) factor *= 0.5f;
    return size == 2 ? factor * 0x1.6a09e6p-1f : factor;
}

/* Bit i % 32 of word i / 32: element i is negated. */
typedef struct {
    uint32_t word[4];
} CellSigns;

CELL_HD CellSigns cell_signs(Signs signs, uint32_t tag, uint64_t seed, uint32_t step) {
    CellSigns fixed = {HADAMARD_SIGNS}, none = {{0, 0, 0, 0}}, drawn;
    if (signs != SIGNS_STEP) return signs == SIGNS_FIXED ? fixed : none;
    Philox4 counter = {{0, 0, RNG_STREAM_SIGNS | tag >> 4, step}};
    Philox4 out = philox4x32_10(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
    for (int i = 0; i < 4; i++) drawn.word[i] = out.w[i];
    return drawn;
}

CELL_HD int cell_sign(CellSigns signs, int i) { return signs.word[i / 32] >> i % 32 & 1; }

#endif
