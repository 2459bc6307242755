/*
quantize_cell -- CPU reference of every cell with blocks, in both directions and forms, and of the
tensor that is only converted: one block after another in the order of the formulas of cell.h. What
training runs for the cells of nvfp4.h is quantize_fast.c, equal to this bit for bit; formats with
a tensor's scale alone are quantize_fp8.c's.
*/
#include <math.h>
#include <string.h>

#include "../common.h"
#include "../rng.h"
#include "cell.h"
#include "hadamard.h"
#include "quantize_cpu.h"

enum {
    SPAN = 128,             // of the contraction, worked on at once: whole blocks and transforms
    STRIP = 128,            // rows of the operand beside each other: whole square tiles
    GROUP = 16,             // elements whose random bits come from the same counters
    MAX_BLOCKS = SPAN / 8   // in a span
};

/* One operand to make of x. */
typedef struct {
    QOperand *o;
    QuantizeCounts *counts;   // not NULL: taken in the place of the operand
    const Quantizer *q;
    Tensor x;
    Cell cell;
    CellTensor tensor;
    CellSigns signs;
    int hadamard;
    int height;   // rows that share block scales
} Job;

/* Rows of the operand that share scales, over one span: elements beyond the operand are 0. */
typedef struct {
    float v[STRIP][SPAN];   // as they will be rounded
    uint32_t draw[STRIP][SPAN];
    int64_t row, k;      // of the first
    int rows, columns;   // that the operand has
    CellScale scale[MAX_BLOCKS];
} Lines;

static Job make_job(QOperand *o, const Quantizer *q, Tensor x) {
    Job job = {.o = o, .q = q, .x = x, .cell = cell_make(&q->how), .height = 1};
    if (!operand_is_quantized(&q->how)) return job;
    job.hadamard = q->how.hadamard;
    if (job.hadamard)
        job.signs = cell_signs(q->how.signs, q->tag, q->seed,
                               q->how.signs == SIGNS_STEP ? q->state->step : 0);
    if (q->how.tile == TILE_SQUARE) job.height = q->how.block;
    return job;
}

// --- elements ---

void quantize_load(float *v, const Quantizer *q, Tensor x, int64_t at, int64_t stride, int count) {
    if (x.dtype == DT_F32) {
        const float *values = (const float *)x.data + at;
        for (int i = 0; i < count; i++) v[i] = values[i * stride];
    } else {
        const bf16_t *values = (const bf16_t *)x.data + at;
        for (int i = 0; i < count; i++) v[i] = bf16_to_f32(values[i * stride]);
    }
    if (q->source_div == 0.0f) return;
    float mult = 1.0f / q->source_div;
    if (q->source_amax) mult = *q->source_amax * mult;
    for (int i = 0; i < count; i++) v[i] = bf16_to_f32(bf16_from_f32(v[i] * mult));
}

/* Where element (row, k) of the operand lies in x, and in VALUES; and its neighbour along k. */
static int64_t element_at(const Job *job, int64_t row, int64_t k) {
    return job->q->token_operand ? k * job->x.cols + row : row * job->x.cols + k;
}
static int64_t element_stride(const Job *job) { return job->q->token_operand ? job->x.cols : 1; }

static void load_line(float v[SPAN], const Job *job, int64_t row, int64_t k, int columns) {
    memset(v, 0, SPAN * sizeof(*v));
    quantize_load(v, job->q, job->x, element_at(job, row, k), element_stride(job), columns);
    if (!job->hadamard) return;
    for (int i = 0; i < columns; i += job->hadamard)
        hadamard_group(v + i, job->hadamard, job->signs);
    for (int i = 0; i < columns; i++) v[i] = bf16_to_f32(bf16_from_f32(v[i]));
}

/* Magnitudes compare as the integers of their bits, and NaN is the largest: it is never lost. */
static uint32_t largest_bits(const float *v, int count) {
    uint32_t most = 0;
    for (int i = 0; i < count; i++) {
        uint32_t magnitude = bits_from_f32(v[i]) & 0x7FFFFFFFu;
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

void amax_reference(QOperand *o, const Quantizer *how, Tensor x) {
    Job job = make_job(o, how, x);
    uint32_t amax = 0;
#pragma omp parallel for schedule(static) collapse(2) reduction(max : amax)
    for (int64_t strip = 0; strip < o->rows; strip += STRIP) {
        for (int64_t k = 0; k < o->k; k += SPAN) {
            int rows = (int)min_i64(STRIP, o->rows - strip);
            int columns = (int)min_i64(SPAN, o->k - k);
            for (int r = 0; r < rows; r++) {
                float v[SPAN];
                load_line(v, &job, strip + r, k, columns);
                uint32_t most = largest_bits(v, SPAN);
                if (most > amax) amax = most;
            }
        }
    }
    if (amax > 0x7F800000u) amax = 0x7FFFFFFFu;   // one NaN for all devices
    *o->amax = f32_from_bits(amax);
}

// --- random bits ---

static uint32_t element_draw(const uint32_t words[16], int bits, int e) {
    if (bits == 8) return words[e / 4] >> 8 * (e % 4) & 0xFF;
    if (bits == 16) return words[e / 2] >> 16 * (e % 2) & 0xFFFF;
    return words[e] >> 8;
}

/* As many words a group as its dither needs, in the order of the elements. The draw of a block of
   eden is that of its group's first element. */
static void draw_line(uint32_t draw[SPAN], const Job *job, int64_t row, int64_t k, int columns) {
    const Quantizer *q = job->q;
    int bits = q->how.rounding == ROUND_EDEN ? EDEN_SCALE_BITS : q->how.dither_bits;
    for (int first = 0; first < columns; first += GROUP) {
        uint64_t group = quantize_group(q, job->x.cols, row, (k + first) / GROUP);
        uint32_t words[16];
        for (int sub = 0; sub < quantize_num_subdraws(bits); sub++) {
            Philox4 counter = rng_group_counter(group, q->tag | (uint32_t)sub, q->state->step);
            Philox4 out = philox4x32_10(counter, (uint32_t)q->seed, (uint32_t)(q->seed >> 32));
            memcpy(words + 4 * sub, out.w, sizeof(out.w));
        }
        for (int e = 0; e < GROUP; e++) draw[first + e] = element_draw(words, bits, e);
    }
}

// --- one block ---

/* y and q of the elements of a block. */
static void round_block(float *y, float *q, const Job *job, CellScale s, const float *v,
                        const uint32_t *draw) {
    const Cell cell = job->cell;
    const CellTensor tensor = job->tensor;
    int count = cell.how.block;
    for (int i = 0; i < count; i++) y[i] = cell_quotient(&cell, tensor, s, v[i]);
    for (int i = 0; i < count; i++) q[i] = cell_round(&cell, y[i], draw[i]);
}

static CellScale quest_scale(const Cell *cell, const float *v) {
    int count = cell->how.block;
    float terms[SPAN];
    memcpy(terms, v, (size_t)count * sizeof(*v));
    float mean = cell_pairwise_sum(terms, count) / (float)count;
    for (int i = 0; i < count; i++) terms[i] = (v[i] - mean) * (v[i] - mean);
    return cell_quest_scale(cell, sqrtf(cell_pairwise_sum(terms, count) / (float)count));
}

static CellScale eden_corrected(const Job *job, CellScale s, const float *v, const float *q,
                                uint32_t draw) {
    int count = job->cell.how.block;
    float vv[SPAN], vr[SPAN];
    for (int i = 0; i < count; i++) {
        vv[i] = v[i] * v[i];
        vr[i] = v[i] * cell_eden_value(job->tensor, s, q[i]);
    }
    s.scale = cell_eden_scale(&job->cell, s, cell_pairwise_sum(vv, count),
                              cell_pairwise_sum(vr, count), draw);
    return s;
}

// --- block scales ---

/* Error of a selection's candidate in the block that begins at column `first`. */
static float candidate_error(const Job *job, const Lines *t, CellScale s, int first) {
    int count = job->cell.how.block;
    float row_sums[STRIP] = {0}, y[SPAN], q[SPAN];
    for (int r = 0; r < t->rows; r++) {
        const float *v = t->v[r] + first;
        round_block(y, q, job, s, v, t->draw[r] + first);
        for (int i = 0; i < count; i++)
            y[i] = cell_select_error(&job->cell, job->tensor, s, q[i], v[i]);
        row_sums[r] = cell_pairwise_sum(y, count);
    }
    return cell_pairwise_sum(row_sums, job->height);
}

static CellScale block_scale(const Job *job, const Lines *t, int first, float outer_max) {
    const Cell *cell = &job->cell;
    uint32_t most = 0;
    for (int r = 0; r < t->rows; r++) {
        uint32_t row_most = largest_bits(t->v[r] + first, cell->how.block);
        if (row_most > most) most = row_most;
    }
    float block_max = f32_from_bits(most);
    if (cell->how.scale_rule == RULE_QUEST) return quest_scale(cell, t->v[0] + first);
    CellScale s = cell_scale(cell, job->tensor, block_max, outer_max, 0);
    if (cell->how.select == SELECT_NONE) return s;
    CellScale other = cell_scale(cell, job->tensor, block_max, outer_max, 1);
    int is_better = candidate_error(job, t, other, first) < candidate_error(job, t, s, first);
    return is_better ? other : s;
}

static void find_scales(Lines *t, const Job *job) {
    float outer_max = job->cell.how.outer ? f32_from_bits(largest_bits(t->v[0], SPAN)) : 0.0f;
    int block = job->cell.how.block;
    for (int first = 0; first < t->columns; first += block)
        t->scale[first / block] = block_scale(job, t, first, outer_max);
}

// --- storing ---

static void store_values(const Job *job, const float values[SPAN], int64_t row, int64_t k,
                         int columns) {
    int64_t at = element_at(job, row, k), stride = element_stride(job);
    if (job->o->dtype == DT_F32) {
        float *out = (float *)job->o->data + at;
        for (int i = 0; i < columns; i++) out[i * stride] = values[i];
    } else {
        bf16_t *out = (bf16_t *)job->o->data + at;
        for (int i = 0; i < columns; i++) out[i * stride] = bf16_from_f32(values[i]);
    }
}

static void store_codes(const Job *job, const float q[SPAN], const CellScale *scales, int64_t row,
                        int64_t k, int columns) {
    const QOperand *o = job->o;
    uint8_t *bytes = (uint8_t *)o->data + (row * o->k + k) / 2;
    for (int i = 0; i < columns; i += 2)
        bytes[i / 2] = (uint8_t)(e2m1_encode(q[i]) | e2m1_encode(q[i + 1]) << 4);
    int block = job->cell.how.block;
    int64_t padded_cols = round_up(ceil_div(o->k, block), 4);
    for (int i = 0; i < columns; i += block)
        o->scales[quantize_scale_offset(row, (k + i) / block, padded_cols)] =
            e4m3_encode(scales[i / block].scale);
}

static void store_mask(const Job *job, const float y[SPAN], int64_t row, int64_t k, int columns) {
    uint8_t *bytes = job->o->mask + (row * job->o->k + k) / 8;
    for (int i = 0; i < columns; i += 8) {
        int bits = 0;
        for (int b = 0; b < 8; b++) bits |= cell_keeps(&job->cell, y[i + b]) << b;
        bytes[i / 8] = (uint8_t)bits;
    }
}

/* Of threads that work at the same time. */
static void add_counts(QuantizeCounts *sum, const QuantizeCounts *c) {
#pragma omp atomic
    sum->elements += c->elements;
#pragma omp atomic
    sum->zeros += c->zeros;
#pragma omp atomic
    sum->saturated += c->saturated;
#pragma omp atomic
    sum->underflowed += c->underflowed;
#pragma omp atomic
    sum->blocks += c->blocks;
#pragma omp atomic
    sum->zero_scales += c->zero_scales;
}

static void count_line(const Job *job, const Lines *t, int r, const float y[SPAN],
                       const float q[SPAN]) {
    QuantizeCounts c = {0};
    int block = job->cell.how.block;
    float limit = job->cell.elem_max * QUANTIZE_SATURATED;
    for (int i = 0; i < t->columns; i++) {
        int is_zero = t->scale[i / block].scale == 0.0f;
        c.zeros += t->v[r][i] == 0.0f;
        c.saturated += !is_zero && cell_magnitude(y[i]) > limit;
        c.underflowed += t->v[r][i] != 0.0f && (is_zero || q[i] == 0.0f);
        c.zero_scales += i % block == 0 && is_zero;
    }
    c.elements = t->columns;
    c.blocks = t->columns / block;
    add_counts(job->counts, &c);
}

static void finish_line(const Job *job, const Lines *t, int r) {
    float y[SPAN], q[SPAN], values[SPAN];
    CellScale scales[MAX_BLOCKS];
    int block = job->cell.how.block;
    for (int first = 0; first < t->columns; first += block) {
        CellScale s = t->scale[first / block];
        const float *v = t->v[r] + first;
        round_block(y + first, q + first, job, s, v, t->draw[r] + first);
        if (job->cell.how.rounding == ROUND_EDEN)
            s = eden_corrected(job, s, v, q + first, t->draw[r][first / GROUP * GROUP]);
        for (int i = first; i < first + block; i++) values[i] = cell_value(&job->cell, s, q[i]);
        scales[first / block] = s;
    }
    int64_t row = t->row + r;
    if (job->counts) {
        count_line(job, t, r, y, q);
        return;
    }
    if (job->o->form == FORM_PACKED) store_codes(job, q, scales, row, t->k, t->columns);
    else store_values(job, values, row, t->k, t->columns);
    if (job->o->mask) store_mask(job, y, row, t->k, t->columns);
}

// --- the operand ---

static void quantize_tile(Lines *t, const Job *job) {
    int draws = job->cell.how.rounding == ROUND_STOCHASTIC || job->cell.how.rounding == ROUND_EDEN;
    for (int r = 0; r < t->rows; r++) {
        load_line(t->v[r], job, t->row + r, t->k, t->columns);
        if (draws) draw_line(t->draw[r], job, t->row + r, t->k, t->columns);
    }
    find_scales(t, job);
    for (int r = 0; r < t->rows; r++) finish_line(job, t, r);
}

/* Rows [row, row + rows) of the operand over one span. */
static void quantize_strip(const Job *job, int64_t row, int rows, int64_t k, int columns) {
    Lines t;
    memset(t.draw, 0, sizeof(t.draw));
    t.k = k;
    t.columns = columns;
    for (int r = 0; r < rows; r += job->height) {
        t.row = row + r;
        t.rows = (int)min_i64(job->height, rows - r);
        quantize_tile(&t, job);
    }
}

/* The tensor itself, in the values' type. */
static void convert_strip(const Job *job, int64_t row, int rows, int64_t k, int columns) {
    for (int r = 0; r < rows; r++) {
        float v[SPAN];
        load_line(v, job, row + r, k, columns);
        store_values(job, v, row + r, k, columns);
    }
}

static void run(const Job *job, int is_quantized) {
    const QOperand *o = job->o;
#pragma omp parallel for schedule(static) collapse(2)
    for (int64_t row = 0; row < o->rows; row += STRIP) {
        for (int64_t k = 0; k < o->k; k += SPAN) {
            int rows = (int)min_i64(STRIP, o->rows - row), columns = (int)min_i64(SPAN, o->k - k);
            (is_quantized ? quantize_strip : convert_strip)(job, row, rows, k, columns);
        }
    }
}

void quantize_reference(QOperand *o, const Quantizer *how, Tensor x) {
    Job job = make_job(o, how, x);
    int is_quantized = operand_is_quantized(&how->how);
    if (is_quantized) job.tensor = cell_tensor(&job.cell, o->amax ? *o->amax : 0.0f);
    if (o->form == FORM_PACKED) memset(o->scales, 0, quantize_scales_bytes(o->rows, o->k));
    run(&job, is_quantized);
}

void quantize_count_blocks(QuantizeCounts *counts, QOperand *o, const Quantizer *how, Tensor x) {
    Job job = make_job(o, how, x);
    job.tensor = cell_tensor(&job.cell, *o->amax);
    job.counts = counts;
    run(&job, 1);
}
