/*
device_facts -- what is known of GPUs without asking one: peaks of their data sheets, how they are
joined to others, and the shares of these that products, attention and collectives were measured to
reach. Knows nothing of the device at hand but its name.
*/
#ifndef LLMC_DEVICE_FACTS_H
#define LLMC_DEVICE_FACTS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Tensor cores by what they multiply. */
typedef enum { UNIT_BF16, UNIT_FP8, UNIT_FP4, NUM_UNITS } TensorUnit;

/* Models of which enough is known to predict a step: rows of device_facts. */
typedef enum {
    DEVICE_MODEL_AUTO,   // the device at hand; its row is that of a device nothing is known of
    DEVICE_MODEL_H200,
    DEVICE_MODEL_B200,
    DEVICE_MODEL_GB200,
    DEVICE_MODEL_B300,
    DEVICE_MODEL_GB300,
    DEVICE_MODEL_RTX_PRO_6000,
    DEVICE_MODEL_RTX_5090,
    NUM_DEVICE_MODELS
} DeviceModel;

typedef struct { double forward, backward; } AttentionShare;

/* What joins the GPUs of a node. */
typedef enum { LINK_NVLINK4, LINK_NVLINK5, LINK_PCIE5, NUM_LINKS } LinkKind;
typedef struct {
    const char *name;             // "NVLink 5"
    double bandwidth;             // bytes a second and direction, of one GPU
    double share;                 // of it, what collectives of large buffers reach
    const char *share_from;       // where that is from: "assumed"
    double hop_seconds;           // from one GPU to the next: of large buffers,
    double small_hop_seconds;     // and of a few bytes
} LinkFacts;
extern const LinkFacts link_facts[NUM_LINKS];

typedef struct {
    const char *name;             // "RTX PRO 6000", as in plan.device
    const char *cuda_name;        // text in the name that CUDA gives it
    int compute_capability;       // 90 for sm_90
    int measured;                 // 1: this program was timed on it
    double peak[NUM_UNITS];       // FLOP/s, dense, sums in FP32; 0: there is no such unit
    double bandwidth, memory;     // bytes a second, bytes
    int multiprocessors;
    // shares of peak[]; of a large product
    double gemm_share[NUM_UNITS];
    // of a product's time for memory, the part that its arithmetic hides
    double gemm_overlap;
    // of the BF16 peak, causal half counted: heads of up to 64, wider heads
    AttentionShare attention[2];
    LinkKind link;
    int node;                     // GPUs that such links join: of a board, or of a rack
} DeviceFacts;

extern const DeviceFacts device_facts[NUM_DEVICE_MODELS];
/* By CUDA's name; DEVICE_MODEL_AUTO where the device is not in the table. */
DeviceModel device_model_find(const char *cuda_name);
/* Dense BF16 peak in FLOP/s, also of GPUs that are no DeviceModel; 0 where it is not known. */
double device_peak_bf16(const char *cuda_name);

#ifdef __cplusplus
}
#endif
#endif
