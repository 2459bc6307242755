/*
hadamard -- the 16-point transform of quantize.h on its own: a building block of the quantisers, and
the op that shows it.
  y_c = 0.25 sum_r s_r v_r H[r][c],  H[r][c] = (-1)^popcount(r & c),  s_r = -1 where bit r of 0xD7E8
  is set
  shapes    x, out (R,C); along_rows 0: groups of 16 columns, C % 16 = 0; 1: groups of 16 rows, R %
            16 = 0
  dtypes    x bf16 or f32, out bf16
  numerics  signs, butterflies of stride 1, 2, 4, 8 in f32, times 0.25, one rounding to bf16
  aliasing  out may be x
  errors    aborts when a size is no multiple of 16 or dtypes do not fit (hadamard_check)
  source    arXiv:2509.25149 section 4.2; sign vector: dev/NUMERICS.md 4
  tests     test_quantize.c hadamard; test_quantize_cuda.cu
*/
#ifndef LLMC_OPS_HADAMARD_H
#define LLMC_OPS_HADAMARD_H

#include "../recipe.h"
#include "../tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HADAMARD_SIGN_MASK 0xD7E8u

/* The sign mask of a policy: HADAMARD_SIGN_MASK or 0. */
uint32_t hadamard_sign_mask(Signs signs);
/* In place on one group of 16 values; no rounding to bf16. */
void hadamard16(float v[16], uint32_t sign_mask);

void hadamard_check(Tensor out, Tensor x, int along_rows);
void hadamard_cpu (Device *d, Tensor out, Tensor x, int along_rows, Signs signs);
void hadamard_cuda(Device *d, Tensor out, Tensor x, int along_rows, Signs signs);

#ifdef __cplusplus
}
#endif
#endif
