/*
recipe -- precision as data. A linear layer has three GEMMs with two operands each; a recipe is a
table of these six cells, a cell says how one operand is brought into its format. Rules change cells
per layer; the resolved cells of a linear are its LinearPlan. Nothing outside this file's tables
tests a recipe or a format by name.

  GEMM    product            contraction   operand a      operand b
  fprop   Y  = X W^T         in-features   x   (N,C)      w   (OC,C)
  dgrad   dX = dY W          out-features  dy  (N,OC)     w   (C,OC), that is W^T
  wgrad   dW = dY^T X        tokens        dy  (OC,N)     x   (C,N)

  source  arXiv:2509.25149 section 4 (nvfp4); dev/NUMERICS.md 5a, 5d (fp8)
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
    FORMAT_E4M3,
    FORMAT_E5M2,
    NUM_FORMATS
} FormatId;
typedef struct {
    const char *name;
    DType elem;           // what one element is
    DType scale;          // what one block scale is; meaningless when block is 0
    int block;            // elements that share a block scale; 0: there is none
    int tensor_scale;     // 1: an FP32 scale per tensor, from its amax, goes into the GEMM's alpha
    float elem_max;       // largest element magnitude
    float scale_max;      // largest block scale
} Format;
extern const Format formats[NUM_FORMATS];
static inline int format_has_blocks(FormatId f) { return formats[f].block > 0; }
static inline int format_is_quantized(FormatId f) {
    return format_has_blocks(f) || formats[f].tensor_scale;
}
/* Elements of 8 bits with a scale for the tensor alone. */
static inline int format_is_fp8(FormatId f) {
    return formats[f].tensor_scale && !format_has_blocks(f);
}

// 1 x block along the contraction, or block x block
typedef enum { TILE_ROW, TILE_SQUARE } Tile;
typedef enum { ROUND_NEAREST, ROUND_STOCHASTIC } Rounding;
// of the Hadamard transform: mask 0xD7E8, or all +
typedef enum { SIGNS_FIXED, SIGNS_NONE } Signs;
typedef enum {
    SOURCE_TENSOR,        // quantised from the high-precision tensor along this GEMM's contraction
    SOURCE_TRANSPOSED     // dgrad w only: the transposed codes of fprop w
} Source;

/* One cell. Fields after `format` mean nothing for a format that is not quantised; of a quantised
   one without blocks only `source` does, for it is rounded to nearest as it is, so that its codes
   are the same in both directions. */
typedef struct {
    FormatId format;
    Tile tile;
    int hadamard;         // 0, or the size of the transform along the contraction (16)
    Signs signs;
    Rounding rounding;
    int dither_bits;      // 8, 16 or 24: random bits a value (stochastic rounding)
    Source source;
    // 1: block scale for a maximum of 6 * 16/17, so that stochastic rounding never clips
    int headroom;
    int top_scale;        // block scale code that the tensor maximum maps to: 448 or 256
    // 2: amax_b * (S_enc * f32(1/6)); 1: (amax_b / 6) * S_enc (dev/NUMERICS.md 2.2)
    int arithmetic;
} Operand;

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
/* Comma-separated keys that rule_set knows, and the legal values of one; for messages and help. */
const char *rule_keys(void);
/* For a config that writes its rules out: key number i that rule_set knows (NULL past the last),
   and the text that sets it as this rule has it (NULL where the rule leaves it alone). */
const char *rule_key(int i);
/* One line on what a key of rule_key says. */
const char *rule_help(const char *key);
const char *rule_get(const Rule *rule, const char *key);

LinearPlan recipe_resolve(const Recipe *base, const Rule *rules, int num_rules,
                          const char *linear_name);
/* NULL, or why this plan cannot be run for a linear of these sizes (static buffer): block and
   Hadamard sizes that differ across a GEMM, a source that does not exist, a dimension that does not
   fit (nearest valid values named). tokens = rows of one micro-batch. */
const char *recipe_error(const LinearPlan *plan, int in_features, int out_features, int64_t tokens);
/* "bf16", "e4m3", "nvfp4 1x16 rht16 sr8", "nvfp4 16x16T": T for the transposed codes of fprop. */
const char *operand_describe(const Operand *o, char *buffer, int size);

#ifdef __cplusplus
}
#endif
#endif
