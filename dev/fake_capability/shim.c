/*
shim -- LD_PRELOAD library that makes one process see a GPU of another compute capability, to ask
cuBLASLt's heuristics what they would take on a GPU that is not there. Answers attribute queries
only: under it no kernel may be launched. run.sh uses it.
  FAKE_MAJOR, FAKE_MINOR   compute capability
  FAKE_SMS                 multiprocessors
  FAKE_SMEM_BLOCK, FAKE_SMEM_SM   bytes of shared memory: most of a block, of a multiprocessor
The CUDA runtime finds the driver's functions through dlsym and cuGetProcAddress; both are
intercepted here, and both then give out an own cuDeviceGetAttribute.
  source    cuda.h, enum CUdevice_attribute
*/
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef int AttributeFn(int *value, int attribute, int device);
typedef int ProcAddressFn(const char *symbol, void **found, int version, unsigned long long flags,
                          void *status);
typedef void *DlsymFn(void *handle, const char *name);

static AttributeFn *real_attribute;
static ProcAddressFn *real_proc_address;

static const struct {
    int attribute;
    const char *variable;
} fakes[] = {
    {75, "FAKE_MAJOR"},      {76, "FAKE_MINOR"},   {16, "FAKE_SMS"},
    {97, "FAKE_SMEM_BLOCK"}, {81, "FAKE_SMEM_SM"},
};

static int fake_attribute(int *value, int attribute, int device) {
    int status = real_attribute(value, attribute, device);
    for (size_t i = 0; status == 0 && i < sizeof(fakes) / sizeof(fakes[0]); i++) {
        const char *text = fakes[i].attribute == attribute ? getenv(fakes[i].variable) : NULL;
        if (text) *value = atoi(text);
    }
    return status;
}

static int fake_proc_address(const char *symbol, void **found, int version,
                             unsigned long long flags, void *status) {
    int result = real_proc_address(symbol, found, version, flags, status);
    if (result != 0 || !found || !*found) return result;
    if (strcmp(symbol, "cuDeviceGetAttribute") == 0) {
        real_attribute = (AttributeFn *)*found;
        *found = (void *)fake_attribute;
    } else if (strcmp(symbol, "cuGetProcAddress") == 0 && *found != (void *)fake_proc_address) {
        real_proc_address = (ProcAddressFn *)*found;
        *found = (void *)fake_proc_address;
    }
    return result;
}

/* glibc's own is found by version: its name alone would find this one. */
static DlsymFn *glibc_dlsym(void) {
    void *found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    return (DlsymFn *)(found ? found : dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
}

void *dlsym(void *handle, const char *name) {
    static DlsymFn *real_dlsym;
    if (!real_dlsym) real_dlsym = glibc_dlsym();
    void *found = real_dlsym(handle, name);
    if (!found) return found;
    if (strcmp(name, "cuGetProcAddress_v2") == 0) {
        real_proc_address = (ProcAddressFn *)found;
        return (void *)fake_proc_address;
    }
    if (strcmp(name, "cuDeviceGetAttribute") == 0) {
        real_attribute = (AttributeFn *)found;
        return (void *)fake_attribute;
    }
    return found;
}
