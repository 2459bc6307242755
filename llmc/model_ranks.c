/* model_ranks -- what a rank keeps of a model that several train: when backward completes which
   gradients, where cuts may fall, and memory for what travels; see model.h and zero.h. */
#include <stdlib.h>

#include "common.h"
#include "model_parts.h"

enum { MIN_TILE_ROWS = 16, RANGE_ALIGN = 128, MIB_OF_F32 = 1 << 18 };

static int64_t param_end(const Model *m, int index) {
    const Param *p = &m->params.params[index];
    return p->offset + p->padded_rows * p->cols;
}

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
        ZeroRange branch = {begin, round_up(param_end(m, m->blocks[i].out.weight), RANGE_ALIGN), i,
                            i, 1};
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

void model_place_ranks(Model *m, const Config *c) {
    const ZeroPlan *z = &m->zero;
    if (z->size == 1) return;
    m->rank_sums = arena_tensor(&m->arenas[ARENA_TABLES], DT_F32, 1,
                                NUM_STATE_SUMS + (int64_t)z->num_buckets * z->size);
    if (c->parallel.grad_dtype == DT_BF16)
        m->rank_staging = arena_tensor(&m->arenas[ARENA_GRADIENTS], DT_BF16, 2, z->largest);
}
