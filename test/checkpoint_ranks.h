/*
checkpoint_ranks -- ranks for tests of checkpoints: teams of threads behind the Comm interface, so
that any number of ranks save and load in one process, and small models of which each rank holds its
share at any ZeRO level. No training.
*/
#ifndef TEST_CHECKPOINT_RANKS_H
#define TEST_CHECKPOINT_RANKS_H

#include <pthread.h>

#include "../llmc/checkpoint.h"
#include "../llmc/common.h"
#include "../llmc/model.h"
#include "test.h"

// --- a team of threads ---

enum { MAX_TEAM = 8 };

typedef struct {
    int size;
    pthread_barrier_t barrier;
    void *data[MAX_TEAM];   // of the collective that is under way
} Team;

static inline void team_meet(Comm *c, void *data) {
    Team *team = (Team *)c->impl;
    if (data) team->data[c->rank] = data;
    pthread_barrier_wait(&team->barrier);
}

static inline void team_barrier(Comm *c) { team_meet(c, NULL); }

static inline void team_all_reduce(Comm *c, float *data, int64_t count, CommOp op) {
    Team *team = (Team *)c->impl;
    float *result = (float *)xmalloc((size_t)count * sizeof(float));
    team_meet(c, data);
    memcpy(result, team->data[0], (size_t)count * sizeof(float));
    for (int r = 1; r < c->size; r++) {
        for (int64_t i = 0; i < count; i++) {
            float other = ((const float *)team->data[r])[i];
            result[i] = op == COMM_SUM ? result[i] + other : fmaxf(result[i], other);
        }
    }
    team_meet(c, NULL);
    memcpy(data, result, (size_t)count * sizeof(float));
    free(result);
    team_meet(c, NULL);
}

static inline void team_all_gather(Comm *c, void *data, DType dtype, const int64_t *cuts) {
    Team *team = (Team *)c->impl;
    team_meet(c, data);
    for (int r = 0; r < c->size; r++) {
        size_t at = dtype_bytes(dtype, cuts[r]);
        if (r == c->rank) continue;
        memcpy((char *)data + at, (const char *)team->data[r] + at,
               dtype_bytes(dtype, cuts[r + 1] - cuts[r]));
    }
    team_meet(c, NULL);
}

static inline void team_broadcast(Comm *c, void *data, DType dtype, int64_t count) {
    Team *team = (Team *)c->impl;
    team_meet(c, data);
    if (c->rank > 0) memcpy(data, team->data[0], dtype_bytes(dtype, count));
    team_meet(c, NULL);
}

typedef void (*TeamWork)(Comm *comm, void *context);

typedef struct {
    Comm comm;
    TeamWork work;
    void *context;
} TeamMember;

static inline void *team_member(void *arg) {
    TeamMember *m = (TeamMember *)arg;
    m->work(&m->comm, m->context);
    return NULL;
}

/* Does the work on `size` ranks at once, each a thread. */
static inline void team_run(int size, TeamWork work, void *context) {
    Team team;
    team.size = size;
    TeamMember members[MAX_TEAM];
    pthread_t threads[MAX_TEAM];
    pthread_barrier_init(&team.barrier, NULL, (unsigned)size);
    for (int r = 0; r < size; r++) {
        Comm comm;
        memset(&comm, 0, sizeof(comm));
        comm.name = "team";
        comm.rank = comm.local_rank = r;
        comm.size = size;
        comm.impl = &team;
        comm.all_reduce = team_all_reduce;
        comm.all_gather = team_all_gather;
        comm.broadcast = team_broadcast;
        comm.barrier = team_barrier;
        members[r] = (TeamMember){comm, work, context};
        if (pthread_create(&threads[r], NULL, team_member, &members[r]) != 0) abort();
    }
    for (int r = 0; r < size; r++) pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&team.barrier);
}

// --- a model, as one rank holds it ---

typedef struct {
    Config config;
    Model model;   // declared only, but for its parameters
    Device *device;
    Arena arena;
    FlatRange *ranges;
    CheckpointTensors tensors;
    char *is_true;   // (num_elements) 1 where a parameter has an element that files hold
} RankModel;

/* Odd rows, a padded vocabulary, vectors that are cut. */
static const char *const rank_model_words[] = {"model.layers=2", "model.dim=24",
                                               "model.heads=3",  "model.vocab=130",
                                               "model.ffn=40",   "batch.seq_len=32"};

static inline void rank_model_declare(RankModel *r, int rank, int size, int level, DType dtype) {
    char zero[32];
    char *words[16];
    int count = 0;
    for (; count < ARRAY_LEN(rank_model_words); count++)
        words[count] = (char *)rank_model_words[count];
    snprintf(zero, sizeof(zero), "parallel.zero=%d", level);
    words[count++] = zero;
    words[count++] = (char *)(dtype == DT_F32 ? "model.dtype=f32" : "model.dtype=bf16");
    words[count++] = (char *)(dtype == DT_F32 ? "precision.recipe=f32" : "precision.recipe=bf16");
    memset(r, 0, sizeof(*r));
    config_parse(&r->config, count, words);
    model_declare(&r->model, &r->config);
    model_split(&r->model, &r->config, rank, size);
}

static inline void rank_model_open(RankModel *r, Comm *comm, int level, DType dtype) {
    int rank = comm ? comm->rank : 0, size = comm ? comm->size : 1;
    rank_model_declare(r, rank, size, level, dtype);
    ParamTable *t = &r->model.params;
    ZeroPlan *z = &r->model.zero;
    r->device = device_cpu_open(1);
    r->arena = arena_measure("all", r->device);
    zero_place(z, t, &r->arena, &r->arena, &r->arena);
    arena_commit(&r->arena);
    zero_place(z, t, &r->arena, &r->arena, &r->arena);
    int count = size;
    r->ranges =
        z->level > 0 ? checkpoint_parts_of(t, z, &count) : checkpoint_whole_tensors(t, size);
    r->tensors = (CheckpointTensors){t, r->device, comm, r->ranges, count};
    r->is_true = (char *)xmalloc((size_t)t->num_elements);
    for (int i = 0; i < t->count; i++) {
        const Param *p = &t->params[i];
        memset(r->is_true + p->offset, 1, (size_t)(p->rows * p->cols));
    }
}

static inline void rank_model_close(RankModel *r) {
    arena_free(&r->arena);
    free(r->ranges);
    free(r->is_true);
    model_free(&r->model);
    r->device->close(r->device);
    config_free(&r->config);
}

/* Of array 0 to 2, master, m and v; no two of them alike. */
static inline float rank_model_value(int array, int64_t element, int seed) {
    uint32_t hash =
        (uint32_t)element * 2654435761u ^ (uint32_t)(array * 8 + seed + 1) * 0x9E3779B9u;
    return (float)(int32_t)hash * 1.7e-9f;
}

/* What this rank holds, and in padding what must not come back. */
static inline void rank_model_fill(RankModel *r, int seed) {
    for (int i = 0; i < r->tensors.num_ranges; i++) {
        const FlatRange *range = &r->ranges[i];
        float *arrays[3] = {range->master, range->m, range->v};
        for (int64_t e = range->begin; e < range->end; e++) {
            for (int a = 0; a < 3; a++) {
                float v = r->is_true[e] ? rank_model_value(a, e, seed) : NAN;
                if (arrays[a]) arrays[a][e - range->begin] = v;
            }
        }
    }
}

static inline int64_t wrong_values(const RankModel *r, const FlatRange *range, int seed) {
    int64_t wrong = 0;
    DType dtype = r->model.params.dtype;
    for (int64_t e = range->begin; e < range->end && range->value; e++) {
        float want = r->is_true[e] ? rank_model_value(0, e, seed) : 0;
        int64_t at = e - range->begin;
        if (dtype == DT_F32)
            wrong += bits_from_f32(((float *)range->value)[at]) != bits_from_f32(want);
        else wrong += ((bf16_t *)range->value)[at] != bf16_from_f32(want);
    }
    return wrong;
}

/* Elements of what this rank holds that are not those of rank_model_fill, or padding not zero. */
static inline int64_t rank_model_wrong(const RankModel *r, int seed) {
    int64_t wrong = 0, held = 0;
    for (int i = 0; i < r->tensors.num_ranges; i++) {
        const FlatRange *range = &r->ranges[i];
        const float *arrays[3] = {range->master, range->m, range->v};
        for (int a = 0; a < 3; a++) {
            for (int64_t e = range->begin; e < range->end && arrays[a]; e++, held++) {
                float want = r->is_true[e] ? rank_model_value(a, e, seed) : 0;
                float got = arrays[a][e - range->begin];
                wrong += bits_from_f32(got) != bits_from_f32(want);
            }
        }
        wrong += wrong_values(r, range, seed);
    }
    return held > 0 ? wrong : 1;
}

// --- saving and loading as a team ---

typedef struct {
    const char *dir;   // of checkpoints; for loading a checkpoint
    int level;
    DType dtype;
    int seed;
    int64_t step;
    int keep;
    int background;
    char problem[MAX_TEAM][1024];   // of each rank's save; "" for none
    int64_t wrong;                  // of all ranks' loads
} TeamCase;

static inline CheckpointPolicy policy_for(const TeamCase *k, void *staging, size_t bytes) {
    CheckpointPolicy policy = {k->dir, k->keep, 0, staging, bytes, NULL};
    return policy;
}

static inline void team_save(Comm *comm, void *context) {
    TeamCase *k = (TeamCase *)context;
    RankModel r;
    char staging[4096], *problem;   // smaller than some tensors
    rank_model_open(&r, comm, k->level, k->dtype);
    rank_model_fill(&r, k->seed);
    CheckpointPolicy policy = policy_for(k, staging, sizeof(staging));
    CheckpointState state;
    memset(&state, 0, sizeof(state));
    state.step = k->step;
    state.position = 9;
    state.tokens = 7;
    state.config = (char *)"{}";
    size_t bytes = checkpoint_snapshot_bytes(&r.tensors, &state, comm ? comm->rank : 0);
    if (k->background) policy.snapshot = r.device->alloc(r.device, bytes);
    CheckpointSave *save = checkpoint_begin(&policy, &r.tensors, &state);
    if (k->background) rank_model_fill(&r, k->seed + 1);   // training goes on
    while (!checkpoint_done(save, !k->background, &problem)) usleep(200);
    snprintf(k->problem[comm ? comm->rank : 0], sizeof(k->problem[0]), "%s",
             problem ? problem : "");
    free(problem);
    if (policy.snapshot) r.device->free(r.device, policy.snapshot);
    rank_model_close(&r);
}

static inline void team_load(Comm *comm, void *context) {
    TeamCase *k = (TeamCase *)context;
    RankModel r;
    CheckpointState state;
    memset(&state, 0, sizeof(state));
    rank_model_open(&r, comm, k->level, k->dtype);
    memset(r.arena.base, 0x55, r.arena.size);
    checkpoint_load(k->dir, &r.tensors, &state, 1);
    int64_t wrong = rank_model_wrong(&r, k->seed);
    wrong += state.step != k->step || state.position != 9 || state.tokens != 7;
    __atomic_fetch_add(&k->wrong, wrong, __ATOMIC_SEQ_CST);
    free(state.config);
    rank_model_close(&r);
}

/* Saves step 7 of seed 3 with so many ranks; the problem of rank 0, or "". */
static inline const char *saved_by(TeamCase *k, int ranks) {
    team_run(ranks, team_save, k);
    for (int r = 1; r < ranks; r++)
        EXPECT(strcmp(k->problem[r], k->problem[0]) == 0, "rank %d says %s", r, k->problem[r]);
    return k->problem[0];
}

static inline TeamCase case_in(const char *dir) {
    TeamCase k;
    memset(&k, 0, sizeof(k));
    k.dir = dir;
    k.dtype = DT_BF16;
    k.seed = 3;
    k.step = 7;
    return k;
}

/* Elements that come back wrong to `ranks` ranks of a level. */
static inline int64_t wrong_for(const TeamCase *saved, int ranks, int level) {
    TeamCase k = case_in(saved->dir);
    k.dtype = saved->dtype;
    k.seed = saved->seed;
    k.step = saved->step;
    k.level = level;
    char *path = checkpoint_find(saved->dir);
    if (!path) return -1;
    k.dir = path;
    team_run(ranks, team_load, &k);
    free(path);
    return k.wrong;
}

/* checkpoint_verify without its table. */
static inline int num_faults(const char *path) {
    log_set_rank(1, 2);
    int faults = checkpoint_verify(path);
    log_set_rank(0, 1);
    return faults;
}

#endif
