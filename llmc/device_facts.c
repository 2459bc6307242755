/*
device_facts -- the tables of device_facts.h.
  peaks     NVIDIA's data sheets (figures with sparsity halved): H200; HGX B200 and B300, divided by
            8 GPUs; GB200 and GB300 NVL72, by 72; RTX PRO 6000 Blackwell. RTX 5090: RTX Blackwell
            white paper, appendix A. B300's FP4 is the middle of what its sheets say, 13.1 to 13.5
  measured  H200: shapes 65536x768x768, 65536x50304x768 and 8192^3 in BF16 at 495, 614 and 753
            TFLOP/s are 0.79 of the peak with the time for their bytes added, within 6 %; attention
            by cuDNN, backward deterministic: dev/SPEED.md
            B300: third parties, 15,872 tokens of a 5B model: 1.46, 2.81, 5.09 PFLOP/s. They hold
            what bytes cost there, so the overlap is 1. Taken over for B200, GB200 and GB300
            attention at 8192 tokens, heads of 128: cuDNN's own figures for GB200 and GB300;
            heads of 64 by the ratio that an H200 shows (0.57)
            RTX 5090: FP4 by a third party, cuBLASLt, n = 8192
  assumed   FP8 of H200 (1.58 times BF16 on its NVL form); everything else of both RTX

Links, one direction:
  bandwidth half of what the same sheets say of both directions: NVLink 4 900 GB/s, NVLink 5 1800;
            PCI Express 5.0 with 16 lanes, 128b/130b: 63 GB/s
  nodes     8 GPUs of an HGX board or a server; 72 of an NVL72 rack
  share     NVLink 4: all-reduce of 256 MiB in 0.91 ms on two H200s, without NVLS. Taken over for
            NVLink 5; of PCI Express assumed, by way of the host's memory
  hops      NCCL's own model of rings, src/graph/tuning.cc of 2.2x: protocols Simple and LL
*/
#include "device_facts.h"

#include <string.h>

#include "common.h"

// clang-format off
const LinkFacts link_facts[NUM_LINKS] = {
    [LINK_NVLINK4] = {"NVLink 4", 450e9, 0.667, "measured on two H200s", 3.4e-6, 0.6e-6},
    [LINK_NVLINK5] = {"NVLink 5", 900e9, 0.667, "as NVLink 4", 3.4e-6, 0.6e-6},
    [LINK_PCIE5] = {"PCIe 5.0 x16", 63e9, 0.5, "assumed", 5.7e-6, 1e-6},
};

const DeviceFacts device_facts[NUM_DEVICE_MODELS] = {
    [DEVICE_MODEL_AUTO] = {.name = "auto", .cuda_name = ""},
    [DEVICE_MODEL_H200] = {
        "H200", "H200", 90, 1, {989e12, 1979e12, 0}, 4.8e12, 141e9, 132,
        {0.79, 0.63, 0}, 0, {{0.33, 0.23}, {0.57, 0.41}},
        LINK_NVLINK4, 8},
    [DEVICE_MODEL_B200] = {
        "B200", "B200", 100, 0, {2250e12, 4500e12, 9000e12}, 8e12, 180e9, 148,
        {0.65, 0.62, 0.38}, 1, {{0.36, 0.26}, {0.63, 0.46}},
        LINK_NVLINK5, 8},
    [DEVICE_MODEL_GB200] = {
        "GB200", "GB200", 100, 0, {2500e12, 5000e12, 10000e12}, 8e12, 186e9, 148,
        {0.65, 0.62, 0.38}, 1, {{0.36, 0.26}, {0.63, 0.46}},
        LINK_NVLINK5, 72},
    [DEVICE_MODEL_B300] = {
        "B300", "B300", 103, 0, {2250e12, 4500e12, 13300e12}, 8e12, 288e9, 148,
        {0.65, 0.62, 0.38}, 1, {{0.42, 0.29}, {0.74, 0.51}},
        LINK_NVLINK5, 8},
    [DEVICE_MODEL_GB300] = {
        "GB300", "GB300", 103, 0, {2500e12, 5000e12, 15000e12}, 8e12, 288e9, 148,
        {0.65, 0.62, 0.38}, 1, {{0.42, 0.29}, {0.74, 0.51}},
        LINK_NVLINK5, 72},
    // The Workstation edition; Server and Max-Q editions have other clocks.
    [DEVICE_MODEL_RTX_PRO_6000] = {
        "RTX PRO 6000", "RTX PRO 6000 Blackwell Workstation", 120, 0,
        {503.8e12, 1007.6e12, 2015e12}, 1.792e12, 96e9, 188,
        {0.85, 0.79, 0.69}, 1, {{0.60, 0.40}, {0.60, 0.40}},
        LINK_PCIE5, 8},
    [DEVICE_MODEL_RTX_5090] = {
        "RTX 5090", "RTX 5090", 120, 0, {209.5e12, 419e12, 1676e12}, 1.792e12, 32e9, 170,
        {0.90, 0.85, 0.77}, 1, {{0.60, 0.40}, {0.60, 0.40}},
        LINK_PCIE5, 8},
};

/* GPUs of which only the peak is needed, for the MFU of a run. Sources: data sheets of H200 NVL,
   H100, A100, L40S, L40 and L4; white papers of GA102 (RTX 3090) and Ada (RTX 4090). A mobile GPU
   carries the name of a faster desktop one; its peak is not known. */
static const struct {
    const char *cuda_name;
    double peak_bf16;
} other_gpus[] = {
    {"RTX 5090 Laptop", 0},
    {"RTX 4090 Laptop", 0},
    {"H200 NVL", 835e12},
    {"GH200", 989e12},
    {"H100 PCIe", 756e12},
    {"H100 NVL", 835e12},
    {"H100", 989e12},
    {"A100", 312e12},
    {"RTX 4090", 165.2e12},
    {"RTX 3090", 71e12},
    {"L40S", 362e12},
    {"L40", 181e12},
    {"L4", 121e12},
};
// clang-format on

/* Bytes of `part` where it is in `name`, else 0: of several parts the longest says most. */
static int match(const char *name, const char *part) {
    return strstr(name, part) ? (int)strlen(part) : 0;
}

/* The longest match among other_gpus; *index is its row. */
static int match_other(const char *name, int *index) {
    int longest = 0;
    for (int i = 0; i < ARRAY_LEN(other_gpus); i++) {
        int length = match(name, other_gpus[i].cuda_name);
        if (length <= longest) continue;
        longest = length;
        *index = i;
    }
    return longest;
}

DeviceModel device_model_find(const char *cuda_name) {
    DeviceModel found = DEVICE_MODEL_AUTO;
    int other = 0, longest = match_other(cuda_name, &other);
    for (int i = 0; i < NUM_DEVICE_MODELS; i++) {
        int length = match(cuda_name, device_facts[i].cuda_name);
        if (length <= longest) continue;
        longest = length;
        found = (DeviceModel)i;
    }
    return found;
}

double device_peak_bf16(const char *cuda_name) {
    DeviceModel model = device_model_find(cuda_name);
    int other = 0;
    if (model != DEVICE_MODEL_AUTO) return device_facts[model].peak[UNIT_BF16];
    return match_other(cuda_name, &other) > 0 ? other_gpus[other].peak_bf16 : 0;
}
