/*
selftest_faults -- faults planted in a table of ops, for the tests of the self-test on both devices:
each wraps one op of the device's own table and does its wrong with what lies in the device's
memory. Also the small model that is tested.
*/
#ifndef TEST_SELFTEST_FAULTS_H
#define TEST_SELFTEST_FAULTS_H

#include <stdlib.h>
#include <string.h>

#include "../llmc/common.h"
#include "../llmc/config.h"
#include "../llmc/selftest.h"
#include "test.h"

static const Ops *sound;   // the table that is wrapped

// --- quantisers ---

/* The scales of rows 1 and 2 of a packed operand change places: 4 bytes of each tile. */
static inline void swap_scale_rows(Device *d, const QOperand *q) {
    if (!q || q->form != FORM_PACKED) return;
    size_t bytes = quantize_scales_bytes(q->rows, q->k);
    uint8_t *scales = (uint8_t *)xmalloc(bytes);
    d->download(d, scales, q->scales, bytes);
    int64_t tiles = ceil_div(q->k, 64);
    for (int64_t tile = 0; tile < tiles; tile++) {
        uint8_t *row1 = scales + tile * 512 + 16, *row2 = scales + tile * 512 + 32, swap[4];
        memcpy(swap, row1, 4);
        memcpy(row1, row2, 4);
        memcpy(row2, swap, 4);
    }
    d->upload(d, q->scales, scales, bytes);
    free(scales);
}

static inline void quantize_swapping_scales(Device *d, QOperand *row, const Quantizer *row_how,
                                            QOperand *token, const Quantizer *token_how, Tensor x) {
    sound->quantize_pair(d, row, row_how, token, token_how, x);
    swap_scale_rows(d, row);
    swap_scale_rows(d, token);
}

/* What stochastic rounding does when its draws are zero: it cuts toward zero. So does, but for a
   few values, the smallest magnitude of several draws. */
static inline void keep_smallest(const QOperand *q, void *smallest, const void *drawn,
                                 size_t bytes) {
    if (q->form == FORM_VALUES) {
        bf16_t *kept = (bf16_t *)smallest;
        const bf16_t *other = (const bf16_t *)drawn;
        for (size_t i = 0; i < bytes / sizeof(bf16_t); i++)
            if ((other[i] & 0x7FFF) < (kept[i] & 0x7FFF)) kept[i] = other[i];
        return;
    }
    uint8_t *kept = (uint8_t *)smallest;
    const uint8_t *other = (const uint8_t *)drawn;
    for (size_t i = 0; i < bytes; i++)
        for (int mask = 0x0F; mask <= 0xF0; mask += 0xE1)
            if ((other[i] & mask & 0x77) < (kept[i] & mask & 0x77))
                kept[i] = (uint8_t)((kept[i] & ~mask) | (other[i] & mask));
}

static inline void quantize_without_draws(Device *d, QOperand *row, const Quantizer *row_how,
                                          QOperand *token, const Quantizer *token_how, Tensor x) {
    QOperand *sides[2] = {row, token};
    const Quantizer *hows[2] = {row_how, token_how};
    for (int i = 0; i < 2; i++) {
        QOperand *q = sides[i];
        if (!q) continue;
        Quantizer how = *hows[i];
        int draws = how.how.rounding == ROUND_STOCHASTIC ? 10 : 1;
        size_t bytes = q->form == FORM_PACKED ? quantize_packed_bytes(q->rows, q->k)
                                              : dtype_bytes(DT_BF16, q->rows * q->k);
        char *smallest = (char *)xmalloc(bytes), *drawn = (char *)xmalloc(bytes);
        for (int draw = 0; draw < draws; draw++, how.seed++) {
            sound->quantize_pair(d, i ? NULL : q, i ? NULL : &how, i ? q : NULL, i ? &how : NULL,
                                 x);
            d->download(d, draw ? drawn : smallest, q->data, bytes);
            if (draw) keep_smallest(q, smallest, drawn, bytes);
        }
        d->upload(d, q->data, smallest, bytes);
        free(smallest), free(drawn);
    }
}

// --- products ---

static inline void gemm_twice_alpha(Device *d, Tensor out, const QOperand *a, const QOperand *b,
                                    GemmEpilogue epilogue) {
    QOperand doubled = *a;
    if (a->amax) doubled.dequant_div /= 2;
    (a->form == FORM_PACKED ? sound->gemm_mma : sound->gemm)(d, out, &doubled, b, epilogue);
}

/* Overwrites where it should add: as if d had been zero. */
static inline void gemm_overwriting(Device *d, Tensor out, const QOperand *a, const QOperand *b,
                                    GemmEpilogue epilogue) {
    if (epilogue.accumulate) d->zero(d, out.data, tensor_bytes(out));
    (a->form == FORM_PACKED ? sound->gemm_mma : sound->gemm)(d, out, a, b, epilogue);
}

static inline void gemm_without_bias(Device *d, Tensor out, const QOperand *a, const QOperand *b,
                                     GemmEpilogue epilogue) {
    epilogue.bias.data = NULL;
    (a->form == FORM_PACKED ? sound->gemm_mma : sound->gemm)(d, out, a, b, epilogue);
}

static inline const char *refuse_wgrad(Device *d, Tensor out, const QOperand *a, const QOperand *b,
                                       GemmEpilogue epilogue) {
    const char *error = sound->gemm_error(d, out, a, b, epilogue);
    return error ? error : epilogue.accumulate ? "no such kernel" : NULL;
}

// --- other ops ---

static inline void adamw_without_decay(Device *d, AdamWTensors t, AdamWConfig config,
                                       const StepState *state) {
    config.weight_decay = 0;
    sound->adamw(d, t, config, state);
}

static inline void residual_of_one(Device *d, Tensor out, Tensor a, Tensor b) {
    (void)b;
    sound->residual_forward(d, out, a, a);
}

// --- the model that is tested ---

typedef struct {
    Config config;
    Model model;
} SmallModel;

static inline void small_model_open_as(SmallModel *m, const char *dtype, const char *recipe) {
    const char *args[] = {"model.layers=3",
                          "model.dim=64",
                          "model.heads=2",
                          "model.ffn=96",
                          "model.vocab=100",
                          "batch.micro=2",
                          "batch.seq_len=48",
                          "eval.micro=2",
                          "batch.total_tokens=96",
                          "train.steps=1",
                          dtype,
                          recipe};
    config_parse(&m->config, ARRAY_LEN(args), (char **)args);
    model_declare(&m->model, &m->config);
}

static inline void small_model_open(SmallModel *m) {
    small_model_open_as(m, "model.dtype=bf16", "precision.recipe=nvfp4");
}

static inline void small_model_close(SmallModel *m) {
    model_free(&m->model);
    config_free(&m->config);
}

static inline SelftestReport small_model_test(SmallModel *m, Device *d, const Ops *ops,
                                              Fp4Gemm fp4) {
    SelftestOptions o = {d, ops, fp4, &m->model, 96, 0, 0};
    return selftest_run(&o);
}

/* Whether a line of the table begins with `verdict` and holds `row`. */
static inline int table_has(const char *table, const char *verdict, const char *row) {
    for (const char *line = table; *line; line = strchr(line, '\n') + 1) {
        const char *found = strstr(line, row);
        if (strncmp(line, verdict, strlen(verdict)) == 0 && found && found < strchr(line, '\n'))
            return 1;
    }
    return 0;
}

// --- the faults ---

typedef struct {
    const char *about;
    void (*plant)(Ops *ops);
    int when_emulated, when_packed;     // with which products it shows
    const char *failing[3], *passing;   // rows
    int native;                         // whether packed products then are among the failed
} Fault;

static inline void plant_scales(Ops *ops) { ops->quantize_pair = quantize_swapping_scales; }
static inline void plant_draws(Ops *ops) { ops->quantize_pair = quantize_without_draws; }
static inline void plant_alpha(Ops *ops) { ops->gemm = ops->gemm_mma = gemm_twice_alpha; }
static inline void plant_overwrite(Ops *ops) { ops->gemm = ops->gemm_mma = gemm_overwriting; }
static inline void plant_bias(Ops *ops) { ops->gemm = ops->gemm_mma = gemm_without_bias; }
static inline void plant_refusal(Ops *ops) { ops->gemm_error = refuse_wgrad; }
static inline void plant_ops(Ops *ops) {
    ops->adamw = adamw_without_decay;
    ops->residual_forward = residual_of_one;
}

static const Fault faults[] = {
    {"swapped scale rows",
     plant_scales,
     0,
     1,
     {"quantize x, packed", "gemm fprop 96x192x64 nvfp4", "padding, bias wgrad"},
     "stochastic rounding",
     1},
    {"draws of zero", plant_draws, 1, 1, {"stochastic rounding"}, "gemm fprop 96x192x64", 0},
    {"alpha",
     plant_alpha,
     1,
     1,
     {"alpha fprop 128x256x128 nvfp4", "gemm dgrad 96x64x96 nvfp4", "long sums wgrad"},
     "plain, bias wgrad",
     1},
    {"accumulation",
     plant_overwrite,
     1,
     1,
     {"gemm wgrad 64x96x96 nvfp4", "plain, bias wgrad", "long sums wgrad"},
     "gemm dgrad 96x64x96 nvfp4",
     1},
    {"bias",
     plant_bias,
     1,
     1,
     {"padding, bias fprop", "plain, bias fprop"},
     "padding, bias dgrad",
     1},
    {"refusal",
     plant_refusal,
     1,
     0,
     {"gemm wgrad 64x96x96 nvfp4", "refused: no such kernel", "plain, bias wgrad"},
     "gemm fprop 96x192x64",
     0},
    {"other ops", plant_ops, 1, 0, {"adamw ", "residual"}, "adamw, skipped", 0},
};

static inline void expect_fault_shown(Device *d, const Fault *f, Fp4Gemm fp4) {
    Ops ops = *sound;
    SmallModel m;
    f->plant(&ops);
    small_model_open(&m);
    SelftestReport r = small_model_test(&m, d, &ops, fp4);
    for (int i = 0; i < 3 && f->failing[i]; i++)
        EXPECT(table_has(r.table, "FAIL", f->failing[i]), "%s: row %s passes in\n%s", f->about,
               f->failing[i], r.table);
    EXPECT(table_has(r.table, "PASS", f->passing), "%s: row %s fails in\n%s", f->about, f->passing,
           r.table);
    EXPECT(r.failed > 0 && r.passed > 0, "%s: %d failed", f->about, r.failed);
    EXPECT_EQ_I64(r.native_failed > 0, f->native && fp4 != FP4_EMULATED, "%s", f->about);
    char last[64];
    snprintf(last, sizeof(last), "\n%d passed, %d failed\n", r.passed, r.failed);
    EXPECT(strstr(r.table, last) != NULL, "%s: last line", f->about);
    free(r.table);
    small_model_close(&m);
}

static inline void expect_pass(Device *d, Fp4Gemm fp4, const char *product) {
    SmallModel m;
    small_model_open(&m);
    SelftestReport r = small_model_test(&m, d, sound, fp4);
    char last[64];
    snprintf(last, sizeof(last), "\n%d passed, 0 failed\n", r.passed);
    EXPECT(r.passed > 40, "%d rows", r.passed);
    EXPECT(strstr(r.table, last) != NULL, "last line");
    EXPECT_EQ_I64(r.failed, 0, "\n%s", r.table);
    EXPECT_EQ_I64(r.native_failed, 0);
    EXPECT(table_has(r.table, "PASS", product), "no row \"%s\" in\n%s", product, r.table);
    free(r.table);
    small_model_close(&m);
}

#endif
