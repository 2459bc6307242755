/* model_kept -- what recipes and the keys beside them keep from step to step: its place, and what
   of it a checkpoint holds; see model.h. */
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "model_parts.h"

enum { MAX_KEPT = 8 };   // tensors of a linear

static void keep(Model *m, const char *what, const Linear *l, Tensor t) {
    if (t.rows == 0) return;
    NamedTensor *kept = &m->kept[m->num_kept++];
    snprintf(kept->name, sizeof(kept->name), "recipe.%s.%s", l->name, what);
    kept->tensor = t;
}

/* The linear in the phase that keeps most: the same for all, so that what it keeps stays. */
static Linear linear_that_keeps(Model *m, int id) {
    Linear most = *model_linear(m, id);
    for (int phase = 0; phase < m->num_phases; phase++) {
        Linear l = most;
        l.plan = *model_plan(m, phase, id);
        int better = linear_keeps_maxima(&l) > linear_keeps_maxima(&most) ||
                     linear_keeps_history(&l) > linear_keeps_history(&most);
        if (better) most = l;
    }
    return most;
}

/* Delayed and held maxima. Those of the step at hand lie together, for ranks to share. */
static void place_maxima(Model *m, Arena *tables) {
    const int operands = NUM_GEMMS * NUM_SIDES;
    int count = model_num_linears(m), keeps = 0;
    for (int id = 0; id < count; id++) {
        Linear most = linear_that_keeps(m, id);
        keeps |= linear_keeps_maxima(&most);
    }
    if (!keeps) return;
    m->maxima = arena_tensor(tables, DT_F32, 1, (int64_t)operands * count);
    for (int id = 0; id < count; id++) {
        Linear *l = model_linear(m, id), most = linear_that_keeps(m, id);
        float *current = m->maxima.data ? (float *)m->maxima.data + operands * id : NULL;
        linear_place_maxima(&most, tables, tensor_view(current, DT_F32, 1, operands));
        l->maxima = most.maxima;
        keep(m, "amax", l, l->maxima.kept);
        keep(m, "amax_history", l, l->maxima.history);
    }
}

int model_unset_maxima(Model *m, int phase, const Linear **first) {
    int unset = 0;
    for (int id = model_num_linears(m) - 1; id >= 0; id--) {
        Linear l = *model_linear(m, id);
        l.plan = *model_plan(m, phase, id);
        int operands = linear_unset_maxima(&m->engine, &l);
        if (operands > 0) *first = model_linear(m, id);
        unset += operands;
    }
    return unset;
}

/* --- OsciReset --- */

/* 1 where in some phase fprop multiplies a quantised weight. */
static int ever_quantises_weight(Model *m, int id) {
    for (int phase = 0; phase < m->num_phases; phase++)
        if (operand_is_quantized(&model_plan(m, phase, id)->cell[GEMM_FPROP][SIDE_B])) return 1;
    return 0;
}

static void place_oscillations(Model *m, Arena *optimizer, Arena *scratch) {
    int64_t most = 0;
    for (int id = 0; id < model_num_linears(m); id++) {
        const Linear *l = model_linear(m, id);
        if (!ever_quantises_weight(m, id)) continue;
        Oscillation *o = &m->oscillations[id];
        *o = oscillation_place(optimizer, l->out, l->in);
        keep(m, "last_w", l, o->last_w);
        keep(m, "last_q", l, o->last_q);
        keep(m, "moved_w", l, o->moved_w);
        keep(m, "moved_q", l, o->moved_q);
        most = max_i64(most, tensor_count(o->last_w));
    }
    m->oscillation_now = arena_tensor(scratch, DT_F32, 1, most);
    m->oscillation_count =
        (int64_t *)arena_tensor(scratch, DT_U8, 1, sizeof(*m->oscillation_count)).data;
}

/* --- OutControl --- */

static int ever_controls_channels(Model *m, int id) {
    Linear l = *model_linear(m, id);
    for (int phase = 0; phase < m->num_phases; phase++) {
        l.plan = *model_plan(m, phase, id);
        if (linear_controls_channels(&l)) return 1;
    }
    return 0;
}

/* Sums of the step at hand lie together, for ranks to share. */
static void place_channels(Model *m, Arena *tables, Arena *scratch, int training) {
    int64_t features = 0, rest_bytes = 0;
    for (int id = 0; id < model_num_linears(m); id++) {
        Linear *l = model_linear(m, id);
        if (!ever_controls_channels(m, id)) continue;
        l->channels.chosen = arena_tensor(tables, DT_F32, 1, l->in);
        keep(m, "channels", l, l->channels.chosen);
        int64_t rows = max_i64(m->max_tokens, l->out);
        rest_bytes = max_i64(rest_bytes, (int64_t)dtype_bytes(m->config.dtype, rows * l->in));
        if (!training) continue;
        l->channels.total = arena_tensor(tables, DT_F32, 1, l->in);
        keep(m, "channel_squares", l, l->channels.total);
        features += l->in;
    }
    m->engine.rest_buffer = arena_tensor(scratch, DT_U8, 1, rest_bytes);
    m->channel_squares = arena_tensor(tables, DT_F32, 1, features);
    features = 0;
    for (int id = 0; id < model_num_linears(m); id++) {
        LinearChannels *channels = &model_linear(m, id)->channels;
        if (channels->total.rows == 0) continue;
        float *at = m->channel_squares.data ? (float *)m->channel_squares.data + features : NULL;
        channels->current = tensor_view(at, DT_F32, 1, channels->total.cols);
        features += channels->total.cols;
    }
}

/* --- all of them --- */

void model_declare_extras(Model *m, const Config *c) {
    size_t linears = (size_t)model_num_linears(m);
    m->kept = (NamedTensor *)xmalloc(MAX_KEPT * linears * sizeof(NamedTensor));
    m->oscillations = (Oscillation *)xmalloc(linears * sizeof(Oscillation));
    StepRange steps = {c->precision.out_control.from, c->precision.out_control.to};
    for (int id = 0; id < model_num_linears(m); id++) {
        LinearChannels *channels = &model_linear(m, id)->channels;
        channels->wanted = c->precision.out_control.fraction > 0;
        channels->steps = steps;
    }
}

void model_refuse_extras(const Config *c, const Linear *l, const char *when) {
    const Operand *x = &l->plan.cell[GEMM_FPROP][SIDE_A], *w = &l->plan.cell[GEMM_FPROP][SIDE_B];
    int is_drawn =
        operand_is_quantized(w) && (w->rounding == ROUND_STOCHASTIC || w->rounding == ROUND_EDEN);
    if (c->precision.osci_reset.start > 0 && is_drawn) {
        die(EXIT_CONFIG,
            "precision of %s%s: precision.osci_reset looks for weights that swing between codes, "
            "but fprop.w is drawn anew in each step; set precision.fprop.w.rounding=nearest or "
            "precision.osci_reset.start=0",
            l->name, when);
    }
    if (linear_controls_channels(l) && (x->hadamard || w->hadamard)) {
        die(EXIT_CONFIG,
            "precision of %s%s: precision.out_control chooses features of fprop, but a Hadamard "
            "transform of %d mixes them; set precision.fprop.x.hadamard=0 and "
            "precision.fprop.w.hadamard=0, or precision.out_control.fraction=0",
            l->name, when, x->hadamard ? x->hadamard : w->hadamard);
    }
}

void model_place_kept(Model *m, const Config *c, int training) {
    Arena *a = m->arenas;
    m->num_kept = 0;
    place_maxima(m, &a[ARENA_TABLES]);
    if (training && c->precision.osci_reset.start > 0)
        place_oscillations(m, &a[ARENA_OPTIMIZER], &a[ARENA_SCRATCH]);
    if (c->precision.out_control.fraction > 0)
        place_channels(m, &a[ARENA_TABLES], &a[ARENA_SCRATCH], training);
}
