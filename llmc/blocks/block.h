/*
block -- one residual branch of the model, and what attention and MLP (later Mamba-2) have in
common:

    x + out_linear(core(in_linear(norm(x))))

A BlockKind supplies the names, the widths and the core; everything else is here, once. The norm and
the addition are called by the model: an addition and the norm after it, which is of the next block
or the final one, are one op. In an ordinary transformer two branches, attention and MLP, carry the
same block number; with model.pattern each branch is a block of its own.

What backward reads is kept from forward, or, as memory.recompute says, is worked out again from x
by the ops of forward, to the same bits; block_keeps alone decides which. Always kept: x, the norm's
statistics, attention's lse and row scales.

  shapes    N = B*T rows; x, dx (N,C); core input (N, in_cols); core output (N, core_cols)
*/
#ifndef LLMC_BLOCKS_BLOCK_H
#define LLMC_BLOCKS_BLOCK_H

#include "../config.h"
#include "../linear.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Block Block;

typedef struct {
    char symbol;                 // in model.pattern
    // "attn": linears are blocks.I.attn.qkv, blocks.I.attn.proj, norm blocks.I.attn_norm
    const char *name;
    const char *in_name, *out_name;
    int (*in_cols)(const ModelConfig *m);      // columns of the core's input
    int (*core_cols)(const ModelConfig *m);    // columns of the core's output
    int backward_reads_output;   // the core's backward needs its output
    /* The first level at which core_forward runs again. RECOMPUTE_BLOCK where it changes its input:
       there that, too, is made again. */
    RecomputeLevel core_again;
    /* Extra saved tensors and constants; may be NULL. `tokens` is the largest micro-batch. */
    void (*place)(Block *b, Arena *saved, int64_t tokens);
    void (*core_forward)(Engine *e, Block *b, Tensor out, Tensor in, int T);
    void (*core_backward)(Engine *e, Block *b, Tensor din, Tensor dout, Tensor out, Tensor in,
                          int T);
} BlockKind;

extern const BlockKind block_attn, block_mlp;
extern const BlockKind *const block_kinds[];   // NULL at the end
const BlockKind *block_kind_of(char symbol);   // NULL if there is none

/* What block_keeps is asked of: a tensor, and where a linear reads it quantised, its token operand.
   */
typedef enum { KEPT_NORM_OUT, KEPT_CORE_IN, KEPT_CORE_OUT } BlockTensor;

/* Buffers that live within one branch's forward or backward and are shared by all blocks. */
typedef struct {
    Tensor norm_out;             // (N,C)
    // (N, widest core input), and token operands of the linears' inputs, (1, bytes): of blocks that
    // do not keep their own
    Tensor core_in, in_token, out_token;
    Tensor core_out;             // (N, widest core output)
    Tensor branch_out;           // (N,C)
    Tensor dcore_out;            // (N, widest core output)
    Tensor dcore_in;             // (N, widest core input)
    Tensor dnorm_out;            // (N,C)
} BlockScratch;

struct Block {
    const BlockKind *kind;
    const ModelConfig *model;
    int index;                   // block number in names
    RecomputeLevel recompute;
    int norm_weight, norm_bias;  // indices in the ParamTable; bias -1: none
    Linear in, out;
    LinearSaved in_saved, out_saved;
    NormStats stats;             // (N,1) each
    // (N,C), (N, in_cols), (N, core_cols) when backward reads it and it is kept; else empty and
    // scratch is used
    Tensor norm_out, core_in, core_out;
    Tensor lse;                  // attention: (B*NH, T) f32
    // smoothed MLPs: the core divides its output by row_scale, (N,1) f32, and out_linear's rows are
    // multiplied by it before the bias is added, which is then the block's; see block_smooth
    int smooth, out_bias;        // out_bias: index in the ParamTable, -1: none
    Tensor row_scale;
    // attention with rotary positions: (Tmax, HS) f32, shared by all blocks
    Tensor rope_table;
};

/* A norm of the residual stream: where its results go and what it multiplies by. */
typedef struct {
    Tensor out;                  // (N,C)
    NormStats stats;             // (N,1) each
    Tensor w, b;                 // (1,C); b empty: none
} NormSite;

void block_declare(Block *b, const BlockKind *kind, const ModelConfig *m, int index, ParamTable *t);
/* Divides the rows of a gated core's output by scales of their own before out_linear multiplies
   them (ops/smooth_swiglu.h). After block_declare. */
void block_smooth(Block *b);
/* 1: kept from forward to backward, if backward reads it; 0: backward makes it again. */
int block_keeps(const Block *b, BlockTensor t);
/* `s` already placed. */
void block_place(const Engine *e, Block *b, const BlockScratch *s, Arena *saved, int64_t tokens);
/* Of the first `rows` rows. */
Tensor block_row_scale(const Block *b, int64_t rows);
NormSite block_norm(const Engine *e, const Block *b, const BlockScratch *s, int64_t rows);
/* What is to be added to x, (rows,C) in scratch; block_norm's out holds the norm of x. */
Tensor block_forward(Engine *e, Block *b, const BlockScratch *s, int64_t rows, int T);
/* dx holds d loss / d (x + branch) and becomes d loss / d x. */
void block_backward(Engine *e, Block *b, const BlockScratch *s, Tensor dx, Tensor x, int T);

#ifdef __cplusplus
}
#endif
#endif
