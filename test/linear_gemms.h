/*
linear_gemms -- the three GEMMs of a linear layer as operands that point nowhere, for asking
cuBLASLt about them without computing. The pointers differ, so that a swapped pair shows.
*/
#ifndef TEST_LINEAR_GEMMS_H
#define TEST_LINEAR_GEMMS_H

#include "../llmc/ops/gemm.h"

typedef struct {
    const char *model, *name;
    int64_t out, in;
    int has_bias;
} LinearShape;

typedef struct {
    Tensor d;
    QOperand a, b;
    GemmEpilogue epilogue;
} LinearGemm;

static inline char *nowhere(int which) { return (char *)0x7F0000000000 + (int64_t)which * 0x1000; }

/* Each side's data, scales and amax have places of their own. The format is that of codes; values
   are bf16. */
static inline QOperand operand_nowhere(OperandForm form, FormatId format, int side, int64_t rows,
                                       int64_t k) {
    QOperand q;
    memset(&q, 0, sizeof(q));
    q.form = form;
    q.format = form == FORM_PACKED ? format : FORMAT_BF16;
    q.dtype = DT_BF16;
    q.data = nowhere(16 * side);
    q.scales = format_has_blocks(q.format) ? (uint8_t *)nowhere(16 * side + 1) : NULL;
    q.amax = form == FORM_PACKED ? (float *)nowhere(16 * side + 2) : NULL;
    q.rows = rows;
    q.k = k;
    q.k_contiguous = 1;
    return q;
}

/* Weight (out,in), x (tokens,in), y (tokens,out):
     fprop  y = x w^T + bias, bf16;  dgrad  dx = dy w, bf16;  wgrad  dw += dy^T x, f32.
   Packed operands are those of the recipe. Values are in their tensors' layouts, of which some are
   strided along k; packed ones never. */
static inline LinearGemm linear_gemm_of(const char *recipe, LinearShape l, GemmKind kind,
                                        OperandForm form, int64_t tokens) {
    const int64_t sizes[NUM_GEMMS][3] = {   // M, N, K
        {tokens, l.out, l.in}, {tokens, l.in, l.out}, {l.out, l.in, tokens}};
    const int64_t *mnk = sizes[kind];
    LinearGemm g;
    memset(&g, 0, sizeof(g));
    const Operand *cells = recipe_find(recipe)->plan.cell[kind];
    g.a = operand_nowhere(form, cells[SIDE_A].format, 1, mnk[0], mnk[2]);
    g.b = operand_nowhere(form, cells[SIDE_B].format, 2, mnk[1], mnk[2]);
    if (form == FORM_VALUES) {
        g.a.k_contiguous = kind != GEMM_WGRAD;
        g.b.k_contiguous = kind == GEMM_FPROP;
    }
    g.d = tensor_view(nowhere(48), kind == GEMM_WGRAD ? DT_F32 : DT_BF16, mnk[0], mnk[1]);
    if (kind == GEMM_FPROP && l.has_bias)
        g.epilogue.bias = tensor_view(nowhere(64), DT_BF16, 1, mnk[1]);
    g.epilogue.accumulate = kind == GEMM_WGRAD;
    return g;
}

static inline LinearGemm linear_gemm(LinearShape l, GemmKind kind, OperandForm form,
                                     int64_t tokens) {
    return linear_gemm_of("nvfp4", l, kind, form, tokens);
}

#endif
