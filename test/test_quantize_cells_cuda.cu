// test_quantize_cells_cuda -- every format by every mechanism on a GPU (cell_cases.h) against the
// CPU reference, bit for bit, as one table; all cells of all recipes; what is converted or has no
// blocks. Ends with the speed of each recipe's six cells beside that of a copy.
#include "../llmc/device_cuda.cuh"
#include "../llmc/ops/quantize.h"
#include "cell_cases.h"
#include "test.h"

static Device *gpu;

enum { UNTOUCHED = 0xA5, VARIANTS = 3 };

// --- one case on both devices ---

static void *upload(const void *host, size_t bytes) {
    if (!host) return NULL;
    void *memory = device_alloc(gpu, bytes, "test");
    gpu->upload(gpu, memory, host, bytes);
    return memory;
}

static int differs(const void *on_gpu, const void *host, size_t bytes) {
    if (!host) return 0;
    void *got = xmalloc(bytes);
    gpu->download(gpu, got, on_gpu, bytes);
    int result = memcmp(got, host, bytes) != 0;
    free(got);
    return result;
}

/* The same problem with all its memory on the GPU; `memory` is what it takes. */
typedef struct {
    CellWork work;
    void *memory[8];
} GpuWork;

static GpuWork gpu_work(const CellWork *host) {
    GpuWork g = {*host, {}};
    CellWork *w = &g.work;
    QOperand *o = &w->operand;
    size_t scale_bytes = o->scales ? quantize_scales_bytes(o->rows, o->k) : 0;
    w->x.data = g.memory[0] = upload(host->x.data, tensor_bytes(host->x));
    o->data = g.memory[1] = upload(o->data, setup_bytes(o));
    o->scales = (uint8_t *)(g.memory[2] = upload(o->scales, scale_bytes));
    o->mask = (uint8_t *)(g.memory[3] = upload(o->mask, (size_t)(o->rows * o->k / 8)));
    o->amax = (float *)(g.memory[4] = upload(o->amax, sizeof(float)));
    w->how.state = (const StepState *)(g.memory[5] = upload(&host->state, sizeof(StepState)));
    w->how.source_amax = (const float *)(g.memory[6] = upload(w->how.source_amax, sizeof(float)));
    return g;
}

static void gpu_work_free(GpuWork *g) {
    for (int i = 0; i < ARRAY_LEN(g->memory); i++)
        if (g->memory[i]) gpu->free(gpu, g->memory[i]);
}

static void run_amax(CellWork *w, int token) {
    QOperand *row = token ? NULL : &w->operand, *column = token ? &w->operand : NULL;
    amax_pair_cuda(gpu, row, &w->how, column, &w->how, w->x);
}
static void run_quantize(CellWork *w, int token) {
    QOperand *row = token ? NULL : &w->operand, *column = token ? &w->operand : NULL;
    quantize_pair_cuda(gpu, row, &w->how, column, &w->how, w->x);
}

static int agrees(const CellCase *c, const char *where) {
    CellWork w;
    cell_work_make(&w, c, UNTOUCHED);
    GpuWork g = gpu_work(&w);
    run_amax(&g.work, c->token);
    run_quantize(&g.work, c->token);
    cell_work_run(&w);
    const QOperand *got = &g.work.operand, *want = &w.operand;
    size_t scale_bytes = want->scales ? quantize_scales_bytes(want->rows, want->k) : 0;
    const char *what = differs(got->amax, want->amax, sizeof(float))       ? "amax"
                       : differs(got->data, want->data, setup_bytes(want)) ? "data"
                       : differs(got->scales, want->scales, scale_bytes)   ? "scales"
                       : differs(got->mask, want->mask, (size_t)(want->rows * want->k / 8)) ? "mask"
                                                                                            : NULL;
    EXPECT(!what, "%s differ; %s", what, where);
    gpu_work_free(&g), cell_work_free(&w);
    return !what;
}

// --- the table ---

/* "+" where all variants agree, "-" where no recipe may have such a cell, "X" elsewhere. */
static char compare_pair(Operand format, const Mechanism *m, int *compared) {
    char result = '-';
    for (int variant = 0; variant < VARIANTS; variant++) {
        CellCase c;
        if (!cell_case(&c, format, m, variant)) continue;
        if (result == '-') result = '+';
        if (!agrees(&c, cell_case_text(&c, cell_format_name(&format), m->name))) result = 'X';
        ++*compared;
    }
    return result;
}

CASE(every_format_by_every_mechanism) {
    int compared = 0, formats_seen = 0;
    printf("GPU = CPU, bit for bit: + equal, X not, - no such cell\n");
    for (int m = 0; m < NUM_MECHANISMS; m++) printf("%*s%s\n", 24 + m, "", mechanisms[m].name);
    for (int f = 0; f < NUM_CELL_FORMATS; f++) {
        Operand format = cell_format(f);
        if (cell_refusal(format)) continue;
        char line[NUM_MECHANISMS + 1] = {};
        for (int m = 0; m < NUM_MECHANISMS; m++)
            line[m] = compare_pair(format, &mechanisms[m], &compared);
        printf("%-24s%s\n", cell_format_name(&format), line);
        formats_seen++;
    }
    printf("%d formats, %d mechanisms, %d cases\n", formats_seen, NUM_MECHANISMS, compared);
    EXPECT(formats_seen == 101, "%d formats", formats_seen);
}

// --- recipes ---

CASE(every_cell_of_every_recipe) {
    for (int r = 0; r < num_recipes; r++) {
        for (int i = 0; i < NUM_GEMMS * NUM_SIDES * NUM_CELL_SHAPES * 2; i++) {
            int at = i / 2 / NUM_CELL_SHAPES;
            CellCase c =
                cell_case_of((&recipes[r].plan.cell[0][0])[at], i & 1, i / 2 % NUM_CELL_SHAPES);
            agrees(&c, cell_case_text(&c, "recipe", recipes[r].name));
        }
    }
}

CASE(tensors_without_blocks) {
    for (int i = 0; i < NUM_BLOCKLESS_CASES; i++) {
        CellCase c = blockless_case(i);
        agrees(&c, cell_case_text(&c, "per tensor", ""));
    }
}

CASE(conversions) {
    for (int i = 0; i < NUM_CONVERSION_CASES; i++) {
        CellCase c = conversion_case(i);
        agrees(&c, cell_case_text(&c, "converted", ""));
    }
}

/* Blocks of threads by the thousand, whose order is not that of their numbers. */
CASE(a_whole_batch) {
    static const char *const names[] = {"nvfp4", "quartet2", "tetrajet2", "four_over_six"};
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        for (int token = 0; token < 2; token++) {
            CellCase c =
                cell_case_of(recipe_find(names[i])->plan.cell[GEMM_WGRAD][SIDE_A], token, 0);
            c.rows = 4096;
            c.cols = 768;
            agrees(&c, cell_case_text(&c, "whole batch", names[i]));
        }
    }
}

// --- speed ---

enum { REPEATS = 10 };

/* GB/s of the best of several runs. */
template <class Pass> static double speed_of(Pass pass, double bytes) {
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    float best = INFINITY;
    for (int i = 0; i < REPEATS; i++) {
        float ms;
        CUDA_CHECK(cudaEventRecord(begin, device_cuda_stream(gpu)));
        pass();
        CUDA_CHECK(cudaEventRecord(end, device_cuda_stream(gpu)));
        CUDA_CHECK(cudaEventSynchronize(end));
        CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
        best = fminf(best, ms);
    }
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    return bytes / best * 1e-6;
}

/* Percent of a copy's speed. */
static void print_cell_speed(Operand how, int token, double copy) {
    const int64_t rows = 16384, cols = 768;
    if (!operand_is_quantized(&how) || how.source == SOURCE_TRANSPOSED ||
        how.source == SOURCE_VALUES) {
        printf("         -");
        return;
    }
    CellCase c = cell_case_of(how, token, 0);
    c.rows = rows;
    c.cols = cols;
    c.fill = FILL_ZERO;   // quick to make; replaced on the GPU below by numbers of every kind
    CellWork w;
    cell_work_make(&w, &c, UNTOUCHED);
    for (int64_t i = 0; i < rows * cols; i++)
        ((bf16_t *)w.x.data)[i] = (bf16_t)(0x3E00u + (uint32_t)(i * 2654435761u >> 23) % 0x200u);
    GpuWork g = gpu_work(&w);
    double n = (double)(rows * cols);
    double out = (double)dtype_bytes(c.values, 1);
    double amax = g.work.operand.amax ? speed_of([&] { run_amax(&g.work, token); }, 2 * n) : 0;
    double quantize = speed_of([&] { run_quantize(&g.work, token); }, (2 + out) * n);
    printf("  %3.0f%% %3.0f%%", 100 * quantize / copy, 100 * amax / copy);
    gpu_work_free(&g), cell_work_free(&w);
}

CASE(speed) {
    size_t bytes = (size_t)65536 * 768 * 2;
    void *from = device_alloc(gpu, bytes, "copy"), *to = device_alloc(gpu, bytes, "copy");
    double copy = speed_of(
        [&] {
            CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                                       device_cuda_stream(gpu)));
        },
        2.0 * (double)bytes);
    gpu->free(gpu, from), gpu->free(gpu, to);
    printf("(16384, 768) into values: percent of a copy's %.0f GB/s, and of the amax pass\n%-24s"
           "%10s%10s%10s%10s%10s%10s\n",
           copy, "", "fprop x", "fprop w", "dgrad dy", "dgrad w", "wgrad dy", "wgrad x");
    for (int r = 0; r < num_recipes; r++) {
        printf("%-24s", recipes[r].name);
        for (int i = 0; i < NUM_GEMMS * NUM_SIDES; i++) {
            int token = i >= 3;   // W along out-features, and both operands of wgrad
            print_cell_speed((&recipes[r].plan.cell[0][0])[i], token, copy);
        }
        printf("\n");
    }
}

int main(int argc, char **argv) {
    gpu = device_cuda_open(0);
    omp_set_num_threads(1);   // thousands of small tensors on the CPU's side
    int status = test_run(argc, argv);
    gpu->close(gpu);
    return status;
}
