// norm_launch -- launches of the kernels in norm.cuh from the tensors of an op, for layernorm.cu
// and rmsnorm.cu.
#pragma once
#include "../device_cuda.cuh"
#include "norm.cuh"
#include "scratch_cuda.cuh"

static inline bool norm_whole(Tensor a, Tensor b, Tensor c, Tensor d) {
    return whole_vectors(a) && whole_vectors(b) && whole_vectors(c) && whole_vectors(d);
}

template <class Launch> static void launch_norm(Device *d, const Launch &l) {
    CUDA_CHECK(cudaFuncSetAttribute(l.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    l.shared_bytes));
    CUDA_CHECK(cudaFuncSetAttribute(l.kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared));
    l.kernel<<<(unsigned)l.args.shape.blocks, NORM_THREADS, (size_t)l.shared_bytes,
               device_cuda_stream(d)>>>(l.args);
    CUDA_CHECK_LAUNCH();
}

/* residual.sum empty: of residual.x alone. */
template <bool CENTERED>
static void norm_forward(Device *d, Tensor out, NormStats stats, Residual r, Tensor w, Tensor b,
                         float eps) {
    expect_bf16(r.x, "x of a norm");
    NormForwardArgs a = {};
    a.out = (bf16 *)out.data;
    a.mean = (float *)stats.mean.data;
    a.rstd = (float *)stats.rstd.data;
    a.sum = (bf16 *)r.sum.data;
    a.x = (const bf16 *)r.x.data;
    a.branch = (const bf16 *)r.branch.data;
    a.w = (const bf16 *)w.data;
    a.b = (const bf16 *)b.data;
    a.eps = eps;
    a.shape = norm_shape(r.x.rows, r.x.cols,
                         r.x.cols % VEC == 0 && norm_whole(out, r.x, r.sum, r.branch) &&
                             whole_vectors(w) && whole_vectors(b));
    if (tensor_empty(r.sum))
        launch_norm(d, norm_forward_launch<CENTERED, false>(a, d->num_threads));
    else launch_norm(d, norm_forward_launch<CENTERED, true>(a, d->num_threads));
}

template <bool CENTERED>
static void norm_backward(Device *d, Tensor dx, Tensor dw, Tensor db, Tensor dout, Tensor x,
                          Tensor w, NormStats stats) {
    expect_bf16(x, "x of a norm");
    NormBackwardArgs a = {};
    a.dx = (bf16 *)dx.data;
    a.dw = (float *)dw.data;
    a.db = (float *)db.data;
    a.partials = (float *)device_scratch(d, norm_scratch_cuda(x.rows, x.cols));
    a.dout = (const bf16 *)dout.data;
    a.x = (const bf16 *)x.data;
    a.w = (const bf16 *)w.data;
    a.mean = (const float *)stats.mean.data;
    a.rstd = (const float *)stats.rstd.data;
    a.shape = norm_shape(x.rows, x.cols, x.cols % VEC == 0 && norm_whole(dx, dout, x, w));
    NormBackwardLaunch l = norm_backward_launch<CENTERED>(a);
    launch_norm(d, l);
    unsigned blocks = (unsigned)ceil_div(x.cols * (CENTERED ? 2 : 1), WARP);
    norm_sum_kernel<CENTERED><<<blocks, NORM_SUM_THREADS, 0, device_cuda_stream(d)>>>(l.args);
    CUDA_CHECK_LAUNCH();
}
