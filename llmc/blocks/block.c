/* block -- the residual branch that all block kinds share; see block.h. */
#include "block.h"

#include <math.h>

#include "../common.h"

const BlockKind *const block_kinds[] = {&block_attn, &block_mlp, NULL};

const BlockKind *block_kind_of(char symbol) {
    for (int i = 0; block_kinds[i]; i++) {
        if (block_kinds[i]->symbol == symbol) return block_kinds[i];
    }
    return NULL;
}

/* Output projections start smaller, by 1 / sqrt(residual additions), so that the residual stream's
   variance does not grow with depth. Source: Radford et al. 2019, section 2.3. */
static float out_std(const ModelConfig *m) {
    int residual_adds = m->pattern[0] ? m->layers : 2 * m->layers;
    return m->init_std / sqrtf((float)residual_adds);
}

void block_declare(Block *b, const BlockKind *kind, const ModelConfig *m, int index,
                   ParamTable *t) {
    char name[96];
    b->kind = kind;
    b->model = m;
    b->index = index;
    snprintf(name, sizeof(name), "blocks.%d.%s_norm.weight", index, kind->name);
    b->norm_weight = param_table_add(t, name, 1, m->dim, 1, 0, INIT_ONE, 0);
    b->norm_bias = -1;
    if (m->norm == NORM_LAYERNORM) {
        snprintf(name, sizeof(name), "blocks.%d.%s_norm.bias", index, kind->name);
        b->norm_bias = param_table_add(t, name, 1, m->dim, 1, 0, INIT_ZERO, 0);
    }
    snprintf(name, sizeof(name), "blocks.%d.%s.%s", index, kind->name, kind->in_name);
    linear_declare(&b->in, t, name, m->dim, kind->in_cols(m), m->bias, m->init_std);
    snprintf(name, sizeof(name), "blocks.%d.%s.%s", index, kind->name, kind->out_name);
    linear_declare(&b->out, t, name, kind->core_cols(m), m->dim, m->bias, out_std(m));
}

void block_smooth(Block *b) {
    b->smooth = 1;
    b->out_bias = b->out.bias;
    b->out.bias = -1;
}

Tensor block_row_scale(const Block *b, int64_t rows) { return tensor_rows(b->row_scale, 0, rows); }

int block_keeps(const Block *b, BlockTensor t) {
    const RecomputeLevel again[] = {[KEPT_NORM_OUT] = RECOMPUTE_NORM,
                                    [KEPT_CORE_IN] = RECOMPUTE_BLOCK,
                                    [KEPT_CORE_OUT] = b->kind->core_again};
    return b->recompute < again[t];
}

/* The token operand of a linear's input: in the arena, or in the scratch that blocks share. */
static void place_token(const Engine *e, const Linear *l, LinearSaved *saved, int keeps,
                        Tensor scratch, Arena *a, int64_t tokens) {
    if (keeps) linear_place_saved(e, l, saved, a, tokens);
    else saved->token_buffer = scratch;
}

void block_place(const Engine *e, Block *b, const BlockScratch *s, Arena *saved, int64_t tokens) {
    const ModelConfig *m = b->model;
    int keeps_norm_out = block_keeps(b, KEPT_NORM_OUT);
    int keeps_core_out = block_keeps(b, KEPT_CORE_OUT);
    Tensor none = {0};   // another phase's place is not this one's
    b->norm_out = b->core_in = b->core_out = none;
    b->stats.mean = arena_tensor(saved, DT_F32, tokens, 1);
    b->stats.rstd = arena_tensor(saved, DT_F32, tokens, 1);
    if (keeps_norm_out && linear_keeps_input(&b->in))
        b->norm_out = arena_tensor(saved, m->dtype, tokens, m->dim);
    if (block_keeps(b, KEPT_CORE_IN))
        b->core_in = arena_tensor(saved, m->dtype, tokens, b->kind->in_cols(m));
    if (keeps_core_out && (linear_keeps_input(&b->out) || b->kind->backward_reads_output))
        b->core_out = arena_tensor(saved, m->dtype, tokens, b->kind->core_cols(m));
    place_token(e, &b->in, &b->in_saved, keeps_norm_out, s->in_token, saved, tokens);
    place_token(e, &b->out, &b->out_saved, keeps_core_out, s->out_token, saved, tokens);
    if (b->kind->place) b->kind->place(b, saved, tokens);
}

/* The first rows x cols values of `kept`, or of the shared scratch where nothing is kept. */
static Tensor rows_of(Tensor kept, Tensor scratch, int64_t rows, int64_t cols) {
    Tensor t = tensor_empty(kept) ? scratch : kept;
    CHECK(rows * cols <= tensor_count(t), "activation of %lld x %lld does not fit", (long long)rows,
          (long long)cols);
    return tensor_view(t.data, t.dtype, rows, cols);
}

static Tensor param_value(const Engine *e, int index) {
    Tensor none = {0};
    return index < 0 ? none : e->params->params[index].value;
}

static Tensor param_grad(const Engine *e, int index) {
    Tensor none = {0};
    return index < 0 ? none : e->params->params[index].grad;
}

NormSite block_norm(const Engine *e, const Block *b, const BlockScratch *s, int64_t rows) {
    NormSite site = {
        .out = rows_of(b->norm_out, s->norm_out, rows, b->model->dim),
        .stats = {tensor_rows(b->stats.mean, 0, rows), tensor_rows(b->stats.rstd, 0, rows)},
        .w = param_value(e, b->norm_weight),
        .b = param_value(e, b->norm_bias),
    };
    return site;
}

/* The tensors between the branch's ops, kept or in scratch. */
typedef struct {
    Tensor norm_out, core_in, core_out;
} Activations;

static Activations activations_of(const Block *b, const BlockScratch *s, int64_t rows) {
    Activations a = {
        .norm_out = rows_of(b->norm_out, s->norm_out, rows, b->model->dim),
        .core_in = rows_of(b->core_in, s->core_in, rows, b->in.out),
        .core_out = rows_of(b->core_out, s->core_out, rows, b->out.in),
    };
    return a;
}

/* core_in = in_linear(norm_out) */
static void forward_in(Engine *e, Block *b, LinearSaved *saved, Activations a) {
    QOperand operand = linear_input(e, &b->in, saved, a.norm_out);
    linear_forward(e, &b->in, a.core_in, &operand);
}

Tensor block_forward(Engine *e, Block *b, const BlockScratch *s, int64_t rows, int T) {
    Activations a = activations_of(b, s, rows);
    Tensor branch_out = rows_of(s->branch_out, s->branch_out, rows, b->model->dim);
    LinearSaved *in_saved = block_keeps(b, KEPT_NORM_OUT) ? &b->in_saved : NULL;
    LinearSaved *out_saved = block_keeps(b, KEPT_CORE_OUT) ? &b->out_saved : NULL;

    linear_watch_channels(e, &b->in, a.norm_out);
    forward_in(e, b, in_saved, a);
    b->kind->core_forward(e, b, a.core_out, a.core_in, T);
    linear_watch_channels(e, &b->out, a.core_out);
    QOperand operand = linear_input(e, &b->out, out_saved, a.core_out);
    linear_forward(e, &b->out, branch_out, &operand);
    if (b->smooth)
        e->ops->scale_rows(e->device, branch_out, branch_out, block_row_scale(b, rows),
                           param_value(e, b->out_bias));
    return branch_out;
}

/* Forward once more, of what backward reads and was not kept. */
static void forward_again(Engine *e, Block *b, Activations a, NormSite norm, Tensor x, int T) {
    const ModelConfig *m = b->model;
    int again = !block_keeps(b, KEPT_NORM_OUT);
    if (again) {
        e->ops->norm[m->norm].forward(e->device, norm.out, norm.stats, x, norm.w, norm.b,
                                      m->norm_eps);
    }
    if (!block_keeps(b, KEPT_CORE_IN)) forward_in(e, b, &b->in_saved, a);
    else if (again) linear_save_input(e, &b->in, &b->in_saved, a.norm_out);
    if (block_keeps(b, KEPT_CORE_OUT)) return;
    b->kind->core_forward(e, b, a.core_out, a.core_in, T);
    linear_save_input(e, &b->out, &b->out_saved, a.core_out);
}

/* From the gradient of the branch's output, dx, to that of out_linear's; adds the bias's where it
   is the block's. */
static Tensor product_grad(Engine *e, const Block *b, const BlockScratch *s, Tensor dx) {
    Tensor none = {0};
    if (!b->smooth) return dx;
    // branch_out = out_linear(core_out) * row_scale + out_bias
    if (b->out_bias >= 0) e->ops->column_sum(e->device, param_grad(e, b->out_bias), dx);
    Tensor dproduct = rows_of(s->branch_out, s->branch_out, dx.rows, dx.cols);
    e->ops->scale_rows(e->device, dproduct, dx, block_row_scale(b, dx.rows), none);
    return dproduct;
}

void block_backward(Engine *e, Block *b, const BlockScratch *s, Tensor dx, Tensor x, int T) {
    const ModelConfig *m = b->model;
    int64_t N = x.rows;
    Activations a = activations_of(b, s, N);
    NormSite norm = block_norm(e, b, s, N);
    Tensor dcore_out = rows_of(s->dcore_out, s->dcore_out, N, b->out.in);
    Tensor dcore_in = rows_of(s->dcore_in, s->dcore_in, N, b->in.out);
    Tensor dnorm_out = rows_of(s->dnorm_out, s->dnorm_out, N, m->dim);

    forward_again(e, b, a, norm, x, T);
    // sum = x + branch_out: dx is already the gradient of both.
    LinearGrad grad = linear_output_grad(e, &b->out, product_grad(e, b, s, dx));
    // branch_out = out_linear(core_out)
    linear_backward(e, &b->out, dcore_out, &grad, &b->out_saved);
    b->kind->core_backward(e, b, dcore_in, dcore_out, a.core_out, a.core_in, T);
    grad = linear_output_grad(e, &b->in, dcore_in);
    // core_in = in_linear(norm_out)
    linear_backward(e, &b->in, dnorm_out, &grad, &b->in_saved);
    e->ops->norm[m->norm].backward(e->device, dx, param_grad(e, b->norm_weight),
                                   param_grad(e, b->norm_bias), dnorm_out, x, norm.w, norm.stats);
}
