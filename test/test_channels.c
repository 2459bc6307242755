/*
test_channels -- OutControl: its ops by hand; the operands of a linear with chosen features in every
recipe that can have them, in all three products; that it takes errors away where features are
outliers; the choice over the steps of a model; and what is refused.
*/
#include "config.h"
#include "ops_double.h"
#include "optimizer.h"
#include "out_control.h"

// --- the ops ---

CASE(added_channels_by_hand) {
    float x[64] = {0}, chosen[64] = {0}, values[64], amax = 6, rest[64];
    for (int i = 0; i < 64; i++) values[i] = (float)i;
    // Scales of groups: 2^-10 for 0.3 / 448 = 6.7e-4, 2^0 for -448, 2^-127 + 3 for 0.
    x[0] = 100, x[1] = 0.3f, x[33] = -448, x[40] = 17;
    chosen[1] = chosen[33] = chosen[40] = chosen[41] = 1;
    Tensor t = tensor_view(x, DT_F32, 1, 64), mask = tensor_view(chosen, DT_F32, 1, 64);
    QOperand q = operand_from_tensor(tensor_view(values, DT_F32, 1, 64), FORMAT_NVFP4, 1);
    q.amax = &amax;
    q.dequant_div = 12;
    ops_cpu.channels_add(NULL, &q, t, mask);
    // 307.2 lies between 288 and 320 of E4M3, 17 between 16 and 18, to even 16; the tensor's scale
    // is 1/2.
    const float want[4] = {2 * 320.0f / 1024, 2 * -448, 2 * 16, 0};
    const int at[4] = {1, 33, 40, 41};
    for (int i = 0; i < 4; i++) EXPECT_NEAR(values[at[i]], want[i], 0, "%d", at[i]);
    for (int i = 0; i < 64; i++)
        if (chosen[i] == 0) EXPECT_NEAR(values[i], i, 0, "%d is not chosen", i);
    amax = 0;
    ops_cpu.channels_add(NULL, &q, t, mask);
    EXPECT_NEAR(amax, 12, 0, "a scale of 1 where there was none");
    EXPECT_NEAR(values[33], -448, 0, "divided by 1");
    ops_cpu.channels_drop(NULL, tensor_view(rest, DT_F32, 1, 64), t, mask);
    for (int i = 0; i < 64; i++) EXPECT_NEAR(rest[i], chosen[i] != 0 ? 0 : x[i], 0, "%d", i);
}

CASE(squares_of_steps_by_hand) {
    float x[2][2] = {{1, -2}, {3, 0.5f}}, current[2] = {0}, total[2] = {10, 20};
    Tensor sums = tensor_view(current, DT_F32, 1, 2), all = tensor_view(total, DT_F32, 1, 2);
    StepRange steps = {6, 7};
    for (uint32_t step = 4; step < 9; step++) {
        StepState state = {.step = step};
        ops_cpu.channel_squares(NULL, sums, tensor_view(x, DT_F32, 2, 2), steps, &state);
    }
    EXPECT(current[0] == 20 && current[1] == 8.5f, "two steps: %g %g", current[0], current[1]);
    StepState state = {.stop_votes = 0};
    ops_cpu.channels_advance(NULL, all, sums, &state);
    EXPECT(total[0] == 30 && total[1] == 28.5f && current[0] == 0, "%g %g", total[0], total[1]);
    current[1] = 5;
    state.stop_votes = 1;
    ops_cpu.channels_advance(NULL, all, sums, &state);
    EXPECT(total[1] == 28.5f && current[1] == 0, "a dropped step leaves %g", total[1]);
}

// --- a linear ---

enum { IN = 128, OUT = 128, TOKENS = 128, ID = 5 };
static const int CHOSEN[] = {0, 7, 31, 70, 71, 127};

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

static int is_chosen(int64_t c) {
    for (int i = 0; i < ARRAY_LEN(CHOSEN); i++)
        if (CHOSEN[i] == c) return 1;
    return 0;
}

static void place(Bench *b, Arena *a) {
    Engine *e = &b->engine;
    b->x = arena_tensor(a, DT_BF16, TOKENS, IN);
    b->dy = arena_tensor(a, DT_BF16, TOKENS, OUT);
    b->out = arena_tensor(a, DT_BF16, TOKENS, OUT);
    b->dx = arena_tensor(a, DT_BF16, TOKENS, IN);
    b->weight.value = arena_tensor(a, DT_BF16, OUT, IN);
    b->weight.grad = arena_tensor(a, DT_F32, OUT, IN);
    b->l.channels.chosen = arena_tensor(a, DT_F32, 1, IN);
    linear_place_amax(&b->l, a);
    linear_place_weights(e, &b->l, a);
    linear_place_saved(e, &b->l, &b->saved, a, TOKENS);
    e->row_buffer = arena_tensor(a, DT_F32, TOKENS, IN);
    e->token_buffer = arena_tensor(a, DT_F32, TOKENS, IN);
    e->rest_buffer = arena_tensor(a, DT_F32, TOKENS, IN);
    e->state = (StepState *)arena_tensor(a, DT_U8, 1, sizeof(StepState)).data;
    Tensor scratch = arena_tensor(a, DT_F32, 1024, 1024);
    if (scratch.data) device_set_scratch(b->device, scratch.data, tensor_bytes(scratch));
}

static void copy_values(Tensor to, int outliers) {
    Tensor t = random_tensor(DT_BF16, to.rows, to.cols);
    for (int64_t i = 0; i < tensor_count(t); i++)
        put(to, i, get(t, i) * (outliers && is_chosen(i % to.cols) ? 64 : 1));
}

static void bench_open(Bench *b, const LinearPlan *plan, int controls) {
    memset(b, 0, sizeof(*b));
    case_memory.draws = 0;
    b->device = device_cpu_open(1);
    b->table.params = &b->weight;
    b->table.count = 1;
    b->engine.device = b->device;
    b->engine.ops = &ops_cpu;
    b->engine.params = &b->table;
    b->engine.training = 1;
    b->l.id = ID;
    b->l.in = IN;
    b->l.out = OUT;
    b->l.bias = -1;
    b->l.plan = *plan;
    b->l.channels.wanted = controls;
    b->arena = arena_measure("test", b->device);
    place(b, &b->arena);
    arena_commit(&b->arena);
    place(b, &b->arena);
    memset(b->engine.state, 0, sizeof(StepState));
    copy_values(b->x, 1);
    copy_values(b->dy, 0);
    copy_values(b->weight.value, 0);
    memset(b->weight.grad.data, 0, tensor_bytes(b->weight.grad));
    memset(b->l.channels.chosen.data, 0, tensor_bytes(b->l.channels.chosen));
    for (int i = 0; i < ARRAY_LEN(CHOSEN); i++) put(b->l.channels.chosen, CHOSEN[i], 1);
    linear_prepare(&b->engine, &b->l);
}

static void bench_close(Bench *b) {
    arena_free(&b->arena);
    b->device->close(b->device);
    case_free();
}

/* What an MXFP8 operand of the chosen columns alone decodes to, groups of 32 as they lie. */
static Tensor in_mxfp8(Tensor x) {
    Tensor alone = new_tensor(DT_BF16, x.rows, x.cols), got = new_tensor(DT_F32, x.rows, x.cols);
    for (int64_t i = 0; i < tensor_count(x); i++)
        put(alone, i, is_chosen(i % x.cols) ? get(x, i) : 0);
    Quantizer how;
    memset(&how, 0, sizeof(how));
    how.how = formats[FORMAT_MXFP8].cell;
    QOperand q = operand_from_tensor(new_tensor(DT_F32, x.rows, x.cols), FORMAT_MXFP8, 1);
    q.dequant_div = quantize_dequant_div(&how.how);
    quantize_pair_cpu(NULL, &q, &how, NULL, NULL, alone);
    decode_cpu(NULL, got, &q);
    return got;
}

/* Chosen columns of a decoded operand of x are MXFP8's, to a rounding of the tensor's scale; the
   others have an error of their own, and none of the chosen ones'. */
static void expect_operand(const QOperand *q, Tensor x, const char *what) {
    Tensor got = new_tensor(DT_F32, q->rows, q->k), want = in_mxfp8(x);
    decode_cpu(NULL, got, q);
    double error = 0, square = 0;
    for (int64_t i = 0; i < tensor_count(x); i++) {
        if (is_chosen(i % x.cols)) {
            double w = get(want, i);
            EXPECT_NEAR(get(got, i), w, 3e-7 * fabs(w), "%s %lld", what, (long long)i);
        } else {
            error += pow(get(got, i) - get(x, i), 2);
            square += pow(get(x, i), 2);
        }
    }
    EXPECT(error > 0 && error < 0.04 * square, "%s: %.3f of the rest", what, sqrt(error / square));
}

static double error_of(Tensor got, const Bench *b) {
    double error = 0, square = 0;
    for (int64_t n = 0; n < TOKENS; n++) {
        for (int64_t o = 0; o < OUT; o++) {
            double sum = 0;
            for (int64_t c = 0; c < IN; c++)
                sum += get(b->x, n * IN + c) * get(b->weight.value, o * IN + c);
            error += pow(get(got, n * OUT + o) - sum, 2);
            square += sum * sum;
        }
    }
    return sqrt(error / square);
}

/* dw = dy^T x, of chosen features: the mean product of got and exact over that of exact alone. */
static double gain_of_chosen(const Bench *b) {
    double both = 0, exact = 0;
    for (int64_t o = 0; o < OUT; o++) {
        for (int i = 0; i < ARRAY_LEN(CHOSEN); i++) {
            double sum = 0;
            for (int64_t n = 0; n < TOKENS; n++)
                sum += get(b->dy, n * OUT + o) * get(b->x, n * IN + CHOSEN[i]);
            both += sum * get(b->weight.grad, o * IN + CHOSEN[i]);
            exact += sum * sum;
        }
    }
    return both / exact;
}

static double run_linear(Bench *b, const Recipe *recipe) {
    QOperand x = linear_input(&b->engine, &b->l, &b->saved, b->x);
    if (b->l.channels.wanted) {
        EXPECT(linear_gemm_form(&b->engine, &b->l, GEMM_FPROP) == FORM_VALUES, "%s", recipe->name);
        expect_operand(&x, b->x, recipe->name);
        expect_operand(&b->l.w[GEMM_FPROP], b->weight.value, recipe->name);
    }
    linear_forward(&b->engine, &b->l, b->out, &x);
    LinearGrad grad = linear_output_grad(&b->engine, &b->l, b->dy);
    linear_backward(&b->engine, &b->l, b->dx, &grad, &b->saved);
    double gain = gain_of_chosen(b);   // scales that clip take some of it
    EXPECT(gain > 0.8 && gain < 1.05, "%s: gain %.3f of dw of chosen features", recipe->name, gain);
    return error_of(b->out, b);
}

CASE(operands_of_every_recipe) {
    int count = 0;
    for (int i = 0; i < num_recipes; i++) {
        const Operand *x = &recipes[i].plan.cell[GEMM_FPROP][SIDE_A];
        if (!operand_is_quantized(x) || x->hadamard) continue;
        double error[2];
        for (int controls = 0; controls < 2; controls++) {
            Bench b;
            bench_open(&b, &recipes[i].plan, controls);
            error[controls] = run_linear(&b, &recipes[i]);
            bench_close(&b);
        }
        // Other recipes than those of 4 bits multiply as exactly without.
        int is_fp4 = x->elem == DT_E2M1;
        EXPECT(error[1] < (is_fp4 ? 0.6 : 1.1) * error[0], "%s: %.4f with, %.4f without",
               recipes[i].name, error[1], error[0]);
        count++;
    }
    EXPECT(count >= 10, "%d recipes", count);
}

// --- a model ---

static const char BASE[] =
    "model.layers=2 model.dim=64 model.heads=2 model.ffn=96 model.vocab=64 batch.micro=2 "
    "batch.seq_len=64 batch.total_tokens=128 precision.keep_bf16.last=0 "
    "precision.out_control.fraction=0.1 precision.out_control.from=2 precision.out_control.to=4";

typedef struct {
    Config config;
    Device *device;
    Model model;
} Run;

static void declare(Run *r, const char *settings) {
    char words[1024], *args[64], *rest = words;
    int count = 0;
    snprintf(words, sizeof(words), "%s %s", BASE, settings);
    for (char *word = strsep(&rest, " "); word; word = strsep(&rest, " ")) args[count++] = word;
    memset(r, 0, sizeof(*r));
    config_parse(&r->config, count, args);
    model_declare(&r->model, &r->config);
}

static void run_open(Run *r, const char *settings) {
    declare(r, settings);
    r->device = device_cpu_open(1);
    model_place(&r->model, &r->config, r->device, &ops_cpu, 1);
    model_init(&r->model, 1);
    model_begin_step(&r->model, 0);
    log_set_rank(1, 2);   // no lines
}

static void run_close(Run *r) {
    log_set_rank(0, 1);
    model_free(&r->model);
    r->device->close(r->device);
    config_free(&r->config);
}

static float train_step(Run *r, int step) {
    int32_t tokens[128], targets[128];
    for (int i = 0; i < 128; i++) {
        tokens[i] = (i * 5 + step) % 64;
        targets[i] = ((i + 1) * 5 + step) % 64;
    }
    *r->model.engine.state = optimizer_state(&r->config, step, 0.002f, INFINITY, INFINITY);
    model_zero_gradients(&r->model);
    model_forward_backward(&r->model, tokens, targets, 2, 64, 1.0f / 128);
    model_finish_gradients(&r->model);
    optimizer_step(&r->model, &r->config);
    model_begin_step(&r->model, step + 1);
    return r->model.engine.state->loss;
}

static double sum_of(Tensor t) {
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(t); i++) sum += get(t, i);
    return sum;
}

/* Every chosen feature's sum is at least that of every other one; of equals it is the first. */
static void expect_choice(const Linear *l) {
    const LinearChannels *c = &l->channels;
    EXPECT(sum_of(c->total) > 0, "%s was never looked at", l->name);
    EXPECT_NEAR(sum_of(c->chosen), round(0.1 * l->in), 0, "%s", l->name);
    for (int64_t i = 0; i < l->in; i++) {
        for (int64_t k = 0; k < l->in; k++) {
            if (get(c->chosen, i) == 0 || get(c->chosen, k) != 0) continue;
            double a = get(c->total, i), b = get(c->total, k);
            EXPECT(a > b || (a == b && i < k), "%s: %lld before %lld", l->name, (long long)i,
                   (long long)k);
        }
    }
}

CASE(features_are_chosen_after_the_last_step) {
    static const char *const names[] = {"nvfp4", "tetrajet2", "fp8"};
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        Run r;
        char words[64];
        snprintf(words, sizeof(words), "precision.recipe=%s", names[i]);
        run_open(&r, words);
        EXPECT_EQ_I64(r.model.num_kept >= 16, 1, "chosen and sums of 8 linears");
        float first = 0, last = 0;
        double after_one = 1;
        for (int step = 0; step < 12; step++) {
            last = train_step(&r, step);
            if (step == 0)
                first = last, after_one = sum_of(model_linear(&r.model, 0)->channels.total);
            for (int id = 0; id < model_num_linears(&r.model); id++) {
                const Linear *l = model_linear(&r.model, id);
                if (step < 3) EXPECT_NEAR(sum_of(l->channels.chosen), 0, 0, "step %d", step + 1);
                else expect_choice(l);
            }
        }
        EXPECT_NEAR(after_one, 0, 0, "step 1 is none of 2 to 4");
        EXPECT(isfinite(last) && last < first - 0.5f, "%s: %g to %g", names[i], first, last);
        run_close(&r);
    }
}

CASE(equal_features_are_chosen_in_order) {
    Run r;
    run_open(&r, "precision.recipe=nvfp4");
    StepState *state = r.model.engine.state;
    memset(state, 0, sizeof(*state));
    r.model.step = state->step = 3;
    Linear *l = model_linear(&r.model, 0);
    put(l->channels.total, 40, 2);
    put(l->channels.total, 50, NAN);
    state->stop_votes = 1;
    out_control_step(&r.model, &r.config);
    EXPECT_NEAR(sum_of(l->channels.chosen), 0, 0, "a dropped step chooses nothing");
    state->stop_votes = 0;
    out_control_step(&r.model, &r.config);
    const int want[] = {50, 40, 0, 1, 2, 3};
    for (int i = 0; i < ARRAY_LEN(want); i++)
        EXPECT_NEAR(get(l->channels.chosen, want[i]), 1, 0, "%d", want[i]);
    EXPECT_NEAR(sum_of(l->channels.chosen), 6, 0, "0.1 of 64");
    run_close(&r);
    EXPECT_EQ_I64(out_control_count(0.1f, 4), 1, "at least one");
}

static float evaluate(Model *m) {
    int32_t tokens[128], targets[128];
    for (int i = 0; i < 128; i++) tokens[i] = i * 7 % 64, targets[i] = i * 11 % 64;
    m->engine.state->loss = 0;
    model_evaluate(m, tokens, targets, 2, 64, 1.0f / 128);
    return m->engine.state->loss;
}

/* What a checkpoint holds is enough for a model without training. */
CASE(evaluation_alone_multiplies_the_same) {
    Run trained, r;
    run_open(&trained, "precision.recipe=nvfp4");
    for (int step = 0; step < 5; step++) train_step(&trained, step);
    declare(&r, "precision.recipe=nvfp4");
    r.device = device_cpu_open(1);
    model_place(&r.model, &r.config, r.device, &ops_cpu, 0);
    Tensor from = trained.model.params.master, values = trained.model.params.value;
    memcpy(r.model.params.master.data, from.data, tensor_bytes(from));
    memcpy(r.model.params.value.data, values.data, tensor_bytes(values));
    EXPECT_EQ_I64(r.model.num_kept, 8, "features of 8 linears, no sums");
    for (int i = 0; i < r.model.num_kept; i++) {
        for (int k = 0; k < trained.model.num_kept; k++) {
            const NamedTensor *want = &trained.model.kept[k];
            if (strcmp(want->name, r.model.kept[i].name) != 0) continue;
            memcpy(r.model.kept[i].tensor.data, want->tensor.data, tensor_bytes(want->tensor));
        }
    }
    model_begin_step(&r.model, 5);
    EXPECT_NEAR(evaluate(&r.model), evaluate(&trained.model), 0, "loss");
    run_close(&r);
    run_close(&trained);
}

/* Passes of backward sum nothing, whatever they work out again. */
CASE(recomputing_changes_nothing) {
    static const char *const levels[] = {"none", "activation", "norm", "block"};
    Run whole;
    run_open(&whole, "precision.recipe=tetrajet2");
    for (int step = 0; step < 6; step++) train_step(&whole, step);
    for (int i = 1; i < ARRAY_LEN(levels); i++) {
        Run r;
        char words[96];
        snprintf(words, sizeof(words), "precision.recipe=tetrajet2 memory.recompute=%s", levels[i]);
        run_open(&r, words);
        for (int step = 0; step < 6; step++) train_step(&r, step);
        EXPECT_BITS(r.model.params.master.data, whole.model.params.master.data,
                    tensor_bytes(r.model.params.master), "%s", levels[i]);
        run_close(&r);
    }
    run_close(&whole);
}

CASE(refusals) {
    Run r;
    EXPECT_DIES(EXIT_CONFIG, "Hadamard transform of 32 mixes them",
                declare(&r, "precision.recipe=quartet model.ffn=128"));
    EXPECT_DIES(EXIT_CONFIG, "set precision.backend=emulate",
                declare(&r, "precision.recipe=nvfp4 precision.backend=native"));
    EXPECT_DIES(EXIT_CONFIG, "legal: from precision.out_control.from 2 on",
                declare(&r, "precision.out_control.to=1"));
}

TEST_MAIN_END
