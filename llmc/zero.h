/*
zero -- who of several ranks owns which elements of the flat parameter arrays, in which pieces
gradients travel while backward still runs, and what memory and traffic that makes. Arithmetic over
a ParamTable, the number of ranks and a level (ZeRO, arXiv:1910.02054); it moves nothing.

  level 0   each rank keeps and updates everything; sums of gradients go to all
  level 1   f32 masters and Adam's moments of own parts only; a rank gets the sums of its part,
            updates it and gives the others the values that forward reads
  level 2   gradients too: a part of each micro-step's sums is added up, all else is in windows
  level 3   values of the blocks' matrices too: they are gathered bucket by bucket, ahead of use

Buckets are ranges of the flat arrays in the order in which backward completes them: the head's
weight where it is its own, then the matrices of branches from last to first, so many together as
make a bucket, then all that has no weight decay, then token vectors and positions. Each bucket is
cut into one part a rank, as equal as whole groups of rows allow; ownership is the same at all
levels, so that sums over parts, such as the gradient's norm, have the same bits. With one rank
every level is level 0.
  units     elements, unless a name says bytes
  tests     test_parallel_zero.c
*/
#ifndef LLMC_ZERO_H
#define LLMC_ZERO_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { NUM_ZERO_LEVELS = 4 };

/* Where gradients that are not kept live from their bucket's opening until it has been sent. */
typedef enum {
    WINDOW_EVEN, WINDOW_ODD,   // of branches, in turn
    WINDOW_EDGE,               // of the head's weight and of the embedding, one after the other
    WINDOW_PLAIN,              // of all without weight decay, which every stage adds to
    NUM_ZERO_WINDOWS
} ZeroWindow;

/* A range of the flat arrays, and when backward adds to its gradients: from stage `opens` down to
   stage `closes`. The head with the final norm is stage num_branches, branch i stage i, the
   embedding stage -1. */
typedef struct {
    int64_t begin, end;
    int opens, closes;
    int is_block;              // matrices of branches: what level 3 shards
} ZeroRange;

typedef struct {
    ZeroRange range;
    ZeroWindow window;
    int decays;                // weight decay applies
    int64_t *cuts;             // (size + 1) of the flat arrays; rank r owns [cuts[r], cuts[r + 1])
    int64_t own_at;            // first element of this rank's part in arrays of own parts
    int64_t value_at;          // of the bucket in the array of values, or where that holds this
                               // rank's part alone, of that
} ZeroBucket;

typedef struct {
    int rank, size, level;     // level 0 where size is 1
    ZeroBucket *buckets;       // (num_buckets), in the order in which they are complete
    int num_buckets;
    int64_t num_own;           // of an array of own parts, padding between them included
    int64_t num_values;        // of the array of values
    int64_t window_at[NUM_ZERO_WINDOWS + 1];   // where each begins in the array of windows
    int64_t largest, largest_block;            // bucket, and of those of branches
    int64_t *cuts;             // of all buckets; owned
} ZeroPlan;

typedef struct {
    int rank, size, level;
    int64_t bucket;            // branches are put together up to so many elements; at least one
    int64_t group_rows;        // cuts within a matrix are at multiples of so many rows
} ZeroOptions;

/* Ranges of branches come one a branch, in the order in which backward completes them. `t` after
   param_table_seal; its tensors are not looked at. */
ZeroPlan zero_plan(const ParamTable *t, const ZeroRange *ranges, int count,
                   const ZeroOptions *options);
void zero_free(ZeroPlan *z);

/* A piece of a parameter: elements [begin, begin + count) of it, whole rows of a matrix. */
typedef struct { int64_t begin, count; } ZeroPiece;
/* What `rank` owns of p; count 0: nothing. At every level each element has one owner. */
ZeroPiece zero_piece(const ZeroPlan *z, const Param *p, int rank);
/* The bucket that holds p. */
int zero_bucket_of(const ZeroPlan *z, const Param *p);
static inline int64_t zero_own_count(const ZeroPlan *z, const ZeroBucket *b) {
    return b->cuts[z->rank + 1] - b->cuts[z->rank];
}

/* --- memory --- */

/* What a rank keeps for training, in the place of param_table_place: at level 0 what that hands
   out. From level 1 on t->m and t->v, and t->master where values are bf16, are arrays of own parts,
   and p->master, p->m, p->v views of this rank's piece of p (empty where it owns nothing), from
   element p->kept_from on. From level 2 on t->grad is an array of own parts, and p->grad a view of
   a window, valid while p's bucket is open. At level 3 t->value has of branches' matrices own parts
   alone, and their p->value is a view of one of two windows, valid while it is gathered. */
void zero_place(const ZeroPlan *z, ParamTable *t, Arena *parameters, Arena *gradients,
                Arena *optimizer);
/* Where backward leaves a bucket's gradients, and at level 3 where a bucket of branches' values are
   gathered: (1, elements of the bucket). */
Tensor zero_gradients(const ZeroPlan *z, const ZeroBucket *b, const ParamTable *t);
Tensor zero_weights(const ZeroPlan *z, const ZeroBucket *b, const ParamTable *t);
/* This rank's part, (1,n): of either, of the sum of gradients when all are there, and of an array
   of what is kept. */
Tensor zero_part(const ZeroPlan *z, const ZeroBucket *b, Tensor bucket);
Tensor zero_sum(const ZeroPlan *z, const ZeroBucket *b, const ParamTable *t);
typedef struct { Tensor value, master, m, v; } ZeroKept;
ZeroKept zero_kept(const ZeroPlan *z, const ZeroBucket *b, const ParamTable *t);

typedef struct { int64_t values, masters, moments, gradients; } ZeroBytes;
/* Bytes that a rank takes for parameters of `dtype`, windows among the gradients; staging of sums
   that travel in bf16 is not in it. */
ZeroBytes zero_bytes(const ZeroPlan *z, const ParamTable *t);

/* --- traffic --- */

/* Bytes that a rank sends in an optimizer step, as in rings: of each sum or gathering all but its
   size-th part. */
typedef struct { int64_t sums, values; } ZeroTraffic;
/* `accumulation` micro-steps. weight_bytes: what a rank has to get once to have the blocks'
   matrices at level 3, where that is not their values (0: it is). */
ZeroTraffic zero_traffic(const ZeroPlan *z, const ParamTable *t, DType gradients, int accumulation,
                         int64_t weight_bytes);

#ifdef __cplusplus
}
#endif
#endif
