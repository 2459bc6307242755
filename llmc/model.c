/* model -- declaration, memory, forward and backward of the whole network; see model.h. */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm_watchdog.h"
#include "common.h"
#include "model_parts.h"

enum { VOCAB_ALIGN = 128 };

static const char *const arena_names[NUM_ARENAS] = {
    "parameters",          "gradients",          "optimizer",
    "quantised weights",   "tables, step state", "saved activations",
    "scratch activations", "op workspace",       "telemetry",
};

Linear *model_linear(Model *m, int id) {
    Block *b = &m->blocks[id / 2];
    return id % 2 ? &b->out : &b->in;
}

/* --- declaration --- */

/* The branches: the pattern's, or attention and MLP for each layer. Returns their number. */
static int pattern_branch(const ModelConfig *c, int i, const BlockKind **kind, int *index) {
    if (c->pattern[0]) {
        *kind = block_kind_of(c->pattern[i]);
        *index = i;
        return (int)strlen(c->pattern);
    }
    *kind = i % 2 ? &block_mlp : &block_attn;
    *index = i / 2;
    return 2 * c->layers;
}

static void declare_parameters(Model *m) {
    const ModelConfig *c = &m->config;
    ParamTable *t = &m->params;
    int64_t padded_vocab = round_up(c->vocab, VOCAB_ALIGN);
    m->embed = param_table_add(t, "embed.tokens.weight", c->vocab, c->dim, padded_vocab, 1,
                               INIT_NORMAL, c->init_std);
    m->positions = -1;
    if (c->pos == POS_LEARNED) {
        m->positions = param_table_add(t, "embed.positions.weight", m->max_T, c->dim, m->max_T, 1,
                                       INIT_NORMAL, c->init_std);
    }
    for (int i = 0; i < m->num_branches; i++) {
        const BlockKind *kind;
        int index;
        pattern_branch(c, i, &kind, &index);
        block_declare(&m->blocks[i], kind, c, index, t);
        m->blocks[i].in.id = 2 * i;
        m->blocks[i].out.id = 2 * i + 1;
    }
    m->final_norm_weight = param_table_add(t, "final_norm.weight", 1, c->dim, 1, 0, INIT_ONE, 0);
    m->final_norm_bias = c->norm == NORM_LAYERNORM
                             ? param_table_add(t, "final_norm.bias", 1, c->dim, 1, 0, INIT_ZERO, 0)
                             : -1;
    m->head = c->tied ? m->embed
                      : param_table_add(t, "head.weight", c->vocab, c->dim, padded_vocab, 1,
                                        INIT_NORMAL, c->init_std);
    param_table_seal(t, c->dtype);
}

/* The rules of a run's phase: first and last blocks kept in BF16, then the config's own, which can
   take that back, then those of the schedule that have begun. */
static Rule *run_rules(const Model *m, const Config *c, int phase, int *count) {
    int blocks = m->config.layers;
    int last = c->precision.keep_last;
    if (last < 0) {
        float share = c->precision.recipe->keep_last_frac;
        last = share > 0 ? (int)max_i64(1, lroundf(share * (float)blocks)) : 0;
    }
    int ranges[2][2] = {{0, c->precision.keep_first - 1}, {blocks - last, blocks - 1}};
    Rule *rules = (Rule *)xmalloc((size_t)(2 + c->precision.rules.count + phase) * sizeof(Rule));
    *count = 0;
    for (int i = 0; i < 2; i++) {
        if (ranges[i][0] > ranges[i][1]) continue;
        Rule *rule = &rules[(*count)++];
        *rule = rule_default();
        snprintf(rule->layers, sizeof(rule->layers), "blocks.%d-%d.*", ranges[i][0], ranges[i][1]);
        rule->recipe = recipe_find("bf16");
    }
    for (int i = 0; i < c->precision.rules.count; i++)
        rules[(*count)++] = c->precision.rules.items[i];
    for (int i = 0; i < phase; i++) rules[(*count)++] = c->precision.schedule.items[i].rule;
    return rules;
}

/* "blocks.0-11.{attn.qkv, attn.proj, mlp.up, mlp.down}". Returns buffer. */
static const char *linear_names(Model *m, char *buffer, int size) {
    int at = snprintf(buffer, (size_t)size, "blocks.0-%d.{", m->config.layers - 1);
    for (int i = 0; i < m->num_branches; i++) {
        const BlockKind *kind = m->blocks[i].kind;
        int before = 0;
        while (m->blocks[before].kind != kind) before++;
        if (before < i) continue;
        at += snprintf(buffer + at, (size_t)(size - at), "%s%s.%s, %s.%s", i ? ", " : "",
                       kind->name, kind->in_name, kind->name, kind->out_name);
    }
    snprintf(buffer + at, (size_t)(size - at), "}");
    return buffer;
}

/* A rule that reaches nothing is misspelled, and the run would not be the one that was meant. */
static void refuse_idle_rule(Model *m, const Rule *rule, const char *list, int i) {
    int id = 0, count = model_num_linears(m);
    while (id < count && !rule_matches(rule, model_linear(m, id)->name)) id++;
    if (id < count) return;
    char names[256];
    die(EXIT_CONFIG,
        "config: precision.%s[%d]: layers \"%s\" is no linear of this model; there are %s "
        "(embedding, head, norms and attention have no rules)",
        list, i, rule->layers, linear_names(m, names, sizeof(names)));
}

static void refuse_idle_rules(Model *m, const Config *c) {
    for (int i = 0; i < c->precision.rules.count; i++)
        refuse_idle_rule(m, &c->precision.rules.items[i], "rules", i);
    for (int i = 0; i < c->precision.schedule.count; i++)
        refuse_idle_rule(m, &c->precision.schedule.items[i].rule, "schedule", i);
}

/* Of the linear as its plan is now. */
static void refuse_plan(Model *m, const Config *c, const Linear *l, int phase) {
    char when[64] = "";
    if (phase > 0) snprintf(when, sizeof(when), " from precision.schedule[%d] on", phase - 1);
    const char *error =
        recipe_error(&l->plan, l->in, l->out, (int64_t)c->batch.micro * c->batch.seq_len);
    if (error) die(EXIT_CONFIG, "precision of %s%s: %s", l->name, when, error);
    error = recipe_error(&l->plan, l->in, l->out, (int64_t)c->eval.micro * c->batch.seq_len);
    if (error) {
        die(EXIT_CONFIG, "precision of %s%s, with eval.micro %d for batch.micro: %s", l->name, when,
            c->eval.micro, error);
    }
    model_refuse_extras(c, l, when);
    int is_f32 = l->plan.cell[GEMM_FPROP][SIDE_A].format == FORMAT_F32;
    if (is_f32 != (m->config.dtype == DT_F32)) {
        die(EXIT_CONFIG,
            "precision of %s%s: recipe f32 and model.dtype f32 belong together; set both "
            "or neither",
            l->name, when);
    }
}

LinearPlan *model_plan(Model *m, int phase, int id) {
    return &m->plans[phase * model_num_linears(m) + id];
}

void model_take_plans(Model *m, int phase) {
    m->phase = phase;
    for (int id = 0; id < model_num_linears(m); id++)
        model_linear(m, id)->plan = *model_plan(m, phase, id);
}

static void resolve_plans(Model *m, const Config *c) {
    int count = model_num_linears(m);
    refuse_idle_rules(m, c);
    m->num_phases = 1 + c->precision.schedule.count;
    m->plans = (LinearPlan *)xmalloc((size_t)(m->num_phases * count) * sizeof(LinearPlan));
    for (int phase = m->num_phases - 1; phase >= 0; phase--) {
        int num_rules;
        Rule *rules = run_rules(m, c, phase, &num_rules);
        for (int id = 0; id < count; id++) {
            const char *name = model_linear(m, id)->name;
            *model_plan(m, phase, id) = recipe_resolve(c->precision.recipe, rules, num_rules, name);
        }
        free(rules);
        model_take_plans(m, phase);
        for (int id = 0; id < count; id++) {
            refuse_plan(m, c, model_linear(m, id), phase);
            m->quantized |= linear_quantized_gemms(model_linear(m, id)) > 0;
        }
    }
}

/* A part of the logits this large keeps a GPU busy, and the next one costs it nothing. */
static int usual_head_chunks(const Model *m) {
    const Param *head = &m->params.params[m->head];
    int64_t bytes = (int64_t)dtype_bytes(m->config.dtype, m->max_tokens * head->padded_rows);
    return (int)ceil_div(bytes, (int64_t)4 << 30);
}

void model_declare(Model *m, const Config *c) {
    memset(m, 0, sizeof(*m));
    m->config = c->model;
    m->max_T = c->batch.seq_len;
    m->max_tokens = max_i64(c->batch.micro, c->eval.micro) * (int64_t)c->batch.seq_len;
    const BlockKind *kind;
    int index;
    m->num_branches = pattern_branch(&m->config, 0, &kind, &index);
    m->blocks = (Block *)xmalloc((size_t)m->num_branches * sizeof(Block));
    m->residual = (Tensor *)xmalloc((size_t)(m->num_branches + 1) * sizeof(Tensor));
    declare_parameters(m);
    m->head_chunks = c->memory.lmhead_chunks ? c->memory.lmhead_chunks : usual_head_chunks(m);
    for (int i = 0; i < m->num_branches; i++) {
        Block *b = &m->blocks[i];
        b->recompute = c->memory.recompute;
        if (b->kind == &block_mlp && c->precision.smooth_swiglu == SMOOTH_TOKEN) block_smooth(b);
    }
    model_declare_extras(m, c);
    resolve_plans(m, c);
    model_split(m, c, 0, 1);
}

/* --- memory --- */

typedef struct {
    int64_t core_in, core_out, linear;
    int64_t weight;
    int64_t divisor;   // of all widths
} Widest;

static int64_t common_divisor(int64_t a, int64_t b) {
    return b == 0 ? a : common_divisor(b, a % b);
}

static Widest widest_of(Model *m) {
    const Param *head = &m->params.params[m->head];
    Widest w = {m->config.dim, m->config.dim, m->config.dim, head->padded_rows * head->cols,
                m->config.dim};
    for (int id = 0; id < model_num_linears(m); id++) {
        const Linear *l = model_linear(m, id);
        w.linear = max_i64(w.linear, max_i64(l->in, l->out));
        w.weight = max_i64(w.weight, (int64_t)l->in * l->out);
        w.divisor = common_divisor(w.divisor, common_divisor(l->in, l->out));
    }
    for (int i = 0; i < m->num_branches; i++) {
        w.core_in = max_i64(w.core_in, m->blocks[i].in.out);
        w.core_out = max_i64(w.core_out, m->blocks[i].out.in);
    }
    return w;
}

static int64_t head_rows(const Model *m) { return ceil_div(m->max_tokens, m->head_chunks); }

/* What the linears share for one operand of this GEMM: the largest need. */
static int64_t operand_scratch(Model *m, GemmKind g, int64_t tokens) {
    int64_t most = 0;
    for (int id = 0; id < model_num_linears(m); id++) {
        size_t bytes = linear_scratch_bytes(&m->engine, model_linear(m, id), g, tokens);
        most = max_i64(most, (int64_t)bytes);
    }
    return most;
}

/* What the blocks share for the tensors that they do not keep. */
static void place_unkept(Model *m, Arena *scratch, int training) {
    int64_t core_in = 0, in_token = 0, out_token = 0, N = m->max_tokens;
    for (int i = 0; i < m->num_branches; i++) {
        const Block *b = &m->blocks[i];
        int64_t in_bytes = (int64_t)linear_saved_bytes(&m->engine, &b->in, N);
        int64_t out_bytes = (int64_t)linear_saved_bytes(&m->engine, &b->out, N);
        if (!block_keeps(b, KEPT_CORE_IN)) core_in = max_i64(core_in, b->in.out);
        if (!block_keeps(b, KEPT_NORM_OUT)) in_token = max_i64(in_token, in_bytes);
        if (!block_keeps(b, KEPT_CORE_OUT)) out_token = max_i64(out_token, out_bytes);
    }
    m->scratch.core_in = arena_tensor(scratch, m->config.dtype, N, core_in);
    if (!training) return;
    m->scratch.in_token = arena_tensor(scratch, DT_U8, 1, in_token);
    m->scratch.out_token = arena_tensor(scratch, DT_U8, 1, out_token);
}

static void place_saved(Model *m, Arena *saved) {
    const ModelConfig *c = &m->config;
    int64_t N = m->max_tokens;
    for (int i = 0; i <= m->num_branches; i++)
        m->residual[i] = arena_tensor(saved, c->dtype, N, c->dim);
    for (int i = 0; i < m->num_branches; i++)
        block_place(&m->engine, &m->blocks[i], &m->scratch, saved, N);
    m->final_stats.mean = arena_tensor(saved, DT_F32, N, 1);
    m->final_stats.rstd = arena_tensor(saved, DT_F32, N, 1);
    m->final_out = arena_tensor(saved, c->dtype, N, c->dim);
}

static void place_scratch(Model *m, Arena *scratch, int training) {
    const ModelConfig *c = &m->config;
    Widest w = widest_of(m);
    int64_t N = m->max_tokens;
    place_unkept(m, scratch, training);
    m->scratch.norm_out = arena_tensor(scratch, c->dtype, N, c->dim);
    m->scratch.core_out = arena_tensor(scratch, c->dtype, N, w.core_out);
    m->scratch.branch_out = arena_tensor(scratch, c->dtype, N, c->dim);
    int64_t row_bytes = operand_scratch(m, GEMM_FPROP, N);
    if (training) row_bytes = max_i64(row_bytes, operand_scratch(m, GEMM_DGRAD, N));
    m->engine.row_buffer = arena_tensor(scratch, DT_U8, 1, row_bytes);
    m->tokens = arena_tensor(scratch, DT_I32, N, 1);
    m->targets = arena_tensor(scratch, DT_I32, N, 1);
    m->logits =
        arena_tensor(scratch, c->dtype, head_rows(m), m->params.params[m->head].padded_rows);
    m->losses = arena_tensor(scratch, DT_F32, N, 1);
    m->dresidual = arena_tensor(scratch, c->dtype, N, c->dim);
    if (!training) return;
    m->scratch.dcore_out = arena_tensor(scratch, c->dtype, N, w.core_out);
    m->scratch.dcore_in = arena_tensor(scratch, c->dtype, N, w.core_in);
    m->scratch.dnorm_out = arena_tensor(scratch, c->dtype, N, c->dim);
    m->engine.token_buffer = arena_tensor(scratch, DT_U8, 1, operand_scratch(m, GEMM_WGRAD, N));
}

static int has_f32_values(Model *m) {
    for (int i = 0; i < NUM_GEMMS * model_num_linears(m); i++) {
        const Linear *l = model_linear(m, i / NUM_GEMMS);
        if (linear_values_dtype(l, (GemmKind)(i % NUM_GEMMS)) == DT_F32) return 1;
    }
    return 0;
}

static OpLimits limits_of(Model *m, const Config *c) {
    Widest w = widest_of(m);
    OpLimits limits = {
        .tokens = m->max_tokens,
        .dim = m->config.dim,
        .cols_divisor = w.divisor,
        .max_cols = max_i64(w.linear, w.core_in),
        .max_weight = w.weight,
        .logits_rows = head_rows(m),
        .padded_vocab = m->params.params[m->head].padded_rows,
        .num_elements = m->params.num_elements,
        .attention = {(int)max_i64(c->batch.micro, c->eval.micro), c->batch.seq_len, c->model.heads,
                      c->model.kv_heads, c->model.head_dim},
        .f32_values = has_f32_values(m),
        .any_order = !c->memory.deterministic,
    };
    return limits;
}

/* One run of the arena protocol: measures, or hands out addresses. */
static void layout(Model *m, const Config *c, const Ops *ops, int training) {
    Arena *a = m->arenas;
    Arena *parameters = &a[ARENA_PARAMETERS];
    if (training)
        zero_place(&m->zero, &m->params, parameters, &a[ARENA_GRADIENTS], &a[ARENA_OPTIMIZER]);
    else param_table_place(&m->params, parameters, NULL, NULL, 0);
    model_place_weights(m, training);
    m->engine.state = (StepState *)arena_tensor(&a[ARENA_TABLES], DT_U8, 1, sizeof(StepState)).data;
    if (m->config.pos == POS_ROPE) {
        m->rope_table = arena_tensor(&a[ARENA_TABLES], DT_F32, m->max_T, m->config.head_dim);
        for (int i = 0; i < m->num_branches; i++) m->blocks[i].rope_table = m->rope_table;
    }
    if (training) model_place_ranks(m, c);
    model_place_kept(m, c, training);
    place_scratch(m, &a[ARENA_SCRATCH], training);
    place_saved(m, &a[ARENA_SAVED]);
    OpLimits limits = limits_of(m, c);
    const char *error = ops->limits_error(&limits);
    if (error) die(EXIT_CONFIG, "model: %s", error);
    Tensor workspace =
        arena_tensor(&a[ARENA_WORKSPACE], DT_U8, 1, (int64_t)ops->scratch_bytes(&limits));
    if (workspace.data)
        device_set_scratch(m->engine.device, workspace.data, tensor_bytes(workspace));
}

/* What each arena needs in the phase that needs most. */
void model_measure(Model *m, const Config *c, Device *d, const Ops *ops, int training) {
    size_t most[NUM_ARENAS] = {0};
    m->engine.device = d;
    m->engine.ops = ops;
    m->engine.params = &m->params;
    m->engine.seed = c->seed;
    m->engine.training = m->engine.records = training;
    for (int i = 0; i < ARRAY_LEN(m->recorded); i++)
        m->recorded[i].wanted = c->memory.cuda_graphs && d->record_begin;
    for (int phase = m->num_phases - 1; phase >= 0; phase--) {
        model_take_plans(m, phase);
        for (int i = 0; i < NUM_ARENAS; i++) m->arenas[i] = arena_measure(arena_names[i], d);
        layout(m, c, ops, training);
        for (int i = 0; i < NUM_ARENAS; i++)
            if (m->arenas[i].used > most[i]) most[i] = m->arenas[i].used;
    }
    for (int i = 0; i < NUM_ARENAS; i++) m->arenas[i].used = most[i];
}

void model_place(Model *m, const Config *c, Device *d, const Ops *ops, int training) {
    model_measure(m, c, d, ops, training);
    for (int i = 0; i < NUM_ARENAS; i++) arena_commit(&m->arenas[i]);
    layout(m, c, ops, training);
    m->layout_config = c;
    d->zero(d, m->engine.state, sizeof(StepState));
    if (m->maxima.data) d->zero(d, m->maxima.data, tensor_bytes(m->maxima));
    if (m->channel_squares.data)
        d->zero(d, m->channel_squares.data, tensor_bytes(m->channel_squares));
    for (int i = 0; i < m->num_kept; i++)
        d->zero(d, m->kept[i].tensor.data, tensor_bytes(m->kept[i].tensor));
    if (m->config.pos != POS_ROPE) return;
    float *table = (float *)xmalloc(tensor_bytes(m->rope_table));
    rope_fill_table(table, m->max_T, m->config.head_dim, m->config.rope_theta);
    d->upload(d, m->rope_table.data, table, tensor_bytes(m->rope_table));
    free(table);
}

void model_init(Model *m, uint64_t seed) { param_table_init(&m->params, m->engine.device, seed); }

static void forget_recording(Model *m, MicroStepRecording *r) {
    Device *d = m->engine.device;
    if (r->recording) d->forget(d, r->recording);
    r->recording = NULL;
}

static void forget_recordings(Model *m) {
    for (int i = 0; i < ARRAY_LEN(m->recorded); i++) forget_recording(m, &m->recorded[i]);
}

void model_set_phase(Model *m, int phase) {
    CHECK(phase >= 0 && phase < m->num_phases, "phase %d of %d", phase, m->num_phases);
    if (phase == m->phase) return;
    forget_recordings(m);
    model_take_plans(m, phase);
    if (!m->layout_config) return;
    for (int i = 0; i < NUM_ARENAS; i++) m->arenas[i].used = 0;
    layout(m, m->layout_config, m->engine.ops, m->engine.training);
}

void model_free(Model *m) {
    forget_recordings(m);
    for (int i = 0; i < NUM_ARENAS; i++) {
        if (m->arenas[i].device) arena_free(&m->arenas[i]);
    }
    zero_free(&m->zero);
    free(m->params.params);
    free(m->blocks);
    free(m->residual);
    free(m->kept);
    free(m->oscillations);
    free(m->plans);
    memset(m, 0, sizeof(*m));
}

void model_begin_step(Model *m, int64_t step) { model_begin_phase(m, step, m->phase); }

void model_begin_phase(Model *m, int64_t step, int phase) {
    Engine *e = &m->engine;
    uint32_t number = (uint32_t)step;
    for (int id = 0; id < model_num_linears(m); id++) linear_advance(e, model_linear(m, id));
    model_set_phase(m, phase);
    e->device->upload(e->device, &e->state->step, &number, sizeof(number));
    m->step = step;
    model_prepare_weights(m);
}

void model_prepare_weights(Model *m) {
    if (m->observer && m->observer->prepare) {
        m->observer->prepare(m->observer->self);
        return;
    }
    for (int id = 0; id < model_num_linears(m); id++)
        linear_prepare(&m->engine, model_linear(m, id));
}

void model_zero_gradients(Model *m) {
    m->engine.device->zero(m->engine.device, m->params.grad.data, tensor_bytes(m->params.grad));
}

void model_finish_branch(Model *m, int branch) {
    for (int id = 2 * branch; id < 2 * branch + 2; id++) {
        const Linear *l = model_linear(m, id);
        if (linear_has_finish(l)) linear_finish(&m->engine, l);
    }
}

void model_finish_gradients(Model *m) {
    for (int i = 0; i < m->num_branches; i++) model_finish_branch(m, i);
}

/* --- forward --- */

static Tensor value_of(const Model *m, int index) {
    Tensor none = {0};
    return index < 0 ? none : m->params.params[index].value;
}

static Tensor grad_of(const Model *m, int index) {
    Tensor none = {0};
    return index < 0 ? none : m->params.params[index].grad;
}

/* The norm that reads residual[i]: of branch i, or the final one. */
static NormSite norm_site(const Model *m, int i, int64_t N) {
    if (i < m->num_branches) return block_norm(&m->engine, &m->blocks[i], &m->scratch, N);
    NormSite site = {
        .out = tensor_rows(m->final_out, 0, N),
        .stats = {tensor_rows(m->final_stats.mean, 0, N), tensor_rows(m->final_stats.rstd, 0, N)},
        .w = value_of(m, m->final_norm_weight),
        .b = value_of(m, m->final_norm_bias),
    };
    return site;
}

static void upload_tokens(Model *m, Tensor to, const int32_t *tokens, int B, int T) {
    int64_t N = (int64_t)B * T;
    CHECK(N <= m->max_tokens && T <= m->max_T, "batch %d x %d exceeds the planned %lld tokens", B,
          T, (long long)m->max_tokens);
    m->engine.device->upload(m->engine.device, to.data, tokens, (size_t)N * sizeof(int32_t));
}

/* A micro-step may take longer than ranks wait for each other: the watchdog sees it go on. */
static void show_forward(const Model *m, int branch) {
    watchdog_tick();
    if (m->observer) m->observer->forward(m->observer->self, branch);
}

static void show_backward(const Model *m, int stage) {
    watchdog_tick();
    if (m->observer) m->observer->backward(m->observer->self, stage);
}

static void show_done(const Model *m, int stage) {
    if (m->observer) m->observer->done(m->observer->self, stage);
}

void model_pass_by(Model *m, int backward) {
    if (!m->observer) return;
    int training = m->engine.training;
    m->engine.training = backward;   // as in the passes of other ranks
    for (int i = 0; i <= m->num_branches; i++) show_forward(m, i);
    m->engine.training = training;
    for (int stage = m->num_branches; backward && stage >= -1; stage--) {
        show_backward(m, stage);
        show_done(m, stage);
    }
}

/* Vectors of m->tokens through all blocks and the final norm: final_out (N,C). What a branch gives
   is added to the residual stream by the op that takes the next norm. */
static void forward(Model *m, int B, int T) {
    Engine *e = &m->engine;
    const NormOp *op = &e->ops->norm[m->config.norm];
    int64_t N = (int64_t)B * T;
    Tensor x = tensor_rows(m->residual[0], 0, N);
    e->ops->embedding_forward(e->device, x, tensor_view(m->tokens.data, DT_I32, B, T),
                              value_of(m, m->embed), value_of(m, m->positions));
    NormSite norm = norm_site(m, 0, N);
    op->forward(e->device, norm.out, norm.stats, x, norm.w, norm.b, m->config.norm_eps);
    for (int i = 0; i < m->num_branches; i++) {
        show_forward(m, i);
        Tensor branch = block_forward(e, &m->blocks[i], &m->scratch, N, T);
        Residual add = {tensor_rows(m->residual[i + 1], 0, N), x, branch};
        norm = norm_site(m, i + 1, N);
        op->residual_forward(e->device, norm.out, norm.stats, add, norm.w, norm.b,
                             m->config.norm_eps);
        x = add.sum;
    }
    show_forward(m, m->num_branches);
}

static FormatId plain_format(const Model *m) {
    return m->config.dtype == DT_F32 ? FORMAT_F32 : FORMAT_BF16;
}

/* Logits and losses against m->targets, chunk by chunk; with training also d loss / d final_out,
   left in dfinal, and the head's gradient. */
static void head(Model *m, int64_t N, float loss_scale, Tensor dfinal) {
    Engine *e = &m->engine;
    FormatId plain = plain_format(m);
    GemmEpilogue overwrite = {{0}, 0}, accumulate = {{0}, 1};
    Tensor weight = value_of(m, m->head);
    QOperand w = operand_from_tensor(weight, plain, 1),
             w_transposed = operand_from_tensor(weight, plain, 0);
    for (int64_t begin = 0; begin < N; begin += m->logits.rows) {
        int64_t rows = min_i64(m->logits.rows, N - begin);
        Tensor x = tensor_rows(m->final_out, begin, rows), logits = tensor_rows(m->logits, 0, rows);
        QOperand row_x = operand_from_tensor(x, plain, 1),
                 token_x = operand_from_tensor(x, plain, 0);
        e->ops->gemm(e->device, logits, &row_x, &w, overwrite);
        e->ops->cross_entropy(e->device, tensor_rows(m->losses, begin, rows), logits,
                              tensor_rows(m->targets, begin, rows), m->config.vocab,
                              e->training ? loss_scale : 0.0f);
        if (!e->training) continue;
        QOperand row_dy = operand_from_tensor(logits, plain, 1),
                 token_dy = operand_from_tensor(logits, plain, 0);
        e->ops->gemm(e->device, tensor_rows(dfinal, begin, rows), &row_dy, &w_transposed,
                     overwrite);
        e->ops->gemm(e->device, grad_of(m, m->head), &token_dy, &token_x, accumulate);
    }
    e->ops->sum(e->device, &e->state->loss, tensor_rows(m->losses, 0, N), loss_scale);
}

/* All of a micro-step that the device does by itself, once tokens and targets are there. */
static void micro_step(Model *m, int B, int T, float loss_scale) {
    Engine *e = &m->engine;
    int64_t N = (int64_t)B * T;
    forward(m, B, T);
    show_backward(m, m->num_branches);
    Tensor dfinal = tensor_rows(m->scratch.dnorm_out, 0, N);
    head(m, N, loss_scale, dfinal);

    Tensor dx = tensor_rows(m->dresidual, 0, N);
    e->device->zero(e->device, dx.data, tensor_bytes(dx));
    NormSite norm = norm_site(m, m->num_branches, N);
    e->ops->norm[m->config.norm].backward(
        e->device, dx, grad_of(m, m->final_norm_weight), grad_of(m, m->final_norm_bias), dfinal,
        tensor_rows(m->residual[m->num_branches], 0, N), norm.w, norm.stats);
    show_done(m, m->num_branches);
    for (int i = m->num_branches - 1; i >= 0; i--) {
        show_backward(m, i);
        block_backward(e, &m->blocks[i], &m->scratch, dx, tensor_rows(m->residual[i], 0, N), T);
        show_done(m, i);
    }
    show_backward(m, -1);
    e->ops->embedding_backward(e->device, grad_of(m, m->embed), grad_of(m, m->positions), dx,
                               tensor_view(m->tokens.data, DT_I32, B, T));
    show_done(m, -1);
}

/* The micro-step by replay, recorded before where it is the second of its kind. */
static void replay_micro_step(Model *m, MicroStepRecording *r) {
    Engine *e = &m->engine;
    if (!r->recording) {
        int64_t before = e->quantized_gemms;
        e->device->record_begin(e->device);
        micro_step(m, r->B, r->T, r->loss_scale);
        r->recording = e->device->record_end(e->device);
        r->quantized_gemms = e->quantized_gemms - before;
        e->quantized_gemms = before;
    }
    e->device->replay(e->device, r->recording);
    e->quantized_gemms += r->quantized_gemms;
}

static void upload_batch(Model *m, const int32_t *tokens, const int32_t *targets, int B, int T) {
    CHECK(m->engine.training, "a backward pass on a model that was placed for evaluation");
    upload_tokens(m, m->tokens, tokens, B, T);
    upload_tokens(m, m->targets, targets, B, T);
}

void model_pass(Model *m, const int32_t *tokens, const int32_t *targets, int B, int T,
                float loss_scale) {
    int64_t counted = m->engine.quantized_gemms;
    upload_batch(m, tokens, targets, B, T);
    m->engine.records = 0;
    micro_step(m, B, T, loss_scale);
    m->engine.records = m->engine.training;
    m->engine.quantized_gemms = counted;
}

void model_forward_backward(Model *m, const int32_t *tokens, const int32_t *targets, int B, int T,
                            float loss_scale) {
    MicroStepRecording *r = &m->recorded[m->observer != NULL];
    upload_batch(m, tokens, targets, B, T);
    if (r->wanted && r->B == B && r->T == T && r->loss_scale == loss_scale) {
        replay_micro_step(m, r);
        return;
    }
    forget_recording(m, r);
    r->B = B;
    r->T = T;
    r->loss_scale = loss_scale;
    micro_step(m, B, T, loss_scale);
}

void model_evaluate(Model *m, const int32_t *tokens, const int32_t *targets, int B, int T,
                    float loss_scale) {
    Tensor none = {0};
    int training = m->engine.training;
    m->engine.training = m->engine.records = 0;
    upload_tokens(m, m->tokens, tokens, B, T);
    upload_tokens(m, m->targets, targets, B, T);
    forward(m, B, T);
    head(m, (int64_t)B * T, loss_scale, none);
    m->engine.training = m->engine.records = training;
}

/* A quantised forward pass takes rows in multiples of 32; a sequence that is none runs as several
   copies of itself. */
static void forward_one(Model *m, const int32_t *tokens, int T) {
    int copies = 1;
    if (m->quantized) {
        while ((int64_t)copies * T % 32 != 0) copies *= 2;
    }
    int32_t *batch = (int32_t *)xmalloc((size_t)copies * (size_t)T * sizeof(int32_t));
    for (int i = 0; i < copies; i++)
        memcpy(batch + (size_t)i * (size_t)T, tokens, (size_t)T * sizeof(int32_t));
    int training = m->engine.training;
    m->engine.training = m->engine.records = 0;
    upload_tokens(m, m->tokens, batch, copies, T);
    forward(m, copies, T);
    m->engine.training = m->engine.records = training;
    free(batch);
}

void model_logits(Model *m, const int32_t *tokens, int T, int at, float *logits) {
    Engine *e = &m->engine;
    GemmEpilogue overwrite = {{0}, 0};
    forward_one(m, tokens, T);
    QOperand x = operand_from_tensor(tensor_rows(m->final_out, at, 1), plain_format(m), 1);
    QOperand w = operand_from_tensor(value_of(m, m->head), plain_format(m), 1);
    Tensor row = tensor_rows(m->logits, 0, 1);
    e->ops->gemm(e->device, row, &x, &w, overwrite);
    if (row.dtype == DT_F32) {
        e->device->download(e->device, logits, row.data, (size_t)m->config.vocab * sizeof(float));
        return;
    }
    bf16_t *rounded = (bf16_t *)xmalloc(tensor_bytes(row));
    e->device->download(e->device, rounded, row.data, tensor_bytes(row));
    for (int v = 0; v < m->config.vocab; v++) logits[v] = bf16_to_f32(rounded[v]);
    free(rounded);
}

/* --- facts --- */

int64_t model_matrix_weights(const Model *m) {
    int64_t n = 0;
    for (int i = 0; i < m->num_branches; i++) {
        const Block *b = &m->blocks[i];
        n += (int64_t)b->in.in * b->in.out + (int64_t)b->out.in * b->out.out;
    }
    return n;
}

double model_flops_per_token(const Model *m, int seq_len) {
    const ModelConfig *c = &m->config;
    int attention_layers = 0;
    for (int i = 0; i < m->num_branches; i++) attention_layers += m->blocks[i].kind == &block_attn;
    double weights = (double)model_matrix_weights(m) + (double)c->vocab * c->dim;
    return 6.0 * weights + 6.0 * attention_layers * (double)c->heads * c->head_dim * seq_len;
}
