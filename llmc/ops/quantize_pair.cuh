// quantize_pair -- the kernel that quantises training's operands: it reads x once and serves the
// row and the token operand of a tensor together, as values or as codes with tiled scales; and the
// choice of its instance. It knows rows of 16, at most a transform along the tokens, and 8 dither
// bits; quantize_cell.cuh has a kernel for the rest. Loading, maxima, scales and random bits are
// the same for both forms; a form says what a block of threads takes and how elements are stored. A
// host compiler can take this file too, see quantize.cuh.
#pragma once
#include "../common.h"
#include "hadamard.h"
#include "quantize.cuh"

typedef enum {
    MODE_ABSENT,
    MODE_NEAREST,
    MODE_STOCHASTIC,
    NUM_MODES,
    MODE_NONE = NUM_MODES
} PairMode;

enum {
    PAIR_WARP = 32,
    PAIR_THREADS = 256,
    PAIR_WARPS = PAIR_THREADS / PAIR_WARP,
    PAIR_LOADS =
        4,   // of 8 columns of a row, by a thread: rows w, w + 8, w + 16, w + 24 for warp w
    PAIR_ROWS = PAIR_LOADS * PAIR_WARPS
};

/* One operand: data and scales are QOperand's. */
typedef struct {
    void *data;
    uint8_t *scales;
    const float *amax;
    Quantizer how;
    RoundKeys keys;
    uint32_t sign_mask;
} PairOperand;
typedef struct {
    PairOperand row, token;
    const uint16_t *x;   // (rows, cols)
    int64_t rows, cols;
} PairArgs;

// --- what the forms share ---

/* A block's scale, rounded to E4M3, and its coeff. */
typedef struct {
    float scale, mult;
} BlockScale;

static __device__ __forceinline__ BlockScale block_scale(Nvfp4Tensor t, float amax) {
    BlockScale s;
    s.scale = nvfp4_round_scale(nvfp4_raw_scale(t, amax));
    s.mult = nvfp4_element_mult(t, s.scale);
    return s;
}

/* The sign bits to take over; none in a tensor that is not finite, whose elements are all the same
   NaN or code. */
static __device__ __forceinline__ uint32_t signs_to_keep(Nvfp4Tensor t) {
    return t.quant_mult == t.quant_mult ? 0x80008000u : 0;
}

/* Dither of two elements; 0 where none is wanted. */
typedef struct {
    float low, high;
} DitherPair;

/* Of elements 2 i and 2 i + 1 of the eight whose random bits are in `draws`. */
template <PairMode MODE>
static __device__ __forceinline__ DitherPair eight_dither(const uint32_t draws[2], int i) {
    DitherPair d = {0, 0};
    if (MODE == MODE_STOCHASTIC) {
        d.low = half_dither8(draws[i / 2], 2 * i % 4);
        d.high = half_dither8(draws[i / 2], 2 * i % 4 + 1);
    }
    return d;
}

/* Random bits of rows [row, row + 16) of a token operand's columns col and col + 1. */
typedef struct {
    Philox4 low, high;
} ColumnDraws;

template <PairMode MODE>
static __device__ __forceinline__ ColumnDraws draw_columns(const PairArgs &args, int64_t row,
                                                           int64_t col) {
    ColumnDraws d = {};
    if (MODE == MODE_STOCHASTIC) {
        uint64_t group = draw_group_index(args.token.how, args.cols, col, row / 16);
        d.low = draw_group(args.token.how, args.token.keys, group, 0);
        d.high = draw_group(args.token.how, args.token.keys, group + 1, 0);
    }
    return d;
}

/* Of row r of the 16. */
template <PairMode MODE>
static __device__ __forceinline__ DitherPair column_dither(const ColumnDraws &draws, int r) {
    DitherPair d = {0, 0};
    if (MODE == MODE_STOCHASTIC) {
        d.low = half_dither8(draws.low.w[r / 4], r % 4);
        d.high = half_dither8(draws.high.w[r / 4], r % 4);
    }
    return d;
}

// --- values ---

struct PairValues {
    enum { TILE_ROWS = PAIR_ROWS, TILE_COLS = 256, TILE_PAIRS = TILE_COLS / 2 };
    typedef uint4 Eight;   // eight rounded elements of a row

    /* Which two columns of which 16 rows of the tile a thread takes: a warp writes 128 bytes of a
       row. */
    static __device__ __forceinline__ int strip(int thread) { return thread / TILE_PAIRS; }
    static __device__ __forceinline__ int pair(int thread) { return thread % TILE_PAIRS; }

    /* Both values of a word, rounded and scaled back; the products with the scales are exact in
       bf16. */
    template <PairMode MODE>
    static __device__ __forceinline__ uint32_t round_pair(uint32_t pair, float low_mult,
                                                          float high_mult, uint32_t scales,
                                                          uint32_t keep, DitherPair dither) {
        float low = __fmul_rn(low_f32(pair), low_mult), high = __fmul_rn(high_f32(pair), high_mult);
        if (MODE == MODE_NEAREST) {
            low = e2m1_nearest(low);
            high = e2m1_nearest(high);
        } else {
            low = e2m1_stochastic(low, dither.low, DITHER8_OFFSET);
            high = e2m1_stochastic(high, dither.high, DITHER8_OFFSET);
        }
        return mul2(pack_bf16x2(low, high), scales) | (pair & keep);
    }

    template <PairMode MODE>
    static __device__ __forceinline__ Eight round_row(uint4 in, BlockScale s, uint32_t keep,
                                                      const uint32_t draws[2], int) {
        const uint32_t word[4] = {in.x, in.y, in.z, in.w};
        uint32_t scales = pack_bf16x2(s.scale, s.scale), out[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[i] = round_pair<MODE>(word[i], s.mult, s.mult, scales, keep,
                                      eight_dither<MODE>(draws, i));
        return make_uint4(out[0], out[1], out[2], out[3]);
    }

    /* Rows `row` and row + 8 at columns [col, col + 8). Rows come in sixteens: row + 8 is inside
       when row is. */
    static __device__ __forceinline__ void
    store_rows(const PairArgs &args, Eight first, Eight second, float, int64_t row, int64_t col) {
        if (row >= args.rows || col >= args.cols) return;
        uint16_t *out = (uint16_t *)args.row.data + row * args.cols + col;
        *reinterpret_cast<uint4 *>(out) = first;
        *reinterpret_cast<uint4 *>(out + 8 * args.cols) = second;
    }

    template <PairMode MODE>
    static __device__ __forceinline__ void
    store_columns(const PairArgs &args, const uint32_t word[16], const BlockScale s[2],
                  uint32_t keep, int64_t row, int64_t col) {
        if (row >= args.rows || col >= args.cols) return;
        uint32_t scales = pack_bf16x2(s[0].scale, s[1].scale);
        ColumnDraws draws = draw_columns<MODE>(args, row, col);
        uint16_t *out = (uint16_t *)args.token.data + row * args.cols + col;
#pragma unroll
        for (int r = 0; r < 16; r++)
            *reinterpret_cast<uint32_t *>(out + r * args.cols) = round_pair<MODE>(
                word[r], s[0].mult, s[1].mult, scales, keep, column_dither<MODE>(draws, r));
    }
};

// --- codes ---

struct PairCodes {
    enum { TILE_ROWS = 2 * PAIR_ROWS, TILE_COLS = 128, TILE_PAIRS = TILE_COLS / 2 };
    enum { STRIPS = TILE_ROWS / 16 };
    typedef uint32_t Eight;

    /* Neighbouring threads take the 64 rows of a column: its 32 bytes of codes, and the four scales
       of one word. */
    static __device__ __forceinline__ int strip(int thread) { return thread % STRIPS; }
    static __device__ __forceinline__ int pair(int thread) { return thread / STRIPS; }

    /* y rounded, with the sign of v where that is to be kept. */
    static __device__ __forceinline__ float stochastic(float y, float dither, float v,
                                                       uint32_t keep) {
        uint32_t magnitude = __float_as_uint(e2m1_stochastic(y, dither, DITHER8_OFFSET));
        return __uint_as_float(magnitude | (__float_as_uint(v) & keep & 0x80000000u));
    }

    /* Codes of eight elements of a block, whose random bits are in `draws`, a word for four. In a
       tensor that is not finite mult is NaN. */
    template <PairMode MODE>
    static __device__ __forceinline__ uint32_t encode(const float v[8], float mult, uint32_t keep,
                                                      const uint32_t draws[2], int hardware) {
        float y[8];
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = __fmul_rn(v[i], mult);
        if (MODE == MODE_NEAREST) return e2m1x8_encode(y);
#if E2M1_CONVERT_RANDOM
        if (hardware) return e2m1x8_encode_random(y, draws[0], draws[1]);
#else
        (void)hardware;   // refused: see quantize_has_hardware_rounding
#endif
#pragma unroll
        for (int i = 0; i < 4; i++) {
            DitherPair dither = eight_dither<MODE>(draws, i);
            y[2 * i] = stochastic(y[2 * i], dither.low, v[2 * i], keep);
            y[2 * i + 1] = stochastic(y[2 * i + 1], dither.high, v[2 * i + 1], keep);
        }
        return e2m1x8_encode(y);
    }

    template <PairMode MODE>
    static __device__ __forceinline__ Eight round_row(uint4 in, BlockScale s, uint32_t keep,
                                                      const uint32_t draws[2], int hardware) {
        const uint32_t word[4] = {in.x, in.y, in.z, in.w};
        float v[8];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = low_f32(word[i]);
            v[2 * i + 1] = high_f32(word[i]);
        }
        return encode<MODE>(v, s.mult, keep, draws, hardware);
    }

    /* The word of four neighbouring blocks' scales, of which four lanes hold one each: those whose
       numbers differ in the bits `stride` and 2 stride. */
    static __device__ __forceinline__ uint32_t gather_scales(uint32_t code, int block, int stride) {
        uint32_t word = code << 8 * block;
        word |= __shfl_xor_sync(0xFFFFFFFFu, word, stride);
        return word | __shfl_xor_sync(0xFFFFFFFFu, word, 2 * stride);
    }

    /* As those of values. own_scale: an even lane's is of `row`, an odd lane's of row + 8, at the
       16 columns of which both lanes hold a half. */
    static __device__ __forceinline__ void store_rows(const PairArgs &args, Eight first,
                                                      Eight second, float own_scale, int64_t row,
                                                      int64_t col) {
        bool inside = row < args.rows && col < args.cols;
        int lane = threadIdx.x % PAIR_WARP;
        uint32_t scales = gather_scales(inside ? nvfp4_scale_code(own_scale) : 0u, lane / 2 % 4, 2);
        if (!inside) return;
        uint8_t *out = (uint8_t *)args.row.data + (row * args.cols + col) / 2;
        *reinterpret_cast<uint32_t *>(out) = first;
        *reinterpret_cast<uint32_t *>(out + 4 * args.cols) = second;
        if (lane % 8 >= 2) return;
        int64_t at = scale_word_offset(row + lane % 2 * 8, col / 64, args.cols);
        *reinterpret_cast<uint32_t *>(args.row.scales + at) = scales;
    }

    template <PairMode MODE>
    static __device__ __forceinline__ void
    store_columns(const PairArgs &args, const uint32_t word[16], const BlockScale s[2],
                  uint32_t keep, int64_t row, int64_t col) {
        bool inside = row < args.rows && col < args.cols;
        int own_strip = strip(threadIdx.x);
        uint32_t scales[2], codes[2][2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            scales[i] = gather_scales(inside ? nvfp4_scale_code(s[i].scale) : 0u, own_strip, 1);
        // Lane 0 of a column's four stores the low column's word, lane 1 that of the other. The 128
        // columns are those of a tile of scales: what lies beyond the last one is its padding.
        if (own_strip < 2) {
            int64_t at = scale_word_offset(col + own_strip, row / 64, args.rows);
            *reinterpret_cast<uint32_t *>(args.token.scales + at) =
                own_strip ? scales[1] : scales[0];
        }
        if (!inside) return;
        ColumnDraws draws = draw_columns<MODE>(args, row, col);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float low[8], high[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                low[i] = low_f32(word[half * 8 + i]);
                high[i] = high_f32(word[half * 8 + i]);
            }
            int hardware = args.token.how.hardware_rounding;
            codes[0][half] = encode<MODE>(low, s[0].mult, keep, draws.low.w + 2 * half, hardware);
            codes[1][half] = encode<MODE>(high, s[1].mult, keep, draws.high.w + 2 * half, hardware);
        }
        uint8_t *out = (uint8_t *)args.token.data + (col * args.rows + row) / 2;
        *reinterpret_cast<uint2 *>(out) = make_uint2(codes[0][0], codes[0][1]);
        *reinterpret_cast<uint2 *>(out + args.rows / 2) = make_uint2(codes[1][0], codes[1][1]);
    }
};

// --- the row operand ---

/* Of the even and of the odd elements. */
static __device__ __forceinline__ uint32_t max_abs_of_8(uint4 v) {
    return max2(max2(abs2(v.x), abs2(v.y)), max2(abs2(v.z), abs2(v.w)));
}

/* Maxima of the 16-column blocks of two rows, of which this lane and its neighbour hold a half
   each: the first row's in the low half of the result, the second's in the high half. */
static __device__ __forceinline__ uint32_t row_block_maxima(uint4 first, uint4 second) {
    uint32_t a = max_abs_of_8(first), b = max_abs_of_8(second);
    uint32_t most = max2(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632));
    return max2(most, __shfl_xor_sync(0xFFFFFFFFu, most, 1));
}

/* Words of random bits for this lane's half of both rows. The even lane draws the first row's
   group, the odd lane the second's; each hands over what the other needs. */
typedef struct {
    uint32_t first[2], second[2];
} RowDraws;

static __device__ __forceinline__ RowDraws draw_rows(const PairOperand &o, uint64_t own_group,
                                                     bool odd) {
    Philox4 own = draw_group(o.how, o.keys, own_group, 0);
    RowDraws d;
    for (int i = 0; i < 2; i++) {
        uint32_t received = __shfl_xor_sync(0xFFFFFFFFu, odd ? own.w[i] : own.w[2 + i], 1);
        d.first[i] = odd ? received : own.w[i];
        d.second[i] = odd ? own.w[2 + i] : received;
    }
    return d;
}

/* Rows `row` and row + 8 at columns [col, col + 8). All lanes of a warp come here. */
template <class Form, PairMode MODE>
static __device__ __forceinline__ void quantize_two_rows(const PairArgs &args, Nvfp4Tensor t,
                                                         const uint4 in[2], int64_t row,
                                                         int64_t col) {
    bool odd = threadIdx.x & 1;
    uint32_t maxima = row_block_maxima(in[0], in[1]);
    // Each lane of two works out one row's scale.
    BlockScale own = block_scale(t, odd ? high_f32(maxima) : low_f32(maxima)), other;
    other.scale = __shfl_xor_sync(0xFFFFFFFFu, own.scale, 1);
    other.mult = __shfl_xor_sync(0xFFFFFFFFu, own.mult, 1);
    RowDraws draws = {};
    if (MODE == MODE_STOCHASTIC) {
        uint64_t group = draw_group_index(args.row.how, args.cols, row + (odd ? 8 : 0), col / 16);
        draws = draw_rows(args.row, group, odd);
    }
    uint32_t keep = signs_to_keep(t);
    int hardware = args.row.how.hardware_rounding;
    typename Form::Eight first =
        Form::template round_row<MODE>(in[0], odd ? other : own, keep, draws.first, hardware);
    typename Form::Eight second =
        Form::template round_row<MODE>(in[1], odd ? own : other, keep, draws.second, hardware);
    Form::store_rows(args, first, second, own.scale, row, col);
}

// --- the token operand ---

/* Rows [row, row + 16) at columns col and col + 1. All lanes of a warp come here. */
template <class Form, PairMode MODE, bool TRANSFORM>
static __device__ __forceinline__ void quantize_two_columns(const PairArgs &args, Nvfp4Tensor t,
                                                            uint32_t word[16], int64_t row,
                                                            int64_t col) {
    if (TRANSFORM) {
        float low[16], high[16];
        transform_columns(low, high, word, args.token.sign_mask);
#pragma unroll
        for (int r = 0; r < 16; r++) word[r] = pack_bf16x2(low[r] * 0.25f, high[r] * 0.25f);
    }
    uint32_t maxima = 0;
#pragma unroll
    for (int r = 0; r < 16; r++) maxima = max2(maxima, abs2(word[r]));
    BlockScale s[2] = {block_scale(t, low_f32(maxima)), block_scale(t, high_f32(maxima))};
    Form::template store_columns<MODE>(args, word, s, signs_to_keep(t), row, col);
}

// --- the kernel ---

/* Where a strip's words lie in a row of the tile: moved by 8 words a strip, so that four strips
   are read without a bank conflict, and groups of four words stay together. */
static __device__ __forceinline__ int tile_word(int strip, int pair) { return pair ^ strip * 8; }

/*
A block takes a tile of x: 32 rows x 256 columns for values, 64 x 128 for codes. A thread reads 8
columns of four rows and rounds them for the row operand; through shared memory it gets 16 rows x 2
columns for the token operand.
  bytes    2 read per element; 2 (values) or 9/16 (codes and scales) written for each operand;
           full 32-byte sectors, but for the words of scales, which fill theirs together with
           neighbouring threads and tiles
  limiter  memory to nearest; instruction issue for two stochastic operands, half of it Philox;
           measured: see dev/SPEED.md
*/
template <class Form, PairMode ROW, PairMode TOKEN, bool TRANSFORM>
__global__ static void __launch_bounds__(PAIR_THREADS, 3) quantize_pair_kernel(PairArgs args) {
    __shared__ uint32_t tile[Form::TILE_ROWS][Form::TILE_PAIRS];
    __shared__ Nvfp4Tensor tensors[2];       // of the row and token operand: one thread's divisions
    const int lanes = Form::TILE_COLS / 8;   // of a warp, along a row
    int64_t tiles_per_row = (args.cols + Form::TILE_COLS - 1) / Form::TILE_COLS;
    int64_t row0 = blockIdx.x / tiles_per_row * Form::TILE_ROWS,
            col0 = blockIdx.x % tiles_per_row * Form::TILE_COLS;
    int warp = threadIdx.x / PAIR_WARP, lane = threadIdx.x % PAIR_WARP;
    int first_row = lane / lanes * PAIR_ROWS + warp, first_pair = lane % lanes * 4;
    int64_t col = col0 + first_pair * 2;
    uint4 in[PAIR_LOADS];
#pragma unroll
    for (int i = 0; i < PAIR_LOADS; i++) {
        int64_t row = row0 + first_row + i * PAIR_WARPS;
        in[i] = make_uint4(0, 0, 0, 0);
        if (row < args.rows && col < args.cols)
            in[i] = *reinterpret_cast<const uint4 *>(args.x + row * args.cols + col);
    }
    if (TOKEN != MODE_ABSENT) {
#pragma unroll
        for (int i = 0; i < PAIR_LOADS; i++) {
            int row = first_row + i * PAIR_WARPS;
            *reinterpret_cast<uint4 *>(&tile[row][tile_word(row / 16, first_pair)]) = in[i];
        }
    }
    if (ROW != MODE_ABSENT && threadIdx.x == 0)
        tensors[0] = nvfp4_tensor(*args.row.amax, &args.row.how.how);
    if (TOKEN != MODE_ABSENT && threadIdx.x == PAIR_WARP)
        tensors[1] = nvfp4_tensor(*args.token.amax, &args.token.how.how);
    __syncthreads();
    if (ROW != MODE_ABSENT) {
#pragma unroll
        for (int i = 0; i < PAIR_LOADS; i += 2)
            quantize_two_rows<Form, ROW>(args, tensors[0], in + i,
                                         row0 + first_row + i * PAIR_WARPS, col);
    }
    if (TOKEN != MODE_ABSENT) {
        int strip = Form::strip(threadIdx.x), pair = Form::pair(threadIdx.x);
        uint32_t word[16];
#pragma unroll
        for (int r = 0; r < 16; r++) word[r] = tile[strip * 16 + r][tile_word(strip, pair)];
        quantize_two_columns<Form, TOKEN, TRANSFORM>(args, tensors[1], word, row0 + strip * 16,
                                                     col0 + pair * 2);
    }
}

// --- the choice of an instance ---

typedef void PairKernel(PairArgs);
#define PAIR_ONE(form, row, token) quantize_pair_kernel<form, MODE_##row, MODE_##token, false>
#define PAIR_TWO(form, row, token)                                                                 \
    { PAIR_ONE(form, row, token), quantize_pair_kernel<form, MODE_##row, MODE_##token, true> }
#define PAIR_ROW(form, alone, row)                                                                 \
    { {alone, NULL}, PAIR_TWO(form, row, NEAREST), PAIR_TWO(form, row, STOCHASTIC) }
#define PAIR_KERNELS(form)                                                                         \
    {                                                                                              \
        PAIR_ROW(form, NULL, ABSENT), PAIR_ROW(form, PAIR_ONE(form, NEAREST, ABSENT), NEAREST),    \
            PAIR_ROW(form, PAIR_ONE(form, STOCHASTIC, ABSENT), STOCHASTIC),                        \
    }

typedef struct {
    int tile_rows, tile_cols;
    // [row mode][token mode][whether the token operand is transformed]
    PairKernel *kernels[NUM_MODES][NUM_MODES][2];
} PairForm;
// By OperandForm.
static const PairForm pair_forms[] = {
    {PairValues::TILE_ROWS, PairValues::TILE_COLS, PAIR_KERNELS(PairValues)},
    {PairCodes::TILE_ROWS, PairCodes::TILE_COLS, PAIR_KERNELS(PairCodes)},
};

/* How the pair kernel makes this operand; MODE_NONE: not at all. */
static inline PairMode pair_mode(const QOperand *o, const Quantizer *q) {
    if (!o) return MODE_ABSENT;
    if (!operand_is_plain_nvfp4(&q->how)) return MODE_NONE;
    if (q->how.tile != TILE_ROW || (q->how.hadamard && !q->token_operand)) return MODE_NONE;
    if (q->how.rounding == ROUND_NEAREST) return MODE_NEAREST;
    return q->how.dither_bits == 8 ? MODE_STOCHASTIC : MODE_NONE;
}

static inline PairOperand pair_operand(const QOperand *o, const Quantizer *q) {
    PairOperand p = {};
    p.data = o->data;
    p.scales = o->scales;
    p.amax = o->amax;
    p.how = *q;
    p.keys = round_keys(q->seed);
    p.sign_mask = hadamard_sign_mask(q->how.signs);
    return p;
}

typedef struct {
    PairKernel *kernel;   // NULL: nothing to do
    unsigned blocks;
    PairArgs args;
} PairLaunch;

/* What makes those of the two operands that have this form and are known to the kernel. Scales of
   ragged operands must have been zeroed: see scales_have_padding. */
static inline PairLaunch pair_launch(OperandForm form, const QOperand *row,
                                     const Quantizer *row_how, const QOperand *token,
                                     const Quantizer *token_how, Tensor x) {
    PairLaunch launch = {};
    PairMode row_mode = MODE_ABSENT, token_mode = MODE_ABSENT;
    if (row && row->form == form) row_mode = pair_mode(row, row_how);
    if (token && token->form == form) token_mode = pair_mode(token, token_how);
    if (row_mode == MODE_NONE) row_mode = MODE_ABSENT;
    if (token_mode == MODE_NONE) token_mode = MODE_ABSENT;
    if (row_mode != MODE_ABSENT) launch.args.row = pair_operand(row, row_how);
    if (token_mode != MODE_ABSENT) launch.args.token = pair_operand(token, token_how);
    launch.args.x = (const uint16_t *)x.data;
    launch.args.rows = x.rows;
    launch.args.cols = x.cols;
    const PairForm *f = &pair_forms[form];
    launch.blocks = (unsigned)(ceil_div(x.rows, f->tile_rows) * ceil_div(x.cols, f->tile_cols));
    int transform = token_mode != MODE_ABSENT && token_how->how.hadamard;
    launch.kernel = f->kernels[row_mode][token_mode][transform];
    return launch;
}
