/*
recipe -- precision as data. A linear layer has three GEMMs with two operands each; a recipe is a
table of these six cells, a cell says how one operand is brought into its format. Rules change cells
per layer; the resolved cells of a linear are its LinearPlan. Nothing outside this file's tables
tests a recipe or a format by name.

  GEMM    product            contraction   operand a      operand b
  fprop   Y  = X W^T         in-features   x   (N,C)      w   (OC,C)
  dgrad   dX = dY W          out-features  dy  (N,OC)     w   (C,OC), that is W^T
  wgrad   dW = dY^T X        tokens        dy  (OC,N)     x   (C,N)

  source  dev/NUMERICS.md 5, which names each recipe's paper
*/
#ifndef LLMC_RECIPE_H
#define LLMC_RECIPE_H

#include "dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { GEMM_FPROP, GEMM_DGRAD, GEMM_WGRAD, NUM_GEMMS } GemmKind;
typedef enum { SIDE_A, SIDE_B, NUM_SIDES } Side;
extern const char *const gemm_names[NUM_GEMMS];                 // "fprop", "dgrad", "wgrad"
extern const char *const operand_names[NUM_GEMMS][NUM_SIDES];   // {"x","w"}, {"dy","w"}, {"dy","x"}

typedef enum {
    FORMAT_F32,
    FORMAT_BF16,
    FORMAT_NVFP4,
    FORMAT_MXFP4,
    FORMAT_MXFP8,
    FORMAT_E4M3,
    FORMAT_E5M2,
    FORMAT_E4M3_BLOCK,
    FORMAT_UE5M3,
    FORMAT_INT4,
    NUM_FORMATS
} FormatId;

// 1 x block along the contraction, or block x block
typedef enum { TILE_ROW, TILE_SQUARE } Tile;
/* How a block's maximum becomes its scale; the formulas are in ops/cell.h. */
typedef enum {
    RULE_NEAREST,         // maximum / largest element, rounded to nearest in the scale's format
    RULE_FLOOR,           // the power of two below: the maximum may clip (OCP MX)
    RULE_CEIL,            // the power of two above: nothing clips
    RULE_EVEN,            // the nearer one, of the maximum rounded to one mantissa bit
    RULE_QUEST,           // the power of two below a multiple of the block's standard deviation
    RULE_ENCODE           // the multiplier of the elements is what is rounded, not the scale
} ScaleRule;
typedef enum { AMAX_NONE, AMAX_CURRENT, AMAX_DELAYED, AMAX_HELD } AmaxRule;
// what stands for a block scale that rounds to zero
typedef enum { ZERO_KEEP, ZERO_ONE, ZERO_LEAST } ZeroScale;
typedef enum {
    ROUND_NEAREST,        // ties to even
    ROUND_STOCHASTIC,
    ROUND_AWAY,           // to nearest, ties away from zero
    ROUND_EDEN            // elements to nearest, the corrected block scale stochastically (MS-EDEN)
} Rounding;
// of the Hadamard transform: one vector for all, all +, or drawn for each step and GEMM
typedef enum { SIGNS_FIXED, SIGNS_NONE, SIGNS_STEP } Signs;
typedef enum { SELECT_NONE, SELECT_MSE, SELECT_MAE } Select;   // four-over-six, by which error
typedef enum {
    SOURCE_TENSOR,        // quantised from the high-precision tensor along this GEMM's contraction
    SOURCE_TRANSPOSED,    // dgrad w: the transposed codes of fprop w, whose tiles are square
    SOURCE_VALUES,        // dgrad w, wgrad x: the decoded values of fprop's operand as they are
    SOURCE_REQUANTIZED    // dgrad w, wgrad x: quantised from those decoded values, in bf16
} Source;

/* One cell. Fields after `format` mean nothing for a format that is not quantised. Choosing a
   format sets all fields up to `zero_scale` and `top_scale` to its row of `formats`; a rule may
   then change single ones. */
typedef struct {
    FormatId format;
    DType elem;           // what one element is
    DType scale;          // what one block scale is; meaningless when block is 0
    int block;            // elements that share a block scale; 0: there is none
    int outer;            // elements that share an FP32 scale above it, or 0
    ScaleRule scale_rule;
    AmaxRule amax;        // where the tensor's FP32 scale comes from, which is part of alpha
    ZeroScale zero_scale;
    // block scale that the tensor's maximum maps to; 0: the largest of the scale's format
    int top_scale;
    Tile tile;
    int hadamard;         // 0, or the size of the transform along the contraction
    Signs signs;
    Rounding rounding;
    int dither_bits;      // 8, 16 or 24: random bits a value (stochastic rounding)
    Source source;
    // 1: scales leave room so that stochastic rounding never clips: 17/16 of nearest, 4/3 of floor
    int headroom;
    Select select;
    int mask;             // fprop: 1: gradients of elements that clipped are zero
    // 2: amax_b * (S_enc * f32(1/6)); 1: (amax_b / 6) * S_enc (dev/NUMERICS.md 2.2)
    int arithmetic;
} Operand;

typedef struct {
    const char *name;
    Operand cell;         // the fields that the format stands for; of the others what is usual
} Format;
extern const Format formats[NUM_FORMATS];
static inline int format_has_blocks(FormatId f) { return formats[f].cell.block > 0; }
/* Elements of 8 bits with a scale for the tensor alone. */
static inline int format_is_fp8(FormatId f) {
    return formats[f].cell.block == 0 && formats[f].cell.amax != AMAX_NONE;
}
static inline int operand_has_blocks(const Operand *o) { return o->block > 0; }
static inline int operand_is_quantized(const Operand *o) {
    return o->block > 0 || o->amax != AMAX_NONE;
}
static inline int operand_is_fp8(const Operand *o) {
    return o->block == 0 && o->amax != AMAX_NONE;
}
/* Blocks of 16 that NVFP4 GEMMs read as they are: E2M1 elements, E4M3 scales, a tensor's scale. */
int operand_is_nvfp4(const Operand *o);
/* 1 for a cell that ops/nvfp4.h computes: NVFP4 with at most a transform of 16 with the same signs
   always, no selection, rounded to nearest or stochastically. */
int operand_is_plain_nvfp4(const Operand *o);
/* bf16 where it holds every decoded value of the cell exactly, else f32. */
DType operand_values_dtype(const Operand *o);
/* Largest element, and the block scale that the tensor's maximum gets. */
float operand_elem_max(const Operand *o);
float operand_top_scale(const Operand *o);

typedef struct { Operand cell[NUM_GEMMS][NUM_SIDES]; } LinearPlan;

typedef struct {
    const char *name;
    const char *summary;      // one line for `help`
    // share of the blocks at the end kept in BF16 by default: max(1, round(frac * blocks))
    float keep_last_frac;
    LinearPlan plan;
} Recipe;
extern const Recipe recipes[];
extern const int num_recipes;
const Recipe *recipe_find(const char *name);   // NULL if absent
int recipe_is_quantized(const Recipe *recipe);   // 1: some cell is

/* A rule: for the linears whose name matches `layers`, for the chosen GEMMs and operands, take the
   cells of `recipe` (when set), then overwrite single fields. Rules apply in order, so the last
   match wins. */
typedef struct {
    // "blocks.10-11.*", "*.attn.qkv"; segments between dots: *, a name, a range of numbers
    char layers[96];
    unsigned gemms;           // bit mask of GemmKind; all by default
    char operand[8];          // "x", "w", "dy", or "*"
    const Recipe *recipe;     // or NULL
    unsigned set;             // bit i: field i of operand_fields is overwritten from `fields`
    Operand fields;
} Rule;

Rule rule_default(void);      // every layer, every GEMM, every operand, changes nothing
/* Sets one key of a rule from text: "layers", "gemm", "operand", "recipe" or an operand field.
   Returns NULL, or a message (static buffer) that says what is legal. */
const char *rule_set(Rule *rule, const char *key, const char *value);
int rule_matches(const Rule *rule, const char *linear_name);
/* NULL, or that none of the rule's GEMMs has its operand (static buffer). */
const char *rule_error(const Rule *rule);
/* 1 where it sets something of a cell: a recipe, or a field. */
int rule_sets(const Rule *rule);
/* Comma-separated keys that rule_set knows, and the legal values of one; for messages and help. */
const char *rule_keys(void);
/* For a config that writes its rules out: key number i that rule_set knows (NULL past the last),
   and the text that sets it as this rule has it (NULL where the rule leaves it alone). */
const char *rule_key(int i);
/* One line on what a key of rule_key says. */
const char *rule_help(const char *key);
const char *rule_get(const Rule *rule, const char *key);

/* A source that is an operand of fprop becomes the tensor where fprop's is not quantised. */
LinearPlan recipe_resolve(const Recipe *base, const Rule *rules, int num_rules,
                          const char *linear_name);
/* NULL, or why this plan cannot be run for a linear of these sizes (static buffer): block and
   Hadamard sizes that differ across a GEMM, a source that does not exist, a dimension that does not
   fit (nearest valid values named). tokens = rows of one micro-batch. */
const char *recipe_error(const LinearPlan *plan, int in_features, int out_features, int64_t tokens);
/* Key of the first field other than source in which two cells differ, or NULL. */
const char *operand_difference(const Operand *a, const Operand *b);
/* The text that sets a field as the cell has it. */
const char *operand_field_text(const Operand *o, const char *key);
/* "bf16", "e4m3", "nvfp4 1x16 rht16 sr8", "nvfp4 16x16T": the words of recipe_word. */
const char *operand_describe(const Operand *o, char *buffer, int size);
/* The words that operand_describe writes, or a plan behind them, with commas between, and what they
   mean; NULL past the last. */
typedef struct {
    const char *text, *meaning;
} RecipeWord;
const RecipeWord *recipe_word(int i);

#ifdef __cplusplus
}
#endif
#endif
