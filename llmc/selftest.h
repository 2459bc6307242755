/*
selftest -- asks, on the user's own machine: do this device's ops compute what they should? Works
through the Device and Ops tables alone, so it sees what training would see. Repairs and decides
nothing: what a failure means is the caller's business.
  ops        every op of struct Ops on small odd sizes against its formula in double; on a GPU
             also against the CPU reference
  quantise   worked vectors byte for byte; the cells of recipe nvfp4 in both forms, which must
             decode to the same values, near to what was rounded; on a GPU bit for bit those of
             the CPU; means of stochastic rounding, also by the GPU's convert where the model's
             engine rounds with it
  products   the three GEMMs of every distinct linear of the model, operands made and multiplied
             as the engine does: 64 elements against exact sums, and of packed operands every
             element against the emulated product. Then linears of our own: tensor scales far
             from 1, ragged tiles, a long contraction
  units      error and bound of a product are parts of the size that its sum has at random signs;
             those of other rows are absolute
  bounds     packed against emulated: (K/64 + 1) 2^-23 sum|terms| and the last roundings.
             Against exact sums: (K/16 + 16) 2^-23 * 4 sqrt(sum terms^2), which operands of random
             signs keep with a wide margin, and which is far below K 2^-24 sum|terms|.
             FP8 tensor cores add with fewer bits, promoted to f32 now and then: 2^-10 sum|terms|,
             and 2^-10 sqrt(sum terms^2), which fast accumulation does not keep
  memory     one linear's tensors at a time; fewer tokens where they do not fit, which the row says
  errors     dies with EXIT_OOM where not even 128 tokens of a linear fit; a cache that cannot be
             written is warned of and costs another run, nothing else
  source     arXiv:2509.25149 section 4; dev/NUMERICS.md 2 and 8.3
  tests      test_selftest.c, test_selftest_cuda.cu: passes, and catches planted faults
*/
#ifndef LLMC_SELFTEST_H
#define LLMC_SELFTEST_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    Device *device;   // not sealed; its scratch area is replaced while the test runs
    const Ops *ops;
    Fp4Gemm fp4;      // of backend_choose
    Model *model;     // declared; nothing of it is touched
    int64_t tokens;   // of a micro-batch
    int verbose;      // 1: logs the table's lines, but for the last, as they come to be
    int fp8;          // of backend_choose too: 1 where FP8 codes are multiplied as such
} SelftestOptions;

typedef struct {
    int passed, failed;
    int native_failed;   // of the failed rows, those whose product is of packed codes
    int reduced;         // 1: for lack of memory some products had fewer tokens than asked for
    char *table;         // a header, a line a row, a legend, "N passed, N failed"; caller frees
} SelftestReport;

SelftestReport selftest_run(const SelftestOptions *o);

/* What a passed test is good for, in words: device, libraries, this program's CRC-32, what
   multiplies, and the products. NULL, after a log line, where the program cannot read itself.
   Caller frees. */
char *selftest_tuple(const SelftestOptions *o);
/* Whether this very tuple has passed before on this machine. */
int selftest_known(const char *tuple);
/* Notes that it passed, in the folder of cache.h; or takes such a note back. */
void selftest_remember(const char *tuple);
void selftest_forget(const char *tuple);
/* What follows from a test that ran: remembered where all of it passed on all the tokens asked for,
   forgotten where something failed. */
void selftest_record(const char *tuple, const SelftestReport *r);

#ifdef __cplusplus
}
#endif
#endif
