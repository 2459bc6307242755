/*
Collectives between ranks: sums in rank order with equal bits everywhere, maxima, broadcasts, and
counts above the sizes at which the implementation splits. Runs alone and under mpirun -np 1, 2, 4;
rank 0 reports for all.
*/
#include "test.h"

#include "../llmc/comm.h"
#include "../llmc/common.h"

static Comm *comm;

/* A value that differs by rank and element and does not sum exactly in f32. */
static float value_of(int rank, int64_t i) {
    uint32_t hash = (uint32_t)i * 2654435761u ^ (uint32_t)(rank + 1) * 0x9E3779B9u;
    return (float)(int32_t)hash * 1.7e-5f;
}

static float *values_of_rank(int rank, int64_t count) {
    float *data = (float *)xmalloc((size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i++) data[i] = value_of(rank, i);
    return data;
}

/* Every rank checks; a failure anywhere fails rank 0's case. */
static int wrong_on_any_rank(int64_t wrong_here) {
    float any = (float)(wrong_here > 0);
    comm->all_reduce(comm, &any, 1, COMM_MAX);
    return any != 0.0f;
}

static void check_sum(int64_t count) {
    float *data = values_of_rank(comm->rank, count);
    comm->all_reduce(comm, data, count, COMM_SUM);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++) {
        float want = value_of(0, i);
        for (int r = 1; r < comm->size; r++) want += value_of(r, i);
        wrong += bits_from_f32(data[i]) != bits_from_f32(want);
    }
    EXPECT_EQ_I64(wrong, 0, "elements of %lld on rank %d", (long long)count, comm->rank);
    EXPECT(!wrong_on_any_rank(wrong), "%lld elements", (long long)count);
    free(data);
}

CASE(ranks_are_numbered) {
    float ranks[64] = {0};
    REQUIRE(comm->size <= ARRAY_LEN(ranks));
    ranks[comm->rank] = 1.0f;
    comm->all_reduce(comm, ranks, comm->size, COMM_SUM);
    for (int r = 0; r < comm->size; r++) EXPECT_NEAR(ranks[r], 1.0, 0.0, "rank %d", r);
    EXPECT(comm->local_rank == comm->rank, "one host: local rank %d", comm->local_rank);
}

/* Parts of very different sizes, one of them empty where there are three ranks or more. */
static void uneven_cuts(int64_t count, int64_t *cuts) {
    for (int r = 0; r <= comm->size; r++) cuts[r] = count * r * r / (comm->size * comm->size);
    if (comm->size > 2) cuts[1] = cuts[2];
}

static void check_parts(int64_t count) {
    int64_t cuts[65], wrong = 0;
    REQUIRE(comm->size < ARRAY_LEN(cuts));
    uneven_cuts(count, cuts);
    float *data = values_of_rank(comm->rank, count);
    comm->reduce_scatter(comm, data, DT_F32, cuts);
    comm->all_gather(comm, data, DT_F32, cuts);
    comm->wait(comm);
    for (int64_t i = 0; i < count; i++) {
        float want = value_of(0, i);
        for (int r = 1; r < comm->size; r++) want += value_of(r, i);
        wrong += bits_from_f32(data[i]) != bits_from_f32(want);
    }
    EXPECT(!wrong_on_any_rank(wrong), "%lld of %lld elements", (long long)wrong, (long long)count);
    free(data);
}

CASE(parts_are_summed_and_gathered) {
    check_parts(5);
    check_parts(4099);
    check_parts(5 << 20);   // more than one message
}

CASE(parts_of_bf16_are_rounded_once) {
    int64_t cuts[65], count = 1000, wrong = 0;
    uneven_cuts(count, cuts);
    bf16_t *data = (bf16_t *)xmalloc((size_t)count * sizeof(bf16_t));
    for (int64_t i = 0; i < count; i++) data[i] = bf16_from_f32(value_of(comm->rank, i));
    comm->reduce_scatter(comm, data, DT_BF16, cuts);
    for (int64_t i = cuts[comm->rank]; i < cuts[comm->rank + 1]; i++) {
        float want = bf16_to_f32(bf16_from_f32(value_of(0, i)));
        for (int r = 1; r < comm->size; r++) want += bf16_to_f32(bf16_from_f32(value_of(r, i)));
        wrong += data[i] != bf16_from_f32(want);
    }
    EXPECT(!wrong_on_any_rank(wrong), "%lld elements", (long long)wrong);
    free(data);
}

CASE(sum_in_rank_order) {
    static const int64_t counts[] = {0, 1,   2,   3,
                                     5, 127, 4099};   // fewer than ranks, and remainders
    for (int i = 0; i < ARRAY_LEN(counts); i++) check_sum(counts[i]);
}

CASE(sum_across_chunks) { check_sum((1 << 20) * 2 + 7); }

CASE(sum_keeps_nan_and_infinity) {
    float data[3] = {comm->rank == comm->size - 1 ? NAN : 1.0f, comm->rank == 0 ? INFINITY : 1.0f,
                     2.0f};
    comm->all_reduce(comm, data, 3, COMM_SUM);
    EXPECT(isnan(data[0]) && isinf(data[1]), "%g %g", data[0], data[1]);
    EXPECT_NEAR(data[2], 2.0 * comm->size, 0.0);
}

CASE(maximum) {
    float data[5] = {(float)comm->rank, -(float)comm->rank - 1.0f, -INFINITY, 0.0f, 0.0f};
    if (comm->rank == 0) data[3] = NAN;
    if (comm->rank == comm->size - 1) data[4] = NAN;
    comm->all_reduce(comm, data, 5, COMM_MAX);
    EXPECT_NEAR(data[0], comm->size - 1, 0.0);
    EXPECT_NEAR(data[1], -1.0, 0.0);
    EXPECT_NEAR(data[2], -INFINITY, 0.0);
    EXPECT(isnan(data[3]), "the first rank's NaN was lost: %g", data[3]);
    EXPECT(isnan(data[4]), "the last rank's NaN was lost: %g", data[4]);
}

CASE(broadcast_from_rank_0) {
    enum { COUNT = 1001 };
    bf16_t data[COUNT];
    for (int i = 0; i < COUNT; i++) data[i] = (bf16_t)(comm->rank == 0 ? i * 31 + 7 : 0);
    comm->broadcast(comm, data, DT_BF16, COUNT - 1);
    int64_t wrong = 0;
    for (int i = 0; i < COUNT - 1; i++) wrong += data[i] != (bf16_t)(i * 31 + 7);
    wrong += comm->rank != 0 && data[COUNT - 1] != 0;   // nothing beyond the count
    EXPECT(!wrong_on_any_rank(wrong), "%lld wrong on rank %d", (long long)wrong, comm->rank);
}

CASE(broadcast_counts_packed_codes) {
    uint8_t codes[8];
    memset(codes, comm->rank == 0 ? 0x5A : 0, sizeof(codes));
    comm->broadcast(comm, codes, DT_E2M1, 8);   // 8 codes are 4 bytes
    int want_after = comm->rank == 0 ? 0x5A : 0;
    int wrong = codes[3] != 0x5A || codes[4] != want_after;
    EXPECT(!wrong_on_any_rank(wrong), "bytes 3 and 4: %02x %02x", codes[3], codes[4]);
}

CASE(broadcast_across_chunks) {
    int64_t count = (1 << 24) + 3;   // a little over 64 MiB
    float *data = values_of_rank(comm->rank, count);
    comm->broadcast(comm, data, DT_F32, count);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++) wrong += data[i] != value_of(0, i);
    EXPECT(!wrong_on_any_rank(wrong), "%lld wrong on rank %d", (long long)wrong, comm->rank);
    free(data);
}

CASE(barrier_and_device_communicator) {
    comm->barrier(comm);
    Device *cpu = device_cpu_open(1);
    EXPECT(comm_device_open(comm, cpu) == comm, "a CPU is served by the host communicator");
    cpu->close(cpu);
}

int main(int argc, char **argv) {
    comm = comm_host_open(NULL);
    if (comm->rank != 0 && !freopen("/dev/null", "w", stdout)) return 1;
    int failed = test_run(argc, argv);
    comm->close(comm);
    return failed;
}
