// test_selftest_cuda -- the self-test on a GPU: passes emulated and through the program's own
// kernel, in software where the GPU lacks the instruction, and names the rows where faults are
// planted.
#include "selftest_faults.h"

static Device *gpu;

CASE(passes_when_emulated) {
    expect_pass(gpu, FP4_EMULATED, "gemm wgrad 192x64x96 nvfp4 emulated");
}

CASE(passes_with_the_own_kernel) { expect_pass(gpu, FP4_MMA, "gemm fprop 96x96x64 nvfp4"); }

CASE(passes_with_fp4_tensor_cores) {
    if (gpu->native_fp4) expect_pass(gpu, FP4_LIBRARY, "gemm fprop 96x96x64 nvfp4 native");
    else printf("  %s has none\n", gpu->name);
}

CASE(planted_faults_show_when_emulated) {
    for (int i = 0; i < ARRAY_LEN(faults); i++)
        if (faults[i].when_emulated) expect_fault_shown(gpu, &faults[i], FP4_EMULATED);
}

CASE(planted_faults_show_with_the_own_kernel) {
    for (int i = 0; i < ARRAY_LEN(faults); i++)
        if (faults[i].when_packed) expect_fault_shown(gpu, &faults[i], FP4_MMA);
}

int main(int argc, char **argv) {
    gpu = device_cuda_open(0);
    sound = &ops_cuda;
    return test_run(argc, argv);
}
