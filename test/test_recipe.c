/*
test_recipe -- precision as data: what the recipes' cells are, which linears a rule reaches, that
the last match wins, every refusal with its message, and the plans and parameter counts of whole
models.
*/
#include "common.h"
#include "config.h"
#include "model.h"
#include "plan.h"
#include "recipe.h"
#include "test.h"

static Rule rule_of(int num_pairs, const char *const pairs[][2]) {
    Rule rule = rule_default();
    for (int i = 0; i < num_pairs; i++) {
        const char *error = rule_set(&rule, pairs[i][0], pairs[i][1]);
        EXPECT(error == NULL, "%s = %s: %s", pairs[i][0], pairs[i][1], error);
    }
    return rule;
}

static LinearPlan resolve(const char *recipe, int num_rules, const Rule *rules, const char *name) {
    return recipe_resolve(recipe_find(recipe), rules, num_rules, name);
}

/* --- the tables --- */

#define OUTER   "nvfp4 1x16 amax:none zero:least outer128"
#define OUTER_Q "nvfp4 1x16Q amax:none zero:least outer128"
#define SR      " rht16/step sr8"
#define LIBRARY "mxfp4 1x32 floor away"

static const struct {
    const char *recipe, *cells[NUM_GEMMS][NUM_SIDES];
} recipe_cells[] = {
    {"f32", {{"f32", "f32"}, {"f32", "f32"}, {"f32", "f32"}}},
    {"bf16", {{"bf16", "bf16"}, {"bf16", "bf16"}, {"bf16", "bf16"}}},
    // arXiv:2509.25149 section 4: rounding of dY alone is stochastic, the transform is wgrad's
    {"nvfp4",
     {{"nvfp4 1x16", "nvfp4 16x16"},
      {"nvfp4 1x16 sr8", "nvfp4 16x16T"},
      {"nvfp4 1x16 rht16 sr8", "nvfp4 1x16 rht16"}}},
    // dev/NUMERICS.md 5d: current scaling, HYBRID
    {"fp8", {{"e4m3", "e4m3"}, {"e5m2", "e4m3T"}, {"e5m2", "e4m3"}}},
    {"fp8_delayed",
     {{"e4m3 amax:delayed", "e4m3 amax:delayed"},
      {"e5m2 amax:delayed", "e4m3T amax:delayed"},
      {"e5m2 amax:delayed", "e4m3 amax:delayed"}}},
    {"fp8_block",
     {{"e4m3_block 1x128", "e4m3_block 128x128"},
      {"e4m3_block 1x128", "e4m3_block 128x128T"},
      {"e4m3_block 1x128", "e4m3_block 1x128"}}},
    {"mxfp8",
     {{"mxfp8 1x32", "mxfp8 1x32"}, {"mxfp8 1x32", "mxfp8 1x32"}, {"mxfp8 1x32", "mxfp8 1x32"}}},
    {"mxfp4",
     {{"mxfp4 1x32", "mxfp4 32x32"},
      {"mxfp4 1x32 sr8", "mxfp4 32x32T"},
      {"mxfp4 1x32 rht32 sr8", "mxfp4 1x32 rht32"}}},
    // dev/NUMERICS.md 5b: no tiles, no transform; wgrad's x is stochastic too
    {"fp4_all_the_way",
     {{"nvfp4 1x16", "nvfp4 1x16"},
      {"nvfp4 1x16 sr8", "nvfp4 1x16"},
      {"nvfp4 1x16 sr8", "nvfp4 1x16 sr8"}}},
    {"fp4_all_the_way_encode",
     {{"nvfp4 1x16 encode top240", "nvfp4 1x16 encode top240"},
      {"nvfp4 1x16 encode sr8 top240", "nvfp4 1x16 encode top240"},
      {"nvfp4 1x16 encode sr8 top240", "nvfp4 1x16 encode sr8 top240"}}},
    // dev/NUMERICS.md 5e, 5g: backward quantises forward's values again
    {"quartet",
     {{"mxfp4 1x32 quest ht32 mask", "mxfp4 1x32 quest ht32 mask"},
      {"mxfp4 1x32 floor rht32/step sr8 headroom", "mxfp4 1x32Q floor rht32/step sr8 headroom"},
      {"mxfp4 1x32 floor rht32/step sr8 headroom", "mxfp4 1x32Q floor rht32/step sr8 headroom"}}},
    {"quartet2",
     {{"nvfp4 1x16 4/6:mse top256 v1", "nvfp4 1x16 4/6:mse top256 v1"},
      {"nvfp4 1x16 rht128/step eden top256", "nvfp4 1x16Q rht128/step eden top256"},
      {"nvfp4 1x16 rht128/step eden top256", "nvfp4 1x16Q rht128/step eden top256"}}},
    {"four_over_six",
     {{"nvfp4 1x16 4/6:mse top256 v1", "nvfp4 16x16 4/6:mse top256 v1"},
      {"nvfp4 1x16 sr8 4/6:mse top256 v1", "nvfp4 16x16T 4/6:mse top256 v1"},
      {"nvfp4 1x16 rht16 sr8 4/6:mse top256 v1", "nvfp4 1x16 rht16 4/6:mse top256 v1"}}},
    {"tetrajet2", {{OUTER, OUTER}, {OUTER SR, OUTER_Q SR}, {OUTER SR, OUTER_Q SR}}},
    {"ufp4",
     {{"int4 1x16 rht16", "int4 1x16 rht16"},
      {"int4 1x16 rht16 sr8", "int4 1x16 rht16"},
      {"int4 1x16 rht16 sr8", "int4 1x16 rht16"}}},
    {"ue5m3",
     {{"ue5m3 1x16 amax:held", "ue5m3 16x16 amax:held"},
      {"ue5m3 1x16 amax:held sr8", "ue5m3 16x16T amax:held"},
      {"ue5m3 1x16 amax:held sr8", "ue5m3 1x16 amax:held"}}},
    {"mx_library", {{LIBRARY, LIBRARY}, {LIBRARY, LIBRARY}, {LIBRARY, LIBRARY}}},
};

CASE(cells_of_the_recipes) {
    EXPECT_EQ_I64(num_recipes, ARRAY_LEN(recipe_cells));
    for (int i = 0; i < ARRAY_LEN(recipe_cells); i++) {
        const Recipe *recipe = recipe_find(recipe_cells[i].recipe);
        REQUIRE(recipe != NULL, "%s", recipe_cells[i].recipe);
        const char *error = recipe_error(&recipe->plan, 128, 384, 256);
        EXPECT(error == NULL, "%s: %s", recipe_cells[i].recipe, error);
        for (int g = 0; g < NUM_GEMMS; g++) {
            for (int s = 0; s < NUM_SIDES; s++) {
                char text[64];
                operand_describe(&recipe->plan.cell[g][s], text, sizeof(text));
                EXPECT(strcmp(text, recipe_cells[i].cells[g][s]) == 0, "%s %s.%s: %s",
                       recipe_cells[i].recipe, gemm_names[g], operand_names[g][s], text);
            }
        }
    }
    EXPECT(recipe_find("fp4") == NULL);
}

CASE(formats_are_what_their_name_says) {
    const Operand *o = &formats[FORMAT_NVFP4].cell;
    EXPECT_EQ_I64(o->elem, DT_E2M1);
    EXPECT_EQ_I64(o->scale, DT_E4M3);
    EXPECT_EQ_I64(o->block, 16);
    EXPECT_EQ_I64(o->amax, AMAX_CURRENT);
    EXPECT(operand_elem_max(o) == E2M1_MAX && operand_top_scale(o) == E4M3_MAX);
    EXPECT(operand_is_nvfp4(o) && operand_is_plain_nvfp4(o) && !format_is_fp8(FORMAT_NVFP4));
    EXPECT(!operand_is_quantized(&formats[FORMAT_F32].cell));
    EXPECT(!operand_is_quantized(&formats[FORMAT_BF16].cell));
    for (int i = FORMAT_E4M3; i <= FORMAT_E5M2; i++) {
        o = &formats[i].cell;
        EXPECT_EQ_I64(o->elem, i == FORMAT_E4M3 ? DT_E4M3 : DT_E5M2);
        EXPECT(o->block == 0 && o->amax == AMAX_CURRENT, "%s", formats[i].name);
        EXPECT(operand_elem_max(o) == (i == FORMAT_E4M3 ? E4M3_MAX : E5M2_MAX), "%s",
               formats[i].name);
        EXPECT(operand_is_quantized(o) && operand_is_fp8(o), "%s", formats[i].name);
    }
}

/* dev/NUMERICS.md 1.5: of formats with blocks, what an element and a scale are, how many elements
   share one, and how it is made. */
CASE(formats_with_blocks) {
    static const struct {
        FormatId format;
        DType elem, scale;
        int block;
        ScaleRule rule;
        AmaxRule amax;
        DType values;
    } rows[] = {
        {FORMAT_NVFP4, DT_E2M1, DT_E4M3, 16, RULE_NEAREST, AMAX_CURRENT, DT_BF16},
        {FORMAT_MXFP4, DT_E2M1, DT_E8M0, 32, RULE_CEIL, AMAX_NONE, DT_BF16},
        {FORMAT_MXFP8, DT_E4M3, DT_E8M0, 32, RULE_CEIL, AMAX_NONE, DT_BF16},
        {FORMAT_E4M3_BLOCK, DT_E4M3, DT_F32, 128, RULE_NEAREST, AMAX_NONE, DT_F32},
        {FORMAT_UE5M3, DT_E2M1, DT_UE5M3, 16, RULE_NEAREST, AMAX_CURRENT, DT_BF16},
        {FORMAT_INT4, DT_E1M2, DT_F32, 16, RULE_NEAREST, AMAX_NONE, DT_F32},
    };
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        const Operand *o = &formats[rows[i].format].cell;
        const char *name = formats[rows[i].format].name;
        EXPECT(o->format == rows[i].format && o->elem == rows[i].elem && o->scale == rows[i].scale,
               "%s", name);
        EXPECT(o->block == rows[i].block && o->scale_rule == rows[i].rule, "%s", name);
        EXPECT(o->amax == rows[i].amax, "%s", name);
        EXPECT_EQ_I64(operand_values_dtype(o), rows[i].values, "%s", name);
        EXPECT(format_has_blocks(rows[i].format) && !operand_is_fp8(o), "%s", name);
        EXPECT_EQ_I64(operand_is_nvfp4(o), rows[i].format == FORMAT_NVFP4, "%s", name);
    }
}

/* What native GEMMs read, and what the faster quantiser makes: one changed field at a time. */
CASE(native_and_plain_cells) {
    static const struct {
        const char *key, *value;
        int native, plain;
    } rows[] = {
        {"headroom", "1", 1, 1},    {"top_scale", "max", 1, 1},     {"tile", "square", 1, 1},
        {"hadamard", "16", 1, 1},   {"hadamard", "32", 1, 0},       {"rounding", "eden", 1, 0},
        {"rounding", "away", 1, 0}, {"select", "mae", 1, 0},        {"mask", "1", 1, 0},
        {"source", "values", 0, 0}, {"scale_rule", "encode", 0, 0}, {"outer", "128", 0, 0},
        {"amax", "none", 0, 0},     {"zero_scale", "one", 0, 0},    {"block", "32", 0, 0},
        {"elem", "e1m2", 0, 0},     {"scale", "ue5m3", 0, 0},       {"amax", "held", 1, 1},
    };
    for (int i = 0; i < ARRAY_LEN(rows); i++) {
        const char *const pairs[][2] = {{"format", "nvfp4"}, {rows[i].key, rows[i].value}};
        Rule rule = rule_of(2, pairs);
        LinearPlan plan = resolve("bf16", 1, &rule, "blocks.0.mlp.up");
        const Operand *o = &plan.cell[GEMM_FPROP][SIDE_A];
        EXPECT_EQ_I64(operand_is_nvfp4(o), rows[i].native, "%s %s", rows[i].key, rows[i].value);
        EXPECT_EQ_I64(operand_is_plain_nvfp4(o), rows[i].plain, "%s %s", rows[i].key,
                      rows[i].value);
    }
    Operand drawn = recipe_find("nvfp4")->plan.cell[GEMM_WGRAD][SIDE_A];
    drawn.signs = SIGNS_STEP;
    EXPECT(operand_is_nvfp4(&drawn) && !operand_is_plain_nvfp4(&drawn), "signs of a step");
}

CASE(describe_tells_every_field) {
    static const char *const pairs[][2] = {
        {"rounding", "stochastic"}, {"dither_bits", "24"}, {"hadamard", "16"},  {"signs", "none"},
        {"headroom", "1"},          {"top_scale", "256"},  {"arithmetic", "1"},
    };
    Rule rule = rule_of(ARRAY_LEN(pairs), pairs);
    LinearPlan plan = resolve("nvfp4", 1, &rule, "blocks.0.mlp.up");
    char text[64];
    operand_describe(&plan.cell[GEMM_FPROP][SIDE_A], text, sizeof(text));
    EXPECT(strcmp(text, "nvfp4 1x16 ht16 sr24 headroom top256 v1") == 0, "%s", text);
    static const char *const scaling[][2] = {
        {"elem", "e1m2"},  {"scale", "ue5m3"},    {"block", "8"},       {"amax", "held"},
        {"outer", "128"},  {"zero_scale", "one"}, {"top_scale", "max"}, {"select", "mae"},
        {"signs", "step"}, {"hadamard", "64"},    {"rounding", "away"}, {"mask", "1"},
    };
    rule = rule_of(ARRAY_LEN(scaling), scaling);
    plan = resolve("nvfp4", 1, &rule, "blocks.0.mlp.up");
    char long_text[96];
    operand_describe(&plan.cell[GEMM_FPROP][SIDE_A], long_text, sizeof(long_text));
    EXPECT(strcmp(long_text, "nvfp4 1x8 e1m2 ue5m3 amax:held zero:one outer128 rht64/step away "
                             "4/6:mae mask topmax") == 0,
           "%s", long_text);
    char cut[12];   // what does not fit is left off
    EXPECT(strcmp(operand_describe(&plan.cell[GEMM_FPROP][SIDE_A], cut, sizeof(cut)),
                  "nvfp4 1x8 e") == 0,
           "%s", cut);
}

/* --- rules --- */

CASE(patterns) {
    static const struct {
        const char *pattern, *name;
        int matches;
    } cases[] = {
        {"*", "blocks.3.attn.qkv", 1},
        {"blocks.3.attn.qkv", "blocks.3.attn.qkv", 1},
        {"blocks.3.attn.qkv", "blocks.3.attn.proj", 0},
        {"blocks.3.*", "blocks.3.mlp.up", 1},
        {"blocks.3.*", "blocks.30.mlp.up", 0},
        {"blocks.3", "blocks.3.mlp.up", 0},
        {"blocks.3.mlp.up.x", "blocks.3.mlp.up", 0},
        {"blocks.10-11.*", "blocks.9.mlp.up", 0},
        {"blocks.10-11.*", "blocks.10.mlp.up", 1},
        {"blocks.10-11.*", "blocks.11.mlp.up", 1},
        {"blocks.10-11.*", "blocks.12.mlp.up", 0},
        {"blocks.10-11.*", "blocks.1.mlp.up", 0},
        {"*.attn.qkv", "blocks.7.attn.qkv", 1},
        {"*.attn.*", "blocks.7.attn.proj", 1},
        {"*.attn.*", "blocks.7.mlp.up", 0},
        {"blocks.*.mlp.down", "blocks.7.mlp.down", 1},
        {"blocks.*.mlp.down", "blocks.7.mlp.up", 0},
        {"*.up", "blocks.7.mlp.up", 1},
        {"*.u", "blocks.7.mlp.up", 0},
    };
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        const char *const pair[][2] = {{"layers", cases[i].pattern}};
        Rule rule = rule_of(1, pair);
        EXPECT_EQ_I64(rule_matches(&rule, cases[i].name), cases[i].matches, "%s on %s",
                      cases[i].pattern, cases[i].name);
    }
}

CASE(the_last_match_wins) {
    static const char *const bf16[][2] = {{"layers", "blocks.0-3.*"}, {"recipe", "bf16"}};
    static const char *const back[][2] = {{"layers", "blocks.2.*"}, {"recipe", "nvfp4"}};
    static const char *const wgrad[][2] = {
        {"gemm", "wgrad"}, {"operand", "dy"}, {"rounding", "nearest"}};
    Rule rules[] = {rule_of(2, bf16), rule_of(2, back), rule_of(3, wgrad)};
    LinearPlan in_bf16 = resolve("nvfp4", 3, rules, "blocks.1.mlp.up");
    for (int g = 0; g < NUM_GEMMS; g++) {
        for (int s = 0; s < NUM_SIDES; s++)
            EXPECT_EQ_I64(in_bf16.cell[g][s].format, FORMAT_BF16, "%s", gemm_names[g]);
    }
    LinearPlan taken_back = resolve("nvfp4", 3, rules, "blocks.2.mlp.up");
    LinearPlan untouched = resolve("nvfp4", 3, rules, "blocks.9.mlp.up");
    EXPECT_BITS(&taken_back, &untouched, sizeof(untouched));
    const LinearPlan *base = &recipe_find("nvfp4")->plan;
    EXPECT_EQ_I64(untouched.cell[GEMM_WGRAD][SIDE_A].rounding, ROUND_NEAREST);
    EXPECT_EQ_I64(untouched.cell[GEMM_WGRAD][SIDE_A].hadamard, 16, "other fields stay");
    EXPECT_EQ_I64(untouched.cell[GEMM_DGRAD][SIDE_A].rounding, ROUND_STOCHASTIC, "so does dgrad");
    EXPECT_BITS(untouched.cell[GEMM_FPROP], base->cell[GEMM_FPROP], sizeof(base->cell[0]));
    Rule reversed[] = {rules[1], rules[0]};
    LinearPlan plan = resolve("nvfp4", 2, reversed, "blocks.2.mlp.up");
    EXPECT_EQ_I64(plan.cell[GEMM_FPROP][SIDE_A].format, FORMAT_BF16);
}

/* "recipe" comes before single fields, in whatever order they are given. */
CASE(fields_go_over_the_recipe_of_a_rule) {
    static const char *const pairs[][2] = {
        {"rounding", "stochastic"}, {"operand", "x"}, {"recipe", "nvfp4"}};
    Rule rule = rule_of(3, pairs);
    LinearPlan plan = resolve("bf16", 1, &rule, "blocks.0.attn.qkv");
    EXPECT_EQ_I64(plan.cell[GEMM_FPROP][SIDE_A].format, FORMAT_NVFP4);
    EXPECT_EQ_I64(plan.cell[GEMM_FPROP][SIDE_A].rounding, ROUND_STOCHASTIC);
    EXPECT_EQ_I64(plan.cell[GEMM_WGRAD][SIDE_B].hadamard, 16);
    EXPECT_EQ_I64(plan.cell[GEMM_FPROP][SIDE_B].format, FORMAT_BF16);
    EXPECT_EQ_I64(plan.cell[GEMM_WGRAD][SIDE_A].format, FORMAT_BF16);
}

/* A format brings all that it stands for, a scale format its usual rule, in whatever order the
   rule's single fields are given. */
CASE(formats_and_scales_bring_their_scaling) {
    static const char *const pairs[][2] = {
        {"block", "64"}, {"rounding", "stochastic"}, {"format", "mxfp4"}};
    Rule rule = rule_of(3, pairs);
    LinearPlan plan = resolve("nvfp4", 1, &rule, "blocks.0.mlp.up");
    const Operand *o = &plan.cell[GEMM_FPROP][SIDE_B];
    EXPECT(o->format == FORMAT_MXFP4 && o->scale == DT_E8M0 && o->scale_rule == RULE_CEIL);
    EXPECT(o->amax == AMAX_NONE && o->top_scale == 0 && o->block == 64);
    EXPECT(o->tile == TILE_SQUARE && o->rounding == ROUND_STOCHASTIC, "what is no scaling stays");
    static const struct {
        const char *scale;
        ScaleRule rule;
        AmaxRule amax;
    } scales[] = {{"e8m0", RULE_CEIL, AMAX_NONE},       {"f32", RULE_NEAREST, AMAX_NONE},
                  {"e1m6", RULE_NEAREST, AMAX_CURRENT}, {"e2m5", RULE_NEAREST, AMAX_CURRENT},
                  {"e3m4", RULE_NEAREST, AMAX_CURRENT}, {"e4m3", RULE_NEAREST, AMAX_CURRENT},
                  {"e5m2", RULE_NEAREST, AMAX_CURRENT}, {"e6m1", RULE_NEAREST, AMAX_CURRENT},
                  {"ue5m3", RULE_NEAREST, AMAX_CURRENT}};
    for (int i = 0; i < ARRAY_LEN(scales); i++) {
        const char *const pair[][2] = {{"scale", scales[i].scale}};
        rule = rule_of(1, pair);
        plan = resolve(i % 2 ? "mxfp4" : "nvfp4", 1, &rule, "blocks.0.mlp.up");
        o = &plan.cell[GEMM_FPROP][SIDE_A];
        EXPECT(o->scale_rule == scales[i].rule && o->amax == scales[i].amax, "%s", scales[i].scale);
        EXPECT(o->top_scale == 0, "%s", scales[i].scale);
        EXPECT(recipe_error(&plan, 64, 64, 64) == NULL, "%s: %s", scales[i].scale,
               recipe_error(&plan, 64, 64, 64));
    }
}

CASE(rules_refuse_what_they_do_not_know) {
    static const char *const refused[][3] = {
        {"layer", "*",
         "\"layer\" is not a key of a precision rule; legal: layers, gemm, operand, "
         "recipe, format, elem, scale, block, outer, scale_rule, amax, zero_scale, top_scale, "
         "tile, hadamard, signs, rounding, dither_bits, source, headroom, select, mask, "
         "arithmetic"},
        {"layers", "", "\"\" is not a layer pattern; legal: names, numbers"},
        {"gemm", "bgrad", "\"bgrad\" is not a GEMM; legal: fprop, dgrad, wgrad, backward, *"},
        {"operand", "y", "\"y\" is not an operand; legal: x, w, dy, *"},
        {"recipe", "fp4",
         "\"fp4\" is not a recipe; legal: f32, bf16, nvfp4, fp8, fp8_delayed, "
         "fp8_block, mxfp8, mxfp4, fp4_all_the_way, fp4_all_the_way_encode, "
         "quartet, quartet2, four_over_six, tetrajet2, ufp4, ue5m3, mx_library"},
        {"format", "mxfp6",
         "\"mxfp6\" is not a value of \"format\"; legal: f32, bf16, nvfp4, mxfp4, mxfp8, e4m3, "
         "e5m2, e4m3_block, ue5m3, int4"},
        {"elem", "e3m0", "legal: e2m1, e1m2, e4m3, e5m2"},
        {"scale", "e7m0", "legal: e4m3, e8m0, ue5m3, f32, e1m6, e2m5, e3m4, e5m2, e6m1"},
        {"block", "0", "legal: 8, 16, 32, 64, 128"},
        {"outer", "64", "legal: 0, 128"},
        {"scale_rule", "up", "legal: nearest, floor, ceil, even, quest, encode"},
        {"amax", "last", "legal: none, current, delayed, held"},
        {"zero_scale", "0", "legal: keep, one, least"},
        {"tile", "1x16", "legal: row, square"},
        {"hadamard", "256",
         "\"256\" is not a value of \"hadamard\"; legal: 0, 4, 8, 16, 32, 64, 128"},
        {"signs", "random", "legal: fixed, none, step"},
        {"rounding", "up", "legal: nearest, stochastic, away, eden"},
        {"dither_bits", "4", "legal: 8, 16, 24"},
        {"source", "fprop", "legal: tensor, transposed, values, requantized"},
        {"headroom", "2", "legal: 0, 1"},
        {"top_scale", "200", "legal: max, 448, 256, 240, 2048"},
        {"select", "rms", "legal: none, mse, mae"},
        {"mask", "yes", "legal: 0, 1"},
        {"arithmetic", "3", "legal: 2, 1"},
    };
    for (int i = 0; i < ARRAY_LEN(refused); i++) {
        Rule rule = rule_default(), before = rule;
        const char *error = rule_set(&rule, refused[i][0], refused[i][1]);
        EXPECT(error && strstr(error, refused[i][2]), "%s = %s: %s", refused[i][0], refused[i][1],
               error ? error : "taken");
        if (strcmp(refused[i][0], "recipe") == 0) continue;
        EXPECT_BITS(&rule, &before, sizeof(rule), "%s", refused[i][0]);
    }
    char pattern[128];
    memset(pattern, 'a', sizeof(pattern) - 1);
    pattern[sizeof(pattern) - 1] = '\0';
    Rule rule = rule_default();
    EXPECT(rule_set(&rule, "layers", pattern) != NULL);
}

CASE(rules_say_what_they_were_told) {
    static const char *const pairs[][2] = {
        {"layers", "*.mlp.*"},  {"gemm", "wgrad"},       {"operand", "dy"},
        {"recipe", "bf16"},     {"format", "nvfp4"},     {"elem", "e1m2"},
        {"scale", "ue5m3"},     {"block", "8"},          {"outer", "128"},
        {"scale_rule", "even"}, {"amax", "held"},        {"zero_scale", "one"},
        {"top_scale", "256"},   {"tile", "row"},         {"hadamard", "0"},
        {"signs", "fixed"},     {"rounding", "nearest"}, {"dither_bits", "16"},
        {"source", "tensor"},   {"headroom", "1"},       {"select", "mae"},
        {"mask", "1"},          {"arithmetic", "1"},
    };
    Rule rule = rule_of(ARRAY_LEN(pairs), pairs), plain = rule_default();
    for (int i = 0; i < ARRAY_LEN(pairs); i++) {
        EXPECT(strcmp(rule_key(i), pairs[i][0]) == 0, "%s", rule_key(i));
        const char *text = rule_get(&rule, pairs[i][0]);
        EXPECT(text && strcmp(text, pairs[i][1]) == 0, "%s: %s", pairs[i][0], text);
        if (i > 0) EXPECT(rule_get(&plain, pairs[i][0]) == NULL, "%s", pairs[i][0]);
    }
    EXPECT(rule_key(ARRAY_LEN(pairs)) == NULL);
    EXPECT(strcmp(rule_get(&plain, "layers"), "*") == 0);
}

/* --- refusals --- */

typedef struct {
    const char *recipe;
    int in, out, tokens;
    const char *message;
    const char *cells[3][4];   // {gemm, operand, key, value}: changes to the recipe
} Refusal;

#define HADAMARD   "wgrad: the Hadamard transform must be the same on both operands (size "
#define TRANSPOSED "source transposed is for dgrad.w alone; set source to tensor"
#define SHARED     "dgrad.w: source transposed shares the codes of fprop.w, "
// clang-format off
static const Refusal refusals[] = {
    {"nvfp4", 48, 64, 64, "in-features is 48, but a quantised linear's in-features must be a "
                          "multiple of 32; nearest: 32 or 64", {{0}}},
    {"nvfp4", 16, 64, 64, "must be a multiple of 32; nearest: 32", {{0}}},
    {"nvfp4", 64, 100, 64, "out-features is 100, but a quantised linear's out-features must be a "
                           "multiple of 32; nearest: 96 or 128", {{0}}},
    {"nvfp4", 64, 64, 40, "batch.micro x batch.seq_len is 40, but tokens per micro-step must be a "
                          "multiple of 32; nearest: 32 or 64", {{0}}},
    {"nvfp4", 64, 64, 64, HADAMARD "16 and 0), or the product changes; the rule "
                          "{\"gemm\": \"wgrad\", \"hadamard\": 0} sets both",
     {{"wgrad", "x", "hadamard", "0"}}},
    {"nvfp4", 64, 64, 64, HADAMARD "16 and 16), or the product changes; the rule "
                          "{\"gemm\": \"wgrad\", \"signs\": \"fixed\"} sets both",
     {{"wgrad", "x", "signs", "none"}}},
    {"nvfp4", 64, 64, 64, HADAMARD "0 and 16)", {{"wgrad", "dy", "format", "bf16"}}},
    {"nvfp4", 64, 64, 64, "dgrad: one operand is f32 and the other is not",
     {{"dgrad", "dy", "format", "f32"}}},
    {"bf16", 64, 64, 64, "fprop: one operand is f32 and the other is not",
     {{"fprop", "w", "format", "f32"}}},
    {"nvfp4", 64, 64, 64, "fprop.x: square tiles are for weights",
     {{"fprop", "x", "tile", "square"}}},
    {"nvfp4", 64, 64, 64, "wgrad.dy: square tiles are for weights",
     {{"wgrad", "dy", "tile", "square"}}},
    {"nvfp4", 64, 64, 64, "dgrad.w: square tiles have no Hadamard transform; here "
                          "precision.dgrad.w.tile is square",
     {{"dgrad", "w", "source", "tensor"}, {"dgrad", "*", "hadamard", "16"}}},
    {"nvfp4", 64, 64, 64, "fprop.w: " TRANSPOSED, {{"fprop", "w", "source", "transposed"}}},
    {"nvfp4", 64, 64, 64, "wgrad.x: " TRANSPOSED, {{"wgrad", "x", "source", "transposed"},
                                                   {"wgrad", "*", "hadamard", "0"}}},
    {"nvfp4", 64, 64, 64, SHARED "but its tile is another; change both alike (gemm \"*\", operand "
                          "\"w\"), or set precision.dgrad.w.source=tensor",
     {{"fprop", "w", "tile", "row"}}},
    {"nvfp4", 64, 64, 64, SHARED "but its hadamard is another", {{"dgrad", "w", "hadamard", "16"}}},
    {"nvfp4", 64, 64, 64, SHARED "but its rounding is another",
     {{"dgrad", "w", "rounding", "stochastic"}}},
    {"nvfp4", 64, 64, 64, SHARED "which wants square tiles;", {{"*", "w", "tile", "row"}}},
    {"fp8", 64, 64, 48, "must be a multiple of 32; nearest: 32 or 64", {{0}}},
    {"fp8", 64, 64, 64, "dgrad.dy: e5m2 has no stochastic rounding; set "
                        "precision.dgrad.dy.rounding=nearest",
     {{"dgrad", "dy", "rounding", "stochastic"}}},
    {"fp8", 64, 64, 64, "wgrad.dy: e5m2 has no Hadamard transform; set "
                        "precision.wgrad.dy.hadamard=0",
     {{"wgrad", "*", "hadamard", "16"}}},
    {"fp8", 64, 64, 64, HADAMARD "0 and 16)", {{"wgrad", "x", "hadamard", "16"}}},
    {"fp8", 64, 64, 64, SHARED "but its format is another", {{"fprop", "w", "format", "e5m2"}}},
    {"fp8", 64, 64, 64, "fprop: one operand is f32 and the other is not",
     {{"fprop", "w", "format", "f32"}}},
    {"fp8", 64, 64, 64, "wgrad.x: " TRANSPOSED, {{"wgrad", "x", "source", "transposed"}}},
    // one row each of what a cell may not be
    {"mxfp4", 64, 64, 64, "fprop.x: floor, ceil, even and quest are the rules of scale e8m0, and "
                          "it has no other; here precision.fprop.x.scale_rule is nearest",
     {{"fprop", "x", "scale_rule", "nearest"}}},
    {"nvfp4", 64, 64, 64, "here precision.fprop.x.scale_rule is even",
     {{"fprop", "x", "scale_rule", "even"}}},
    {"mxfp4", 64, 64, 64, "fprop.w: quest is for rows of e2m1",
     {{"*", "w", "scale_rule", "quest"}}},
    {"mxfp8", 64, 64, 64, "fprop.x: quest is for rows of e2m1",
     {{"fprop", "x", "scale_rule", "quest"}}},
    {"nvfp4", 64, 64, 64, "fprop.w: encode is for rows, with a tensor scale (amax)",
     {{"*", "w", "scale_rule", "encode"}}},
    {"fp4_all_the_way_encode", 64, 64, 64, "encode is for rows, with a tensor scale (amax)",
     {{"fprop", "x", "amax", "none"}}},
    {"mxfp4", 64, 64, 64, "fprop.x: a tensor scale is for scales without range enough",
     {{"fprop", "x", "amax", "current"}}},
    {"ufp4", 64, 64, 64, "a tensor scale is for scales without range enough",
     {{"fprop", "x", "amax", "held"}}},
    {"tetrajet2", 128, 128, 128, "and not under outer scales; here precision.fprop.x.amax is "
                                "delayed",
     {{"fprop", "x", "amax", "delayed"}}},
    {"ufp4", 64, 64, 64, "outer scales are for rows of nearest block scales that are not f32",
     {{"fprop", "x", "outer", "128"}}},
    {"mxfp4", 64, 64, 64, "outer scales are for rows of nearest block scales",
     {{"fprop", "x", "outer", "128"}}},
    {"four_over_six", 64, 64, 64, "four-over-six chooses between scales of NVFP4 with top_scale "
                                  "256 and no headroom; here precision.fprop.x.select is mse",
     {{"fprop", "x", "headroom", "1"}}},
    {"four_over_six", 64, 64, 64, "four-over-six chooses", {{"fprop", "x", "top_scale", "448"}}},
    {"mxfp4", 64, 64, 64, "four-over-six chooses", {{"dgrad", "dy", "select", "mae"}}},
    {"quartet2", 128, 128, 128, "dgrad.dy: eden is for rows of NVFP4 with top_scale 256, without "
                                "select and headroom",
     {{"dgrad", "dy", "select", "mse"}}},
    {"nvfp4", 64, 64, 64, "eden is for rows of NVFP4", {{"dgrad", "dy", "rounding", "eden"}}},
    {"ufp4", 64, 64, 64, "headroom is for nearest and floor block scales",
     {{"fprop", "x", "headroom", "1"}}},
    {"mxfp4", 64, 64, 64, "here precision.dgrad.dy.headroom is 1",
     {{"dgrad", "dy", "headroom", "1"}}},
    {"nvfp4", 64, 64, 64, "no block scale is that large; here precision.fprop.x.top_scale is 2048",
     {{"fprop", "x", "top_scale", "2048"}}},
    {"mxfp4", 64, 64, 64, "scales of e8m0 and f32 do not round to zero; here "
                          "precision.fprop.x.zero_scale is least",
     {{"fprop", "x", "zero_scale", "least"}}},
    // elements without blocks, blocks beside each other
    {"fp8", 64, 64, 64, "fprop.x: e2m1 without blocks is no format of this program; set "
                        "precision.fprop.x.block",
     {{"fprop", "x", "elem", "e2m1"}}},
    {"fp8", 64, 64, 64, "fprop.x: e4m3 without blocks needs the tensor's scale; set "
                        "precision.fprop.x.amax=current",
     {{"fprop", "x", "amax", "none"}}},
    {"fp8", 64, 64, 64, "dgrad.dy: e4m3 for the whole tensor has a name of its own; set "
                        "precision.dgrad.dy.format=e4m3",
     {{"dgrad", "dy", "elem", "e4m3"}}},
    {"mxfp4", 64, 64, 64, "fprop: block sizes differ, 16 and 32", {{"fprop", "x", "block", "16"}}},
    // sources and masks
    {"nvfp4", 64, 64, 64, "fprop.x: source values is for dgrad.w and wgrad.x; set source to tensor",
     {{"fprop", "x", "source", "values"}}},
    {"quartet", 64, 64, 64, "dgrad.dy: source requantized is for dgrad.w and wgrad.x",
     {{"dgrad", "dy", "source", "requantized"}}},
    {"quartet", 64, 64, 64, "fprop.x: a mask needs blocks, and a quantised dgrad.w of source "
                            "requantized or values; add \"mask\": 0 to the rule or schedule "
                            "entry that changes dgrad, or set precision.fprop.x.mask=0, or "
                            "precision.dgrad.w.source=requantized",
     {{"fprop", "*", "hadamard", "0"}, {"fprop", "w", "format", "bf16"}}},
    {"quartet", 64, 64, 64, "fprop.x: a mask needs blocks, and a quantised dgrad.w",
     {{"dgrad", "*", "format", "bf16"}}},
    {"nvfp4", 64, 64, 64, "wgrad.x: source values shares the values of fprop.x, but its hadamard "
                          "is another",
     {{"wgrad", "x", "source", "values"}, {"wgrad", "dy", "hadamard", "0"}}},
    {"nvfp4", 64, 64, 64, "wgrad.x: a mask is for fprop; set precision.wgrad.x.mask=0",
     {{"wgrad", "x", "mask", "1"}}},
    {"nvfp4", 64, 64, 64, "fprop.x: a mask needs blocks, and a quantised dgrad.w of source "
                          "requantized or values",
     {{"fprop", "x", "mask", "1"}}},
    {"quartet", 64, 64, 64, "fprop.w: a mask needs blocks, and a quantised wgrad.x of source "
                            "requantized or values; add \"mask\": 0 to the rule or schedule "
                            "entry that changes wgrad, or set precision.fprop.w.mask=0",
     {{"wgrad", "x", "source", "tensor"}}},
    // whole transforms
    {"nvfp4", 64, 64, 64, "in-features is 64, but a quantised linear's in-features must be a "
                          "multiple of 128; nearest: 128",
     {{"*", "w", "source", "tensor"}, {"*", "w", "tile", "row"},
      {"fprop", "*", "hadamard", "128"}}},
    {"quartet2", 128, 192, 128, "out-features is 192, but a quantised linear's out-features must "
                                "be a multiple of 128; nearest: 128 or 256", {{0}}},
    {"quartet2", 128, 128, 96, "batch.micro x batch.seq_len is 96, but tokens per micro-step must "
                               "be a multiple of 128; nearest: 128", {{0}}},
};
// clang-format on

static const char *refusal_of(const Refusal *r, LinearPlan *plan) {
    Rule rules[3];
    int count = 0;
    for (; count < ARRAY_LEN(rules) && r->cells[count][0]; count++) {
        const char *const pairs[][2] = {{"gemm", r->cells[count][0]},
                                        {"operand", r->cells[count][1]},
                                        {r->cells[count][2], r->cells[count][3]}};
        rules[count] = rule_of(3, pairs);
    }
    *plan = resolve(r->recipe, count, rules, "blocks.0.mlp.up");
    return recipe_error(plan, r->in, r->out, r->tokens);
}

CASE(every_refusal) {
    for (int i = 0; i < ARRAY_LEN(refusals); i++) {
        LinearPlan plan;
        const char *error = refusal_of(&refusals[i], &plan);
        EXPECT(error && strstr(error, refusals[i].message), "row %d: %s", i,
               error ? error : "accepted");
    }
}

CASE(what_is_allowed) {
    // clang-format off
    static const Refusal allowed[] = {
        {"bf16", 7, 5, 3, NULL, {{0}}},   // no blocks, no multiples
        {"nvfp4", 32, 96, 32, NULL, {{0}}},
        {"nvfp4", 64, 64, 64, NULL, {{"wgrad", "*", "hadamard", "0"}}},
        {"nvfp4", 64, 64, 64, NULL, {{"dgrad", "w", "source", "tensor"},
                                     {"fprop", "w", "tile", "row"}}},
        {"nvfp4", 64, 64, 64, NULL, {{"fprop", "x", "format", "bf16"}}},
        {"nvfp4", 64, 64, 64, NULL, {{"fprop", "w", "format", "bf16"}}},   // dgrad.w of the tensor
        {"nvfp4", 64, 64, 64, NULL, {{"backward", "*", "format", "bf16"}}},
        {"quartet", 64, 64, 64, NULL, {{"fprop", "*", "format", "bf16"}}},
        {"bf16", 7, 5, 3, NULL, {{"*", "*", "block", "32"}}},   // plain as ever
        {"bf16", 7, 5, 3, NULL, {{"*", "*", "scale", "ue5m3"}}},
        {"bf16", 7, 5, 3, NULL, {{"*", "*", "elem", "e2m1"}}},
        {"f32", 7, 5, 3, NULL, {{"*", "*", "amax", "current"}}},
        {"fp8", 64, 64, 64, NULL, {{"*", "*", "scale", "f32"}}},
        {"nvfp4", 64, 64, 64, NULL, {{"*", "w", "arithmetic", "1"}}},
        {"nvfp4", 64, 64, 64, NULL, {{"fprop", "x", "format", "e4m3"}}},   // emulated
        {"fp8", 32, 96, 32, NULL, {{0}}},
        {"fp8", 64, 64, 64, NULL, {{"*", "x", "format", "nvfp4"}}},   // likewise
        {"fp8", 64, 64, 64, NULL, {{"*", "*", "format", "e5m2"}}},    // likewise
        {"fp8", 64, 64, 64, NULL, {{"fprop", "w", "format", "bf16"},
                                   {"dgrad", "w", "source", "tensor"}}},
        {"nvfp4", 64, 64, 64, NULL, {{"*", "*", "scale", "e1m6"}}},   // the sweep of 5b
        {"nvfp4", 64, 64, 64, NULL, {{"*", "*", "block", "128"}}},
        {"nvfp4", 64, 64, 64, NULL, {{"wgrad", "*", "signs", "step"}}},
        {"nvfp4", 64, 64, 64, NULL, {{"fprop", "x", "format", "int4"}}},
        {"nvfp4", 64, 64, 64, NULL, {{"wgrad", "x", "hadamard", "0"},
                                     {"wgrad", "dy", "hadamard", "0"},
                                     {"wgrad", "x", "source", "values"}}},
        {"mxfp4", 64, 64, 64, NULL, {{"*", "w", "scale_rule", "even"}}},
        {"quartet", 64, 64, 64, NULL, {{"*", "w", "dither_bits", "24"}}},
        {"quartet2", 96, 128, 128, NULL, {{0}}},
    };
    // clang-format on
    for (int i = 0; i < ARRAY_LEN(allowed); i++) {
        LinearPlan plan;
        const char *error = refusal_of(&allowed[i], &plan);
        EXPECT(error == NULL, "row %d: %s", i, error);
    }
}

/* --- whole models --- */

static void declare(Config *c, Model *m, int num_args, char **args) {
    config_parse(c, num_args, args);
    model_declare(m, c);
}

static void end(Config *c, Model *m) {
    model_free(m);
    config_free(c);
}

/* Blocks 2 to 17 of 20, 4 linears each, 3 GEMMs each; everything else in BF16. */
CASE(plan_of_20_blocks_with_2_and_2_kept) {
    char *args[] = {"model.layers=20",
                    "model.dim=64",
                    "model.heads=2",
                    "model.vocab=64",
                    "batch.seq_len=32",
                    "precision.recipe=nvfp4",
                    "precision.keep_bf16.first=2",
                    "precision.keep_bf16.last=2"};
    Config c;
    Model m;
    declare(&c, &m, ARRAY_LEN(args), args);
    EXPECT_EQ_I64(plan_quantized_gemms(&m), 16 * 4 * 3);
    EXPECT_EQ_I64(model_num_linears(&m), 20 * 4);
    static const char *const linears[] = {"attn.qkv", "attn.proj", "mlp.up", "mlp.down"};
    for (int id = 0; id < model_num_linears(&m); id++) {
        const Linear *l = model_linear(&m, id);
        int block = id / 4;
        char name[64];
        snprintf(name, sizeof(name), "blocks.%d.%s", block, linears[id % 4]);
        EXPECT(strcmp(l->name, name) == 0, "%s is %s", name, l->name);
        int kept = block < 2 || block >= 18;
        EXPECT_BITS(&l->plan, &recipe_find(kept ? "bf16" : "nvfp4")->plan, sizeof(LinearPlan), "%s",
                    l->name);
    }
    char *text = plan_precision_text(&m, 0, NULL);
    EXPECT(strstr(text, "blocks.2.attn.qkv           fprop  x  nvfp4 1x16"), "%s", text);
    EXPECT(strstr(text, "GEMMs with quantised operands: 192 of 240 a micro-step"), "%s", text);
    int lines = 0;
    for (const char *s = text; (s = strstr(s, "emulated\n")) != NULL; s++) lines++;
    EXPECT_EQ_I64(lines, 192, "lines that say emulated");
    free(text);
    end(&c, &m);
}

/* Where the last column, which says how it is multiplied, begins in each line of a GEMM. */
CASE(columns_are_as_wide_as_the_longest_operand) {
    static const struct {
        char *rules;
        int column;   // names 27, " fprop", "  dy ", operand, " w ", operand, two spaces
    } cases[] = {{"precision.rules=[]", 28 + 5 + 5 + 20 + 3 + 20 + 2},
                 {"precision.rules=[{\"gemm\": \"dgrad\", \"operand\": \"dy\", \"headroom\": 1, "
                  "\"dither_bits\": 16}]",
                  28 + 5 + 5 + 24 + 3 + 24 + 2}};
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        char *args[] = {"model.layers=2", "model.dim=64",     "model.heads=2",
                        "model.vocab=64", "batch.seq_len=32", "precision.recipe=nvfp4",
                        cases[i].rules};
        Config c;
        Model m;
        int lines = 0;
        declare(&c, &m, ARRAY_LEN(args), args);
        char *text = plan_precision_text(&m, 0, NULL), *rest = text;
        for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
            char *how = strstr(line, "emulated");
            if (!how) continue;
            EXPECT_EQ_I64(how - line, cases[i].column, "%s", line);
            lines++;
        }
        EXPECT_EQ_I64(lines, 12, "of the block that is quantised");
        free(text);
        end(&c, &m);
    }
}

/* The recipe's own share of the last blocks, at least one; and a rule that takes it back. */
CASE(blocks_kept_by_the_recipe) {
    static const struct {
        const char *layers;
        int quantized;
    } cases[] = {{"model.layers=1", 0},
                 {"model.layers=4", 3},
                 {"model.layers=12", 10},
                 {"model.layers=20", 17}};
    for (int i = 0; i < ARRAY_LEN(cases); i++) {
        char *args[] = {(char *)cases[i].layers,
                        "model.dim=32",
                        "model.heads=2",
                        "model.vocab=8",
                        "batch.seq_len=8",
                        "precision.recipe=nvfp4",
                        "precision.rules=[{\"layers\":\"*.attn.*\",\"recipe\":\"nvfp4\"}]"};
        Config c;
        Model m;
        declare(&c, &m, 6, args);
        EXPECT_EQ_I64(plan_quantized_gemms(&m), cases[i].quantized * 12, "%s", cases[i].layers);
        int layers = m.config.layers;
        end(&c, &m);
        declare(&c, &m, 7, args);
        EXPECT_EQ_I64(plan_quantized_gemms(&m), cases[i].quantized * 6 + layers * 6,
                      "%s, attention", cases[i].layers);
        end(&c, &m);
    }
}

CASE(models_refuse_by_the_name_of_the_linear) {
    char *args[] = {"model.dim=48", "model.heads=2", "precision.recipe=nvfp4"};
    Config c;
    Model m;
    EXPECT_DIES(EXIT_CONFIG, "precision of blocks.0.attn.qkv: in-features is 48",
                declare(&c, &m, 3, args));
    args[0] = "model.ffn=100";
    EXPECT_DIES(EXIT_CONFIG, "precision of blocks.0.mlp.up: out-features is 100",
                declare(&c, &m, 3, args));
    args[0] = "batch.seq_len=20";
    EXPECT_DIES(EXIT_CONFIG, "batch.micro x batch.seq_len is 80", declare(&c, &m, 3, args));
    args[0] = "precision.wgrad.x.hadamard=0";
    EXPECT_DIES(EXIT_CONFIG, "precision of blocks.0.attn.qkv: wgrad: the Hadamard transform",
                declare(&c, &m, 3, args));
}

/* Also where the recipe leaves nothing to change; what matches one linear only is a rule. */
CASE(models_refuse_rules_that_match_no_linear) {
    static const char *const idle[] = {
        "head", "embed.*", "blocks.12.*", "blocks.*.attn.wqkv", "block.0.*", "blocks.0.mlp"};
    Config c;
    Model m;
    char rules[128], *args[] = {"model.dim=64", "model.heads=2", "model.vocab=64", rules};
    for (int i = 0; i < ARRAY_LEN(idle); i++) {
        snprintf(rules, sizeof(rules),
                 "precision.rules=[{\"mask\":0},{\"layers\":\"%s\",\"mask\":0}]", idle[i]);
        char message[256];
        snprintf(message, sizeof(message),
                 "precision.rules[1]: layers \"%s\" is no linear of this model; there are "
                 "blocks.0-11.{attn.qkv, attn.proj, mlp.up, mlp.down} (embedding, head,",
                 idle[i]);
        EXPECT_DIES(EXIT_CONFIG, message, declare(&c, &m, ARRAY_LEN(args), args));
    }
    snprintf(rules, sizeof(rules),
             "precision.rules=[{\"layers\":\"blocks.11-90.mlp.down\",\"mask\":0}]");
    declare(&c, &m, ARRAY_LEN(args), args);
    end(&c, &m);
    char *mlps[] = {"model.pattern=-----", rules};
    snprintf(rules, sizeof(rules), "precision.rules=[{\"layers\":\"*.attn.*\",\"mask\":0}]");
    EXPECT_DIES(EXIT_CONFIG, "there are blocks.0-4.{mlp.up, mlp.down} (",
                declare(&c, &m, ARRAY_LEN(mlps), mlps));
}

CASE(parameter_counts_are_the_published_ones) {
    static const struct {
        const char *preset;
        int64_t all, outside_embedding;   // 0: not published
    } published[] = {
        {"gpt2-124m", 124439808, 0},  {"gpt2-350m", 354823168, 0},
        {"gpt2-774m", 774030080, 0},  {"gpt2-1558m", 1557611200, 0},
        {"llama-30m", 0, 30482560},   {"llama-50m", 0, 49556736},
        {"llama-100m", 0, 102777856}, {"llama-200m", 0, 203188480},
        {"s2-30m", 0, 30482560},      {"nemotron-1.2b", 1291929600, 0},
        {"llama2-7b", 6738415616, 0}, {"llama3-70b", 70553706496, 0},
    };
    for (int i = 0; i < ARRAY_LEN(published); i++) {
        char preset[64];
        snprintf(preset, sizeof(preset), "model.preset=%s", published[i].preset);
        char *args[] = {preset};
        Config c;
        Model m;
        declare(&c, &m, 1, args);
        int64_t all = param_table_true_count(&m.params);
        int64_t outside = all - 2 * (int64_t)c.model.vocab * c.model.dim;
        if (published[i].all) EXPECT_EQ_I64(all, published[i].all, "%s", preset);
        if (published[i].outside_embedding)
            EXPECT_EQ_I64(outside, published[i].outside_embedding, "%s", preset);
        end(&c, &m);
    }
}

TEST_MAIN_END
