/*
norm -- what layernorm and rmsnorm share: one signature, so that a block calls ops->norm[kind] and
never asks which.
*/
#ifndef LLMC_OPS_NORM_H
#define LLMC_OPS_NORM_H

#include "../tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { NORM_LAYERNORM, NORM_RMSNORM, NUM_NORMS } NormKind;
extern const char *const norm_names[NUM_NORMS];   // "layernorm", "rmsnorm"; in layernorm.c

typedef struct { Tensor mean, rstd; } NormStats;  // each (N,1) f32; rmsnorm leaves mean alone
/* sum = x + branch, rounded once, all (N,C); what a residual branch adds before the next norm. */
typedef struct { Tensor sum, x, branch; } Residual;

typedef void NormForward (Device *d, Tensor out, NormStats stats, Tensor x, Tensor w, Tensor b,
                          float eps);
/* r.sum as residual_forward, then out and stats as NormForward of r.sum: the same bits. */
typedef void NormResidual(Device *d, Tensor out, NormStats stats, Residual r, Tensor w, Tensor b,
                          float eps);
typedef void NormBackward(Device *d, Tensor dx, Tensor dw, Tensor db, Tensor dout, Tensor x,
                          Tensor w, NormStats stats);
typedef struct {
    NormForward *forward;
    NormResidual *residual_forward;
    NormBackward *backward;
} NormOp;

#ifdef __cplusplus
}
#endif
#endif
