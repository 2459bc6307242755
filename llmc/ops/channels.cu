// channels -- channels of large norm, kept out of what is quantised, on a GPU.
#include "channels.h"

#include "../device_cuda.cuh"
#include "channels.cuh"

static ChannelArgs channel_args(Tensor x) {
    expect_bf16(x, "channels x");
    ChannelArgs a = {};
    a.x = (const bf16 *)x.data;
    a.rows = x.rows;
    a.cols = x.cols;
    return a;
}

void channel_squares_cuda(Device *d, Tensor sums, Tensor x, StepRange steps,
                          const StepState *state) {
    channel_squares_check(sums, x);
    ChannelArgs a = channel_args(x);
    a.sums = (float *)sums.data;
    a.steps = steps;
    a.state = state;
    unsigned blocks = (unsigned)ceil_div(x.cols, WARP);
    channel_squares_kernel<<<blocks, WARP * SQUARES_LANES, 0, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}

void channels_advance_cuda(Device *d, Tensor total, Tensor current, const StepState *state) {
    channels_advance_check(total, current);
    ChannelArgs a = {};
    a.sums = (float *)total.data;
    a.current = (float *)current.data;
    a.cols = total.cols;
    a.state = state;
    unsigned blocks = flat_blocks(total.cols);
    channels_advance_kernel<<<blocks, FLAT_THREADS, 0, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}

void channels_drop_cuda(Device *d, Tensor out, Tensor x, Tensor chosen) {
    channels_drop_check(out, x, chosen);
    CHECK(x.cols % VEC == 0 && whole_vectors(x) && whole_vectors(out) && whole_vectors(chosen),
          "channels of %lld columns", (long long)x.cols);
    ChannelArgs a = channel_args(x);
    a.out = (bf16 *)out.data;
    a.chosen = (const float *)chosen.data;
    unsigned blocks = flat_blocks(tensor_count(x) / VEC);
    channels_drop_kernel<<<blocks, FLAT_THREADS, 0, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}

void channels_add_cuda(Device *d, const QOperand *q, Tensor x, Tensor chosen) {
    channels_add_check(q, x, chosen);
    ChannelArgs a = channel_args(x);
    a.values = (float *)q->data;
    a.chosen = (const float *)chosen.data;
    a.amax = q->amax;
    a.dequant_div = q->dequant_div;
    a.cell = cell_make(&formats[FORMAT_MXFP8].cell);
    if (a.amax) channels_scale_kernel<<<1, 1, 0, device_cuda_stream(d)>>>(a);
    int64_t groups = x.rows * ceil_div(x.cols, CHANNEL_GROUP);
    unsigned blocks = (unsigned)ceil_div(groups, FLAT_THREADS / WARP);
    channels_add_kernel<<<blocks, FLAT_THREADS, 0, device_cuda_stream(d)>>>(a);
    CUDA_CHECK_LAUNCH();
}
