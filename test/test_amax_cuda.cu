// test_amax_cuda -- maxima kept from step to step: a GPU leaves the same bits as the CPU, for every
// rule, over steps that are sampled, empty, not finite and dropped.
#include "amax_cases.h"
#include "test.h"

enum { STEPS = 1300 };

static float maximum_of(int step) {
    static const float odd[] = {0.0f, INFINITY, NAN, 1e-30f};
    if (step % 37 == 0) return odd[step / 37 % 4];
    return (float)((step * 2654435761u >> 8) % 1000) + 0.5f;
}

static void run(AmaxBench *b, float *values, AmaxInUse *in_use) {
    for (int step = 0; step < STEPS; step++) {
        amax_set_step(b, (uint32_t)step, step % 101 == 100 ? 1.0f : 0.0f);
        in_use[2 * step] = amax_settle_both(b, maximum_of(step), 1);
        in_use[2 * step + 1] = amax_settle_both(b, maximum_of(step + 7), step % 3 > 0);
        amax_advance_both(b);
    }
    b->d->download(b->d, values, b->values, AMAX_BENCH_VALUES * sizeof(float));
}

CASE(kept_maxima_equal_the_cpus) {
    static AmaxInUse on_cpu[2 * STEPS], on_gpu[2 * STEPS];
    static float cpu_values[AMAX_BENCH_VALUES], gpu_values[AMAX_BENCH_VALUES];
    Device *cpu = device_cpu_open(1), *gpu = device_cuda_open(0);
    AmaxBench a, b;
    amax_bench_open(&a, cpu, &ops_cpu);
    amax_bench_open(&b, gpu, &ops_cuda);
    run(&a, cpu_values, on_cpu);
    run(&b, gpu_values, on_gpu);
    EXPECT_BITS(on_gpu, on_cpu, sizeof(on_cpu), "in use");
    EXPECT_BITS(gpu_values, cpu_values, sizeof(cpu_values), "kept");
    amax_bench_close(&a);
    amax_bench_close(&b);
    cpu->close(cpu);
    gpu->close(gpu);
}

TEST_MAIN_END
