/*
hadamard -- CPU reference. The transform of one group, and the ops that apply it to a tensor.
*/
#include "hadamard.h"

#include "../common.h"

uint32_t hadamard_sign_mask(Signs signs) { return signs == SIGNS_FIXED ? HADAMARD_SIGN_MASK : 0; }

// --- one group ---

static inline void butterflies(float *v, int size) {
    for (int stride = 1; stride < size; stride *= 2) {
        for (int i = 0; i < size; i += 2 * stride) {
            for (int j = i; j < i + stride; j++) {
                float a = v[j], b = v[j + stride];
                v[j] = a + b;
                v[j + stride] = a - b;
            }
        }
    }
    float factor = hadamard_factor(size);
    for (int i = 0; i < size; i++) v[i] *= factor;
}

static inline void flip_signs(float *v, int size, CellSigns signs) {
    for (int i = 0; i < size; i++)
        if (cell_sign(signs, i)) v[i] = -v[i];
}

void hadamard16(float v[16], uint32_t sign_mask) {
    CellSigns signs = {{sign_mask, 0, 0, 0}};
    flip_signs(v, 16, signs);
    butterflies(v, 16);
}

void hadamard_group(float *v, int size, CellSigns signs) {
    flip_signs(v, size, signs);
    butterflies(v, size);
}

void hadamard_group_inverse(float *v, int size, CellSigns signs) {
    butterflies(v, size);
    flip_signs(v, size, signs);
}

// --- the ops ---

static void check_transform(Tensor x, int64_t length, Hadamard h) {
    int is_size = h.size >= 4 && h.size <= HADAMARD_MAX_SIZE && (h.size & (h.size - 1)) == 0;
    CHECK(is_size, "hadamard of size %d", h.size);
    CHECK(x.dtype == DT_BF16 || x.dtype == DT_F32, "hadamard x is %s", dtype_info[x.dtype].name);
    CHECK(length % h.size == 0, "hadamard along %lld, which is no multiple of %d",
          (long long)length, h.size);
    CHECK(h.signs != SIGNS_STEP || h.state, "hadamard: signs of a step without a StepState");
}

void hadamard_check(Tensor out, Tensor x, int along_rows, Hadamard h) {
    tensor_expect(out, "hadamard out", DT_BF16, x.rows, x.cols);
    CHECK(x.dtype == DT_BF16 || out.data != x.data, "f32 values cannot be transformed in place");
    check_transform(x, along_rows ? x.rows : x.cols, h);
}

void hadamard_inverse_check(Tensor x, Hadamard h) {
    if (h.size == 1) h.size = 8;   // of a mask
    check_transform(x, x.cols, h);
    CHECK(x.cols % 8 == 0, "hadamard: a mask of %lld columns", (long long)x.cols);
}

static CellSigns find_signs(Hadamard h) {
    return cell_signs(h.signs, h.tag, h.seed, h.signs == SIGNS_STEP ? h.state->step : 0);
}

static void load(float *v, Tensor x, int64_t at, int64_t stride, int count) {
    const float *x_f32 = (const float *)x.data + at;
    const bf16_t *x_bf16 = (const bf16_t *)x.data + at;
    for (int i = 0; i < count; i++)
        v[i] = x.dtype == DT_F32 ? x_f32[i * stride] : bf16_to_f32(x_bf16[i * stride]);
}

void hadamard_cpu(Device *d, Tensor out, Tensor x, int along_rows, Hadamard h) {
    (void)d;
    hadamard_check(out, x, along_rows, h);
    CellSigns signs = find_signs(h);
    int64_t num_groups = tensor_count(x) / h.size, stride = along_rows ? x.cols : 1;
#pragma omp parallel for schedule(static)
    for (int64_t g = 0; g < num_groups; g++) {
        int64_t at = g / stride * h.size * stride + g % stride;
        float v[HADAMARD_MAX_SIZE];
        load(v, x, at, stride, h.size);
        hadamard_group(v, h.size, signs);
        bf16_t *y = (bf16_t *)out.data + at;
        for (int i = 0; i < h.size; i++) y[i * stride] = bf16_from_f32(v[i]);
    }
}

void hadamard_inverse_cpu(Device *d, Tensor x, const uint8_t *mask, Hadamard h) {
    (void)d;
    hadamard_inverse_check(x, h);
    CellSigns signs = find_signs(h);
    int64_t num_groups = tensor_count(x) / h.size;
#pragma omp parallel for schedule(static)
    for (int64_t g = 0; g < num_groups; g++) {
        int64_t at = g * h.size;
        float v[HADAMARD_MAX_SIZE];
        load(v, x, at, 1, h.size);
        for (int i = 0; mask && i < h.size; i++)
            if (!(mask[(at + i) / 8] >> (at + i) % 8 & 1)) v[i] = 0.0f;
        hadamard_group_inverse(v, h.size, signs);
        for (int i = 0; i < h.size; i++) {
            if (x.dtype == DT_F32) ((float *)x.data)[at + i] = v[i];
            else ((bf16_t *)x.data)[at + i] = bf16_from_f32(v[i]);
        }
    }
}
