// attention on CUDA: the choice between the own kernels (attention_flash.cu) and cuDNN, made once
// for each AttentionDims.
#include <string.h>

#include "../common.h"
#include "attention.cuh"
#include "attention_cudnn.h"
#include "attention_flash.h"

typedef enum { SELECT_AUTO, SELECT_CUDNN, SELECT_FLASH } Selection;
static const char *const selection_names[] = {"auto", "cudnn", "flash"};

typedef struct {
    AttentionDims dims;
    Selection runs;   // never SELECT_AUTO
    size_t scratch_bytes;
    char description[384];
} Decision;

static Selection selection = SELECT_AUTO;
static Decision *decisions;   // for all dims met so far, latest last
static int num_decisions;
static char planned[sizeof(((Decision *)0)->description)] = "undecided";

void attention_cuda_select(const char *name) {
    for (int i = 0; i < ARRAY_LEN(selection_names); i++) {
        if (strcmp(name, selection_names[i]) == 0) {
            selection = (Selection)i;
            num_decisions = 0;
            return;
        }
    }
    CHECK(0, "attention \"%s\": there is auto, cudnn and flash", name);
}

const char *attention_cuda_name(void) { return planned; }

static const Decision *find_decision(AttentionDims d) {
    for (int i = num_decisions - 1; i >= 0; i--) {
        const AttentionDims *have = &decisions[i].dims;
        if (have->B == d.B && have->T == d.T && have->num_heads == d.num_heads &&
            have->num_kv_heads == d.num_kv_heads && have->head_dim == d.head_dim)
            return &decisions[i];
    }
    return NULL;
}

// What the plan says: "cuDNN 9.14.0", or the own kernels and why.
static void describe(Decision *decision, const char *refusal) {
    const char *version = attention_cudnn_version();
    char *text = decision->description;
    if (decision->runs == SELECT_CUDNN)
        snprintf(text, sizeof(decision->description), "cuDNN %s", version);
    else if (selection == SELECT_FLASH)
        snprintf(text, sizeof(decision->description), "flash (own kernels), as selected");
    else if (!version)
        snprintf(text, sizeof(decision->description), "flash (own kernels; %s)", refusal);
    else
        snprintf(text, sizeof(decision->description), "flash (own kernels; of cuDNN %s: %s)",
                 version, refusal);
}

// scratch_limit: what is there for cuDNN's work space. The order of sums is that of the first call
// for these dims.
static const Decision *decide(AttentionDims dims, size_t scratch_limit, int any_order) {
    const Decision *known = find_decision(dims);
    if (known) return known;
    CudnnSupport cudnn = {};
    if (selection != SELECT_FLASH) cudnn = attention_cudnn_prepare(dims, any_order);
    if (cudnn.workspace_bytes > scratch_limit) {
        cudnn.runs = 0;
        snprintf(cudnn.refusal, sizeof(cudnn.refusal),
                 "these sizes were not announced and need more scratch");
    }
    if (selection == SELECT_CUDNN && !cudnn.runs)
        die(EXIT_DEVICE, "attention by cuDNN was asked for, but for B %d, T %d, %d heads of %d: %s",
            dims.B, dims.T, dims.num_heads, dims.head_dim, cudnn.refusal);

    Decision decision;
    decision.dims = dims;
    decision.runs = cudnn.runs ? SELECT_CUDNN : SELECT_FLASH;
    decision.scratch_bytes = attention_flash_scratch_bytes(dims);
    if (cudnn.runs && cudnn.workspace_bytes > decision.scratch_bytes)
        decision.scratch_bytes = cudnn.workspace_bytes;
    decisions = (Decision *)xrealloc(decisions, sizeof(Decision) * (num_decisions + 1));
    decisions[num_decisions] = decision;
    describe(&decisions[num_decisions++], cudnn.refusal);
    return &decisions[num_decisions - 1];
}

size_t attention_cuda_scratch_bytes(AttentionDims dims, int any_order) {
    const Decision *decision = decide(dims, SIZE_MAX, any_order);
    snprintf(planned, sizeof(planned), "%s", decision->description);
    return decision->scratch_bytes;
}

static int cudnn_runs(const Device *d, AttentionDims dims) {
    return decide(dims, d->scratch_bytes, 0)->runs == SELECT_CUDNN;
}

static void check_bf16(Tensor qkv) {
    CHECK(qkv.dtype == DT_BF16, "CUDA attention takes bf16, not %s", dtype_info[qkv.dtype].name);
}

void attention_forward_cuda(Device *d, Tensor out, Tensor lse, Tensor qkv, AttentionDims dims) {
    attention_check(out, lse, qkv, dims);
    check_bf16(qkv);
    if (cudnn_runs(d, dims)) attention_cudnn_forward(d, out, lse, qkv, dims);
    else attention_flash_forward(d, out, lse, qkv, dims);
}

void attention_backward_cuda(Device *d, Tensor dqkv, Tensor dout, Tensor out, Tensor lse,
                             Tensor qkv, AttentionDims dims) {
    attention_check(out, lse, qkv, dims);
    attention_check(dout, lse, dqkv, dims);
    check_bf16(qkv);
    check_bf16(dqkv);
    if (cudnn_runs(d, dims)) attention_cudnn_backward(d, dqkv, dout, out, lse, qkv, dims);
    else attention_flash_backward(d, dqkv, dout, out, lse, qkv, dims);
}
