// layernorm -- on a GPU: the centred form of the kernels in norm.cuh.
#include "layernorm.h"

#include "norm_launch.cuh"

size_t norm_scratch_cuda(int64_t rows, int64_t cols) {
    int64_t partials = min_i64(NORM_PARTIALS, ceil_div(rows, NORM_PARTIAL_ROWS));
    return (size_t)(partials * 2 * cols) * sizeof(float);   // dw and db
}

void layernorm_forward_cuda(Device *d, Tensor out, NormStats stats, Tensor x, Tensor w, Tensor b,
                            float eps) {
    layernorm_check(out, stats, x, w, b);
    Residual alone = {{}, x, {}};
    norm_forward<true>(d, out, stats, alone, w, b, eps);
}

void layernorm_residual_forward_cuda(Device *d, Tensor out, NormStats stats, Residual r, Tensor w,
                                     Tensor b, float eps) {
    layernorm_check(out, stats, r.sum, w, b);
    tensor_expect(r.x, "residual x", r.sum.dtype, r.sum.rows, r.sum.cols);
    tensor_expect(r.branch, "residual branch", r.sum.dtype, r.sum.rows, r.sum.cols);
    norm_forward<true>(d, out, stats, r, w, b, eps);
}

void layernorm_backward_cuda(Device *d, Tensor dx, Tensor dw, Tensor db, Tensor dout, Tensor x,
                             Tensor w, NormStats stats) {
    layernorm_check(dout, stats, x, w, w);   // the shift has the shape of the scale
    tensor_expect(dx, "layernorm dx", x.dtype, x.rows, x.cols);
    tensor_expect(dw, "layernorm dw", DT_F32, 1, x.cols);
    tensor_expect(db, "layernorm db", DT_F32, 1, x.cols);
    norm_backward<true>(d, dx, dw, db, dout, x, w, stats);
}
