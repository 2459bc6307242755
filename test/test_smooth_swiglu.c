/*
test_smooth_swiglu -- the op against its formula in double and central differences of it, and a
model with it against the plain one: in f32 equal up to rounding, loss and every gradient, with
biases and without; in NVFP4 another one, whatever backward works out again.
*/
#include "config.h"
#include "model.h"
#include "ops_double.h"
#include "optimizer.h"

// --- the op ---

static struct {
    int64_t N, F;
    double *x, *scale;
} smooth;

/* With scales held fast, as the gradient has it. */
static void double_smooth(double *out) {
    double_activation(out, smooth.x, ACT_SWIGLU, smooth.N, smooth.F);
    for (int64_t i = 0; i < smooth.N * smooth.F; i++) out[i] /= smooth.scale[i / smooth.F];
}

static double weighted(const double *weights) {
    double *out = (double *)malloc((size_t)(smooth.N * smooth.F) * sizeof(double)), sum = 0;
    double_smooth(out);
    for (int64_t i = 0; i < smooth.N * smooth.F; i++) sum += weights[i] * out[i];
    free(out);
    return sum;
}

static void expect_op(int64_t N, int64_t F) {
    Tensor x = random_tensor(DT_F32, N, 2 * F), dout = random_tensor(DT_F32, N, F);
    Tensor out = new_tensor(DT_F32, N, F), dx = new_tensor(DT_F32, N, 2 * F);
    Tensor scale = new_tensor(DT_F32, N, 1), half = new_tensor(DT_BF16, N, F);
    for (int64_t i = 0; i < tensor_count(x); i++) put(x, i, 4.0 * get(x, i));
    for (int64_t f = 0; f < F; f++) put(x, F + f, 0.0);   // the first row has no up
    ops_cpu.smooth_swiglu_forward(NULL, out, scale, x);
    smooth.N = N;
    smooth.F = F;
    smooth.x = to_doubles(x);
    smooth.scale = to_doubles(scale);
    for (int64_t n = 0; n < N; n++) {
        double most = 0;
        for (int64_t f = 0; f < F; f++) most = fmax(most, fabs(get(x, (2 * n + 1) * F + f)));
        EXPECT_NEAR(smooth.scale[n], n ? most : 1.0, 0, "scale of row %lld", (long long)n);
    }
    double *want = case_doubles(N * F), *weights = to_doubles(dout);
    double_smooth(want);
    expect_close(out, want, 2e-6, "out");
    ops_cpu.smooth_swiglu_forward(NULL, half, scale, copy_tensor(x, DT_BF16));
    expect_close(half, to_doubles(out), 1e-6, "bf16 out");
    ops_cpu.smooth_swiglu_backward(NULL, dx, dout, scale, x);
    for (int64_t i = 0; i < tensor_count(x); i += 1 + N * F / 97) {
        double value = smooth.x[i], step = 1e-5;
        smooth.x[i] = value + step;
        double above = weighted(weights);
        smooth.x[i] = value - step;
        double below = weighted(weights);
        smooth.x[i] = value;
        EXPECT_NEAR(get(dx, i), (above - below) / (2 * step), 2e-5, "dx %lld", (long long)i);
    }
    ops_cpu.smooth_swiglu_backward(NULL, x, dout, scale, x);
    EXPECT_BITS(x.data, dx.data, tensor_bytes(dx), "in place");
    case_free();
}

CASE(smooth_swiglu_matches_double) {
    static const int64_t sizes[][2] = {{1, 1}, {3, 17}, {2, 1100}};
    for (int i = 0; i < ARRAY_LEN(sizes); i++) expect_op(sizes[i][0], sizes[i][1]);
}

CASE(scale_rows_by_hand) {
    float x[] = {1, -2, 3, 4}, scale[] = {2, 0.5f}, b[] = {10, 20}, got[4];
    Tensor out = tensor_view(got, DT_F32, 2, 2), in = tensor_view(x, DT_F32, 2, 2);
    Tensor s = tensor_view(scale, DT_F32, 2, 1);
    const float with[] = {12, 16, 11.5f, 22}, without[] = {2, -4, 1.5f, 2};
    ops_cpu.scale_rows(NULL, out, in, s, tensor_view(b, DT_F32, 1, 2));
    EXPECT_BITS(got, with, sizeof(with), "with a bias");
    ops_cpu.scale_rows(NULL, in, in, s, NO_TENSOR);
    EXPECT_BITS(x, without, sizeof(without), "in place, without one");
}

// --- models ---

enum { ROWS = 128, VOCAB = 64 };
static const char BASE[] =
    "model.layers=2 model.dim=64 model.heads=2 model.ffn=96 model.vocab=64 model.act=swiglu "
    "model.pos=rope batch.micro=2 batch.seq_len=64 batch.total_tokens=128 optim.lr=0.003 "
    "precision.keep_bf16.last=0";

typedef struct {
    Config config;
    Device *device;
    Model model;
    float loss;
} Run;

/* One micro-step at weights with outliers in up. */
static void run_open(Run *r, const char *settings) {
    char words[1024], *args[64], *rest = words;
    int count = 0;
    snprintf(words, sizeof(words), "%s %s", BASE, settings);
    for (char *word = strsep(&rest, " "); word; word = strsep(&rest, " ")) args[count++] = word;
    memset(r, 0, sizeof(*r));
    config_parse(&r->config, count, args);
    r->device = device_cpu_open(1);
    model_declare(&r->model, &r->config);
    model_place(&r->model, &r->config, r->device, &ops_cpu, 1);
    model_init(&r->model, 1);
    for (int i = 0; i < r->model.params.count; i++) {
        const Param *p = &r->model.params.params[i];
        if (p->init == INIT_ONE) continue;
        for (int64_t k = 0; k < tensor_count(p->value); k++)
            put(p->value, k, 4.0 * get(p->value, k) + (p->rows == 1 ? 0.01 * (double)(k % 7) : 0));
    }
    model_begin_step(&r->model, 0);
    *r->model.engine.state = optimizer_state(&r->config, 0, 0.003f, INFINITY, INFINITY);
    model_zero_gradients(&r->model);
    int32_t tokens[ROWS], targets[ROWS];
    for (int i = 0; i < ROWS; i++) {
        tokens[i] = i * i % VOCAB;
        targets[i] = (i + 1) * (i + 1) % VOCAB;
    }
    model_forward_backward(&r->model, tokens, targets, 2, ROWS / 2, 1.0f / ROWS);
    r->loss = r->model.engine.state->loss;
}

static void run_close(Run *r) {
    model_free(&r->model);
    r->device->close(r->device);
    config_free(&r->config);
}

static Tensor gradients(const Run *r) { return r->model.params.grad; }

static double norm_of(Tensor t) {
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(t); i++) sum += get(t, i) * get(t, i);
    return sqrt(sum);
}

CASE(f32_model_equals_plain_one) {
    const char *const biases[] = {"true", "false"};
    for (int i = 0; i < 2; i++) {
        Run plain, smoothed;
        char words[2][160];
        for (int s = 0; s < 2; s++)
            snprintf(
                words[s], sizeof(words[s]),
                "precision.recipe=f32 model.dtype=f32 model.bias=%s precision.smooth_swiglu=%s",
                biases[i], s ? "token" : "none");
        run_open(&plain, words[0]);
        run_open(&smoothed, words[1]);
        EXPECT_NEAR(smoothed.loss, plain.loss, 2e-6 * plain.loss, "loss, bias %s", biases[i]);
        for (int p = 0; p < plain.model.params.count; p++) {
            const Param *want = &plain.model.params.params[p],
                        *got = &smoothed.model.params.params[p];
            EXPECT(strcmp(want->name, got->name) == 0, "%s is at the place of %s", got->name,
                   want->name);
            double most = norm_of(want->grad);
            EXPECT(most > 0, "%s has no gradient", want->name);
            for (int64_t k = 0; k < tensor_count(want->grad); k++)
                EXPECT_NEAR(get(got->grad, k), get(want->grad, k), 1e-5 * most, "%s %lld",
                            want->name, (long long)k);
        }
        run_close(&plain);
        run_close(&smoothed);
    }
}

CASE(quantised_model_differs_but_not_by_what_is_recomputed) {
    Run plain, smoothed, again;
    run_open(&plain, "precision.recipe=nvfp4");
    run_open(&smoothed, "precision.recipe=nvfp4 precision.smooth_swiglu=token");
    Tensor want = gradients(&smoothed), other = gradients(&plain);
    EXPECT(memcmp(want.data, other.data, tensor_bytes(want)) != 0, "the same gradients");
    EXPECT_NEAR(smoothed.loss, plain.loss, 0.02 * plain.loss, "loss");
    const char *const levels[] = {"activation", "norm", "block"};
    for (int i = 0; i < 3; i++) {
        char words[160];
        snprintf(words, sizeof(words),
                 "precision.recipe=nvfp4 precision.smooth_swiglu=token memory.recompute=%s",
                 levels[i]);
        run_open(&again, words);
        EXPECT_NEAR(again.loss, smoothed.loss, 0, "loss, recompute %s", levels[i]);
        EXPECT_BITS(gradients(&again).data, want.data, tensor_bytes(want), "recompute %s",
                    levels[i]);
        run_close(&again);
    }
    run_close(&plain);
    run_close(&smoothed);
}

static void parse(const char *word) {
    Config c;
    char *args[] = {(char *)"model.act=gelu", (char *)word};
    config_parse(&c, 2, args);
}

CASE(other_activations_are_refused) {
    EXPECT_DIES(EXIT_CONFIG, "model.act is gelu", parse("precision.smooth_swiglu=token"));
    EXPECT_DIES(EXIT_CONFIG, "none, token", parse("precision.smooth_swiglu=channel"));
}

TEST_MAIN_END
