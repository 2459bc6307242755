/* predict -- counts the work of a step op by op, in the order of model.c; see predict.h. */
#include "predict.h"

#include <string.h>

#include "backend.h"
#include "common.h"

/* What this program reaches, as shares of a device's bandwidth; all measured on an H200 of 4.8 TB/s
   (dev/SPEED.md) and taken over to the others. */
static const double COPY_SHARE = 0.85;         // element-wise ops: copy is 3.9 to 4.2 TB/s
static const double AMAX_SHARE = 0.77;         // 3.3 to 4.1 TB/s
static const double NEAREST_SHARE = 0.71;      // operands rounded to nearest: 3.3 to 3.5 TB/s;
                                               // FP8's the same, which is assumed
static const double STOCHASTIC_SHARE = 0.54;   // 2.5 to 2.7 TB/s
static const double SQUARE_SHARE = 0.10;       // 16x16 tiles: 0.48 TB/s
static const double F32_RATE = 0.05;           // f32 values, of what BF16 reaches; assumed
/* For a kernel to fill the device and to drain it; assumed. */
static const double OP_SECONDS = 4e-6;

enum { TILE = 128 };   // of a product, that a multiprocessor works on

/* Bytes an element, as the ops' headers state them. */
enum {
    AMAX_BYTES = 2,
    QUANTISE_READ = 2,
    NORM_FORWARD = 4,
    NORM_BACKWARD = 8,
    NORM_RESIDUAL = 8,
    COLUMN_SUM = 2,
    ROPE = 4,                 // of q and k, each way
    CHANNELS = 6,             // copied without the chosen ones, which are then read
    ACT_FORWARD = 2,          // of input and of output
    ACT_BACKWARD_INPUT = 4,   // and as much of output as forward
    EMBEDDING_FORWARD = 4,
    EMBEDDING_BACKWARD = 2 + 8,
    POSITIONS_BACKWARD = 2,
    DECODED_BYTES = 2,   // of weights that travelled as codes
    ZERO_BF16 = 2,
    LOSS = 4,
    OPTIMIZER = 30 + 4 + 4   // AdamW, norm of the gradient, zeroing it
};

static const double CODE_BYTES = 0.5625;   // NVFP4 with its block scales

const char *const predict_term_names[NUM_TERMS] = {
    [TERM_LINEARS_BF16] = "linears bf16",
    [TERM_LINEARS_FP8] = "linears fp8",
    [TERM_LINEARS_FP4] = "linears nvfp4",
    [TERM_LINEARS_EMULATED] = "linears emulated",
    [TERM_QUANTISE_TOKENS] = "quantise x, dy",
    [TERM_QUANTISE_WEIGHTS] = "quantise w",
    [TERM_HEAD] = "head bf16",
    [TERM_LOSS] = "loss",
    [TERM_ATTENTION_FORWARD] = "attention forward",
    [TERM_ATTENTION_BACKWARD] = "attention backward",
    [TERM_ELEMENTWISE] = "element-wise",
    [TERM_OPTIMIZER] = "optimizer",
    [TERM_OPS] = "start and end of ops",
};

typedef struct {
    Model *m;
    const DeviceFacts *facts;
    Device device;        // backend_device
    Engine engine;        // as much of it as linear_gemm_form asks for
    int64_t tokens;       // of a micro-batch
    double micro_steps;   // of an optimizer step
    double updated;       // of the parameters, what a rank updates
    Prediction sum;
} Count;

static void count_open(Count *n, Model *m, const Config *c, DeviceModel model, int ranks) {
    CHECK(model != DEVICE_MODEL_AUTO, "prediction for a device that nothing is known of");
    memset(n, 0, sizeof(*n));
    n->m = m;
    n->facts = &device_facts[model];
    n->device = backend_device(model);
    n->engine.fp4 = backend_fp4(c, &n->device);
    n->engine.fp8 = backend_fp8(c, &n->device);
    n->tokens = (int64_t)c->batch.micro * c->batch.seq_len;
    n->micro_steps = config_accumulation(c, ranks);
    n->updated = m->zero.level >= 1 ? 1.0 / m->zero.size : 1;
    n->sum.tokens = n->micro_steps * (double)n->tokens;
}

/* --- costs --- */

static void add(Cost *to, Cost cost, double times) {
    to->flops += cost.flops * times;
    to->bytes += cost.bytes * times;
    to->seconds += cost.seconds * times;
    to->ops += cost.ops * times;
}

static Cost bytes_cost(const Count *n, double bytes, double share) {
    Cost cost = {0, bytes, bytes / (n->facts->bandwidth * share), 1};
    return cost;
}

/* An op of every micro-step that moves so many bytes a token. */
static void add_tokens(Count *n, PredictTerm term, double bytes_per_token) {
    Cost cost = bytes_cost(n, bytes_per_token * (double)n->tokens, COPY_SHARE);
    add(&n->sum.term[term], cost, n->micro_steps);
}

/* d (m,n) over k. */
typedef struct {
    int64_t m, n, k;
    TensorUnit unit;
    int is_f32;                         // values that BF16 units do not multiply
    double a_bytes, b_bytes, d_bytes;   // an element
    int slices;                         // of k; each has tiles of its own
    int splits_k;                       // the library cuts k so that no multiprocessor idles
} Product;

static Cost product_cost(const Count *n, const Product *p) {
    const DeviceFacts *f = n->facts;
    double m = (double)p->m, cols = (double)p->n, k = (double)p->k;
    double tiles = (double)(ceil_div(p->m, TILE) * ceil_div(p->n, TILE) * p->slices);
    double busy = p->splits_k || tiles > f->multiprocessors ? 1 : tiles / f->multiprocessors;
    Cost cost = {2 * m * cols * k,
                 m * k * p->a_bytes + cols * k * p->b_bytes + m * cols * p->d_bytes, 0, 1};
    double rate = f->peak[p->unit] * f->gemm_share[p->unit] * (p->is_f32 ? F32_RATE : 1);
    double arithmetic = cost.flops / (rate * busy);
    double memory = cost.bytes / (f->bandwidth * COPY_SHARE);
    double longer = arithmetic > memory ? arithmetic : memory;
    cost.seconds = longer + (1 - f->gemm_overlap) * (arithmetic + memory - longer);
    return cost;
}

/* --- linears --- */

/* What multiplies: a unit that both operands are made for, where the device has it; else BF16. */
static TensorUnit unit_of(const Count *n, const Linear *l, GemmKind g) {
    if (linear_gemm_form(&n->engine, l, g) == FORM_VALUES) return UNIT_BF16;
    return operand_is_fp8(&l->plan.cell[g][SIDE_A]) ? UNIT_FP8 : UNIT_FP4;
}

static int has_f32_values(const Count *n, const Linear *l, GemmKind g) {
    return unit_of(n, l, g) == UNIT_BF16 && linear_values_dtype(l, g) == DT_F32;
}

/* Bytes of an element of an operand, block scales included; BF16 units read decoded values. */
static double operand_bytes(const Count *n, const Linear *l, GemmKind g, Side s) {
    const Operand *o = &l->plan.cell[g][s];
    if (unit_of(n, l, g) == UNIT_BF16) return dtype_info[linear_values_dtype(l, g)].bits / 8.0;
    double scale_bits = o->block > 0 ? (double)dtype_info[o->scale].bits / o->block : 0;
    return (dtype_info[o->elem].bits + scale_bits) / 8.0;
}

static Product linear_product(const Count *n, const Linear *l, GemmKind g) {
    const int64_t sizes[NUM_GEMMS][3] = {// m, n, k
                                         {n->tokens, l->out, l->in},
                                         {n->tokens, l->in, l->out},
                                         {l->out, l->in, n->tokens}};
    Product p;
    memset(&p, 0, sizeof(p));
    p.m = sizes[g][0];
    p.n = sizes[g][1];
    p.k = sizes[g][2];
    p.unit = unit_of(n, l, g);
    p.is_f32 = has_f32_values(n, l, g);
    p.a_bytes = operand_bytes(n, l, g, SIDE_A);
    p.b_bytes = operand_bytes(n, l, g, SIDE_B);
    p.d_bytes = g == GEMM_WGRAD ? 8 : 2;   // f32, added to; bf16, written
    p.splits_k = g == GEMM_WGRAD && p.unit != UNIT_FP4;
    p.slices = 1;
    if (g == GEMM_WGRAD && p.unit == UNIT_FP4) p.slices = gemm_slices(&n->device, p.m, p.n, p.k);
    if (p.slices > 1) p.d_bytes += 8 * p.slices;   // each slice's sum in f32, written and read
    return p;
}

/* The operands that are made of a tensor: the one along its rows, and the other one. */
typedef enum { TENSOR_X, TENSOR_DY, TENSOR_W, NUM_TENSORS } LinearTensor;
static const struct {
    GemmKind gemm;
    Side side;
} operands_of[NUM_TENSORS][2] = {
    [TENSOR_X] = {{GEMM_FPROP, SIDE_A}, {GEMM_WGRAD, SIDE_B}},
    [TENSOR_DY] = {{GEMM_DGRAD, SIDE_A}, {GEMM_WGRAD, SIDE_A}},
    [TENSOR_W] = {{GEMM_FPROP, SIDE_B}, {GEMM_DGRAD, SIDE_B}},
};

static double tensor_elements(const Count *n, const Linear *l, LinearTensor t) {
    const double elements[NUM_TENSORS] = {(double)n->tokens * l->in, (double)n->tokens * l->out,
                                          (double)l->in * l->out};
    return elements[t];
}

static double quantise_share(const Operand *o) {
    if (!operand_has_blocks(o)) return NEAREST_SHARE;
    if (o->tile == TILE_SQUARE) return SQUARE_SHARE;
    return o->rounding == ROUND_STOCHASTIC ? STOCHASTIC_SHARE : NEAREST_SHARE;
}

static Source source_of(const Linear *l, GemmKind g, Side s) {
    const Operand *o = &l->plan.cell[g][s];
    return operand_is_quantized(o) ? o->source : SOURCE_TENSOR;
}

/* Decoded values of the transposed codes are fprop's, read the other way: nothing is written. */
static int is_written(const Count *n, const Linear *l, GemmKind g, Side s) {
    Source source = source_of(l, g, s);
    int takes_over = source == SOURCE_TRANSPOSED || source == SOURCE_VALUES;
    return !takes_over || unit_of(n, l, g) != UNIT_BF16;
}

/* Which of a tensor's operands a pass over it makes. */
typedef enum { ROW_OPERAND = 1, TOKEN_OPERAND = 2, BOTH_OPERANDS = 3 } Operands;

/* A plain operand is the tensor, unless its partner's values are f32. */
static int is_made(const Count *n, const Linear *l, GemmKind g, Side s) {
    const Operand *o = &l->plan.cell[g][s];
    return operand_is_quantized(o) || (o->elem == DT_BF16 && has_f32_values(n, l, g));
}

/* The second operand of a tensor from the values of the first: its maxima, then itself. */
static Cost requantise_cost(const Count *n, const Linear *l, LinearTensor t) {
    GemmKind from = operands_of[t][0].gemm, g = operands_of[t][1].gemm;
    Side from_side = operands_of[t][0].side, s = operands_of[t][1].side;
    const Operand *o = &l->plan.cell[g][s];
    double elements = tensor_elements(n, l, t), read = operand_bytes(n, l, from, from_side);
    double bytes = (read + operand_bytes(n, l, g, s)) * elements;
    Cost cost = {0};
    add(&cost, bytes_cost(n, bytes, quantise_share(o)), 1);
    if (o->amax != AMAX_NONE) add(&cost, bytes_cost(n, read * elements, AMAX_SHARE), 1);
    return cost;
}

/* Of one tensor: its maxima, then the operands that the plan wants, at the slower one's rate. */
static Cost quantise_cost(const Count *n, const Linear *l, LinearTensor t, Operands made) {
    double written = 0, share = 1, amax = 0, elements = tensor_elements(n, l, t);
    int quantised = 0;
    Source source = source_of(l, operands_of[t][1].gemm, operands_of[t][1].side);
    if (made & TOKEN_OPERAND && source == SOURCE_REQUANTIZED) {
        Cost cost = quantise_cost(n, l, t, ROW_OPERAND);
        add(&cost, requantise_cost(n, l, t), 1);
        return cost;
    }
    for (int i = 0; i < 2; i++) {
        if (!((int)made >> i & 1)) continue;
        GemmKind g = operands_of[t][i].gemm;
        Side s = operands_of[t][i].side;
        const Operand *o = &l->plan.cell[g][s];
        if (!is_made(n, l, g, s)) continue;
        quantised = 1;
        if (o->amax != AMAX_NONE) amax = AMAX_BYTES;
        if (quantise_share(o) < share) share = quantise_share(o);
        if (is_written(n, l, g, s)) written += operand_bytes(n, l, g, s);
    }
    Cost cost = {0};
    if (!quantised) return cost;
    add(&cost, bytes_cost(n, QUANTISE_READ * elements + written * elements, share), 1);
    if (amax > 0) add(&cost, bytes_cost(n, amax * elements, AMAX_SHARE), 1);
    return cost;
}

static const PredictTerm unit_terms[NUM_UNITS] = {TERM_LINEARS_BF16, TERM_LINEARS_FP8,
                                                  TERM_LINEARS_FP4};

static PredictTerm gemm_term(const Linear *l, GemmKind g, TensorUnit unit) {
    int emulated = linear_gemm_is_quantized(l, g) && unit == UNIT_BF16;
    return emulated ? TERM_LINEARS_EMULATED : unit_terms[unit];
}

static void count_product(Count *n, const Linear *l, GemmKind g) {
    Product p = linear_product(n, l, g);
    add(&n->sum.term[gemm_term(l, g, p.unit)], product_cost(n, &p), n->micro_steps);
}

static void count_quantising(Count *n, const Linear *l, LinearTensor t, Operands made) {
    add(&n->sum.term[TERM_QUANTISE_TOKENS], quantise_cost(n, l, t, made), n->micro_steps);
}

/* Once a step. At level 3 of zero.h as often as values are gathered; where codes are, each rank
   makes those of its rows, and all of them are decoded in each pass. */
static void count_weight(Count *n, const Linear *l) {
    Model *m = n->m;
    Cost *term = &n->sum.term[TERM_QUANTISE_WEIGHTS],
         cost = quantise_cost(n, l, TENSOR_W, BOTH_OPERANDS);
    if (m->zero.level < 3) {
        add(term, cost, 1);
        return;
    }
    int bucket = zero_bucket_of(&m->zero, &m->params.params[l->weight]);
    for (int backward = 0; backward < 2; backward++) {
        if (!model_sends_codes(m, bucket, backward)) {
            add(term, cost, n->micro_steps);
            continue;
        }
        double elements = tensor_elements(n, l, TENSOR_W);
        add(term, bytes_cost(n, (CODE_BYTES + DECODED_BYTES) * elements, COPY_SHARE),
            n->micro_steps);
        if (!backward) add(term, cost, n->updated);
    }
}

static int reads_values(const Linear *l, GemmKind g) {
    Source source = source_of(l, g, SIDE_B);
    return source == SOURCE_VALUES || source == SOURCE_REQUANTIZED;
}

/* From gradients of what fprop multiplied to those of the tensors: read and written. */
static void count_way_back(Count *n, const Linear *l) {
    const Operand *x = &l->plan.cell[GEMM_FPROP][SIDE_A], *w = &l->plan.cell[GEMM_FPROP][SIDE_B];
    double values = dtype_info[DT_BF16].bits / 8.0, sums = dtype_info[DT_F32].bits / 8.0;
    if (reads_values(l, GEMM_DGRAD) && (x->hadamard || x->mask))
        add_tokens(n, TERM_ELEMENTWISE, 2 * values * l->in);
    if (reads_values(l, GEMM_WGRAD) && (w->hadamard || w->mask)) {
        double elements = tensor_elements(n, l, TENSOR_W);
        add(&n->sum.term[TERM_QUANTISE_WEIGHTS], bytes_cost(n, 2 * sums * elements, COPY_SHARE), 1);
    }
}

/* With operands of x as forward makes them. */
static void count_linear(Count *n, const Linear *l, Operands of_x) {
    for (int g = 0; g < NUM_GEMMS; g++) count_product(n, l, (GemmKind)g);
    count_quantising(n, l, TENSOR_X, of_x);
    count_quantising(n, l, TENSOR_DY, BOTH_OPERANDS);
    count_weight(n, l);
    count_way_back(n, l);
    if (linear_controls_channels(l)) add_tokens(n, TERM_QUANTISE_TOKENS, CHANNELS * l->in);
    if (l->bias >= 0) add_tokens(n, TERM_ELEMENTWISE, (double)COLUMN_SUM * l->out);
}

/* --- blocks --- */

/* Causal half of so many products, at a share of the peak; and rotary positions. */
static void count_attention(Count *n, const Block *b, PredictTerm term, double products,
                            double share) {
    const ModelConfig *c = b->model;
    double flops = products * c->heads * c->head_dim * n->m->max_T * (double)n->tokens;
    Cost cost = {flops, 0, flops / (n->facts->peak[UNIT_BF16] * share), 1};
    add(&n->sum.term[term], cost, n->micro_steps);
    if (c->pos != POS_ROPE) return;
    add_tokens(n, TERM_ELEMENTWISE, (double)ROPE * (c->heads + c->kv_heads) * c->head_dim);
}

static void attention_forward(Count *n, const Block *b) {
    double share = n->facts->attention[b->model->head_dim > 64].forward;
    count_attention(n, b, TERM_ATTENTION_FORWARD, 2, share);
}

static void attention_backward(Count *n, const Block *b) {
    double share = n->facts->attention[b->model->head_dim > 64].backward;
    count_attention(n, b, TERM_ATTENTION_BACKWARD, 5, share);
}

static void activation_forward(Count *n, const Block *b) {
    add_tokens(n, TERM_ELEMENTWISE, (double)ACT_FORWARD * (b->in.out + b->out.in));
}

static void activation_backward(Count *n, const Block *b) {
    add_tokens(n, TERM_ELEMENTWISE,
               (double)ACT_BACKWARD_INPUT * b->in.out + (double)ACT_FORWARD * b->out.in);
}

static const struct {
    const BlockKind *kind;
    void (*forward)(Count *n, const Block *b);
    void (*backward)(Count *n, const Block *b);
} cores[] = {{&block_attn, attention_forward, attention_backward},
             {&block_mlp, activation_forward, activation_backward}};

/* What backward does of forward once more; `core` as above. */
static void count_again(Count *n, const Block *b, int core) {
    int norm = !block_keeps(b, KEPT_NORM_OUT), in = !block_keeps(b, KEPT_CORE_IN);
    if (norm) {
        add_tokens(n, TERM_ELEMENTWISE, (double)NORM_FORWARD * b->model->dim);
        count_quantising(n, &b->in, TENSOR_X, in ? BOTH_OPERANDS : TOKEN_OPERAND);
    }
    if (in) count_product(n, &b->in, GEMM_FPROP);
    if (block_keeps(b, KEPT_CORE_OUT)) return;
    cores[core].forward(n, b);
    count_quantising(n, &b->out, TENSOR_X, TOKEN_OPERAND);
}

static void count_block(Count *n, const Block *b) {
    double dim = b->model->dim;
    int i = 0;
    while (i < ARRAY_LEN(cores) && cores[i].kind != b->kind) i++;
    CHECK(i < ARRAY_LEN(cores), "the core of %s has no count", b->kind->name);
    count_linear(n, &b->in, block_keeps(b, KEPT_NORM_OUT) ? BOTH_OPERANDS : ROW_OPERAND);
    cores[i].forward(n, b);
    cores[i].backward(n, b);
    count_linear(n, &b->out, block_keeps(b, KEPT_CORE_OUT) ? BOTH_OPERANDS : ROW_OPERAND);
    count_again(n, b, i);
    add_tokens(n, TERM_ELEMENTWISE, NORM_RESIDUAL * dim);   // with the norm of what comes next
    add_tokens(n, TERM_ELEMENTWISE, NORM_BACKWARD * dim);
    if (!b->smooth) return;
    for (int pass = 0; pass < 2; pass++) add_tokens(n, TERM_ELEMENTWISE, 2 * ACT_FORWARD * dim);
    if (b->out_bias >= 0) add_tokens(n, TERM_ELEMENTWISE, COLUMN_SUM * dim);
}

/* --- the rest of the model --- */

/* Three products in BF16 and the loss, for each part of the rows that the head works on. */
static void count_head(Count *n) {
    const Param *head = &n->m->params.params[n->m->head];
    int64_t rows = ceil_div(n->tokens, n->m->head_chunks), vocab = head->padded_rows;
    double times = n->micro_steps * (double)n->tokens / (double)rows;
    const Product products[NUM_GEMMS] = {
        {rows, vocab, head->cols, UNIT_BF16, 0, 2, 2, 2, 1, 0},
        {rows, head->cols, vocab, UNIT_BF16, 0, 2, 2, 2, 1, 0},
        {vocab, head->cols, rows, UNIT_BF16, 0, 2, 2, 8, 1, 1},
    };
    for (int g = 0; g < NUM_GEMMS; g++)
        add(&n->sum.term[TERM_HEAD], product_cost(n, &products[g]), times);
    Cost loss = bytes_cost(n, LOSS * (double)rows * (double)vocab, COPY_SHARE);
    add(&n->sum.term[TERM_LOSS], loss, times);
}

static void count_ends(Count *n) {
    double dim = n->m->config.dim;
    add_tokens(n, TERM_ELEMENTWISE, EMBEDDING_FORWARD * dim);
    add_tokens(n, TERM_ELEMENTWISE, EMBEDDING_BACKWARD * dim);
    if (n->m->positions >= 0) add_tokens(n, TERM_ELEMENTWISE, POSITIONS_BACKWARD * dim);
    add_tokens(n, TERM_ELEMENTWISE, NORM_FORWARD * dim);
    add_tokens(n, TERM_ELEMENTWISE, NORM_BACKWARD * dim);
    add_tokens(n, TERM_ELEMENTWISE, ZERO_BF16 * dim);
    double parameters = (double)n->m->params.num_elements * n->updated;
    add(&n->sum.term[TERM_OPTIMIZER], bytes_cost(n, OPTIMIZER * parameters, COPY_SHARE), 1);
}

Prediction predict_step(Model *m, const Config *c, DeviceModel device, int ranks) {
    Count n;
    count_open(&n, m, c, device, ranks);
    for (int i = 0; i < m->num_branches; i++) count_block(&n, &m->blocks[i]);
    count_head(&n);
    count_ends(&n);
    Prediction *p = &n.sum;
    for (int i = 0; i < NUM_TERMS; i++) p->term[TERM_OPS].seconds += p->term[i].ops * OP_SECONDS;
    for (int i = 0; i < NUM_TERMS; i++) add(&p->step, p->term[i], 1);
    return *p;
}

/* --- crossover --- */

static int is_quantised(const Linear *l, LinearTensor t, int i) {
    return operand_is_quantized(&l->plan.cell[operands_of[t][i].gemm][operands_of[t][i].side]);
}

/* One product, and of each tensor's quantising its part: half where another product wants the
   tensor too. Weights are quantised once a step. */
static double seconds_with_quantising(const Count *n, const Linear *l, GemmKind g) {
    Product p = linear_product(n, l, g);
    double seconds = product_cost(n, &p).seconds;
    for (int t = 0; t < NUM_TENSORS; t++) {
        LinearTensor tensor = (LinearTensor)t;
        double calls = tensor == TENSOR_W ? 1 / n->micro_steps : 1;
        double all = quantise_cost(n, l, tensor, BOTH_OPERANDS).seconds * calls;
        for (int i = 0; i < 2; i++) {
            if (operands_of[t][i].gemm != g || !is_quantised(l, tensor, i)) continue;
            seconds += is_quantised(l, tensor, 1 - i) ? all / 2 : all;
        }
    }
    return seconds;
}

const Recipe *predict_recipe(const Config *c) {
    return recipe_is_quantized(c->precision.recipe) ? c->precision.recipe : recipe_find("nvfp4");
}

Crossover predict_crossover(Model *m, const Config *c, DeviceModel device, int linear, GemmKind g) {
    Count n;
    count_open(&n, m, c, device, 1);
    Linear bf16 = *model_linear(m, linear), quantised = bf16;
    bf16.plan = recipe_find("bf16")->plan;
    quantised.plan = predict_recipe(c)->plan;
    Crossover x = {seconds_with_quantising(&n, &bf16, g),
                   seconds_with_quantising(&n, &quantised, g)};
    return x;
}
