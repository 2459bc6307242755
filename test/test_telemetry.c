/*
test_telemetry -- what telemetry says of products and operands, and that it leaves no trace: sums
against literals; honest runs have a gain near 1 and a mis-blocked scale does not; counts are those
of the operands that ran; noise of a known size has its ratio (dev/NUMERICS.md 10, invariant 30); a
training with and without it ends in the same bits.
*/
#include "../llmc/common.h"
#include "../llmc/config.h"
#include "../llmc/optimizer.h"
#include "../llmc/plain.h"
#include "../llmc/telemetry_parts.h"
#include "quantize_setup.h"
#include "test.h"

enum { B = 4, T = 64, VOCAB = 97, LINEARS = 8 };

typedef struct {
    Config config;
    Model model;
    Device *device;
    Telemetry *telemetry;
    Metrics *metrics;
    int32_t tokens[B * T], targets[B * T];
} Run;

/* A model of two layers; `fp4` of quantised products, `ops` the CPU's or a variant. */
static void run_open(Run *r, const char *words, Fp4Gemm fp4, const Ops *ops) {
    char text[1024];
    char *args[32];
    int count = 0;
    snprintf(text, sizeof(text),
             "model.layers=2 model.dim=128 model.heads=2 model.vocab=%d batch.micro=%d "
             "batch.seq_len=%d train.steps=10 precision.keep_bf16.last=0 log.telemetry_every=1 %s",
             VOCAB, B, T, words);
    for (char *rest, *w = strtok_r(text, " ", &rest); w; w = strtok_r(NULL, " ", &rest))
        args[count++] = w;
    memset(r, 0, sizeof(*r));
    config_parse(&r->config, count, args);
    r->device = device_cpu_open(0);
    model_declare(&r->model, &r->config);
    r->model.engine.fp4 = fp4;
    r->telemetry = telemetry_open(&r->config, &r->model);
    model_place(&r->model, &r->config, r->device, ops, 1);
    telemetry_place(r->telemetry, &r->model);
    model_init(&r->model, 5);
    model_begin_step(&r->model, 0);
    for (int i = 0; i < B * T; i++) {
        r->tokens[i] = (i * 31 + i / 7 * 5) % VOCAB;
        r->targets[i] = ((i + 1) * 31 + (i + 1) / 7 * 5) % VOCAB;
    }
    MetricsOptions options = {.dir = "", .reference = "", .print_every = 1, .total_steps = 10};
    r->metrics = metrics_open(&options);
}

static void run_close(Run *r) {
    metrics_close(r->metrics, 0, "done");
    telemetry_close(r->telemetry);
    model_free(&r->model);
    r->device->close(r->device);
    config_free(&r->config);
}

static double look(Run *r, int64_t step) {
    TelemetryBatch batch = {r->tokens, r->targets, B, T, 1.0f / (B * T), step};
    return telemetry_run(r->telemetry, &r->model, &batch, r->metrics);
}

static const ProductStats *product_of(const Run *r, int linear, int g) {
    return &r->telemetry->linears[linear].report[g].product;
}

// --- sums and text ---

CASE(stats_of_products) {
    float shadow[] = {1, -2, 2, 0}, twice[] = {2, -4, 99, 4, 0, 99}, other[] = {1, -2, 2, 3};
    float bias[] = {10, -10}, with_bias[] = {11, -12, 12, -10}, twice_with[] = {12, -14, 14, -10};
    Tensor s = tensor_view(shadow, DT_F32, 2, 2), none = {0};
    ProductStats p = product_stats(tensor_view(twice, DT_F32, 2, 3), s, none);
    EXPECT_NEAR(p.gain, 2, 0);   // of its first two columns
    EXPECT_NEAR(p.cosine, 1, 1e-15);
    EXPECT_NEAR(p.sqnr_db, 0, 1e-12);
    p = product_stats(tensor_view(other, DT_F32, 2, 2), s, none);
    EXPECT_NEAR(p.gain, 1, 0);
    EXPECT_NEAR(p.cosine, 3 / sqrt(18), 1e-15);
    EXPECT_NEAR(p.sqnr_db, 0, 1e-12);   // 9 to 9
    p = product_stats(s, s, none);
    EXPECT(isinf(p.sqnr_db) && p.gain == 1);
    p = product_stats(tensor_view(twice_with, DT_F32, 2, 2), tensor_view(with_bias, DT_F32, 2, 2),
                      tensor_view(bias, DT_F32, 1, 2));
    EXPECT_NEAR(p.gain, 2, 0, "of what is left without the bias");
}

CASE(text_of_a_report) {
    GemmReport r;
    memset(&r, 0, sizeof(r));
    r.product = (ProductStats){0.9990234375, 0.96875, INFINITY};
    QuantizeCounts counts = {1000, 7, 10, 125, 50, 1};
    r.operand[SIDE_A] = (OperandStats){1, counts, 448};
    char text[REPORT_BYTES];
    const char *want =
        "\"telemetry\":\"blocks.3.attn.qkv\",\"gemm\":\"wgrad\",\"gain\":0.999023,"
        "\"cosine\":0.96875,\"sqnr_db\":null,\"dy\":{\"saturated\":0.01,\"underflowed\":0.125,"
        "\"zero_scales\":0.02,\"amax\":448},\"nonfinite\":true";
    const char *got = report_members(&r, "blocks.3.attn.qkv", GEMM_WGRAD, text);
    EXPECT(strcmp(got, want) == 0, "got\n%s\nwant\n%s", got, want);
    r.product.sqnr_db = 12.5;
    report_members(&r, "blocks.3.attn.qkv", GEMM_WGRAD, text);
    EXPECT(strstr(text, "\"sqnr_db\":12.5,") && !strstr(text, "nonfinite"), "%s", text);
}

// --- which linears ---

CASE(linears_are_spread_or_named) {
    Run r;
    run_open(&r, "model.layers=6", FP4_EMULATED, &ops_cpu);
    EXPECT_EQ_I64(r.telemetry->num_linears, 8);
    EXPECT_EQ_I64(r.telemetry->linears[0].id, 0);
    EXPECT_EQ_I64(r.telemetry->linears[7].id, 23);
    for (int i = 1; i < 8; i++)
        EXPECT(r.telemetry->linears[i].id > r.telemetry->linears[i - 1].id, "linear %d", i);
    run_close(&r);
    run_open(&r, "log.telemetry_layers=blocks.1.*", FP4_EMULATED, &ops_cpu);
    EXPECT_EQ_I64(r.telemetry->num_linears, 4);
    EXPECT_EQ_I64(r.telemetry->linears[0].id, 4);
    run_close(&r);
    EXPECT_DIES(EXIT_CONFIG, "log.telemetry_layers: \"blocks.9.*\" is no linear",
                run_open(&r, "log.telemetry_layers=blocks.9.*", FP4_EMULATED, &ops_cpu));
    EXPECT_DIES(EXIT_CONFIG, "log.telemetry_layers: \"blocks.2-1.*\"",
                run_open(&r, "log.telemetry_layers=blocks.2-1.*", FP4_EMULATED, &ops_cpu));
    EXPECT_DIES(
        EXIT_CONFIG, "log.gradient_noise is set, but log.telemetry_every is 0",
        run_open(&r, "log.telemetry_every=0 log.gradient_noise=true", FP4_EMULATED, &ops_cpu));
}

// --- gains ---

CASE(bf16_is_its_own_shadow) {
    Run r;
    run_open(&r, "precision.recipe=bf16 log.gradient_noise=true", FP4_EMULATED, &ops_cpu);
    EXPECT(isinf(look(&r, 0)), "gradient SNR");
    for (int i = 0; i < LINEARS * NUM_GEMMS; i++) {
        const ProductStats *p = product_of(&r, i / NUM_GEMMS, i % NUM_GEMMS);
        EXPECT_NEAR(p->gain, 1, 1e-7, "linear %d, GEMM %d", i / NUM_GEMMS, i % NUM_GEMMS);
        EXPECT(p->sqnr_db > 120, "linear %d, GEMM %d: %g dB", i / NUM_GEMMS, i % NUM_GEMMS,
               p->sqnr_db);
    }
    for (int i = 0; i < r.telemetry->noise.count; i++)
        EXPECT(isinf(r.telemetry->noise.ratio[i]), "linear %d", i);
    run_close(&r);
}

/* Emulated and packed: the same numbers. */
CASE(honest_nvfp4_has_a_gain_near_1) {
    for (int fp4 = FP4_EMULATED; fp4 <= FP4_LIBRARY; fp4++) {
        Run r;
        run_open(&r, "precision.recipe=nvfp4", (Fp4Gemm)fp4, &ops_cpu);
        look(&r, 0);
        for (int i = 0; i < LINEARS * NUM_GEMMS; i++) {
            const ProductStats *p = product_of(&r, i / NUM_GEMMS, i % NUM_GEMMS);
            EXPECT_NEAR(p->gain, 1, 0.02, "linear %d, GEMM %d", i / NUM_GEMMS, i % NUM_GEMMS);
            EXPECT(p->sqnr_db > 10 && p->sqnr_db < 20, "linear %d, GEMM %d: %g dB", i / NUM_GEMMS,
                   i % NUM_GEMMS, p->sqnr_db);
        }
        run_close(&r);
    }
}

/* The fault: fprop's x has each block's scale one block too early. */
static void shift_scales(QOperand *q) {
    int64_t blocks = q->k / 16, padded = round_up(blocks, 4);
    for (int64_t row = 0; row < q->rows; row++) {
        uint8_t first = q->scales[quantize_scale_offset(row, 0, padded)];
        for (int64_t b = 0; b < blocks; b++) {
            uint8_t *scale = &q->scales[quantize_scale_offset(row, b, padded)];
            *scale = b + 1 < blocks ? q->scales[quantize_scale_offset(row, b + 1, padded)] : first;
        }
    }
}

static void misblocked_pair(Device *d, QOperand *row, const Quantizer *row_how, QOperand *token,
                            const Quantizer *token_how, Tensor x) {
    ops_cpu.quantize_pair(d, row, row_how, token, token_how, x);
    int is_fprop_x = row && row_how->rows_are_tokens && (row_how->tag >> 4 & 15) == GEMM_FPROP;
    if (is_fprop_x) shift_scales(row);
}

/* Inputs whose blocks differ in size: columns of norms' outputs, 16 by 16. */
static void spread_norms(Run *r) {
    for (int i = 0; i < r->model.params.count; i++) {
        const Param *p = &r->model.params.params[i];
        if (!strstr(p->name, "_norm.weight")) continue;
        float values[128];
        for (int c = 0; c < 128; c++) values[c] = c / 16 % 2 ? 0.5f : 2.0f;
        param_table_upload(&r->model.params, r->device, p, values);
    }
}

CASE(a_misblocked_scale_shows_in_the_gain) {
    Ops faulty = ops_cpu;
    faulty.quantize_pair = misblocked_pair;
    const char *words = "precision.recipe=nvfp4 log.telemetry_layers=blocks.*.mlp.up";
    for (int is_faulty = 0; is_faulty < 2; is_faulty++) {
        Run r;
        run_open(&r, words, FP4_LIBRARY, is_faulty ? &faulty : &ops_cpu);
        spread_norms(&r);
        look(&r, 0);
        for (int linear = 0; linear < 2; linear++) {
            double gain = product_of(&r, linear, GEMM_FPROP)->gain;
            EXPECT(is_faulty ? gain < 0.6 : fabs(gain - 1) < 0.02, "faulty %d, linear %d: gain %g",
                   is_faulty, linear, gain);
            EXPECT_NEAR(product_of(&r, linear, GEMM_WGRAD)->gain, 1, 0.02, "wgrad %d", linear);
        }
        run_close(&r);
    }
}

// --- operands ---

typedef struct {
    Run *run;
    LinearObserver inner;   // telemetry's
    int64_t zeros[LINEARS][NUM_GEMMS][NUM_SIDES];
} ZeroCounter;

/* Of the first 256 rows of the tensor, in whose layout values are. */
static int64_t zeros_of(const QOperand *q) {
    int64_t rows = q->k_contiguous ? q->rows : q->k, cols = q->k_contiguous ? q->k : q->rows;
    int64_t zeros = 0, count = min_i64(rows, TELEMETRY_ROWS) * cols;
    for (int64_t i = 0; i < count; i++)
        zeros += (q->dtype == DT_F32 ? ((const float *)q->data)[i]
                                     : bf16_to_f32(((const bf16_t *)q->data)[i])) == 0.0f;
    return zeros;
}

static void zeros_input(void *self, const Linear *l, GemmKind g, Tensor x) {
    const LinearObserver *inner = &((ZeroCounter *)self)->inner;
    inner->input(inner->self, l, g, x);
}

static void zeros_product(void *self, const Linear *l, GemmKind g, Tensor d, const QOperand *a,
                          const QOperand *b) {
    ZeroCounter *z = (ZeroCounter *)self;
    z->zeros[l->id][g][SIDE_A] = zeros_of(a);
    z->zeros[l->id][g][SIDE_B] = zeros_of(b);
    z->inner.product(z->inner.self, l, g, d, a, b);
}

/* The zeros of an operand are what was lost and what was 0 before: draws, transforms, maxima and
   sources of the counts are those of the operands that ran. */
CASE(counts_are_of_the_operands_that_ran) {
    const char *const names[] = {"nvfp4", "mxfp4", "quartet2", "tetrajet2", "fp8", "fp8_delayed"};
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        Run r;
        char words[64];
        snprintf(words, sizeof(words), "precision.recipe=%s", names[i]);
        run_open(&r, words, FP4_EMULATED, &ops_cpu);
        ZeroCounter z = {.run = &r, .inner = r.telemetry->observer};
        r.telemetry->observer = (LinearObserver){&z, zeros_input, zeros_product};
        look(&r, 0);
        for (int at = 0; at < LINEARS * NUM_GEMMS * NUM_SIDES; at++) {
            int linear = at / 6, g = at / 2 % 3, s = at % 2;
            const OperandStats *stats = &r.telemetry->linears[linear].report[g].operand[s];
            EXPECT(stats->is_quantized && stats->amax > 0, "%s", names[i]);
            EXPECT_EQ_I64(stats->counts.zeros + stats->counts.underflowed, z.zeros[linear][g][s],
                          "%s: linear %d, %s.%s", names[i], linear, gemm_names[g],
                          operand_names[g][s]);
        }
        run_close(&r);
    }
}

// --- the gradient's noise ---

CASE(noise_of_a_known_size_has_its_ratio) {
    const double sigma = 3e-4;
    Run r;
    run_open(&r, "precision.recipe=nvfp4 log.gradient_noise=true", FP4_EMULATED, &ops_cpu);
    double honest = look(&r, 0);
    EXPECT(honest > 1 && honest < 20, "of nvfp4: %g", honest);
    GradientNoise *n = &r.telemetry->noise;   // the model holds g_hp now
    gradient_noise_keep(n, &r.model);
    EXPECT(isinf(gradient_noise_measure(n, &r.model)), "without noise");
    float *kept = (float *)n->kept.data;
    double signal2 = 0;
    for (int64_t i = 0; i < n->kept.cols; i++) {
        signal2 += (double)kept[i] * kept[i];
        kept[i] += (float)(sigma * setup_normal((uint64_t)i, 9));
    }
    EXPECT_EQ_I64(n->kept.cols, 2 * 12 * 128 * 128);
    double want = sqrt(signal2 / (double)n->kept.cols) / sigma;
    EXPECT_NEAR(gradient_noise_measure(n, &r.model) / want, 1, 0.01, "r of all");
    for (int i = 0; i < n->count; i++) {
        const Linear *l = model_linear(&r.model, n->ids[i]);
        const Param *p = &r.model.params.params[l->weight];
        double squares = 0, d = (double)tensor_count(p->grad);
        for (int64_t j = 0; j < tensor_count(p->grad); j++)
            squares += pow(((const float *)p->grad.data)[j], 2);
        EXPECT_NEAR(n->ratio[i] / (sqrt(squares / d) / sigma), 1, 0.02, "%s", l->name);
    }
    run_close(&r);
}

// --- no trace ---

/* Steps of training, each with a look at other tokens before it or without. */
static void train(Run *r, int looks, const char *words) {
    run_open(r, words, FP4_EMULATED, &ops_cpu);
    for (int step = 0; step < 4; step++) {
        TelemetryBatch other = {r->targets, r->tokens, B, T, 64.0f / (B * T), step};
        if (looks) telemetry_run(r->telemetry, &r->model, &other, r->metrics);
        *r->model.engine.state = optimizer_state(&r->config, step, 1e-3f, INFINITY, INFINITY);
        model_zero_gradients(&r->model);
        model_forward_backward(&r->model, r->tokens, r->targets, B, T, 1.0f / (B * T));
        model_finish_gradients(&r->model);
        optimizer_step(&r->model, &r->config);
        model_begin_step(&r->model, step + 1);
    }
}

CASE(looking_leaves_no_trace) {
    const char *const recipes_looked_at[] = {"nvfp4", "fp8_delayed", "ue5m3", "quartet", "bf16"};
    const char *const levels[] = {"none", "activation", "norm", "block", "none"};
    for (int i = 0; i < ARRAY_LEN(recipes_looked_at); i++) {
        Run seen, unseen;
        char words[128];
        snprintf(words, sizeof(words),
                 "precision.recipe=%s memory.recompute=%s log.gradient_noise=true",
                 recipes_looked_at[i], levels[i]);
        train(&seen, 1, words);
        train(&unseen, 0, words);
        const ParamTable *a = &seen.model.params, *b = &unseen.model.params;
        EXPECT_BITS(a->master.data, b->master.data, tensor_bytes(a->master), "%s", words);
        EXPECT_BITS(a->value.data, b->value.data, tensor_bytes(a->value), "%s", words);
        EXPECT_BITS(a->v.data, b->v.data, tensor_bytes(a->v), "%s", words);
        EXPECT_EQ_I64(seen.model.engine.quantized_gemms, unseen.model.engine.quantized_gemms);
        EXPECT_EQ_I64(seen.model.num_kept, unseen.model.num_kept);
        for (int k = 0; k < seen.model.num_kept; k++)
            EXPECT_BITS(seen.model.kept[k].tensor.data, unseen.model.kept[k].tensor.data,
                        tensor_bytes(seen.model.kept[k].tensor), "%s: %s", words,
                        seen.model.kept[k].name);
        run_close(&seen);
        run_close(&unseen);
    }
}

// --- plain periods ---

static float evaluated(Run *r) {
    r->model.engine.state->loss = 0;
    model_evaluate(&r->model, r->tokens, r->targets, B, T, 1.0f / (B * T));
    return r->model.engine.state->loss;
}

/* A quantised model whose forward pass is plain for a while is a BF16 model with its weights. */
CASE(plain_for_a_while_is_bf16) {
    Run bf16, other;
    run_open(&bf16, "precision.recipe=bf16", FP4_EMULATED, &ops_cpu);
    run_open(&other, "precision.recipe=quartet2", FP4_EMULATED, &ops_cpu);
    float before = evaluated(&other), want = evaluated(&bf16);
    EXPECT(before != want, "quartet2 and bf16 are both %g", before);
    PlainPeriod period = plain_begin(&other.model, 1u << GEMM_FPROP);
    float during = evaluated(&other);
    plain_end(&other.model, &period);
    EXPECT_BITS(&during, &want, sizeof(want), "the BF16 loss");
    float after = evaluated(&other);
    EXPECT_BITS(&after, &before, sizeof(before), "the loss before and after");
    run_close(&bf16);
    run_close(&other);
}

/* All GEMMs plain: the gradient of a BF16 model, whatever forward kept of the inputs. */
CASE(plain_backward_is_bf16s) {
    Run bf16, other;
    run_open(&bf16, "precision.recipe=bf16", FP4_EMULATED, &ops_cpu);
    run_open(&other, "precision.recipe=nvfp4", FP4_EMULATED, &ops_cpu);
    Run *runs[2] = {&bf16, &other};
    PlainPeriod period = plain_begin(&other.model, 7);
    for (int i = 0; i < 2; i++) {
        model_zero_gradients(&runs[i]->model);
        model_pass(&runs[i]->model, runs[i]->tokens, runs[i]->targets, B, T, 1.0f / (B * T));
        model_finish_gradients(&runs[i]->model);
    }
    plain_end(&other.model, &period);
    EXPECT_BITS(other.model.params.grad.data, bf16.model.params.grad.data,
                tensor_bytes(bf16.model.params.grad), "gradients");
    run_close(&bf16);
    run_close(&other);
}

/* Operands of fprop whose dtype or form is what a backward GEMM wants of them stay so while that
   GEMM is plain: the loss is the recipe's own. */
CASE(plain_backward_leaves_forward_alone) {
    static const struct {
        const char *words;
        Fp4Gemm fp4;
    } rows[] = {
        {"precision.recipe=fp8 precision.rules=[{\"operand\":\"dy\",\"recipe\":"
         "\"fp4_all_the_way_encode\"}]",
         FP4_EMULATED},
        {"precision.recipe=nvfp4 precision.keep_bf16.last=0 precision.dgrad.dy.format=int4 "
         "precision.dgrad.dy.rounding=nearest",
         FP4_EMULATED},
        {"precision.recipe=quartet2", FP4_LIBRARY},
        {"precision.recipe=fp4_all_the_way precision.wgrad.x.source=values "
         "precision.wgrad.x.rounding=nearest",
         FP4_LIBRARY},
    };
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        Run r;
        char words[256];
        snprintf(words, sizeof(words), "%s log.gradient_noise=true", rows[i].words);
        run_open(&r, words, rows[i].fp4, &ops_cpu);
        double ratio = look(&r, 0);
        EXPECT(ratio > 0 && isfinite(ratio), "%s: %g", words, ratio);
        float loss[2];
        for (int plain = 0; plain < 2; plain++) {
            PlainPeriod period =
                plain_begin(&r.model, plain ? 1u << GEMM_DGRAD | 1u << GEMM_WGRAD : 0);
            r.model.engine.state->loss = 0;
            model_zero_gradients(&r.model);
            model_pass(&r.model, r.tokens, r.targets, B, T, 1.0f / (B * T));
            loss[plain] = r.model.engine.state->loss;
            plain_end(&r.model, &period);
        }
        EXPECT_BITS(&loss[1], &loss[0], sizeof(float), "%s", words);
        run_close(&r);
    }
}

TEST_MAIN_END
