// What the .cu files of this program share: the device's stream and libraries, and the check macros.
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
