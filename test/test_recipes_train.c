/*
test_recipes_train -- every recipe trains: a model of two blocks on text that repeats, 30 steps on
the CPU. The loss falls by as much as it does in f32, or nearly, and nothing is ever not finite.
*/
#include "common.h"
#include "config.h"
#include "model.h"
#include "optimizer.h"
#include "plain.h"
#include "test.h"

/* Sizes that a transform of 128 fits along every contraction. */
enum { DIM = 128, B = 2, T = 64, VOCAB = 64, STEPS = 30 };

static const char *const base_words[] = {
    "model.layers=2",    "model.dim=128",
    "model.heads=4",     "model.kv_heads=4",
    "model.head_dim=32", "model.ffn=128",
    "model.vocab=64",    "model.pos=rope",
    "batch.micro=2",     "eval.micro=2",
    "batch.seq_len=64",  "batch.total_tokens=128",
    "optim.lr=0.003",    "precision.keep_bf16.last=0",
};

typedef struct {
    Config config;
    Device *device;
    Model model;
} Run;

static void run_open(Run *r, const char *recipe, const char *recompute) {
    char words[ARRAY_LEN(base_words) + 3][64], *args[ARRAY_LEN(base_words) + 3];
    int count = 0, is_f32 = strcmp(recipe, "f32") == 0;
    for (; count < ARRAY_LEN(base_words); count++)
        snprintf(words[count], sizeof(words[0]), "%s", base_words[count]);
    snprintf(words[count++], sizeof(words[0]), "precision.recipe=%s", recipe);
    snprintf(words[count++], sizeof(words[0]), "model.dtype=%s", is_f32 ? "f32" : "bf16");
    snprintf(words[count++], sizeof(words[0]), "memory.recompute=%s", recompute);
    for (int i = 0; i < count; i++) args[i] = words[i];
    memset(r, 0, sizeof(*r));
    config_parse(&r->config, count, args);
    r->device = device_cpu_open(0);
    model_declare(&r->model, &r->config);
    model_place(&r->model, &r->config, r->device, &ops_cpu, 1);
    model_init(&r->model, 1);
    model_begin_step(&r->model, 0);
}

static void run_close(Run *r) {
    model_free(&r->model);
    r->device->close(r->device);
    config_free(&r->config);
}

/* Each token follows from the one before it, but for one in eight. */
static void make_batch(int step, int32_t *inputs, int32_t *targets) {
    int32_t token = step % VOCAB;
    for (int i = 0; i < B * T; i++) {
        inputs[i] = token;
        uint32_t draw = ((uint32_t)(step * B * T + i) * 2654435761u) >> 16;
        token = draw % 8 == 0 ? (int32_t)(draw / 8 % VOCAB) : (token * 5 + 3) % VOCAB;
        targets[i] = token;
    }
}

static StepState train_step(Run *r, int step) {
    int32_t inputs[B * T], targets[B * T];
    Model *m = &r->model;
    *m->engine.state =
        optimizer_state(&r->config, step, (float)r->config.optim.lr, INFINITY, INFINITY);
    model_zero_gradients(m);
    make_batch(step, inputs, targets);
    model_forward_backward(m, inputs, targets, B, T, 1.0f / (B * T));
    model_finish_gradients(m);
    optimizer_step(m, &r->config);
    model_begin_step(m, step + 1);
    return *m->engine.state;
}

CASE(every_recipe_trains) {
    double fall_in_f32 = 0;
    for (int i = 0; i < num_recipes; i++) {
        Run r;
        run_open(&r, recipes[i].name, "none");
        double first = 0, last = 0;
        for (int step = 0; step < STEPS; step++) {
            StepState s = train_step(&r, step);
            EXPECT(isfinite(s.loss) && isfinite(s.grad_norm), "%s: step %d: loss %g, norm %g",
                   recipes[i].name, step, s.loss, s.grad_norm);
            if (step == 0) first = s.loss;
            if (step >= STEPS - 5) last += s.loss / 5;
        }
        if (i == 0) fall_in_f32 = first - last;
        EXPECT(fall_in_f32 > 3.0 && first - last > 0.95 * fall_in_f32, "%s: loss %.4f to %.4f",
               recipes[i].name, first, last);
        run_close(&r);
    }
}

/* Operands, masks and maxima that backward makes again are those of forward. */
CASE(recomputing_changes_no_bit_of_any_recipe) {
    static const char *const levels[] = {"none", "activation", "norm", "block"};
    for (int i = 0; i < num_recipes; i++) {
        Run runs[ARRAY_LEN(levels)];
        for (int k = 0; k < ARRAY_LEN(levels); k++) {
            run_open(&runs[k], recipes[i].name, levels[k]);
            for (int step = 0; step < 2; step++) train_step(&runs[k], step);
        }
        const Tensor want = runs[0].model.params.master, maxima = runs[0].model.maxima;
        for (int k = 1; k < ARRAY_LEN(levels); k++) {
            const Model *m = &runs[k].model;
            EXPECT_BITS(m->params.master.data, want.data, tensor_bytes(want), "%s, %s",
                        recipes[i].name, levels[k]);
            if (!tensor_empty(maxima))
                EXPECT_BITS(m->maxima.data, maxima.data, tensor_bytes(maxima), "%s, %s: maxima",
                            recipes[i].name, levels[k]);
        }
        for (int k = 0; k < ARRAY_LEN(levels); k++) run_close(&runs[k]);
    }
}

/* Loss of one batch, forward alone, with these GEMMs plain; and of the batch with its gradient. */
static float plain_loss(Run *r, unsigned gemms, int trains) {
    int32_t inputs[B * T], targets[B * T];
    Model *m = &r->model;
    make_batch(0, inputs, targets);
    m->engine.state->loss = 0;
    PlainPeriod period = plain_begin(m, gemms);
    (trains ? model_pass : model_evaluate)(m, inputs, targets, B, T, 1.0f / (B * T));
    plain_end(m, &period);
    return m->engine.state->loss;
}

/* In whatever dtype the recipe's own values are. */
CASE(plain_gemms_of_any_recipe_are_those_of_bf16) {
    const unsigned backward = 1u << GEMM_DGRAD | 1u << GEMM_WGRAD, all = backward | 1u;
    Run bf16;
    run_open(&bf16, "bf16", "none");
    model_zero_gradients(&bf16.model);
    float want = plain_loss(&bf16, 0, 1);
    const Tensor gradient = bf16.model.params.grad;
    for (int i = 0; i < num_recipes; i++) {
        if (strcmp(recipes[i].name, "f32") == 0) continue;
        Run r;
        run_open(&r, recipes[i].name, "none");
        EXPECT(plain_loss(&r, 1u << GEMM_FPROP, 0) == want, "%s: forward", recipes[i].name);
        EXPECT(isfinite(plain_loss(&r, backward, 1)), "%s: backward", recipes[i].name);
        model_zero_gradients(&r.model);
        EXPECT(plain_loss(&r, all, 1) == want, "%s: both", recipes[i].name);
        EXPECT_BITS(r.model.params.grad.data, gradient.data, tensor_bytes(gradient), "%s",
                    recipes[i].name);
        run_close(&r);
    }
    run_close(&bf16);
}

TEST_MAIN_END
