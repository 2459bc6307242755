// quantize -- on a GPU: the maxima, and who makes an operand: quantize_pair.cuh plain rows of
// NVFP4, quantize_fp8.cuh what has a tensor's scale alone, quantize_cell.cu all others.
#include "quantize.h"

#include "../device_cuda.cuh"
#include "hadamard.h"
#include "quantize.cuh"
#include "quantize_fp8.cuh"
#include "quantize_pair.cuh"

enum { THREADS = AMAX_THREADS };

// --- amax ---

/* The NaN of a or b, which fmaxf would lose. */
static __device__ __forceinline__ float max_abs_nan(float a, float b) {
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(fabsf(b)));
    return m;
}

/* Where the maxima go; NULL: not wanted. `plain` of x itself, `transformed` of its transform
   along the rows. */
typedef struct {
    float *plain[2], *transformed;
    uint32_t sign_mask;
} AmaxTargets;

/*
A thread takes 16 rows x 2 columns at a time; a warp reads 128 bytes of each row. The factor 0.25
and the rounding to bf16 keep the order of numbers, so the maximum takes them, once.
  bytes    2 per element, read once
  limiter  memory; the transform costs 4 additions an element; measured: see dev/SPEED.md
*/
template <bool TRANSFORM>
__global__ static void __launch_bounds__(THREADS, 4)
    amax_pair_kernel(AmaxTargets targets, const uint32_t *x, uint32_t num_strips,
                     uint32_t pairs_per_row) {
    uint32_t plain = 0;
    float most = 0.0f;
    uint64_t num_tasks = (uint64_t)num_strips * pairs_per_row;
    for (uint64_t task = (uint64_t)blockIdx.x * THREADS + threadIdx.x; task < num_tasks;
         task += (uint64_t)gridDim.x * THREADS) {
        uint32_t strip = (uint32_t)task / pairs_per_row, pair = (uint32_t)task % pairs_per_row;
        const uint32_t *p = x + (uint64_t)strip * 16 * pairs_per_row + pair;
        uint32_t word[16];
#pragma unroll
        for (int r = 0; r < 16; r++) word[r] = p[(uint64_t)r * pairs_per_row];
#pragma unroll
        for (int r = 0; r < 16; r++) plain = max2(plain, abs2(word[r]));
        if (TRANSFORM) {
            float low[16], high[16];
            transform_columns(low, high, word, targets.sign_mask);
#pragma unroll
            for (int r = 0; r < 16; r++) most = max_abs_nan(max_abs_nan(most, low[r]), high[r]);
        }
    }
    uint32_t plain_bits = max(plain << 16, plain & 0xFFFF0000u);
    for (int i = 0; i < 2; i++)
        if (targets.plain[i]) add_block_maximum(targets.plain[i], plain_bits);
    if (TRANSFORM) add_block_maximum(targets.transformed, pack_bf16x2(0.0f, most * 0.25f));
}

// --- launchers ---

static void check_cuda(const Device *d, const QOperand *row, const Quantizer *row_how,
                       const QOperand *token, const Quantizer *token_how, Tensor x) {
    quantize_check(row, row_how, token, token_how, x);
    CHECK((uintptr_t)x.data % 16 == 0, "x at %p is not aligned to 16 bytes", x.data);
    CHECK(!row || (uintptr_t)row->data % 16 == 0, "the row operand is not aligned to 16 bytes");
    CHECK(!token || (uintptr_t)token->data % 16 == 0,
          "the token operand is not aligned to 16 bytes");
    int hardware = (row && row_how->hardware_rounding) || (token && token_how->hardware_rounding);
    CHECK(!hardware || quantize_has_hardware_rounding(d), "%s does not round stochastically itself",
          d->name);
    CHECK(tensor_count(x) / 32 <= UINT32_MAX, "x has %lld elements", (long long)tensor_count(x));
}

/* Tensors as training has them: all but decoded values, and operands whose values take f32. */
static int is_usual(const QOperand *o, const Quantizer *how, Tensor x) {
    return x.dtype == DT_BF16 && how->source_div == 0.0f &&
           (o->form == FORM_PACKED || o->dtype == DT_BF16);
}

static int is_transformed(const Quantizer *how) {
    return operand_is_quantized(&how->how) && how->how.hadamard;
}

/* Whether amax_pair_kernel finds the maximum: of x itself, or of its transform of 16 along the
   tokens. */
static int amax_is_paired(const Quantizer *how, Tensor x) {
    if (x.dtype != DT_BF16 || how->source_div != 0.0f) return 0;
    return !is_transformed(how) ||
           (how->token_operand && how->how.hadamard == 16 && how->how.signs != SIGNS_STEP);
}

void amax_pair_cuda(Device *d, QOperand *row, const Quantizer *row_how, QOperand *token,
                    const Quantizer *token_how, Tensor x) {
    check_cuda(d, row, row_how, token, token_how, x);
    cudaStream_t stream = device_cuda_stream(d);
    QOperand *operands[2] = {row, token};
    const Quantizer *const hows[2] = {row_how, token_how};
    AmaxTargets targets = {};
    for (int i = 0; i < 2; i++) {
        QOperand *o = operands[i];
        if (!o || !o->amax) continue;
        CUDA_CHECK(cudaMemsetAsync(o->amax, 0, sizeof(float), stream));
        if (!amax_is_paired(hows[i], x)) {
            quantize_cell_cuda(d, o, hows[i], x, 1);
        } else if (is_transformed(hows[i])) {
            targets.transformed = o->amax;
            targets.sign_mask = hadamard_sign_mask(hows[i]->how.signs);
        } else {
            targets.plain[i] = o->amax;
        }
    }
    if (!targets.plain[0] && !targets.plain[1] && !targets.transformed) return;
    int64_t waves = 4;   // blocks of every multiprocessor, as many as fit at a time
    unsigned blocks =
        (unsigned)min_i64(ceil_div(tensor_count(x) / 32, THREADS), d->num_threads * waves);
    auto *kernel = targets.transformed ? amax_pair_kernel<true> : amax_pair_kernel<false>;
    kernel<<<blocks, THREADS, 0, stream>>>(targets, (const uint32_t *)x.data,
                                           (uint32_t)(x.rows / 16), (uint32_t)(x.cols / 2));
    CUDA_CHECK_LAUNCH();
}

static void clear_scale_padding(cudaStream_t stream, const QOperand *o) {
    if (o->scales && scales_have_padding(o))
        CUDA_CHECK(cudaMemsetAsync(o->scales, 0, quantize_scales_bytes(o->rows, o->k), stream));
}

static void quantize_fp8(cudaStream_t stream, const QOperand *row, const QOperand *token,
                         Tensor x) {
    for (int form = 0; form < ARRAY_LEN(fp8_kernels); form++) {
        Fp8Launch launch = fp8_launch((OperandForm)form, row, token, x);
        if (!launch.kernel) continue;
        launch.kernel<<<launch.blocks, FP8_THREADS, 0, stream>>>(launch.args);
        CUDA_CHECK_LAUNCH();
    }
}

/* Whether the two kernels of pairs leave an operand to the kernel of any cell. */
static int is_any_cell(const QOperand *o, const Quantizer *how, Tensor x) {
    if (!o || !is_usual(o, how, x)) return o != NULL;
    return !operand_is_fp8(&how->how) && pair_mode(o, how) == MODE_NONE;
}

static const QOperand *if_fp8(const QOperand *o, const Quantizer *how) {
    return o && operand_is_fp8(&how->how) ? o : NULL;
}

void quantize_pair_cuda(Device *d, QOperand *row, const Quantizer *row_how, QOperand *token,
                        const Quantizer *token_how, Tensor x) {
    check_cuda(d, row, row_how, token, token_how, x);
    cudaStream_t stream = device_cuda_stream(d);
    QOperand *operands[2] = {row, token};
    const Quantizer *const hows[2] = {row_how, token_how};
    for (int i = 0; i < 2; i++) {
        if (operands[i]) clear_scale_padding(stream, operands[i]);
        if (!is_any_cell(operands[i], hows[i], x)) continue;
        quantize_cell_cuda(d, operands[i], hows[i], x, 0);
        operands[i] = NULL;
    }
    row = operands[0];
    token = operands[1];
    const QOperand *row_fp8 = if_fp8(row, row_how), *token_fp8 = if_fp8(token, token_how);
    quantize_fp8(stream, row_fp8, token_fp8, x);
    if (row_fp8) row = NULL;
    if (token_fp8) token = NULL;
    for (int form = 0; form < ARRAY_LEN(pair_forms); form++) {
        PairLaunch launch = pair_launch((OperandForm)form, row, row_how, token, token_how, x);
        if (!launch.kernel) continue;
        launch.kernel<<<launch.blocks, PAIR_THREADS, 0, stream>>>(launch.args);
        CUDA_CHECK_LAUNCH();
    }
}
