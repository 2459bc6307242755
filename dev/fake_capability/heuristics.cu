// heuristics -- which NVFP4 GEMMs of the models cuBLASLt would take on the GPU that it believes to
// see, and how: a line each. Asks with the program's own descriptors and launches nothing. run.sh
// starts it under faked capabilities. Exits 1 when a GEMM is refused.
#include "../../llmc/device_cuda.cuh"
#include "../../llmc/ops/gemm_plan.cuh"
#include "../../test/linear_gemms.h"

static const LinearShape linears[] = {
    {"gpt2-124m", "qkv", 2304, 768, 1},        {"gpt2-124m", "proj", 768, 768, 1},
    {"gpt2-124m", "up", 3072, 768, 1},         {"gpt2-124m", "down", 768, 3072, 1},
    {"gpt2-1558m", "qkv", 4800, 1600, 1},      {"gpt2-1558m", "proj", 1600, 1600, 1},
    {"gpt2-1558m", "up", 6400, 1600, 1},       {"gpt2-1558m", "down", 1600, 6400, 1},
    {"llama2-7b", "qkv", 12288, 4096, 0},      {"llama2-7b", "proj", 4096, 4096, 0},
    {"llama2-7b", "up", 22016, 4096, 0},       {"llama2-7b", "down", 4096, 11008, 0},
    {"hybrid-12b", "in_proj", 22656, 5120, 0}, {"hybrid-12b", "out_proj", 5120, 10240, 0},
    {"hybrid-12b", "up", 20480, 5120, 0},      {"hybrid-12b", "down", 5120, 20480, 0},
    {"hybrid-12b", "qkv", 7168, 5120, 0},      {"hybrid-12b", "proj", 5120, 5120, 0},
};
static const int64_t token_counts[] = {65536, 16384};
static const char *const kind_names[NUM_GEMMS] = {"fprop", "dgrad", "wgrad"};
static const size_t WORKSPACE_BYTES = (size_t)32 << 20;   // none of them asks for any

static int config_value(const GemmPlan *p, cublasLtMatmulAlgoConfigAttributes_t which) {
    int32_t value = 0;
    size_t written;
    CUBLAS_CHECK(
        cublasLtMatmulAlgoConfigGetAttribute(&p->algo, which, &value, sizeof(value), &written));
    return value;
}

static void print_algorithm(cublasLtHandle_t cublaslt, const GemmPlan *p) {
    cublasLtMatmulHeuristicResult_t checked;
    CUBLAS_CHECK(
        cublasLtMatmulAlgoCheck(cublaslt, p->desc, p->b, p->a, p->d, p->d, &p->algo, &checked));
    printf("accepted  %9d %5d %6d %8d %9d %10zu %6.2f\n", config_value(p, CUBLASLT_ALGO_CONFIG_ID),
           config_value(p, CUBLASLT_ALGO_CONFIG_TILE_ID),
           config_value(p, CUBLASLT_ALGO_CONFIG_STAGES_ID),
           config_value(p, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
           config_value(p, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME), p->workspace_bytes,
           checked.wavesCount);
}

/* 1 when cuBLASLt has an algorithm. */
static int ask(cublasLtHandle_t cublaslt, int multiprocessors, LinearShape l, GemmKind kind,
               int64_t tokens) {
    LinearGemm g = linear_gemm(l, kind, FORM_PACKED, tokens);
    Device device = {};
    device.native_fp4 = 1;
    device.num_threads = multiprocessors;
    if (kind == GEMM_WGRAD)
        g.a.slices = g.b.slices = gemm_slices(&device, g.a.rows, g.b.rows, g.a.k);
    GemmPlan p = {};
    gemm_plan_describe(&p, gemm_plan_key(g.d, &g.a, &g.b, g.epilogue));
    gemm_plan_point(&p, &g.a, &g.b, g.epilogue.bias);
    cublasStatus_t status = gemm_plan_choose(&p, cublaslt, WORKSPACE_BYTES);
    printf("%-11s %-8s %s %6lld %6lld %6lld %6d  %-9s ", l.model, l.name, kind_names[kind],
           (long long)p.key.m, (long long)p.key.n, (long long)p.key.k, p.key.slices,
           p.key.d_type == CUDA_R_32F ? "f32"
           : p.key.has_bias           ? "bf16+bias"
                                      : "bf16");
    if (status == CUBLAS_STATUS_SUCCESS) print_algorithm(cublaslt, &p);
    else printf("refused: %s\n", cublasLtGetStatusName(status));
    gemm_plan_destroy(&p);
    return status == CUBLAS_STATUS_SUCCESS;
}

int main(void) {
    cudaDeviceProp gpu;
    CUDA_CHECK(cudaGetDeviceProperties(&gpu, 0));
    cublasLtHandle_t cublaslt;
    CUBLAS_CHECK(cublasLtCreate(&cublaslt));
    printf("compute capability %d.%d, %d multiprocessors, cuBLASLt %zu\n", gpu.major, gpu.minor,
           gpu.multiProcessorCount, cublasLtGetVersion());
    printf("%-11s %-8s %-5s %6s %6s %6s %6s  %-9s %-9s %9s %5s %6s %8s %9s %10s %6s\n", "model",
           "linear", "GEMM", "M", "N", "K", "slices", "d", "answer", "algorithm", "tile", "stages",
           "split K", "reduction", "workspace", "waves");
    int accepted = 0, asked = 0;
    for (int64_t tokens : token_counts)
        for (const LinearShape &l : linears)
            for (int kind = 0; kind < NUM_GEMMS; kind++, asked++)
                accepted += ask(cublaslt, gpu.multiProcessorCount, l, (GemmKind)kind, tokens);
    printf("%d of %d accepted\n", accepted, asked);
    CUBLAS_CHECK(cublasLtDestroy(cublaslt));
    return accepted == asked ? 0 : 1;
}
