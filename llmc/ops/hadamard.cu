// hadamard -- on a GPU, as ops of their own; the quantisers transform in registers.
#include "hadamard.h"

#include "../device_cuda.cuh"
#include "quantize.cuh"

enum { THREADS = 256, QUAD = 4 };

static __device__ __forceinline__ float load_element(const uint16_t *x, int64_t at) {
    return __uint_as_float((uint32_t)x[at] << 16);
}
static __device__ __forceinline__ float load_element(const float *x, int64_t at) { return x[at]; }
static __device__ __forceinline__ void store_element(uint16_t *x, int64_t at, float v) {
    x[at] = __bfloat16_as_ushort(__float2bfloat16_rn(v));
}
static __device__ __forceinline__ void store_element(float *x, int64_t at, float v) { x[at] = v; }

static __device__ __forceinline__ CellSigns find_signs(Hadamard h) {
    return cell_signs(h.signs, h.tag, h.seed, h.signs == SIGNS_STEP ? h.state->step : 0);
}

/* Butterflies over a group of `size` elements in row order, four a thread: strides 1 and 2 within
   the thread, then between lanes. */
static __device__ __forceinline__ void butterflies_of_quads(float v[QUAD], int size) {
    if (size == 1) return;
    float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = a + c, v[1] = b + d, v[2] = a - c, v[3] = b - d;
    for (int lanes = 1; lanes < size / QUAD; lanes *= 2) {
        int is_upper = threadIdx.x & lanes;
#pragma unroll
        for (int i = 0; i < QUAD; i++) {
            float other = __shfl_xor_sync(~0u, v[i], lanes);
            v[i] = is_upper ? other - v[i] : v[i] + other;
        }
    }
}

/*
Along the columns, forward or (inverse 1) back, where mask may zero elements first. Groups are whole
and at most a warp's 128 elements long.
  bytes    an element read and written, and an eighth of a byte of mask
  limiter  memory; not measured
*/
template <typename T>
__global__ static void __launch_bounds__(THREADS)
    columns_kernel(T *out, const T *x, const uint8_t *mask, int64_t count, int inverse,
                   Hadamard h) {
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * QUAD;
    int exists = at < count;
    CellSigns signs = find_signs(h);
    float v[QUAD], factor = hadamard_factor(h.size);
#pragma unroll
    for (int i = 0; i < QUAD; i++) {
        int keep = exists && !(mask && !(mask[at / 8] >> (at + i) % 8 & 1));
        v[i] = keep ? load_element(x, at + i) : 0.0f;
        if (!inverse && cell_sign(signs, (int)((at + i) % h.size))) v[i] = -v[i];
    }
    butterflies_of_quads(v, h.size);
#pragma unroll
    for (int i = 0; i < QUAD; i++) {
        float value = v[i] * factor;
        if (inverse && cell_sign(signs, (int)((at + i) % h.size))) value = -value;
        if (exists) store_element(out, at + i, value);
    }
}

/*
Along the rows: a thread takes one group, whose elements are `cols` apart.
  bytes    2 read and 2 written per element
  limiter  local memory; an op for tests
*/
__global__ static void __launch_bounds__(THREADS)
    rows_kernel(uint16_t *out, const uint16_t *x, int64_t num_groups, int64_t cols, Hadamard h) {
    int64_t group = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (group >= num_groups) return;
    int64_t at = group / cols * h.size * cols + group % cols;
    CellSigns signs = find_signs(h);
    float v[HADAMARD_MAX_SIZE], factor = hadamard_factor(h.size);
    for (int i = 0; i < h.size; i++) {
        v[i] = load_element(x, at + i * cols);
        if (cell_sign(signs, i)) v[i] = -v[i];
    }
    for (int stride = 1; stride < h.size; stride *= 2) {
        for (int i = 0; i < h.size; i++) {
            if (i & stride) continue;
            float a = v[i], b = v[i + stride];
            v[i] = a + b;
            v[i + stride] = a - b;
        }
    }
    for (int i = 0; i < h.size; i++) store_element(out, at + i * cols, v[i] * factor);
}

template <typename T>
static void transform_columns(Device *d, void *out, Tensor x, const uint8_t *mask, int inverse,
                              Hadamard h) {
    int64_t count = tensor_count(x);
    unsigned blocks = (unsigned)ceil_div(count, THREADS * QUAD);
    columns_kernel<T><<<blocks, THREADS, 0, device_cuda_stream(d)>>>((T *)out, (const T *)x.data,
                                                                     mask, count, inverse, h);
    CUDA_CHECK_LAUNCH();
}

void hadamard_cuda(Device *d, Tensor out, Tensor x, int along_rows, Hadamard h) {
    hadamard_check(out, x, along_rows, h);
    CHECK(x.dtype == DT_BF16, "x is %s: the GPU transforms bf16", dtype_info[x.dtype].name);
    if (!along_rows) {
        transform_columns<uint16_t>(d, out.data, x, NULL, 0, h);
        return;
    }
    int64_t num_groups = tensor_count(x) / h.size;
    rows_kernel<<<(unsigned)ceil_div(num_groups, THREADS), THREADS, 0, device_cuda_stream(d)>>>(
        (uint16_t *)out.data, (const uint16_t *)x.data, num_groups, x.cols, h);
    CUDA_CHECK_LAUNCH();
}

void hadamard_inverse_cuda(Device *d, Tensor x, const uint8_t *mask, Hadamard h) {
    hadamard_inverse_check(x, h);
    if (x.dtype == DT_F32) transform_columns<float>(d, x.data, x, mask, 1, h);
    else transform_columns<uint16_t>(d, x.data, x, mask, 1, h);
}
