// oscillation -- movements of weights and of their decoded operands on a GPU.
#include "oscillation.h"

#include "../device_cuda.cuh"
#include "oscillation.cuh"

void oscillation_accumulate_cuda(Device *d, Oscillation o, Tensor w, Tensor q) {
    oscillation_check(&o, w);
    tensor_expect(q, "oscillation q", DT_F32, w.rows, w.cols);
    OscillationArgs a = oscillation_args(&o);
    a.w = (const float *)w.data;
    a.q = (const float *)q.data;
    unsigned blocks = flat_blocks(a.total);
    oscillation_accumulate_kernel<<<blocks, FLAT_THREADS, 0, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}

void oscillation_reset_cuda(Device *d, Oscillation o, Tensor master, Tensor value, float threshold,
                            int64_t *count, const StepState *state) {
    oscillation_reset_check(&o, master, value);
    expect_bf16(value, "oscillation value");
    OscillationArgs a = oscillation_args(&o);
    a.master = (float *)master.data;
    a.value = (bf16 *)value.data;
    a.threshold = threshold;
    a.count = (unsigned long long *)count;
    a.state = state;
    d->zero(d, count, sizeof(*count));
    unsigned blocks = flat_blocks(a.total);
    oscillation_reset_kernel<<<blocks, FLAT_THREADS, 0, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}
