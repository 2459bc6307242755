// gemm_mma -- launches the NVFP4 GEMM of gemm_mma.cuh. Contracts: gemm_mma.h.
#include "gemm_mma.h"

#include "../device_cuda.cuh"
#include "gemm_mma.cuh"

int gemm_mma_available(const Device *dev) {
    if (dev->compute_capability / 10 != 12) return 0;
    // PTX of an older target, translated at run time, would do it in software here too.
    cudaFuncAttributes kernel;
    CUDA_CHECK(cudaFuncGetAttributes(&kernel, gemm_mma_kernel<MmaLayout, float>));
    return kernel.ptxVersion / 10 == 12;
}

static MmaSide packed_side(const char *name, const QOperand *q) {
    CHECK(q->form == FORM_PACKED && q->format == FORMAT_NVFP4,
          "gemm_mma: operand %s has form %d and format %d, not packed NVFP4", name, (int)q->form,
          (int)q->format);
    CHECK(q->amax && q->scales, "gemm_mma: operand %s lacks its scales", name);
    CHECK(q->rows <= INT32_MAX - MMA_TILE && q->k <= INT32_MAX - MMA_TILE_K,
          "gemm_mma: operand %s is %lld x %lld", name, (long long)q->rows, (long long)q->k);
    MmaSide side = {(const uint8_t *)q->data, q->scales, q->amax, (int)q->rows};
    return side;
}

template <class Out> static void launch(Device *dev, const MmaGemm &g) {
    auto kernel = gemm_mma_kernel<MmaLayout, Out>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    MMA_SHARED_BYTES));
    int64_t blocks = ceil_div(g.a.rows, MMA_TILE) * ceil_div(g.b.rows, MMA_TILE);
    CHECK(blocks <= INT32_MAX, "gemm_mma: %lld tiles", (long long)blocks);
    kernel<<<(unsigned)blocks, MMA_THREADS, MMA_SHARED_BYTES, device_cuda_stream(dev)>>>(g);
    CUDA_CHECK_LAUNCH();
}

void gemm_mma_cuda(Device *dev, Tensor d, const QOperand *a, const QOperand *b,
                   GemmEpilogue epilogue) {
    gemm_check(d, a, b, epilogue);
    CHECK(quantize_num_slices(a) == 1, "gemm_mma: the operands are sliced");
    CHECK(a->k > 0 && a->k % 32 == 0, "gemm_mma: k is %lld, not a multiple of 32", (long long)a->k);
    MmaGemm g;
    g.a = packed_side("a", a);
    g.b = packed_side("b", b);
    g.k = (int)a->k;
    g.alpha_mult = operand_alpha_mult(a, b);
    g.d = d.data;
    g.bias = epilogue.bias.data;
    g.accumulate = epilogue.accumulate;
    if (d.dtype == DT_F32) launch<float>(dev, g);
    else launch<uint16_t>(dev, g);
}
