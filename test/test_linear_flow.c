/*
test_linear_flow -- where the operands of a linear's three products come from, and what becomes of
the products: forward and backward of one linear in every recipe, against double-precision products
of operands that are made here, one by one, as recipe.h and ops/cell.h say. What a quantiser makes
of a tensor is not the question here: both sides call it.
*/
#include "common.h"
#include "linear.h"
#include "test.h"

enum { IN = 256, OUT = 128, TOKENS = 128, SEED = 1234567, STEP = 3, ID = 5 };

typedef struct {
    Device *device;
    Arena arena;
    ParamTable table;
    Param weight;
    Engine engine;
    Linear l;
    LinearSaved saved;
    Tensor x, dy, out, dx;
} Bench;

// --- the linear under test ---

/* Normal numbers, but for a few much larger ones: of either sign, in bf16. */
static void fill(Tensor t, uint32_t stream) {
    for (int64_t i = 0; i < tensor_count(t); i++) {
        Philox4 draw = philox4x32_10(rng_group_counter((uint64_t)i, stream, 0), 7, 0);
        float v = sqrtf(-2.0f * logf(1.0f - rng_uniform(draw.w[0]))) *
                  cosf(6.2831853f * rng_uniform(draw.w[1]));
        if (draw.w[2] % 64 == 0) v *= 8.0f;
        ((bf16_t *)t.data)[i] = bf16_from_f32(v);
    }
}

static void place(Bench *b, Arena *a) {
    Engine *e = &b->engine;
    b->x = arena_tensor(a, DT_BF16, TOKENS, IN);
    b->dy = arena_tensor(a, DT_BF16, TOKENS, OUT);
    b->out = arena_tensor(a, DT_BF16, TOKENS, OUT);
    b->dx = arena_tensor(a, DT_BF16, TOKENS, IN);
    b->weight.value = arena_tensor(a, DT_BF16, OUT, IN);
    b->weight.grad = arena_tensor(a, DT_F32, OUT, IN);
    linear_place_amax(&b->l, a);
    linear_place_weights(e, &b->l, a);
    linear_place_saved(e, &b->l, &b->saved, a, TOKENS);
    int64_t fprop = (int64_t)linear_scratch_bytes(e, &b->l, GEMM_FPROP, TOKENS);
    int64_t dgrad = (int64_t)linear_scratch_bytes(e, &b->l, GEMM_DGRAD, TOKENS);
    int64_t wgrad = (int64_t)linear_scratch_bytes(e, &b->l, GEMM_WGRAD, TOKENS);
    e->row_buffer = arena_tensor(a, DT_U8, 1, max_i64(fprop, dgrad));
    e->token_buffer = arena_tensor(a, DT_U8, 1, wgrad);
    e->state = (StepState *)arena_tensor(a, DT_U8, 1, sizeof(StepState)).data;
    Tensor scratch = arena_tensor(a, DT_F32, 1024, 1024);
    if (scratch.data) device_set_scratch(b->device, scratch.data, tensor_bytes(scratch));
}

static void bench_open(Bench *b, const LinearPlan *plan) {
    memset(b, 0, sizeof(*b));
    b->device = device_cpu_open(1);
    b->table.params = &b->weight;
    b->table.count = 1;
    b->engine.device = b->device;
    b->engine.ops = &ops_cpu;
    b->engine.params = &b->table;
    b->engine.seed = SEED;
    b->engine.training = 1;
    b->l.id = ID;
    b->l.in = IN;
    b->l.out = OUT;
    b->l.bias = -1;
    b->l.plan = *plan;
    b->arena = arena_measure("test", b->device);
    place(b, &b->arena);
    arena_commit(&b->arena);
    place(b, &b->arena);
    memset(b->engine.state, 0, sizeof(StepState));
    b->engine.state->step = STEP;
    fill(b->x, 1);
    fill(b->dy, 2);
    fill(b->weight.value, 3);
    memset(b->weight.grad.data, 0, tensor_bytes(b->weight.grad));
}

static void bench_close(Bench *b) {
    arena_free(&b->arena);
    b->device->close(b->device);
}

static void run_backward(Bench *b) {
    LinearGrad grad = linear_output_grad(&b->engine, &b->l, b->dy);
    linear_backward(&b->engine, &b->l, b->dx, &grad, &b->saved);
}

static void run_micro_step(Bench *b) {
    QOperand x = linear_input(&b->engine, &b->l, &b->saved, b->x);
    linear_forward(&b->engine, &b->l, b->out, &x);
    run_backward(b);
}

static void run(Bench *b) {
    linear_prepare(&b->engine, &b->l);
    run_micro_step(b);
    if (linear_has_finish(&b->l)) linear_finish(&b->engine, &b->l);
}

// --- operands made here ---

/* One operand and what belongs to it, in memory of its own. */
typedef struct {
    QOperand q;
    float amax;
    uint8_t *mask;
    double *values;   // (rows, k), with the tensor's scale
} Made;

static double value_at(const QOperand *q, int64_t row, int64_t k) {
    int64_t at = q->k_contiguous ? row * q->k + k : k * q->rows + row;
    return q->dtype == DT_F32 ? ((const float *)q->data)[at]
                              : bf16_to_f32(((const bf16_t *)q->data)[at]);
}

static void decode(Made *m) {
    double scale = (m->q.amax ? *m->q.amax : 1.0) / (double)m->q.dequant_div;
    m->values = xmalloc((size_t)(m->q.rows * m->q.k) * sizeof(double));
    for (int64_t row = 0; row < m->q.rows; row++)
        for (int64_t k = 0; k < m->q.k; k++)
            m->values[row * m->q.k + k] = value_at(&m->q, row, k) * scale;
}

/* In f32: it holds the values of every cell. `source` is NULL, or the operand whose values x is. */
static void make(Made *m, const Bench *b, GemmKind g, Side s, Tensor x, const QOperand *source) {
    const Operand *o = &b->l.plan.cell[g][s];
    int token = g == GEMM_WGRAD || (g == GEMM_DGRAD && s == SIDE_B);
    int is_weight = s == SIDE_B && g != GEMM_WGRAD;
    memset(m, 0, sizeof(*m));
    m->q.format = o->format;
    m->q.dtype = DT_F32;
    m->q.rows = token ? x.cols : x.rows;
    m->q.k = token ? x.rows : x.cols;
    m->q.k_contiguous = !token;
    m->q.dequant_div = quantize_dequant_div(o);
    m->q.data = xmalloc((size_t)tensor_count(x) * sizeof(float));
    if (o->amax != AMAX_NONE) m->q.amax = &m->amax;
    int masks = operand_is_quantized(o) && o->mask && g == GEMM_FPROP;
    if (masks) m->q.mask = m->mask = xmalloc((size_t)tensor_count(x) / 8);
    Quantizer how = {.how = *o, .token_operand = token, .rows_are_tokens = !is_weight};
    how.tag = rng_quantize_tag(ID, (uint32_t)g, (uint32_t)s, 0);
    how.seed = SEED;
    how.state = b->engine.state;
    if (source) how.source_amax = source->amax, how.source_div = source->dequant_div;
    QOperand *row = token ? NULL : &m->q, *column = token ? &m->q : NULL;
    if (m->q.amax) amax_pair_cpu(b->device, row, &how, column, &how, x);
    quantize_pair_cpu(b->device, row, &how, column, &how, x);
    decode(m);
}

/* dgrad's w and wgrad's x, of which fprop has made `fprop`. */
static void make_second(Made *m, const Bench *b, GemmKind g, Tensor x, const Made *fprop) {
    const Operand *o = &b->l.plan.cell[g][SIDE_B];
    Source source = operand_is_quantized(o) ? o->source : SOURCE_TENSOR;
    if (source == SOURCE_TENSOR) {
        make(m, b, g, SIDE_B, x, NULL);
    } else if (source == SOURCE_REQUANTIZED) {
        Tensor values = tensor_view(fprop->q.data, DT_F32, fprop->q.rows, fprop->q.k);
        make(m, b, g, SIDE_B, values, &fprop->q);
    } else {
        *m = *fprop;
        m->mask = NULL;
        m->q.data = NULL;
        m->values = xmalloc((size_t)tensor_count(x) * sizeof(double));
        for (int64_t r = 0; r < x.rows; r++)
            for (int64_t c = 0; c < x.cols; c++)
                m->values[c * x.rows + r] = fprop->values[r * x.cols + c];
        m->q.rows = x.cols;
        m->q.k = x.rows;
    }
}

static void drop(Made *m) {
    free(m->q.data);
    free(m->mask);
    free(m->values);
}

/* (a.rows, b.rows); caller frees. */
static double *multiply(const Made *a, const Made *b) {
    double *d = xmalloc((size_t)(a->q.rows * b->q.rows) * sizeof(double));
    for (int64_t i = 0; i < a->q.rows; i++) {
        for (int64_t j = 0; j < b->q.rows; j++) {
            double sum = 0;
            for (int64_t k = 0; k < a->q.k; k++)
                sum += a->values[i * a->q.k + k] * b->values[j * b->q.k + k];
            d[i * b->q.rows + j] = sum;
        }
    }
    return d;
}

static int parity(unsigned bits) {
    int p = 0;
    for (; bits; bits >>= 1) p ^= (int)(bits & 1);
    return p;
}

/* A gradient of what fprop made on side s becomes that of the tensor: v_r = s_r / sqrt(size) sum_c
   y_c (-1)^popcount(r & c) over the elements that did not clip. */
static void bring_back(double *d, int64_t count, const Bench *b, Side s, const uint8_t *mask) {
    const Operand *o = &b->l.plan.cell[GEMM_FPROP][s];
    int size = o->hadamard ? o->hadamard : 1;
    CellSigns signs = cell_signs(o->signs, rng_quantize_tag(ID, GEMM_FPROP, 0, 0), SEED, STEP);
    for (int64_t first = 0; first < count; first += size) {
        double y[128];
        for (int i = 0; i < size; i++) {
            int64_t at = first + i;
            y[i] = mask && !(mask[at / 8] >> at % 8 & 1) ? 0 : d[at];
        }
        for (int r = 0; r < size; r++) {
            double sum = 0;
            for (int c = 0; c < size; c++) sum += parity((unsigned)(r & c)) ? -y[c] : y[c];
            int negative = o->hadamard && cell_sign(signs, r);
            d[first + r] = (negative ? -sum : sum) / sqrt(size);
        }
    }
}

static int reads_values(const Bench *b, GemmKind g) {
    const Operand *o = &b->l.plan.cell[g][SIDE_B];
    return operand_is_quantized(o) &&
           (o->source == SOURCE_VALUES || o->source == SOURCE_REQUANTIZED);
}

// --- comparisons ---

static double distance(Tensor got, const double *want) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < tensor_count(got); i++) {
        double v = got.dtype == DT_F32 ? ((const float *)got.data)[i]
                                       : bf16_to_f32(((const bf16_t *)got.data)[i]);
        difference += (v - want[i]) * (v - want[i]);
        size += want[i] * want[i];
    }
    return sqrt(difference / size);
}

/* All three products of the bench's plan. bf16 results are rounded once, brought back twice. */
static void compare(Bench *b, const char *name) {
    Made x, w, dy_row, w_back, dy_token, x_back;
    Tensor weight = b->weight.value;
    make(&x, b, GEMM_FPROP, SIDE_A, b->x, NULL);
    make(&w, b, GEMM_FPROP, SIDE_B, weight, NULL);
    make(&dy_row, b, GEMM_DGRAD, SIDE_A, b->dy, NULL);
    make(&dy_token, b, GEMM_WGRAD, SIDE_A, b->dy, NULL);
    make_second(&w_back, b, GEMM_DGRAD, weight, &w);
    make_second(&x_back, b, GEMM_WGRAD, b->x, &x);
    double *out = multiply(&x, &w), *dx = multiply(&dy_row, &w_back);
    double *dw = multiply(&dy_token, &x_back);
    if (reads_values(b, GEMM_DGRAD)) bring_back(dx, TOKENS * IN, b, SIDE_A, x.mask);
    if (reads_values(b, GEMM_WGRAD)) bring_back(dw, OUT * IN, b, SIDE_B, w.mask);
    run(b);
    EXPECT_NEAR(distance(b->out, out), 0, 0x1p-9, "%s: out", name);
    EXPECT_NEAR(distance(b->dx, dx), 0, 0x1p-8, "%s: dx", name);
    EXPECT_NEAR(distance(b->weight.grad, dw), 0, 2e-6, "%s: dw", name);
    Made *all[] = {&x, &w, &dy_row, &w_back, &dy_token, &x_back};
    for (int i = 0; i < ARRAY_LEN(all); i++) drop(all[i]);
    free(out), free(dx), free(dw);
}

static LinearPlan plan_of(const char *recipe, int num_settings, const char *const (*settings)[4]) {
    Rule rules[8];
    for (int i = 0; i < num_settings; i++) {
        rules[i] = rule_default();
        static const char *const keys[] = {"gemm", "operand"};
        for (int k = 0; k < 2; k++)
            EXPECT(rule_set(&rules[i], keys[k], settings[i][k]) == NULL, "%s", settings[i][k]);
        EXPECT(rule_set(&rules[i], settings[i][2], settings[i][3]) == NULL, "%s", settings[i][3]);
    }
    LinearPlan plan = recipe_resolve(recipe_find(recipe), rules, num_settings, "any");
    const char *error = recipe_error(&plan, IN, OUT, TOKENS);
    EXPECT(error == NULL, "%s: %s", recipe, error);
    return plan;
}

// --- every recipe, and what no recipe does ---

CASE(every_recipe_multiplies_what_it_says) {
    for (int i = 0; i < num_recipes; i++) {
        if (strcmp(recipes[i].name, "f32") == 0) continue;
        Bench b;
        bench_open(&b, &recipes[i].plan);
        compare(&b, recipes[i].name);
        bench_close(&b);
    }
}

CASE(other_flows_multiply_what_they_say) {
    static const struct {
        const char *name, *recipe;
        int count;
        const char *settings[6][4];   // GEMM, operand, field, value
    } rows[] = {
        {"mask without a transform", "quartet", 1, {{"fprop", "*", "hadamard", "0"}}},
        {"signs of the step in fprop", "quartet", 1, {{"fprop", "*", "signs", "step"}}},
        {"one f32 operand", "bf16", 1, {{"dgrad", "dy", "format", "int4"}}},
        {"one f32 operand, of wgrad", "bf16", 1, {{"wgrad", "x", "format", "int4"}}},
        {"one f32 operand, of fprop", "bf16", 1, {{"fprop", "w", "format", "int4"}}},
        {"codes shared with an f32 product",
         "nvfp4",
         2,
         {{"dgrad", "dy", "format", "int4"}, {"dgrad", "dy", "rounding", "nearest"}}},
        {"x quantised again, w not", "quartet2", 1, {{"dgrad", "w", "source", "tensor"}}},
    };
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        LinearPlan plan = plan_of(rows[i].recipe, rows[i].count, rows[i].settings);
        Bench b;
        bench_open(&b, &plan);
        compare(&b, rows[i].name);
        bench_close(&b);
    }
}

/* Of w and x at once: what fprop made, in both backward products. */
static LinearPlan plan_of_values(const char *recipe) {
    LinearPlan plan = recipe_find(recipe)->plan;
    plan.cell[GEMM_DGRAD][SIDE_B] = plan.cell[GEMM_FPROP][SIDE_B];
    plan.cell[GEMM_WGRAD][SIDE_B] = plan.cell[GEMM_FPROP][SIDE_A];
    for (int g = GEMM_DGRAD; g < NUM_GEMMS; g++) {
        plan.cell[g][SIDE_B].source = SOURCE_VALUES;
        plan.cell[g][SIDE_A].hadamard = 0;
    }
    return plan;
}

CASE(values_are_fprops_read_the_other_way) {
    static const char *const names[] = {"quartet", "quartet2", "tetrajet2", "fp8_block", "ufp4"};
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        LinearPlan plan = plan_of_values(names[i]);
        if (strcmp(names[i], "fp8_block") == 0)   // whose w is a square tile, whose x is not
            plan.cell[GEMM_DGRAD][SIDE_B].source = SOURCE_TRANSPOSED;
        const char *error = recipe_error(&plan, IN, OUT, TOKENS);
        EXPECT(error == NULL, "%s: %s", names[i], error);
        Bench b;
        bench_open(&b, &plan);
        compare(&b, names[i]);
        EXPECT(b.l.w[GEMM_DGRAD].data == b.l.w[GEMM_FPROP].data, "%s: w was made twice", names[i]);
        bench_close(&b);
    }
}

/* FP8's native products read codes along the contraction; values are shared. */
CASE(values_keep_products_from_codes) {
    Bench b;
    LinearPlan plan = plan_of_values("fp8");
    plan.cell[GEMM_DGRAD][SIDE_B].source = SOURCE_TRANSPOSED;
    bench_open(&b, &plan);
    b.engine.fp8 = 1;
    EXPECT_EQ_I64(linear_gemm_form(&b.engine, &b.l, GEMM_FPROP), FORM_VALUES);
    EXPECT_EQ_I64(linear_gemm_form(&b.engine, &b.l, GEMM_DGRAD), FORM_PACKED);
    EXPECT_EQ_I64(linear_gemm_form(&b.engine, &b.l, GEMM_WGRAD), FORM_VALUES);
    b.l.plan = recipe_find("fp8")->plan;
    for (int g = 0; g < NUM_GEMMS; g++)
        EXPECT_EQ_I64(linear_gemm_form(&b.engine, &b.l, (GemmKind)g), FORM_PACKED, "%d", g);
    bench_close(&b);
}

// --- what follows from it ---

/* Bytes of two benches' memory of the same kind. */
static int64_t differing(Tensor a, Tensor b) {
    int64_t count = 0;
    for (size_t i = 0; i < tensor_bytes(a); i++)
        count += ((const uint8_t *)a.data)[i] != ((const uint8_t *)b.data)[i];
    return count;
}

CASE(quantised_again_is_not_quantised_from_the_tensor) {
    const char *const settings[][4] = {{"dgrad", "w", "source", "tensor"},
                                       {"wgrad", "x", "source", "tensor"},
                                       {"fprop", "*", "hadamard", "0"},
                                       {"fprop", "*", "mask", "0"}};
    LinearPlan tensor = plan_of("quartet", 4, settings);
    LinearPlan again = plan_of("quartet", 2, settings + 2);
    Bench a, b;
    bench_open(&a, &tensor);
    bench_open(&b, &again);
    run(&a);
    run(&b);
    EXPECT_EQ_I64(differing(a.out, b.out), 0, "forward");
    EXPECT(differing(a.dx, b.dx) > TOKENS * IN / 2, "dx differs in %lld bytes",
           (long long)differing(a.dx, b.dx));
    EXPECT(differing(a.weight.grad, b.weight.grad) > OUT * IN, "dw differs in %lld bytes",
           (long long)differing(a.weight.grad, b.weight.grad));
    bench_close(&a);
    bench_close(&b);
}

/* The way back is linear: once for all micro-steps. */
CASE(two_equal_micro_steps_make_twice_the_gradient) {
    for (int i = 0; i < num_recipes; i++) {
        if (strcmp(recipes[i].name, "f32") == 0) continue;
        LinearPlan plan = recipes[i].plan;
        for (int c = 0; c < NUM_GEMMS * NUM_SIDES; c++) {
            Operand *o = &plan.cell[c / NUM_SIDES][c % NUM_SIDES];
            if (o->rounding == ROUND_STOCHASTIC) o->rounding = ROUND_NEAREST;
        }
        Bench one, two;
        bench_open(&one, &plan);
        bench_open(&two, &plan);
        run(&one);
        linear_prepare(&two.engine, &two.l);
        run_micro_step(&two);
        run_micro_step(&two);
        if (linear_has_finish(&two.l)) linear_finish(&two.engine, &two.l);
        const float *once = one.weight.grad.data, *twice = two.weight.grad.data;
        int64_t wrong = 0;
        for (int64_t k = 0; k < OUT * IN; k++) wrong += twice[k] != 2 * once[k];
        EXPECT_EQ_I64(wrong, 0, "%s", recipes[i].name);
        bench_close(&one);
        bench_close(&two);
    }
}

/* What backward makes again of an x that was not kept. */
static void expect_same_input(const LinearPlan *plan, const char *name) {
    Bench kept, again;
    bench_open(&kept, plan);
    bench_open(&again, plan);
    run(&kept);
    linear_prepare(&again.engine, &again.l);
    QOperand x = linear_input(&again.engine, &again.l, NULL, again.x);
    linear_forward(&again.engine, &again.l, again.out, &x);
    linear_save_input(&again.engine, &again.l, &again.saved, again.x);
    run_backward(&again);
    if (linear_has_finish(&again.l)) linear_finish(&again.engine, &again.l);
    EXPECT_EQ_I64(differing(kept.dx, again.dx), 0, "%s: dx", name);
    EXPECT_EQ_I64(differing(kept.weight.grad, again.weight.grad), 0, "%s: dw", name);
    bench_close(&kept);
    bench_close(&again);
}

CASE(an_input_saved_later_is_the_same) {
    for (int i = 0; i < num_recipes; i++)
        if (strcmp(recipes[i].name, "f32") != 0)
            expect_same_input(&recipes[i].plan, recipes[i].name);
    // The mask of x is wanted, of its values nothing else.
    const char *const settings[][4] = {{"fprop", "w", "mask", "0"},
                                       {"wgrad", "x", "source", "tensor"}};
    LinearPlan mask_alone = plan_of("quartet", 2, settings);
    expect_same_input(&mask_alone, "mask alone");
}

TEST_MAIN_END
