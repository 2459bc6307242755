/*
test_parallel_zero -- who owns what (arithmetic of zero.h, awkward tables included), and that ranks
train one model: losses, norms and final weights of tiny models with uneven shapes at all levels and
rank counts. Alone it is one rank; under mpirun -np 2, 3, 4 rank 0 reports for all.
*/
#include "test.h"

#include "../llmc/comm.h"
#include "../llmc/common.h"
#include "../llmc/config.h"
#include "../llmc/model.h"
#include "../llmc/optimizer.h"
#include "../llmc/parallel.h"

static Comm *comm;

// --- arithmetic ---

/* A model that is only declared, as rank `rank` of `size`. */
static void declare(Model *m, Config *c, int num_words, char **words, int rank, int size) {
    config_parse(c, num_words, words);
    model_declare(m, c);
    model_split(m, c, rank, size);
}

/* Each bucket is covered once and in order, parts within a matrix begin with a tile, and what two
   of them differ by is two tiles' rows at most, but where a vector or an odd last tile lies. */
static void check_cuts(const Model *m, int64_t tile_rows, const char *what) {
    const ZeroPlan *z = &m->zero;
    int64_t covered = 0, own = 0;
    for (int i = 0; i < z->num_buckets; i++) {
        const ZeroBucket *b = &z->buckets[i];
        EXPECT_EQ_I64(b->cuts[0], b->range.begin, "%s, bucket %d", what, i);
        EXPECT_EQ_I64(b->cuts[z->size], b->range.end, "%s, bucket %d", what, i);
        covered += b->range.end - b->range.begin;
        own += zero_own_count(z, b);
        EXPECT(b->own_at % 128 == 0, "%s, bucket %d", what, i);
        for (int r = 0; r < z->size; r++)
            EXPECT(b->cuts[r] <= b->cuts[r + 1], "%s, bucket %d, rank %d", what, i, r);
    }
    EXPECT_EQ_I64(covered, m->params.num_elements, "%s", what);
    EXPECT(z->num_own >= own && z->num_own < own + 128 * z->num_buckets, "%s", what);
    for (int i = 0; i < m->params.count; i++) {
        const Param *p = &m->params.params[i];
        int64_t next = 0;
        for (int r = 0; r < z->size; r++) {
            ZeroPiece piece = zero_piece(z, p, r);
            if (piece.count == 0) continue;
            EXPECT_EQ_I64(piece.begin, next, "%s, %s, rank %d", what, p->name, r);
            next = piece.begin + piece.count;
            int64_t unit = p->padded_rows > 1 ? tile_rows * p->cols : 128;
            EXPECT(piece.begin % unit == 0, "%s, %s, rank %d", what, p->name, r);
        }
        EXPECT_EQ_I64(next, p->padded_rows * p->cols, "%s, %s", what, p->name);
    }
}

/* Backward completes buckets in their order, and windows are free again when they are needed. */
static void check_order(const Model *m, const char *what) {
    const ZeroPlan *z = &m->zero;
    int stage = m->num_branches, blocks = 0;
    for (int i = 0; i < z->num_buckets; i++) {
        const ZeroRange *r = &z->buckets[i].range;
        EXPECT(r->opens >= r->closes && r->closes <= stage, "%s, bucket %d", what, i);
        stage = r->closes;
        if (!r->is_block) continue;
        EXPECT_EQ_I64(z->buckets[i].window, blocks++ % 2 ? WINDOW_ODD : WINDOW_EVEN, "%s", what);
    }
    EXPECT_EQ_I64(stage, -1, "%s", what);
}

/* Fewer rows than ranks, odd widths, shared and own heads, patterns, one rank. */
CASE(cuts_of_awkward_models) {
    static const struct {
        const char *words[8];
        int tile_rows;
    } rows[] = {
        {{"model.layers=3", "model.dim=24", "model.heads=3", "model.vocab=130", "model.ffn=40"},
         16},
        {{"model.layers=1", "model.dim=8", "model.heads=1", "model.vocab=11", "model.ffn=8",
          "model.tied=false"},
         16},
        {{"model.pattern=--*-*", "model.dim=96", "model.heads=3", "model.vocab=300",
          "model.ffn=160", "precision.recipe=mxfp4"},
         32},
    };
    static const int sizes[] = {1, 2, 3, 4, 64};
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        for (int s = 0; s < ARRAY_LEN(sizes); s++) {
            char *words[8], what[64];
            int count = 0;
            while (rows[i].words[count]) {
                words[count] = (char *)rows[i].words[count];
                count++;
            }
            snprintf(what, sizeof(what), "model %d, %d ranks", i, sizes[s]);
            Model m;
            Config c;
            declare(&m, &c, count, words, sizes[s] - 1, sizes[s]);
            check_cuts(&m, rows[i].tile_rows, what);
            check_order(&m, what);
            model_free(&m);
            config_free(&c);
        }
    }
}

/* A dense 12B on 64 ranks: parts of nearly one size, and the bytes that zero_bytes tells are those
   of the parts. At level 1 a rank has a 64th of 12 of 16 bytes a weight more than the values. */
CASE(a_large_model_on_many_ranks) {
    static const char *const shape[] = {
        "model.layers=40",    "model.dim=5120",         "model.heads=40",   "model.kv_heads=8",
        "model.ffn=14336",    "model.act=swiglu",       "model.pos=rope",   "model.norm=rmsnorm",
        "model.vocab=131072", "precision.recipe=nvfp4", "model.bias=false", "model.tied=false",
        "batch.seq_len=4096", "batch.micro=1"};
    for (int level = 0; level < 4; level++) {
        char *words[20], zero[32];
        int count = 0;
        for (; count < ARRAY_LEN(shape); count++) words[count] = (char *)shape[count];
        snprintf(zero, sizeof(zero), "parallel.zero=%d", level);
        words[count++] = zero;
        Model m;
        Config c;
        declare(&m, &c, count, words, 63, 64);
        const ZeroPlan *z = &m.zero;
        for (int i = 0; i < z->num_buckets; i++) {
            const ZeroBucket *b = &z->buckets[i];
            double even = (double)(b->range.end - b->range.begin) / 64;
            // Each end of a part is off by half a tile of the widest rows at most.
            if (b->decays) EXPECT_NEAR(zero_own_count(z, b), even, 16.0 * 14336, "bucket %d", i);
        }
        double all = (double)m.params.num_elements;
        ZeroBytes bytes = zero_bytes(z, &m.params);
        EXPECT_NEAR((double)bytes.masters / all, level > 0 ? 4.0 / 64 : 4, 0.01, "level %d", level);
        EXPECT_NEAR((double)bytes.moments / all, level > 0 ? 8.0 / 64 : 8, 0.02, "level %d", level);
        EXPECT(level < 2 ? bytes.gradients == 4 * m.params.num_elements
                         : (double)bytes.gradients < 1.0 * all,
               "level %d: %lld", level, (long long)bytes.gradients);
        EXPECT(level < 3 ? bytes.values == 2 * m.params.num_elements
                         : (double)bytes.values < 0.5 * all,
               "level %d: %lld", level, (long long)bytes.values);
        ZeroTraffic two = zero_traffic(z, &m.params, DT_F32, 2, 0);
        double sums[] = {8, 4, 8, 8}, values[] = {0, 2, 2, 0};
        EXPECT_NEAR((double)two.sums / all, sums[level] * 63 / 64, 1e-6, "level %d", level);
        if (level < 3)
            EXPECT_NEAR((double)two.values / all, values[level] * 63 / 64, 1e-6, "level %d", level);
        model_free(&m);
        config_free(&c);
    }
}

// --- training ---

/* Widths that no number of ranks divides: 96 rows are six tiles of 16, 160 rows ten. */
static const char *const shape[] = {"model.layers=3",
                                    "model.dim=96",
                                    "model.heads=3",
                                    "model.vocab=130",
                                    "model.ffn=160",
                                    "model.bias=true",
                                    "batch.seq_len=16",
                                    "optim.lr=1e-3",
                                    "optim.grad_clip=0.5",
                                    "precision.keep_bf16.last=0",
                                    "seed=11"};
enum { MAX_LEVEL = 3 };
enum { T = 16, MICRO = 2, VOCAB = 130, STEPS = 4, SMALL_BUCKETS = 0 };

/* What one run leaves to compare. */
typedef struct {
    float loss[STEPS], norm[STEPS];
    float validation;   // between two steps
    float *gradient;    // (num_elements), of the first step; only of runs at level 0
    void *values;       // (num_elements) in the model's dtype
    float *masters;     // (num_elements): this rank's parts, at level 0 everything
    int64_t num_elements;
    size_t value_bytes;
    int64_t memory[NUM_ARENAS];
} Result;

typedef struct {
    const char *words;   // key=value ..., beside the shape
    int level, accumulation, bucket_mib;
    int alone;   // 1: one rank takes the micro-steps of all, in their order
    int micro;   // sequences; 0: MICRO
} Setup;

typedef struct {
    Config config;
    Device *device;
    Model model;
    Parallel parallel;
    int ranks, accumulation, micro;
} Trainer;

static void trainer_open(Trainer *t, const Setup *setup) {
    static char text[1024];
    char *words[32];
    int count = 0;
    memset(t, 0, sizeof(*t));
    for (; count < ARRAY_LEN(shape); count++) words[count] = (char *)shape[count];
    snprintf(text, sizeof(text), "%s", setup->words);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) words[count++] = word;
    config_parse(&t->config, count, words);
    t->micro = setup->micro ? setup->micro : MICRO;
    t->ranks = setup->alone ? 1 : comm->size;
    t->accumulation = setup->accumulation * (setup->alone ? comm->size * MICRO / t->micro : 1);
    t->config.batch.micro = t->config.eval.micro = t->micro;
    t->config.parallel.zero = setup->level;
    t->config.parallel.bucket_mib = setup->bucket_mib;
    t->device = device_cpu_open(1);
    model_declare(&t->model, &t->config);
    model_split(&t->model, &t->config, setup->alone ? 0 : comm->rank, t->ranks);
    model_place(&t->model, &t->config, t->device, &ops_cpu, 1);
    parallel_open(&t->parallel, comm, &t->model, &t->config);
    model_init(&t->model, t->config.seed);
    model_begin_step(&t->model, 0);
}

static void trainer_close(Trainer *t) {
    parallel_close(&t->parallel);
    model_free(&t->model);
    t->device->close(t->device);
    config_free(&t->config);
}

/* Sequence `index` of a batch, the same in all steps. */
static void fill(int32_t *tokens, int32_t *targets, int64_t index) {
    uint32_t x = (uint32_t)(index + 1) * 2654435761u;
    int32_t token = (int32_t)(x >> 8) % VOCAB;
    for (int i = 0; i < T; i++) {
        tokens[i] = token;
        x = x * 1664525u + 1013904223u;
        token = (token * 7 + (int32_t)(x >> 29)) % VOCAB;
        targets[i] = token;
    }
}

static void train_step(Trainer *t, int step) {
    int32_t tokens[16 * T], targets[16 * T];
    StepState *state = t->model.engine.state;
    int64_t sequences = (int64_t)t->ranks * t->accumulation * t->micro;
    REQUIRE(t->micro <= 16);
    *state = optimizer_state(&t->config, step, t->config.optim.lr, INFINITY, INFINITY);
    model_zero_gradients(&t->model);
    for (int i = 0; i < t->accumulation; i++) {
        int64_t first = ((int64_t)t->model.zero.rank * t->accumulation + i) * t->micro;
        for (int b = 0; b < t->micro; b++) fill(tokens + b * T, targets + b * T, first + b);
        state->token_base = first * T;
        parallel_begin(&t->parallel, i == t->accumulation - 1);
        model_forward_backward(&t->model, tokens, targets, t->micro, T,
                               (float)(1.0 / (double)(sequences * T)));
    }
    parallel_step(&t->parallel);
    model_begin_step(&t->model, step + 1);
}

/* This rank's parts of the masters where they lie in the flat array; at level 0 all of them. */
static float *copy_masters(const ParamTable *t) {
    float *masters = xmalloc((size_t)t->num_elements * sizeof(float));
    for (int i = 0; i < t->count; i++) {
        const Param *p = &t->params[i];
        if (!tensor_empty(p->master))
            memcpy(masters + p->offset + p->kept_from, p->master.data, tensor_bytes(p->master));
    }
    return masters;
}

/* Each rank evaluates the same sequences. */
static float evaluate(Trainer *t) {
    int32_t tokens[MICRO * T], targets[MICRO * T];
    StepState *state = t->model.engine.state, kept = *state;
    for (int b = 0; b < MICRO; b++) fill(tokens + b * T, targets + b * T, 1000 + b);
    state->loss = 0;
    model_evaluate(&t->model, tokens, targets, MICRO, T, 1.0f / (MICRO * T));
    float loss = state->loss;
    *state = kept;
    return loss;
}

static Result train(const Setup *setup) {
    Trainer t;
    Result r;
    memset(&r, 0, sizeof(r));
    trainer_open(&t, setup);
    const ParamTable *table = &t.model.params;
    r.num_elements = table->num_elements;
    for (int i = 0; i < NUM_ARENAS; i++) r.memory[i] = (int64_t)t.model.arenas[i].size;
    for (int step = 0; step < STEPS; step++) {
        train_step(&t, step);
        r.loss[step] = t.model.engine.state->loss;
        r.norm[step] = t.model.engine.state->grad_norm;
        if (step == 1) r.validation = evaluate(&t);
        if (step > 0 || t.model.zero.level > 0) continue;
        r.gradient = xmalloc(tensor_bytes(table->grad));
        memcpy(r.gradient, table->grad.data, tensor_bytes(table->grad));
    }
    r.masters = copy_masters(table);
    r.value_bytes = tensor_bytes(table->value);
    r.values = xmalloc(r.value_bytes);
    memcpy(r.values, table->value.data, r.value_bytes);
    trainer_close(&t);
    return r;
}

static void result_free(Result *r) {
    free(r->gradient);
    free(r->values);
    free(r->masters);
}

static int any_rank(int here) {
    float any = (float)here;
    comm->all_reduce(comm, &any, 1, COMM_MAX);
    return any != 0.0f;
}

/* The parts that this rank owns: the other masters are another rank's to compare. */
static int own_masters_differ(const Result *got, const Result *want, const Setup *setup) {
    Trainer t;
    int differ = 0;
    trainer_open(&t, setup);
    for (int i = 0; i < t.model.zero.num_buckets; i++) {
        const int64_t *cuts = t.model.zero.buckets[i].cuts;
        int rank = t.model.zero.rank;
        size_t bytes = (size_t)(cuts[rank + 1] - cuts[rank]) * sizeof(float);
        differ |= memcmp(got->masters + cuts[rank], want->masters + cuts[rank], bytes) != 0;
    }
    trainer_close(&t);
    return differ;
}

static void expect_equal_bits(const Result *got, const Result *want, const Setup *setup) {
    const char *what = setup->words;
    int level = setup->level;
    for (int i = 0; i < STEPS; i++) {
        EXPECT_BITS(&got->loss[i], &want->loss[i], sizeof(float), "%s, level %d: loss %d", what,
                    level, i);
        EXPECT_BITS(&got->norm[i], &want->norm[i], sizeof(float), "%s, level %d: norm %d", what,
                    level, i);
    }
    EXPECT_BITS(&got->validation, &want->validation, sizeof(float), "%s, level %d: validation",
                what, level);
    EXPECT(!any_rank(own_masters_differ(got, want, setup)), "%s, level %d: masters", what, level);
    if (level == 3) return;   // values of parts only, which are the masters rounded
    EXPECT(!any_rank(memcmp(got->values, want->values, want->value_bytes)), "%s, level %d: values",
           what, level);
}

#define F32 "precision.recipe=f32 model.dtype=f32"
static const char *const recipes_of_levels[] = {
    F32,
    "precision.recipe=bf16",
    "precision.recipe=nvfp4",
    "precision.recipe=quartet",
    "precision.recipe=nvfp4 precision.dgrad.w.source=tensor precision.keep_bf16.last=1",
    "precision.recipe=mxfp4",
    "precision.recipe=bf16 model.tied=false model.norm=rmsnorm"};

/* One micro-step a rank: whoever sums a gradient, it is the same sum. */
CASE(all_levels_have_the_same_bits) {
    for (int i = 0; i < ARRAY_LEN(recipes_of_levels); i++) {
        Setup setup = {recipes_of_levels[i], 0, 1, SMALL_BUCKETS, 0, 0};
        Result zero = train(&setup);
        EXPECT(zero.loss[STEPS - 1] < zero.loss[0] && zero.norm[0] > 0.5f,
               "%s: it learns, and clips: %g to %g, norm %g", setup.words, zero.loss[0],
               zero.loss[STEPS - 1], zero.norm[0]);
        for (setup.level = 1; setup.level <= MAX_LEVEL; setup.level++) {
            Result r = train(&setup);
            expect_equal_bits(&r, &zero, &setup);
            result_free(&r);
        }
        result_free(&zero);
    }
}

/* NVFP4 with square tiles travels as codes both ways, where only fprop's operand is cut by rows one
   way, and what cannot be cut as values. A code has 4 bits and 8 for a scale of 16 along a row:
   3.56 times fewer bytes, but for the padding of scales and the alignment of few rows. */
CASE(what_travels_at_level_3) {
    static const struct {
        const char *words;
        int forward, backward;
    } rows[] = {{"precision.recipe=nvfp4", 1, 1},
                {"precision.recipe=nvfp4 precision.dgrad.w.source=tensor", 1, 0},
                {"precision.recipe=mxfp4", 0, 0},
                {"precision.recipe=bf16", 0, 0}};
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        Setup setup = {rows[i].words, 3, 1, SMALL_BUCKETS, 0, 0};
        Trainer t;
        int64_t cuts[65], codes = 0, values = 0;
        trainer_open(&t, &setup);
        for (int b = 0; b < t.model.zero.num_buckets; b++) {
            const ZeroRange *range = &t.model.zero.buckets[b].range;
            if (!range->is_block) continue;
            EXPECT_EQ_I64(model_sends_codes(&t.model, b, 0), rows[i].forward, "%s", rows[i].words);
            EXPECT_EQ_I64(model_sends_codes(&t.model, b, 1), rows[i].backward, "%s", rows[i].words);
            model_codes_cuts(&t.model, b, cuts);
            codes += cuts[t.model.zero.size];
            values += 2 * (range->end - range->begin);
        }
        if (rows[i].forward) {
            // Scales lie in tiles of 128 rows by 4 blocks: parts of few rows are padded.
            EXPECT(codes >= values * 9 / 32 && codes < values / 2, "%lld of %lld bytes",
                   (long long)codes, (long long)values);
        } else {
            EXPECT_EQ_I64(codes, 0, "%s", rows[i].words);
        }
        trainer_close(&t);
    }
}

static double relative_distance(const float *a, const float *b, int64_t count) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / size);
}

static double farthest_loss(const Result *a, const Result *b, int from, int steps) {
    double most = 0;
    for (int i = from; i < steps; i++) most = fmax(most, fabs((double)a->loss[i] / b->loss[i] - 1));
    return most;
}

/* Of 12 micro-steps in all. Level 2 adds up sums over ranks, the others sum up what each rank
   added: both add the same 12 terms with at most 11 roundings of 2^-24 each on the way to an
   element, so that they differ by 2 x 11 x 2^-24 of the terms' sizes, 1.3e-6; the terms' norms
   together are less than four times the sum's, whose norm then differs by less than 5.3e-6. */
CASE(more_micro_steps) {
    Setup setup = {F32, 0, 12 / comm->size, SMALL_BUCKETS, 0, 0};
    Result zero = train(&setup);
    for (setup.level = 1; setup.level <= MAX_LEVEL; setup.level++) {
        Result r = train(&setup);
        if (setup.level == 1) expect_equal_bits(&r, &zero, &setup);
        EXPECT_BITS(&r.loss[0], &zero.loss[0], sizeof(float), "level %d", setup.level);
        EXPECT_NEAR(r.norm[0] / zero.norm[0], 1, 5.3e-6, "level %d", setup.level);
        EXPECT_NEAR(farthest_loss(&r, &zero, 0, STEPS), 0, 1e-6 * STEPS, "level %d", setup.level);
        result_free(&r);
    }
    result_free(&zero);
}

/* The same 12 micro-steps on one rank. Step 0 begins with the same weights: its loss is a sum of 12
   terms, its gradient differs as above, with 4 x 1.3e-6 of its norm. Adam divides a gradient by its
   size, so that an element which rounding makes up may move by 2 lr: the loss by the sum over all
   1.6e5 elements of their error times that, 1.6e5 x 1.3e-6 x 1e-2 (what the terms of an element
   come to) x 2e-3 = 4e-6 of a loss of 5, 1e-6 a step. A weight in BF16 may in addition round the
   other way, by 2^-8 of its size 0.02: a thousandth of them do where the masters differ by that
   share of their distance, which moves the loss by their gradients (1e-2) x 8e-5 x 160, 1.3e-4 if
   all had one sign and 1e-5 as they fall. Codes of NVFP4 are a few times as coarse. */
CASE(ranks_train_as_one) {
    static const struct {
        const char *words;
        double first, later;
    } rows[] = {{F32, 1e-6, 4e-6},
                {"precision.recipe=bf16", 1e-6, 1e-4},
                {"precision.recipe=nvfp4", 1e-6, 4e-4}};
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        Setup setup = {rows[i].words, 0, 12 / comm->size, SMALL_BUCKETS, 0, 0};
        Result ranks = train(&setup);
        setup.alone = 1;
        Result one = train(&setup);
        EXPECT_NEAR(farthest_loss(&ranks, &one, 0, 1), 0, rows[i].first, "%s", rows[i].words);
        EXPECT_NEAR(farthest_loss(&ranks, &one, 1, STEPS), 0, rows[i].later, "%s", rows[i].words);
        EXPECT_NEAR(relative_distance(ranks.gradient, one.gradient, one.num_elements), 0, 5.3e-6,
                    "%s: gradient of the first step", rows[i].words);
        result_free(&ranks);
        result_free(&one);
    }
}

/* A tensor's scale is that of a micro-batch. Against one rank with all sequences in one micro-
   batch, codes differ throughout, but not on the average: of a loss whose NVFP4 noise is 1 %, at
   most that, and of a gradient with 20 % of noise at most 1.4 times that. */
CASE(nvfp4_of_other_micro_batches) {
    Setup setup = {"precision.recipe=nvfp4", 0, 1, SMALL_BUCKETS, 0, 0};
    Result ranks = train(&setup);
    setup.alone = 1;
    setup.micro = MICRO * comm->size;
    Result one = train(&setup);
    EXPECT_NEAR(farthest_loss(&ranks, &one, 0, STEPS), 0, 1e-2);
    EXPECT_NEAR(relative_distance(ranks.gradient, one.gradient, one.num_elements), 0, 0.28);
    result_free(&ranks);
    result_free(&one);
}

/* A rank's gradient is rounded once, by at most 2^-9 of each element, and so is the sum: together
   2^-9 of the sum's norm and of those of the terms, which are at most twice that. */
CASE(gradients_in_bf16) {
    Setup f32 = {F32, 0, 1, SMALL_BUCKETS, 0, 0};
    Setup setup = {F32 " parallel.grad_dtype=bf16", 0, 1, SMALL_BUCKETS, 0, 0};
    Result exact = train(&f32), zero = train(&setup);
    double distance = relative_distance(zero.gradient, exact.gradient, exact.num_elements);
    EXPECT(distance <= 3.0 / 512, "gradients differ by %.2e", distance);
    EXPECT(comm->size == 1 ? distance == 0 : distance > 1.0 / 4096, "gradients differ by %.2e",
           distance);
    for (setup.level = 1; setup.level <= MAX_LEVEL; setup.level++) {
        Result r = train(&setup);
        expect_equal_bits(&r, &zero, &setup);
        result_free(&r);
    }
    result_free(&exact);
    result_free(&zero);
}

/* Sums of an element do not know its bucket; the norm, which adds up by parts of buckets, differs
   in its last bits, so nothing is clipped here. */
CASE(sizes_of_buckets_do_not_matter) {
    Setup setup = {F32 " optim.grad_clip=0", 0, 1, SMALL_BUCKETS, 0, 0};
    for (; setup.level <= MAX_LEVEL; setup.level++) {
        setup.bucket_mib = SMALL_BUCKETS;
        Result many = train(&setup);
        setup.bucket_mib = 32;
        Result few = train(&setup);
        EXPECT_BITS(few.loss, many.loss, sizeof(few.loss), "level %d", setup.level);
        if (setup.level < 3)
            EXPECT(!any_rank(memcmp(few.values, many.values, few.value_bytes)), "level %d",
                   setup.level);
        EXPECT_NEAR(few.norm[0] / many.norm[0], 1, 3e-7, "level %d", setup.level);
        result_free(&many);
        result_free(&few);
    }
}

// --- memory, stopping ---

/* Arenas are what zero_bytes tells, but for the alignment of what lies in them. */
CASE(memory_is_as_computed) {
    for (int level = 0; level <= MAX_LEVEL; level++) {
        Setup setup = {"precision.recipe=bf16", level, 1, SMALL_BUCKETS, 0, 0};
        Trainer t;
        trainer_open(&t, &setup);
        ZeroBytes bytes = zero_bytes(&t.model.zero, &t.model.params);
        const Arena *arenas = t.model.arenas;
        const struct {
            ArenaId arena;
            int64_t want;
        } rows[] = {{ARENA_PARAMETERS, bytes.values + bytes.masters},
                    {ARENA_GRADIENTS, bytes.gradients},
                    {ARENA_OPTIMIZER, bytes.moments}};
        for (int i = 0; i < ARRAY_LEN(rows); i++) {
            int64_t got = (int64_t)arenas[rows[i].arena].size;
            EXPECT(got >= rows[i].want && got < rows[i].want + 4 * 256,
                   "level %d, %s: %lld of %lld", level, arenas[rows[i].arena].name, (long long)got,
                   (long long)rows[i].want);
        }
        trainer_close(&t);
    }
}

/* The last rank leaves out what comes after its first micro-step: no rank waits for it, and none
   applies the step. */
CASE(a_rank_that_stops_passes_by) {
    for (int level = 0; level <= MAX_LEVEL; level++) {
        Setup setup = {"precision.recipe=bf16", level, 3, SMALL_BUCKETS, 0, 0};
        Trainer t;
        trainer_open(&t, &setup);
        StepState *state = t.model.engine.state;
        float *before = copy_masters(&t.model.params);
        int32_t tokens[MICRO * T], targets[MICRO * T];
        int stops = comm->rank == comm->size - 1;
        *state = optimizer_state(&t.config, 0, t.config.optim.lr, INFINITY, INFINITY);
        model_zero_gradients(&t.model);
        for (int b = 0; b < MICRO; b++) fill(tokens + b * T, targets + b * T, b);
        for (int i = 0; i < t.accumulation; i++) {
            parallel_begin(&t.parallel, i == t.accumulation - 1);
            if (stops && i > 0) parallel_pass_by(&t.parallel);
            else model_forward_backward(&t.model, tokens, targets, MICRO, T, 1.0f / (MICRO * T));
        }
        state->stop_votes = (float)stops;
        parallel_step(&t.parallel);
        EXPECT_NEAR(state->stop_votes, 1.0, 0.0, "level %d", level);
        EXPECT(state->skip, "level %d", level);
        float *after = copy_masters(&t.model.params);
        size_t bytes = (size_t)t.model.params.num_elements * sizeof(float);
        EXPECT(!any_rank(memcmp(before, after, bytes)), "level %d", level);
        free(before);
        free(after);
        trainer_close(&t);
    }
}

int main(int argc, char **argv) {
    comm = comm_host_open(NULL);
    log_set_rank(comm->rank, comm->size);
    if (comm->rank > 0 && !freopen("/dev/null", "w", stdout)) return 1;
    int failed = test_run(argc, argv);
    comm->close(comm);
    return failed;
}
