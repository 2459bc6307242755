// gemm_tune -- which of cuBLASLt's algorithms computes a product: the fastest by the clock among
// those that give the same bits every time. Its heuristic's first answer is often not that: see
// dev/SPEED.md. The choice depends on the moment, so whoever wants the same again keeps it
// (gemm_choices.h).
#include <cmath>
#include <cstring>

#include "../device_cuda.cuh"
#include "gemm_plans.cuh"

enum { ESTIMATE_RUNS = 3, ROUNDS = 5, MAX_RUNS = 64, REPEATS = 3 };

static const float GIVE_UP = 1.5f;       // times the fastest: not measured further
static const float ROUND_MS = 0.5f;      // at least, far above the resolution of an event
static const float LEAST_GAIN = 0.02f;   // above what two measurements of one algorithm differ by
static const float OUT = INFINITY;       // time of a candidate that is not to be taken

/* One product and the algorithms it may have. */
typedef struct {
    Device *dev;
    GemmPlan *plan;
    Tensor d;
    const QOperand *a, *b;
    GemmEpilogue epilogue;
    cudaEvent_t begin, end;
    GemmCandidates candidates;
    float ms[GEMM_MAX_CANDIDATES];   // of one product
} Tuning;

static int adopt(Tuning *t, int candidate) {
    size_t workspace_bytes = gemm_workspace_bytes(t->dev, &t->plan->key);
    const cublasLtMatmulAlgo_t *algo = &t->candidates.items[candidate].algo;
    return gemm_plan_adopt(t->plan, device_cuda_cublaslt(t->dev), algo, workspace_bytes);
}

static void multiply(Tuning *t) { gemm_cuda(t->dev, t->d, t->a, t->b, t->epilogue); }

// --- speed ---

/* Milliseconds a product by the plan's algorithm. */
static float time_runs(Tuning *t, int runs) {
    float ms;
    cudaStream_t stream = device_cuda_stream(t->dev);
    CUDA_CHECK(cudaEventRecord(t->begin, stream));
    for (int i = 0; i < runs; i++) multiply(t);
    CUDA_CHECK(cudaEventRecord(t->end, stream));
    CUDA_CHECK(cudaEventSynchronize(t->end));
    CUDA_CHECK(cudaEventElapsedTime(&ms, t->begin, t->end));
    return ms / (float)runs;
}

static float least(const Tuning *t) {
    float best = OUT;
    for (int i = 0; i < t->candidates.count; i++) best = fminf(best, t->ms[i]);
    return best;
}

/* A first time of each candidate; those that cannot win are out. */
static void estimate(Tuning *t) {
    for (int i = 0; i < t->candidates.count; i++) {
        t->ms[i] = OUT;
        if (!adopt(t, i)) continue;
        multiply(t);   // loads the kernel, too
        t->ms[i] = time_runs(t, ESTIMATE_RUNS);
    }
    float limit = GIVE_UP * least(t);
    for (int i = 0; i < t->candidates.count; i++) {
        if (t->ms[i] > limit) t->ms[i] = OUT;
    }
}

static float median(float *values, int count) {
    for (int i = 1; i < count; i++) {
        for (int j = i; j > 0 && values[j] < values[j - 1]; j--) {
            float lesser = values[j];
            values[j] = values[j - 1];
            values[j - 1] = lesser;
        }
    }
    return values[count / 2];
}

/* The median of several times. All candidates take turns, so that a clock that falls as the GPU
   warms up falls for each of them. */
static void measure(Tuning *t) {
    float rounds[GEMM_MAX_CANDIDATES][ROUNDS];
    float runs = fminf(fmaxf(ceilf(ROUND_MS / least(t)), 1.0f), (float)MAX_RUNS);
    for (int r = 0; r < ROUNDS; r++) {
        for (int i = 0; i < t->candidates.count; i++) {
            if (t->ms[i] == OUT) continue;
            adopt(t, i);
            rounds[i][r] = time_runs(t, (int)runs);
        }
    }
    for (int i = 0; i < t->candidates.count; i++) {
        if (t->ms[i] != OUT) t->ms[i] = median(rounds[i], ROUNDS);
    }
}

// --- equal bits ---

/* sum += each word of the data times an odd number of its own. Integers: in any order the same.
   bytes 4 a word read; limiter: memory. */
__global__ static void checksum_kernel(unsigned long long *sum, const uint32_t *words,
                                       int64_t count) {
    unsigned long long own = 0;
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        own += words[i] * (2 * (unsigned long long)i + 1);
    atomicAdd(sum, own);
}

/* Of one product into zeros by the plan's algorithm. The sum takes the workspace, which cuBLASLt is
   done with by then. */
static uint64_t checksum(Tuning *t) {
    uint64_t sum;
    size_t bytes, words = tensor_bytes(t->d) / sizeof(uint32_t);
    unsigned long long *on_device = (unsigned long long *)device_cuda_workspace(t->dev, &bytes);
    t->dev->zero(t->dev, t->d.data, tensor_bytes(t->d));
    multiply(t);
    t->dev->zero(t->dev, on_device, sizeof(sum));
    checksum_kernel<<<(unsigned)(4 * t->dev->num_threads), 256, 0, device_cuda_stream(t->dev)>>>(
        on_device, (const uint32_t *)t->d.data, (int64_t)words);
    CUDA_CHECK_LAUNCH();
    t->dev->download(t->dev, &sum, on_device, sizeof(sum));
    return sum;
}

static int repeats_bits(Tuning *t) {
    uint64_t first = checksum(t);
    for (int i = 1; i < REPEATS; i++) {
        if (checksum(t) != first) return 0;
    }
    return 1;
}

// --- the choice ---

/* The fastest, unless the library's favourite is as good; -1: none is left. */
static int best_candidate(const Tuning *t) {
    int first = 0, best = 0, count = t->candidates.count;
    while (first < count && t->ms[first] == OUT) first++;
    if (first == count) return -1;
    for (int i = 1; i < count; i++) best = t->ms[i] < t->ms[best] ? i : best;
    return t->ms[best] < (1.0f - LEAST_GAIN) * t->ms[first] ? best : first;
}

/* The best candidate that repeats its bits becomes the plan's algorithm. */
static void choose(Tuning *t) {
    const GemmKey *key = &t->plan->key;
    double flops = 2.0 * (double)key->m * (double)key->n * (double)key->k * key->slices;
    for (int best; (best = best_candidate(t)) >= 0; t->ms[best] = OUT) {
        adopt(t, best);
        if (!repeats_bits(t)) continue;
        t->plan->tflops = flops / (t->ms[best] * 1e9);
        return;
    }
    die(EXIT_DEVICE,
        "no algorithm of cuBLASLt gives the GEMM %lld x %lld x %lld the same bits twice; is the "
        "GPU "
        "sound?",
        (long long)key->m, (long long)key->n, (long long)key->k);
}

void gemm_tune_cuda(Device *dev, Tensor d, const QOperand *a, const QOperand *b,
                    GemmEpilogue epilogue) {
    GemmPart part = gemm_part(dev, d, a, epilogue, 0);
    GemmPlan *plan = gemm_plans_get(dev, part.d, &part.a, b, part.epilogue);
    if (plan->settled || plan->status != CUBLAS_STATUS_SUCCESS) return;
    Tuning t;
    memset(&t, 0, sizeof(t));
    t.dev = dev;
    t.plan = plan;
    t.d = part.d;
    t.a = &part.a;
    t.b = b;
    t.epilogue = part.epilogue;
    cublasStatus_t status =
        gemm_plan_candidates(plan, device_cuda_cublaslt(dev), gemm_workspace_bytes(dev, &plan->key),
                             GEMM_MAX_CANDIDATES, &t.candidates);
    gemm_plan_check(status, &plan->key, "cublasLtMatmulAlgoGetHeuristic");
    CUDA_CHECK(cudaEventCreate(&t.begin));
    CUDA_CHECK(cudaEventCreate(&t.end));
    estimate(&t);
    if (least(&t) < OUT) {   // else the first answer, which nothing was adopted over, stays
        measure(&t);
        choose(&t);
        plan->settled = 1;
    }
    CUDA_CHECK(cudaEventDestroy(t.end));
    CUDA_CHECK(cudaEventDestroy(t.begin));
}
