/*
test_model -- the whole model against an independent implementation: losses, gradients and 20
optimizer steps of four tiny models made by JAX (test/fixtures/README.md), in f32. Then what holds
for BF16, FP8 and NVFP4 on the same models: chunks of the head, accumulation and the quantised GEMMs
that run.
*/
#include "common.h"
#include "config.h"
#include "model.h"
#include "optimizer.h"
#include "plan.h"
#include "safetensors.h"
#include "schedule.h"
#include "test.h"

enum { B = 2, T = 16, STEPS = 20 };

typedef struct {
    Config config;
    Model model;
    Device *device;
    Safetensors *file;
} Run;

static const SafetensorsEntry *entry(const Run *r, const char *name) {
    const SafetensorsEntry *e = safetensors_find(r->file, name);
    if (e == NULL) fprintf(stderr, "fixture has no %s\n", name);
    return e;
}

static float fixture_value(const Run *r, const char *name, int i) {
    float value;
    memcpy(&value, (const char *)entry(r, name)->data + (size_t)i * sizeof(float), sizeof(float));
    return value;
}

/* The weights of the fixture, padded rows zero. */
static void load_weights(Run *r) {
    ParamTable *t = &r->model.params;
    param_table_init(t, r->device, 0);
    for (int i = 0; i < t->count; i++) {
        const Param *p = &t->params[i];
        float *padded = xmalloc((size_t)(p->padded_rows * p->cols) * sizeof(float));
        memcpy(padded, entry(r, p->name)->data, (size_t)(p->rows * p->cols) * sizeof(float));
        param_table_upload(t, r->device, p, padded);
        free(padded);
    }
}

static void run_open_as(Fp4Gemm fp4, Run *r, const char *name, int num_extra, char **extra) {
    char config_path[128], weights_path[128];
    snprintf(config_path, sizeof(config_path), "test/fixtures/%s.json", name);
    snprintf(weights_path, sizeof(weights_path), "test/fixtures/%s.safetensors", name);
    char *args[8] = {config_path, "eval.micro=2"};
    for (int i = 0; i < num_extra; i++) args[2 + i] = extra[i];
    memset(r, 0, sizeof(*r));
    config_parse(&r->config, 2 + num_extra, args);
    r->device = device_cpu_open(0);
    r->file = safetensors_open(weights_path);
    model_declare(&r->model, &r->config);
    r->model.engine.fp4 = fp4;
    r->model.engine.fp8 = fp4 != FP4_EMULATED;   // codes of either format, or neither's
    model_place(&r->model, &r->config, r->device, &ops_cpu, 1);
    load_weights(r);
    model_prepare_weights(&r->model);
}

static void run_open(Run *r, const char *name, int num_extra, char **extra) {
    run_open_as(FP4_EMULATED, r, name, num_extra, extra);
}

static void run_close(Run *r) {
    model_free(&r->model);
    safetensors_close(r->file);
    r->device->close(r->device);
    config_free(&r->config);
}

static void batch(const Run *r, int step, int32_t *inputs, int32_t *targets) {
    const int32_t *tokens = (const int32_t *)entry(r, "tokens")->data + (size_t)step * B * (T + 1);
    for (int b = 0; b < B; b++) {
        memcpy(inputs + b * T, tokens + b * (T + 1), T * sizeof(int32_t));
        memcpy(targets + b * T, tokens + b * (T + 1) + 1, T * sizeof(int32_t));
    }
}

/* One micro-step on sequences [first, first + count) of the batch of `step`. */
static void micro_step(Run *r, int step, int first, int count) {
    int32_t inputs[B * T], targets[B * T];
    batch(r, step, inputs, targets);
    r->model.engine.state->token_base = (int64_t)first * T;
    model_forward_backward(&r->model, inputs + first * T, targets + first * T, count, T,
                           1.0f / (B * T));
}

static void begin_step(Run *r, int step) {
    const Config *c = &r->config;
    Schedule s = {c->sched.type,       c->optim.lr,         c->sched.warmup_steps,
                  c->sched.decay_frac, c->sched.final_frac, STEPS};
    *r->model.engine.state = optimizer_state(c, step, schedule_lr(&s, step), INFINITY, INFINITY);
    model_zero_gradients(&r->model);
}

static double relative_error(const float *got, const float *want, int64_t n) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += (got[i] - (double)want[i]) * (got[i] - (double)want[i]);
        size += (double)want[i] * want[i];
    }
    return sqrt(difference / (size > 0 ? size : 1));
}

static void check_against_jax(const char *name) {
    char *f32[] = {"precision.recipe=f32", "model.dtype=f32"};
    Run r;
    run_open(&r, name, 2, f32);
    begin_step(&r, 0);
    micro_step(&r, 0, 0, B);
    EXPECT_NEAR(r.model.engine.state->loss, fixture_value(&r, "loss", 0), 1e-5, "%s: first loss",
                name);
    for (int i = 0; i < r.model.params.count; i++) {
        const Param *p = &r.model.params.params[i];
        char key[128];
        snprintf(key, sizeof(key), "grad.%s", p->name);
        double error = relative_error(p->grad.data, entry(&r, key)->data, p->rows * p->cols);
        EXPECT(error <= 1e-4, "%s: gradient of %s differs by %.2e", name, p->name, error);
    }
    for (int step = 0; step < STEPS; step++) {
        begin_step(&r, step);
        micro_step(&r, step, 0, B);
        optimizer_step(&r.model, &r.config);
        model_prepare_weights(&r.model);
        const StepState *state = r.model.engine.state;
        EXPECT_NEAR(state->loss, fixture_value(&r, "losses", step), 1e-4, "%s: loss of step %d",
                    name, step);
        EXPECT_NEAR(state->grad_norm / fixture_value(&r, "grad_norms", step), 1, 1e-3,
                    "%s: norm of step %d", name, step);
        EXPECT_NEAR(state->lr, fixture_value(&r, "learning_rates", step), 1e-9, "%s: lr of step %d",
                    name, step);
    }
    run_close(&r);
}

CASE(gpt2_against_jax) { check_against_jax("model_gpt2"); }
CASE(llama_against_jax) { check_against_jax("model_llama"); }
CASE(nemotron_against_jax) { check_against_jax("model_nemotron"); }
CASE(nemotron_rope_against_jax) { check_against_jax("model_nemotron_rope"); }

/* Gradients of one step from the program's own initial weights, concatenated, and behind them the
   loss; caller frees. The fixtures' weights are large, so that every nonlinearity shows, and
   amplify rounding; these are what training starts from. */
static float *gradients_of(const char *name, int num_extra, char **extra, int micro_steps) {
    Run r;
    run_open(&r, name, num_extra, extra);
    model_init(&r.model, 7);
    model_prepare_weights(&r.model);
    begin_step(&r, 0);
    for (int i = 0; i < micro_steps; i++) micro_step(&r, 0, i * B / micro_steps, B / micro_steps);
    size_t bytes = tensor_bytes(r.model.params.grad);
    float *copy = xmalloc(bytes + sizeof(float));
    memcpy(copy, r.model.params.grad.data, bytes);
    copy[bytes / sizeof(float)] = r.model.engine.state->loss;
    run_close(&r);
    return copy;
}

static int64_t gradient_count(const char *name) {
    Run r;
    run_open(&r, name, 0, NULL);
    int64_t n = r.model.params.num_elements;
    run_close(&r);
    return n;
}

CASE(head_chunks_change_only_the_order_of_sums) {
    char *one[] = {"precision.recipe=f32", "model.dtype=f32", "memory.lmhead_chunks=1"};
    char *three[] = {"precision.recipe=f32", "model.dtype=f32", "memory.lmhead_chunks=3"};
    int64_t n = gradient_count("model_llama");
    float *a = gradients_of("model_llama", 3, one, 1),
          *b = gradients_of("model_llama", 3, three, 1);
    EXPECT(relative_error(b, a, n) <= 1e-6, "gradients differ by %.2e", relative_error(b, a, n));
    EXPECT_NEAR(a[n], b[n], 1e-6, "loss");
    free(a);
    free(b);
}

CASE(two_micro_steps_make_the_gradient_of_one) {
    char *f32[] = {"precision.recipe=f32", "model.dtype=f32"};
    int64_t n = gradient_count("model_gpt2");
    float *a = gradients_of("model_gpt2", 2, f32, 1), *b = gradients_of("model_gpt2", 2, f32, 2);
    EXPECT(relative_error(b, a, n) <= 1e-6, "gradients differ by %.2e", relative_error(b, a, n));
    EXPECT_NEAR(a[n], b[n], 1e-6, "loss");
    free(a);
    free(b);
}

/* BF16 keeps 8 bits: gradients of a tiny model stay within a few percent of f32's. */
CASE(bf16_gradients_are_near_f32) {
    char *f32[] = {"precision.recipe=f32", "model.dtype=f32"}, *bf16[] = {"precision.recipe=bf16"};
    int64_t n = gradient_count("model_llama");
    float *a = gradients_of("model_llama", 2, f32, 1), *b = gradients_of("model_llama", 1, bf16, 1);
    double error = relative_error(b, a, n);
    EXPECT(error > 1e-4 && error <= 1e-2, "gradients differ by %.2e", error);
    free(a);
    free(b);
}

CASE(nvfp4_runs_the_planned_gemms_and_repeats_bit_for_bit) {
    char *nvfp4[] = {"precision.recipe=nvfp4"};
    Run r;
    run_open(&r, "model_llama", 1, nvfp4);
    begin_step(&r, 0);
    micro_step(&r, 0, 0, B);
    // Two blocks, the last one kept in BF16: four linears of block 0, three GEMMs each.
    EXPECT_EQ_I64(plan_quantized_gemms(&r.model), 12, "plan");
    EXPECT_EQ_I64(r.model.engine.quantized_gemms, 12, "GEMMs that ran");
    int64_t n = r.model.params.num_elements;
    run_close(&r);
    char *bf16[] = {"precision.recipe=bf16"};
    float *a = gradients_of("model_llama", 1, nvfp4, 1),
          *b = gradients_of("model_llama", 1, nvfp4, 1);
    float *plain = gradients_of("model_llama", 1, bf16, 1);
    EXPECT_BITS(a, b, (size_t)(n + 1) * sizeof(float), "gradients and loss");
    double error = relative_error(a, plain, n);
    EXPECT(error > 0.01 && error < 0.5, "NVFP4 gradients differ from BF16's by %.2e", error);
    free(a);
    free(b);
    free(plain);
}

/* Packed codes with tiled scales, what a native GEMM takes, are the same operands as their decoded
   values: losses and gradients differ by the order of sums alone. */
CASE(packed_codes_train_as_their_values_do) {
    char *nvfp4[] = {"precision.recipe=nvfp4", "precision.keep_bf16.last=0"};
    const Fp4Gemm gemms[] = {FP4_EMULATED, FP4_LIBRARY, FP4_MMA};
    const OperandForm forms[] = {FORM_VALUES, FORM_PACKED, FORM_PACKED};
    Run runs[ARRAY_LEN(gemms)];
    for (int f = 0; f < ARRAY_LEN(gemms); f++) {
        Run *r = &runs[f];
        run_open_as(gemms[f], r, "model_llama", 2, nvfp4);
        model_init(&r->model, 7);
        model_prepare_weights(&r->model);
        begin_step(r, 0);
        micro_step(r, 0, 0, B);
        for (int id = 0; id < model_num_linears(&r->model); id++) {
            const Linear *l = model_linear(&r->model, id);
            EXPECT_EQ_I64(l->w[GEMM_DGRAD].form, forms[f], "%s", l->name);
        }
    }
    const ParamTable *t = &runs[0].model.params;
    for (int f = 1; f < ARRAY_LEN(gemms); f++) {
        const Model *m = &runs[f].model;
        double error = relative_error(m->params.grad.data, t->grad.data, t->num_elements);
        EXPECT_NEAR(m->engine.state->loss, runs[0].model.engine.state->loss, 1e-6, "loss");
        EXPECT(error <= 1e-3, "gradients differ by %.2e", error);
    }
    for (int f = 0; f < ARRAY_LEN(gemms); f++) run_close(&runs[f]);
}

CASE(fp8_runs_every_gemm_near_bf16) {
    char *fp8[] = {"precision.recipe=fp8"}, *bf16[] = {"precision.recipe=bf16"};
    Run r;
    run_open(&r, "model_llama", 1, fp8);
    begin_step(&r, 0);
    micro_step(&r, 0, 0, B);
    // Two blocks of four linears, three GEMMs each; none is kept in BF16.
    EXPECT_EQ_I64(plan_quantized_gemms(&r.model), 24, "plan");
    EXPECT_EQ_I64(r.model.engine.quantized_gemms, 24, "GEMMs that ran");
    int64_t n = r.model.params.num_elements;
    run_close(&r);
    float *a = gradients_of("model_llama", 1, fp8, 1), *b = gradients_of("model_llama", 1, fp8, 1);
    float *plain = gradients_of("model_llama", 1, bf16, 1);
    EXPECT_BITS(a, b, (size_t)(n + 1) * sizeof(float), "gradients and loss");
    EXPECT_NEAR(a[n], plain[n], 0.01, "loss");
    double error = relative_error(a, plain, n);
    EXPECT(error > 0.01 && error < 0.1, "FP8 gradients differ from BF16's by %.2e", error);
    free(a);
    free(b);
    free(plain);
}

/* The last of STEPS losses of a run over the fixture's batches. */
static float trained_loss(char *recipe) {
    Run r;
    run_open(&r, "model_llama", 1, &recipe);
    float loss = 0;
    for (int step = 0; step < STEPS; step++) {
        begin_step(&r, step);
        micro_step(&r, step, 0, B);
        optimizer_step(&r.model, &r.config);
        model_prepare_weights(&r.model);
        loss = r.model.engine.state->loss;
    }
    run_close(&r);
    return loss;
}

CASE(fp8_trains_as_bf16_does) {
    float fp8 = trained_loss("precision.recipe=fp8"), bf16 = trained_loss("precision.recipe=bf16");
    EXPECT_NEAR(fp8, bf16, 0.02 * bf16, "loss of step %d", STEPS - 1);
}

/* As above of NVFP4; and one byte a value is saved for backward, not two. */
CASE(packed_fp8_trains_as_its_values_do) {
    char *fp8[] = {"precision.recipe=fp8"};
    const Fp4Gemm gemms[] = {FP4_EMULATED, FP4_LIBRARY};
    Run runs[ARRAY_LEN(gemms)];
    for (int f = 0; f < ARRAY_LEN(gemms); f++) {
        Run *r = &runs[f];
        run_open_as(gemms[f], r, "model_llama", 1, fp8);
        model_init(&r->model, 7);
        model_prepare_weights(&r->model);
        begin_step(r, 0);
        micro_step(r, 0, 0, B);
        for (int i = 0; i < r->model.num_branches; i++) {
            const Linear *l = &r->model.blocks[i].in;
            int64_t count = (int64_t)B * T * l->in;
            EXPECT_EQ_I64(l->w[GEMM_DGRAD].form, f ? FORM_PACKED : FORM_VALUES, "%s", l->name);
            EXPECT_EQ_I64(tensor_bytes(r->model.blocks[i].in_saved.token_buffer),
                          f ? count : 2 * count, "%s", l->name);
            EXPECT(f == 0 || l->w[GEMM_DGRAD].scales == NULL, "%s", l->name);
        }
    }
    const ParamTable *t = &runs[0].model.params, *packed = &runs[1].model.params;
    double error = relative_error(packed->grad.data, t->grad.data, t->num_elements);
    EXPECT_NEAR(runs[1].model.engine.state->loss, runs[0].model.engine.state->loss, 1e-6, "loss");
    EXPECT(error <= 1e-3, "gradients differ by %.2e", error);
    for (int f = 0; f < ARRAY_LEN(gemms); f++) run_close(&runs[f]);
}

/* The guard looks at the loss: an activation that is lost must show there. */
CASE(infinite_weights_reach_the_loss) {
    char *fp8[] = {"precision.recipe=fp8"};
    Run r;
    run_open(&r, "model_llama", 1, fp8);
    bf16_t *weight = (bf16_t *)r.model.params.params[r.model.blocks[0].in.weight].value.data;
    weight[0] = 0x7F80;
    model_prepare_weights(&r.model);
    begin_step(&r, 0);
    micro_step(&r, 0, 0, B);
    EXPECT(!isfinite(r.model.engine.state->loss), "loss %g", r.model.engine.state->loss);
    run_close(&r);
}

/* The gradients of one micro-step over 4 x 512 tokens, packed, on a device that says it has FP4
   units and so many multiprocessors. Caller frees. */
static float *packed_gradients(int multiprocessors, int64_t *count) {
    char *args[] = {"test/fixtures/model_llama.json", "precision.recipe=nvfp4",
                    "precision.keep_bf16.last=0", "batch.micro=4", "batch.seq_len=512"};
    static int32_t tokens[4 * 512];
    Config c;
    Model m;
    config_parse(&c, ARRAY_LEN(args), args);
    Device *d = device_cpu_open(0);
    d->native_fp4 = 1;
    d->num_threads = multiprocessors;
    model_declare(&m, &c);
    m.engine.fp4 = FP4_LIBRARY;
    model_place(&m, &c, d, &ops_cpu, 1);
    model_init(&m, 7);
    model_prepare_weights(&m);
    model_zero_gradients(&m);
    for (int i = 0; i < ARRAY_LEN(tokens); i++) tokens[i] = i * 7919 % c.model.vocab;
    m.engine.state->token_base = 4096;
    model_forward_backward(&m, tokens, tokens, 4, 512, 1.0f / ARRAY_LEN(tokens));
    *count = m.params.num_elements;
    float *gradients = xmalloc((size_t)*count * sizeof(float));
    memcpy(gradients, m.params.grad.data, (size_t)*count * sizeof(float));
    model_free(&m);
    d->close(d);
    config_free(&c);
    return gradients;
}

/* Slices of the tokens hold the codes and scales of the whole: the same products in another order
   of sums. */
CASE(sliced_weight_gradients_are_those_of_the_whole) {
    Device d = {.native_fp4 = 1, .num_threads = 148};
    EXPECT_EQ_I64(gemm_slices(&d, 768, 768, 65536), 4, "36 tiles, 148 multiprocessors");
    EXPECT_EQ_I64(gemm_slices(&d, 2304, 768, 65536), 1, "108 tiles");
    EXPECT_EQ_I64(gemm_slices(&d, 128, 128, 65536), 8, "at most 8");
    EXPECT_EQ_I64(gemm_slices(&d, 128, 128, 2048 + 128), 1, "not of whole tiles");
    EXPECT_EQ_I64(gemm_slices(&d, 128, 128, 2048), 2, "of at least 1024");
    d.native_fp4 = 0;
    EXPECT_EQ_I64(gemm_slices(&d, 768, 768, 65536), 1, "no FP4 units");
    int64_t count;
    float *whole = packed_gradients(1, &count), *sliced = packed_gradients(148, &count);
    EXPECT(memcmp(whole, sliced, (size_t)count * sizeof(float)) != 0, "nothing was sliced");
    double error = relative_error(sliced, whole, count);
    EXPECT(error <= 1e-5, "gradients differ by %.2e", error);
    free(whole);
    free(sliced);
}

CASE(first_step_reaches_every_parameter) {
    char *nvfp4[] = {"precision.recipe=nvfp4", "precision.keep_bf16.last=0"};
    Run r;
    run_open(&r, "model_gpt2", 2, nvfp4);
    begin_step(&r, 0);
    micro_step(&r, 0, 0, B);
    for (int i = 0; i < r.model.params.count; i++) {
        const Param *p = &r.model.params.params[i];
        double sum = 0;
        const float *grad = p->grad.data;
        for (int64_t j = 0; j < tensor_count(p->grad); j++) sum += fabs(grad[j]);
        EXPECT(sum > 0, "gradient of %s is zero", p->name);
    }
    run_close(&r);
}

CASE(skipped_step_changes_nothing) {
    char *bf16[] = {"precision.recipe=bf16"};
    Run r;
    run_open(&r, "model_gpt2", 1, bf16);
    size_t bytes = tensor_bytes(r.model.params.master);
    float *before = xmalloc(bytes);
    memcpy(before, r.model.params.master.data, bytes);
    begin_step(&r, 0);
    r.model.engine.state->loss_limit = 1.0f;   // the first loss is about log(61) = 4.1
    micro_step(&r, 0, 0, B);
    optimizer_step(&r.model, &r.config);
    EXPECT_EQ_I64(r.model.engine.state->skip, 1, "skip");
    EXPECT_BITS(r.model.params.master.data, before, bytes, "masters");
    free(before);
    run_close(&r);
}

/* The tag says what runs, not what the recipe is called. */
static void expect_tag_as(Fp4Gemm fp4, const char *want, int num_extra, char **extra) {
    char tag[64];
    Run r;
    run_open_as(fp4, &r, "model_llama", num_extra, extra);
    plan_precision_tag(&r.model, &r.config, tag, sizeof(tag));
    EXPECT(strcmp(tag, want) == 0, "tag %s, want %s", tag, want);
    run_close(&r);
}

static void expect_tag(const char *want, int num_extra, char **extra) {
    expect_tag_as(FP4_EMULATED, want, num_extra, extra);
}

/* Legal keys can ask for more than there are numbers for. */
CASE(sizes_beyond_all_measure_are_refused) {
    char *args[] = {"model.layers=512",  "model.dim=131072",     "model.heads=1024",
                    "model.ffn=1048576", "model.act=swiglu",     "model.vocab=16777216",
                    "batch.micro=2047",  "batch.seq_len=1048576"};
    Config c;
    Model m;
    Device *d = device_cpu_open(0);
    config_parse(&c, ARRAY_LEN(args), args);
    model_declare(&m, &c);
    EXPECT_DIES(EXIT_OOM, "saved activations need 2^60 bytes or more: lower batch.micro",
                model_measure(&m, &c, d, &ops_cpu, 1));
    model_free(&m);
    config_free(&c);
    Arena a = arena_measure("tables", d);
    EXPECT_DIES(EXIT_OOM, "tables need 2^60 bytes", arena_tensor(&a, DT_U8, INT64_MAX, 2));
    for (int i = 0; i < 7; i++) arena_tensor(&a, DT_F32, INT64_C(1) << 30, 1 << 25);
    EXPECT_EQ_I64(a.used, INT64_C(7) << 57);
    EXPECT_DIES(EXIT_OOM, "tables need 2^60 bytes", arena_tensor(&a, DT_F32, 1 << 30, 1 << 25));
    d->close(d);
}

CASE(precision_tag_says_what_runs) {
    char *f32[] = {"precision.recipe=f32", "model.dtype=f32"};
    char *bf16[] = {"precision.recipe=bf16"}, *nvfp4[] = {"precision.recipe=nvfp4"};
    char *kept[] = {"precision.recipe=nvfp4", "precision.keep_bf16.last=2"};
    char *rules[] = {"precision.rules=[{\"layers\": \"*.mlp.up\", \"recipe\": \"nvfp4\"}]"};
    expect_tag("f32", 2, f32);
    expect_tag("bf16", 1, bf16);
    expect_tag("nvfp4(emulated)", 1, nvfp4);
    expect_tag("bf16", 2, kept);
    expect_tag("bf16+rules(emulated)", 1, rules);
    char *fp8[] = {"precision.recipe=fp8"};
    // dY by W in E5M2 alone, which no GPU multiplies.
    char *e5m2[] = {"precision.recipe=fp8", "precision.dgrad.w.format=e5m2",
                    "precision.dgrad.w.source=tensor"};
    char *both[] = {"precision.recipe=fp8",
                    "precision.rules=[{\"layers\": \"*.mlp.*\", \"recipe\": \"nvfp4\"}]"};
    char *half[] = {"precision.recipe=nvfp4", "precision.fprop.x.format=bf16"};
    expect_tag("fp8(emulated)", 1, fp8);
    expect_tag_as(FP4_LIBRARY, "fp8(native)", 1, fp8);
    expect_tag_as(FP4_LIBRARY, "fp8+rules(mixed)", 3, e5m2);
    expect_tag_as(FP4_LIBRARY, "fp8+rules(native)", 2, both);
    expect_tag_as(FP4_LIBRARY, "nvfp4+rules(mixed)", 2, half);
}

/* Of two micro-steps with a validation between them: all gradients and behind them the loss; bytes
   saved for backward. Caller frees. */
static float *two_micro_steps(Fp4Gemm fp4, const char *name, char **args, size_t *saved,
                              size_t *bytes) {
    int32_t inputs[B * T], targets[B * T];
    Run r;
    run_open_as(fp4, &r, name, 3, args);
    begin_step(&r, 0);
    micro_step(&r, 0, 0, B);
    batch(&r, 2, inputs, targets);
    model_evaluate(&r.model, inputs, targets, B, T, 1);
    int64_t before = r.model.engine.quantized_gemms;
    micro_step(&r, 1, 0, B);
    EXPECT_EQ_I64(r.model.engine.quantized_gemms - before, plan_quantized_gemms(&r.model),
                  "GEMMs that ran, %s %s %s", name, args[0], args[2]);
    *bytes = tensor_bytes(r.model.params.grad) + sizeof(float);
    float *got = xmalloc(*bytes);
    memcpy(got, r.model.params.grad.data, *bytes - sizeof(float));
    got[*bytes / sizeof(float) - 1] = r.model.engine.state->loss;
    *saved = r.model.arenas[ARENA_SAVED].used;
    run_close(&r);
    return got;
}

/* What backward works out again is what forward made. */
CASE(recomputing_changes_no_bit) {
    static const char *const names[] = {"model_gpt2", "model_llama", "model_nemotron"};
    static char *const recipes[] = {"precision.recipe=bf16", "precision.recipe=nvfp4",
                                    "precision.recipe=fp8"};
    static char *const levels[NUM_RECOMPUTES] = {"memory.recompute=none",
                                                 "memory.recompute=activation",
                                                 "memory.recompute=norm", "memory.recompute=block"};
    for (int i = 0; i < 3 * 3 * 2; i++) {
        const char *name = names[i % 3];
        char *args[] = {recipes[i / 3 % 3], "precision.keep_bf16.last=0", levels[0]};
        Fp4Gemm fp4 = i < 9 ? FP4_EMULATED : FP4_LIBRARY;
        size_t most, bytes;
        float *plain = two_micro_steps(fp4, name, args, &most, &bytes);
        for (int level = 1; level < NUM_RECOMPUTES; level++) {
            size_t saved;
            args[2] = levels[level];
            float *got = two_micro_steps(fp4, name, args, &saved, &bytes);
            EXPECT_BITS(got, plain, bytes, "%s %s %s", name, args[0], args[2]);
            EXPECT(saved < most, "%s %s %s: %zu", name, args[0], args[2], saved);
            most = saved;
            free(got);
        }
        free(plain);
    }
}

TEST_MAIN_END
