/*
ops_cpu -- the table of CPU references, and how much scratch they need for given sizes.
*/
#include "common.h"
#include "ops.h"
#include "ops/scratch_cpu.h"

/* Ops run one after the other and share the scratch area: the largest need counts. */
static size_t scratch_bytes(const OpLimits *l) {
    int64_t max_cols = max_i64(l->max_cols, l->padded_vocab);
    int64_t max_k = max_i64(max_cols, l->tokens);   // the contraction of wgrad runs over tokens
    int64_t max_b = max_i64(l->max_weight, l->tokens * l->max_cols);
    const size_t needs[] = {
        layernorm_scratch_cpu(l->max_cols),  rmsnorm_scratch_cpu(l->max_cols),
        column_sum_scratch_cpu(max_cols),    cross_entropy_scratch_cpu(l->padded_vocab),
        attention_scratch_cpu(l->attention), gemm_scratch_cpu(max_cols, max_k, max_b),
    };
    size_t most = 0;
    for (int i = 0; i < ARRAY_LEN(needs); i++) most = needs[i] > most ? needs[i] : most;
    return most;
}

static const char *attention_name(void) { return "blocked loops"; }

/* The reference takes every size. */
static const char *limits_error(const OpLimits *l) {
    (void)l;
    return NULL;
}

const Ops ops_cpu = {
    .name = "cpu",
    .attention_name = attention_name,
    .limits_error = limits_error,
    .scratch_bytes = scratch_bytes,
    .embedding_forward = embedding_forward_cpu,
    .embedding_backward = embedding_backward_cpu,
    .norm =
        {
            [NORM_LAYERNORM] = {layernorm_forward_cpu, layernorm_residual_forward_cpu,
                                layernorm_backward_cpu},
            [NORM_RMSNORM] = {rmsnorm_forward_cpu, rmsnorm_residual_forward_cpu,
                              rmsnorm_backward_cpu},
        },
    .rope_forward = rope_forward_cpu,
    .rope_backward = rope_backward_cpu,
    .attention_forward = attention_forward_cpu,
    .attention_backward = attention_backward_cpu,
    .activation_forward = activation_forward_cpu,
    .activation_backward = activation_backward_cpu,
    .smooth_swiglu_forward = smooth_swiglu_forward_cpu,
    .smooth_swiglu_backward = smooth_swiglu_backward_cpu,
    .scale_rows = scale_rows_cpu,
    .residual_forward = residual_forward_cpu,
    .cross_entropy = cross_entropy_cpu,
    .amax_pair = amax_pair_cpu,
    .amax_settle = amax_settle_cpu,
    .amax_advance = amax_advance_cpu,
    .quantize_pair = quantize_pair_cpu,
    .decode = decode_cpu,
    .channel_squares = channel_squares_cpu,
    .channels_advance = channels_advance_cpu,
    .channels_drop = channels_drop_cpu,
    .channels_add = channels_add_cpu,
    .hadamard = hadamard_cpu,
    .hadamard_inverse = hadamard_inverse_cpu,
    .gemm_error = gemm_error_cpu,
    .gemm_tune = gemm_tune_cpu,
    .gemm_choices_save = gemm_choices_save_cpu,
    .gemm_choices_load = gemm_choices_load_cpu,
    .gemm = gemm_cpu,
    .gemm_mma = gemm_cpu,   // decodes packed operands: the same product
    .column_sum = column_sum_cpu,
    .sum = sum_cpu,
    .global_norm = global_norm_cpu,
    .distance = distance_cpu,
    .oscillation_accumulate = oscillation_accumulate_cpu,
    .oscillation_reset = oscillation_reset_cpu,
    .step_decide = step_decide_cpu,
    .adamw = adamw_cpu,
    .decode_values = decode_values_cpu,
    .convert = convert_cpu,
    .add = add_cpu,
};
