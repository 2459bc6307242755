/*
hadamard -- CPU reference. The transform of one group, and the op that applies it to a tensor.
*/
#include "hadamard.h"

#include "../common.h"

uint32_t hadamard_sign_mask(Signs signs) { return signs == SIGNS_FIXED ? HADAMARD_SIGN_MASK : 0; }

void hadamard16(float v[16], uint32_t sign_mask) {
    for (int i = 0; i < 16; i++)
        if (sign_mask >> i & 1) v[i] = -v[i];
    for (int stride = 1; stride < 16; stride *= 2) {
        for (int i = 0; i < 16; i++) {
            if (i & stride) continue;
            float a = v[i], b = v[i + stride];
            v[i] = a + b;
            v[i + stride] = a - b;
        }
    }
    for (int i = 0; i < 16; i++) v[i] *= 0.25f;
}

void hadamard_check(Tensor out, Tensor x, int along_rows) {
    tensor_expect(out, "hadamard out", DT_BF16, x.rows, x.cols);
    CHECK(x.dtype == DT_BF16 || x.dtype == DT_F32, "hadamard x is %s", dtype_info[x.dtype].name);
    CHECK(x.dtype == DT_BF16 || out.data != x.data, "f32 values cannot be transformed in place");
    int64_t size = along_rows ? x.rows : x.cols;
    CHECK(size % 16 == 0, "hadamard along %s: %lld is no multiple of 16",
          along_rows ? "rows" : "columns", (long long)size);
}

void hadamard_cpu(Device *d, Tensor out, Tensor x, int along_rows, Signs signs) {
    (void)d;
    hadamard_check(out, x, along_rows);
    uint32_t mask = hadamard_sign_mask(signs);
    int64_t num_groups = tensor_count(x) / 16, stride = along_rows ? x.cols : 1;
    const float *x_f32 = (const float *)x.data;
    const bf16_t *x_bf16 = (const bf16_t *)x.data;
    bf16_t *y = (bf16_t *)out.data;
#pragma omp parallel for schedule(static)
    for (int64_t g = 0; g < num_groups; g++) {
        int64_t at = along_rows ? g / x.cols * 16 * x.cols + g % x.cols : g * 16;
        float v[16];
        for (int i = 0; i < 16; i++)
            v[i] =
                x.dtype == DT_F32 ? x_f32[at + i * stride] : bf16_to_f32(x_bf16[at + i * stride]);
        hadamard16(v, mask);
        for (int i = 0; i < 16; i++) y[at + i * stride] = bf16_from_f32(v[i]);
    }
}
