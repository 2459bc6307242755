/* model_ranks -- what a rank keeps of a model that several train: when backward completes which
   gradients, where cuts may fall, and memory for what travels; see model.h and zero.h. */
#include <stdlib.h>

#include "common.h"
#include "model_parts.h"

enum { MIN_TILE_ROWS = 16, MIB_OF_F32 = 1 << 18, WIRE_ALIGN = 256 };

/* Rows that no tile of a quantised weight crosses: blocks of dgrad run along them. */
static int64_t weight_tile_rows(Model *m) {
    int64_t rows = MIN_TILE_ROWS;
    for (int i = 0; i < m->num_phases * model_num_linears(m); i++) {
        const Operand *fprop = &m->plans[i].cell[GEMM_FPROP][SIDE_B];
        const Operand *dgrad = &m->plans[i].cell[GEMM_DGRAD][SIDE_B];
        if (fprop->tile == TILE_SQUARE) rows = max_i64(rows, fprop->block);
        rows = max_i64(rows, dgrad->block);
    }
    return rows;
}

/* In the order in which backward completes them. */
static int gradient_ranges(const Model *m, ZeroRange *ranges) {
    const ParamTable *t = &m->params;
    int count = 0, n = m->num_branches;
    const ZeroRange plain = {t->num_decayed, t->num_elements, n, 0, 0};
    if (m->head != m->embed) {
        ZeroRange head = {t->params[m->head].offset, t->num_decayed, n, n, 0};
        ranges[count++] = head;
    }
    for (int i = n - 1; i >= 0; i--) {
        int64_t begin = t->params[m->blocks[i].in.weight].offset;
        ZeroRange branch = {begin, param_end(&t->params[m->blocks[i].out.weight]), i, i, 1};
        ranges[count++] = branch;
    }
    ranges[count++] = plain;
    ZeroRange embedding = {0, t->params[m->blocks[0].in.weight].offset,
                           m->head == m->embed ? n : -1, -1, 0};
    ranges[count++] = embedding;
    return count;
}

void model_split(Model *m, const Config *c, int rank, int size) {
    ZeroRange *ranges = (ZeroRange *)xmalloc((size_t)(m->num_branches + 3) * sizeof(ZeroRange));
    ZeroOptions options = {rank, size, c->parallel.zero,
                           (int64_t)c->parallel.bucket_mib * MIB_OF_F32, weight_tile_rows(m)};
    int count = gradient_ranges(m, ranges);
    zero_free(&m->zero);
    m->zero = zero_plan(&m->params, ranges, count, &options);
    free(ranges);
}

/* --- weights at level 3 --- */

int model_linears_of(const Model *m, int bucket, int *first) {
    const ZeroRange *r = &m->zero.buckets[bucket].range;
    *first = 2 * r->closes;
    return r->is_block ? 2 * (r->opens - r->closes + 1) : 0;
}

int model_sends_codes(Model *m, int bucket, int backward) {
    int first, count = model_linears_of(m, bucket, &first);
    for (int id = first; id < first + count; id++) {
        const Linear *l = model_linear(m, id);
        if (!(backward ? linear_shares_codes : linear_rows_have_codes)(&m->engine, l)) return 0;
    }
    return count > 0;
}

RowRange model_own_rows(const Model *m, const Linear *l, int rank) {
    ZeroPiece piece = zero_piece(&m->zero, &m->params.params[l->weight], rank);
    RowRange rows = {piece.begin / l->in, piece.count / l->in};
    return rows;
}

void model_codes_cuts(Model *m, int bucket, int64_t *cuts) {
    int first, count = model_linears_of(m, bucket, &first);
    if (!model_sends_codes(m, bucket, 0)) count = 0;
    cuts[0] = 0;
    for (int r = 0; r < m->zero.size; r++) {
        cuts[r + 1] = cuts[r];
        for (int id = first; id < first + count; id++) {
            const Linear *l = model_linear(m, id);
            cuts[r + 1] += (int64_t)linear_codes_bytes(l, model_own_rows(m, l, r).count);
        }
    }
}

int64_t model_gathered_bytes(Model *m, int bucket, int backward) {
    const ZeroRange *r = &m->zero.buckets[bucket].range;
    if (!model_sends_codes(m, bucket, backward))
        return (int64_t)dtype_bytes(m->params.dtype, r->end - r->begin);
    int64_t *cuts = (int64_t *)xmalloc(((size_t)m->zero.size + 1) * sizeof(int64_t));
    model_codes_cuts(m, bucket, cuts);
    int64_t bytes = cuts[m->zero.size];
    free(cuts);
    return bytes;
}

static void place_codes(Model *m) {
    int64_t own = 0, most = 0;
    int64_t *cuts = (int64_t *)xmalloc(((size_t)m->zero.size + 1) * sizeof(int64_t));
    for (int i = 0; i < m->zero.num_buckets; i++) {
        model_codes_cuts(m, i, cuts);
        own += cuts[m->zero.rank + 1] - cuts[m->zero.rank];
        most = max_i64(most, cuts[m->zero.size]);
    }
    free(cuts);
    Arena *weights = &m->arenas[ARENA_WEIGHTS];
    m->rank_codes = arena_tensor(weights, DT_U8, 1, own);
    m->rank_wire = arena_tensor(weights, DT_U8, 2, round_up(most, WIRE_ALIGN));
    m->rank_maxima = arena_tensor(weights, DT_F32, 1, model_num_linears(m));
}

static void place_operands(Model *m, int bucket, Arena *a) {
    int first, count = model_linears_of(m, bucket, &first);
    for (int id = first; id < first + count; id++)
        linear_place_weights(&m->engine, model_linear(m, id), a);
}

void model_place_weights(Model *m, int training) {
    Arena *a = &m->arenas[ARENA_WEIGHTS];
    for (int id = 0; id < model_num_linears(m); id++) linear_place_amax(model_linear(m, id), a);
    if (!training || m->zero.level < 3) {
        for (int id = 0; id < model_num_linears(m); id++)
            linear_place_weights(&m->engine, model_linear(m, id), a);
        return;
    }
    size_t most = 0, begin = a->used;
    for (int i = 0; i < m->zero.num_buckets; i++) {
        Arena one = arena_measure(a->name, a->device);
        place_operands(m, i, &one);
        most = one.used > most ? one.used : most;
    }
    for (int i = 0; i < m->zero.num_buckets; i++) {
        a->used = begin + (m->zero.buckets[i].window == WINDOW_ODD ? most : 0);
        place_operands(m, i, a);
    }
    a->used = begin + 2 * most;
}

/* --- what travels --- */

void model_place_ranks(Model *m, const Config *c) {
    const ZeroPlan *z = &m->zero;
    if (z->size == 1) return;
    m->rank_sums = arena_tensor(&m->arenas[ARENA_TABLES], DT_F32, 1,
                                NUM_STATE_SUMS + (int64_t)z->num_buckets * z->size);
    if (z->level == 3) place_codes(m);
    if (c->parallel.grad_dtype == DT_BF16)
        m->rank_staging = arena_tensor(&m->arenas[ARENA_GRADIENTS], DT_BF16, 2, z->largest);
}
