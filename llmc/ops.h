/*
ops -- the table of operations: one row an op, one table per device. Everything above this layer
calls through it and never asks which device it is on. What each op computes is in ops/NAME.h.
*/
#ifndef LLMC_OPS_H
#define LLMC_OPS_H

#include "ops/activation.h"
#include "ops/adamw.h"
#include "ops/amax.h"
#include "ops/attention.h"
#include "ops/channels.h"
#include "ops/convert.h"
#include "ops/cross_entropy.h"
#include "ops/decode.h"
#include "ops/embedding.h"
#include "ops/gemm.h"
#include "ops/gemm_mma.h"
#include "ops/hadamard.h"
#include "ops/layernorm.h"
#include "ops/norm.h"
#include "ops/oscillation.h"
#include "ops/quantize.h"
#include "ops/reduce.h"
#include "ops/rmsnorm.h"
#include "ops/smooth_swiglu.h"
#include "ops/step_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The largest sizes that ops will meet: what scratch must hold. */
typedef struct {
    int64_t tokens;           // rows of an activation, B*T
    int64_t dim;              // row of the residual stream
    int64_t max_cols;         // widest activation row outside the head
    int64_t cols_divisor;     // greatest common divisor of all activation rows
    int64_t max_weight;       // elements of the largest weight
    int64_t logits_rows;      // rows of one chunk of the head
    int64_t padded_vocab;
    int64_t num_elements;     // of the flat parameter arrays
    AttentionDims attention;
    int f32_values;           // 1: some cell's decoded values take f32 (operand_values_dtype)
    // 1: sums of attention's backward pass may run in any order, where that is faster
    int any_order;
} OpLimits;

typedef struct Ops {
    const char *name;              // "cpu", "cuda"
    const char *(*attention_name)(void);   // the implementation, known once scratch_bytes ran
    /* NULL, or why this device cannot run a model of these sizes, with what is legal. */
    const char *(*limits_error)(const OpLimits *limits);
    size_t (*scratch_bytes)(const OpLimits *limits);

    void (*embedding_forward)(Device *, Tensor out, Tensor tokens, Tensor table, Tensor positions);
    void (*embedding_backward)(Device *, Tensor dtable, Tensor dpositions, Tensor dout,
                               Tensor tokens);
    NormOp norm[NUM_NORMS];
    void (*rope_forward)(Device *, Tensor qkv, Tensor table, AttentionDims);
    void (*rope_backward)(Device *, Tensor dqkv, Tensor table, AttentionDims);
    void (*attention_forward)(Device *, Tensor out, Tensor lse, Tensor qkv, AttentionDims);
    void (*attention_backward)(Device *, Tensor dqkv, Tensor dout, Tensor out, Tensor lse,
                               Tensor qkv, AttentionDims);
    void (*activation_forward)(Device *, Tensor out, Tensor x, ActKind);
    void (*activation_backward)(Device *, Tensor dx, Tensor dout, Tensor x, ActKind);
    void (*smooth_swiglu_forward)(Device *, Tensor out, Tensor scale, Tensor x);
    void (*smooth_swiglu_backward)(Device *, Tensor dx, Tensor dout, Tensor scale, Tensor x);
    void (*scale_rows)(Device *, Tensor out, Tensor x, Tensor scale, Tensor b);
    void (*residual_forward)(Device *, Tensor out, Tensor a, Tensor b);
    void (*cross_entropy)(Device *, Tensor losses, Tensor logits, Tensor targets, int vocab,
                          float dloss);
    void (*amax_pair)(Device *, QOperand *row, const Quantizer *, QOperand *token,
                      const Quantizer *, Tensor x);
    void (*amax_settle)(Device *, AmaxSlots, const StepState *state, int record);
    void (*amax_advance)(Device *, AmaxSlots, const StepState *state);
    void (*quantize_pair)(Device *, QOperand *row, const Quantizer *, QOperand *token,
                          const Quantizer *, Tensor x);
    void (*decode)(Device *, Tensor out, const QOperand *);
    void (*channel_squares)(Device *, Tensor sums, Tensor x, StepRange, const StepState *state);
    void (*channels_advance)(Device *, Tensor total, Tensor current, const StepState *state);
    void (*channels_drop)(Device *, Tensor out, Tensor x, Tensor chosen);
    void (*channels_add)(Device *, const QOperand *, Tensor x, Tensor chosen);
    void (*hadamard)(Device *, Tensor out, Tensor x, int along_rows, Hadamard);
    void (*hadamard_inverse)(Device *, Tensor x, const uint8_t *mask, Hadamard);
    /* NULL, or what the library says of a product that it cannot do; nothing is computed. */
    const char *(*gemm_error)(Device *, Tensor d, const QOperand *a, const QOperand *b,
                              GemmEpilogue);
    void (*gemm_tune)(Device *, Tensor d, const QOperand *a, const QOperand *b, GemmEpilogue);
    char *(*gemm_choices_save)(Device *);
    int (*gemm_choices_load)(Device *, const char *text);
    void (*gemm)(Device *, Tensor d, const QOperand *a, const QOperand *b, GemmEpilogue);
    void (*gemm_mma)(Device *, Tensor d, const QOperand *a, const QOperand *b, GemmEpilogue);
    void (*column_sum)(Device *, Tensor db, Tensor dout);
    void (*sum)(Device *, float *out, Tensor x, float scale);
    void (*global_norm)(Device *, float *out, Tensor x);
    void (*distance)(Device *, float *out, Tensor a, Tensor b);
    void (*oscillation_accumulate)(Device *, Oscillation, Tensor w, Tensor q);
    void (*oscillation_reset)(Device *, Oscillation, Tensor master, Tensor value, float threshold,
                              int64_t *count, const StepState *state);
    void (*step_decide)(Device *, StepState *state);
    void (*adamw)(Device *, AdamWTensors, AdamWConfig, const StepState *state);
    void (*decode_values)(Device *, Tensor out, const QOperand *);
    void (*convert)(Device *, Tensor out, Tensor x);
    void (*add)(Device *, Tensor out, Tensor x);
} Ops;

extern const Ops ops_cpu;    // ops_cpu.c
extern const Ops ops_cuda;   // ops_cuda.cu

#ifdef __cplusplus
}
#endif
#endif
