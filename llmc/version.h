/*
version -- which commit and what build this is, for run.json. The Makefile writes the source of
these functions, anew only when their values change.
*/
#ifndef LLMC_VERSION_H
#define LLMC_VERSION_H

#ifdef __cplusplus
extern "C" {
#endif

/* "7d9ecdf1a2b3", with "-dirty" after it for changes not committed; "unknown" outside of git. */
const char *version_git_hash(void);
/* "CPU build (MPI, no OpenBLAS)" or "CUDA build for 90a (NCCL, cuDNN, MPI, OpenBLAS)". */
const char *version_build(void);

#ifdef __cplusplus
}
#endif
#endif
