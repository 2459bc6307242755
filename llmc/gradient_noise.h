/*
gradient_noise -- how far rounding carries the gradient: r = |g_hp| / |g_q - g_hp|, with g_q the
weights' gradients as the recipe makes them and g_hp those of the same micro-batch with BF16 dgrad
and wgrad under the recipe's forward pass. 4-bit training is said to gain nothing more from its
gradients where r falls below sqrt(3).
  units   r is a ratio of amplitudes; infinite where both gradients are equal
  source  dev/NUMERICS.md 5b, after arXiv:2505.19115 section 4
  tests   test_telemetry.c
*/
#ifndef LLMC_GRADIENT_NOISE_H
#define LLMC_GRADIENT_NOISE_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The linears whose weights' gradients are looked at, and memory for a second set of them. */
typedef struct {
    int *ids;   // (count)
    int count;
    Tensor kept;     // (1, elements) f32: g_q; empty until it is placed
    double *ratio;   // (count): r of each linear, from the last gradient_noise_measure
} GradientNoise;

/* All linears that some phase quantises; where none is, all. */
GradientNoise gradient_noise_open(Model *m);
void gradient_noise_place(GradientNoise *n, Model *m, Arena *a);
void gradient_noise_close(GradientNoise *n);
/* Copies the gradients that the model holds: g_q. */
void gradient_noise_keep(GradientNoise *n, Model *m);
/* The model holds g_hp. Returns r of all linears together and leaves each one's in `ratio`. Uses
   state->grad_norm for its sums. */
double gradient_noise_measure(GradientNoise *n, Model *m);

#ifdef __cplusplus
}
#endif
#endif
