// quantize_fp8 -- the kernels that make operands with one scale for a tensor (fp8.h), codes or
// values: each reads x once and writes the row and the token operand together; and the choice of
// their instances. A host compiler can take this file too, see quantize.cuh.
#pragma once
#include "../common.h"
#include "fp8.h"
#include "quantize.cuh"

/* What to make of a direction. */
typedef enum { FP8_ABSENT, FP8_E4M3, FP8_E5M2, NUM_FP8_MODES } Fp8Mode;

enum {
    FP8_THREADS = 256,
    FP8_TILE_ROWS = 128,   // of x, by a block of threads: 16 by a warp
    FP8_TILE_COLS = 64,
    FP8_QUAD = 4,                               // rows of 8 columns, by a thread
    FP8_TILE_WORDS = FP8_TILE_ROWS / FP8_QUAD   // of the codes of one column
};

/* Of an absent direction the pointers are NULL. Both amax are those of x, so that directions of one
   format have the same codes. */
typedef struct {
    void *row, *token;
    const float *row_amax, *token_amax;
    const uint16_t *x;   // (rows, cols)
    int64_t rows, cols;
    unsigned last_block;
} Fp8Args;

static __device__ __forceinline__ constexpr DType fp8_elem(Fp8Mode mode) {
    return mode == FP8_E4M3 ? DT_E4M3 : DT_E5M2;
}

// --- conversion ---

// sm_89 has the instruction. A program for sm_80 that runs on it, as PTX, converts in software.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define FP8_CONVERT_NATIVE 1
#else
#define FP8_CONVERT_NATIVE 0
#endif

/* Codes of four values, the first in the lowest bits: as fp8_code. */
template <Fp8Mode MODE> static __device__ __forceinline__ uint32_t fp8x4_encode(const float v[4]) {
#if FP8_CONVERT_NATIVE
    uint16_t low, high;
    if (MODE == FP8_E4M3) {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v[1]), "f"(v[0]));
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v[3]), "f"(v[2]));
    } else {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(v[1]), "f"(v[0]));
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(v[3]), "f"(v[2]));
    }
    return (uint32_t)high << 16 | low;
#else
    uint32_t codes = 0;
    Fp8Format format = fp8_format(fp8_elem(MODE));
#pragma unroll
    for (int i = 0; i < 4; i++) codes |= (uint32_t)fp8_code(format, v[i]) << 8 * i;
    return codes;
#endif
}

/* Codes of eight bf16. */
template <Fp8Mode MODE>
static __device__ __forceinline__ uint2 fp8x8_encode(uint4 in, float scale) {
    const uint32_t word[4] = {in.x, in.y, in.z, in.w};
    float v[8];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = __fmul_rn(low_f32(word[i]), scale);
        v[2 * i + 1] = __fmul_rn(high_f32(word[i]), scale);
    }
    return make_uint2(fp8x4_encode<MODE>(v), fp8x4_encode<MODE>(v + 4));
}

/* out[i] is byte i of each of four words: a square of bytes, transposed. */
static __device__ __forceinline__ void transpose_bytes(uint32_t out[4], uint32_t a, uint32_t b,
                                                       uint32_t c, uint32_t d) {
    uint32_t ab01 = __byte_perm(a, b, 0x5140), ab23 = __byte_perm(a, b, 0x7362);
    uint32_t cd01 = __byte_perm(c, d, 0x5140), cd23 = __byte_perm(c, d, 0x7362);
    out[0] = __byte_perm(ab01, cd01, 0x5410);
    out[1] = __byte_perm(ab01, cd01, 0x7632);
    out[2] = __byte_perm(ab23, cd23, 0x5410);
    out[3] = __byte_perm(ab23, cd23, 0x7632);
}

// --- codes ---

/* Word of the tile that holds rows [4 quad, 4 quad + 4) of a column. Sixteen rows stay together, as
   they are stored; which of the column's eight places they take differs between neighbouring groups
   of eight columns, so that a warp's words lie in 32 banks when it writes and when it reads. */
static __device__ __forceinline__ int fp8_tile_word(int col, int quad) {
    int place = (quad / 4) ^ (col / 8 % 8);
    return col * FP8_TILE_WORDS + place * 4 + quad % 4;
}

/* The codes of a thread's rows, which are a quad of the tile's, to the columns they belong to. */
static __device__ __forceinline__ void fp8_to_tile(uint32_t *tile, const uint2 codes[FP8_QUAD],
                                                   int col, int quad) {
    uint32_t column[8];
    transpose_bytes(column, codes[0].x, codes[1].x, codes[2].x, codes[3].x);
    transpose_bytes(column + 4, codes[0].y, codes[1].y, codes[2].y, codes[3].y);
#pragma unroll
    for (int i = 0; i < 8; i++) tile[fp8_tile_word(col + i, quad)] = column[i];
}

/* The tile to the token operand: 128 bytes of a column by 8 threads. */
static __device__ __forceinline__ void fp8_store_tile(const Fp8Args &args, const uint32_t *tile,
                                                      int64_t row0, int64_t col0) {
    int first_row = threadIdx.x % 8 * 16;
#pragma unroll
    for (int i = 0; i < FP8_TILE_COLS; i += FP8_THREADS / 8) {
        int col = i + threadIdx.x / 8;
        if (row0 + first_row >= args.rows || col0 + col >= args.cols) continue;
        uint8_t *out = (uint8_t *)args.token + (col0 + col) * args.rows + row0 + first_row;
        *reinterpret_cast<uint4 *>(out) =
            *reinterpret_cast<const uint4 *>(tile + fp8_tile_word(col, first_row / FP8_QUAD));
    }
}

/*
A block of threads takes 128 rows x 64 columns of x, a thread 4 rows x 8 columns; a warp reads 128
bytes and writes 64 bytes of each of its rows. Codes of the token operand are transposed 4 x 4 in
registers and go through shared memory. Blocks start at the end of x, of which the amax pass has
left what the L2 cache holds.
  bytes    2 per element read, 1 written for each operand
  limiter  memory; measured: see dev/SPEED.md
*/
template <Fp8Mode ROW, Fp8Mode TOKEN>
__global__ static void __launch_bounds__(FP8_THREADS) fp8_codes_kernel(Fp8Args args) {
    constexpr Fp8Mode FIRST = ROW == FP8_ABSENT ? TOKEN : ROW;   // the one that is there
    __shared__ uint4 tile[FP8_TILE_COLS * FP8_TILE_WORDS / 4];
    int64_t tiles_across = (args.cols + FP8_TILE_COLS - 1) / FP8_TILE_COLS;
    int64_t block = args.last_block - blockIdx.x;
    int64_t row0 = block / tiles_across * FP8_TILE_ROWS,
            col0 = block % tiles_across * FP8_TILE_COLS;
    int quad = threadIdx.x / 8, first_col = threadIdx.x % 8 * 8;
    int64_t row = row0 + quad * FP8_QUAD, col = col0 + first_col;
    bool inside = row < args.rows && col < args.cols;
    uint4 in[FP8_QUAD];
    uint2 codes[FP8_QUAD];
#pragma unroll
    for (int i = 0; i < FP8_QUAD; i++) {
        in[i] = make_uint4(0, 0, 0, 0);
        if (inside) in[i] = *reinterpret_cast<const uint4 *>(args.x + (row + i) * args.cols + col);
    }
    const float *amax = ROW == FP8_ABSENT ? args.token_amax : args.row_amax;
    float scale = fp8_scale(fp8_format(fp8_elem(FIRST)), *amax);
#pragma unroll
    for (int i = 0; i < FP8_QUAD; i++) codes[i] = fp8x8_encode<FIRST>(in[i], scale);
    if (ROW != FP8_ABSENT && inside) {
#pragma unroll
        for (int i = 0; i < FP8_QUAD; i++)
            *reinterpret_cast<uint2 *>((uint8_t *)args.row + (row + i) * args.cols + col) =
                codes[i];
    }
    if (TOKEN == FP8_ABSENT) return;
    if (TOKEN != FIRST) {
        scale = fp8_scale(fp8_format(fp8_elem(TOKEN)), *args.token_amax);
#pragma unroll
        for (int i = 0; i < FP8_QUAD; i++) codes[i] = fp8x8_encode<TOKEN>(in[i], scale);
    }
    fp8_to_tile(reinterpret_cast<uint32_t *>(tile), codes, first_col, quad);
    __syncthreads();
    fp8_store_tile(args, reinterpret_cast<const uint32_t *>(tile), row0, col0);
}

// --- values ---

/* The values of eight bf16's codes, which lie as x does in either direction. */
template <Fp8Mode MODE>
static __device__ __forceinline__ void fp8_store_values(void *out, uint64_t at, uint4 in,
                                                        const float *amax) {
    Fp8Format format = fp8_format(fp8_elem(MODE));
    float scale = fp8_scale(format, *amax);
    const uint32_t word[4] = {in.x, in.y, in.z, in.w};
    uint32_t values[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t low = fp8_value(format, __fmul_rn(low_f32(word[i]), scale));
        values[i] = (uint32_t)fp8_value(format, __fmul_rn(high_f32(word[i]), scale)) << 16 | low;
    }
    reinterpret_cast<uint4 *>(out)[at] = make_uint4(values[0], values[1], values[2], values[3]);
}

/* A thread takes eight values. bytes 2 per element read, 2 written for each operand; limiter:
   memory; measured: see dev/SPEED.md. */
template <Fp8Mode ROW, Fp8Mode TOKEN>
__global__ static void __launch_bounds__(FP8_THREADS) fp8_values_kernel(Fp8Args args) {
    uint64_t at = (uint64_t)(args.last_block - blockIdx.x) * FP8_THREADS + threadIdx.x;
    if (at >= (uint64_t)(args.rows * args.cols) / 8) return;
    uint4 in = reinterpret_cast<const uint4 *>(args.x)[at];
    if (ROW != FP8_ABSENT) fp8_store_values<ROW>(args.row, at, in, args.row_amax);
    if (TOKEN != FP8_ABSENT) fp8_store_values<TOKEN>(args.token, at, in, args.token_amax);
}

// --- the choice of an instance ---

typedef void Fp8Kernel(Fp8Args);
#define FP8_ROW(kernel, row)                                                                       \
    { kernel<row, FP8_ABSENT>, kernel<row, FP8_E4M3>, kernel<row, FP8_E5M2> }
#define FP8_KERNELS(kernel)                                                                        \
    {                                                                                              \
        {NULL, kernel<FP8_ABSENT, FP8_E4M3>, kernel<FP8_ABSENT, FP8_E5M2>},                        \
            FP8_ROW(kernel, FP8_E4M3), FP8_ROW(kernel, FP8_E5M2)                                   \
    }

// By OperandForm, row mode, token mode.
static Fp8Kernel *const fp8_kernels[][NUM_FP8_MODES][NUM_FP8_MODES] = {
    FP8_KERNELS(fp8_values_kernel), FP8_KERNELS(fp8_codes_kernel)};

typedef struct {
    Fp8Kernel *kernel;   // NULL: nothing to do
    unsigned blocks;
    Fp8Args args;
} Fp8Launch;

/* FP8_ABSENT of an operand that these kernels do not make in this form. */
static inline Fp8Mode fp8_mode(const QOperand *o, OperandForm form) {
    if (!o || o->form != form || format_has_blocks(o->format)) return FP8_ABSENT;
    return formats[o->format].cell.elem == DT_E4M3 ? FP8_E4M3 : FP8_E5M2;
}

/* What makes those of the two operands that have this form and no blocks. */
static inline Fp8Launch fp8_launch(OperandForm form, const QOperand *row, const QOperand *token,
                                   Tensor x) {
    Fp8Launch launch = {};
    Fp8Mode row_mode = fp8_mode(row, form), token_mode = fp8_mode(token, form);
    if (row_mode != FP8_ABSENT) {
        launch.args.row = row->data;
        launch.args.row_amax = row->amax;
    }
    if (token_mode != FP8_ABSENT) {
        launch.args.token = token->data;
        launch.args.token_amax = token->amax;
    }
    launch.args.x = (const uint16_t *)x.data;
    launch.args.rows = x.rows;
    launch.args.cols = x.cols;
    launch.blocks =
        form == FORM_VALUES
            ? (unsigned)ceil_div(x.rows * x.cols, 8 * FP8_THREADS)
            : (unsigned)(ceil_div(x.rows, FP8_TILE_ROWS) * ceil_div(x.cols, FP8_TILE_COLS));
    launch.args.last_block = launch.blocks - 1;
    launch.kernel = fp8_kernels[form][row_mode][token_mode];
    return launch;
}
