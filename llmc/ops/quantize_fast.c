/*
quantize_fast -- the CPU path of training: amax and FORM_VALUES of both operands from one read of
x, vectorised by the compiler. Every loop runs over the 64 columns of a chunk held in L1, with no
branch inside; magnitudes are compared as integers, and numbers are rounded by adding and
subtracting a large power of two. test_quantize.c holds it equal to the reference bit for bit.
Results do not depend on the number of threads: maxima are exact, chunks are independent.
*/
#include <string.h>

#include "../common.h"
#include "../rng.h"
#include "hadamard.h"
#include "nvfp4.h"
#include "quantize_cpu.h"

enum {
    ROWS = 16,                         // of a chunk: one block of a token operand
    COLS = 64,                         // of a chunk: 4 blocks of a row operand
    ROW_BLOCKS = COLS / NVFP4_BLOCK,   // blocks in one row of a chunk
    BLOCKS = COLS   // a chunk has as many blocks in either direction: 16 x 4 or 64
};
static const uint32_t MAGNITUDE = 0x7FFFFFFFu, SIGN = 0x80000000u, EXPONENT = 0x7F800000u;
static const uint32_t ONE = 0x3F800000u, SIX = 0x40C00000u;   // bits of 1.0f and 6.0f

typedef struct {
    float v[ROWS][COLS];
} Chunk;   // columns beyond x are 0

/* What one operand asks of every chunk. */
typedef struct {
    QOperand *o;
    const Quantizer *q;
    Nvfp4Tensor tensor;
} Job;

// --- loading and transforming ---

/* Rows [row, row + 16), columns [col, col + cols) of x. */
static void load_chunk(Chunk *c, Tensor x, int64_t row, int64_t col, int cols) {
    if (cols < COLS) memset(c, 0, sizeof(*c));
    for (int r = 0; r < ROWS; r++) {
        int64_t at = (row + r) * x.cols + col;
        if (x.dtype == DT_F32) {
            memcpy(c->v[r], (const float *)x.data + at, (size_t)cols * sizeof(float));
        } else {
            const bf16_t *values = (const bf16_t *)x.data + at;
            for (int j = 0; j < cols; j++) c->v[r][j] = bf16_to_f32(values[j]);
        }
    }
}

static void round_to_bf16(float v[COLS]) {
    for (int j = 0; j < COLS; j++) v[j] = bf16_to_f32(bf16_from_f32(v[j]));
}

/* hadamard16 of every column: the same steps in the same order, 64 columns at a time. */
static void hadamard_down(Chunk *out, const Chunk *in, uint32_t sign_mask) {
    for (int r = 0; r < ROWS; r++) {
        uint32_t flip = sign_mask >> r & 1 ? SIGN : 0;
        for (int j = 0; j < COLS; j++)
            out->v[r][j] = f32_from_bits(bits_from_f32(in->v[r][j]) ^ flip);
    }
    for (int stride = 1; stride < ROWS; stride *= 2) {
        for (int r = 0; r < ROWS; r++) {
            if (r & stride) continue;
            float *a = out->v[r], *b = out->v[r + stride];
            for (int j = 0; j < COLS; j++) {
                float sum = a[j] + b[j], difference = a[j] - b[j];
                a[j] = sum;
                b[j] = difference;
            }
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < COLS; j++) out->v[r][j] *= 0.25f;
}

/* The chunk as this operand sees it, before the rounding to bf16: `in` itself, or its transform
   in `space`. */
static const Chunk *transformed(Chunk *space, const Chunk *in, const Quantizer *q) {
    if (!q->how.hadamard) return in;
    uint32_t mask = hadamard_sign_mask(q->how.signs);
    if (q->token_operand) {
        hadamard_down(space, in, mask);
        return space;
    }
    *space = *in;
    for (int r = 0; r < ROWS; r++)
        for (int b = 0; b < ROW_BLOCKS; b++) hadamard16(space->v[r] + b * NVFP4_BLOCK, mask);
    return space;
}

// --- amax ---

static inline uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

static uint32_t chunk_amax_bits(const Chunk *c) {
    uint32_t amax = 0;
    for (int r = 0; r < ROWS; r++) {
        for (int j = 0; j < COLS; j++) {
            amax = larger(bits_from_f32(c->v[r][j]) & MAGNITUDE, amax);
        }
    }
    return amax;
}

/* Rounding to bf16 keeps the order of numbers, so the maximum may be rounded instead of every
   value. */
static void store_amax(QOperand *o, const Quantizer *q, uint32_t bits) {
    if (q->how.hadamard) bits = bits_from_f32(bf16_to_f32(bf16_from_f32(f32_from_bits(bits))));
    if (bits > EXPONENT) bits = MAGNITUDE;   // one NaN for all devices
    *o->amax = f32_from_bits(bits);
}

void amax_pair_fast(QOperand *row, const Quantizer *row_how, QOperand *token,
                    const Quantizer *token_how, Tensor x) {
    uint32_t row_amax = 0, token_amax = 0;
#pragma omp parallel for schedule(static) reduction(max : row_amax, token_amax)
    for (int64_t r = 0; r < x.rows; r += ROWS) {
        for (int64_t c = 0; c < x.cols; c += COLS) {
            Chunk chunk, space;
            load_chunk(&chunk, x, r, c, (int)min_i64(COLS, x.cols - c));
            uint32_t row_bits = row ? chunk_amax_bits(transformed(&space, &chunk, row_how)) : 0;
            uint32_t token_bits =
                token ? chunk_amax_bits(transformed(&space, &chunk, token_how)) : 0;
            row_amax = larger(row_bits, row_amax);
            token_amax = larger(token_bits, token_amax);
        }
    }
    if (row) store_amax(row, row_how, row_amax);
    if (token) store_amax(token, token_how, token_amax);
}

// --- block scales ---

/* One entry a block: (row, column / 16) for a row operand, the column for a token operand. */
typedef struct {
    float amax[BLOCKS], mult[BLOCKS], scale[BLOCKS];
} BlockScales;

/* Block i is 16 columns of row i / ROW_BLOCKS: halved to 8 candidates, to 4, to 1. */
static void row_block_amax(float amax[BLOCKS], const Chunk *c) {
    uint32_t eight[BLOCKS][8], four[BLOCKS][4];
    for (int i = 0; i < BLOCKS; i++) {
        const float *v = c->v[i / ROW_BLOCKS] + i % ROW_BLOCKS * NVFP4_BLOCK;
        for (int j = 0; j < 8; j++)
            eight[i][j] =
                larger(bits_from_f32(v[j]) & MAGNITUDE, bits_from_f32(v[j + 8]) & MAGNITUDE);
    }
    for (int i = 0; i < BLOCKS; i++)
        for (int j = 0; j < 4; j++) four[i][j] = larger(eight[i][j], eight[i][j + 4]);
    for (int i = 0; i < BLOCKS; i++) {
        uint32_t most = larger(larger(four[i][0], four[i][1]), larger(four[i][2], four[i][3]));
        amax[i] = f32_from_bits(most);
    }
}

static void token_block_amax(float amax[BLOCKS], const Chunk *c) {
    uint32_t bits[COLS] = {0};
    for (int r = 0; r < ROWS; r++) {
        for (int j = 0; j < COLS; j++) {
            bits[j] = larger(bits_from_f32(c->v[r][j]) & MAGNITUDE, bits[j]);
        }
    }
    memcpy(amax, bits, sizeof(bits));
}

/* The 16 blocks of a square tile get the tile's maximum. They are ROW_BLOCKS apart in a row
   operand, neighbours in a token operand. */
static void share_in_tiles(float amax[BLOCKS], int token_operand) {
    int step = token_operand ? 1 : ROW_BLOCKS;
    for (int tile = 0; tile < ROW_BLOCKS; tile++) {
        float *first = amax + (token_operand ? tile * NVFP4_BLOCK : tile), most = 0.0f;
        for (int i = 0; i < 16; i++) most = first[i * step] > most ? first[i * step] : most;
        for (int i = 0; i < 16; i++) first[i * step] = most;
    }
}

static void find_scales(BlockScales *s, const Job *job, const Chunk *c) {
    if (job->q->token_operand) token_block_amax(s->amax, c);
    else row_block_amax(s->amax, c);
    if (job->q->how.tile == TILE_SQUARE) share_in_tiles(s->amax, job->q->token_operand);
    for (int i = 0; i < BLOCKS; i++) {
        s->scale[i] = nvfp4_round_scale(nvfp4_raw_scale(job->tensor, s->amax[i]));
        s->mult[i] = nvfp4_element_mult(job->tensor, s->scale[i]);
    }
}

// --- random bits ---

typedef struct {
    uint32_t draw[ROWS][COLS];
} Dither;   // of each element of a chunk

/* philox4x32_10 of all groups of a chunk: groups[i], words[w][i]. */
static void philox_groups(uint32_t words[4][BLOCKS], const uint64_t groups[BLOCKS], uint32_t tag,
                          const Quantizer *q) {
    uint32_t step = q->state->step, key0 = (uint32_t)q->seed, key1 = (uint32_t)(q->seed >> 32);
    for (int i = 0; i < BLOCKS; i++) {
        Philox4 out = philox4x32_10(rng_group_counter(groups[i], tag, step), key0, key1);
        for (int w = 0; w < 4; w++) words[w][i] = out.w[w];
    }
}

/* The words of one sub-draw to the elements they belong to: element e of a group is the e-th piece
   of `bits` bits, a piece of 24 being the top of a whole word. */
static void spread_down(Dither *d, uint32_t words[4][BLOCKS], int sub, int bits) {
    int per_word = bits == 24 ? 1 : 32 / bits;
    uint32_t mask = (1u << bits) - 1;
    for (int i = 0; i < 4 * per_word; i++) {
        uint32_t *draw = d->draw[sub * 4 * per_word + i];
        int shift = bits == 24 ? 8 : bits * (i % per_word);
        for (int j = 0; j < COLS; j++) draw[j] = words[i / per_word][j] >> shift & mask;
    }
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "pieces of a word are read as they lie");
static void spread_along_rows(Dither *d, uint32_t words[4][BLOCKS], int sub, int bits) {
    for (int g = 0; g < BLOCKS; g++) {
        uint32_t word[4] = {words[0][g], words[1][g], words[2][g], words[3][g]};
        uint32_t *draw = d->draw[g / ROW_BLOCKS] + g % ROW_BLOCKS * NVFP4_BLOCK;
        if (bits == 8) {
            uint8_t byte[16];
            memcpy(byte, word, sizeof(word));
            for (int i = 0; i < 16; i++) draw[i] = byte[i];
        } else if (bits == 16) {
            uint16_t half[8];
            memcpy(half, word, sizeof(word));
            for (int i = 0; i < 8; i++) draw[8 * sub + i] = half[i];
        } else {
            for (int i = 0; i < 4; i++) draw[4 * sub + i] = word[i] >> 8;
        }
    }
}

static void draw_dither(Dither *d, const Job *job, int64_t cols, int64_t row, int64_t col) {
    const Quantizer *q = job->q;
    uint64_t groups[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        groups[i] = q->token_operand ? quantize_group(q, cols, col + i, row / NVFP4_BLOCK)
                                     : quantize_group(q, cols, row + i / ROW_BLOCKS,
                                                      col / NVFP4_BLOCK + i % ROW_BLOCKS);
    }
    uint32_t words[4][BLOCKS];
    for (int sub = 0; sub < quantize_num_subdraws(q->how.dither_bits); sub++) {
        philox_groups(words, groups, q->tag | (uint32_t)sub, q);
        if (q->token_operand) spread_down(d, words, sub, q->how.dither_bits);
        else spread_along_rows(d, words, sub, q->how.dither_bits);
    }
}

// --- rounding ---

/* Clamped magnitude of y, and the power of two whose half is the step of E2M1 there: 1 below 2, 2
   below 4, else 4. */
static inline uint32_t clamp_magnitude(float y) {
    uint32_t a = bits_from_f32(y) & MAGNITUDE;
    return a < SIX ? a : SIX;
}
static inline uint32_t binade(uint32_t magnitude) {
    return (magnitude > ONE ? magnitude : ONE) & EXPONENT;
}

static inline bf16_t signed_value(float magnitude, float scale, float x) {
    uint32_t product = bits_from_f32(magnitude * scale);   // has at most 8 significant bits
    return (bf16_t)((product | (bits_from_f32(x) & SIGN)) >> 16);
}

static void round_nearest(bf16_t out[COLS], const float x[COLS], const float mult[COLS],
                          const float scale[COLS]) {
    for (int j = 0; j < COLS; j++) {
        uint32_t a = clamp_magnitude(x[j] * mult[j]);
        float big = f32_from_bits(binade(a)) * (0.75f * 8388608.0f);   // 1.5 * 2^23 steps
        out[j] = signed_value((f32_from_bits(a) + big) - big, scale[j], x[j]);
    }
}

/* In units of the step and with `bits` binary places, the draw is added and the places are
   dropped. */
static void round_stochastic(bf16_t out[COLS], const float x[COLS], const float mult[COLS],
                             const float scale[COLS], const uint32_t draw[COLS], int bits) {
    // The bits of 2^(bits + 1) / b are these less the bits of b, for a power of two b.
    const uint32_t inverse = (uint32_t)(2 * 127 + 1 + bits) << 23;
    for (int j = 0; j < COLS; j++) {
        uint32_t a = clamp_magnitude(x[j] * mult[j]), b = binade(a);
        int32_t fixed = (int32_t)(f32_from_bits(a) * f32_from_bits(inverse - b));
        float steps = (float)((fixed + (int32_t)draw[j]) >> bits);
        out[j] = signed_value(steps * (0.5f * f32_from_bits(b)), scale[j], x[j]);
    }
}

/* One value a column: a row operand's blocks are 16 columns wide. */
static void spread_blocks(float out[COLS], const float blocks[ROW_BLOCKS]) {
    for (int b = 0; b < ROW_BLOCKS; b++)
        for (int e = 0; e < NVFP4_BLOCK; e++) out[b * NVFP4_BLOCK + e] = blocks[b];
}

/* Rounds the chunk into rows [row, row + 16), columns [col, col + cols) of the operand's values.
   */
static void quantize_chunk(const Job *job, const Chunk *in, Tensor x, int64_t row, int64_t col,
                           int cols) {
    Chunk space;
    const Chunk *c = transformed(&space, in, job->q);
    if (job->q->how.hadamard)
        for (int r = 0; r < ROWS; r++) round_to_bf16(space.v[r]);
    BlockScales s;
    find_scales(&s, job, c);
    int stochastic = job->q->how.rounding == ROUND_STOCHASTIC;
    Dither dither;
    if (stochastic) draw_dither(&dither, job, x.cols, row, col);
    bf16_t *out = (bf16_t *)job->o->data + row * x.cols + col;
    for (int r = 0; r < ROWS; r++) {
        float mult[COLS], scale[COLS];
        if (!job->q->token_operand) {
            spread_blocks(mult, s.mult + r * ROW_BLOCKS);
            spread_blocks(scale, s.scale + r * ROW_BLOCKS);
        }
        const float *m = job->q->token_operand ? s.mult : mult;
        const float *d = job->q->token_operand ? s.scale : scale;
        bf16_t line[COLS];
        if (stochastic)
            round_stochastic(line, c->v[r], m, d, dither.draw[r], job->q->how.dither_bits);
        else round_nearest(line, c->v[r], m, d);
        memcpy(out + r * x.cols, line, (size_t)cols * sizeof(bf16_t));
    }
}

void quantize_pair_fast(QOperand *row, const Quantizer *row_how, QOperand *token,
                        const Quantizer *token_how, Tensor x) {
    Job jobs[2];
    int num_jobs = 0;
    if (row) jobs[num_jobs++] = (Job){row, row_how, nvfp4_tensor(*row->amax, &row_how->how)};
    if (token)
        jobs[num_jobs++] = (Job){token, token_how, nvfp4_tensor(*token->amax, &token_how->how)};
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < x.rows; r += ROWS) {
        for (int64_t c = 0; c < x.cols; c += COLS) {
            int cols = (int)min_i64(COLS, x.cols - c);
            Chunk chunk;
            load_chunk(&chunk, x, r, c, cols);
            for (int i = 0; i < num_jobs; i++) quantize_chunk(&jobs[i], &chunk, x, r, c, cols);
        }
    }
}
