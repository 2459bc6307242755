/*
test_recipe_vectors -- what every recipe's operands are, against an independent implementation:
test/fixtures/recipe_vectors.txt is what test/recipe_numpy.py, written from the specification, makes
of the tensors of recipe_inputs.h; its lines are described in test/fixtures/README.md. Compared bit
for bit: decoded values, maxima, divisors and masks of the operands as a linear layer makes them;
codes and block scales where native GEMMs take them; cells that no recipe has; NVFP4 over the whole
range of numbers.
*/
#include "../llmc/linear.h"
#include "../llmc/rng.h"
#include "recipe_inputs.h"
#include "test.h"

enum {
    TOKENS = 128,
    IN = 128,
    OUT = 256,
    LINEAR = 3,
    SWEEP_LINEAR = 5,
    STEP = 100,
    TOKEN_BASE = 1152,
    RUN = 8,   // values printed of one row
    MAX_ENTRIES = 512
};
static const uint64_t SEED = 0x0123456789ABCDEF;

// --- the fixture ---

/* One operand. Texts are hexadecimal, or "-" where there is none. */
typedef struct {
    char section[16], name[32], gemm[8], operand[8];   // of a sweep: number, "row" or "token", "-"
    char cell[256];
    char dtype[8], values[12], amax[12], div[12], mask[12], codes[12], scales[12];
    int num_runs;
    struct {
        int row, k;
        char words[96];
    } runs[2];
} Entry;

static struct {
    char inputs[4][12];
    Entry entries[MAX_ENTRIES];
    int count;
    char text[1 << 18];
} fixture;

/* "recipe NAME GEMM OPERAND", "sweep N row -": the next operand begins. */
static void begin_entry(const char *line) {
    CHECK(fixture.count < MAX_ENTRIES, "more than %d operands", MAX_ENTRIES);
    Entry *e = &fixture.entries[fixture.count++];
    int words = sscanf(line, "%15s %31s %7s %7s", e->section, e->name, e->gemm, e->operand);
    CHECK(words == 4, "fixture: %s", line);
}

/* A line on the operand that began last. */
static void read_detail(Entry *e, const char *line) {
    int got = 0, want = 0;
    if (strncmp(line, "cell ", 5) == 0) {
        snprintf(e->cell, sizeof(e->cell), "%s", line + 5);
    } else if (strncmp(line, "made ", 5) == 0) {
        want = 7;
        got = sscanf(line,
                     "made dtype=%7s values=%11s amax=%11s div=%11s mask=%11s codes=%11s "
                     "scales=%11s",
                     e->dtype, e->values, e->amax, e->div, e->mask, e->codes, e->scales);
    } else if (strncmp(line, "at ", 3) == 0) {
        int at = e->num_runs++;
        CHECK(at < 2, "fixture: %s", line);
        want = 3;
        got =
            sscanf(line, "at %d %d %95[^\n]", &e->runs[at].row, &e->runs[at].k, e->runs[at].words);
    }
    CHECK(got == want, "fixture: %s", line);
}

/* Of edges and blocks nothing is kept: their cases read the text. */
static void read_line(const char *line) {
    if (strncmp(line, "recipe ", 7) == 0 || strncmp(line, "sweep ", 6) == 0) {
        begin_entry(line);
    } else if (strncmp(line, "inputs ", 7) == 0) {
        int got = sscanf(line, "inputs %11s %11s %11s %11s", fixture.inputs[0], fixture.inputs[1],
                         fixture.inputs[2], fixture.inputs[3]);
        CHECK(got == 4, "fixture: %s", line);
    } else if (fixture.count > 0) {
        read_detail(&fixture.entries[fixture.count - 1], line);
    }
}

/* Reads the file once; its lines end in '\0' afterwards. */
static const char *read_fixture(void) {
    if (fixture.count) return fixture.text;
    FILE *f = fopen("test/fixtures/recipe_vectors.txt", "r");
    CHECK(f, "no test/fixtures/recipe_vectors.txt here");
    size_t bytes = fread(fixture.text, 1, sizeof(fixture.text) - 1, f);
    fclose(f);
    for (char *line = fixture.text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        read_line(line);
    }
    CHECK(bytes < sizeof(fixture.text) - 1 && fixture.count > 0, "the fixture does not fit");
    return fixture.text;
}

static uint32_t hex(const char *text) { return (uint32_t)strtoul(text, NULL, 16); }

static float largest(Tensor x) {
    float most = 0;
    for (int64_t i = 0; i < tensor_count(x); i++)
        most = fmaxf(most, fabsf(bf16_to_f32(((const bf16_t *)x.data)[i])));
    return most;
}

/* Sets fields of a cell from "key=value key=value", as rules of a config do. */
static Operand cell_of(const char *text) {
    Rule rule = rule_default();
    char copy[256];
    snprintf(copy, sizeof(copy), "%s", text);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        char *value = strchr(word, '=');
        CHECK(value, "fixture: %s", text);
        *value++ = '\0';
        const char *error = rule_set(&rule, word, value);
        CHECK(!error, "%s", error);
    }
    return recipe_resolve(recipe_find("bf16"), &rule, 1, "any").cell[GEMM_FPROP][SIDE_A];
}

// --- comparisons ---

static void expect_text(const char *got, const char *want, const char *what, const Entry *e) {
    EXPECT(strcmp(got, want) == 0, "%s %s %s %s: %s is %s, want %s (%s)", e->section, e->name,
           e->gemm, e->operand, what, got, want, e->cell);
}

static void expect_word(uint32_t got, const char *want, const char *what, const Entry *e) {
    char text[12];
    snprintf(text, sizeof(text), "%08x", (unsigned)got);
    expect_text(text, want, what, e);
}

static float value_at(const QOperand *q, int64_t i) {
    return q->dtype == DT_F32 ? ((const float *)q->data)[i]
                              : bf16_to_f32(((const bf16_t *)q->data)[i]);
}

/* Of all values as f32, every NaN as one. */
static uint32_t values_crc(const QOperand *q) {
    uint32_t crc = 0;
    for (int64_t i = 0; i < q->rows * q->k; i++) {
        float value = value_at(q, i);
        uint32_t bits = value == value ? bits_from_f32(value) : 0x7FC00000u;
        crc = crc32_update(crc, &bits, sizeof(bits));
    }
    return crc;
}

/* A few values in a row of the operand. */
static void expect_run(const QOperand *q, const Entry *e, int run) {
    char got[96], what[48];
    int at = 0;
    for (int i = 0; i < RUN; i++) {
        int64_t row = e->runs[run].row, k = e->runs[run].k + i;
        float value = value_at(q, q->k_contiguous ? row * q->k + k : k * q->rows + row);
        uint32_t bits = bits_from_f32(value);
        const char *space = i ? " " : "";
        at += q->dtype == DT_F32
                  ? snprintf(got + at, sizeof(got) - (size_t)at, "%s%08x", space, (unsigned)bits)
                  : snprintf(got + at, sizeof(got) - (size_t)at, "%s%04x", space,
                             (unsigned)(bits >> 16));
    }
    snprintf(what, sizeof(what), "row %d from %d on", e->runs[run].row, e->runs[run].k);
    expect_text(got, e->runs[run].words, what, e);
}

static void expect_values(const QOperand *q, const Entry *e) {
    REQUIRE(q->form == FORM_VALUES, "%s %s %s", e->name, e->gemm, e->operand);
    expect_text(dtype_info[q->dtype].name, e->dtype, "dtype", e);
    expect_word(bits_from_f32(q->dequant_div), e->div, "divisor", e);
    if (e->amax[0] == '-') EXPECT(!q->amax, "%s %s %s: a maximum", e->name, e->gemm, e->operand);
    else expect_word(q->amax ? bits_from_f32(*q->amax) : 0, e->amax, "maximum in use", e);
    for (int i = 0; i < e->num_runs; i++) expect_run(q, e, i);
    expect_word(values_crc(q), e->values, "CRC of values", e);
    if (e->mask[0] != '-') {
        REQUIRE(q->mask, "%s %s %s: no mask", e->name, e->gemm, e->operand);
        uint32_t crc = crc32_update(0, q->mask, (size_t)(q->rows * q->k / 8));
        expect_word(crc, e->mask, "CRC of mask", e);
    }
}

// --- operands by the ops ---

static StepState state;   // of every quantiser here

/* Of the four tensors: x, w and dy of a linear, and what sweeps quantise. */
static Tensor input(int which) {
    static const struct {
        int rows, cols, base;
    } kinds[4] = {{TOKENS, IN, 0}, {OUT, IN, -5}, {TOKENS, OUT, -20}, {TOKENS, OUT, 1}};
    return input_tensor(kinds[which].rows, kinds[which].cols, (uint32_t)which + 1,
                        kinds[which].base);
}

/* One operand of x by the CPU's ops; its memory is the caller's to free. */
typedef struct {
    QOperand q;
    Quantizer how;
    float amax;
} Single;

static void begin_single(Single *s, Operand cell, Tensor x, OperandForm form, int token_operand) {
    memset(s, 0, sizeof(*s));
    state.step = STEP;
    state.token_base = TOKEN_BASE;
    s->how.how = cell;
    s->how.token_operand = token_operand;
    s->how.rows_are_tokens = cell.tile != TILE_SQUARE;
    s->how.tag = rng_quantize_tag(SWEEP_LINEAR, 1 + (uint32_t)token_operand, 0, 0);
    s->how.seed = SEED;
    s->how.state = &state;
    QOperand *q = &s->q;
    q->form = form;
    q->format = cell.format;
    q->dtype = operand_values_dtype(&cell);
    q->dequant_div = quantize_dequant_div(&cell);
    q->rows = token_operand ? x.cols : x.rows;
    q->k = token_operand ? x.rows : x.cols;
    q->k_contiguous = form == FORM_PACKED || !token_operand;
    q->amax = cell.amax == AMAX_NONE ? NULL : &s->amax;
    if (form == FORM_PACKED) {
        size_t scale_bytes = operand_has_blocks(&cell) ? quantize_scales_bytes(q->rows, q->k) : 0;
        q->data = xmalloc(quantize_codes_bytes(cell.format, q->rows, q->k));
        if (scale_bytes) q->scales = (uint8_t *)memset(xmalloc(scale_bytes), 0xFF, scale_bytes);
        return;
    }
    q->data = xmalloc(dtype_bytes(q->dtype, q->rows * q->k));
    if (cell.mask && !token_operand) q->mask = (uint8_t *)xmalloc((size_t)(q->rows * q->k / 8));
}

static void end_single(Single *s) { free(s->q.data), free(s->q.scales), free(s->q.mask); }

/* amax: bits of a maximum kept from an earlier step, else NULL. */
static void make_single(Single *s, Tensor x, const char *amax) {
    QOperand *row = s->how.token_operand ? NULL : &s->q;
    QOperand *token = s->how.token_operand ? &s->q : NULL;
    const Quantizer *row_how = row ? &s->how : NULL, *token_how = token ? &s->how : NULL;
    amax_pair_cpu(NULL, row, row_how, token, token_how, x);
    if (amax) s->amax = f32_from_bits(hex(amax));
    quantize_pair_cpu(NULL, row, row_how, token, token_how, x);
}

static void expect_input(Tensor x, const char *want, const char *which) {
    char got[12];
    snprintf(got, sizeof(got), "%08x", (unsigned)crc32_update(0, x.data, tensor_bytes(x)));
    EXPECT(strcmp(got, want) == 0, "tensor %s: %s, want %s", which, got, want);
}

static const char *kept_amax(const Entry *e, const Operand *cell) {
    return cell->amax == AMAX_DELAYED || cell->amax == AMAX_HELD ? e->amax : NULL;
}

/* The operand's codes and block scales, of a tag and rows that are the entry's. */
static void expect_packed(const Entry *e, Tensor x, int token_operand, uint32_t tag,
                          int rows_are_tokens) {
    Operand cell = cell_of(e->cell);
    Single s;
    cell.source = SOURCE_TENSOR;
    begin_single(&s, cell, x, FORM_PACKED, token_operand);
    s.how.tag = tag;
    s.how.rows_are_tokens = rows_are_tokens;
    make_single(&s, x, kept_amax(e, &cell));
    size_t bytes = quantize_codes_bytes(cell.format, s.q.rows, s.q.k);
    expect_word(crc32_update(0, s.q.data, bytes), e->codes, "CRC of codes", e);
    if (s.q.scales) {
        bytes = quantize_scales_bytes(s.q.rows, s.q.k);
        expect_word(crc32_update(0, s.q.scales, bytes), e->scales, "CRC of scales", e);
    }
    end_single(&s);
}

// --- operands of a linear layer ---

/* A linear with one set of tensors, on the CPU, in memory of its own. */
typedef struct {
    Engine engine;
    Linear l;
    Param weight;
    ParamTable table;
    LinearSaved saved;
    Tensor x, dy;
} Layer;

static int64_t scratch_bytes(const Layer *y, GemmKind g) {
    return (int64_t)linear_scratch_bytes(&y->engine, &y->l, g, TOKENS);
}

static void place_layer(Layer *y, Arena *a) {
    Engine *e = &y->engine;
    int64_t row = max_i64(scratch_bytes(y, GEMM_FPROP), scratch_bytes(y, GEMM_DGRAD));
    linear_place_amax(&y->l, a);
    linear_place_weights(e, &y->l, a);
    linear_place_saved(e, &y->l, &y->saved, a, TOKENS);
    if (linear_keeps_maxima(&y->l))
        linear_place_maxima(&y->l, a, arena_tensor(a, DT_F32, 1, NUM_GEMMS * NUM_SIDES));
    e->row_buffer = arena_tensor(a, DT_U8, 1, row);
    e->token_buffer = arena_tensor(a, DT_U8, 1, scratch_bytes(y, GEMM_WGRAD));
}

/* plan: of a linear that draws as number LINEAR. Returns its arena. */
static Arena begin_layer(Layer *y, const LinearPlan *plan, Device *d) {
    memset(y, 0, sizeof(*y));
    state.step = STEP;
    state.token_base = TOKEN_BASE;
    y->x = input(0);
    y->weight.value = input(1);
    y->dy = input(2);
    y->table.params = &y->weight;
    y->table.count = 1;
    y->engine.device = d;
    y->engine.ops = &ops_cpu;
    y->engine.params = &y->table;
    y->engine.state = &state;
    y->engine.seed = SEED;
    y->engine.fp4 = FP4_EMULATED;
    y->engine.training = 1;
    y->l.id = LINEAR;
    y->l.in = IN;
    y->l.out = OUT;
    y->l.bias = -1;
    y->l.plan = *plan;
    Arena a = arena_measure("recipe vectors", d);
    place_layer(y, &a);
    arena_commit(&a);
    memset(a.base, 0, a.size);
    place_layer(y, &a);
    return a;
}

static void end_layer(Layer *y, Arena *a) {
    free(y->x.data), free(y->weight.value.data), free(y->dy.data);
    arena_free(a);
}

/* The codes that native GEMMs read, of operands that are made of tensors. */
static void expect_codes_of(const Layer *y, const Entry *e, GemmKind g, Side s) {
    int is_w = strcmp(e->operand, "w") == 0, token_operand = g == GEMM_WGRAD || (is_w && g);
    Tensor x = is_w ? y->weight.value : strcmp(e->operand, "x") == 0 ? y->x : y->dy;
    expect_packed(e, x, token_operand, rng_quantize_tag(LINEAR, g, s, 0), !is_w);
}

/* Six entries of one plan, in the order of its cells. */
static void expect_plan(const Entry *entries, const LinearPlan *plan, Device *d) {
    Layer y;
    Arena a = begin_layer(&y, plan, d);
    linear_prepare(&y.engine, &y.l);
    QOperand x = linear_input(&y.engine, &y.l, &y.saved, y.x);
    LinearGrad grad;
    const QOperand *made[NUM_GEMMS][NUM_SIDES] = {
        {&x, &y.l.w[GEMM_FPROP]}, {&grad.row, &y.l.w[GEMM_DGRAD]}, {&grad.token, &y.saved.token_x}};
    for (int g = 0; g < NUM_GEMMS; g++) {
        if (g == GEMM_DGRAD)
            grad = linear_output_grad(&y.engine, &y.l, y.dy);   // reuses x's memory
        for (int side = 0; side < NUM_SIDES; side++) {
            const Entry *e = &entries[g * NUM_SIDES + side];
            if (!operand_is_quantized(&plan->cell[g][side])) continue;
            expect_values(made[g][side], e);
            if (e->codes[0] != '-') expect_codes_of(&y, e, (GemmKind)g, (Side)side);
        }
    }
    end_layer(&y, &a);
}

/* The plan that the entries spell out, which a recipe of that name has cell by cell. */
static LinearPlan plan_of(const Entry *entries) {
    LinearPlan plan;
    const Recipe *recipe = recipe_find(entries->name);
    for (int i = 0; i < NUM_GEMMS * NUM_SIDES; i++) {
        const Entry *e = &entries[i];
        int g = i / NUM_SIDES, side = i % NUM_SIDES;
        Operand cell = plan.cell[g][side] = cell_of(e->cell);
        expect_text(gemm_names[g], e->gemm, "GEMM", e);
        expect_text(operand_names[g][side], e->operand, "operand", e);
        if (!recipe) continue;
        const Operand *have = &recipe->plan.cell[g][side];
        const char *field = operand_difference(have, &cell);
        if (!field && have->source != cell.source) field = "source";
        if (field)
            expect_text(operand_field_text(have, field), operand_field_text(&cell, field), field,
                        e);
    }
    return plan;
}

// --- cases ---

CASE(inputs_are_the_generator_s) {
    read_fixture();
    for (int i = 0; i < 4; i++) {
        Tensor x = input(i);
        expect_input(x, fixture.inputs[i], "of a linear or the sweep");
        free(x.data);
    }
}

CASE(operands_of_every_recipe) {
    read_fixture();
    Device *d = device_cpu_open(1);
    int num_quantized = 0, seen = 0;
    for (int i = 0; i < num_recipes; i++) num_quantized += recipe_is_quantized(&recipes[i]);
    for (int i = 0; i < fixture.count; i++) {
        const Entry *entries = &fixture.entries[i];
        if (strcmp(entries->section, "recipe") != 0) continue;
        LinearPlan plan = plan_of(entries);
        const char *error = recipe_error(&plan, IN, OUT, TOKENS);
        EXPECT(!error, "%s: %s", entries->name, error);
        if (!error) expect_plan(entries, &plan, d);
        seen += recipe_find(entries->name) != NULL;
        i += NUM_GEMMS * NUM_SIDES - 1;
    }
    EXPECT_EQ_I64(seen, num_quantized, "quantised recipes in the fixture");
    d->close(d);
}

CASE(cells_that_no_recipe_has) {
    read_fixture();
    Tensor x = input(3);
    for (int i = 0; i < fixture.count; i++) {
        const Entry *e = &fixture.entries[i];
        if (strcmp(e->section, "sweep") != 0) continue;
        Operand cell = cell_of(e->cell);
        int token_operand = strcmp(e->gemm, "token") == 0;
        Single s;
        begin_single(&s, cell, x, FORM_VALUES, token_operand);
        make_single(&s, x, kept_amax(e, &cell));
        expect_values(&s.q, e);
        if (e->codes[0] != '-')
            expect_packed(e, x, token_operand, s.how.tag, s.how.rows_are_tokens);
        end_single(&s);
    }
    free(x.data);
}

static Tensor edge_input(const char *which) {
    if (strcmp(which, "tiny") == 0) return input_blocks(0, -130, 0);
    if (strcmp(which, "every") == 0) return input_every_maximum(11);
    if (strcmp(which, "huge") == 0) return input_blocks(16, 110, 0);
    return strcmp(which, "zero") == 0 ? input_zeros(9) : input_tensor(96, 160, 5, 1);
}

/* Number `index` of the sweep, on another tensor: an operand's values. */
static void expect_edge(Tensor x, const char *which, int index, const char *direction,
                        const char *want) {
    const Entry *entry = NULL;
    for (int i = 0; i < fixture.count && !entry; i++) {
        const Entry *e = &fixture.entries[i];
        if (strcmp(e->section, "sweep") == 0 && atoi(e->name) == index) entry = e;
    }
    REQUIRE(entry, "no cell %d", index);
    Entry e = *entry;
    snprintf(e.section, sizeof(e.section), "%s", which);
    snprintf(e.gemm, sizeof(e.gemm), "%s", direction);
    Operand cell = cell_of(e.cell);
    char kept[12];
    Single s;
    begin_single(&s, cell, x, FORM_VALUES, strcmp(direction, "token") == 0);
    snprintf(kept, sizeof(kept), "%08x", (unsigned)bits_from_f32(largest(x) * 0.3f));
    make_single(&s, x, kept_amax(&e, &cell) ? kept : NULL);
    expect_word(values_crc(&s.q), want, "CRC of values", &e);
    end_single(&s);
}

CASE(those_cells_at_the_edges_of_numbers_and_shapes) {
    char which[16] = "", direction[8], crc[12];
    Tensor x = {NULL, DT_BF16, 0, 0};
    int index, seen = 0;
    for (const char *line = read_fixture(); *line; line += strlen(line) + 1) {
        if (sscanf(line, "edge %15s %11s", which, crc) == 2) {
            free(x.data);
            x = edge_input(which);
            expect_input(x, crc, which);
        } else if (sscanf(line, "%d %7s %11s", &index, direction, crc) == 3) {
            expect_edge(x, which, index, direction, crc);
            seen++;
        }
    }
    free(x.data);
    EXPECT(seen > 4 * fixture.count / 2, "%d operands", seen);
}

static void expect_blocks(Tensor x, const char *line, int token_operand) {
    char amax[12], codes[12], scales[12], first[2][20], first_scales[8], got[40];
    const char *format = "%*s amax=%11s codes=%11s scales=%11s first=%19s %19s %7s";
    REQUIRE(sscanf(line, format, amax, codes, scales, first[0], first[1], first_scales) == 6, "%s",
            line);
    static const char *const cells[2] = {"format=nvfp4",
                                         "format=nvfp4 hadamard=16 rounding=stochastic"};
    Entry e;
    Single s;
    memset(&e, 0, sizeof(e));
    snprintf(e.cell, sizeof(e.cell), "%s", cells[token_operand]);
    snprintf(e.section, sizeof(e.section), "blocks");
    begin_single(&s, cell_of(e.cell), x, FORM_PACKED, token_operand);
    make_single(&s, x, NULL);
    const uint8_t *data = (const uint8_t *)s.q.data;
    expect_word(bits_from_f32(s.amax), amax, "maximum", &e);
    for (int b = 0; b < 2; b++) {
        for (int i = 0; i < 8; i++) snprintf(got + 2 * i, 3, "%02x", data[8 * b + i]);
        expect_text(got, first[b], "a first block", &e);
    }
    snprintf(got, sizeof(got), "%02x%02x", s.q.scales[0], s.q.scales[1]);
    expect_text(got, first_scales, "scales of first blocks", &e);
    expect_word(crc32_update(0, data, quantize_packed_bytes(s.q.rows, s.q.k)), codes,
                "CRC of codes", &e);
    expect_word(crc32_update(0, s.q.scales, quantize_scales_bytes(s.q.rows, s.q.k)), scales,
                "CRC of scales", &e);
    end_single(&s);
}

CASE(nvfp4_blocks_of_all_scales) {
    const char *line = read_fixture();
    int index, exponent, seen = 0;
    char kind[16];
    Tensor x = {NULL, DT_BF16, 0, 0};
    for (; *line; line += strlen(line) + 1) {
        if (sscanf(line, "blocks %d %d %15s", &index, &exponent, kind) == 3) {
            free(x.data);
            x = input_blocks(index, exponent, strcmp(kind, "ties") == 0);
            seen++;
        } else if (strncmp(line, "input ", 6) == 0) {
            expect_input(x, line + strlen("input "), kind);
        } else if (strncmp(line, "row ", 4) == 0 || strncmp(line, "token ", 6) == 0) {
            expect_blocks(x, line, line[0] == 't');
        }
    }
    free(x.data);
    EXPECT_EQ_I64(seen * INPUT_BLOCK_ROWS * INPUT_BLOCK_COLS / 16, 10240, "blocks");
}

TEST_MAIN_END
