// What the .cu files of this program share: the device's stream and libraries, and the check
// macros.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cublasLt.h>

#include "common.h"
#include "device.h"

// Dies with EXIT_DEVICE (EXIT_OOM for an allocation failure) and CUDA's own text.
void cuda_check(cudaError_t status, const char *call, const char *file, int line);
#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)
void cublas_check(cublasStatus_t status, const char *call, const char *file, int line);
#define CUBLAS_CHECK(call) cublas_check((call), #call, __FILE__, __LINE__)
// After every launch: catches a bad configuration where it happens.
#define CUDA_CHECK_LAUNCH() CUDA_CHECK(cudaGetLastError())

cudaStream_t device_cuda_stream(Device *d);
cublasLtHandle_t device_cuda_cublaslt(Device *d);
// Work space of cuBLASLt calls, used by one GEMM at a time in the stream's order.
void *device_cuda_workspace(Device *d, size_t *bytes);

// Scalars in device memory, as cuBLASLt reads alpha and beta there.
typedef struct {
    float alpha;   // of the GEMM that comes next on the stream
    float zero, one;
} DeviceScalars;
DeviceScalars *device_cuda_scalars(Device *d);   // device memory

// What a library's user keeps with the device, such as cached descriptors: made at its first call,
// destroyed when the device is closed.
typedef enum { ATTACHMENT_GEMM, ATTACHMENT_ATTENTION, NUM_ATTACHMENTS } AttachmentId;
typedef struct {
    void *data;   // NULL until the first call
    void (*destroy)(void *data);
} DeviceAttachment;
DeviceAttachment *device_cuda_attachment(Device *d, AttachmentId id);
