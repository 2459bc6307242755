// quantize_cell -- launches the kernel of any cell, quantize_cell.cuh. The Makefile compiles this
// file without contraction.
#include "quantize_cell.cuh"

#include "../device_cuda.cuh"

void quantize_cell_cuda(Device *d, const QOperand *o, const Quantizer *how, Tensor x,
                        int only_amax) {
    CellLaunch launch = cell_launch(o, how, x, only_amax);
    CUDA_CHECK(cudaFuncSetAttribute(cell_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    (int)cell_shared_bytes(CELL_MAX_PARTS)));
    cell_kernel<<<launch.blocks, CELL_THREADS, launch.shared_bytes, device_cuda_stream(d)>>>(
        launch.args);
    CUDA_CHECK_LAUNCH();
}
