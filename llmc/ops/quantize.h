/*
quantize -- from a tensor to one operand of a GEMM: amax, block scales where the format has them,
rounding, and on the way, where the recipe says so, a Hadamard transform along the contraction.

Operands of one tensor x (R,C):
  row operand    contraction along C: blocks are 1 x 16 in a row; GEMM operand with rows = R, k = C
  token operand  contraction along R (the tokens): blocks are 16 rows x 1 column; GEMM operand with
                 rows = C, k = R
  A square tile (16 x 16 elements share a scale) serves both directions.
Forms:
  FORM_VALUES   the decoded values E2M1 * E4M3, or E4M3, or E5M2, or another cell's (ops/cell.h),
                without the tensor scale, in bf16 where it holds them (operand_values_dtype) or in
                f32, in x's own layout: (R,C). k_contiguous is 1 for a row operand, 0 for a token
                operand. A cell that is not quantised: the tensor, converted
  FORM_PACKED   codes, contraction contiguous. NVFP4: (rows, k/2) bytes, even k in the low nibble;
                block scales in the 128 x 4 tiled layout of quantize_scale_offset, padding zeroed.
                E4M3, E5M2: (rows, k) bytes, no block scales. What native GEMMs take.

The arithmetic of all cells is ops/cell.h's. What it comes to for the plain ones:

NVFP4, arithmetic 2 (dev/NUMERICS.md 2.1-2.2), every step one FP32 rounding:
  S_enc = min(top * 6 / amax, FLT_MAX), 1 when amax is 0;  S_dec = 1 / S_enc
  s = amax_b * (S_enc * f32(1/6));  s8 = E4M3(min(s, FLT_MAX))
  coeff = min(1 / (s8 * S_dec), FLT_MAX)
  q_i = E2M1(x_i * coeff), nearest even or stochastic
  decoded value without tensor scale: q_i * s8
  with headroom, s is multiplied by f32(17/16) before it is rounded
GEMM alpha = amax_a * amax_b * 1 / (6 top_a * 6 top_b), on the device (operand_alpha_mult).

E4M3 and E5M2, per-tensor current scaling (dev/NUMERICS.md 5d), max = 448 or 57344:
  scale = min(max / amax, FLT_MAX), 1 when amax is 0, infinite or NaN
  code = RN(x_i * scale), saturating; NaN gives 0x7F
The tensor's decode scale in alpha is amax * 1 / max, which is within an ulp or two of 1 / scale; an
amax of 0 makes it 0 beside codes that are all 0. Below an amax of max / FLT_MAX, about 1e-36, it
is smaller than 1 / scale: such tensors decode to less than they held.

Hadamard of 16 with fixed signs (dev/NUMERICS.md 4): each group of 16 along the contraction: signs
first (element i is negated when bit i of 0xD7E8 is set), butterflies of stride 1, 2, 4, 8 in f32,
times 0.25, rounded to bf16; amax and block maxima are those of the transformed, rounded values.

  shapes    R and C multiples of 16 for what is quantised (recipe_error has refused the rest with a
            message)
  dtypes    x bf16 or f32 (the transform rounds to bf16 either way); values as operand_values_dtype
            has it, or f32
  numerics  bit for bit the same codes and scales on CPU and CUDA; but for codes under
            Quantizer.hardware_rounding, which the CPU does not know
  random    rng.h: Quantizer.tag without sub-draw, key Quantizer.seed, step and token base from
            StepState
  errors    aborts on a shape or dtype mismatch (quantize_check); amax of inf or NaN gives NaN
            scales, and an alpha of inf or NaN, which the guard sees in the loss
  scratch   none
  source    NVIDIA TransformerEngine's arithmetic as specified in dev/NUMERICS.md; PTX ISA cvt
            (packing order)
  tests     test_quantize.c: vectors V1-V12, invariants; test_cell*.c: every cell;
            test_quantize_cuda.cu, test_quantize_cells_cuda.cu: bit-exact;
            test_quantize_fp8.c, test_quantize_fp8_cuda.cu: the same of E4M3 and E5M2
*/
#ifndef LLMC_OPS_QUANTIZE_H
#define LLMC_OPS_QUANTIZE_H

#include "../recipe.h"
#include "../tensor.h"
#include "step_state.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { FORM_VALUES, FORM_PACKED } OperandForm;

/* One side of one GEMM, ready for it. A view: the memory is an arena's. */
typedef struct {
    OperandForm form;
    FormatId format;     // of PACKED: what its codes are
    DType dtype;         // of VALUES: bf16 or f32
    // VALUES: (rows, k) if k_contiguous, else (k, rows); PACKED: quantize_codes_bytes
    void *data;
    uint8_t *scales;     // PACKED, with blocks: quantize_scales_bytes(rows, k) bytes; else NULL
    float *amax;         // device scalar; NULL when the format has no tensor scale (factor 1)
    // the tensor's decode scale is *amax / dequant_div, 1 / dequant_div without amax
    float dequant_div;
    int64_t rows, k;     // logical shape; k runs along the contraction
    int k_contiguous;
    // fprop operands whose cell has a mask: (rows, k / 8) bytes, bit i of a byte for element i of
    // its eight: 1 where it did not clip; else NULL
    uint8_t *mask;
    // PACKED: k is cut into so many equal parts, each an operand (rows, k / slices) of its own,
    // codes and scales one part after the other; 0 is 1
    int slices;
} QOperand;

/* How to make one operand: a recipe's cell and where its random bits come from. */
typedef struct {
    Operand how;
    int token_operand;         // 0: row operand, 1: token operand
    // x's row r is token state->token_base + first_row + r of the step's batch; else draws count
    // rows from 0
    int rows_are_tokens;
    int64_t first_row;
    uint32_t tag;              // rng_quantize_tag(linear, gemm, operand, 0)
    uint64_t seed;
    const StepState *state;    // device memory
    // 1: the GPU's convert rounds what quantize_can_round_in_hardware names, where it is packed
    int hardware_rounding;
    // x holds decoded values of an operand (source requantized): an element is
    // bf16(x fl(*source_amax fl(1 / source_div))), without source_amax bf16(x fl(1 / source_div));
    // source_div 0: x is a tensor like any other
    const float *source_amax;
    float source_div;
} Quantizer;

/* An operand that is the tensor itself: contraction along columns (k_contiguous) or along rows. */
QOperand operand_from_tensor(Tensor x, FormatId format, int k_contiguous);
int quantize_num_slices(const QOperand *q);
/* Part i of a packed operand's contraction. */
QOperand quantize_slice(const QOperand *q, int i);
/* Rows [first, first + count) of an operand in x's layout; of a packed one whole tiles of 128, or
   all. */
QOperand quantize_rows(const QOperand *q, int64_t first, int64_t count);
/* Bytes of a packed operand's codes; of NVFP4's, and of its block scales. */
size_t quantize_codes_bytes(FormatId format, int64_t rows, int64_t k);
size_t quantize_packed_bytes(int64_t rows, int64_t k);
size_t quantize_scales_bytes(int64_t rows, int64_t k);
/* Byte of the scale of row r, 16-block c in the 128 x 4 tiled layout;
   padded_cols = round_up(k / 16, 4). */
int64_t quantize_scale_offset(int64_t r, int64_t c, int64_t padded_cols);
/* QOperand.dequant_div of an operand made like this: largest element times top scale, where the
   tensor has a scale; see ops/cell.h for the rest. */
float quantize_dequant_div(const Operand *how);
/* f32(1 / product of both dequant_div). */
float operand_alpha_mult(const QOperand *a, const QOperand *b);

/* 1 on GPUs whose convert rounds stochastically, to codes that differ from software's. */
int quantize_has_hardware_rounding(const Device *d);
/* 1 for a cell whose packed codes it can make: stochastic, with 8 dither bits, in rows of 16, and
   transformed at most along the tokens. */
int quantize_can_round_in_hardware(const Operand *how, int token_operand);

/* Either operand may be NULL. First amax_pair, then quantize_pair, with the same arguments: each
   reads x once and serves both operands. amax_pair writes *row->amax and *token->amax. */
void quantize_check(const QOperand *row, const Quantizer *row_how, const QOperand *token,
                    const Quantizer *token_how, Tensor x);
void amax_pair_cpu (Device *d, QOperand *row, const Quantizer *row_how, QOperand *token,
                    const Quantizer *token_how, Tensor x);
void amax_pair_cuda(Device *d, QOperand *row, const Quantizer *row_how, QOperand *token,
                    const Quantizer *token_how, Tensor x);
void quantize_pair_cpu (Device *d, QOperand *row, const Quantizer *row_how, QOperand *token,
                        const Quantizer *token_how, Tensor x);
void quantize_pair_cuda(Device *d, QOperand *row, const Quantizer *row_how, QOperand *token,
                        const Quantizer *token_how, Tensor x);

/* Host only: decoded value (no tensor scale) of element (row, k) of a packed operand in one piece,
   and of NVFP4's codes and scales. */
float quantize_decode(const QOperand *q, int64_t row, int64_t k);
float quantize_decode_packed(const uint8_t *codes, const uint8_t *scales, int64_t rows, int64_t k,
                             int64_t at_row, int64_t at_k);

#ifdef __cplusplus
}
#endif
#endif
