/*
fibres -- runs a CUDA kernel's own source on the host: the threads of a block are fibres of one
thread, which take turns at barriers and warp exchanges; blocks run one after the other. Defines
CUDA's keywords, threadIdx, blockIdx, blockDim, __syncthreads, those of CUDA's functions and vectors
that the kernels under test use, and the fibre_ functions that gemm_mma_ptx.cuh, copy_async.cuh and
norm.cuh call; included before them, once in a program.
  shared memory  starts as 0xFF bytes. An asynchronous copy leaves 0xFF until its thread waits for
                 it, and its source must lie in memory named by fibre_allow
  races          every access of shared memory is checked against the barriers, whatever order the
                 fibres ran in: reads of what another thread wrote since the last barrier, or of a
                 copy under way; writes and copies over what another thread read or wrote since;
                 reads of what nobody wrote. Barriers are those of the whole block
  not seen       what PTX leaves to the hardware beyond that; speed
*/
#ifndef TEST_FIBRES_H
#define TEST_FIBRES_H

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __shared__      static   // not watched, unlike what fibre_shared_memory gives
#define __forceinline__ inline
#define __launch_bounds__(...)

enum {
    FIBRE_MAX_THREADS = 512,
    FIBRE_STACK = 1 << 16,
    FIBRE_MAX_COPIES = 64,   // of one thread that it has not waited for
    FIBRE_MAX_SHARED = 99 * 1024,
    FIBRE_CHUNK = 16,   // bytes of shared memory that are watched as one
    FIBRE_MAX_RANGES = 8,
    FIBRE_MAX_BARRIERS = 16,
    FIBRE_NOBODY = -1,
    FIBRE_SEVERAL = -2
};

typedef struct {
    unsigned x;
} FibreIndex;

typedef struct {
    uint8_t *to;
    const uint8_t *from;   // NULL: zeros
    int bytes, group;
} FibreCopy;

typedef struct {
    ucontext_t start;   // runs until the fibre first gives way; from then on, `resume` is where
    jmp_buf resume;
    int done;
    FibreCopy copies[FIBRE_MAX_COPIES];
    int num_copies, groups;
} Fibre;

typedef struct {
    uint32_t words[2][32];   // of this exchange and of the last one, which slow lanes still read
    int arrived;
    unsigned exchanges;
} FibreWarp;

typedef struct {
    int arrived, passed;
} FibreBarrier;

typedef struct {
    int writer, written_in;   // thread; barriers before it, -1: never
    int under_way;            // a copy to it was started and not waited for
    int reader, read_in;
} FibreChunk;

typedef struct {
    int races;     // accesses of shared memory that no barrier orders
    int outside;   // copies from memory that was not allowed, or misaligned ones
} FibreFaults;

static struct {
    Fibre fibres[FIBRE_MAX_THREADS];
    FibreWarp warps[FIBRE_MAX_THREADS / 32];
    FibreBarrier named[FIBRE_MAX_BARRIERS];
    FibreChunk chunks[FIBRE_MAX_SHARED / FIBRE_CHUNK];
    __attribute__((aligned(128))) uint8_t shared[FIBRE_MAX_SHARED];
    char *stacks;
    int threads, current, alive, idle;
    int arrived, barriers;
    ucontext_t launcher;
    jmp_buf finished;
    void (*kernel)(void *);
    void *argument;
    struct {
        const uint8_t *begin, *end;
    } allowed[FIBRE_MAX_RANGES];
    int num_allowed;
    FibreFaults faults;
} fibre_state;

static FibreIndex threadIdx, blockIdx, blockDim;

// --- turns ---

static inline void fibre_resume_next(void) {
    int next = fibre_state.current;
    do next = (next + 1) % fibre_state.threads;
    while (fibre_state.fibres[next].done);
    fibre_state.current = next;
    threadIdx.x = (unsigned)next;
    _longjmp(fibre_state.fibres[next].resume, 1);
}

/* Gives way to the next fibre; returns when it is this one's turn again. */
static inline void fibre_yield(void) {
    if (++fibre_state.idle > 4 * fibre_state.threads) {
        fprintf(stderr, "fibres: all threads wait, at different barriers or exchanges\n");
        abort();
    }
    if (_setjmp(fibre_state.fibres[fibre_state.current].resume) == 0) fibre_resume_next();
}

static inline void fibre_main(void) {
    Fibre *self = &fibre_state.fibres[fibre_state.current];
    if (_setjmp(self->resume) == 0) swapcontext(&self->start, &fibre_state.launcher);
    fibre_state.kernel(fibre_state.argument);
    self->done = 1;
    fibre_state.idle = 0;
    if (--fibre_state.alive == 0) _longjmp(fibre_state.finished, 1);
    fibre_resume_next();
}

static inline void fibre_prepare(int thread) {
    Fibre *f = &fibre_state.fibres[thread];
    memset(f, 0, sizeof(*f));
    getcontext(&f->start);
    f->start.uc_stack.ss_sp = fibre_state.stacks + (size_t)thread * FIBRE_STACK;
    f->start.uc_stack.ss_size = FIBRE_STACK;
    makecontext(&f->start, fibre_main, 0);
    fibre_state.current = thread;
    swapcontext(&fibre_state.launcher, &f->start);
}

static inline void __threadfence(void) {}

/* The word before; the word after is 0 instead of limit + 1. */
static inline unsigned atomicInc(unsigned *word, unsigned limit) {
    unsigned before = *word;
    *word = before >= limit ? 0 : before + 1;
    return before;
}

/* The word before; afterwards it is the larger one. */
static inline unsigned atomicMax(unsigned *word, unsigned value) {
    unsigned before = *word;
    if (value > before) *word = value;
    return before;
}

/* The word before. */
static inline unsigned long long atomicAdd(unsigned long long *word, unsigned long long value) {
    unsigned long long before = *word;
    *word = before + value;
    return before;
}

/* Runs one block; `kernel` is called by each of its threads. */
static inline void fibre_run_block(void (*kernel)(void *), void *argument, int threads, int block) {
    if (!fibre_state.stacks)
        fibre_state.stacks = (char *)malloc((size_t)FIBRE_MAX_THREADS * FIBRE_STACK);
    fibre_state.threads = fibre_state.alive = threads;
    fibre_state.kernel = kernel;
    fibre_state.argument = argument;
    fibre_state.idle = fibre_state.arrived = fibre_state.barriers = 0;
    memset(fibre_state.warps, 0, sizeof(fibre_state.warps));
    memset(fibre_state.named, 0, sizeof(fibre_state.named));
    memset(fibre_state.shared, 0xFF, sizeof(fibre_state.shared));
    for (int i = 0; i < FIBRE_MAX_SHARED / FIBRE_CHUNK; i++) {
        FibreChunk fresh = {FIBRE_NOBODY, -1, 0, FIBRE_NOBODY, -1};
        fibre_state.chunks[i] = fresh;
    }
    blockIdx.x = (unsigned)block;
    blockDim.x = (unsigned)threads;
    for (int thread = 0; thread < threads; thread++) fibre_prepare(thread);
    if (_setjmp(fibre_state.finished) == 0) fibre_resume_next();
}

/* `threads` of a block, whole warps, wait for each other at a barrier of their own (bar.sync). It
   does not count for races: what passes over it must lie where accesses are not watched. */
static inline void fibre_barrier(int id, int threads) {
    FibreBarrier *b = &fibre_state.named[id];
    int before = b->passed;
    if (++b->arrived == threads) {
        b->arrived = fibre_state.idle = 0;
        b->passed++;
    }
    while (b->passed == before) fibre_yield();
}

static inline void __syncthreads(void) {
    int before = fibre_state.barriers;
    if (++fibre_state.arrived == fibre_state.threads) {
        fibre_state.arrived = fibre_state.idle = 0;
        fibre_state.barriers++;
    }
    while (fibre_state.barriers == before) fibre_yield();
}

/* All lanes of a warp give a word and get everybody's. */
static inline void fibre_gather(uint32_t lanes[32], uint32_t mine) {
    FibreWarp *w = &fibre_state.warps[fibre_state.current / 32];
    unsigned before = w->exchanges;
    uint32_t *words = w->words[before % 2];
    words[fibre_state.current % 32] = mine;
    if (++w->arrived == 32) {
        w->arrived = fibre_state.idle = 0;
        w->exchanges++;
    }
    while (w->exchanges == before) fibre_yield();
    memcpy(lanes, words, 32 * sizeof(uint32_t));
}

static inline uint32_t fibre_shuffle(uint32_t mine, int lane) {
    uint32_t lanes[32];
    fibre_gather(lanes, mine);
    return lanes[lane & 31];
}

static inline uint32_t __reduce_max_sync(unsigned all, uint32_t mine) {
    uint32_t lanes[32], most = 0;
    (void)all;
    fibre_gather(lanes, mine);
    for (int i = 0; i < 32; i++) most = lanes[i] > most ? lanes[i] : most;
    return most;
}

// --- CUDA's functions of words and floats ---

typedef struct __attribute__((may_alias, aligned(8))) {
    unsigned x, y;
} uint2;
typedef struct __attribute__((may_alias, aligned(16))) {
    unsigned x, y, z, w;
} uint4;

typedef struct __attribute__((may_alias, aligned(16))) {
    float x, y, z, w;
} float4;

static inline uint2 make_uint2(unsigned x, unsigned y) {
    uint2 v = {x, y};
    return v;
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    uint4 v = {x, y, z, w};
    return v;
}

static inline float4 make_float4(float x, float y, float z, float w) {
    float4 v = {x, y, z, w};
    return v;
}

static inline float __uint_as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline uint32_t __float_as_uint(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* A GPU's operations give this NaN, whatever NaN went in. */
static inline float fibre_one_nan(float x) { return x == x ? x : __uint_as_float(0x7FFFFFFFu); }

static inline float __fadd_rn(float a, float b) { return fibre_one_nan(a + b); }
static inline float __fsub_rn(float a, float b) { return fibre_one_nan(a - b); }
static inline float __fmul_rn(float a, float b) { return fibre_one_nan(a * b); }
static inline float __fmaf_rn(float a, float b, float c) { return fibre_one_nan(fmaf(a, b, c)); }

/* Rounded towards zero: the sum in double and what it lost tell whether a float is too far out. */
static inline float __fmaf_rz(float a, float b, float c) {
    double product = (double)a * b, sum = product + c;
    double from_c = sum - product;
    double lost = (product - (sum - from_c)) + (c - from_c);
    float rounded = (float)sum;
    double beyond = ((double)rounded - sum) - lost;   // only its sign matters
    int outwards = rounded > 0 ? beyond > 0 : beyond < 0;
    return fibre_one_nan(outwards ? nextafterf(rounded, 0.0f) : rounded);
}

/* Byte i of the result is that of the eight bytes of a and b which nibble i of the selector names.
   */
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++)
        result |= (uint32_t)(bytes >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
    return result;
}

/* The mask is that of a whole warp. */
static inline uint32_t __shfl_xor_sync(unsigned all, uint32_t mine, int mask) {
    (void)all;
    return fibre_shuffle(mine, (fibre_state.current % 32) ^ mask);
}
#ifdef __cplusplus
static inline float __shfl_xor_sync(unsigned all, float mine, int mask) {
    return __uint_as_float(__shfl_xor_sync(all, __float_as_uint(mine), mask));
}
#endif

// --- memory ---

/* Names memory that copies may read; fibre_forbid forgets all of it. */
static inline void fibre_allow(const void *begin, size_t bytes) {
    if (fibre_state.num_allowed == FIBRE_MAX_RANGES) {
        fprintf(stderr, "fibres.h: raise FIBRE_MAX_RANGES\n");
        exit(1);
    }
    fibre_state.allowed[fibre_state.num_allowed].begin = (const uint8_t *)begin;
    fibre_state.allowed[fibre_state.num_allowed++].end = (const uint8_t *)begin + bytes;
}

static inline void fibre_forbid(void) { fibre_state.num_allowed = 0; }

static inline int fibre_allowed(const uint8_t *p, int bytes) {
    for (int i = 0; i < fibre_state.num_allowed; i++)
        if (p >= fibre_state.allowed[i].begin && p + bytes <= fibre_state.allowed[i].end) return 1;
    return 0;
}

/* What went wrong since the last call. */
static inline FibreFaults fibre_take_faults(void) {
    FibreFaults faults = fibre_state.faults;
    memset(&fibre_state.faults, 0, sizeof(fibre_state.faults));
    return faults;
}

static inline uint8_t *fibre_shared_memory(void) { return fibre_state.shared; }

static inline FibreChunk *fibre_chunk(const void *shared) {
    return &fibre_state.chunks[((const uint8_t *)shared - fibre_state.shared) / FIBRE_CHUNK];
}

static inline void fibre_read_shared(void *to, const void *shared, int bytes) {
    FibreChunk *chunk = fibre_chunk(shared);
    int self = fibre_state.current, now = fibre_state.barriers;
    int foreign_write = chunk->written_in == now && chunk->writer != self;
    if (chunk->under_way || chunk->written_in < 0 || foreign_write) fibre_state.faults.races++;
    chunk->reader = chunk->read_in != now || chunk->reader == self ? self : FIBRE_SEVERAL;
    chunk->read_in = now;
    memcpy(to, shared, (size_t)bytes);
}

/* Records a write of a whole chunk by this thread; a race where another one used it since the last
   barrier. */
static inline FibreChunk *fibre_claim(void *shared) {
    FibreChunk *chunk = fibre_chunk(shared);
    int self = fibre_state.current, now = fibre_state.barriers;
    int foreign_read = chunk->read_in == now && chunk->reader != self;
    int foreign_write = chunk->written_in == now && chunk->writer != self;
    if (chunk->under_way || foreign_read || foreign_write) fibre_state.faults.races++;
    chunk->writer = self;
    return chunk;
}

static inline void fibre_write_shared(void *shared, const void *from, int bytes) {
    fibre_claim(shared)->written_in = fibre_state.barriers;
    memcpy(shared, from, (size_t)bytes);
}

static inline void fibre_copy_async(void *shared, const void *global, int bytes, int inside) {
    Fibre *f = &fibre_state.fibres[fibre_state.current];
    if (f->num_copies == FIBRE_MAX_COPIES) {
        fprintf(stderr, "fibres.h: raise FIBRE_MAX_COPIES\n");
        exit(1);
    }
    FibreCopy copy = {(uint8_t *)shared, inside ? (const uint8_t *)global : NULL, bytes, f->groups};
    if ((uintptr_t)shared % (uintptr_t)bytes || (uintptr_t)global % (uintptr_t)bytes ||
        (inside && !fibre_allowed(copy.from, bytes))) {
        fibre_state.faults.outside++;
        copy.from = NULL;
    }
    fibre_claim(shared)->under_way = 1;
    memset(shared, 0xFF, (size_t)bytes);
    f->copies[f->num_copies++] = copy;
}

static inline void fibre_copy_commit(void) { fibre_state.fibres[fibre_state.current].groups++; }

static inline void fibre_copy_wait(int in_flight) {
    Fibre *f = &fibre_state.fibres[fibre_state.current];
    int kept = 0;
    for (int i = 0; i < f->num_copies; i++) {
        FibreCopy copy = f->copies[i];
        if (copy.group >= f->groups - in_flight) {
            f->copies[kept++] = copy;
            continue;
        }
        if (copy.from) memcpy(copy.to, copy.from, (size_t)copy.bytes);
        else memset(copy.to, 0, (size_t)copy.bytes);
        fibre_chunk(copy.to)->under_way = 0;
        fibre_chunk(copy.to)->written_in = fibre_state.barriers;
    }
    f->num_copies = kept;
}

#endif
