// gemm_plans -- a hash table of plans and the list of what was loaded; see gemm_plans.cuh.
#include "gemm_plans.cuh"

#include <cstdlib>
#include <cstring>

#include "../device_cuda.cuh"

enum { GEMM_PLAN_SLOTS = 1024 };   // a power of two; a model needs a few dozen

typedef struct {
    GemmPlan slots[GEMM_PLAN_SLOTS];
    int count;
    GemmChoices loaded;   // for plans that are not measured
} GemmPlans;

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(((GemmChoice *)0)->algo),
              "an algorithm has another size");

static uint64_t hash_key(const GemmKey *key) {
    const uint8_t *bytes = (const uint8_t *)key;
    uint64_t hash = 0xCBF29CE484222325u;   // FNV-1a
    for (size_t i = 0; i < sizeof(*key); i++) hash = (hash ^ bytes[i]) * 0x100000001B3u;
    return hash;
}

static void destroy_plans(void *data) {
    GemmPlans *plans = (GemmPlans *)data;
    for (int i = 0; i < GEMM_PLAN_SLOTS; i++) {
        if (plans->slots[i].desc) gemm_plan_destroy(&plans->slots[i]);
    }
    free(plans->loaded.items);
    free(plans);
}

static GemmPlans *plans_of(Device *dev) {
    DeviceAttachment *attachment = device_cuda_attachment(dev, ATTACHMENT_GEMM);
    if (!attachment->data) {
        attachment->data = xmalloc(sizeof(GemmPlans));
        attachment->destroy = destroy_plans;
    }
    return (GemmPlans *)attachment->data;
}

/* The place of this key: its plan, or the free slot (desc NULL) where it belongs. */
static GemmPlan *plan_slot(GemmPlans *plans, GemmKey key) {
    uint64_t at = hash_key(&key) % GEMM_PLAN_SLOTS;
    while (plans->slots[at].desc) {
        if (memcmp(&plans->slots[at].key, &key, sizeof(key)) == 0) return &plans->slots[at];
        at = (at + 1) % GEMM_PLAN_SLOTS;
    }
    CHECK(plans->count + 1 < GEMM_PLAN_SLOTS, "more than %d kinds of GEMM", GEMM_PLAN_SLOTS - 1);
    plans->count++;
    return &plans->slots[at];
}

size_t gemm_partial_bytes(const GemmKey *key) {
    int64_t count = key->slices == 1 ? 0 : key->slices * key->m * key->n;
    return (size_t)round_up(count * (int64_t)sizeof(float), 256);
}

size_t gemm_workspace_bytes(Device *dev, const GemmKey *key) {
    size_t bytes;
    device_cuda_workspace(dev, &bytes);
    CHECK(gemm_partial_bytes(key) <= bytes / 2, "gemm: %d slices of %lld x %lld", key->slices,
          (long long)key->m, (long long)key->n);
    return bytes - gemm_partial_bytes(key);
}

/* Whether the plan's algorithm is now one that was loaded. A text that passed for one of this
   device and is none of it shows here. */
static int take_loaded(Device *dev, GemmPlan *p, const GemmChoices *loaded) {
    const GemmChoice *choice = gemm_choices_find(loaded, &p->key);
    if (!choice) return 0;
    cublasLtMatmulAlgo_t algo;
    memcpy(&algo, choice->algo, sizeof(algo));
    size_t workspace_bytes = gemm_workspace_bytes(dev, &p->key);
    if (!gemm_plan_adopt(p, device_cuda_cublaslt(dev), &algo, workspace_bytes)) {
        log_warn("cuBLASLt refuses the stored algorithm of the GEMM %lld x %lld x %lld",
                 (long long)p->key.m, (long long)p->key.n, (long long)p->key.k);
        return 0;
    }
    p->status = CUBLAS_STATUS_SUCCESS;
    p->tflops = choice->tflops;
    p->settled = 1;
    return 1;
}

GemmPlan *gemm_plans_get(Device *dev, Tensor d, const QOperand *a, const QOperand *b,
                         GemmEpilogue epilogue) {
    GemmPlans *plans = plans_of(dev);
    GemmKey key = gemm_plan_key(d, a, b, epilogue);
    GemmPlan *p = plan_slot(plans, key);
    int is_new = !p->desc;
    if (is_new) gemm_plan_describe(p, key);
    gemm_plan_point(p, a, b, epilogue.bias);
    if (is_new && !take_loaded(dev, p, &plans->loaded)) {
        p->status = gemm_plan_choose(p, device_cuda_cublaslt(dev), gemm_workspace_bytes(dev, &key));
    }
    return p;
}

// --- choices as text ---

char *gemm_choices_save_cuda(Device *dev) {
    GemmPlans *plans = plans_of(dev);
    GemmChoices used = {NULL, 0};
    for (int i = 0; i < GEMM_PLAN_SLOTS; i++) {
        const GemmPlan *p = &plans->slots[i];
        if (!p->desc || p->status != CUBLAS_STATUS_SUCCESS) continue;
        GemmChoice choice;
        memset(&choice, 0, sizeof(choice));
        choice.key = p->key;
        choice.workspace_bytes = p->workspace_bytes;
        choice.tflops = p->tflops;
        memcpy(choice.algo, &p->algo, sizeof(p->algo));
        gemm_choices_add(&used, &choice);
    }
    char *header = gemm_choices_header(dev), *text = gemm_choices_text(&used, header);
    free(header);
    free(used.items);
    return text;
}

int gemm_choices_load_cuda(Device *dev, const char *text) {
    GemmPlans *plans = plans_of(dev);
    char *header = gemm_choices_header(dev);
    int added = gemm_choices_read(&plans->loaded, text, header);
    free(header);
    for (int i = 0; i < GEMM_PLAN_SLOTS; i++) {
        GemmPlan *p = &plans->slots[i];
        if (p->desc && !p->settled) take_loaded(dev, p, &plans->loaded);
    }
    return added;
}
