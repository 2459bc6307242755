// quantize -- on a GPU: the maxima, a kernel with a thread for each block of 16 for whatever cell
// quantize_pair.cuh does not know, and the launchers, also of formats without blocks
// (quantize_fp8.cuh).
#include "quantize.h"

#include "../device_cuda.cuh"
#include "hadamard.h"
#include "quantize.cuh"
#include "quantize_fp8.cuh"
#include "quantize_pair.cuh"

enum { WARP = 32, THREADS = 256 };

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
    float y[16];
#pragma unroll
    for (int e = 0; e < 16; e++) y[e] = __uint_as_float(__float_as_uint(magnitude[e]) | sign[e]);
    *reinterpret_cast<uint2 *>((uint8_t *)o.data + (p.row * o.k + p.block * 16) / 2) =
        make_uint2(e2m1x8_encode(y), e2m1x8_encode(y + 8));
    o.scales[scale_word_offset(p.row, p.block / 4, o.k) + p.block % 4] = nvfp4_scale_code(scale);
}

/*
A thread takes a block of 16; the 16 threads of a square tile share their maximum. For every cell
that the pair kernel does not know: weights once a step, ablations.
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

static void check_cuda(const Device *d, const QOperand *row, const Quantizer *row_how,
                       const QOperand *token, const Quantizer *token_how, Tensor x) {
    quantize_check(row, row_how, token, token_how, x);
    CHECK(x.dtype == DT_BF16, "x is %s: the GPU quantises bf16", dtype_info[x.dtype].name);
    CHECK((uintptr_t)x.data % 16 == 0, "x at %p is not aligned to 16 bytes", x.data);
    CHECK(!row || (uintptr_t)row->data % 16 == 0, "the row operand is not aligned to 16 bytes");
    CHECK(!token || (uintptr_t)token->data % 16 == 0,
          "the token operand is not aligned to 16 bytes");
    int hardware =
        (row && row_how->hardware_rounding) || (token && token_how->hardware_rounding);
    CHECK(!hardware || quantize_has_hardware_rounding(d),
          "%s does not round stochastically itself", d->name);
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
    check_cuda(d, row, row_how, token, token_how, x);
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

static void quantize_blocks(cudaStream_t stream, const QOperand *o, const Quantizer *how,
                            Tensor x) {
    unsigned blocks = (unsigned)ceil_div(tensor_count(x) / 16, THREADS);
    quantize_block_kernel<<<blocks, THREADS, 0, stream>>>(*o, *how, round_keys(how->seed),
                                                          (const uint16_t *)x.data, x.cols,
                                                          hadamard_sign_mask(how->how.signs));
    CUDA_CHECK_LAUNCH();
}

static void clear_scale_padding(cudaStream_t stream, const QOperand *o) {
    if (scales_have_padding(o))
        CUDA_CHECK(cudaMemsetAsync(o->scales, 0, quantize_scales_bytes(o->rows, o->k), stream));
}

static void quantize_fp8(cudaStream_t stream, const QOperand *row, const QOperand *token,
                         Tensor x) {
    for (int form = 0; form < ARRAY_LEN(fp8_kernels); form++) {
        Fp8Launch launch = fp8_launch((OperandForm)form, row, token, x);
        if (!launch.kernel) continue;
        launch.kernel<<<launch.blocks, FP8_THREADS, 0, stream>>>(launch.args);
        CUDA_CHECK_LAUNCH();
    }
}

void quantize_pair_cuda(Device *d, QOperand *row, const Quantizer *row_how, QOperand *token,
                        const Quantizer *token_how, Tensor x) {
    check_cuda(d, row, row_how, token, token_how, x);
    cudaStream_t stream = device_cuda_stream(d);
    quantize_fp8(stream, row, token, x);
    if (row && !format_has_blocks(row->format)) row = NULL;
    if (token && !format_has_blocks(token->format)) token = NULL;
    if (row) clear_scale_padding(stream, row);
    if (token) clear_scale_padding(stream, token);
    if (pair_mode(row, row_how) == MODE_NONE) quantize_blocks(stream, row, row_how, x);
    if (pair_mode(token, token_how) == MODE_NONE) quantize_blocks(stream, token, token_how, x);
    for (int form = 0; form < ARRAY_LEN(pair_forms); form++) {
        PairLaunch launch = pair_launch((OperandForm)form, row, row_how, token, token_how, x);
        if (!launch.kernel) continue;
        launch.kernel<<<launch.blocks, PAIR_THREADS, 0, stream>>>(launch.args);
        CUDA_CHECK_LAUNCH();
    }
}
