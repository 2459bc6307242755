/*
linear -- y = x W^T + b and its gradients: three GEMMs, each operand in the form that the layer's
plan asks for. There is no branch on a recipe's name and none on the device: a plain operand is the
tensor itself, a quantised one comes from ops->quantize_pair.

  once per optimizer step   linear_prepare      weight operands for fprop and dgrad
  forward                   linear_input        row operand of x, and the token operand that wgrad
  will need
                            linear_forward      out (N,OC) = x (N,C) . w (OC,C)^T + bias
  backward                  linear_save_input   token operand of an x that was not kept
                            linear_output_grad  row and token operand of dy
                            linear_backward     dx (N,C) = dy (N,OC) . w (OC,C);  dw (OC,C) += dy^T
                            (OC,N) . x (N,C);
                                                dbias += column sums of dy
  once per optimizer step   linear_finish       dw as the optimizer takes it
                            linear_advance      what is kept of tensors' maxima moves on

Values of a product are bf16 where that holds those of both operands, else f32 of both, and f32 in
every product that reads the same values; a plain bf16 tensor is then converted. dgrad's w and
wgrad's x can be made of what fprop multiplied (recipe.h Source): their products are then gradients
of the transformed, clipped elements, and are brought back: clipped ones get none, and the inverse
of the transform follows; dx after each dgrad, dw at once for all micro-steps, as the way back is
linear.
  dtypes    x, out, dy, dx: the model dtype; dw, dbias f32, accumulated over micro-steps
  source    arXiv:2509.25149 section 4, arXiv:2505.14669; dev/NUMERICS.md 5 and 8.4
  tests     test_linear_flow.c, test_recipes_train.c
*/
#ifndef LLMC_LINEAR_H
#define LLMC_LINEAR_H

#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What multiplies two NVFP4 operands. */
typedef enum {
    FP4_EMULATED,   // ops->gemm of their decoded values
    FP4_LIBRARY,    // ops->gemm of packed codes: cuBLASLt on FP4 tensor cores
    // ops->gemm_mma of packed codes: mma.sync of FP4, in software where the GPU lacks it
    FP4_MMA,
    NUM_FP4_GEMMS
} Fp4Gemm;

typedef struct Linear Linear;

/* Who looks on while linears run; changes nothing. Both calls name the GEMM that the tensor is read
   or written by first: an x that of fprop, a dy that of dgrad. */
typedef struct {
    void *self;
    // x or dy, before operands are made of it
    void (*input)(void *self, const Linear *l, GemmKind g, Tensor x);
    // what fprop or dgrad wrote, as the next op will read it; of wgrad what was added to
    void (*product)(void *self, const Linear *l, GemmKind g, Tensor d, const QOperand *a,
                    const QOperand *b);
} LinearObserver;

/* What every layer needs in order to run. */
typedef struct {
    Device *device;
    const Ops *ops;
    ParamTable *params;
    StepState *state;            // device memory
    uint64_t seed;               // key of all random draws
    Fp4Gemm fp4;
    int fp8;                     // 1: ops->gemm multiplies FP8 codes; 0: their decoded values
    // 1: where the GPU can, it rounds packed NVFP4 stochastically; see Quantizer
    int hardware_rounding;
    int training;                // 0: forward only, nothing is kept for backward
    int records;                 // 1: maxima of tensors go into what later steps use
    Tensor row_buffer;           // scratch for the row operand of one linear, (1, bytes)
    Tensor token_buffer;         // scratch for the token operand of one dy, likewise
    Tensor rest_buffer;          // scratch for an x or w without its chosen channels, likewise
    int64_t quantized_gemms;     // counted as they run: the debug check on the plan
    const LinearObserver *observer;   // NULL: none
} Engine;

/* Of delayed and held maxima (ops/amax.h), for each GEMM operand; empty where there are none, or
   where the linear stands for itself: then each tensor's own maximum is used. */
typedef struct {
    Tensor current;              // (1, 6) f32
    Tensor kept;                 // (1, 6) f32
    Tensor history;              // (6, AMAX_HISTORY) f32; empty without delayed ones
} LinearMaxima;

/* OutControl (ops/channels.h), for those of a linear's in-features whose norm is largest: empty
   where it is not asked for. */
typedef struct {
    int wanted;                  // 1: asked for; done where both operands of fprop are quantised
    StepRange steps;             // that norms are taken of
    Tensor current, total;       // (1,C) f32: sums of squares, of this step and of those before
    Tensor chosen;               // (1,C) f32: 1 or 0
} LinearChannels;

struct Linear {
    char name[96];               // "blocks.3.attn.qkv"
    int id;                      // in order of declaration; names the layer in random draws
    int in, out;                 // features
    int weight, bias;            // indices in the ParamTable; bias -1: none
    LinearPlan plan;
    // GEMMs, a bit 1 << GemmKind each, that for a while multiply the tensors themselves in
    // plain_format, whatever the plan says (plain.h); the others multiply what they always do
    unsigned plain;
    FormatId plain_format;
    Tensor amax;                 // (1, 6) f32, in use: one scalar per GEMM operand
    LinearMaxima maxima;
    LinearChannels channels;
    // weight made for fprop and dgrad, (1, bytes); empty where plain or shared
    Tensor w_buffers[2];
    Tensor w_mask;               // (OC, C/8) u8: of fprop's w; empty without one
    QOperand w[NUM_GEMMS];       // weight operands of fprop and dgrad
};

/* What backward needs of the input. */
typedef struct {
    Tensor token_buffer;         // (1, bytes); empty when wgrad reads x itself
    QOperand token_x;            // of the input, (C,N)
    uint8_t *mask;               // of fprop's x, behind that operand; NULL without one
} LinearSaved;

typedef struct { Tensor dy; QOperand row, token; } LinearGrad;

/* Adds weight (and bias) to the table; std is that of the initial weights. */
void linear_declare(Linear *l, ParamTable *t, const char *name, int in, int out, int has_bias,
                    float std);
/* Maxima in use, and buffers of quantised weights; called twice by the arena protocol. */
void linear_place_amax(Linear *l, Arena *a);
void linear_place_weights(const Engine *e, Linear *l, Arena *a);
/* Buffer for the token operand, for up to `tokens` rows. */
void linear_place_saved(const Engine *e, const Linear *l, LinearSaved *saved, Arena *a,
                        int64_t tokens);
/* Bytes of that operand, and of fprop's mask; 0 when wgrad reads the input tensor. */
size_t linear_saved_bytes(const Engine *e, const Linear *l, int64_t tokens);
/* 1 when backward reads the input tensor itself, so that its buffer must live until then. */
int linear_keeps_input(const Linear *l);
/* FORM_PACKED where this engine multiplies codes, not decoded values: both operands NVFP4, or both
   FP8 and not both E5M2, a product that no library has. Never where another GEMM reads the values.
   */
OperandForm linear_gemm_form(const Engine *e, const Linear *l, GemmKind g);
/* Of both operands in FORM_VALUES. */
DType linear_values_dtype(const Linear *l, GemmKind g);
/* Bytes of an operand (rows, k), block scales included; `values` is the dtype of FORM_VALUES. */
size_t linear_format_bytes(OperandForm form, FormatId format, DType values, int64_t rows,
                           int64_t k);
/* Bytes of what side A of this GEMM makes of `tokens` rows; 0 where it is a plain tensor. */
size_t linear_scratch_bytes(const Engine *e, const Linear *l, GemmKind g, int64_t tokens);
/* Where the block scales of a packed operand lie in its buffer: behind the codes, aligned. */
uint8_t *linear_packed_scales(const QOperand *q);
/* Parts that the packed operands of its weight gradient are cut into; see gemm_slices. */
int linear_wgrad_slices(const Engine *e, const Linear *l, int64_t tokens);
/* 1 where ops->gemm_mma multiplies operands like this one, 0 where ops->gemm does. */
int linear_uses_own_kernel(const Engine *e, const QOperand *q);
/* The product by what the engine chose for operands of this form. */
void linear_multiply(Engine *e, Tensor d, const QOperand *a, const QOperand *b,
                     GemmEpilogue epilogue);
/* 1 where an operand of this GEMM is quantised. */
int linear_gemm_is_quantized(const Linear *l, GemmKind g);
/* Side B of this GEMM is codes or values of fprop's operand as they are. */
int linear_takes_over(const Linear *l, GemmKind g);
/* It is, or is quantised from, the decoded values of fprop's operand. */
int linear_reads_values(const Linear *l, GemmKind g);
/* GEMMs of this layer with at least one quantised operand. */
int linear_quantized_gemms(const Linear *l);

void linear_prepare(Engine *e, Linear *l);
/* Where ranks keep rows of weights (zero.h): whether fprop's operand can be made of rows by
   themselves, as NVFP4 codes and block scales, of which each rank makes the values that products
   read; linear_shares_codes: dgrad's, too. Then, for whole tiles of rows, (n,IC) in the model
   dtype: their maximum, which is to be that of all ranks' rows before codes are made; what products
   read, linear_take_codes; and its rows, linear_decode_rows. */
int linear_rows_have_codes(const Engine *e, const Linear *l);
int linear_shares_codes(const Engine *e, const Linear *l);
size_t linear_codes_bytes(const Linear *l, int64_t rows);   // a multiple of 16, as is their address
float *linear_codes_amax(const Linear *l);                  // the operand's, device scalar
void linear_find_amax(Engine *e, const Linear *l, float *amax, Tensor rows);
void linear_make_codes(Engine *e, const Linear *l, void *codes, Tensor rows);
void linear_take_codes(const Engine *e, Linear *l);
void linear_decode_rows(Engine *e, const Linear *l, int64_t first, int64_t rows, void *codes);
/* Of x the row operand, and where the engine trains and `saved` is not NULL, the token operand. */
QOperand linear_input(Engine *e, Linear *l, LinearSaved *saved, Tensor x);
/* The token operand alone: the same bits. */
void linear_save_input(Engine *e, Linear *l, LinearSaved *saved, Tensor x);
void linear_forward(Engine *e, const Linear *l, Tensor out, const QOperand *x);
LinearGrad linear_output_grad(Engine *e, Linear *l, Tensor dy);
void linear_backward(Engine *e, const Linear *l, Tensor dx, const LinearGrad *grad,
                     const LinearSaved *saved);
/* 1 where fprop multiplies chosen channels in MXFP8: then all three products multiply values. */
int linear_controls_channels(const Linear *l);
/* In forward passes that train: adds x to the sums that channels are chosen by. */
void linear_watch_channels(Engine *e, const Linear *l, Tensor x);
/* What fprop multiplies for the weight, of out's elements (OC,C) f32: decoded, with the tensor's
   scale, and where it is transformed, back from there. */
void linear_decode_weight(Engine *e, const Linear *l, Tensor out);
/* 1 where the weight's gradient is one of transformed or clipped elements until linear_finish. */
int linear_has_finish(const Linear *l);
void linear_finish(Engine *e, const Linear *l);
/* 1 where a cell has delayed or held maxima. */
int linear_keeps_maxima(const Linear *l);
/* 1 where a cell has delayed ones. */
int linear_keeps_history(const Linear *l);
/* Memory for them, which is to be zeroed at a run's start; `current` (1, 6) is the caller's. */
void linear_place_maxima(Linear *l, Arena *a, Tensor current);
/* Operands with a delayed or held maximum that no step has left one for yet. */
int linear_unset_maxima(const Engine *e, const Linear *l);
/* Ends a step for them; see amax_advance. */
void linear_advance(Engine *e, const Linear *l);

#ifdef __cplusplus
}
#endif
#endif
