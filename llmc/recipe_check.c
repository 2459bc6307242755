/*
recipe_check -- what makes a plan impossible, with what is legal.
*/
#include <stdio.h>
#include <string.h>

#include "common.h"
#include "recipe.h"

static char message[512];   // what recipe_error returns

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

/* --- one cell --- */

static int is_power_rule(const Operand *o) {
    return o->scale_rule != RULE_NEAREST && o->scale_rule != RULE_ENCODE;
}

/* What a cell with blocks may not be: one row a refusal. */
typedef struct {
    int (*is_wrong)(const Operand *o);
    const char *field;   // what to change
    const char *why;
} CellRefusal;

static int is_wrong_power(const Operand *o) { return is_power_rule(o) != (o->scale == DT_E8M0); }
static int is_wrong_quest(const Operand *o) {
    return o->scale_rule == RULE_QUEST && (o->tile != TILE_ROW || o->elem != DT_E2M1);
}
static int is_wrong_encode(const Operand *o) {
    return o->scale_rule == RULE_ENCODE && (o->amax == AMAX_NONE || o->tile != TILE_ROW);
}
static int is_wrong_amax(const Operand *o) {
    return o->amax != AMAX_NONE && (o->scale == DT_E8M0 || o->scale == DT_F32 || o->outer);
}
static int is_wrong_outer(const Operand *o) {
    return o->outer && (o->scale_rule != RULE_NEAREST || o->scale == DT_F32 || o->tile != TILE_ROW);
}
static int is_wrong_tile(const Operand *o) { return o->tile == TILE_SQUARE && o->hadamard; }
static int is_wrong_select(const Operand *o) {
    int nvfp4 = o->elem == DT_E2M1 && o->scale == DT_E4M3 && o->scale_rule == RULE_NEAREST;
    return o->select != SELECT_NONE &&
           (!nvfp4 || o->amax == AMAX_NONE || o->top_scale != 256 || o->headroom);
}
static int is_wrong_eden(const Operand *o) {
    int nvfp4 = o->elem == DT_E2M1 && o->scale == DT_E4M3 && o->scale_rule == RULE_NEAREST;
    return o->rounding == ROUND_EDEN &&
           (!nvfp4 || o->amax == AMAX_NONE || o->top_scale != 256 || o->tile != TILE_ROW ||
            o->select != SELECT_NONE || o->headroom);
}
static int is_wrong_headroom(const Operand *o) {
    int has_room = o->scale_rule == RULE_FLOOR ||
                   (o->scale_rule == RULE_NEAREST && o->scale != DT_F32 && !o->outer);
    return o->headroom && !has_room;
}
static int is_wrong_top(const Operand *o) {
    return o->scale != DT_E8M0 && o->scale != DT_F32 &&
           operand_top_scale(o) > minifloat(o->scale).max;
}
static int is_wrong_zero(const Operand *o) {
    return o->zero_scale != ZERO_KEEP && (o->scale == DT_E8M0 || o->scale == DT_F32);
}

static const CellRefusal cell_refusals[] = {
    {is_wrong_power, "scale_rule",
     "floor, ceil, even and quest are the rules of scale e8m0, and it "
     "has no other"},
    {is_wrong_quest, "scale_rule", "quest is for rows of e2m1"},
    {is_wrong_encode, "scale_rule", "encode is for rows, with a tensor scale (amax)"},
    {is_wrong_amax, "amax",
     "a tensor scale is for scales without range enough: not e8m0, not f32, "
     "and not under outer scales"},
    {is_wrong_outer, "outer", "outer scales are for rows of nearest block scales that are not f32"},
    {is_wrong_tile, "tile", "square tiles have no Hadamard transform"},
    {is_wrong_select, "select",
     "four-over-six chooses between scales of NVFP4 with top_scale 256 and "
     "no headroom"},
    {is_wrong_eden, "rounding",
     "eden is for rows of NVFP4 with top_scale 256, without select and "
     "headroom"},
    {is_wrong_headroom, "headroom", "headroom is for nearest and floor block scales"},
    {is_wrong_top, "top_scale", "no block scale is that large"},
    {is_wrong_zero, "zero_scale", "scales of e8m0 and f32 do not round to zero"},
};

static const char *block_error(const Operand *o, const char *gemm, const char *operand) {
    for (int i = 0; i < ARRAY_LEN(cell_refusals); i++) {
        const CellRefusal *r = &cell_refusals[i];
        if (!r->is_wrong(o)) continue;
        snprintf(message, sizeof(message), "%s.%s: %s; here precision.%s.%s.%s is %s", gemm,
                 operand, r->why, gemm, operand, r->field, operand_field_text(o, r->field));
        return message;
    }
    return NULL;
}

/* What needs blocks along the contraction. */
static const char *blockless_error(const Operand *o, const char *gemm, const char *operand) {
    const char *has_not = o->hadamard                    ? "Hadamard transform"
                          : o->rounding != ROUND_NEAREST ? "stochastic rounding"
                                                         : NULL;
    int fp8 = o->elem == DT_E4M3 || o->elem == DT_E5M2;
    if (fp8 && o->elem != formats[o->format].cell.elem) {
        const char *name = dtype_info[o->elem].name;
        snprintf(message, sizeof(message),
                 "%s.%s: %s for the whole tensor has a name of its own; set "
                 "precision.%s.%s.format=%s",
                 gemm, operand, name, gemm, operand, name);
        return message;
    }
    if (fp8 && has_not) {
        snprintf(message, sizeof(message), "%s.%s: %s has no %s; set precision.%s.%s.%s", gemm,
                 operand, formats[o->format].name, has_not, gemm, operand,
                 o->hadamard ? "hadamard=0" : "rounding=nearest");
        return message;
    }
    if (fp8) return NULL;
    snprintf(message, sizeof(message),
             "%s.%s: %s without blocks is no format of this program; set precision.%s.%s.block",
             gemm, operand, dtype_info[o->elem].name, gemm, operand);
    return message;
}

/* Codes or values that are taken over from fprop are what that cell made: the cell may not claim
   otherwise. Of codes only those of square tiles, or without blocks, can be read the other way. */
static const char *taken_over_error(const LinearPlan *plan, GemmKind g) {
    const Operand *o = &plan->cell[g][SIDE_B];
    const Operand *fprop = &plan->cell[GEMM_FPROP][g == GEMM_DGRAD ? SIDE_B : SIDE_A];
    const char *gemm = gemm_names[g], *operand = operand_names[g][SIDE_B];
    const char *field = operand_difference(o, fprop);
    int codes = o->source == SOURCE_TRANSPOSED;
    if (!field && (!codes || o->tile == TILE_SQUARE || !operand_has_blocks(o))) return NULL;
    snprintf(message, sizeof(message),
             "%s.%s: source %s shares the %s of fprop.%s, %s%s%s; change both alike "
             "(gemm \"*\", operand \"%s\"), or set precision.%s.%s.source=tensor",
             gemm, operand, operand_field_text(o, "source"), codes ? "codes" : "values", operand,
             field ? "but its " : "which wants square tiles", field ? field : "",
             field ? " is another" : "", operand, gemm, operand);
    return message;
}

static const char *source_error(const LinearPlan *plan, GemmKind g, Side s) {
    const Operand *o = &plan->cell[g][s];
    int is_w = g == GEMM_DGRAD && s == SIDE_B, is_x = g == GEMM_WGRAD && s == SIDE_B;
    const char *text = operand_field_text(o, "source");
    if (!is_w && !(is_x && o->source != SOURCE_TRANSPOSED)) {
        snprintf(message, sizeof(message),
                 "%s.%s: source %s is for dgrad.w%s; set source to tensor", gemm_names[g],
                 operand_names[g][s], text,
                 o->source == SOURCE_TRANSPOSED ? " alone" : " and wgrad.x");
        return message;
    }
    if (o->source != SOURCE_REQUANTIZED) return taken_over_error(plan, g);
    if (operand_is_quantized(&plan->cell[GEMM_FPROP][is_w ? SIDE_B : SIDE_A])) return NULL;
    snprintf(message, sizeof(message),
             "%s.%s: source requantized, but fprop.%s is not quantised; set source to tensor",
             gemm_names[g], operand_names[g][s], operand_names[g][s]);
    return message;
}

/* Gradients of transformed, clipped elements exist where the other operand is as fprop had it: of x
   in dgrad with such a w, of w in wgrad with such an x. */
static const char *mask_error(const LinearPlan *plan) {
    for (int s = 0; s < NUM_SIDES; s++) {
        GemmKind g = s == SIDE_A ? GEMM_DGRAD : GEMM_WGRAD;
        const Operand *o = &plan->cell[GEMM_FPROP][s], *back = &plan->cell[g][SIDE_B];
        int can_read = operand_is_quantized(back) && operand_has_blocks(o);
        int reads_values = back->source == SOURCE_REQUANTIZED || back->source == SOURCE_VALUES;
        if (!o->mask || !operand_is_quantized(o) || (reads_values && can_read)) continue;
        const char *operand = operand_names[GEMM_FPROP][s], *gemm = gemm_names[g];
        int at =
            snprintf(message, sizeof(message),
                     "fprop.%s: a mask needs blocks, and a quantised %s.%s of source "
                     "requantized or values; add \"mask\": 0 to the rule or schedule entry that "
                     "changes %s, or set precision.fprop.%s.mask=0",
                     operand, gemm, operand_names[g][SIDE_B], gemm, operand);
        if (can_read)
            snprintf(message + at, sizeof(message) - at, ", or precision.%s.%s.source=requantized",
                     gemm, operand_names[g][SIDE_B]);
        return message;
    }
    return NULL;
}

static const char *cell_error(const LinearPlan *plan, GemmKind g, Side s) {
    const Operand *o = &plan->cell[g][s];
    const char *gemm = gemm_names[g], *operand = operand_names[g][s];
    if (operand_is_quantized(&formats[o->format].cell) && !operand_is_quantized(o)) {
        snprintf(message, sizeof(message),
                 "%s.%s: %s without blocks needs the tensor's scale; set "
                 "precision.%s.%s.amax=current",
                 gemm, operand, formats[o->format].name, gemm, operand);
        return message;
    }
    if (!operand_is_quantized(o)) return NULL;
    const char *error = o->source != SOURCE_TENSOR ? source_error(plan, g, s) : NULL;
    if (error) return error;
    if (o->mask && g != GEMM_FPROP && o->source != SOURCE_VALUES) {
        snprintf(message, sizeof(message), "%s.%s: a mask is for fprop; set precision.%s.%s.mask=0",
                 gemm, operand, gemm, operand);
        return message;
    }
    if (!operand_has_blocks(o)) return blockless_error(o, gemm, operand);
    if (o->tile == TILE_SQUARE && strcmp(operand, "w") != 0) {
        snprintf(message, sizeof(message), "%s.%s: square tiles are for weights without Hadamard",
                 gemm, operand);
        return message;
    }
    return block_error(o, gemm, operand);
}

/* --- a GEMM --- */

/* Of an operand that is taken over as it is, the transform went along another dimension. */
static int transform_size(const Operand *o) {
    int taken_over = o->source == SOURCE_VALUES || o->source == SOURCE_TRANSPOSED;
    return operand_is_quantized(o) && !taken_over ? o->hadamard : 0;
}

static const char *pair_error(const LinearPlan *plan, GemmKind g) {
    const Operand *a = &plan->cell[g][SIDE_A], *b = &plan->cell[g][SIDE_B];
    int a_is_f32 = a->format == FORMAT_F32, b_is_f32 = b->format == FORMAT_F32;
    if (a_is_f32 != b_is_f32) {
        snprintf(message, sizeof(message), "%s: one operand is f32 and the other is not",
                 gemm_names[g]);
        return message;
    }
    int a_size = transform_size(a), b_size = transform_size(b);
    if (a_size != b_size || (a_size && a->signs != b->signs)) {
        snprintf(message, sizeof(message),
                 "%s: the Hadamard transform must be the same on both operands (size %d and "
                 "%d), or the product changes; the rule {\"gemm\": \"%s\", %s} sets both",
                 gemm_names[g], a_size, b_size, gemm_names[g],
                 a_size != b_size ? "\"hadamard\": 0" : "\"signs\": \"fixed\"");
        return message;
    }
    if (operand_has_blocks(a) && operand_has_blocks(b) && a->block != b->block) {
        snprintf(message, sizeof(message), "%s: block sizes differ, %d and %d", gemm_names[g],
                 a->block, b->block);
        return message;
    }
    return NULL;
}

static int max_int(int a, int b) { return a > b ? a : b; }

const char *recipe_error(const LinearPlan *plan, int in_features, int out_features,
                         int64_t tokens) {
    int quantized = 0, multiple[NUM_GEMMS];   // of each GEMM's contraction
    const char *error = mask_error(plan);
    if (error) return error;
    for (int g = 0; g < NUM_GEMMS; g++) {
        error = pair_error(plan, (GemmKind)g);
        if (error) return error;
        for (int s = 0; s < NUM_SIDES; s++) {
            error = cell_error(plan, (GemmKind)g, (Side)s);
            if (error) return error;
            quantized |= operand_is_quantized(&plan->cell[g][s]);
        }
        multiple[g] = max_int(32, transform_size(&plan->cell[g][SIDE_A]));
    }
    if (!quantized) return NULL;
    if (in_features % multiple[GEMM_FPROP])
        return size_message("in-features", in_features, multiple[GEMM_FPROP],
                            "a quantised linear's in-features");
    if (out_features % multiple[GEMM_DGRAD])
        return size_message("out-features", out_features, multiple[GEMM_DGRAD],
                            "a quantised linear's out-features");
    if (tokens % multiple[GEMM_WGRAD])
        return size_message("batch.micro x batch.seq_len", tokens, multiple[GEMM_WGRAD],
                            "tokens per micro-step");
    return NULL;
}
