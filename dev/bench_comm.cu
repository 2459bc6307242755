// bench_comm -- how fast ranks sum and gather, through the program's own communicator, on GPUs:
// a process a GPU, started as the program is (mpirun, or RANK, WORLD_SIZE and LOCAL_RANK), with a
// directory for the rendezvous. Rank 0 prints; nothing of the model is here.
//   make build/cuda/dev/bench_comm; mpirun -np 2 build/cuda/dev/bench_comm DIR
// Bus bandwidth as NCCL's tests have it: bytes / time x 2 (n - 1) / n of an all-reduce, (n - 1) / n
// of the others.
#include <cstdio>
#include <cstdlib>

#include "../llmc/comm.h"
#include "../llmc/common.h"
#include "../llmc/device_cuda.cuh"

enum { MAX_RANKS = 64, WARM_UP = 5, REPEATS = 20 };

typedef enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, NUM_KINDS } Kind;
static const char *const kind_names[NUM_KINDS] = {"all_reduce f32", "reduce_scatter f32",
                                                  "all_gather bf16"};

static void collect(Comm *c, Kind kind, void *data, const int64_t *cuts) {
    if (kind == ALL_REDUCE) c->all_reduce(c, (float *)data, cuts[c->size], COMM_SUM);
    else if (kind == REDUCE_SCATTER) c->reduce_scatter(c, data, DT_F32, cuts);
    else c->all_gather(c, data, DT_BF16, cuts);
}

/* Milliseconds of one, of elements cut into parts that are equal, or of which each differs from
   the next by a thousandth: ranks then send them one by one. */
static double milliseconds(Comm *c, Device *d, Kind kind, void *data, int64_t count, int uneven) {
    int64_t cuts[MAX_RANKS + 1] = {0};
    for (int r = 1; r < c->size; r++)
        cuts[r] = count / c->size * r / 128 * 128 + uneven * r * (count / 1000 / 128 * 128);
    cuts[c->size] = count;
    cudaEvent_t begin, end;
    CUDA_CHECK(cudaEventCreate(&begin));
    CUDA_CHECK(cudaEventCreate(&end));
    for (int i = 0; i < WARM_UP; i++) collect(c, kind, data, cuts);
    c->wait(c);
    CUDA_CHECK(cudaEventRecord(begin, device_cuda_stream(d)));
    for (int i = 0; i < REPEATS; i++) collect(c, kind, data, cuts);
    c->wait(c);
    CUDA_CHECK(cudaEventRecord(end, device_cuda_stream(d)));
    d->synchronize(d);
    float ms;
    CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    CUDA_CHECK(cudaEventDestroy(begin));
    CUDA_CHECK(cudaEventDestroy(end));
    return ms / REPEATS;
}

int main(int argc, char **argv) {
    CommOptions options = {RENDEZVOUS_AUTO, "", argc > 1 ? argv[1] : ".", "", 300};
    Comm *host = comm_host_open(&options);
    Device *d = device_cuda_open(host->local_rank);
    Comm *c = comm_device_open(host, d);
    int64_t most = 256 << 20;   // bytes
    void *data = device_alloc(d, (size_t)most, "data");
    d->zero(d, data, (size_t)most);
    if (c->size > MAX_RANKS) die(EXIT_CONFIG, "%d ranks; at most %d", c->size, MAX_RANKS);
    if (c->rank == 0) printf("%d ranks (%s), %s\n", c->size, c->name, d->name);
    for (int kind = 0; kind < NUM_KINDS; kind++) {
        for (int64_t bytes = most / 32; bytes <= most; bytes *= 4) {
            for (int uneven = 0; uneven < (kind == ALL_REDUCE ? 1 : 2); uneven++) {
                int64_t count = bytes / (kind == ALL_GATHER ? 2 : 4);
                double ms = milliseconds(c, d, (Kind)kind, data, count, uneven);
                double share = (kind == ALL_REDUCE ? 2.0 : 1.0) * (c->size - 1) / c->size;
                if (c->rank == 0)
                    printf("%-18s %4lld MiB, %s parts  %7.3f ms  %6.1f GB/s\n", kind_names[kind],
                           (long long)(bytes >> 20), uneven ? "uneven" : "equal ", ms,
                           (double)bytes * share / ms * 1e-6);
            }
        }
    }
    d->free(d, data);
    if (c != host) c->close(c);
    d->close(d);
    host->close(host);
    return 0;
}
