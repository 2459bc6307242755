/*
recipe_words -- how a cell reads in one line: one row a word, which writes it and explains it, so
that plans and `help` cannot differ.
*/
#include <stdio.h>
#include <string.h>

#include "recipe.h"

typedef struct {
    char *text;
    int room;
} Out;

/* --- one writer a word; a word that the cell does not have is not written --- */

static int has_words(const Operand *o) { return operand_is_quantized(o); }
static int has_block_words(const Operand *o) {
    return operand_is_quantized(o) && operand_has_blocks(o);
}
static const Operand *usual(const Operand *o) { return &formats[o->format].cell; }

static void write_format(Out out, const Operand *o) {
    snprintf(out.text, (size_t)out.room, "%s", formats[o->format].name);
}

static void write_tile(Out out, const Operand *o) {
    if (!operand_has_blocks(o)) return;
    snprintf(out.text, (size_t)out.room, " %dx%d", o->tile == TILE_SQUARE ? o->block : 1, o->block);
}

static void write_source(Out out, const Operand *o) {
    static const char *const marks[] = {"", "T", "=", "Q"};
    if (has_words(o)) snprintf(out.text, (size_t)out.room, "%s", marks[o->source]);
}

static void write_field(Out out, const Operand *o, const char *label, const char *field,
                        int differs) {
    if (has_words(o) && differs)
        snprintf(out.text, (size_t)out.room, " %s%s", label, operand_field_text(o, field));
}

static void write_elem(Out out, const Operand *o) {
    write_field(out, o, "", "elem", o->elem != usual(o)->elem);
}
static void write_scale(Out out, const Operand *o) {
    write_field(out, o, "", "scale", o->scale != usual(o)->scale);
}
static void write_scale_rule(Out out, const Operand *o) {
    write_field(out, o, "", "scale_rule", o->scale_rule != usual(o)->scale_rule);
}
static void write_amax(Out out, const Operand *o) {
    write_field(out, o, "amax:", "amax", o->amax != usual(o)->amax);
}
static void write_zero(Out out, const Operand *o) {
    write_field(out, o, "zero:", "zero_scale", o->zero_scale != usual(o)->zero_scale);
}
static void write_outer(Out out, const Operand *o) {
    write_field(out, o, "outer", "outer", o->outer != 0);
}

static void write_transform(Out out, const Operand *o) {
    if (!has_block_words(o) || !o->hadamard) return;
    snprintf(out.text, (size_t)out.room, " %s%d%s", o->signs == SIGNS_NONE ? "ht" : "rht",
             o->hadamard, o->signs == SIGNS_STEP ? "/step" : "");
}

static void write_stochastic(Out out, const Operand *o) {
    if (has_block_words(o) && o->rounding == ROUND_STOCHASTIC)
        snprintf(out.text, (size_t)out.room, " sr%d", o->dither_bits);
}

static void write_rounding(Out out, const Operand *o) {
    if (has_block_words(o))
        write_field(out, o, "", "rounding", o->rounding == ROUND_AWAY || o->rounding == ROUND_EDEN);
}

static void write_headroom(Out out, const Operand *o) {
    if (has_block_words(o) && o->headroom) snprintf(out.text, (size_t)out.room, " headroom");
}

static void write_select(Out out, const Operand *o) {
    if (has_block_words(o)) write_field(out, o, "4/6:", "select", o->select != SELECT_NONE);
}

static void write_mask(Out out, const Operand *o) {
    if (has_block_words(o) && o->mask) snprintf(out.text, (size_t)out.room, " mask");
}

static void write_top(Out out, const Operand *o) {
    if (has_block_words(o))
        write_field(out, o, "top", "top_scale", o->top_scale != usual(o)->top_scale);
}

static void write_arithmetic(Out out, const Operand *o) {
    if (has_block_words(o) && o->arithmetic == 1) snprintf(out.text, (size_t)out.room, " v1");
}

/* --- the words, in the order of a line --- */

typedef struct {
    RecipeWord word;
    void (*write)(Out out, const Operand *o);   // NULL: explains more of what the row above writes
} Row;

// clang-format off
static const Row rows[] = {
    {{"bf16, f32", "not quantised"}, write_format},
    {{"nvfp4", "E2M1 values, an E4M3 scale for each 16, an FP32 scale for the tensor"}, NULL},
    {{"mxfp4, mxfp8", "E2M1 or E4M3 values, a power of two for each 32"}, NULL},
    {{"e4m3, e5m2", "8-bit values, one scale for the tensor"}, NULL},
    {{"e4m3_block", "E4M3 values, an FP32 scale for each 128"}, NULL},
    {{"ue5m3", "E2M1 values, an unsigned E5M3 scale for each 16, an FP32 scale for the tensor"},
     NULL},
    {{"int4", "15 even steps of 4 bits, an FP32 scale for each 16"}, NULL},
    {{"1x16, 16x16", "who shares a scale: so many along the contraction, or a square tile"},
     write_tile},
    {{"16x16T, e4m3T", "T: the codes of fprop's operand, transposed"}, write_source},
    {{"1x16=, 16x16=", "=: the decoded values of fprop's operand as they are"}, NULL},
    {{"1x32Q", "Q: quantised again from the decoded values of fprop's operand"}, NULL},
    {{"e2m1, e1m2", "elem: elements of another format than usual; also e4m3, e5m2"}, write_elem},
    {{"e8m0, e1m6, e2m5, e3m4, e6m1", "scale: block scales of another format than usual"},
     write_scale},
    {{"floor, ceil, even, quest, encode", "scale_rule: another rule from a block's maximum to its "
      "scale than usual; quest by its standard deviation, encode rounds the multiplier"},
     write_scale_rule},
    {{"amax:none, amax:current, amax:delayed, amax:held", "amax: another source of the tensor's "
      "scale than usual: none, this step's maximum, earlier steps', one held for 50 steps"},
     write_amax},
    {{"zero:keep, zero:one, zero:least", "zero_scale: what a block scale that rounds to 0 becomes"},
     write_zero},
    {{"outer128", "outer: above the block scales an FP32 scale for each 128"}, write_outer},
    {{"rht16, ht16", "hadamard: after a transform of 16 along the contraction; ht16: no signs"},
     write_transform},
    {{"rht32/step", "signs step: its signs are drawn for each step"}, NULL},
    {{"sr8, sr16, sr24", "stochastic rounding by so many random bits a value; without to nearest"},
     write_stochastic},
    {{"away, eden", "rounding: to nearest with ties away from zero; MS-EDEN"}, write_rounding},
    {{"headroom", "headroom 1: rounding up never clips"}, write_headroom},
    {{"4/6:mse, 4/6:mae", "select: the better of two block scales by squared or absolute error"},
     write_select},
    {{"mask", "mask 1: elements that clipped pass no gradient"}, write_mask},
    {{"top256, topmax", "top_scale: another block scale for the tensor's maximum than usual"},
     write_top},
    {{"v1", "arithmetic 1: block scales as in the paper"}, write_arithmetic},
    {{"native, emulated", "of a GEMM: codes are multiplied, or the values they stand for"}, NULL},
    {{"f32 values", "of a GEMM: BF16 does not hold these values exactly, so FP32 ones are "
      "multiplied"}, NULL},
};
// clang-format on

const RecipeWord *recipe_word(int i) {
    return i < (int)(sizeof(rows) / sizeof(rows[0])) ? &rows[i].word : NULL;
}

const char *operand_describe(const Operand *o, char *buffer, int size) {
    int at = 0;
    buffer[0] = '\0';
    for (int i = 0; recipe_word(i) && at < size - 1; i++) {
        if (!rows[i].write) continue;
        Out out = {buffer + at, size - at};
        rows[i].write(out, o);
        at += (int)strlen(buffer + at);
    }
    return buffer;
}
