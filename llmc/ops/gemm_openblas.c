/*
gemm_openblas -- sgemm_one_thread of gemm.h through OpenBLAS. Threads are OpenMP's, one level up;
OpenBLAS itself is held to one.
*/
#include <cblas.h>
#include <threads.h>

#include "gemm.h"

const char sgemm_name[] = "OpenBLAS";

void openblas_set_num_threads(int num_threads);   // some distributions' cblas.h leaves it out

static once_flag one_thread = ONCE_FLAG_INIT;
static void hold_to_one_thread(void) { openblas_set_num_threads(1); }

void sgemm_one_thread(SgemmShape s, const float *a, const float *b, float *c) {
    call_once(&one_thread, hold_to_one_thread);
    cblas_sgemm(CblasRowMajor, s.trans_a ? CblasTrans : CblasNoTrans,
                s.trans_b ? CblasTrans : CblasNoTrans, (int)s.m, (int)s.n, (int)s.k, s.alpha, a,
                (int)s.lda, b, (int)s.ldb, s.beta, c, (int)s.ldc);
}
