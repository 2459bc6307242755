// quantize -- on a GPU. Training's operands (VALUES, rows of 16, at most a transform along the
// tokens, 8 dither bits) take one kernel that reads x once; every other cell and form takes a
// kernel with a thread for each block of 16.
#include "quantize.h"

#include "../device_cuda.cuh"
#include "hadamard.h"
#include "quantize.cuh"

enum {
    WARP = 32,
    THREADS = 256,
    TILE_ROWS = 32,    // of the pair kernel: two blocks of a token operand
    TILE_COLS = 256,   // 8 a lane along a row, 2 a thread down the columns
    TILE_PAIRS = TILE_COLS / 2
};

// --- amax ---

/* The NaN of a or b, which fmaxf would lose. */
static __device__ __forceinline__ float max_abs_nan(float a, float b) {
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(fabsf(b)));
    return m;
}

/* Magnitudes compare as the integers of their bits, so an integer maximum is exact and in any
   order. */
static __device__ void add_block_maximum(float *amax, uint32_t bits) {
    __shared__ uint32_t warp_max[THREADS / WARP];
    if (bits > 0x7F800000u) bits = 0x7FFFFFFFu;   // one NaN for all devices
    uint32_t most = __reduce_max_sync(0xFFFFFFFFu, bits);
    __syncthreads();   // of an earlier call's reads
    if (threadIdx.x % WARP == 0) warp_max[threadIdx.x / WARP] = most;
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    most = __reduce_max_sync(0xFFFFFFFFu, threadIdx.x < THREADS / WARP ? warp_max[threadIdx.x] : 0);
    if (threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned *>(amax), most);
}

/* Where the maxima go; NULL: not wanted. `plain` of x itself, `transformed` of its transform
   along the rows. */
typedef struct {
    float *plain[2], *transformed;
    uint32_t sign_mask;
} AmaxTargets;

/*
A thread takes 16 rows x 2 columns at a time; a warp reads 128 bytes of each row. The factor 0.25
and the rounding to bf16 keep the order of numbers, so the maximum takes them, once.
  bytes    2 per element, read once
  limiter  memory; the transform costs 4 additions an element; measured: see dev/SPEED.md
*/
template <bool TRANSFORM>
__global__ static void __launch_bounds__(THREADS, 4)
    amax_pair_kernel(AmaxTargets targets, const uint32_t *x, uint32_t num_strips,
                     uint32_t pairs_per_row) {
    uint32_t plain = 0;
    float most = 0.0f;
    uint64_t num_tasks = (uint64_t)num_strips * pairs_per_row;
    for (uint64_t task = (uint64_t)blockIdx.x * THREADS + threadIdx.x; task < num_tasks;
         task += (uint64_t)gridDim.x * THREADS) {
        uint32_t strip = (uint32_t)task / pairs_per_row, pair = (uint32_t)task % pairs_per_row;
        const uint32_t *p = x + (uint64_t)strip * 16 * pairs_per_row + pair;
        uint32_t word[16];
#pragma unroll
        for (int r = 0; r < 16; r++) word[r] = p[(uint64_t)r * pairs_per_row];
#pragma unroll
        for (int r = 0; r < 16; r++) plain = max2(plain, abs2(word[r]));
        if (TRANSFORM) {
            float low[16], high[16];
            transform_columns(low, high, word, targets.sign_mask);
#pragma unroll
            for (int r = 0; r < 16; r++) most = max_abs_nan(max_abs_nan(most, low[r]), high[r]);
        }
    }
    uint32_t plain_bits = max(plain << 16, plain & 0xFFFF0000u);
    for (int i = 0; i < 2; i++)
        if (targets.plain[i]) add_block_maximum(targets.plain[i], plain_bits);
    if (TRANSFORM) add_block_maximum(targets.transformed, pack_bf16x2(0.0f, most * 0.25f));
}

// --- pairs of values ---

typedef enum {
    MODE_ABSENT,
    MODE_NEAREST,
    MODE_STOCHASTIC,
    NUM_MODES,
    MODE_NONE = NUM_MODES
} PairMode;

/* One operand of the pair kernel. values: bf16 in x's layout. */
typedef struct {
    uint16_t *values;
    const float *amax;
    Quantizer how;
    RoundKeys keys;
    uint32_t sign_mask;
} PairOperand;
typedef struct {
    PairOperand row, token;
    const uint16_t *x;
    int64_t rows, cols;
} PairArgs;

/* What rounds the elements of a word: of each half its coeff, and the block scales of both as
   bf16. */
typedef struct {
    float low_mult, high_mult;
    __nv_bfloat162 scales;
} PairScales;

/* Both values of a word, rounded and scaled back; both products are exact in bf16. keep: the sign
   bits to take over; 0 in a tensor that is not finite, whose values are all the same NaN. */
template <PairMode MODE>
static __device__ __forceinline__ uint32_t round_pair(uint32_t pair, PairScales s, uint32_t keep,
                                                      float low_dither, float high_dither) {
    float low = __fmul_rn(low_f32(pair), s.low_mult), high = __fmul_rn(high_f32(pair), s.high_mult);
    if (MODE == MODE_NEAREST) {
        low = e2m1_nearest(low);
        high = e2m1_nearest(high);
    } else {
        low = e2m1_stochastic(low, low_dither, DITHER8_OFFSET);
        high = e2m1_stochastic(high, high_dither, DITHER8_OFFSET);
    }
    uint32_t values = as_word(__hmul2_rn(as_bf16x2(pack_bf16x2(low, high)), s.scales));
    return values | (pair & keep);
}

static __device__ __forceinline__ uint32_t signs_to_keep(Nvfp4Tensor t) {
    return t.quant_mult == t.quant_mult ? 0x80008000u : 0;
}

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

template <PairMode MODE>
static __device__ __forceinline__ uint4 round_row(uint4 in, float mult, float scale, uint32_t keep,
                                                  const uint32_t draws[2]) {
    PairScales s = {mult, mult, __float2bfloat162_rn(scale)};
    const uint32_t word[4] = {in.x, in.y, in.z, in.w};
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float low = 0, high = 0;
        if (MODE == MODE_STOCHASTIC) {
            low = half_dither8(draws[i / 2], 2 * i % 4);
            high = half_dither8(draws[i / 2], 2 * i % 4 + 1);
        }
        out[i] = round_pair<MODE>(word[i], s, keep, low, high);
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

/* Rows `row` and row + 8 at columns [col, col + 8) of a row operand. All lanes of a warp come
   here. */
template <PairMode MODE>
static __device__ __forceinline__ void quantize_two_rows(const PairArgs &args, Nvfp4Tensor t,
                                                         const uint4 in[2], int64_t row,
                                                         int64_t col) {
    bool odd = threadIdx.x & 1;
    uint32_t maxima = row_block_maxima(in[0], in[1]);
    // Each lane of two works out one row's scale.
    float own_scale =
        nvfp4_round_scale(nvfp4_raw_scale(t, odd ? high_f32(maxima) : low_f32(maxima)));
    float own_mult = nvfp4_element_mult(t, own_scale);
    float other_scale = __shfl_xor_sync(0xFFFFFFFFu, own_scale, 1);
    float other_mult = __shfl_xor_sync(0xFFFFFFFFu, own_mult, 1);
    RowDraws draws = {};
    if (MODE == MODE_STOCHASTIC) {
        uint64_t group = draw_group_index(args.row.how, args.cols, row + (odd ? 8 : 0), col / 16);
        draws = draw_rows(args.row, group, odd);
    }
    uint32_t keep = signs_to_keep(t);
    uint4 first = round_row<MODE>(in[0], odd ? other_mult : own_mult, odd ? other_scale : own_scale,
                                  keep, draws.first);
    uint4 second = round_row<MODE>(in[1], odd ? own_mult : other_mult,
                                   odd ? own_scale : other_scale, keep, draws.second);
    if (row >= args.rows || col >= args.cols)
        return;   // rows come in sixteens: row + 8 is inside when row is
    *reinterpret_cast<uint4 *>(args.row.values + row * args.cols + col) = first;
    *reinterpret_cast<uint4 *>(args.row.values + (row + 8) * args.cols + col) = second;
}

/* Rows [row, row + 16) at columns col and col + 1 of a token operand. */
template <PairMode MODE, bool TRANSFORM>
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
    float low_scale = nvfp4_round_scale(nvfp4_raw_scale(t, low_f32(maxima)));
    float high_scale = nvfp4_round_scale(nvfp4_raw_scale(t, high_f32(maxima)));
    PairScales s = {nvfp4_element_mult(t, low_scale), nvfp4_element_mult(t, high_scale),
                    __floats2bfloat162_rn(low_scale, high_scale)};
    Philox4 low_draw = {}, high_draw = {};
    if (MODE == MODE_STOCHASTIC) {
        uint64_t group = draw_group_index(args.token.how, args.cols, col, row / 16);
        low_draw = draw_group(args.token.how, args.token.keys, group, 0);
        high_draw = draw_group(args.token.how, args.token.keys, group + 1, 0);
    }
    uint32_t keep = signs_to_keep(t);
    uint16_t *out = args.token.values + row * args.cols + col;
#pragma unroll
    for (int r = 0; r < 16; r++) {
        float low = 0, high = 0;
        if (MODE == MODE_STOCHASTIC) {
            low = half_dither8(low_draw.w[r / 4], r % 4);
            high = half_dither8(high_draw.w[r / 4], r % 4);
        }
        *reinterpret_cast<uint32_t *>(out + r * args.cols) =
            round_pair<MODE>(word[r], s, keep, low, high);
    }
}

/*
A block takes a tile of 32 rows x 256 columns. Warp w reads rows w, w + 8, w + 16, w + 24, a lane 8
columns of each, and rounds them for the row operand; through shared memory a thread gets 16 rows x
2 columns for the token operand.
  bytes    2 read and 2 written per element and operand, all in full 32-byte sectors
  limiter  memory to nearest; instruction issue for two stochastic operands, half of it Philox;
           measured: see dev/SPEED.md
*/
template <PairMode ROW, PairMode TOKEN, bool TRANSFORM>
__global__ static void __launch_bounds__(THREADS, 3) quantize_pair_kernel(PairArgs args) {
    __shared__ uint32_t tile[TILE_ROWS][TILE_PAIRS];
    __shared__ Nvfp4Tensor
        tensors[2];   // of the row and of the token operand: one thread's divisions
    int64_t tiles_per_row = (args.cols + TILE_COLS - 1) / TILE_COLS;
    int64_t row0 = blockIdx.x / tiles_per_row * TILE_ROWS,
            col0 = blockIdx.x % tiles_per_row * TILE_COLS;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int64_t col = col0 + lane * 8;
    uint4 in[TILE_ROWS / 8];
#pragma unroll
    for (int i = 0; i < TILE_ROWS / 8; i++) {
        int64_t row = row0 + warp + i * 8;
        in[i] = make_uint4(0, 0, 0, 0);
        if (row < args.rows && col < args.cols)
            in[i] = *reinterpret_cast<const uint4 *>(args.x + row * args.cols + col);
    }
    if (TOKEN != MODE_ABSENT) {
#pragma unroll
        for (int i = 0; i < TILE_ROWS / 8; i++)
            *reinterpret_cast<uint4 *>(&tile[warp + i * 8][lane * 4]) = in[i];
    }
    if (ROW != MODE_ABSENT && threadIdx.x == 0)
        tensors[0] = nvfp4_tensor(*args.row.amax, &args.row.how.how);
    if (TOKEN != MODE_ABSENT && threadIdx.x == WARP)
        tensors[1] = nvfp4_tensor(*args.token.amax, &args.token.how.how);
    __syncthreads();
    if (ROW != MODE_ABSENT) {
        quantize_two_rows<ROW>(args, tensors[0], in, row0 + warp, col);
        quantize_two_rows<ROW>(args, tensors[0], in + 2, row0 + warp + 16, col);
    }
    if (TOKEN != MODE_ABSENT) {
        int strip = threadIdx.x / TILE_PAIRS, pair = threadIdx.x % TILE_PAIRS;
        int64_t row = row0 + strip * 16, pair_col = col0 + pair * 2;
        if (row >= args.rows || pair_col >= args.cols) return;
        uint32_t word[16];
#pragma unroll
        for (int r = 0; r < 16; r++) word[r] = tile[strip * 16 + r][pair];
        quantize_two_columns<TOKEN, TRANSFORM>(args, tensors[1], word, row, pair_col);
    }
}

typedef void PairKernel(PairArgs);
#define PLAIN(row, token) quantize_pair_kernel<MODE_##row, MODE_##token, false>
#define BOTH(row, token)                                                                           \
    { PLAIN(row, token), quantize_pair_kernel<MODE_##row, MODE_##token, true> }
// clang-format off
// [row mode][token mode][whether the token operand is transformed]
static PairKernel *const pair_kernels[NUM_MODES][NUM_MODES][2] = {
    // token: absent                  nearest                      stochastic
    {{NULL, NULL},                    BOTH(ABSENT, NEAREST),       BOTH(ABSENT, STOCHASTIC)},
    {{PLAIN(NEAREST, ABSENT), NULL},  BOTH(NEAREST, NEAREST),      BOTH(NEAREST, STOCHASTIC)},
    {{PLAIN(STOCHASTIC, ABSENT), NULL}, BOTH(STOCHASTIC, NEAREST), BOTH(STOCHASTIC, STOCHASTIC)},
};
// clang-format on

// --- a thread for a block ---

/* Block `block` of row `row` of the operand, transformed where the cell says so. */
static __device__ void load_block(float v[16], const Quantizer &q, const uint16_t *x, int64_t cols,
                                  int64_t row, int64_t block, uint32_t sign_mask) {
    int64_t at = q.token_operand ? block * 16 * cols + row : row * cols + block * 16;
    int64_t stride = q.token_operand ? cols : 1;
#pragma unroll
    for (int e = 0; e < 16; e++) v[e] = __uint_as_float((uint32_t)x[at + e * stride] << 16);
    if (!q.how.hadamard) return;
#pragma unroll
    for (int e = 0; e < 16; e++)
        if (sign_mask >> e & 1) v[e] = -v[e];
    hadamard16_butterflies(v);
#pragma unroll
    for (int e = 0; e < 16; e++) v[e] = __bfloat162float(__float2bfloat16_rn(v[e] * 0.25f));
}

static __device__ uint32_t block_amax_bits(const float v[16]) {
    uint32_t most = 0;
#pragma unroll
    for (int e = 0; e < 16; e++) most = max(most, __float_as_uint(v[e]) & 0x7FFFFFFFu);
    return most;
}

/* The block of one thread. 16 neighbouring threads hold the 16 rows of a tile; tiles follow each
   other the way x lies in memory. */
typedef struct {
    int64_t row, block;
} BlockPlace;
static __device__ BlockPlace block_place(const QOperand &o, const Quantizer &q, int64_t thread) {
    int64_t tile = thread / 16, tile_rows = o.rows / 16, blocks = o.k / 16;
    BlockPlace p;
    p.row = (q.token_operand ? tile % tile_rows : tile / blocks) * 16 + thread % 16;
    p.block = q.token_operand ? tile / tile_rows : tile % blocks;
    return p;
}

/* bytes 2 per element, read once; limiter: memory and its latency. For a row operand that is
   transformed. */
__global__ static void __launch_bounds__(THREADS)
    amax_block_kernel(QOperand o, Quantizer q, const uint16_t *x, int64_t cols,
                      uint32_t sign_mask) {
    int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    uint32_t most = 0;
    if (thread < o.rows * o.k / 16) {
        float v[16];
        BlockPlace p = block_place(o, q, thread);
        load_block(v, q, x, cols, p.row, p.block, sign_mask);
        most = block_amax_bits(v);
    }
    add_block_maximum(o.amax, most);
}

/* draw / 2^(bits + 1) of each element, for any width. */
static __device__ void draw_block(float half_dither[16], const Quantizer &q, const RoundKeys &keys,
                                  uint64_t group) {
    int bits = q.how.dither_bits;
    float unit = 0.5f / (float)(1u << bits);
    for (int sub = 0; sub < (bits == 24 ? 4 : bits / 8); sub++) {
        Philox4 draw = draw_group(q, keys, group, (uint32_t)sub);
#pragma unroll
        for (int e = 0; e < 16; e++) {
            uint32_t word8 = draw.w[e / 4], word16 = draw.w[e % 8 / 2], word24 = draw.w[e % 4];
            if (bits == 8) half_dither[e] = (float)(word8 >> e % 4 * 8 & 0xFF) * unit;
            else if (bits == 16 && e / 8 == sub)
                half_dither[e] = (float)(word16 >> e % 2 * 16 & 0xFFFF) * unit;
            else if (bits == 24 && e / 4 == sub) half_dither[e] = (float)(word24 >> 8) * unit;
        }
    }
}

static __device__ void store_values(const QOperand &o, const Quantizer &q, int64_t cols,
                                    BlockPlace p, const float magnitude[16], float scale,
                                    const uint32_t sign[16]) {
    int64_t at = q.token_operand ? p.block * 16 * cols + p.row : p.row * cols + p.block * 16;
    int64_t stride = q.token_operand ? cols : 1;
    uint16_t *values = (uint16_t *)o.data;
#pragma unroll
    for (int e = 0; e < 16; e++) {
        uint32_t product =
            __float_as_uint(__fmul_rn(magnitude[e], scale));   // exact in bf16, or NaN
        values[at + e * stride] = (uint16_t)((product | sign[e]) >> 16);
    }
}

static __device__ void store_codes(const QOperand &o, BlockPlace p, const float magnitude[16],
                                   float scale, const uint32_t sign[16]) {
    uint32_t word[2] = {0, 0};
#pragma unroll
    for (int e = 0; e < 16; e++)
        word[e / 8] |= (e2m1_magnitude_code(magnitude[e]) | sign[e] >> 28) << e % 8 * 4;
    *reinterpret_cast<uint2 *>((uint8_t *)o.data + (p.row * o.k + p.block * 16) / 2) =
        make_uint2(word[0], word[1]);
    int64_t padded_cols = (o.k / 16 + 3) / 4 * 4;
    int64_t tile = p.row / 128 * (padded_cols / 4) + p.block / 4;   // as quantize_scale_offset
    o.scales[tile * 512 + p.row % 32 * 16 + p.row % 128 / 32 * 4 + p.block % 4] =
        nvfp4_scale_code(scale);
}

/*
A thread takes a block of 16; the 16 threads of a square tile share their maximum. For every cell
and form that the pair kernel does not know: weights once a step, ablations, packed codes.
  bytes    2 read per element; 2 (values) or 9/16 (codes and scales) written; a row operand's
           accesses fill sectors, a token operand's codes do not
  limiter  memory; measured: see dev/SPEED.md
*/
__global__ static void __launch_bounds__(THREADS)
    quantize_block_kernel(QOperand o, Quantizer q, RoundKeys keys, const uint16_t *x, int64_t cols,
                          uint32_t sign_mask) {
    int64_t thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (thread >= o.rows * o.k / 16) return;   // whole tiles of 16 threads
    float v[16], half_dither[16];
    BlockPlace p = block_place(o, q, thread);
    load_block(v, q, x, cols, p.row, p.block, sign_mask);
    uint32_t most = block_amax_bits(v);
    if (q.how.tile == TILE_SQUARE) {
        unsigned tile_lanes = 0xFFFFu << (threadIdx.x & 16);
        for (int other = 8; other > 0; other /= 2)
            most = max(most, __shfl_xor_sync(tile_lanes, most, other));
    }
    Nvfp4Tensor t = nvfp4_tensor(*o.amax, &q.how);
    float scale = nvfp4_round_scale(nvfp4_raw_scale(t, __uint_as_float(most)));
    float mult = nvfp4_element_mult(t, scale);
    bool stochastic = q.how.rounding == ROUND_STOCHASTIC;
    if (stochastic) draw_block(half_dither, q, keys, draw_group_index(q, cols, p.row, p.block));
    uint32_t sign[16], keep = signs_to_keep(t) & 0x80000000u;
#pragma unroll
    for (int e = 0; e < 16; e++) {
        sign[e] = __float_as_uint(v[e]) & keep;
        float y = __fmul_rn(v[e], mult);
        v[e] = stochastic ? e2m1_stochastic(y, half_dither[e], 0.0f) : e2m1_nearest(y);
    }
    if (o.form == FORM_PACKED) store_codes(o, p, v, scale, sign);
    else store_values(o, q, cols, p, v, scale, sign);
}

// --- launchers ---

static void check_cuda(const QOperand *row, const Quantizer *row_how, const QOperand *token,
                       const Quantizer *token_how, Tensor x) {
    quantize_check(row, row_how, token, token_how, x);
    CHECK(x.dtype == DT_BF16, "x is %s: the GPU quantises bf16", dtype_info[x.dtype].name);
    CHECK((uintptr_t)x.data % 16 == 0, "x at %p is not aligned to 16 bytes", x.data);
    CHECK(!row || (uintptr_t)row->data % 16 == 0, "the row operand is not aligned to 16 bytes");
    CHECK(!token || (uintptr_t)token->data % 16 == 0,
          "the token operand is not aligned to 16 bytes");
    CHECK(tensor_count(x) / 32 <= UINT32_MAX, "x has %lld elements", (long long)tensor_count(x));
}

static void amax_of_blocks(cudaStream_t stream, const QOperand *o, const Quantizer *how, Tensor x) {
    unsigned blocks = (unsigned)ceil_div(tensor_count(x) / 16, THREADS);
    amax_block_kernel<<<blocks, THREADS, 0, stream>>>(*o, *how, (const uint16_t *)x.data, x.cols,
                                                      hadamard_sign_mask(how->how.signs));
    CUDA_CHECK_LAUNCH();
}

void amax_pair_cuda(Device *d, QOperand *row, const Quantizer *row_how, QOperand *token,
                    const Quantizer *token_how, Tensor x) {
    check_cuda(row, row_how, token, token_how, x);
    cudaStream_t stream = device_cuda_stream(d);
    if (row) CUDA_CHECK(cudaMemsetAsync(row->amax, 0, sizeof(float), stream));
    if (token) CUDA_CHECK(cudaMemsetAsync(token->amax, 0, sizeof(float), stream));
    AmaxTargets targets = {};
    if (row && row_how->how.hadamard) amax_of_blocks(stream, row, row_how, x);
    else if (row) targets.plain[0] = row->amax;
    if (token && token_how->how.hadamard) {
        targets.transformed = token->amax;
        targets.sign_mask = hadamard_sign_mask(token_how->how.signs);
    } else if (token) {
        targets.plain[1] = token->amax;
    }
    if (!targets.plain[0] && !targets.plain[1] && !targets.transformed) return;
    int64_t waves = 4;   // blocks of every multiprocessor, as many as fit at a time
    unsigned blocks =
        (unsigned)min_i64(ceil_div(tensor_count(x) / 32, THREADS), d->num_threads * waves);
    auto *kernel = targets.transformed ? amax_pair_kernel<true> : amax_pair_kernel<false>;
    kernel<<<blocks, THREADS, 0, stream>>>(targets, (const uint32_t *)x.data,
                                           (uint32_t)(x.rows / 16), (uint32_t)(x.cols / 2));
    CUDA_CHECK_LAUNCH();
}

/* How the pair kernel makes this operand; MODE_NONE: not at all. */
static PairMode pair_mode(const QOperand *o, const Quantizer *q) {
    if (!o) return MODE_ABSENT;
    if (o->form != FORM_VALUES || q->how.tile != TILE_ROW || (q->how.hadamard && !q->token_operand))
        return MODE_NONE;
    if (q->how.rounding == ROUND_NEAREST) return MODE_NEAREST;
    return q->how.dither_bits == 8 ? MODE_STOCHASTIC : MODE_NONE;
}

static PairOperand pair_operand(const QOperand *o, const Quantizer *q) {
    PairOperand p = {};
    if (!o) return p;
    p.values = (uint16_t *)o->data;
    p.amax = o->amax;
    p.how = *q;
    p.keys = round_keys(q->seed);
    p.sign_mask = hadamard_sign_mask(q->how.signs);
    return p;
}

static void quantize_blocks(cudaStream_t stream, const QOperand *o, const Quantizer *how,
                            Tensor x) {
    if (o->form == FORM_PACKED)
        CUDA_CHECK(cudaMemsetAsync(o->scales, 0, quantize_scales_bytes(o->rows, o->k), stream));
    unsigned blocks = (unsigned)ceil_div(tensor_count(x) / 16, THREADS);
    quantize_block_kernel<<<blocks, THREADS, 0, stream>>>(*o, *how, round_keys(how->seed),
                                                          (const uint16_t *)x.data, x.cols,
                                                          hadamard_sign_mask(how->how.signs));
    CUDA_CHECK_LAUNCH();
}

void quantize_pair_cuda(Device *d, QOperand *row, const Quantizer *row_how, QOperand *token,
                        const Quantizer *token_how, Tensor x) {
    check_cuda(row, row_how, token, token_how, x);
    cudaStream_t stream = device_cuda_stream(d);
    PairMode row_mode = pair_mode(row, row_how), token_mode = pair_mode(token, token_how);
    if (row_mode == MODE_NONE) {
        quantize_blocks(stream, row, row_how, x);
        row_mode = MODE_ABSENT;
    }
    if (token_mode == MODE_NONE) {
        quantize_blocks(stream, token, token_how, x);
        token_mode = MODE_ABSENT;
    }
    if (row_mode == MODE_ABSENT && token_mode == MODE_ABSENT) return;
    PairArgs args = {};
    if (row_mode != MODE_ABSENT) args.row = pair_operand(row, row_how);
    if (token_mode != MODE_ABSENT) args.token = pair_operand(token, token_how);
    args.x = (const uint16_t *)x.data;
    args.rows = x.rows;
    args.cols = x.cols;
    int transform = token_mode != MODE_ABSENT && token_how->how.hadamard;
    unsigned blocks = (unsigned)(ceil_div(x.rows, TILE_ROWS) * ceil_div(x.cols, TILE_COLS));
    pair_kernels[row_mode][token_mode][transform]<<<blocks, THREADS, 0, stream>>>(args);
    CUDA_CHECK_LAUNCH();
}
