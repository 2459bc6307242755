// rmsnorm -- on a GPU: the kernels in norm.cuh without mean and shift.
#include "rmsnorm.h"

#include "norm_launch.cuh"

void rmsnorm_forward_cuda(Device *d, Tensor out, NormStats stats, Tensor x, Tensor w, Tensor b,
                          float eps) {
    rmsnorm_check(out, stats, x, w, b);
    Residual alone = {{}, x, {}};
    norm_forward<false>(d, out, stats, alone, w, b, eps);
}

void rmsnorm_residual_forward_cuda(Device *d, Tensor out, NormStats stats, Residual r, Tensor w,
                                   Tensor b, float eps) {
    rmsnorm_check(out, stats, r.sum, w, b);
    tensor_expect(r.x, "residual x", r.sum.dtype, r.sum.rows, r.sum.cols);
    tensor_expect(r.branch, "residual branch", r.sum.dtype, r.sum.rows, r.sum.cols);
    norm_forward<false>(d, out, stats, r, w, b, eps);
}

void rmsnorm_backward_cuda(Device *d, Tensor dx, Tensor dw, Tensor db, Tensor dout, Tensor x,
                           Tensor w, NormStats stats) {
    rmsnorm_check(dout, stats, x, w, db);
    tensor_expect(dx, "rmsnorm dx", x.dtype, x.rows, x.cols);
    tensor_expect(dw, "rmsnorm dw", DT_F32, 1, x.cols);
    norm_backward<false>(d, dx, dw, db, dout, x, w, stats);
}
