// gemm_mma -- the NVFP4 GEMM of gemm_mma.cu, for nvcc and for the host simulation that tests it:
//   d[m,n] = alpha * sum_k a[m,k] b[n,k]  (+ bias[n])  (+ d[m,n])
// A block of 8 warps makes one 128 x 128 tile of d, 128 of k at a time, through a ring of stages
// in shared memory that asynchronous copies fill. A stage holds, of each side, 128 rows of codes
// (64 bytes a row) and the two 512-byte tiles of their scales, as they lie in memory. Codes beyond
// the last row or k are zero. A warp makes 64 x 32: 4 x 4 products of 16 x 8 for each 64 of k.
// Sums run over k in one order, whatever the grid: the same bits every time.
#pragma once
#include "gemm_mma_ptx.cuh"

enum {
    MMA_TILE = 128,   // rows of a side in one block's tile: those of one tile of scales
    MMA_TILE_K = 128,
    MMA_STAGES = 4,
    MMA_THREADS = 256,
    MMA_WARP_M = 64,
    MMA_WARP_N = 32,
    MMA_STEPS = MMA_TILE_K / FP4_STEP_K,
    MMA_CODE_CHUNKS = MMA_TILE_K / 2 / 16,        // of 16 bytes, in a row
    MMA_CODE_BYTES = MMA_TILE * MMA_TILE_K / 2,   // of one side in a stage
    MMA_SCALE_TILE = 512,                         // bytes: 128 rows, 64 of k
    MMA_SCALE_BYTES = MMA_STEPS * MMA_SCALE_TILE,
    MMA_STAGE_BYTES = 2 * (MMA_CODE_BYTES + MMA_SCALE_BYTES),
    MMA_SHARED_BYTES = MMA_STAGES * MMA_STAGE_BYTES,
    MMA_SHARED_LIMIT = 99 * 1024,   // of a block on sm_120
    MMA_GROUP = 8                   // rows of tiles that share columns in the L2
};
static_assert(MMA_SHARED_BYTES <= MMA_SHARED_LIMIT, "a block's stages exceed sm_120's memory");

// One packed operand.
struct MmaSide {
    const uint8_t *codes, *scales;
    const float *amax;
    int rows;
};

struct MmaGemm {
    MmaSide a, b;
    int k;              // a multiple of 32: rows of codes start at multiples of 16 bytes
    float alpha_mult;   // alpha = amax of a * amax of b * this
    void *d;            // (a.rows, b.rows)
    const void *bias;   // as d; NULL: none
    int accumulate;     // d in f32 only
};

// Where things lie and who reads them. A template parameter of the kernel, so that a test can
// give it one that is wrong.
struct MmaLayout {
    // Copies of the stages that still run while one is multiplied.
    enum { IN_FLIGHT = MMA_STAGES - 2 };

    // Byte of a 16-byte chunk of a row of codes in its stage: two rows fill the 32 banks, and the
    // chunks of four such pairs are permuted so that ldmatrix finds 8 rows in 8 places.
    MMA_FN int code_offset(int row, int chunk) {
        return row * (MMA_TILE_K / 2) + ((chunk ^ (row >> 1 & 3)) << 4);
    }
    // Which row (of 16) and chunk (of a step's two) a lane names to ldmatrix. The four matrices
    // are the registers of a: rows 0-7 and 8-15 of chunk 0, then of chunk 1; or those of b for two
    // neighbouring products: chunks 0 and 1 of columns 0-7, then of 8-15.
    MMA_FN int a_row(int lane) { return lane & 15; }
    MMA_FN int a_chunk(int lane) { return lane >> 4; }
    MMA_FN int b_row(int lane) { return (lane & 7) + (lane >> 4 << 3); }
    MMA_FN int b_chunk(int lane) { return lane >> 3 & 1; }
    // The row (of 16) and the column (of 8) whose scales a lane holds.
    MMA_FN int a_scale_row(int lane) { return (lane >> 2) + ((lane & 1) << 3); }
    MMA_FN int b_scale_row(int lane) { return lane >> 2; }
    // Byte of a row's four scales in their tile.
    MMA_FN int scale_offset(int row) { return (row & 31) * 16 + (row >> 5) * 4; }
    // First byte of a tile of scales.
    MMA_FN int64_t scale_tile(int row_tile, int step, int num_steps) {
        return ((int64_t)row_tile * num_steps + step) * MMA_SCALE_TILE;
    }
    MMA_FN void barrier(void) { __syncthreads(); }
    MMA_FN void multiply(MmaSums *s, const MmaOperands &x) { mma_16x8x64(s, x); }
};

// --- one stage ---

template <class Layout>
MMA_FN void load_codes(uint8_t *shared, MmaSide side, int first_row, int first_byte, int k_bytes) {
#pragma unroll
    for (int i = 0; i < MMA_TILE * MMA_CODE_CHUNKS / MMA_THREADS; i++) {
        int at = (int)threadIdx.x + i * MMA_THREADS;
        int row = at / MMA_CODE_CHUNKS, chunk = at % MMA_CODE_CHUNKS;
        int from_row = first_row + row, from_byte = first_byte + 16 * chunk;
        bool inside = from_row < side.rows && from_byte < k_bytes;
        int64_t from = inside ? (int64_t)from_row * k_bytes + from_byte : 0;
        copy_async_16(shared + Layout::code_offset(row, chunk), side.codes + from, inside);
    }
}

/* Scales of rows and of blocks beyond the last are zero in memory, but tiles beyond the last are
   not there. */
template <class Layout>
MMA_FN void load_scales(uint8_t *shared, MmaSide side, int row_tile, int first_step, int num_steps,
                        int at) {
    int step = first_step + at * 16 / MMA_SCALE_TILE;
    bool inside = step < num_steps;
    int64_t from =
        inside ? Layout::scale_tile(row_tile, step, num_steps) + at * 16 % MMA_SCALE_TILE : 0;
    copy_async_16(shared + at * 16, side.scales + from, inside);
}

/* Starts the copies of k tile `tile`, as one group; an empty one beyond the last. */
template <class Layout>
MMA_FN void load_stage(uint8_t *stage, const MmaGemm &g, int tile_m, int tile_n, int tile) {
    int num_steps = (g.k + FP4_STEP_K - 1) / FP4_STEP_K;
    if (tile * MMA_STEPS < num_steps) {
        int first_byte = tile * (MMA_TILE_K / 2);
        uint8_t *scales = stage + 2 * MMA_CODE_BYTES;
        load_codes<Layout>(stage, g.a, tile_m * MMA_TILE, first_byte, g.k / 2);
        load_codes<Layout>(stage + MMA_CODE_BYTES, g.b, tile_n * MMA_TILE, first_byte, g.k / 2);
        const int chunks = MMA_SCALE_BYTES / 16;
        int at = (int)threadIdx.x;
        if (at < chunks) {
            load_scales<Layout>(scales, g.a, tile_m, tile * MMA_STEPS, num_steps, at);
        } else if (at < 2 * chunks) {
            load_scales<Layout>(scales + MMA_SCALE_BYTES, g.b, tile_n, tile * MMA_STEPS, num_steps,
                                at - chunks);
        }
    }
    copy_async_commit();
}

// A warp's place: rows and columns from m and n of the block's tile.
struct MmaWarp {
    int m, n, lane;
};

MMA_FN MmaWarp this_warp(void) {
    int warp = (int)threadIdx.x / 32, across = MMA_TILE / MMA_WARP_N;
    return {warp / across * MMA_WARP_M, warp % across * MMA_WARP_N, (int)threadIdx.x % 32};
}

enum { MMA_COUNT_M = MMA_WARP_M / 16, MMA_COUNT_N = MMA_WARP_N / 8 };   // products of a warp

template <class Layout>
MMA_FN void multiply_stage(MmaSums sums[MMA_COUNT_M][MMA_COUNT_N], const uint8_t *stage,
                           MmaWarp w) {
    const uint8_t *a = stage, *b = stage + MMA_CODE_BYTES;
    const uint8_t *scales = stage + 2 * MMA_CODE_BYTES;
#pragma unroll
    for (int step = 0; step < MMA_STEPS; step++, scales += MMA_SCALE_TILE) {
        uint32_t b_codes[MMA_COUNT_N / 2][4], b_scales[MMA_COUNT_N];
#pragma unroll
        for (int j = 0; j < MMA_COUNT_N / 2; j++)
            ldmatrix_x4(b_codes[j], b + Layout::code_offset(w.n + 16 * j + Layout::b_row(w.lane),
                                                            2 * step + Layout::b_chunk(w.lane)));
#pragma unroll
        for (int j = 0; j < MMA_COUNT_N; j++)
            b_scales[j] =
                load_shared_word(scales + MMA_SCALE_BYTES +
                                 Layout::scale_offset(w.n + 8 * j + Layout::b_scale_row(w.lane)));
#pragma unroll
        for (int i = 0; i < MMA_COUNT_M; i++) {
            MmaOperands x;
            int row = w.m + 16 * i;
            ldmatrix_x4(x.a, a + Layout::code_offset(row + Layout::a_row(w.lane),
                                                     2 * step + Layout::a_chunk(w.lane)));
            x.scales_a =
                load_shared_word(scales + Layout::scale_offset(row + Layout::a_scale_row(w.lane)));
#pragma unroll
            for (int j = 0; j < MMA_COUNT_N; j++) {
                x.b[0] = b_codes[j / 2][j % 2 * 2];
                x.b[1] = b_codes[j / 2][j % 2 * 2 + 1];
                x.scales_b = b_scales[j];
                Layout::multiply(&sums[i][j], x);
            }
        }
    }
}

// --- the result ---

MMA_FN float stored_value(const float *x) { return *x; }
MMA_FN float stored_value(const uint16_t *x) { return fp4_float((uint32_t)*x << 16); }   // bf16

/* d[0], and d[1] if both; one access where d's place allows it. */
MMA_FN void store_pair(float *d, const float v[2], bool both) {
    if (both && (uintptr_t)d % 8 == 0) {
        store_aligned(d, v);
        return;
    }
    d[0] = v[0];
    if (both) d[1] = v[1];
}
MMA_FN void store_pair(uint16_t *d, const float v[2], bool both) {
    uint32_t pair = round_bf16_pair(v[0], v[1]);
    if (both && (uintptr_t)d % 4 == 0) {
        store_aligned(d, pair);
        return;
    }
    d[0] = (uint16_t)pair;
    if (both) d[1] = (uint16_t)(pair >> 16);
}

/* Two neighbouring columns of one row; one fused multiply and add, then one rounding to Out. */
template <class Out>
MMA_FN void finish_pair(const MmaGemm &g, float alpha, int row, int col, const float sums[2]) {
    if (row >= g.a.rows || col >= g.b.rows) return;
    bool both = col + 1 < g.b.rows;
    Out *d = (Out *)g.d + (int64_t)row * g.b.rows + col;
    const Out *bias = (const Out *)g.bias + col;
    float v[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bool inside = i == 0 || both;
        float addend = g.bias && inside ? stored_value(bias + i) : 0.0f;
        if (g.accumulate && inside) addend += stored_value(d + i);
        v[i] = fmaf(alpha, sums[i], addend);
    }
    store_pair(d, v, both);
}

/* Blocks that run at the same time take tiles of few rows and few columns. */
MMA_FN void find_tile(const MmaGemm &g, int *tile_m, int *tile_n) {
    int tiles_m = (g.a.rows + MMA_TILE - 1) / MMA_TILE;
    int tiles_n = (g.b.rows + MMA_TILE - 1) / MMA_TILE;
    int group_tiles = MMA_GROUP * tiles_n;
    int group = (int)blockIdx.x / group_tiles, in_group = (int)blockIdx.x % group_tiles;
    int first = group * MMA_GROUP;
    int height = tiles_m - first < MMA_GROUP ? tiles_m - first : MMA_GROUP;
    *tile_m = first + in_group % height;
    *tile_n = in_group / height;
}

/* Grid: one block a tile of d. Out: float, or uint16_t for bf16. */
template <class Layout, class Out>
__global__ void __launch_bounds__(MMA_THREADS) gemm_mma_kernel(MmaGemm g) {
    uint8_t *stages = block_shared_memory();
    int tile_m, tile_n;
    find_tile(g, &tile_m, &tile_n);
    MmaWarp w = this_warp();
    MmaSums sums[MMA_COUNT_M][MMA_COUNT_N] = {};
    int tiles = (g.k + MMA_TILE_K - 1) / MMA_TILE_K;
    for (int tile = 0; tile < MMA_STAGES - 1; tile++)
        load_stage<Layout>(stages + tile * MMA_STAGE_BYTES, g, tile_m, tile_n, tile);
    for (int tile = 0; tile < tiles; tile++) {
        copy_async_wait<Layout::IN_FLIGHT>();
        // Makes every thread's copies of this stage visible, and says that all are done with the
        // stage before, which the next copies fill.
        Layout::barrier();
        int next = tile + MMA_STAGES - 1;
        load_stage<Layout>(stages + next % MMA_STAGES * MMA_STAGE_BYTES, g, tile_m, tile_n, next);
        multiply_stage<Layout>(sums, stages + tile % MMA_STAGES * MMA_STAGE_BYTES, w);
    }
    float alpha = *g.a.amax * *g.b.amax * g.alpha_mult;
    int row = tile_m * MMA_TILE + w.m + w.lane / 4;
    int col = tile_n * MMA_TILE + w.n + w.lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < MMA_COUNT_M; i++) {
#pragma unroll
        for (int j = 0; j < MMA_COUNT_N; j++) {
            finish_pair<Out>(g, alpha, row + 16 * i, col + 8 * j, sums[i][j].c);
            finish_pair<Out>(g, alpha, row + 16 * i + 8, col + 8 * j, sums[i][j].c + 2);
        }
    }
}
