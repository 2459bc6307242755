/*
oscillation -- how far weights move, and how far what products read of them does: over a window of
steps sums |w - w of the step before| and |Q - Q of the step before|, where Q is the decoded
operand. A weight that swings about the border between two codes moves little, its Q a whole step
back and forth; at the window's end reset puts such weights on what they are rounded to.
  accumulate  moved_w += |w - last_w|, moved_q += |q - last_q|, then last_w = w, last_q = q
  reset       where moved_q > 0 and moved_q >= threshold * moved_w: master = last_q, value =
              last_q rounded to nearest even; *count = number of these. Elsewhere nothing is
              written, and nowhere in a step that is dropped (stop_votes), which will come again
  shapes      all (R,C)
  dtypes      w, q, master and what is kept f32; value bf16, or f32 and then master itself; count
              one int64 in device memory
  numerics    each sum and difference one FP32 rounding; the same bits on all devices
  errors      aborts on a shape or dtype mismatch (oscillation_check)
  source      TetraJet-v2's OsciReset as specified in dev/NUMERICS.md 5g
  tests       test_oscillation.c; test_oscillation_sim.cpp; test_ops_extras_cuda.cu
*/
#ifndef LLMC_OPS_OSCILLATION_H
#define LLMC_OPS_OSCILLATION_H

#include "../tensor.h"
#include "step_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is kept of one weight from step to step. */
typedef struct {
    Tensor last_w, last_q, moved_w, moved_q;   // (R,C) f32 each
} Oscillation;

enum { OSCILLATION_BYTES = 16 };   // of each weight

Oscillation oscillation_place(Arena *a, int64_t rows, int64_t cols);

void oscillation_check(const Oscillation *o, Tensor like);
void oscillation_reset_check(const Oscillation *o, Tensor master, Tensor value);
void oscillation_accumulate_cpu(Device *d, Oscillation o, Tensor w, Tensor q);
void oscillation_accumulate_cuda(Device *d, Oscillation o, Tensor w, Tensor q);
void oscillation_reset_cpu(Device *d, Oscillation o, Tensor master, Tensor value, float threshold,
                           int64_t *count, const StepState *state);
void oscillation_reset_cuda(Device *d, Oscillation o, Tensor master, Tensor value, float threshold,
                            int64_t *count, const StepState *state);

#ifdef __cplusplus
}
#endif
#endif
