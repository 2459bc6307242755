/*
cache -- text files that only save the time of finding something out again, under
$XDG_CACHE_HOME/train_gpt_nvfp4, or $HOME/.cache/train_gpt_nvfp4. Whoever reads one must do as well
without it and trust nothing in it: nothing here ends a run.
  tests     test_gemm_cache.c
*/
#ifndef LLMC_CACHE_H
#define LLMC_CACHE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Where the file `name` is kept; NULL where the environment names no place. Caller frees. */
char *cache_path(const char *name);
/* The file's text, NUL-terminated; NULL where there is none, or, after a warning, where it cannot
   be read, is no regular file or has more than 1 MiB. Caller frees. */
char *cache_read(const char *name);
/* Replaces the file as a whole, however many processes do so at once. Returns 0, having warned with
   the path and the system's text, where that cannot be done. */
int cache_write(const char *name, const char *text);

/* For a change from what is read to what is written: waits until no other process is between these
   two. Not for long: after two seconds, and where files cannot be locked, the last to write wins,
   which costs what the others found. cache_unlock wants what cache_lock returned. */
int cache_lock(const char *name);
void cache_unlock(int lock);

#ifdef __cplusplus
}
#endif
#endif
