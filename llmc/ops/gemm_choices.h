/*
gemm_choices -- the algorithms of matrix products as text: a header that names the device and its
libraries, then a line for each kind of product. Chooses nothing and calls no library, so that the
text can be checked and merged without a GPU.

  gemm algorithms 1 | NVIDIA H200, sm_90 | driver 13.0, runtime 13.0, cuBLASLt 13.1.0
  m n k types a b d, a b k-contiguous, bias accumulate slices, aligns a b d, workspace TFLOP/s algo
  65536 2304 768 14 14 14 1 1 1 0 1 256 256 256 0 701.3 0000000000000042...

The text may come from anywhere: a line counts only where it is, character by character, what
gemm_choice_line would write, and whoever takes an algorithm from it asks the library first.
  tests     test_gemm_cache.c; test_gemm_tune_cuda.cu
*/
#ifndef LLMC_OPS_GEMM_CHOICES_H
#define LLMC_OPS_GEMM_CHOICES_H

#include "../device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    GEMM_ALGO_WORDS = 8,      // of cublasLtMatmulAlgo_t
    GEMM_CHOICES_MAX = 4096   // keys of a list; a model has less than 200
};

/* What an algorithm is chosen for. Every byte counts in a comparison, so there is no padding. A
   bias is a parameter, which tensor.h aligns to 256 bytes. */
typedef struct {
    int64_t m, n, k;                  // k of one slice
    int32_t a_type, b_type, d_type;   // cudaDataType_t; types of 4 and 8 bits say FORM_PACKED
    int32_t a_k_contiguous, b_k_contiguous;
    int32_t has_bias, accumulate, slices;
    int32_t a_align, b_align, d_align;   // of the pointers, bytes
    int32_t unused;                      // zero: no hole for a comparison to meet
} GemmKey;

typedef struct {
    GemmKey key;
    uint64_t workspace_bytes;
    double tflops;   // as measured when it was chosen; 0: the library's first answer
    uint64_t algo[GEMM_ALGO_WORDS];
} GemmChoice;

typedef struct {
    GemmChoice *items;
    int count;
} GemmChoices;

/* The first two lines of the device's choices; caller frees. */
char *gemm_choices_header(const Device *d);
/* One line, with its newline; caller frees. */
char *gemm_choice_line(const GemmChoice *c);
/* The choice for this key; NULL where there is none. */
const GemmChoice *gemm_choices_find(const GemmChoices *list, const GemmKey *key);
/* Adds a choice, unless there is one for its key or the list is full. Returns whether it did. */
int gemm_choices_add(GemmChoices *list, const GemmChoice *c);
/* Adds those of the text whose keys the list does not have; none of a text with another header.
   Damaged lines, and what comes when the list is full, are left out with a warning. Returns how
   many it added. */
int gemm_choices_read(GemmChoices *list, const char *text, const char *header);
/* Header and lines; caller frees. */
char *gemm_choices_text(const GemmChoices *list, const char *header);

#ifdef __cplusplus
}
#endif
#endif
