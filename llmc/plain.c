/* plain -- plain operands in the place of a recipe's; see plain.h. */
#include "plain.h"

#include <stdlib.h>

#include "common.h"

static void make_plain(const Model *m, Linear *l, GemmKind g) {
    l->plain |= 1u << g;
    l->plain_format = m->config.dtype == DT_F32 ? FORMAT_F32 : FORMAT_BF16;
    if (g == GEMM_WGRAD) return;
    Tensor weight = m->params.params[l->weight].value;
    l->w[g] = operand_from_tensor(weight, l->plain_format, g == GEMM_FPROP);
}

PlainPeriod plain_begin(Model *m, unsigned gemms) {
    PlainPeriod period;
    period.linears = (Linear *)xmalloc((size_t)model_num_linears(m) * sizeof(Linear));
    period.levels = (RecomputeLevel *)xmalloc((size_t)m->num_branches * sizeof(RecomputeLevel));
    for (int id = 0; id < model_num_linears(m); id++) {
        Linear *l = model_linear(m, id);
        period.linears[id] = *l;
        for (int g = 0; g < NUM_GEMMS; g++)
            if (gemms >> g & 1) make_plain(m, l, (GemmKind)g);
    }
    for (int i = 0; i < m->num_branches; i++) {
        RecomputeLevel *level = &m->blocks[i].recompute;
        period.levels[i] = *level;
        // The inputs of linears, where their token operands were kept in their place.
        if (gemms >> GEMM_WGRAD & 1 && *level < RECOMPUTE_NORM) *level = RECOMPUTE_NORM;
    }
    return period;
}

void plain_end(Model *m, PlainPeriod *period) {
    for (int id = 0; id < model_num_linears(m); id++) *model_linear(m, id) = period->linears[id];
    for (int i = 0; i < m->num_branches; i++) m->blocks[i].recompute = period->levels[i];
    free(period->linears);
    free(period->levels);
}
