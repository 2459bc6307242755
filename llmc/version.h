/*
version -- which commit the program was built from, for run.json. The Makefile writes the source
of this function, and anew only when the commit changes.
*/
#ifndef LLMC_VERSION_H
#define LLMC_VERSION_H

#ifdef __cplusplus
extern "C" {
#endif

/* "7d9ecdf1a2b3", with "-dirty" after it for changes not committed; "unknown" outside of git. */
const char *version_git_hash(void);

#ifdef __cplusplus
}
#endif
#endif
