/*
gradients -- looks at the gradients of one optimizer step tensor by tensor: where they are zero,
where they are not finite. For the first step and for the end of a run that diverged: each look
waits for the device, once a tensor. Changes no gradient.
*/
#ifndef LLMC_GRADIENTS_H
#define LLMC_GRADIENTS_H

#include "comm.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Both after parallel_step, on every rank, with the ranks of the host: each looks at its own parts.
   They use state->grad_norm for their own sums. */

/* A tensor that no gradient reaches trains nothing and says nothing: warns of each, and logs how
   many of all they reach in `step`, an index from 0. */
void gradients_check_arrival(Model *m, Comm *host, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
