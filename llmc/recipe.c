/*
recipe -- the tables of formats and recipes, and rules on them. Not here: what makes a plan
impossible (recipe_check.c), how an operand is quantised (ops/cell.h), who runs a plan (linear).
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
/* What a format stands for: the first fields of a cell, and of an operand without more the rest. */
#define FMT(format, elem, scale, block, outer, rule, amax, zero, top) \
    FORMAT_##format, DT_##elem, DT_##scale, block, outer, RULE_##rule, AMAX_##amax, ZERO_##zero, top
#define AS_F32    FMT(F32,        F32,  F32,   0,   0,   NEAREST, NONE,    KEEP,  0)
#define AS_BF16   FMT(BF16,       BF16, F32,   0,   0,   NEAREST, NONE,    KEEP,  0)
#define AS_NVFP4  FMT(NVFP4,      E2M1, E4M3,  16,  0,   NEAREST, CURRENT, KEEP,  448)
#define AS_NV256  FMT(NVFP4,      E2M1, E4M3,  16,  0,   NEAREST, CURRENT, KEEP,  256)
#define AS_ENCODE FMT(NVFP4,      E2M1, E4M3,  16,  0,   ENCODE,  CURRENT, KEEP,  240)
#define AS_OUTER  FMT(NVFP4,      E2M1, E4M3,  16,  128, NEAREST, NONE,    LEAST, 448)
#define AS_MXFP4  FMT(MXFP4,      E2M1, E8M0,  32,  0,   CEIL,    NONE,    KEEP,  0)
#define AS_FLOOR  FMT(MXFP4,      E2M1, E8M0,  32,  0,   FLOOR,   NONE,    KEEP,  0)
#define AS_QUEST  FMT(MXFP4,      E2M1, E8M0,  32,  0,   QUEST,   NONE,    KEEP,  0)
#define AS_MXFP8  FMT(MXFP8,      E4M3, E8M0,  32,  0,   CEIL,    NONE,    KEEP,  0)
#define AS_E4M3   FMT(E4M3,       E4M3, F32,   0,   0,   NEAREST, CURRENT, KEEP,  0)
#define AS_E5M2   FMT(E5M2,       E5M2, F32,   0,   0,   NEAREST, CURRENT, KEEP,  0)
#define AS_E4M3D  FMT(E4M3,       E4M3, F32,   0,   0,   NEAREST, DELAYED, KEEP,  0)
#define AS_E5M2D  FMT(E5M2,       E5M2, F32,   0,   0,   NEAREST, DELAYED, KEEP,  0)
#define AS_BLOCK  FMT(E4M3_BLOCK, E4M3, F32,   128, 0,   NEAREST, NONE,    KEEP,  0)
#define AS_UE5M3  FMT(UE5M3,      E2M1, UE5M3, 16,  0,   NEAREST, CURRENT, ONE,   448)
#define AS_HELD   FMT(UE5M3,      E2M1, UE5M3, 16,  0,   NEAREST, HELD,    ONE,   448)
#define AS_INT4   FMT(INT4,       E1M2, F32,   16,  0,   NEAREST, NONE,    KEEP,  0)

/* A cell: its format; tile; transform and its signs; rounding; source; headroom; selection; mask.
   8 random bits a value, 16 for eden. Arithmetic 2, 1 with a selection, as its authors have it. */
#define CELL(as, tile, hadamard, signs, rounding, source) \
    {AS_##as, TILE_##tile, hadamard, SIGNS_##signs, ROUND_##rounding, 8, SOURCE_##source, 0, \
     SELECT_NONE, 0, 2}
#define SEL(tile, hadamard, rounding, source) \
    {AS_NV256, TILE_##tile, hadamard, SIGNS_FIXED, ROUND_##rounding, 8, SOURCE_##source, 0, \
     SELECT_MSE, 0, 1}
#define EDEN(source) \
    {AS_NV256, TILE_ROW, 128, SIGNS_STEP, ROUND_EDEN, 16, SOURCE_##source, 0, SELECT_NONE, 0, 2}
#define PLAIN(as) \
    {AS_##as, TILE_ROW, 0, SIGNS_FIXED, ROUND_NEAREST, 8, SOURCE_TENSOR, 0, SELECT_NONE, 0, 2}

const Format formats[NUM_FORMATS] = {
    {"f32",        PLAIN(F32)},
    {"bf16",       PLAIN(BF16)},
    {"nvfp4",      PLAIN(NVFP4)},
    {"mxfp4",      PLAIN(MXFP4)},
    {"mxfp8",      PLAIN(MXFP8)},
    {"e4m3",       PLAIN(E4M3)},
    {"e5m2",       PLAIN(E5M2)},
    {"e4m3_block", PLAIN(BLOCK)},
    {"ue5m3",      PLAIN(UE5M3)},
    {"int4",       PLAIN(INT4)},
};

/* The cells that recipes are made of. */
#define F32        PLAIN(F32)
#define BF16       PLAIN(BF16)
#define NV_ROW     PLAIN(NVFP4)
#define NV_ROW_SR  CELL(NVFP4, ROW,    0,  FIXED, STOCHASTIC, TENSOR)
#define NV_RHT     CELL(NVFP4, ROW,    16, FIXED, NEAREST,    TENSOR)
#define NV_RHT_SR  CELL(NVFP4, ROW,    16, FIXED, STOCHASTIC, TENSOR)
#define NV_TILE    CELL(NVFP4, SQUARE, 0,  FIXED, NEAREST,    TENSOR)
#define NV_TILE_T  CELL(NVFP4, SQUARE, 0,  FIXED, NEAREST,    TRANSPOSED)
#define E4M3       PLAIN(E4M3)
#define E4M3_T     CELL(E4M3,  ROW,    0,  FIXED, NEAREST,    TRANSPOSED)
#define E5M2       PLAIN(E5M2)
#define E4M3D      PLAIN(E4M3D)
#define E4M3D_T    CELL(E4M3D, ROW,    0,  FIXED, NEAREST,    TRANSPOSED)
#define E5M2D      PLAIN(E5M2D)
#define BLOCK      PLAIN(BLOCK)
#define BLOCK_W    CELL(BLOCK, SQUARE, 0,  FIXED, NEAREST,    TENSOR)
#define BLOCK_WT   CELL(BLOCK, SQUARE, 0,  FIXED, NEAREST,    TRANSPOSED)
#define MX8        PLAIN(MXFP8)
#define MX_ROW     PLAIN(MXFP4)
#define MX_ROW_SR  CELL(MXFP4, ROW,    0,  FIXED, STOCHASTIC, TENSOR)
#define MX_RHT     CELL(MXFP4, ROW,    32, FIXED, NEAREST,    TENSOR)
#define MX_RHT_SR  CELL(MXFP4, ROW,    32, FIXED, STOCHASTIC, TENSOR)
#define MX_TILE    CELL(MXFP4, SQUARE, 0,  FIXED, NEAREST,    TENSOR)
#define MX_TILE_T  CELL(MXFP4, SQUARE, 0,  FIXED, NEAREST,    TRANSPOSED)
#define MX_LIBRARY CELL(FLOOR, ROW,    0,  FIXED, AWAY,       TENSOR)
#define ENC        PLAIN(ENCODE)
#define ENC_SR     CELL(ENCODE, ROW,   0,  FIXED, STOCHASTIC, TENSOR)
/* Quartet: clipped elements pass no gradient; backward 3/4 of the scale's range, so that nothing
   clips. */
#define QUEST \
    {AS_QUEST, TILE_ROW, 32, SIGNS_NONE, ROUND_NEAREST, 8, SOURCE_TENSOR, 0, SELECT_NONE, 1, 2}
#define QUARTET(source) \
    {AS_FLOOR, TILE_ROW, 32, SIGNS_STEP, ROUND_STOCHASTIC, 8, SOURCE_##source, 1, SELECT_NONE, 0, 2}
#define OUTER      PLAIN(OUTER)
#define OUTER_SR(source) \
    {AS_OUTER, TILE_ROW, 16, SIGNS_STEP, ROUND_STOCHASTIC, 8, SOURCE_##source, 0, SELECT_NONE, 0, 2}
#define HELD       PLAIN(HELD)
#define HELD_SR    CELL(HELD,  ROW,    0,  FIXED, STOCHASTIC, TENSOR)
#define HELD_W     CELL(HELD,  SQUARE, 0,  FIXED, NEAREST,    TENSOR)
#define HELD_WT    CELL(HELD,  SQUARE, 0,  FIXED, NEAREST,    TRANSPOSED)
#define INT4_RHT   CELL(INT4,  ROW,    16, FIXED, NEAREST,    TENSOR)
#define INT4_SR    CELL(INT4,  ROW,    16, FIXED, STOCHASTIC, TENSOR)

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
    {"fp8_delayed", "as fp8, scaled by the maxima of up to 1024 earlier steps", 0,
     {{{E4M3D, E4M3D}, {E5M2D, E4M3D_T}, {E5M2D, E4M3D}}}},
    {"fp8_block", "E4M3 in blocks of 1x128, weights 128x128: the FP8 reference of arXiv:2509.25149",
     0.03f, {{{BLOCK, BLOCK_W}, {BLOCK, BLOCK_WT}, {BLOCK, BLOCK}}}},
    {"mxfp8", "E4M3 in blocks of 1x32 with scales that are powers of two", 0,
     {{{MX8, MX8}, {MX8, MX8}, {MX8, MX8}}}},
    {"mxfp4", "MXFP4 as arXiv:2509.25149 compares it: 32x32 weight tiles, Hadamard 32 on wgrad, "
     "stochastic dY", 0.15f,
     {{{MX_ROW, MX_TILE}, {MX_ROW_SR, MX_TILE_T}, {MX_RHT_SR, MX_RHT}}}},
    {"fp4_all_the_way", "NVFP4 rows, stochastic dY and wgrad x, no Hadamard (arXiv:2505.19115)", 0,
     {{{NV_ROW, NV_ROW}, {NV_ROW_SR, NV_ROW}, {NV_ROW_SR, NV_ROW_SR}}}},
    {"fp4_all_the_way_encode", "the same with the encode multiplier rounded, not the scale", 0,
     {{{ENC, ENC}, {ENC_SR, ENC}, {ENC_SR, ENC_SR}}}},
    {"quartet", "MXFP4, Hadamard 32, clipped forward, stochastic backward (arXiv:2505.14669)", 0,
     {{{QUEST, QUEST}, {QUARTET(TENSOR), QUARTET(REQUANTIZED)},
       {QUARTET(TENSOR), QUARTET(REQUANTIZED)}}}},
    {"quartet2", "NVFP4, four-over-six forward, MS-EDEN backward (arXiv:2601.22813)", 0,
     {{{SEL(ROW, 0, NEAREST, TENSOR), SEL(ROW, 0, NEAREST, TENSOR)},
       {EDEN(TENSOR), EDEN(REQUANTIZED)}, {EDEN(TENSOR), EDEN(REQUANTIZED)}}}},
    {"four_over_six", "nvfp4 with the better of two block scales (arXiv:2512.02010)", 0.15f,
     {{{SEL(ROW, 0, NEAREST, TENSOR), SEL(SQUARE, 0, NEAREST, TENSOR)},
       {SEL(ROW, 0, STOCHASTIC, TENSOR), SEL(SQUARE, 0, NEAREST, TRANSPOSED)},
       {SEL(ROW, 16, STOCHASTIC, TENSOR), SEL(ROW, 16, NEAREST, TENSOR)}}}},
    {"tetrajet2", "NVFP4 under FP32 scales of 1x128, stochastic backward (arXiv:2510.27527)", 0,
     {{{OUTER, OUTER}, {OUTER_SR(TENSOR), OUTER_SR(REQUANTIZED)},
       {OUTER_SR(TENSOR), OUTER_SR(REQUANTIZED)}}}},
    {"ufp4", "uniform 4-bit grid, FP32 block scales, Hadamard on all GEMMs (arXiv:2606.20381)", 0,
     {{{INT4_RHT, INT4_RHT}, {INT4_SR, INT4_RHT}, {INT4_SR, INT4_RHT}}}},
    {"ue5m3", "FP4 with UE5M3 block scales, tensor maxima held for 50 steps (arXiv:2609.02846)", 0,
     {{{HELD, HELD_W}, {HELD_SR, HELD_WT}, {HELD_SR, HELD}}}},
    {"mx_library", "MXFP4 with the semantics of the microxcaling library: floor, ties away", 0,
     {{{MX_LIBRARY, MX_LIBRARY}, {MX_LIBRARY, MX_LIBRARY}, {MX_LIBRARY, MX_LIBRARY}}}},
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
            if (operand_is_quantized(&recipe->plan.cell[g][s])) return 1;
        }
    }
    return 0;
}

/* --- what a cell is --- */

static int is_made_as(const Operand *o, FormatId format) {
    const Operand *f = &formats[format].cell;
    return o->elem == f->elem && o->scale == f->scale && o->block == f->block &&
           o->outer == f->outer && o->scale_rule == f->scale_rule && o->zero_scale == f->zero_scale;
}

int operand_is_nvfp4(const Operand *o) {
    return is_made_as(o, FORMAT_NVFP4) && o->amax != AMAX_NONE && o->source != SOURCE_VALUES;
}

int operand_is_plain_nvfp4(const Operand *o) {
    int rounds = o->rounding == ROUND_NEAREST || o->rounding == ROUND_STOCHASTIC;
    int transforms = !o->hadamard || (o->hadamard == 16 && o->signs != SIGNS_STEP);
    return operand_is_nvfp4(o) && rounds && transforms && o->select == SELECT_NONE && !o->mask;
}

DType operand_values_dtype(const Operand *o) {
    if (o->elem == DT_F32) return DT_F32;
    if (!operand_has_blocks(o)) return DT_BF16;
    if (o->outer || o->scale_rule == RULE_ENCODE) return DT_F32;
    int bits = minifloat(o->elem).mantissa_bits + 1 + minifloat(o->scale).mantissa_bits + 1;
    return bits > minifloat(DT_BF16).mantissa_bits + 1 ? DT_F32 : DT_BF16;
}

float operand_elem_max(const Operand *o) { return minifloat(o->elem).max; }

float operand_top_scale(const Operand *o) {
    if (!operand_has_blocks(o)) return 1.0f;
    return o->top_scale ? (float)o->top_scale : minifloat(o->scale).max;
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
    Choice choices[12];   // texts end the list
} OperandField;
// clang-format off
#define FIELD(key) #key, offsetof(Operand, key)
static const OperandField operand_fields[] = {
    {FIELD(format), "number format of the operand; sets elem to top_scale to what it stands for",
     {{"f32", FORMAT_F32}, {"bf16", FORMAT_BF16}, {"nvfp4", FORMAT_NVFP4}, {"mxfp4", FORMAT_MXFP4},
      {"mxfp8", FORMAT_MXFP8}, {"e4m3", FORMAT_E4M3}, {"e5m2", FORMAT_E5M2},
      {"e4m3_block", FORMAT_E4M3_BLOCK}, {"ue5m3", FORMAT_UE5M3}, {"int4", FORMAT_INT4}}},
    {FIELD(elem), "format of an element",
     {{"e2m1", DT_E2M1}, {"e1m2", DT_E1M2}, {"e4m3", DT_E4M3}, {"e5m2", DT_E5M2}}},
    {FIELD(scale), "format of block scales; sets scale_rule, amax and top_scale to what is usual",
     {{"e4m3", DT_E4M3}, {"e8m0", DT_E8M0}, {"ue5m3", DT_UE5M3}, {"f32", DT_F32}, {"e1m6", DT_E1M6},
      {"e2m5", DT_E2M5}, {"e3m4", DT_E3M4}, {"e5m2", DT_E5M2}, {"e6m1", DT_E6M1}}},
    {FIELD(block), "elements that share a block scale",
     {{"8", 8}, {"16", 16}, {"32", 32}, {"64", 64}, {"128", 128}}},
    {FIELD(outer), "elements that share an FP32 scale above the block scales",
     {{"0", 0}, {"128", 128}}},
    {FIELD(scale_rule), "how a block's maximum becomes its scale; floor to quest: of e8m0",
     {{"nearest", RULE_NEAREST}, {"floor", RULE_FLOOR}, {"ceil", RULE_CEIL}, {"even", RULE_EVEN},
      {"quest", RULE_QUEST}, {"encode", RULE_ENCODE}}},
    {FIELD(amax), "where the tensor's FP32 scale comes from",
     {{"none", AMAX_NONE}, {"current", AMAX_CURRENT}, {"delayed", AMAX_DELAYED},
      {"held", AMAX_HELD}}},
    {FIELD(zero_scale), "what stands for a block scale that rounds to zero",
     {{"keep", ZERO_KEEP}, {"one", ZERO_ONE}, {"least", ZERO_LEAST}}},
    {FIELD(top_scale), "block scale that the tensor's maximum gets; max: the largest there is",
     {{"max", 0}, {"448", 448}, {"256", 256}, {"240", 240}, {"2048", 2048}}},
    {FIELD(tile), "what shares a scale: a row along the contraction, or a square, of weights only",
     {{"row", TILE_ROW}, {"square", TILE_SQUARE}}},
    {FIELD(hadamard), "size of the transform before quantising; the same on both operands",
     {{"0", 0}, {"4", 4}, {"8", 8}, {"16", 16}, {"32", 32}, {"64", 64}, {"128", 128}}},
    {FIELD(signs), "of that transform: one fixed vector, all +, or drawn for each step and GEMM",
     {{"fixed", SIGNS_FIXED}, {"none", SIGNS_NONE}, {"step", SIGNS_STEP}}},
    {FIELD(rounding), "to nearest (ties to even, or away from zero), up with a probability that "
     "keeps the mean, or MS-EDEN",
     {{"nearest", ROUND_NEAREST}, {"stochastic", ROUND_STOCHASTIC}, {"away", ROUND_AWAY},
      {"eden", ROUND_EDEN}}},
    {FIELD(dither_bits), "random bits a value in stochastic rounding",
     {{"8", 8}, {"16", 16}, {"24", 24}}},
    {FIELD(source), "of dgrad's w and wgrad's x: the tensor, fprop's codes or values read the "
     "other way, or quantised again from those",
     {{"tensor", SOURCE_TENSOR}, {"transposed", SOURCE_TRANSPOSED}, {"values", SOURCE_VALUES},
      {"requantized", SOURCE_REQUANTIZED}}},
    {FIELD(headroom), "1: block scales 17/16 (powers of two: 4/3) larger, so that stochastic "
     "rounding never clips",
     {{"0", 0}, {"1", 1}}},
    {FIELD(select), "four-over-six: the better of two block scales, by squared or absolute error",
     {{"none", SELECT_NONE}, {"mse", SELECT_MSE}, {"mae", SELECT_MAE}}},
    {FIELD(mask), "of fprop: 1: elements that clipped pass no gradient; 0 on dgrad (for x) and "
     "wgrad (for w) lifts it, too",
     {{"0", 0}, {"1", 1}}},
    {FIELD(arithmetic), "of block scales: 2 as TransformerEngine has it, 1 as the paper has it",
     {{"2", 2}, {"1", 1}}},
};
// clang-format on

/* Every field of Operand is an int or an enum of its size, which lets a row be an offset. */
static int *operand_field(Operand *o, int i) {
    return (int *)((char *)o + operand_fields[i].offset);
}

const char *operand_difference(const Operand *a, const Operand *b) {
    Operand left = *a, right = *b;
    left.source = right.source;
    for (int i = 0; i < ARRAY_LEN(operand_fields); i++)
        if (*operand_field(&left, i) != *operand_field(&right, i)) return operand_fields[i].key;
    return NULL;
}

const char *operand_field_text(const Operand *o, const char *key) {
    Operand cell = *o;
    for (int i = 0; i < ARRAY_LEN(operand_fields); i++) {
        const OperandField *field = &operand_fields[i];
        if (strcmp(key, field->key) != 0) continue;
        for (int c = 0; c < ARRAY_LEN(field->choices) && field->choices[c].text; c++)
            if (field->choices[c].value == *operand_field(&cell, i)) return field->choices[c].text;
    }
    CHECK(0, "no field \"%s\"", key);
    return NULL;
}

static char message[1024];   // what rule_set and rule_error return

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
    static char keys[512];
    int at = 0;
    for (int i = 0; rule_key(i); i++)
        at += snprintf(keys + at, sizeof(keys) - at, "%s%s", i ? ", " : "", rule_key(i));
    return keys;
}

enum { BACKWARD_GEMMS = 1u << GEMM_DGRAD | 1u << GEMM_WGRAD };

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
    if (strcmp(value, "backward") == 0) {
        rule->gemms = BACKWARD_GEMMS;
        return NULL;
    }
    snprintf(message, sizeof(message),
             "\"%s\" is not a GEMM; legal: fprop, dgrad, wgrad, backward, *", value);
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
    {"gemm", "that GEMM of these, backward for dgrad and wgrad, * for all"},
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
    if (gemms == BACKWARD_GEMMS) return "backward";
    for (int g = 0; g < NUM_GEMMS; g++) {
        if (gemms == 1u << g) return gemm_names[g];
    }
    return NULL;
}

static int sets_field(const Rule *rule, const char *key) {
    for (int i = 0; i < ARRAY_LEN(operand_fields); i++)
        if (strcmp(operand_fields[i].key, key) == 0) return rule->set >> i & 1u;
    return 0;
}

const char *rule_get(const Rule *rule, const char *key) {
    if (strcmp(key, "layers") == 0) return rule->layers;
    if (strcmp(key, "gemm") == 0) return gemms_text(rule->gemms);
    if (strcmp(key, "operand") == 0) return strcmp(rule->operand, "*") ? rule->operand : NULL;
    if (strcmp(key, "recipe") == 0) return rule->recipe ? rule->recipe->name : NULL;
    return sets_field(rule, key) ? operand_field_text(&rule->fields, key) : NULL;
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

int rule_sets(const Rule *rule) { return rule->recipe || rule->set; }

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

/* A new scale format brings its usual rule, and a tensor scale where its range asks for one. */
static void take_usual_scaling(Operand *cell, DType scale) {
    if (!operand_has_blocks(cell)) return;
    int has_range = scale == DT_E8M0 || scale == DT_F32;
    cell->scale_rule = scale == DT_E8M0 ? RULE_CEIL : RULE_NEAREST;
    cell->amax = has_range ? AMAX_NONE : AMAX_CURRENT;
    cell->top_scale = 0;
}

/* A rule's format and scale come first, so that its other fields change what these stand for. */
static void overwrite_fields(Operand *cell, const Rule *rule) {
    Operand fields = rule->fields;
    if (sets_field(rule, "format")) {
        Operand made = formats[fields.format].cell;
        memcpy(&made.tile, &cell->tile, sizeof(made) - offsetof(Operand, tile));
        *cell = made;
    }
    if (sets_field(rule, "scale")) take_usual_scaling(cell, fields.scale);
    for (int i = 0; i < ARRAY_LEN(operand_fields); i++) {
        if (rule->set >> i & 1u) *operand_field(cell, i) = *operand_field(&fields, i);
    }
    const Operand *usual = &formats[cell->format].cell;
    if (!operand_is_quantized(usual)) memcpy(cell, usual, offsetof(Operand, tile));
}

/* A mask is fprop's, but what it drops are gradients: a rule on the GEMM that makes these lifts it,
   so that one rule can bring a masked recipe's backward pass into a format without blocks. */
static void lift_masks(const Rule *rule, LinearPlan *plan) {
    if (!sets_field(rule, "mask") || rule->fields.mask) return;
    if (rule_takes(rule, GEMM_DGRAD, SIDE_B)) plan->cell[GEMM_FPROP][SIDE_A].mask = 0;
    if (rule_takes(rule, GEMM_WGRAD, SIDE_B)) plan->cell[GEMM_FPROP][SIDE_B].mask = 0;
}

static void rule_apply(const Rule *rule, LinearPlan *plan) {
    for (int g = 0; g < NUM_GEMMS; g++) {
        for (int s = 0; s < NUM_SIDES; s++) {
            if (!rule_takes(rule, (GemmKind)g, (Side)s)) continue;
            Operand *cell = &plan->cell[g][s];
            if (rule->recipe) *cell = rule->recipe->plan.cell[g][s];
            overwrite_fields(cell, rule);
        }
    }
    lift_masks(rule, plan);
}

/* What would be taken over from an operand of fprop that is not quantised is made of the tensor:
   the same codes as if fprop had made them. */
static void make_from_tensors(LinearPlan *plan) {
    for (int g = GEMM_DGRAD; g <= GEMM_WGRAD; g++) {
        Operand *o = &plan->cell[g][SIDE_B];
        const Operand *fprop = &plan->cell[GEMM_FPROP][g == GEMM_DGRAD ? SIDE_B : SIDE_A];
        if (operand_is_quantized(o) && !operand_is_quantized(fprop)) o->source = SOURCE_TENSOR;
    }
}

LinearPlan recipe_resolve(const Recipe *base, const Rule *rules, int num_rules,
                          const char *linear_name) {
    LinearPlan plan = base->plan;
    for (int i = 0; i < num_rules; i++) {
        if (rule_matches(&rules[i], linear_name)) rule_apply(&rules[i], &plan);
    }
    make_from_tensors(&plan);
    return plan;
}
