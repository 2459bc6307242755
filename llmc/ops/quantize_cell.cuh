// quantize_cell -- the kernel that makes an operand of any cell of a recipe, with the arithmetic of
// cell.h: what quantize_pair.cuh and quantize_fp8.cuh do not know; and its maximum. Compiled
// without contraction (Makefile), so that cell.h is the CPU's bit for bit. A host compiler can take
// this file too, see quantize.cuh.
//
// A block of threads takes 128 elements along the contraction of 32 rows of the operand, of square
// tiles above 32 as many rows as the tile has. They lie in shared memory, row by row, as f32; a
// lane has a row and a warp 16 elements of it, the group that random bits are drawn for. What is
// found of a block of more than that, or of a square, goes through shared memory and shuffles in
// the order of cell.h's pairwise sums.
#pragma once
#include "../common.h"
#include "cell.h"
#include "fp8.h"
#include "quantize.cuh"

enum {
    CELL_THREADS = 256,
    CELL_GROUP = 16,
    CELL_GROUPS = CELL_THREADS / 32,
    CELL_K = CELL_GROUPS * CELL_GROUP,
    CELL_ROWS = 32,   // of a part of the tile
    CELL_MAX_PARTS = 4,
    CELL_STRIDE = CELL_K + 1,   // of rows in shared memory: lanes meet different banks
    CELL_LOADS = CELL_ROWS * CELL_K / 2 / CELL_THREADS   // pairs of a part, by a thread
};

typedef struct {
    QOperand o;
    Quantizer q;
    Cell cell;
    RoundKeys keys;
    const void *x;
    int x_is_f32;
    int64_t rows, cols;   // of x
    int parts;            // of a tile
    int is_quantized;     // 0: only converted
    int only_amax;
} CellArgs;

/* Memory of a block of threads: the tile, and what its groups have found. */
static inline size_t cell_shared_bytes(int parts) {
    return (size_t)parts * CELL_ROWS * (CELL_STRIDE + CELL_GROUPS) * sizeof(float);
}

static __device__ __forceinline__ float *cell_shared(void) {
#ifdef __CUDACC__
    extern __shared__ float cell_memory[];
    return cell_memory;
#else
    return (float *)fibre_shared_memory();
#endif
}

/* Of a thread. */
typedef struct {
    float *tile, *found;
    int64_t row0, k0;   // of the tile
    int lane, group;
} CellPlace;

static __device__ __forceinline__ CellPlace cell_place(const CellArgs &args) {
    int64_t tile_rows = args.parts * CELL_ROWS, block = blockIdx.x;
    int64_t tiles_down = (args.o.rows + tile_rows - 1) / tile_rows;
    int64_t tiles_along = (args.o.k + CELL_K - 1) / CELL_K;
    int token = args.q.token_operand;   // neighbours are those in x
    CellPlace p;
    p.row0 = (token ? block % tiles_down : block / tiles_along) * tile_rows;
    p.k0 = (token ? block / tiles_down : block % tiles_along) * CELL_K;
    p.tile = cell_shared();
    p.found = p.tile + tile_rows * CELL_STRIDE;
    p.lane = threadIdx.x % 32;
    p.group = threadIdx.x / 32;
    return p;
}

static __device__ __forceinline__ int64_t cell_row(const CellPlace &p, int part) {
    return p.row0 + part * CELL_ROWS + p.lane;
}
static __device__ __forceinline__ int64_t cell_group(const CellPlace &p) {
    return p.k0 / CELL_GROUP + p.group;
}
/* Dimensions are multiples of 16: a group is inside or not. */
static __device__ __forceinline__ bool cell_inside(const CellArgs &args, const CellPlace &p,
                                                   int part) {
    return cell_row(p, part) < args.o.rows && cell_group(p) * CELL_GROUP < args.o.k;
}

static __device__ __forceinline__ float *cell_own(const CellPlace &p, int part) {
    return p.tile + (part * CELL_ROWS + p.lane) * CELL_STRIDE + p.group * CELL_GROUP;
}

// --- between x's layout and shared memory ---

/* Two neighbours in a row of x. */
typedef struct {
    int64_t at;          // in x; negative: not there
    int first, second;   // in the tile
} CellPair;

static __device__ __forceinline__ CellPair cell_pair(const CellArgs &args, const CellPlace &p,
                                                     int i) {
    int token = args.q.token_operand;
    int bits = token ? 4 + (args.parts > 1) + (args.parts > 2) : 6;   // log2 of pairs in a row of x
    int line = i >> bits, col = (i & ((1 << bits) - 1)) * 2;
    int64_t x_row = (token ? p.k0 : p.row0) + line, x_col = (token ? p.row0 : p.k0) + col;
    CellPair pair;
    pair.at = x_row < args.rows && x_col < args.cols ? x_row * args.cols + x_col : -1;
    pair.first = token ? col * CELL_STRIDE + line : line * CELL_STRIDE + col;
    pair.second = pair.first + (token ? CELL_STRIDE : 1);
    return pair;
}

static __device__ __forceinline__ float round_to_bf16(float v) {
    return low_f32(pack_bf16x2(v, 0.0f));
}

static __device__ __forceinline__ uint2 cell_load_pair(const CellArgs &args, int64_t at) {
    if (at < 0) return make_uint2(0, 0);
    if (args.x_is_f32)
        return *reinterpret_cast<const uint2 *>(reinterpret_cast<const float *>(args.x) + at);
    uint32_t word =
        *reinterpret_cast<const uint32_t *>(reinterpret_cast<const uint16_t *>(args.x) + at);
    return make_uint2(word << 16, word & 0xFFFF0000u);
}

/* Decode scale of the operand whose values x holds. */
static __device__ __forceinline__ float cell_source_mult(const Quantizer &q) {
    float mult = 1.0f / q.source_div;
    return q.source_amax ? *q.source_amax * mult : mult;
}

/* What lies beyond x is 0. */
static __device__ __forceinline__ void cell_load_tile(const CellArgs &args, const CellPlace &p) {
    bool requantizes = args.q.source_div != 0.0f;
    float mult = requantizes ? cell_source_mult(args.q) : 1.0f;
    for (int part = 0; part < args.parts; part++) {
        uint2 in[CELL_LOADS];
        int first = part * CELL_LOADS * CELL_THREADS + threadIdx.x;
#pragma unroll
        for (int i = 0; i < CELL_LOADS; i++)
            in[i] = cell_load_pair(args, cell_pair(args, p, first + i * CELL_THREADS).at);
#pragma unroll
        for (int i = 0; i < CELL_LOADS; i++) {
            CellPair pair = cell_pair(args, p, first + i * CELL_THREADS);
            float low = __uint_as_float(in[i].x), high = __uint_as_float(in[i].y);
            if (requantizes) {
                uint32_t rounded = pack_bf16x2(low * mult, high * mult);
                low = low_f32(rounded);
                high = high_f32(rounded);
            }
            p.tile[pair.first] = low;
            p.tile[pair.second] = high;
        }
    }
}

static __device__ __forceinline__ void cell_store_tile(const CellArgs &args, const CellPlace &p) {
    for (int i = threadIdx.x; i < args.parts * CELL_LOADS * CELL_THREADS; i += CELL_THREADS) {
        CellPair pair = cell_pair(args, p, i);
        if (pair.at < 0) continue;
        float low = p.tile[pair.first], high = p.tile[pair.second];
        if (args.o.dtype == DT_F32)
            *reinterpret_cast<uint2 *>((float *)args.o.data + pair.at) =
                make_uint2(__float_as_uint(low), __float_as_uint(high));
        else
            *reinterpret_cast<uint32_t *>((uint16_t *)args.o.data + pair.at) =
                pack_bf16x2(low, high);
    }
}

// --- the transform ---

/* Strides below `size`; all N numbers are in registers. */
template <int N> static __device__ __forceinline__ void cell_butterflies(float v[N], int size) {
#pragma unroll
    for (int stride = 1; stride < N; stride *= 2) {
        if (stride >= size) continue;
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i & stride) continue;
            float a = v[i], b = v[i + stride];
            v[i] = a + b;
            v[i + stride] = a - b;
        }
    }
}

/* In shared memory, of a tile of one part: strides up to 8 within a thread's own elements, then
   those from 16 on over every 16th element of a row. */
static __device__ __forceinline__ void cell_transform(const CellArgs &args, const CellPlace &p,
                                                      const CellSigns &signs) {
    int size = args.cell.how.hadamard, wide = size > CELL_GROUP;
    float factor = hadamard_factor(size);
    float v[CELL_GROUP], *own = cell_own(p, 0);
    int first = p.group * CELL_GROUP % size;   // place of the own elements in their transform
    uint32_t flips = signs.word[first / 32] >> first % 32;
#pragma unroll
    for (int e = 0; e < CELL_GROUP; e++) v[e] = flips >> (e & (size - 1)) & 1 ? -own[e] : own[e];
    cell_butterflies<CELL_GROUP>(v, size);
#pragma unroll
    for (int e = 0; e < CELL_GROUP; e++) own[e] = wide ? v[e] : round_to_bf16(v[e] * factor);
    if (!wide) return;
    __syncthreads();
    for (int i = 0; i < CELL_GROUP / CELL_GROUPS; i++) {
        float w[CELL_GROUPS];
        float *every = p.tile + p.lane * CELL_STRIDE + p.group + i * CELL_GROUPS;
#pragma unroll
        for (int j = 0; j < CELL_GROUPS; j++) w[j] = every[j * CELL_GROUP];
        cell_butterflies<CELL_GROUPS>(w, size / CELL_GROUP);
#pragma unroll
        for (int j = 0; j < CELL_GROUPS; j++) every[j * CELL_GROUP] = round_to_bf16(w[j] * factor);
    }
    __syncthreads();
}

// --- what is found of a block ---

/* Of the first and the last eight of a thread's elements: both the same but in blocks of 8. */
typedef struct {
    float of[2];
} CellHalves;

struct CellMax {   // of magnitudes; NaN is the largest
    static __device__ __forceinline__ float join(float a, float b) {
        uint32_t x = __float_as_uint(a), y = __float_as_uint(b);
        return __uint_as_float(x > y ? x : y);
    }
};
struct CellSum {
    static __device__ __forceinline__ float join(float a, float b) { return a + b; }
};

/* Neighbours first; of the first `count` when that is less than N, a power of two. In place. */
template <class Join, int N>
static __device__ __forceinline__ float cell_pairwise(float v[N], int count) {
#pragma unroll
    for (int stride = 1; stride < N; stride *= 2) {
        if (stride >= count) continue;
#pragma unroll
        for (int i = 0; i < N; i += 2 * stride) v[i] = Join::join(v[i], v[i + stride]);
    }
    return v[0];
}

/* Over the rows of a square within a warp. */
template <class Join>
static __device__ __forceinline__ float cell_over_rows(const CellArgs &args, float v) {
    if (args.cell.how.tile != TILE_SQUARE) return v;
    for (int lanes = 1; lanes < args.cell.how.block && lanes < CELL_ROWS; lanes *= 2)
        v = Join::join(v, __shfl_xor_sync(0xFFFFFFFFu, v, lanes));
    return v;
}

/* Joins what leaf(part, v, terms) makes of the own elements v of each part, over `span` elements of
   a row and, of squares, over their rows. */
template <class Join, class Leaf>
static __device__ __forceinline__ CellHalves cell_reduce(const CellArgs &args, const CellPlace &p,
                                                         int span, Leaf leaf) {
    bool through_memory = span > CELL_GROUP;
    CellHalves result = {};
    if (through_memory) __syncthreads();   // of an earlier reduction's reads
    for (int part = 0; part < args.parts; part++) {
        float terms[CELL_GROUP];
        leaf(part, cell_own(p, part), terms);
        float low = cell_pairwise<Join, CELL_GROUP / 2>(terms, CELL_GROUP / 2);
        float high = cell_pairwise<Join, CELL_GROUP / 2>(terms + CELL_GROUP / 2, CELL_GROUP / 2);
        float both = Join::join(low, high);
        result.of[0] = span < CELL_GROUP ? low : both;
        result.of[1] = span < CELL_GROUP ? high : both;
        if (through_memory) p.found[(part * CELL_GROUPS + p.group) * CELL_ROWS + p.lane] = both;
    }
    if (!through_memory) {
        result.of[0] = cell_over_rows<Join>(args, result.of[0]);
        result.of[1] = cell_over_rows<Join>(args, result.of[1]);
        return result;
    }
    __syncthreads();
    int groups = span / CELL_GROUP, first = p.group / groups * groups;
    float of_part[CELL_MAX_PARTS];
#pragma unroll
    for (int part = 0; part < CELL_MAX_PARTS; part++) {
        if (part >= args.parts) continue;
        float of_group[CELL_GROUPS];
#pragma unroll
        for (int i = 0; i < CELL_GROUPS; i++) {
            int group = (first + i) % CELL_GROUPS;
            of_group[i] = p.found[(part * CELL_GROUPS + group) * CELL_ROWS + p.lane];
        }
        of_part[part] =
            cell_over_rows<Join>(args, cell_pairwise<Join, CELL_GROUPS>(of_group, groups));
    }
    result.of[0] = result.of[1] = cell_pairwise<Join, CELL_MAX_PARTS>(of_part, args.parts);
    return result;
}

static __device__ __forceinline__ CellHalves cell_maximum(const CellArgs &args, const CellPlace &p,
                                                          int span) {
    return cell_reduce<CellMax>(args, p, span, [](int, const float *v, float *terms) {
#pragma unroll
        for (int e = 0; e < CELL_GROUP; e++) terms[e] = cell_magnitude(v[e]);
    });
}

// --- rounding ---

/* Random bits of a group's 16 elements. */
typedef struct {
    uint32_t word[CELL_GROUP];
} CellDraws;

static __device__ __forceinline__ CellDraws cell_draw(const CellArgs &args, const CellPlace &p,
                                                      int part) {
    CellDraws draws = {};
    if (args.cell.how.rounding != ROUND_STOCHASTIC) return draws;
    int bits = args.cell.how.dither_bits, count = bits == 24 ? 4 : bits / 8;
    uint64_t group = draw_group_index(args.q, args.cols, cell_row(p, part), cell_group(p));
#pragma unroll
    for (int sub = 0; sub < 4; sub++) {
        if (sub >= count) continue;
        Philox4 draw = draw_group(args.q, args.keys, group, (uint32_t)sub);
#pragma unroll
        for (int i = 0; i < 4; i++) draws.word[4 * sub + i] = draw.w[i];
    }
    return draws;
}

static __device__ __forceinline__ uint32_t cell_draw_of(const CellDraws &draws, int bits, int e) {
    if (bits == 8) return draws.word[e / 4] >> e % 4 * 8 & 0xFF;
    if (bits == 16) return draws.word[e / 2] >> e % 2 * 16 & 0xFFFF;
    return draws.word[e] >> 8;
}

/* A tensor's scale, and the scales of the blocks of a thread's elements. */
typedef struct {
    CellTensor tensor;
    CellScale scale[2];
} CellScales;

/* An element of a block as its cell rounds it, and what was rounded. */
typedef struct {
    float y, q;
} CellElement;

static __device__ __forceinline__ CellElement cell_element(const CellArgs &args,
                                                           const CellScales &s,
                                                           const CellDraws &draws, float v, int e) {
    CellElement element;
    element.y = cell_quotient(&args.cell, s.tensor, s.scale[e / 8], v);
    element.q =
        cell_round(&args.cell, element.y, cell_draw_of(draws, args.cell.how.dither_bits, e));
    return element;
}

/* Errors of a selection's candidate. */
static __device__ __forceinline__ CellHalves cell_errors(const CellArgs &args, const CellPlace &p,
                                                         const CellScales &s) {
    return cell_reduce<CellSum>(
        args, p, args.cell.how.block, [&](int part, const float *v, float *terms) {
            CellDraws draws = cell_draw(args, p, part);
#pragma unroll
            for (int e = 0; e < CELL_GROUP; e++) {
                float q = cell_element(args, s, draws, v[e], e).q;
                terms[e] = cell_select_error(&args.cell, s.tensor, s.scale[e / 8], q, v[e]);
            }
        });
}

static __device__ __forceinline__ void cell_select(const CellArgs &args, const CellPlace &p,
                                                   CellScales *s, const CellHalves &most) {
    CellScales second = *s;
    for (int half = 0; half < 2; half++)
        second.scale[half] = cell_scale(&args.cell, s->tensor, most.of[half], 0.0f, 1);
    CellHalves errors = cell_errors(args, p, *s), others = cell_errors(args, p, second);
    for (int half = 0; half < 2; half++)
        if (others.of[half] < errors.of[half]) s->scale[half] = second.scale[half];
}

/* Scales of quest, of the blocks' standard deviations. */
static __device__ __forceinline__ void cell_quest(const CellArgs &args, const CellPlace &p,
                                                  CellScales *s) {
    int block = args.cell.how.block;
    CellHalves mean = cell_reduce<CellSum>(args, p, block, [](int, const float *v, float *terms) {
#pragma unroll
        for (int e = 0; e < CELL_GROUP; e++) terms[e] = v[e];
    });
    float count = (float)block;
    for (int half = 0; half < 2; half++) mean.of[half] = mean.of[half] / count;
    CellHalves squares =
        cell_reduce<CellSum>(args, p, block, [&](int, const float *v, float *terms) {
#pragma unroll
            for (int e = 0; e < CELL_GROUP; e++) {
                float d = v[e] - mean.of[e / 8];
                terms[e] = d * d;
            }
        });
    for (int half = 0; half < 2; half++)
        s->scale[half] = cell_quest_scale(&args.cell, sqrtf(squares.of[half] / count));
}

/* Corrects the scales, by which the elements are then no longer rounded. */
static __device__ __forceinline__ void cell_eden(const CellArgs &args, const CellPlace &p,
                                                 CellScales *s) {
    int block = args.cell.how.block;
    CellHalves vv = cell_reduce<CellSum>(args, p, block, [](int, const float *v, float *terms) {
#pragma unroll
        for (int e = 0; e < CELL_GROUP; e++) terms[e] = v[e] * v[e];
    });
    CellHalves vr = cell_reduce<CellSum>(args, p, block, [&](int, const float *v, float *terms) {
        CellDraws none = {};
#pragma unroll
        for (int e = 0; e < CELL_GROUP; e++) {
            float q = cell_element(args, *s, none, v[e], e).q;
            terms[e] = v[e] * cell_eden_value(s->tensor, s->scale[e / 8], q);
        }
    });
    int64_t first = cell_group(p) * CELL_GROUP / block * block / CELL_GROUP;
    uint64_t group = draw_group_index(args.q, args.cols, cell_row(p, 0), first);
    uint32_t draw = draw_group(args.q, args.keys, group, 0).w[0] & 0xFFFF;
    for (int half = 0; half < 2; half++)
        s->scale[half].scale =
            cell_eden_scale(&args.cell, s->scale[half], vv.of[half], vr.of[half], draw);
}

static __device__ __forceinline__ CellScales cell_scales(const CellArgs &args, const CellPlace &p) {
    const Operand &how = args.cell.how;
    CellScales s;
    s.tensor = cell_tensor(&args.cell, args.o.amax ? *args.o.amax : 0.0f);
    if (how.block == 0) {
        CellScale scale = {1.0f, fp8_scale(fp8_format(how.elem), *args.o.amax), 1.0f};
        s.scale[0] = s.scale[1] = scale;
        return s;
    }
    if (how.scale_rule == RULE_QUEST) {
        cell_quest(args, p, &s);
        return s;
    }
    CellHalves most = cell_maximum(args, p, how.block);
    float outer = how.outer ? cell_maximum(args, p, how.outer).of[0] : 0.0f;
    for (int half = 0; half < 2; half++)
        s.scale[half] = cell_scale(&args.cell, s.tensor, most.of[half], outer, 0);
    if (how.select != SELECT_NONE) cell_select(args, p, &s, most);
    if (how.rounding == ROUND_EDEN) cell_eden(args, p, &s);
    return s;
}

// --- the kernel ---

/* The codes of a thread's elements, and the code of their scale. */
static __device__ __forceinline__ void cell_store_codes(const CellArgs &args, const CellPlace &p,
                                                        int part, const CellElement element[16],
                                                        float scale) {
    int64_t row = cell_row(p, part), group = cell_group(p);
    float q[CELL_GROUP];
    uint32_t word[4] = {};
#pragma unroll
    for (int e = 0; e < CELL_GROUP; e++) q[e] = element[e].q;
    if (args.cell.how.block) {
        *reinterpret_cast<uint2 *>((uint8_t *)args.o.data + (row * args.o.k) / 2 + group * 8) =
            make_uint2(e2m1x8_encode(q), e2m1x8_encode(q + 8));
        args.o.scales[scale_word_offset(row, group / 4, args.o.k) + group % 4] =
            nvfp4_scale_code(scale);
        return;
    }
    Fp8Format format = fp8_format(args.cell.how.elem);
#pragma unroll
    for (int e = 0; e < CELL_GROUP; e++)
        word[e / 4] |= (uint32_t)fp8_code(format, element[e].y) << e % 4 * 8;
    *reinterpret_cast<uint4 *>((uint8_t *)args.o.data + row * args.o.k + group * CELL_GROUP) =
        make_uint4(word[0], word[1], word[2], word[3]);
}

/* The own elements of a part: codes to the operand, or values to the tile, and the mask. */
static __device__ __forceinline__ void cell_round_part(const CellArgs &args, const CellPlace &p,
                                                       const CellScales &s, int part) {
    CellDraws draws = cell_draw(args, p, part);
    CellElement element[CELL_GROUP];
    float *own = cell_own(p, part);
    uint32_t kept = 0;
#pragma unroll
    for (int e = 0; e < CELL_GROUP; e++) {
        element[e] = cell_element(args, s, draws, own[e], e);
        kept |= (uint32_t)cell_keeps(&args.cell, element[e].y) << e;
    }
    if (args.o.mask)
        reinterpret_cast<uint16_t *>(
            args.o.mask)[cell_row(p, part) * args.o.k / CELL_GROUP + cell_group(p)] =
            (uint16_t)kept;
    if (args.o.form == FORM_PACKED) {
        cell_store_codes(args, p, part, element, s.scale[0].scale);
        return;
    }
    Fp8Format format = fp8_format(args.cell.how.elem);   // where there are no blocks
#pragma unroll
    for (int e = 0; e < CELL_GROUP; e++)
        own[e] = args.cell.how.block
                     ? cell_value(&args.cell, s.scale[e / 8], element[e].q)
                     : __uint_as_float((uint32_t)fp8_value(format, element[e].y) << 16);
}

/*
  bytes    2 or 4 per element read; 2 or 4 (values) or 9/16 (NVFP4's codes and scales) written
  limiter  instructions: 40 to 200 an element, as the cell is; measured: see dev/SPEED.md
*/
__global__ static void __launch_bounds__(CELL_THREADS, 3) cell_kernel(CellArgs args) {
    __shared__ CellSigns signs;
    CellPlace p = cell_place(args);
    const Operand &how = args.cell.how;
    cell_load_tile(args, p);
    if (how.hadamard && threadIdx.x == 0)
        signs = cell_signs(how.signs, args.q.tag, args.q.seed,
                           how.signs == SIGNS_STEP ? args.q.state->step : 0);
    __syncthreads();
    if (!args.is_quantized) {
        cell_store_tile(args, p);
        return;
    }
    if (how.hadamard) cell_transform(args, p, signs);
    if (args.only_amax) {
        float most = cell_maximum(args, p, CELL_GROUP).of[0];
        add_block_maximum(args.o.amax, __float_as_uint(most));
        return;
    }
    CellScales s = cell_scales(args, p);
    for (int part = 0; part < args.parts; part++)
        if (cell_inside(args, p, part)) cell_round_part(args, p, s, part);
    if (args.o.form == FORM_PACKED) return;
    __syncthreads();
    cell_store_tile(args, p);
}

// --- the launch ---

typedef struct {
    unsigned blocks;
    size_t shared_bytes;
    CellArgs args;
} CellLaunch;

static inline CellLaunch cell_launch(const QOperand *o, const Quantizer *q, Tensor x,
                                     int only_amax) {
    CellLaunch launch = {};
    CellArgs *args = &launch.args;
    int square = q->how.tile == TILE_SQUARE && !only_amax ? q->how.block : 0;
    args->o = *o;
    args->q = *q;
    args->cell = cell_make(&q->how);
    args->keys = round_keys(q->seed);
    args->x = x.data;
    args->x_is_f32 = x.dtype == DT_F32;
    args->rows = x.rows;
    args->cols = x.cols;
    args->parts = square > CELL_ROWS ? square / CELL_ROWS : 1;
    args->is_quantized = operand_is_quantized(&q->how);
    args->only_amax = only_amax;
    launch.blocks = (unsigned)(ceil_div(o->rows, args->parts * CELL_ROWS) * ceil_div(o->k, CELL_K));
    launch.shared_bytes = cell_shared_bytes(args->parts);
    return launch;
}
