// quantize_twin -- one tensor's operands on both devices, and the time of the passes that make
// them: what the GPU tests of the quantisers share, whatever the format.
#pragma once
#include "../llmc/device_cuda.cuh"
#include "quantize_setup.h"
#include "test.h"

static Device *gpu;

// --- one problem on both devices ---

typedef struct {
    Setup host;   // operands of the CPU, by the reference
    Tensor x;     // the rest: on the GPU
    QOperand row, token;
    Quantizer row_how, token_how;
    float *amax;
    StepState *state;
} Twin;

static QOperand operand_on_gpu(const QOperand *host, float *amax) {
    QOperand o = *host;
    o.amax = amax;
    o.data = device_alloc(gpu, setup_bytes(host), "operand");
    if (!host->scales) return o;
    size_t bytes = quantize_scales_bytes(host->rows, host->k);
    o.scales = (uint8_t *)device_alloc(gpu, bytes, "scales");
    gpu->upload(gpu, o.scales, host->scales, bytes);   // not zero: the padding must be cleared
    return o;
}

static void twin_make(Twin *t, Tensor x, OperandForm form, Operand row, Operand token) {
    setup_make(&t->host, x, form, row, token);
    t->x = tensor_view(device_alloc(gpu, tensor_bytes(x), "x"), x.dtype, x.rows, x.cols);
    gpu->upload(gpu, t->x.data, x.data, tensor_bytes(x));
    t->amax = (float *)device_alloc(gpu, 2 * sizeof(float), "amax");
    t->state = (StepState *)device_alloc(gpu, sizeof(StepState), "state");
    gpu->upload(gpu, t->state, &t->host.state, sizeof(StepState));
    t->row = operand_on_gpu(&t->host.row, t->amax);
    t->token = operand_on_gpu(&t->host.token, t->amax + 1);
    t->row_how = t->host.row_how;
    t->token_how = t->host.token_how;
    t->row_how.state = t->token_how.state = t->state;
}

static void twin_free(Twin *t) {
    void *const memory[] = {t->x.data,     t->amax,       t->state,       t->row.data,
                            t->token.data, t->row.scales, t->token.scales};
    for (int i = 0; i < ARRAY_LEN(memory); i++)
        if (memory[i]) gpu->free(gpu, memory[i]);
    setup_free(&t->host);
}

enum { ROW = 1, TOKEN = 2, BOTH = ROW | TOKEN };

static void run_gpu(Twin *t, int which) {
    QOperand *row = which & ROW ? &t->row : NULL, *token = which & TOKEN ? &t->token : NULL;
    amax_pair_cuda(gpu, row, &t->row_how, token, &t->token_how, t->x);
    quantize_pair_cuda(gpu, row, &t->row_how, token, &t->token_how, t->x);
}

static void expect_equal(const void *on_gpu, const void *host, size_t bytes, const char *what,
                         const char *where) {
    void *got = xmalloc(bytes);
    gpu->download(gpu, got, on_gpu, bytes);
    EXPECT_BITS(got, host, bytes, "%s, %s", what, where);
    free(got);
}

// --- speed ---

enum { REPEATS = 20 };

typedef struct {
    Twin *twin;
    void *copy;
} Timed;
static void time_copy(Timed t) {
    CUDA_CHECK(cudaMemcpyAsync(t.copy, t.twin->x.data, tensor_bytes(t.twin->x),
                               cudaMemcpyDeviceToDevice, device_cuda_stream(gpu)));
}
static void time_amax(Timed t) {
    amax_pair_cuda(gpu, &t.twin->row, &t.twin->row_how, &t.twin->token, &t.twin->token_how,
                   t.twin->x);
}
static void time_quantize(Timed t) {
    quantize_pair_cuda(gpu, &t.twin->row, &t.twin->row_how, &t.twin->token, &t.twin->token_how,
                       t.twin->x);
}

/* GB/s of the best of REPEATS runs. */
static double gigabytes_per_s(void (*pass)(Timed), Timed t, double bytes) {
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    float best = INFINITY;
    for (int i = 0; i < REPEATS; i++) {
        float ms;
        CUDA_CHECK(cudaEventRecord(begin, device_cuda_stream(gpu)));
        pass(t);
        CUDA_CHECK(cudaEventRecord(end, device_cuda_stream(gpu)));
        CUDA_CHECK(cudaEventSynchronize(end));
        CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (ms < best) best = ms;
    }
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    return bytes / best * 1e-6;
}
