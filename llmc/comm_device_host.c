/*
comm_device_host -- the device communicator of a build without NCCL: on a CPU the ranks' memory is
host memory, so the host communicator serves it. One GPU needs no communicator; several need NCCL.
*/
#include "comm.h"
#include "common.h"

Comm *comm_device_open(Comm *host, Device *device) {
    if (device->kind != DEVICE_CPU && host->size > 1) {
        die(EXIT_DEVICE,
            "this build has no NCCL, which several GPUs need. Install libnccl-dev and build again, "
            "or start one process.");
    }
    return host;
}
