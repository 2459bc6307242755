/*
attention -- causal self-attention with grouped query heads; the T x T matrix is never stored.
  forward   q, k, v are column ranges of qkv: NH query heads, then NKV key heads, then NKV value
            heads, HS columns each; query head h reads key/value head h / (NH / NKV)
            s[i,j] = q_i . k_j / sqrt(HS) for j <= i;  lse[i] = log(sum_j exp(s[i,j]));  p = exp(s -
            lse) out_i = sum_j p[i,j] v_j
  backward  delta_i = dout_i . out_i;  dv_j = sum_i p[i,j] dout_i;  ds[i,j] = p[i,j] * (dout_i . v_j
            - delta_i) dq_i = sum_j ds[i,j] k_j / sqrt(HS);  dk_j = sum_i ds[i,j] q_i / sqrt(HS);
            dk, dv summed over a group's heads
  shapes    qkv, dqkv (B*T, (NH + 2 NKV) * HS); out, dout (B*T, NH*HS); lse (B*NH, T)
  dtypes    qkv, dqkv, out, dout: bf16 or f32, equal; lse f32
  numerics  products and sums in f32; CUDA rounds p and ds to bf16 before the second products; dqkv
            is overwritten; deterministic forward and backward
  errors    aborts on a shape or dtype mismatch (attention_check); CUDA: HS a multiple of 8, at most
            128
  scratch   attention_scratch_cpu (scratch_cpu.h), attention_cuda_scratch_bytes (attention.cuh)
  source    Dao et al. 2022, arXiv:2205.14135; Dao 2023, arXiv:2307.08691; Ainslie et al. 2023,
            arXiv:2305.13245 (grouped heads)
  tests     test_ops_cpu.c attention, test_attention_cuda.cu; bf16 within 2 ulp of the reference and
            what the rounding of p and ds explains

rope -- rotary positions on q and k, in place, half-split pairs (element i with i + HS/2), as in
Hugging Face Llama.
  forward   (a, b) -> (a cos - b sin, a sin + b cos), angle of position t, pair i: t *
            theta^(-2i/HS)
  backward  the inverse rotation
  shapes    qkv as above; table (Tmax, HS) f32: HS/2 cosines, then HS/2 sines, from rope_fill_table
  source    Su et al. 2021, arXiv:2104.09864
  tests     test_ops.c rope
*/
#ifndef LLMC_OPS_ATTENTION_H
#define LLMC_OPS_ATTENTION_H

#include "../tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int B, T;              // sequences, tokens in each
    int num_heads;         // NH
    int num_kv_heads;      // NKV, divides NH
    int head_dim;          // HS
} AttentionDims;

static inline int attention_qkv_cols(AttentionDims a) {
    return (a.num_heads + 2 * a.num_kv_heads) * a.head_dim;
}

void attention_check(Tensor out, Tensor lse, Tensor qkv, AttentionDims dims);
void attention_forward_cpu (Device *d, Tensor out, Tensor lse, Tensor qkv, AttentionDims dims);
void attention_forward_cuda(Device *d, Tensor out, Tensor lse, Tensor qkv, AttentionDims dims);
void attention_backward_cpu (Device *d, Tensor dqkv, Tensor dout, Tensor out, Tensor lse,
                             Tensor qkv, AttentionDims dims);
void attention_backward_cuda(Device *d, Tensor dqkv, Tensor dout, Tensor out, Tensor lse,
                             Tensor qkv, AttentionDims dims);

/* Host memory, (rows, head_dim) f32; angles in double, so that every machine holds the same table.
   */
void rope_fill_table(float *table, int rows, int head_dim, double theta);
void rope_check(Tensor qkv, Tensor table, AttentionDims dims);
void rope_forward_cpu  (Device *d, Tensor qkv, Tensor table, AttentionDims dims);
void rope_forward_cuda (Device *d, Tensor qkv, Tensor table, AttentionDims dims);
void rope_backward_cpu (Device *d, Tensor dqkv, Tensor table, AttentionDims dims);
void rope_backward_cuda(Device *d, Tensor dqkv, Tensor table, AttentionDims dims);

#ifdef __cplusplus
}
#endif
#endif
