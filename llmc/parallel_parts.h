/*
parallel_parts -- what parallel.c and parallel_weights.c share: weights of which each rank keeps a
part, level 3. Private to them.

One bucket of branches is at hand while the next is on its way. A pass begins with the first
branches at hand: weights_prepare and the pass before have seen to it, so that all passes queue the
same and one recording serves them. Forward goes up through the buckets and leaves the last one for
backward, which comes down to the first.
*/
#ifndef LLMC_PARALLEL_PARTS_H
#define LLMC_PARALLEL_PARTS_H

#include "parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of a bucket, from its own beginning: p->cuts. */
const int64_t *parallel_cuts(Parallel *p, const ZeroBucket *b);

/* Weights have changed: codes of own rows, and the first branches at hand. */
void weights_prepare(Parallel *p);
/* As PassObserver's; weights_done before what the stage completed is sent: it waits for what is on
   its way. All do nothing below level 3. */
void weights_forward(Parallel *p, int branch);
void weights_backward(Parallel *p, int stage);
void weights_done(Parallel *p, int stage);

#ifdef __cplusplus
}
#endif
#endif
