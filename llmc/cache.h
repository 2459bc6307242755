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
/* The file's text, NUL-terminated; NULL where there is none, it cannot be read, or it has more than
   1 MiB. Caller frees. */
char *cache_read(const char *name);
/* Replaces the file as a whole, however many processes do so at once. Returns 0, having warned with
   the path and the system's text, where that cannot be done. */
int cache_write(const char *name, const char *text);

#ifdef __cplusplus
}
#endif
#endif
