// smooth_swiglu -- SwiGLU with a scale for each row, and products' rows scaled back, on a GPU.
#include "smooth_swiglu.h"

#include "../device_cuda.cuh"
#include "smooth_swiglu.cuh"

static unsigned row_blocks(Tensor t) {
    CHECK(t.rows < INT64_C(1) << 31, "%lld rows in one kernel", (long long)t.rows);
    return (unsigned)t.rows;
}

/* `out` is dout in the backward pass. */
static SmoothArgs smooth_args(Tensor out, Tensor scale, Tensor x) {
    smooth_swiglu_check(out, scale, x);
    expect_bf16(x, "smooth_swiglu x");
    SmoothArgs a = {};
    a.x = (const bf16 *)x.data;
    a.scale = (float *)scale.data;
    a.cols = out.cols;
    // The second half of a row starts at a vector only when the first is whole.
    a.whole = whole_vectors(out) && whole_vectors(x) && out.cols % VEC == 0;
    return a;
}

void smooth_swiglu_forward_cuda(Device *d, Tensor out, Tensor scale, Tensor x) {
    SmoothArgs a = smooth_args(out, scale, x);
    a.out = (bf16 *)out.data;
    smooth_forward_kernel<<<row_blocks(out), SMOOTH_THREADS, 0, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}

void smooth_swiglu_backward_cuda(Device *d, Tensor dx, Tensor dout, Tensor scale, Tensor x) {
    SmoothArgs a = smooth_args(dout, scale, x);
    smooth_swiglu_check(dout, scale, dx);
    a.dout = (const bf16 *)dout.data;
    a.dx = (bf16 *)dx.data;
    a.whole = a.whole && whole_vectors(dx);
    smooth_backward_kernel<<<row_blocks(dout), SMOOTH_THREADS, 0, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}

void scale_rows_cuda(Device *d, Tensor out, Tensor x, Tensor scale, Tensor b) {
    scale_rows_check(out, x, scale, b);
    expect_bf16(out, "scale_rows out");
    bool whole = whole_vectors(out) && whole_vectors(x) && (tensor_empty(b) || whole_vectors(b));
    ScaleRowsArgs a = {(bf16 *)out.data,
                       (const bf16 *)x.data,
                       (const bf16 *)b.data,
                       (const float *)scale.data,
                       out.cols,
                       whole};
    scale_rows_kernel<<<row_blocks(out), SMOOTH_THREADS, 0, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}
