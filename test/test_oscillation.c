/*
test_oscillation -- OsciReset: operands as the numbers that they stand for, in every form and
recipe; sums and resets by hand; windows over the steps of a model whose weights are led by hand,
one of them to and fro between two codes; and what is refused.
*/
#include "oscillation.h"

#include "config.h"
#include "ops_double.h"

// --- decode ---

/* 32 rows of 64 values of either sign. */
static Tensor material(void) {
    Tensor x = random_tensor(DT_BF16, 32, 64);
    for (int64_t i = 0; i < tensor_count(x); i++) put(x, i, get(x, i) * (i % 64 == 7 ? 40 : 1));
    return x;
}

static QOperand make(Tensor x, FormatId format, OperandForm form, float *amax, int token) {
    Quantizer how;
    memset(&how, 0, sizeof(how));
    how.how = formats[format].cell;
    how.token_operand = token;
    QOperand q;
    memset(&q, 0, sizeof(q));
    q.form = form;
    q.format = format;
    q.dtype = operand_values_dtype(&how.how);
    q.rows = token ? x.cols : x.rows;
    q.k = token ? x.rows : x.cols;
    q.k_contiguous = form == FORM_PACKED || !token;
    q.data = case_alloc((size_t)tensor_count(x) * sizeof(float));
    if (form == FORM_PACKED && format_has_blocks(format))
        q.scales = (uint8_t *)case_alloc(quantize_scales_bytes(q.rows, q.k));
    q.amax = how.how.amax == AMAX_NONE ? NULL : amax;
    q.dequant_div = quantize_dequant_div(&how.how);
    QOperand *row = token ? NULL : &q, *column = token ? &q : NULL;
    if (q.amax) amax_pair_cpu(NULL, row, &how, column, &how, x);
    quantize_pair_cpu(NULL, row, &how, column, &how, x);
    return q;
}

/* Largest elements are 2^k of them apart at most, so half a step bounds what rounding leaves. */
static void expect_near_source(Tensor got, Tensor x, int token, double relative, const char *what) {
    double square = 0, error = 0;
    for (int64_t r = 0; r < got.rows; r++) {
        for (int64_t k = 0; k < got.cols; k++) {
            double v = get(x, token ? k * x.cols + r : r * x.cols + k);
            square += v * v;
            error += pow(get(got, r * got.cols + k) - v, 2);
        }
    }
    EXPECT(error > 0 && error < relative * relative * square, "%s: %.3f of the tensor", what,
           sqrt(error / square));
}

CASE(codes_and_values_decode_to_the_same) {
    static const FormatId packed[] = {FORMAT_NVFP4, FORMAT_E4M3, FORMAT_E5M2};
    for (int i = 0; i < ARRAY_LEN(packed) * 2; i++) {
        int token = i % 2;
        float amax[2];
        Tensor x = material();
        QOperand codes = make(x, packed[i / 2], FORM_PACKED, &amax[0], token);
        QOperand values = make(x, packed[i / 2], FORM_VALUES, &amax[1], token);
        Tensor a = new_tensor(DT_F32, codes.rows, codes.k), b = new_tensor(DT_F32, a.rows, a.cols);
        decode_cpu(NULL, a, &codes);
        decode_cpu(NULL, b, &values);
        EXPECT_BITS(a.data, b.data, tensor_bytes(a), "%s", formats[packed[i / 2]].name);
        expect_near_source(a, x, token, 0.2, formats[packed[i / 2]].name);
        case_free();
    }
}

CASE(every_format_decodes_to_about_the_tensor) {
    for (int f = FORMAT_NVFP4; f < NUM_FORMATS; f++) {
        if ((FormatId)f == FORMAT_E4M3_BLOCK) continue;   // blocks of 128
        float amax;
        Tensor x = material(), got = new_tensor(DT_F32, 32, 64);
        QOperand q = make(x, (FormatId)f, FORM_VALUES, &amax, 0);
        decode_cpu(NULL, got, &q);
        expect_near_source(got, x, 0, 0.25, formats[f].name);
        case_free();
    }
}

CASE(a_tensor_decodes_to_itself) {
    Tensor x = material(), got = new_tensor(DT_F32, 64, 32);
    QOperand q = operand_from_tensor(x, FORMAT_BF16, 0);
    decode_cpu(NULL, got, &q);
    for (int64_t i = 0; i < tensor_count(x); i++)
        EXPECT_NEAR(get(got, i % 64 * 32 + i / 64), get(x, i), 0, "%lld", (long long)i);
    q.slices = 2;
    EXPECT_ABORTS("2 slices", decode_cpu(NULL, got, &q));
    case_free();
}

// --- the op ---

CASE(sums_and_resets_by_hand) {
    float kept[4][4] = {{0}}, w[4] = {1, 2, 3, -1}, q[4] = {1, 2, 4, -1};
    bf16_t value[4] = {0};
    Oscillation o;
    Tensor *tensors[] = {&o.last_w, &o.last_q, &o.moved_w, &o.moved_q};
    for (int i = 0; i < 4; i++) *tensors[i] = tensor_view(kept[i], DT_F32, 1, 4);
    Tensor weights = tensor_view(w, DT_F32, 1, 4), values = tensor_view(value, DT_BF16, 1, 4);
    Tensor decoded = tensor_view(q, DT_F32, 1, 4);
    memcpy(kept[0], w, sizeof(w));
    memcpy(kept[1], q, sizeof(q));
    const float steps[2][2][4] = {{{1.25f, 2, 3.5f, NAN}, {2, 2, 4, NAN}},
                                  {{1.125f, 2, 4, -1}, {1, 3, 4, -1}}};
    for (int i = 0; i < 2; i++) {
        memcpy(w, steps[i][0], sizeof(w));
        memcpy(q, steps[i][1], sizeof(q));
        ops_cpu.oscillation_accumulate(NULL, o, weights, decoded);
    }
    const float moved_w[3] = {0.375f, 0, 1}, moved_q[3] = {2, 1, 0};
    EXPECT_BITS(kept[2], moved_w, sizeof(moved_w), "moved_w");
    EXPECT_BITS(kept[3], moved_q, sizeof(moved_q), "moved_q");
    EXPECT_BITS(kept[0], w, sizeof(w), "last_w");
    EXPECT_BITS(kept[1], q, sizeof(q), "last_q");
    int64_t count = -1;
    StepState state = {.stop_votes = 1};
    ops_cpu.oscillation_reset(NULL, o, weights, values, 5.0f, &count, &state);
    EXPECT(count == 0 && w[0] == 1.125f, "a dropped step: %lld reset", (long long)count);
    state.stop_votes = 0;
    ops_cpu.oscillation_reset(NULL, o, weights, values, 5.5f, &count, &state);
    EXPECT_EQ_I64(count, 1, "2 / 0.375 is below 5.5; 1 / 0 is not");
    EXPECT(w[0] == 1.125f && w[1] == 3 && w[2] == 4 && w[3] == -1, "%g %g %g %g", w[0], w[1], w[2],
           w[3]);
    ops_cpu.oscillation_reset(NULL, o, weights, values, 5.0f, &count, &state);
    EXPECT_EQ_I64(count, 2, "and above 5");
    EXPECT(w[0] == 1 && bf16_to_f32(value[0]) == 1 && bf16_to_f32(value[1]) == 3 && value[2] == 0,
           "%g", w[0]);
}

// --- a model ---

static const char BASE[] =
    "model.layers=1 model.dim=128 model.heads=2 model.ffn=128 model.vocab=64 batch.micro=2 "
    "batch.seq_len=64 batch.total_tokens=128 precision.keep_bf16.last=0 "
    "precision.osci_reset.start=3 "
    "precision.osci_reset.period=6 precision.osci_reset.window=4";

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
    log_set_rank(1, 2);   // no lines
}

static void run_close(Run *r) {
    log_set_rank(0, 1);
    model_free(&r->model);
    r->device->close(r->device);
    config_free(&r->config);
}

static const Param *led_weight(Run *r) {
    return &r->model.params.params[model_linear(&r->model, 2)->weight];
}

static void lead(Run *r, int i, float w) {
    ((float *)led_weight(r)->master.data)[i] = w;
    ((bf16_t *)led_weight(r)->value.data)[i] = bf16_from_f32(w);
}

static float led(Run *r, int i) { return ((float *)led_weight(r)->master.data)[i]; }

/* One weight goes to and fro about 2.5, between the codes 2 and 3, one goes up by a quarter each
   step; a block scale of 1, for the tile has a 6. In four movements: 4 x 0.5 against 4 x 1, and 4 x
   0.25 against 0, 0.5, 0.5, 0. */
static void lead_to(Run *r, const char *threshold, float *swinging, float *steady) {
    char words[160];
    snprintf(words, sizeof(words), "precision.recipe=mxfp4 precision.osci_reset.threshold=%s",
             threshold);
    run_open(r, words);
    memset(led_weight(r)->master.data, 0, tensor_bytes(led_weight(r)->master));
    memset(led_weight(r)->value.data, 0, tensor_bytes(led_weight(r)->value));
    lead(r, 5, 6.0f);
    for (int step = 0; step <= 7; step++) {
        lead(r, 0, step % 2 ? 2.25f : 2.75f);
        lead(r, 1, 0.25f * (float)step);
        model_begin_step(&r->model, step);
        oscillation_step(&r->model, &r->config);
        if (step == 7) continue;
        EXPECT_NEAR(led(r, 0), step % 2 ? 2.25 : 2.75, 0, "step %d", step);
    }
    *swinging = led(r, 0);
    *steady = led(r, 1);
}

CASE(only_what_swings_is_reset) {
    Run r;
    float swinging, steady;
    lead_to(&r, "2", &swinging, &steady);
    const Oscillation *o = &r.model.oscillations[2];
    EXPECT_NEAR(get(o->moved_w, 0), 2.0, 0, "moved_w of the swinging one");
    EXPECT_NEAR(get(o->moved_q, 0), 4.0, 0, "moved_q");
    EXPECT_NEAR(get(o->moved_w, 1), 1.0, 0, "moved_w of the steady one");
    EXPECT_NEAR(get(o->moved_q, 1), 1.0, 0, "moved_q");
    EXPECT_NEAR(swinging, 2.0, 0, "reset to its code");
    EXPECT_NEAR(bf16_to_f32(((bf16_t *)led_weight(&r)->value.data)[0]), 2.0, 0, "in bf16, too");
    EXPECT_NEAR(steady, 1.75, 0, "left alone");
    EXPECT_NEAR(led(&r, 5), 6.0, 0, "at rest");
    run_close(&r);
    lead_to(&r, "2.1", &swinging, &steady);
    EXPECT_NEAR(swinging, 2.25, 0, "a ratio of 2 is below 2.1");
    run_close(&r);
}

/* The master that a reset leaves is what the product had, whatever the recipe does to it. */
CASE(decoded_weights_of_every_recipe) {
    for (int i = 0; i < num_recipes; i++) {
        if (!recipe_is_quantized(&recipes[i])) continue;
        Run r;
        char words[96];
        snprintf(words, sizeof(words), "precision.recipe=%s", recipes[i].name);
        run_open(&r, words);
        model_begin_step(&r.model, 0);
        for (int id = 0; id < model_num_linears(&r.model); id++) {
            const Linear *l = model_linear(&r.model, id);
            Tensor got = new_tensor(DT_F32, l->out, l->in);
            linear_decode_weight(&r.model.engine, l, got);
            expect_near_source(got, r.model.params.params[l->weight].value, 0, 0.2,
                               recipes[i].name);
        }
        run_close(&r);
        case_free();
    }
}

CASE(what_is_watched_is_planned) {
    Run r;
    run_open(&r,
             "precision.recipe=nvfp4 precision.rules=[{\"layers\":\"*.qkv\",\"recipe\":\"bf16\"}]");
    EXPECT_EQ_I64(oscillation_weights(&r.model), 3 * 128 * 128, "proj, up and down");
    EXPECT_EQ_I64(r.model.num_kept, 12);
    size_t with = r.model.arenas[ARENA_OPTIMIZER].size;
    run_close(&r);
    run_open(&r, "precision.recipe=nvfp4 precision.osci_reset.start=0");
    EXPECT_EQ_I64(oscillation_weights(&r.model), 0);
    EXPECT_EQ_I64(with - r.model.arenas[ARENA_OPTIMIZER].size, 3 * 128 * 128 * OSCILLATION_BYTES);
    run_close(&r);
}

CASE(refusals) {
    Run r;
    EXPECT_DIES(EXIT_CONFIG, "less than precision.osci_reset.period 6",
                declare(&r, "precision.osci_reset.window=6"));
    EXPECT_DIES(EXIT_CONFIG, "drawn anew in each step",
                declare(&r, "precision.recipe=fp4_all_the_way "
                            "precision.fprop.w.rounding=stochastic"));
}

TEST_MAIN_END
