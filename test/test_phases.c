/*
test_phases -- precision.schedule: what a config may say, the first step of each entry and the
learning rate from there, and that a switch changes the operands of the GEMMs it names and no bit of
the others'.
*/
#include "common.h"
#include "config.h"
#include "model.h"
#include "plan.h"
#include "run_phases.h"
#include "test.h"

#define SHAPE                                                                                      \
    "model.layers=1", "model.dim=64", "model.heads=2", "model.vocab=64", "batch.seq_len=32",       \
        "batch.micro=2", "eval.micro=2", "precision.recipe=nvfp4", "precision.keep_bf16.last=0",   \
        "log.telemetry_every=10", "log.gradient_noise=true"
#define FORWARD_LATE "precision.schedule=[{\"at\":6,\"gemm\":\"fprop\",\"recipe\":\"bf16\"}]"

static void parse(Config *c, const char *schedule) {
    char *args[] = {SHAPE, (char *)schedule};
    config_parse(c, ARRAY_LEN(args), args);
}

// --- what a config may say ---

CASE(moments_of_every_kind) {
    Config c;
    parse(&c, "precision.schedule=[{\"at\":7,\"recipe\":\"bf16\"},{\"at\":0.25,\"recipe\":\"bf16\"}"
              ",{\"at\":\"82%\",\"recipe\":\"bf16\"},{\"at\":\"lr_decay\",\"recipe\":\"bf16\"},"
              "{\"at\":\"sqrt3\",\"gemm\":\"backward\",\"recipe\":\"bf16\","
              "\"lr\":{\"peak\":1e-4,\"final_frac\":0.2}}]");
    const ScheduleEntry *e = c.precision.schedule.items;
    REQUIRE(c.precision.schedule.count == 5, "%d entries", c.precision.schedule.count);
    EXPECT(e[0].kind == MOMENT_STEP && e[0].at == 7 && !e[0].resets_lr, "a step");
    EXPECT(e[1].kind == MOMENT_SHARE && e[1].at == 0.25, "a share");
    EXPECT(e[2].kind == MOMENT_SHARE && e[2].at == 0.82, "percent: %g", e[2].at);
    EXPECT(e[3].kind == MOMENT_LR_DECAY && e[4].kind == MOMENT_SQRT3, "words");
    EXPECT(e[4].resets_lr && e[4].warmup_steps == 40 && e[4].peak == 1e-4f &&
               e[4].final_frac == 0.2f,
           "a reset");
    EXPECT(strcmp(rule_get(&e[4].rule, "gemm"), "backward") == 0, "dgrad and wgrad");
    EXPECT_EQ_I64(e[4].rule.gemms, 1u << GEMM_DGRAD | 1u << GEMM_WGRAD);
    char *text = config_to_json(&c), path[] = "/tmp/test_phases_XXXXXX";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), "%s", path);
    close(fd);
    Config again;
    char *args[] = {path};
    config_parse(&again, 1, args);
    char *text_again = config_to_json(&again);
    EXPECT(strcmp(text, text_again) == 0, "reads back another config");
    unlink(path);
    free(text), free(text_again);
    config_free(&again), config_free(&c);
}

CASE(what_is_no_schedule) {
    static const char *const refused[][2] = {
        {"{}", "is no list"},
        {"[3]", "[0]\" is no object"},
        {"[{\"gemm\":\"fprop\"}]", "has no \"at\"; legal: a step from 1 on"},
        {"[{\"at\":0}]", "is no moment within training"},
        {"[{\"at\":1.5}]", "is 1.5, no whole step"},
        {"[{\"at\":\"130%\"}]", "is no moment within training"},
        {"[{\"at\":\"late\"}]", "is \"late\"; legal"},
        {"[{\"at\":\"0x1p3%\"}]", "is \"0x1p3%\"; legal"},
        {"[{\"at\":\"1e1%\"}]", "is \"1e1%\"; legal"},
        {"[{\"at\":\" 82%\"}]", "is \" 82%\"; legal"},
        {"[{\"at\":\"-8%\"}]", "is \"-8%\"; legal"},
        {"[{\"at\":\"8.2.1%\"}]", "is \"8.2.1%\"; legal"},
        {"[{\"at\":\"%\"}]", "is \"%\"; legal"},
        {"[{\"at\":2}]", "[0]\" changes nothing: it says where, but not what"},
        {"[{\"at\":2,\"recipe\":\"bf16\"},{\"at\":3,\"gemm\":\"dgrad\"}]",
         "[1]\" changes nothing: it says where, but not what; give it a \"recipe\", or a field"},
        {"[{\"at\":[]}]", "is no number and no text"},
        {"[{\"at\":3,\"recipes\":\"bf16\"}]", "[0].recipes\" is refused: \"recipes\" is not a key"},
        {"[{\"at\":3,\"gemm\":\"fprop\",\"operand\":\"dy\"}]", "changes nothing"},
        {"[{\"at\":3,\"lr\":4}]", "[0].lr\" must be an object"},
        {"[{\"at\":3,\"lr\":{\"warm\":4}}]", "[0].lr.warm\" is unknown"},
        {"[{\"at\":3,\"lr\":{\"warmup_steps\":2.5}}]", "is 2.5, no whole number"},
        {"[{\"at\":3,\"lr\":{\"final_frac\":2}}]", "must be a number from 0 to 1"},
        {"[{\"at\":\"sqrt3\",\"recipe\":\"bf16\"},{\"at\":9,\"recipe\":\"bf16\"}]",
         "follows \"sqrt3\""},
    };
    for (int i = 0; i < ARRAY_LEN(refused); i++) {
        char word[256];
        Config c;
        snprintf(word, sizeof(word), "precision.schedule=%s", refused[i][0]);
        EXPECT_DIES(EXIT_CONFIG, refused[i][1], parse(&c, word));
    }
}

CASE(plans_of_later_phases_are_checked_at_once) {
    Config c;
    Model m;
    parse(&c,
          "precision.schedule=[{\"at\":3,\"gemm\":\"wgrad\",\"operand\":\"x\",\"hadamard\":0}]");
    EXPECT_DIES(EXIT_CONFIG, "from precision.schedule[0] on: wgrad: the Hadamard transform must be",
                model_declare(&m, &c));
    config_free(&c);
    parse(&c, "precision.schedule=[{\"at\":3,\"layers\":\"blocks.9.*\",\"recipe\":\"bf16\"}]");
    EXPECT_DIES(EXIT_CONFIG, "precision.schedule[0]: layers \"blocks.9.*\" is no linear",
                model_declare(&m, &c));
    config_free(&c);
}

// --- steps and learning rates ---

static Run run_of(const char *schedule, ScheduleType type, int64_t steps) {
    Run r;
    memset(&r, 0, sizeof(r));
    parse(&r.config, schedule);
    Schedule s = {type, 1e-3, 2, 0.2, 0.1, steps};
    r.schedule = s;
    r.steps = steps;
    return r;
}

static void run_end(Run *r) {
    free(r->phase_starts);
    config_free(&r->config);
}

CASE(moments_become_steps) {
    Run r = run_of("precision.schedule=[{\"at\":7,\"recipe\":\"bf16\"},{\"at\":0.3,\"recipe\":"
                   "\"bf16\"},{\"at\":\"lr_decay\",\"recipe\":\"bf16\"},"
                   "{\"at\":\"82%\",\"recipe\":\"bf16\"},{\"at\":\"sqrt3\",\"recipe\":\"bf16\"}]",
                   SCHED_WSD, 100);
    run_phases_resolve(&r);
    static const int64_t want[] = {7, 30, 80, 82, INT64_MAX};
    for (int i = 0; i < ARRAY_LEN(want); i++) EXPECT_EQ_I64(r.phase_starts[i], want[i], "%d", i);
    EXPECT(!run_phases_wait(&r), "sqrt3 waits for the entries before it");
    r.step = 82;
    EXPECT(run_phases_wait(&r), "sqrt3 waits");
    r.step = 90;
    run_phases_trigger(&r, r.step);
    EXPECT(!run_phases_wait(&r) && r.phase_starts[4] == 90, "begins at %lld",
           (long long)r.phase_starts[4]);
    run_end(&r);
}

CASE(moments_that_training_does_not_have) {
    static const struct {
        const char *schedule, *message;
        ScheduleType type;
    } refused[] = {
        {"[{\"at\":100,\"recipe\":\"bf16\"}]",
         "begins after step 100, but the run has 100 steps; legal: after step 1 to 99", SCHED_WSD},
        {"[{\"at\":0.001,\"recipe\":\"bf16\"}]", "begins after step 0,", SCHED_WSD},
        {"[{\"at\":50,\"recipe\":\"bf16\"},{\"at\":0.3,\"recipe\":\"bf16\"}]",
         "begins after step 30, before entry 0, after step 50", SCHED_WSD},
        {"[{\"at\":\"lr_decay\",\"recipe\":\"bf16\"}]", "sched.type constant never lowers",
         SCHED_CONSTANT},
        {"[{\"at\":70,\"lr\":{\"warmup_steps\":30}}]",
         "30 steps are left after step 70; legal: 0 "
         "to 29",
         SCHED_WSD},
    };
    for (int i = 0; i < ARRAY_LEN(refused); i++) {
        char word[256];
        snprintf(word, sizeof(word), "precision.schedule=%s", refused[i].schedule);
        Run r = run_of(word, refused[i].type, 100);
        EXPECT_DIES(EXIT_CONFIG, refused[i].message, run_phases_resolve(&r));
        run_end(&r);
    }
}

CASE(learning_rate_starts_anew) {
    Run r = run_of(
        "precision.schedule=[{\"at\":20,\"recipe\":\"bf16\"},{\"at\":50,\"lr\":{\"warmup_steps\":4,"
        "\"peak\":4e-4,\"final_frac\":0.25}}]",
        SCHED_COSINE, 100);
    run_phases_resolve(&r);
    EXPECT(run_phases_lr(&r, 49) == schedule_lr(&r.schedule, 49), "before it as ever");
    EXPECT(run_phases_lr(&r, 25) == schedule_lr(&r.schedule, 25), "an entry without a reset");
    EXPECT(run_phases_lr(&r, 50) == 1e-4f && run_phases_lr(&r, 53) == 4e-4f, "warm-up: %g %g",
           run_phases_lr(&r, 50), run_phases_lr(&r, 53));
    EXPECT(run_phases_lr(&r, 54) == 4e-4f && run_phases_lr(&r, 99) == 1e-4f, "both ends: %g %g",
           run_phases_lr(&r, 54), run_phases_lr(&r, 99));
    EXPECT_NEAR(run_phases_lr(&r, 76), 2.53e-4, 5e-6, "half-way");
    run_end(&r);
}

// --- operands ---

typedef struct {
    Config config;
    Model model;
    Device *device;
} Trained;

static void open_model(Trained *t, const char *schedule) {
    memset(t, 0, sizeof(*t));
    parse(&t->config, schedule);
    t->device = device_cpu_open(0);
    model_declare(&t->model, &t->config);
    model_place(&t->model, &t->config, t->device, &ops_cpu, 1);
    model_init(&t->model, 5);
    model_begin_step(&t->model, 0);
}

static void close_model(Trained *t) {
    model_free(&t->model);
    t->device->close(t->device);
    config_free(&t->config);
}

static char *copy_operand(const QOperand *q) {
    size_t bytes = dtype_bytes(q->dtype, q->rows * q->k);
    char *copy = (char *)xmalloc(bytes + sizeof(float));
    memcpy(copy, q->data, bytes);
    float scale = q->amax ? *q->amax : 1.0f;
    memcpy(copy + bytes, &scale, sizeof(scale));
    return copy;
}

enum { ROWS = 64 };
typedef struct {
    char *fprop_x, *fprop_w, *dgrad_dy, *dgrad_w, *wgrad_dy, *wgrad_x;
    size_t bytes[6];
} Operands;

static size_t operand_bytes(const QOperand *q) {
    return dtype_bytes(q->dtype, q->rows * q->k) + sizeof(float);
}

/* All six operands of one linear for the same x and dy. */
static Operands operands_of(Model *m, Tensor x, Tensor dy) {
    Engine *e = &m->engine;
    Linear *l = model_linear(m, 0);
    LinearSaved saved;
    memset(&saved, 0, sizeof(saved));
    size_t bytes = linear_saved_bytes(e, l, ROWS);
    char *buffer = (char *)xmalloc(bytes + 1);
    saved.token_buffer = tensor_view(buffer, DT_U8, 1, (int64_t)bytes);
    QOperand row_x = linear_input(e, l, &saved, x);
    Operands o;
    o.fprop_x = copy_operand(&row_x), o.bytes[0] = operand_bytes(&row_x);
    o.wgrad_x = copy_operand(&saved.token_x), o.bytes[5] = operand_bytes(&saved.token_x);
    LinearGrad grad = linear_output_grad(e, l, dy);
    o.fprop_w = copy_operand(&l->w[GEMM_FPROP]), o.bytes[1] = operand_bytes(&l->w[GEMM_FPROP]);
    o.dgrad_dy = copy_operand(&grad.row), o.bytes[2] = operand_bytes(&grad.row);
    o.dgrad_w = copy_operand(&l->w[GEMM_DGRAD]), o.bytes[3] = operand_bytes(&l->w[GEMM_DGRAD]);
    o.wgrad_dy = copy_operand(&grad.token), o.bytes[4] = operand_bytes(&grad.token);
    free(buffer);
    return o;
}

static void free_operands(Operands *o) {
    free(o->fprop_x), free(o->fprop_w), free(o->dgrad_dy);
    free(o->dgrad_w), free(o->wgrad_dy), free(o->wgrad_x);
}

static Tensor random_tensor(int cols, unsigned seed) {
    Tensor t = tensor_view(xmalloc((size_t)(ROWS * cols) * sizeof(bf16_t)), DT_BF16, ROWS, cols);
    uint32_t state = seed;
    for (int i = 0; i < ROWS * cols; i++) {
        state = state * 1664525u + 1013904223u;
        ((bf16_t *)t.data)[i] = bf16_from_f32(((float)(state >> 8) / 8388608.0f - 1.0f) * 3);
    }
    return t;
}

CASE(a_forward_switch_leaves_backward_operands_alone) {
    Trained t;
    open_model(&t, FORWARD_LATE);
    Linear *l = model_linear(&t.model, 0);
    Tensor x = random_tensor(l->in, 1), dy = random_tensor(l->out, 2);
    Operands before = operands_of(&t.model, x, dy);
    model_set_phase(&t.model, 1);
    model_prepare_weights(&t.model);
    Operands after = operands_of(&t.model, x, dy);
    EXPECT_EQ_I64(plan_quantized_gemms(&t.model), 2 * model_num_linears(&t.model));
    EXPECT_BITS(after.dgrad_dy, before.dgrad_dy, before.bytes[2], "dgrad dy");
    EXPECT_BITS(after.dgrad_w, before.dgrad_w, before.bytes[3], "dgrad w");
    EXPECT_BITS(after.wgrad_dy, before.wgrad_dy, before.bytes[4], "wgrad dy");
    EXPECT_BITS(after.wgrad_x, before.wgrad_x, before.bytes[5], "wgrad x");
    EXPECT(memcmp(after.fprop_x, before.fprop_x, before.bytes[0]) != 0, "fprop x is as before");
    EXPECT(memcmp(after.fprop_w, before.fprop_w, before.bytes[1]) != 0, "fprop w is as before");
    EXPECT_BITS(after.fprop_x, x.data, tensor_bytes(x), "fprop x is x");
    free_operands(&before), free_operands(&after);
    free(x.data), free(dy.data);
    close_model(&t);
}

static float loss_of(Model *m, int32_t seed) {
    int32_t tokens[64], targets[64];
    for (int i = 0; i < 64; i++) tokens[i] = (seed + i * 7) % 64, targets[i] = (seed + i * 5) % 64;
    m->engine.state->loss = 0;
    model_zero_gradients(m);
    model_forward_backward(m, tokens, targets, 2, 32, 1.0f / 64);
    model_finish_gradients(m);
    return m->engine.state->loss;
}

static float gradient_sum(const Model *m) {
    float sum = 0;
    const float *g = (const float *)m->params.grad.data;
    for (int64_t i = 0; i < m->params.num_elements; i++) sum += g[i] * (float)(1 + i % 7);
    return sum;
}

/* The same batch in each phase, and back: the loss knows the forward pass alone. */
CASE(losses_change_with_the_gemms_named) {
    Trained t, plain;
    open_model(&t, "precision.schedule=[{\"at\":3,\"gemm\":\"backward\",\"recipe\":\"bf16\"},"
                   "{\"at\":6,\"recipe\":\"bf16\"}]");
    open_model(&plain, "precision.recipe=bf16");
    float loss[3], gradient[3];
    for (int phase = 0; phase < 3; phase++) {
        model_set_phase(&t.model, phase);
        model_prepare_weights(&t.model);
        loss[phase] = loss_of(&t.model, 3);
        gradient[phase] = gradient_sum(&t.model);
    }
    EXPECT(loss[1] == loss[0] && gradient[1] != gradient[0], "backward to BF16: %g %g", loss[0],
           loss[1]);
    EXPECT(loss[2] != loss[0], "forward, too");
    EXPECT(loss[2] == loss_of(&plain.model, 3) && gradient[2] == gradient_sum(&plain.model),
           "all in BF16 is the recipe bf16");
    model_set_phase(&t.model, 0);
    model_prepare_weights(&t.model);
    float again = loss_of(&t.model, 3);
    EXPECT(again == loss[0] && gradient_sum(&t.model) == gradient[0], "and back: %.9g, not %.9g",
           again, loss[0]);
    close_model(&plain), close_model(&t);
}

TEST_MAIN_END
