// attention_tile -- what one warp does with 16x16 blocks, and how a block of threads fetches and
// stores tiles. Everything is counted in 16x16 blocks: an Accum (f32 sums) or a Frag (bf16
// factors), both spread over a warp. A tile lies in shared memory row by row, HD columns and 8 more
// as padding: rows are then an odd number of 16-byte units apart, so the 8 rows of an ldmatrix fall
// into 8 different groups of banks.
#pragma once
#include "attention_mma.cuh"

enum { TILE_PADDING = 8 };

// Element e of lane l is at (accum_row, accum_col): two 16x8 results of the tensor core side by
// side.
struct Accum {
    float v[8];
};
static __host__ __device__ constexpr int accum_row(int lane, int e) {
    return lane / 4 + 8 * (e / 2 % 2);
}
static __host__ __device__ constexpr int accum_col(int lane, int e) {
    return 8 * (e / 4) + 2 * (lane % 4) + e % 2;
}

static __device__ __forceinline__ int lane_id(void) { return threadIdx.x % 32; }

// Left factor: rows [row, row + 16), columns [col, col + 16) of a tile.
template <int HD>
static __device__ __forceinline__ Frag load_left(const bf16 *tile, int row, int col) {
    const int lane = lane_id();
    return ldmatrix(tile + (row + lane % 16) * (HD + TILE_PADDING) + col + lane / 16 * 8);
}

// Right factor of a x^T: rows [row, row + 16) of the tile x become the columns of the product, its
// columns [col, col + 16) are summed over.
template <int HD>
static __device__ __forceinline__ Frag load_right_transposed(const bf16 *tile, int row, int col) {
    const int lane = lane_id();
    return ldmatrix(tile + (row + lane / 16 * 8 + lane % 8) * (HD + TILE_PADDING) + col +
                    lane / 8 % 2 * 8);
}

// Right factor of a x: rows [row, row + 16) of the tile x are summed over.
template <int HD>
static __device__ __forceinline__ Frag load_right(const bf16 *tile, int row, int col) {
    const int lane = lane_id();
    return ldmatrix_transposed(tile + (row + lane % 16) * (HD + TILE_PADDING) + col +
                               lane / 16 * 8);
}

// c += a b, 16x16x16.
static __device__ __forceinline__ void multiply_add(Accum &c, const Frag &a, const Frag &b) {
    mma_16x8x16(c.v, a, b.r[0], b.r[1]);
    mma_16x8x16(c.v + 4, a, b.r[2], b.r[3]);
}

// Rounds sums to bf16 and makes them a left factor; they lie where the tensor core wants them
// already.
static __device__ __forceinline__ Frag to_left(const Accum &a) {
    Frag f;
#pragma unroll
    for (int i = 0; i < 4; i++) f.r[i] = pack_bf16(a.v[2 * i], a.v[2 * i + 1]);
    return f;
}

// One head of one sequence inside a wider matrix: `rows` tokens, `stride` elements apart, `cols` =
// HS.
struct Slice {
    const bf16 *data;
    int64_t stride;
    int rows, cols;
};

// Starts fetching rows [row0, row0 + ROWS) into a tile; rows and columns beyond the slice become
// zero.
template <int HD, int ROWS, int THREADS>
static __device__ __forceinline__ void tile_fetch(bf16 *tile, const Slice &s, int row0) {
    constexpr int LANES = HD == 96 ? 16 : HD / 8;   // of a row, 16 bytes each; 4 of 16 idle for 96
    constexpr int STEP = THREADS / LANES;           // rows fetched at once
    static_assert(THREADS % LANES == 0 && ROWS % STEP == 0, "every thread fetches equally often");
    const int first = threadIdx.x / LANES, col = threadIdx.x % LANES * 8;
    if (col >= HD) return;
    const bf16 *from = s.data + (row0 + first) * s.stride + col;
    bf16 *to = tile + first * (HD + TILE_PADDING) + col;
    const int rows_left = col < s.cols ? s.rows - row0 - first : 0;
#pragma unroll
    for (int row = 0; row < ROWS; row += STEP) {
        const bool inside = row < rows_left;
        copy_async_16(to + row * (HD + TILE_PADDING), inside ? from : s.data, inside);
        from += STEP * s.stride;
    }
}

// Writes a warp's 16 rows of sums, from row0 on, to a slice shaped as `shape`; what lies beyond it
// is dropped. mult has one factor for rows 0-7 and one for rows 8-15 of this lane.
template <int HD>
static __device__ __forceinline__ void store_rows(bf16 *out, const Slice &shape, int row0,
                                                  const Accum (&sums)[HD / 16],
                                                  const float (&mult)[2]) {
    const int lane = lane_id();
#pragma unroll
    for (int block = 0; block < HD / 16; block++) {
#pragma unroll
        for (int e = 0; e < 8; e += 2) {
            const int row = row0 + accum_row(lane, e), col = 16 * block + accum_col(lane, e);
            const float m = mult[e / 2 % 2];
            if (row < shape.rows && col < shape.cols)
                *(uint32_t *)(out + row * shape.stride + col) =
                    pack_bf16(sums[block].v[e] * m, sums[block].v[e + 1] * m);
        }
    }
}
