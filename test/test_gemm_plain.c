/*
test_gemm_plain -- the loops of gemm_plain.c against the sgemm_one_thread that this build links,
OpenBLAS where there is one: every layout, sizes around the edges of blocks, alpha and beta.
*/
#define sgemm_one_thread sgemm_plain
#define sgemm_name       sgemm_plain_name
#include "../llmc/ops/gemm_plain.c"
#undef sgemm_one_thread
#undef sgemm_name

#include "ops_double.h"

void sgemm_one_thread(SgemmShape s, const float *a, const float *b, float *c);

/* k stays below where the summation order could matter at the tolerance: values are in [-1, 1),
   so sums of k products are below k, and differ by less than k * k * 2^-24. */
static void expect_equal_products(SgemmShape s) {
    Tensor a = random_tensor(DT_F32, s.trans_a ? s.k : s.m, s.lda);
    Tensor b = random_tensor(DT_F32, s.trans_b ? s.n : s.k, s.ldb);
    Tensor plain = random_tensor(DT_F32, s.m, s.ldc), linked = copy_tensor(plain, DT_F32);
    sgemm_plain(s, (const float *)a.data, (const float *)b.data, (float *)plain.data);
    sgemm_one_thread(s, (const float *)a.data, (const float *)b.data, (float *)linked.data);
    double tolerance = 1e-6 * (double)(s.k + 1);
    for (int64_t i = 0; i < tensor_count(plain); i++)
        EXPECT_NEAR(get(plain, i), get(linked, i), tolerance,
                    "(%lld,%lld) of m %lld n %lld k %lld trans %d %d", (long long)(i / s.ldc),
                    (long long)(i % s.ldc), (long long)s.m, (long long)s.n, (long long)s.k,
                    s.trans_a, s.trans_b);
    case_free();
}

CASE(gemm_plain_all_layouts_and_edges) {
    static const int64_t sizes[][3] = {{1, 1, 1},    {3, 37, 5},   {4, 16, 256},
                                       {5, 17, 257}, {64, 65, 33}, {37, 130, 300}};
    for (int i = 0; i < ARRAY_LEN(sizes); i++) {
        for (int layout = 0; layout < 4; layout++) {
            int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
            int trans_a = layout & 1, trans_b = layout >> 1;
            SgemmShape s = {trans_a, trans_b, m, n, k, trans_a ? m : k, trans_b ? k : n, n, 1, 0};
            expect_equal_products(s);
            // Rows that are longer than what is used: columns beyond stay as they are.
            SgemmShape wide = {trans_a,   trans_b,   m,     n,      k,
                               s.lda + 3, s.ldb + 2, n + 1, -0.75f, 1.0f};
            expect_equal_products(wide);
            wide.beta = 0.5f;
            expect_equal_products(wide);
        }
    }
}

CASE(gemm_plain_beta_0_overwrites_nan) {
    float a = 3.0f, b = 2.0f, c = NAN;
    SgemmShape s = {0, 0, 1, 1, 1, 1, 1, 1, 1.0f, 0.0f};
    sgemm_plain(s, &a, &b, &c);
    EXPECT_NEAR(c, 6.0, 0.0);
}

TEST_MAIN_END
