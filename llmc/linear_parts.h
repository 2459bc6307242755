/*
linear_parts -- what linear.c and linear_operands.c share: questions about a linear's plan and its
memory. Private to them.
*/
#ifndef LLMC_LINEAR_PARTS_H
#define LLMC_LINEAR_PARTS_H

#include "linear.h"
#include "rng.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline int linear_is_plain(const Linear *l, GemmKind g) { return l->plain >> g & 1; }
/* What the operand is now; the plan says what it is apart from plain periods. */
static inline const Operand *linear_cell(const Linear *l, GemmKind g, Side s) {
    return linear_is_plain(l, g) ? &formats[l->plain_format].cell : &l->plan.cell[g][s];
}
static inline uint32_t linear_tag(const Linear *l, GemmKind g, Side s) {
    return rng_quantize_tag((uint32_t)l->id, (uint32_t)g, (uint32_t)s, 0);
}
/* Device scalar: the maximum that an operand is quantised with. */
static inline float *linear_amax(const Linear *l, GemmKind g, Side s) {
    return (float *)l->amax.data + (int)g * NUM_SIDES + (int)s;
}

/* The operand is not the tensor itself: quantised, or converted. */
int linear_is_made(const Linear *l, GemmKind g, Side s);
/* fprop says of this side's elements which ones clipped. */
int linear_has_mask(const Linear *l, Side s);
/* dgrad's weight is fprop's read the other way. */
int linear_shares_weight(const Engine *e, const Linear *l);
/* Of `tokens` rows of x; NULL without one. */
uint8_t *linear_saved_mask(const Engine *e, const Linear *l, const LinearSaved *saved,
                           int64_t tokens);
/* What is kept of the operand's maxima; adds nothing where nothing is. */
void linear_add_slot(AmaxSlots *slots, const Linear *l, GemmKind g, Side s);

#ifdef __cplusplus
}
#endif
#endif
