// ops_cuda -- the table of CUDA ops, and how much scratch they need for given sizes.
#include "ops.h"

#include "common.h"
#include "ops/attention.cuh"
#include "ops/norm.cuh"
#include "ops/scratch_cuda.cuh"

/* Rows of matrices start at 16 bytes, a norm's row fits a block, a head fits attention's tiles. */
static const char *limits_error(const OpLimits *l) {
    if (l->cols_divisor % 8 != 0) {
        return "on a GPU model.dim, model.ffn and heads x head_dim must be multiples of 8";
    }
    if (l->dim > NORM_MAX_COLS) return "on a GPU model.dim is at most 8192";
    if (l->attention.head_dim % 8 != 0 || l->attention.head_dim > 128) {
        return "on a GPU model.head_dim must be a multiple of 8, at most 128";
    }
    return NULL;
}

/* Ops run one after the other and share the scratch area: the largest need counts. */
static size_t scratch_bytes(const OpLimits *l) {
    const size_t needs[] = {
        embedding_scratch_cuda(l->tokens, l->max_cols, l->padded_vocab),
        norm_scratch_cuda(l->tokens, l->max_cols),
        column_sum_scratch_cuda(max_i64(l->max_cols, l->padded_vocab)),
        l->f32_values ? gemm_scratch_cuda(l->tokens, l->max_cols) : 0,
        sum_scratch_cuda(),
        attention_cuda_scratch_bytes(l->attention, l->any_order),
    };
    size_t most = 0;
    for (int i = 0; i < ARRAY_LEN(needs); i++) most = needs[i] > most ? needs[i] : most;
    return most;
}

// In the order of struct Ops; C++17 has no designated initialisers.
const Ops ops_cuda = {
    "cuda",
    attention_cuda_name,
    limits_error,
    scratch_bytes,
    embedding_forward_cuda,
    embedding_backward_cuda,
    {
        {layernorm_forward_cuda, layernorm_residual_forward_cuda, layernorm_backward_cuda},
        {rmsnorm_forward_cuda, rmsnorm_residual_forward_cuda, rmsnorm_backward_cuda},
    },
    rope_forward_cuda,
    rope_backward_cuda,
    attention_forward_cuda,
    attention_backward_cuda,
    activation_forward_cuda,
    activation_backward_cuda,
    smooth_swiglu_forward_cuda,
    smooth_swiglu_backward_cuda,
    scale_rows_cuda,
    residual_forward_cuda,
    cross_entropy_cuda,
    amax_pair_cuda,
    amax_settle_cuda,
    amax_advance_cuda,
    quantize_pair_cuda,
    decode_cuda,
    channel_squares_cuda,
    channels_advance_cuda,
    channels_drop_cuda,
    channels_add_cuda,
    hadamard_cuda,
    hadamard_inverse_cuda,
    gemm_error_cuda,
    gemm_tune_cuda,
    gemm_choices_save_cuda,
    gemm_choices_load_cuda,
    gemm_cuda,
    gemm_mma_cuda,
    column_sum_cuda,
    sum_cuda,
    global_norm_cuda,
    distance_cuda,
    oscillation_accumulate_cuda,
    oscillation_reset_cuda,
    step_decide_cuda,
    adamw_cuda,
    decode_values_cuda,
    convert_cuda,
    add_cuda,
};
