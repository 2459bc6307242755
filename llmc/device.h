/*
device -- one machine that holds tensors: a CPU or one CUDA GPU. Knows bytes, streams and clocks;
nothing of tensors' meaning. All work of a device is ordered on one stream; functions that return
data to the host wait for it, the others need not.
*/
#ifndef LLMC_DEVICE_H
#define LLMC_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { DEVICE_CPU, DEVICE_CUDA } DeviceKind;

typedef struct DeviceRecording DeviceRecording;
typedef struct Device Device;
struct Device {
    DeviceKind kind;
    char name[128];              // "NVIDIA H200" or the CPU's model name
    int compute_capability;      // 90 for sm_90; 0 on a CPU
    int native_fp4;              // 1 where FP4 tensor cores exist (sm_100, 103, 120, 121)
    int native_fp8;              // 1 where FP8 tensor cores exist (sm_89 and later)
    char uuid[64];               // of the GPU, unique in the world; empty on a CPU
    char libraries[96];          // versions of driver and libraries; empty on a CPU
    int num_threads;             // CPU worker threads; multiprocessors on a GPU
    // dense BF16 peak from the device table; 0 when the device is not in it
    double peak_bf16_flops;
    // set after the first step: device_alloc CHECKs that nothing allocates later
    int sealed;
    // work space that ops may use within one call; set by device_set_scratch
    void *scratch;
    size_t scratch_bytes;
    void *impl;                  // private: stream, library handles
    void *(*alloc)(Device *, size_t bytes);    // NULL when there is not enough memory
    void (*free)(Device *, void *);
    // `host` may be reused at once; waits only where 4 MiB of uploads before it are not yet done
    void (*upload)(Device *, void *dst, const void *host, size_t bytes);
    // waits until `host` is filled
    void (*download)(Device *, void *host, const void *src, size_t bytes);
    // likewise, but beside the device's work, by one thread of any at a time; the device is done
    // with `src` and does not touch it meanwhile
    void (*download_beside)(Device *, void *host, const void *src, size_t bytes);
    void (*copy)(Device *, void *dst, const void *src, size_t bytes);        // within the device
    // `rows` pieces of `bytes` within the device, their beginnings so many bytes apart
    void (*copy_rows)(Device *, void *dst, size_t dst_stride, const void *src, size_t src_stride,
                      size_t bytes, int64_t rows);
    void (*zero)(Device *, void *dst, size_t bytes);
    void (*synchronize)(Device *);
    void (*memory)(Device *, size_t *free_bytes, size_t *total_bytes);
    // Work within the device, issued from record_begin to record_end, is kept instead of done, and
    // then done by each replay, with the same addresses and arguments. NULL on a CPU.
    void (*record_begin)(Device *);
    DeviceRecording *(*record_end)(Device *);
    void (*replay)(Device *, DeviceRecording *);
    void (*forget)(Device *, DeviceRecording *);
    void (*close)(Device *);
};

/* num_threads 0 takes what OpenMP offers. */
Device *device_cpu_open(int num_threads);
/* Ordinal as CUDA counts. Dies with EXIT_DEVICE when there is no such GPU, or one older than sm_80.
   */
Device *device_cuda_open(int ordinal);
int device_cuda_count(void);     // 0 without a driver or a GPU; never dies

/* Allocates or dies with EXIT_OOM naming `what` and the sizes; CHECKs that the device is not
   sealed. */
void *device_alloc(Device *d, size_t bytes, const char *what);
/* Fixes the scratch area of later ops; called once, before the first op. */
void device_set_scratch(Device *d, void *base, size_t bytes);
/* Scratch of at least `bytes`, aligned to 256; CHECKs that it fits. Contents last until the op
   returns. */
void *device_scratch(Device *d, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
