/*
recipe -- the tables of formats and recipes, rules on them, and what makes a plan impossible.
Not here: how an operand is quantised (ops/quantize), who runs a plan (linear).
*/
#include "recipe.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

const char *const gemm_names[NUM_GEMMS] = {"fprop", "dgrad", "wgrad"};
const char *const operand_names[NUM_GEMMS][NUM_SIDES] = {{"x", "w"}, {"dy", "w"}, {"dy", "x"}};

// clang-format off
const Format formats[NUM_FORMATS] = {
    // name     elem     scale    block tensor_scale elem_max scale_max
    {"f32",   DT_F32,  DT_F32,  0,    0,           0,       0},
    {"bf16",  DT_BF16, DT_F32,  0,    0,           0,       0},
    {"nvfp4", DT_E2M1, DT_E4M3, 16,   1,           6,       448},
    {"e4m3",  DT_E4M3, DT_F32,  0,    1,           448,     0},
    {"e5m2",  DT_E5M2, DT_F32,  0,    1,           57344,   0},
};
// clang-format on

// clang-format off
/* The cells that recipes are made of. What they do not say is the default of CELL: fixed signs, 8
   random bits, no headroom, top scale 448, arithmetic 2. */
#define CELL(format, tile, hadamard, rounding, source) \
    {FORMAT_##format, TILE_##tile, hadamard, SIGNS_FIXED, ROUND_##rounding, 8, SOURCE_##source, 0, \
     448, 2}
#define F32        CELL(F32,   ROW,    0,  NEAREST,    TENSOR)
#define BF16       CELL(BF16,  ROW,    0,  NEAREST,    TENSOR)
#define NV_ROW     CELL(NVFP4, ROW,    0,  NEAREST,    TENSOR)
#define NV_ROW_SR  CELL(NVFP4, ROW,    0,  STOCHASTIC, TENSOR)
#define NV_RHT     CELL(NVFP4, ROW,    16, NEAREST,    TENSOR)
#define NV_RHT_SR  CELL(NVFP4, ROW,    16, STOCHASTIC, TENSOR)
#define NV_TILE    CELL(NVFP4, SQUARE, 0,  NEAREST,    TENSOR)
#define NV_TILE_T  CELL(NVFP4, SQUARE, 0,  NEAREST,    TRANSPOSED)
#define E4M3       CELL(E4M3,  ROW,    0,  NEAREST,    TENSOR)
#define E4M3_T     CELL(E4M3,  ROW,    0,  NEAREST,    TRANSPOSED)
#define E5M2       CELL(E5M2,  ROW,    0,  NEAREST,    TENSOR)

const Recipe recipes[] = {
    // name, summary, share of blocks kept in BF16, {fprop {x, w}, dgrad {dy, w}, wgrad {dy, x}}
    {"f32",   "32-bit floating point throughout; CPU only", 0,
     {{{F32, F32}, {F32, F32}, {F32, F32}}}},
    {"bf16",  "bfloat16 operands, 32-bit accumulation: the baseline", 0,
     {{{BF16, BF16}, {BF16, BF16}, {BF16, BF16}}}},
    {"nvfp4", "NVIDIA's recipe (arXiv:2509.25149): 16x16 weight tiles, Hadamard on wgrad, "
     "stochastic dY", 0.15f,
     {{{NV_ROW, NV_TILE}, {NV_ROW_SR, NV_TILE_T}, {NV_RHT_SR, NV_RHT}}}},
    {"fp8",   "8-bit floating point, E4M3 forward, E5M2 dY, one scale a tensor by its maximum", 0,
     {{{E4M3, E4M3}, {E5M2, E4M3_T}, {E5M2, E4M3}}}},
};
// clang-format on
const int num_recipes = ARRAY_LEN(recipes);

const Recipe *recipe_find(const char *name) {
    for (int i = 0; i < num_recipes; i++) {
        if (strcmp(recipes[i].name, name) == 0) return &recipes[i];
    }
    return NULL;
}

int recipe_is_quantized(const Recipe *recipe) {
    for (int g = 0; g < NUM_GEMMS; g++) {
        for (int s = 0; s < NUM_SIDES; s++) {
            if (format_is_quantized(recipe->plan.cell[g][s].format)) return 1;
        }
    }
    return 0;
}

/* --- rules --- */

/* One row a field of Operand that a rule can set: what it says, its legal texts, and what each
   stands for. */
typedef struct {
    const char *text;
    int value;
} Choice;
typedef struct {
    const char *key;
    size_t offset;
    const char *help;
    Choice choices[5];
} OperandField;
// clang-format off
#define FIELD(key) #key, offsetof(Operand, key)
static const OperandField operand_fields[] = {
    {FIELD(format), "number format of the operand",
     {{"f32", FORMAT_F32}, {"bf16", FORMAT_BF16}, {"nvfp4", FORMAT_NVFP4},
      {"e4m3", FORMAT_E4M3}, {"e5m2", FORMAT_E5M2}}},
    {FIELD(tile), "what shares a scale: 1x16 along the contraction, or 16x16, of weights only",
     {{"row", TILE_ROW}, {"square", TILE_SQUARE}}},
    {FIELD(hadamard), "size of the transform before quantising; the same on both operands",
     {{"0", 0}, {"16", 16}}},
    {FIELD(signs), "of that transform: the fixed sign vector, or all +",
     {{"fixed", SIGNS_FIXED}, {"none", SIGNS_NONE}}},
    {FIELD(rounding), "to nearest even, or up with a probability that keeps the mean",
     {{"nearest", ROUND_NEAREST}, {"stochastic", ROUND_STOCHASTIC}}},
    {FIELD(dither_bits), "random bits a value in stochastic rounding",
     {{"8", 8}, {"16", 16}, {"24", 24}}},
    {FIELD(source), "of dgrad's w: quantised anew, or fprop's codes read the other way",
     {{"tensor", SOURCE_TENSOR}, {"transposed", SOURCE_TRANSPOSED}}},
    {FIELD(headroom), "1: block scales 17/16 larger, so that stochastic rounding never clips",
     {{"0", 0}, {"1", 1}}},
    {FIELD(top_scale), "block scale that the tensor's maximum gets",
     {{"448", 448}, {"256", 256}}},
    {FIELD(arithmetic), "of block scales: 2 as TransformerEngine has it, 1 as the paper has it",
     {{"2", 2}, {"1", 1}}},
};
// clang-format on

/* Every field of Operand is an int or an enum of its size, which lets a row be an offset. */
static int *operand_field(Operand *o, int i) {
    return (int *)((char *)o + operand_fields[i].offset);
}

static char message[512];   // what rule_set and recipe_error return

static const char *choices_message(const char *key, const char *value, const Choice *choices,
                                   int count) {
    int at = snprintf(message, sizeof(message), "\"%.64s\" is not a value of \"%s\"; legal:", value,
                      key);
    for (int i = 0; i < count && choices[i].text; i++) {
        at += snprintf(message + at, sizeof(message) - at, "%s %s", i ? "," : "", choices[i].text);
    }
    return message;
}

Rule rule_default(void) {
    Rule rule;
    memset(&rule, 0, sizeof(rule));
    snprintf(rule.layers, sizeof(rule.layers), "*");
    snprintf(rule.operand, sizeof(rule.operand), "*");
    rule.gemms = (1u << NUM_GEMMS) - 1;
    return rule;
}

const char *rule_keys(void) {
    return "layers, gemm, operand, recipe, format, tile, hadamard, signs, rounding, dither_bits, "
           "source, "
           "headroom, top_scale, arithmetic";
}

static const char *rule_set_gemm(Rule *rule, const char *value) {
    if (strcmp(value, "*") == 0) {
        rule->gemms = (1u << NUM_GEMMS) - 1;
        return NULL;
    }
    for (int g = 0; g < NUM_GEMMS; g++) {
        if (strcmp(value, gemm_names[g]) == 0) {
            rule->gemms = 1u << g;
            return NULL;
        }
    }
    snprintf(message, sizeof(message), "\"%s\" is not a GEMM; legal: fprop, dgrad, wgrad, *",
             value);
    return message;
}

static const char *rule_set_operand(Rule *rule, const char *value) {
    if (strcmp(value, "x") && strcmp(value, "w") && strcmp(value, "dy") && strcmp(value, "*")) {
        snprintf(message, sizeof(message), "\"%s\" is not an operand; legal: x, w, dy, *", value);
        return message;
    }
    snprintf(rule->operand, sizeof(rule->operand), "%s", value);
    return NULL;
}

static const char *rule_set_recipe(Rule *rule, const char *value) {
    rule->recipe = recipe_find(value);
    if (rule->recipe) return NULL;
    int at = snprintf(message, sizeof(message), "\"%.64s\" is not a recipe; legal:", value);
    for (int i = 0; i < num_recipes; i++) {
        at += snprintf(message + at, sizeof(message) - at, "%s %s", i ? "," : "", recipes[i].name);
    }
    return message;
}

/* Whether the segment is a range of numbers, "10-11"; not with more digits than blocks have. */
static int segment_range(const char *segment, int length, int *first, int *last) {
    char text[16];
    int used = 0;
    if (length >= (int)sizeof(text)) return 0;
    memcpy(text, segment, (size_t)length);
    text[length] = '\0';
    return sscanf(text, "%7d-%7d%n", first, last, &used) == 2 && used == length && *first >= 0;
}

static const char *rule_set_layers(Rule *rule, const char *value) {
    if (value[0] == '\0' || strlen(value) >= sizeof(rule->layers)) {
        snprintf(message, sizeof(message),
                 "\"%.64s\" is not a layer pattern; legal: names, numbers, ranges and * between "
                 "dots, like blocks.10-11.*, up to %d characters",
                 value, (int)sizeof(rule->layers) - 1);
        return message;
    }
    int first, last;
    for (const char *segment = value; segment; segment = strchr(segment, '.')) {
        segment += *segment == '.';
        int length = (int)strcspn(segment, ".");
        if (!segment_range(segment, length, &first, &last)) continue;
        if (first <= last) continue;
        snprintf(message, sizeof(message), "\"%.64s\": a range of blocks goes up, like 10-11",
                 value);
        return message;
    }
    snprintf(rule->layers, sizeof(rule->layers), "%s", value);
    return NULL;
}

const char *rule_set(Rule *rule, const char *key, const char *value) {
    if (strcmp(key, "layers") == 0) return rule_set_layers(rule, value);
    if (strcmp(key, "gemm") == 0) return rule_set_gemm(rule, value);
    if (strcmp(key, "operand") == 0) return rule_set_operand(rule, value);
    if (strcmp(key, "recipe") == 0) return rule_set_recipe(rule, value);
    for (int i = 0; i < ARRAY_LEN(operand_fields); i++) {
        const OperandField *field = &operand_fields[i];
        if (strcmp(key, field->key) != 0) continue;
        for (int c = 0; c < ARRAY_LEN(field->choices) && field->choices[c].text; c++) {
            if (strcmp(value, field->choices[c].text) != 0) continue;
            *operand_field(&rule->fields, i) = field->choices[c].value;
            rule->set |= 1u << i;
            return NULL;
        }
        return choices_message(key, value, field->choices, ARRAY_LEN(field->choices));
    }
    snprintf(message, sizeof(message), "\"%.64s\" is not a key of a precision rule; legal: %s", key,
             rule_keys());
    return message;
}

static const struct {
    const char *key, *help;
} rule_heads[] = {
    {"layers", "the linears whose names match"},
    {"gemm", "that GEMM of these, * for all"},
    {"operand", "that operand of it, * for both"},
    {"recipe", "takes over the recipe's cells, before the fields below"},
};

const char *rule_key(int i) {
    int field = i - ARRAY_LEN(rule_heads);
    if (field < 0) return rule_heads[i].key;
    return field < ARRAY_LEN(operand_fields) ? operand_fields[field].key : NULL;
}

const char *rule_help(const char *key) {
    for (int i = 0; rule_key(i); i++) {
        if (strcmp(key, rule_key(i)) != 0) continue;
        int field = i - ARRAY_LEN(rule_heads);
        return field < 0 ? rule_heads[i].help : operand_fields[field].help;
    }
    CHECK(0, "\"%s\" is no key of a rule", key);
    return NULL;
}

static const char *gemms_text(unsigned gemms) {
    for (int g = 0; g < NUM_GEMMS; g++) {
        if (gemms == 1u << g) return gemm_names[g];
    }
    return NULL;
}

const char *rule_get(const Rule *rule, const char *key) {
    if (strcmp(key, "layers") == 0) return rule->layers;
    if (strcmp(key, "gemm") == 0) return gemms_text(rule->gemms);
    if (strcmp(key, "operand") == 0) return strcmp(rule->operand, "*") ? rule->operand : NULL;
    if (strcmp(key, "recipe") == 0) return rule->recipe ? rule->recipe->name : NULL;
    Operand fields = rule->fields;
    for (int i = 0; i < ARRAY_LEN(operand_fields); i++) {
        const OperandField *field = &operand_fields[i];
        if (strcmp(key, field->key) != 0 || !(rule->set >> i & 1u)) continue;
        for (int c = 0; c < ARRAY_LEN(field->choices) && field->choices[c].text; c++) {
            if (field->choices[c].value == *operand_field(&fields, i))
                return field->choices[c].text;
        }
    }
    return NULL;
}

/* One segment between dots: "*", "10-11" against a number, or the same text. */
static int segment_matches(const char *pattern, int pattern_len, const char *name, int name_len) {
    if (pattern_len == 1 && pattern[0] == '*') return 1;
    int first, last;
    if (segment_range(pattern, pattern_len, &first, &last) && isdigit((unsigned char)*name)) {
        int number = atoi(name);
        return first <= number && number <= last;
    }
    return pattern_len == name_len && memcmp(pattern, name, name_len) == 0;
}

/* A trailing "*" covers all remaining segments, a leading "*" any number of them. */
static int name_matches(const char *pattern, const char *name) {
    if (strcmp(pattern, "*") == 0) return 1;
    int pattern_len = (int)strcspn(pattern, "."), name_len = (int)strcspn(name, ".");
    if (pattern[0] == '*' &&
        pattern_len == 1) {   // leading or middle star: skip 1 or more segments
        for (const char *rest = strchr(name, '.'); rest; rest = strchr(rest + 1, '.')) {
            if (name_matches(pattern + 2, rest + 1)) return 1;
        }
        return 0;
    }
    if (!segment_matches(pattern, pattern_len, name, name_len)) return 0;
    if (pattern[pattern_len] == '\0' || name[name_len] == '\0') {
        return pattern[pattern_len] == '\0' && name[name_len] == '\0';
    }
    return name_matches(pattern + pattern_len + 1, name + name_len + 1);
}

int rule_matches(const Rule *rule, const char *linear_name) {
    return name_matches(rule->layers, linear_name);
}

static int rule_takes(const Rule *rule, GemmKind g, Side s) {
    if (!(rule->gemms >> g & 1u)) return 0;
    return strcmp(rule->operand, "*") == 0 || strcmp(rule->operand, operand_names[g][s]) == 0;
}

const char *rule_error(const Rule *rule) {
    int at =
        snprintf(message, sizeof(message), "no such operand \"%s\"; operands of", rule->operand);
    for (int g = 0; g < NUM_GEMMS; g++) {
        for (int s = 0; s < NUM_SIDES; s++) {
            if (rule_takes(rule, (GemmKind)g, (Side)s)) return NULL;
        }
        if (!(rule->gemms >> g & 1u)) continue;
        at += snprintf(message + at, sizeof(message) - at, " %s: %s, %s", gemm_names[g],
                       operand_names[g][SIDE_A], operand_names[g][SIDE_B]);
    }
    return message;
}

static void rule_apply(const Rule *rule, LinearPlan *plan) {
    for (int g = 0; g < NUM_GEMMS; g++) {
        for (int s = 0; s < NUM_SIDES; s++) {
            if (!rule_takes(rule, (GemmKind)g, (Side)s)) continue;
            Operand *cell = &plan->cell[g][s];
            if (rule->recipe) *cell = rule->recipe->plan.cell[g][s];
            Operand fields = rule->fields;
            for (int i = 0; i < ARRAY_LEN(operand_fields); i++) {
                if (rule->set >> i & 1u) *operand_field(cell, i) = *operand_field(&fields, i);
            }
        }
    }
}

LinearPlan recipe_resolve(const Recipe *base, const Rule *rules, int num_rules,
                          const char *linear_name) {
    LinearPlan plan = base->plan;
    for (int i = 0; i < num_rules; i++) {
        if (rule_matches(&rules[i], linear_name)) rule_apply(&rules[i], &plan);
    }
    return plan;
}

/* --- refusals --- */

static const char *size_message(const char *what, int64_t size, int multiple, const char *why) {
    int64_t below = size / multiple * multiple, above = below + multiple;
    int at = snprintf(message, sizeof(message),
                      "%s is %lld, but %s must be a multiple of %d; "
                      "nearest: ",
                      what, (long long)size, why, multiple);
    if (below > 0) {
        at += snprintf(message + at, sizeof(message) - at, "%lld or ", (long long)below);
    }
    snprintf(message + at, sizeof(message) - at, "%lld", (long long)above);
    return message;
}

/* Codes that are taken over from fprop.w are what that cell made: dgrad.w may not claim otherwise.
   Square tiles, which a Hadamard transform never has, are the same in both directions, and so is
   what has no blocks. */
static const char *transposed_error(const LinearPlan *plan, GemmKind g, Side s) {
    const Operand *w = &plan->cell[GEMM_FPROP][SIDE_B];
    Operand o = plan->cell[g][s], fprop = *w;
    if (g != GEMM_DGRAD || s != SIDE_B) {
        snprintf(message, sizeof(message),
                 "%s.%s: source transposed is for dgrad.w alone; set source to tensor",
                 gemm_names[g], operand_names[g][s]);
        return message;
    }
    fprop.source = o.source;
    int i = 0, num_fields = ARRAY_LEN(operand_fields);
    while (i < num_fields && *operand_field(&o, i) == *operand_field(&fprop, i)) i++;
    if (i == num_fields && (w->tile == TILE_SQUARE || !format_has_blocks(w->format))) return NULL;
    snprintf(message, sizeof(message),
             "dgrad.w: source transposed shares the codes of fprop.w, %s%s%s; change both alike "
             "(gemm \"*\", operand \"w\"), or set precision.dgrad.w.source=tensor",
             i < num_fields ? "but its " : "which wants square tiles",
             i < num_fields ? operand_fields[i].key : "", i < num_fields ? " is another" : "");
    return message;
}

/* What needs blocks of 16 along the contraction. */
static const char *blockless_error(const Operand *o, const char *gemm, const char *operand) {
    int stochastic = o->rounding == ROUND_STOCHASTIC;
    if (!o->hadamard && !stochastic) return NULL;
    snprintf(message, sizeof(message), "%s.%s: %s has no %s; set precision.%s.%s.%s", gemm, operand,
             formats[o->format].name, o->hadamard ? "Hadamard transform" : "stochastic rounding",
             gemm, operand, o->hadamard ? "hadamard=0" : "rounding=nearest");
    return message;
}

static const char *cell_error(const LinearPlan *plan, GemmKind g, Side s) {
    const Operand *o = &plan->cell[g][s];
    const char *gemm = gemm_names[g], *operand = operand_names[g][s];
    if (!format_is_quantized(o->format)) return NULL;
    if (o->source == SOURCE_TRANSPOSED) return transposed_error(plan, g, s);
    if (!format_has_blocks(o->format)) return blockless_error(o, gemm, operand);
    if (o->tile == TILE_SQUARE && (o->hadamard || strcmp(operand, "w") != 0)) {
        snprintf(message, sizeof(message), "%s.%s: square tiles are for weights without Hadamard",
                 gemm, operand);
        return message;
    }
    return NULL;
}

static const char *pair_error(const LinearPlan *plan, GemmKind g) {
    const Operand *a = &plan->cell[g][SIDE_A], *b = &plan->cell[g][SIDE_B];
    int a_is_f32 = a->format == FORMAT_F32, b_is_f32 = b->format == FORMAT_F32;
    if (a_is_f32 != b_is_f32) {
        snprintf(message, sizeof(message), "%s: one operand is f32 and the other is not",
                 gemm_names[g]);
        return message;
    }
    int a_size = format_is_quantized(a->format) ? a->hadamard : 0;
    int b_size = format_is_quantized(b->format) ? b->hadamard : 0;
    if (a_size != b_size || (a_size && a->signs != b->signs)) {
        snprintf(message, sizeof(message),
                 "%s: the Hadamard transform must be the same on both operands (size %d and "
                 "%d), or the product changes; the rule {\"gemm\": \"%s\", %s} sets both",
                 gemm_names[g], a_size, b_size, gemm_names[g],
                 a_size != b_size ? "\"hadamard\": 0" : "\"signs\": \"fixed\"");
        return message;
    }
    int both_have_blocks = format_has_blocks(a->format) && format_has_blocks(b->format);
    if (both_have_blocks && formats[a->format].block != formats[b->format].block) {
        snprintf(message, sizeof(message), "%s: block sizes differ, %d and %d", gemm_names[g],
                 formats[a->format].block, formats[b->format].block);
        return message;
    }
    return NULL;
}

const char *recipe_error(const LinearPlan *plan, int in_features, int out_features,
                         int64_t tokens) {
    int quantized = 0;
    for (int g = 0; g < NUM_GEMMS; g++) {
        const char *error = pair_error(plan, (GemmKind)g);
        if (error) return error;
        for (int s = 0; s < NUM_SIDES; s++) {
            error = cell_error(plan, (GemmKind)g, (Side)s);
            if (error) return error;
            quantized |= format_is_quantized(plan->cell[g][s].format);
        }
    }
    if (!quantized) return NULL;
    if (in_features % 32)
        return size_message("in-features", in_features, 32, "a quantised linear's in-features");
    if (out_features % 32)
        return size_message("out-features", out_features, 32, "a quantised linear's out-features");
    if (tokens % 32)
        return size_message("batch.micro x batch.seq_len", tokens, 32, "tokens per micro-step");
    return NULL;
}

const char *operand_describe(const Operand *o, char *buffer, int size) {
    const Format *f = &formats[o->format];
    int at = snprintf(buffer, size, "%s", f->name);
    if (f->block)
        at += snprintf(buffer + at, size - at, " %dx%d", o->tile == TILE_SQUARE ? f->block : 1,
                       f->block);
    if (format_is_quantized(o->format) && o->source == SOURCE_TRANSPOSED)
        at += snprintf(buffer + at, size - at, "T");
    if (!f->block) return buffer;
    if (o->hadamard) {
        at += snprintf(buffer + at, size - at, " %s%d", o->signs == SIGNS_FIXED ? "rht" : "ht",
                       o->hadamard);
    }
    if (o->rounding == ROUND_STOCHASTIC)
        at += snprintf(buffer + at, size - at, " sr%d", o->dither_bits);
    if (o->headroom) at += snprintf(buffer + at, size - at, " headroom");
    if (o->top_scale != (int)f->scale_max)
        at += snprintf(buffer + at, size - at, " top%d", o->top_scale);
    if (o->arithmetic == 1) snprintf(buffer + at, size - at, " v1");
    return buffer;
}
