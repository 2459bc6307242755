/*
model_parts -- what the files of model share. Private to them.
*/
#ifndef LLMC_MODEL_PARTS_H
#define LLMC_MODEL_PARTS_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What keys of precision beside the recipe ask of the linears, before their plans are resolved. */
void model_declare_extras(Model *m, const Config *c);
/* Dies where they cannot have it: of the linear as its plan is now. `when` says from when on. */
void model_refuse_extras(const Config *c, const Linear *l, const char *when);
/* What ranks send each other beside gradients, and these where they travel in bf16; by the arena
   protocol. */
void model_place_ranks(Model *m, const Config *c);
/* Operands of weights. At level 3 they are those of two buckets at a time. */
void model_place_weights(Model *m, int training);
/* What is kept from step to step; called twice by the arena protocol, the same in all phases. */
void model_place_kept(Model *m, const Config *c, int training);

#ifdef __cplusplus
}
#endif
#endif
