/*
test_amax -- delayed and held maxima: what each step is quantised with, what a step leaves behind;
and of a whole model, that evaluation and passes beside the training leave nothing.
*/
#include "amax_cases.h"
#include "config.h"
#include "model.h"
#include "optimizer.h"
#include "test.h"

static AmaxBench bench;

static void begin(void) { amax_bench_open(&bench, device_cpu_open(1), &ops_cpu); }

static void end(void) {
    Device *d = bench.d;
    amax_bench_close(&bench);
    d->close(d);
}

/* A step of one micro-step; what the two operands were quantised with. */
static AmaxInUse step(uint32_t number, float maximum) {
    amax_set_step(&bench, number, 0);
    AmaxInUse in_use = amax_settle_both(&bench, maximum, 1);
    amax_advance_both(&bench);
    return in_use;
}

CASE(delayed_is_the_largest_of_earlier_steps) {
    static const float maxima[] = {3, 5, 2, 0, 7, INFINITY, 1, NAN, 1};
    // Of steps up to the one before: 0, infinity and NaN leave what was in use.
    static const float in_use[] = {448, 3, 5, 5, 5, 7, 7, 7, 7};
    begin();
    for (int i = 0; i < ARRAY_LEN(maxima); i++)
        EXPECT(step((uint32_t)i + 1, maxima[i]).v[AMAX_DELAYED_AT] == in_use[i], "step %d", i);
    end();
}

CASE(delayed_looks_back_1024_steps) {
    begin();
    step(1, 9);
    for (uint32_t i = 2; i <= 1024; i++) step(i, 2);
    EXPECT(step(1025, 3).v[AMAX_DELAYED_AT] == 9, "1024 steps later");
    EXPECT(step(1026, 1).v[AMAX_DELAYED_AT] == 3, "one more");
    // A step without a maximum is none: the 3 is not yet 1024 steps back.
    for (uint32_t i = 0; i < 2000; i++) step(1027 + i, 0);
    EXPECT(step(4000, 1).v[AMAX_DELAYED_AT] == 3, "after steps without a maximum");
    end();
}

CASE(held_is_sampled_every_50_steps) {
    begin();
    EXPECT(step(7, 4).v[AMAX_HELD_AT] == 4, "nothing held yet: its own");
    EXPECT(step(8, 6).v[AMAX_HELD_AT] == 4, "held");
    EXPECT(step(49, 1).v[AMAX_HELD_AT] == 4, "held");
    EXPECT(step(50, 6).v[AMAX_HELD_AT] == 6, "sampled");
    EXPECT(step(51, 1).v[AMAX_HELD_AT] == 6, "held from then on");
    EXPECT(step(100, INFINITY).v[AMAX_HELD_AT] == INFINITY, "sampled, and lost");
    EXPECT(step(101, 1).v[AMAX_HELD_AT] == 6, "the one before");
    EXPECT(step(150, 0).v[AMAX_HELD_AT] == 0, "sampled: a tensor of zeros");
    EXPECT(step(151, 1).v[AMAX_HELD_AT] == 6, "which is not held");
    end();
}

/* On a sampling step each micro-batch has its own; what stays is the largest. */
CASE(a_step_keeps_the_largest_of_its_micro_batches) {
    static const float maxima[] = {2, 8, 5};
    begin();
    amax_set_step(&bench, 100, 0);
    for (int i = 0; i < ARRAY_LEN(maxima); i++) {
        AmaxInUse in_use = amax_settle_both(&bench, maxima[i], 1);
        EXPECT(in_use.v[AMAX_DELAYED_AT] == 448 && in_use.v[AMAX_HELD_AT] == maxima[i], "%d", i);
    }
    amax_advance_both(&bench);
    AmaxInUse next = step(101, 1);
    EXPECT(next.v[AMAX_DELAYED_AT] == 8 && next.v[AMAX_HELD_AT] == 8, "%g %g", next.v[0],
           next.v[1]);
    end();
}

CASE(evaluation_and_dropped_steps_leave_no_trace) {
    float before[AMAX_BENCH_VALUES];
    begin();
    step(0, 2);
    memcpy(before, bench.values, sizeof(before));
    amax_set_step(&bench, 50, 0);
    EXPECT(amax_settle_both(&bench, 9, 0).v[AMAX_HELD_AT] == 9, "as the step's training will");
    amax_advance_both(&bench);
    amax_settle_both(&bench, 9, 1);
    amax_set_step(&bench, 50, 1);
    amax_advance_both(&bench);
    EXPECT_BITS(bench.values + 2, before + 2, sizeof(before) - 2 * sizeof(float));
    end();
}

CASE(slots_without_memory_are_refused) {
    begin();
    bench.slots.slot[AMAX_DELAYED_AT].history = NULL;
    EXPECT_ABORTS("without memory", amax_advance_both(&bench));
    bench.slots.slot[AMAX_DELAYED_AT].rule = AMAX_CURRENT;
    EXPECT_ABORTS("keeps nothing", amax_settle_both(&bench, 1, 1));
    end();
}

// --- a model ---

enum { B = 2, T = 16 };

typedef struct {
    Config config;
    Device *device;
    Model model;
    int32_t tokens[2 * B * T + 1];
} Run;

static void run_open_as(Run *r, char *recipe, int fp8) {
    char *args[] = {"test/fixtures/model_llama.json", "eval.micro=2", recipe};
    memset(r, 0, sizeof(*r));
    config_parse(&r->config, ARRAY_LEN(args), args);
    r->device = device_cpu_open(1);
    model_declare(&r->model, &r->config);
    r->model.engine.fp8 = fp8;   // 1: products of codes
    model_place(&r->model, &r->config, r->device, &ops_cpu, 1);
    model_init(&r->model, 3);
    model_begin_step(&r->model, 0);
    for (int i = 0; i < ARRAY_LEN(r->tokens); i++) r->tokens[i] = i * i * 7 % 61;
}

static void run_open(Run *r, char *recipe) { run_open_as(r, recipe, 0); }

static void run_close(Run *r) {
    model_free(&r->model);
    r->device->close(r->device);
    config_free(&r->config);
}

static void train(Run *r, int step) {
    Model *m = &r->model;
    *m->engine.state = optimizer_state(&r->config, step, 1e-2f, INFINITY, INFINITY);
    model_zero_gradients(m);
    for (int i = 0; i < 2; i++)
        model_forward_backward(m, r->tokens + i * B * T, r->tokens + i * B * T + 1, B, T, 0.01f);
    model_finish_gradients(m);
    optimizer_step(m, &r->config);
    model_begin_step(m, step + 1);
}

/* What the optimizer and later steps see; caller frees. */
static char *trace(const Run *r, size_t *bytes) {
    const Model *m = &r->model;
    Tensor all[64] = {m->params.master, m->maxima};
    int count = 2;
    for (int i = 0; i < m->num_kept; i++) all[count++] = m->kept[i].tensor;
    *bytes = 0;
    for (int i = 0; i < count; i++) *bytes += tensor_bytes(all[i]);
    char *copy = xmalloc(*bytes), *at = copy;
    for (int i = 0; i < count; at += tensor_bytes(all[i]), i++)
        memcpy(at, all[i].data, tensor_bytes(all[i]));
    return copy;
}

CASE(evaluation_and_passes_beside_the_training_change_nothing) {
    static char *const recipes[] = {"precision.recipe=fp8_delayed", "precision.recipe=ue5m3"};
    for (int i = 0; i < ARRAY_LEN(recipes); i++) {
        Run alone, watched;
        run_open(&alone, recipes[i]);
        run_open(&watched, recipes[i]);
        for (int step = 0; step < 4; step++) {
            const int32_t *other = watched.tokens + 5;
            model_evaluate(&watched.model, other, other + 1, B, T, 1);
            model_pass(&watched.model, other, other + 1, B, T, 1);
            train(&alone, step);
            train(&watched, step);
        }
        size_t bytes, same;
        char *want = trace(&alone, &bytes), *got = trace(&watched, &same);
        EXPECT_EQ_I64(same, bytes);
        EXPECT_BITS(got, want, bytes, "%s", recipes[i]);
        free(want), free(got);
        run_close(&alone);
        run_close(&watched);
    }
}

/* Of dgrad's w the codes are fprop's, and so is what is kept, whoever makes them. */
CASE(one_tensors_codes_have_one_maximum) {
    for (int fp8 = 0; fp8 < 2; fp8++) {
        Run r;
        run_open_as(&r, "precision.recipe=fp8_delayed", fp8);
        Linear *l = model_linear(&r.model, 0);
        EXPECT_EQ_I64(l->w[GEMM_DGRAD].form, fp8 ? FORM_PACKED : FORM_VALUES);
        train(&r, 0);
        const float *kept = r.model.kept[0].tensor.data;
        for (int i = 0; i < 6; i++) EXPECT((kept[i] > 0) == (i != 3), "operand %d: %g", i, kept[i]);
        EXPECT(*l->w[GEMM_DGRAD].amax == kept[1], "%g", *l->w[GEMM_DGRAD].amax);
        run_close(&r);
    }
}

/* A name for each operand's, of each linear; all that a resumed run needs. */
CASE(what_recipes_keep_has_names) {
    Run r;
    run_open(&r, "precision.recipe=fp8_delayed");
    EXPECT_EQ_I64(r.model.num_kept, 2 * model_num_linears(&r.model));
    EXPECT(strcmp(r.model.kept[0].name, "recipe.blocks.0.attn.qkv.amax") == 0, "%s",
           r.model.kept[0].name);
    EXPECT(strcmp(r.model.kept[1].name, "recipe.blocks.0.attn.qkv.amax_history") == 0, "%s",
           r.model.kept[1].name);
    EXPECT_EQ_I64(r.model.kept[1].tensor.rows, 6);
    EXPECT_EQ_I64(r.model.kept[1].tensor.cols, 1024);
    run_close(&r);
    run_open(&r, "precision.recipe=ue5m3");
    EXPECT_EQ_I64(r.model.num_kept, model_num_linears(&r.model));
    run_close(&r);
    run_open(&r, "precision.recipe=fp8");
    EXPECT_EQ_I64(r.model.num_kept, 0);
    EXPECT(tensor_empty(r.model.maxima), "maxima of a recipe that keeps none");
    run_close(&r);
}

TEST_MAIN_END
