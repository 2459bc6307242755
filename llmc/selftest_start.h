/*
selftest_start -- the self-test at the first start of a run on a device, driver, cuBLASLt, program
and set of shapes, and what its failure means. Later starts find that it passed, and skip it.
*/
#ifndef LLMC_SELFTEST_START_H
#define LLMC_SELFTEST_START_H

#include "comm.h"
#include "config.h"
#include "selftest.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 1 where the run is to emulate: products of packed operands failed, nothing else did, and
   precision.backend is not native; a warning says so. Dies with EXIT_DEVICE and the table on any
   other failure. What one rank finds holds for all. */
int selftest_at_start(const SelftestOptions *o, const Config *c, Comm *host);

#ifdef __cplusplus
}
#endif
#endif
