/*
hadamard -- the transform of a recipe's cells (cell.h) on its own, and its inverse: a building block
of the quantisers, the op that shows it, and the way back for gradients of transformed elements.
  forward   y_c = f sum_r s_r v_r H[r][c],  f = f32(1 / sqrt(size)), H[r][c] = (-1)^popcount(r & c),
            s_r = -1 where sign bit r is set
  inverse   v_r = s_r f sum_c y_c H[r][c], elements whose mask bit is 0 taken as 0 before
  shapes    x, out (R,C); groups of `size` columns, or of as many rows (along_rows), of which there
            are whole ones; the inverse goes along the columns, its mask is (R, C / 8) bytes, bit i
            of a byte for element i of its eight, or NULL
  dtypes    forward: x bf16 or f32 (on a GPU bf16), out bf16; inverse: x bf16 or f32
  numerics  signs, butterflies of stride 1, 2, 4 ... in f32, times f, one rounding to bf16; the
            inverse: butterflies, times f, signs, one rounding where x is bf16
  aliasing  out may be x where it is bf16; the inverse is in place
  errors    aborts when a size is not one of the transform or dtypes do not fit (hadamard_check,
            hadamard_inverse_check)
  source    arXiv:2509.25149 section 4.2; sign vector: dev/NUMERICS.md 4
  tests     test_quantize.c hadamard; test_hadamard.c; test_quantize_cuda.cu
*/
#ifndef LLMC_OPS_HADAMARD_H
#define LLMC_OPS_HADAMARD_H

#include "../recipe.h"
#include "../tensor.h"
#include "cell.h"
#include "step_state.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HADAMARD_SIGN_MASK 0xD7E8u
enum { HADAMARD_MAX_SIZE = 128 };

/* Which transform. tag to state name the draw of SIGNS_STEP; see Quantizer. */
typedef struct {
    int size;   // 4 to 128, a power of two; of the inverse also 1, which leaves the mask alone
    Signs signs;
    uint32_t tag;
    uint64_t seed;
    const StepState *state;   // device memory; NULL unless the signs are drawn
} Hadamard;

/* The sign mask of a policy without draws, for 16 elements: HADAMARD_SIGN_MASK or 0. */
uint32_t hadamard_sign_mask(Signs signs);
/* In place on one group of 16 values; no rounding to bf16. */
void hadamard16(float v[16], uint32_t sign_mask);
/* The same of any size, and its inverse. */
void hadamard_group(float *v, int size, CellSigns signs);
void hadamard_group_inverse(float *v, int size, CellSigns signs);

void hadamard_check(Tensor out, Tensor x, int along_rows, Hadamard h);
void hadamard_inverse_check(Tensor x, Hadamard h);
void hadamard_cpu(Device *d, Tensor out, Tensor x, int along_rows, Hadamard h);
void hadamard_cuda(Device *d, Tensor out, Tensor x, int along_rows, Hadamard h);
void hadamard_inverse_cpu(Device *d, Tensor x, const uint8_t *mask, Hadamard h);
void hadamard_inverse_cuda(Device *d, Tensor x, const uint8_t *mask, Hadamard h);

#ifdef __cplusplus
}
#endif
#endif
