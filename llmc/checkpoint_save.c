/*
checkpoint_save -- writes a checkpoint, at once or by a thread beside training; see checkpoint.h.
Two phases, each over when it is so on all ranks: every rank writes its files; rank 0 adds the
indices and state.json and gives the directory its name. The thread knows files and device memory
only: what needs all ranks is done by the caller's thread, for MPI serves no other.
*/
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint_parts.h"
#include "outfile.h"

static const char WHAT[] = CHECKPOINT_KEY;
enum { SNAPSHOT_ALIGN = 256 };

/* One file of this rank. */
typedef struct {
    char *name;
    SegmentList list;
    FileSum sum;   // once written
} SavedFile;

typedef enum { PHASE_WRITE, PHASE_COMMIT, PHASE_OVER } Phase;

struct CheckpointSave {
    CheckpointPolicy policy;
    Device *device;
    Comm *comm;
    int64_t step;
    char *temporary;   // directory
    SavedFile files[ALL_SETS];
    int num_files;
    FileSum (*sums)[NUM_SETS];   // of all ranks' files, once written
    // rank 0 only
    StateDraft *draft;
    char *algorithms;          // or NULL
    char *indices[NUM_SETS];   // of several ranks
    // what the thread does, and whether it is done
    Phase phase;
    char *problem;
    pthread_t thread;
    int has_thread;
    atomic_int running;
};

// --- what is saved ---

static size_t segment_bytes(const Segment *s) {
    return (size_t)(s->end - s->begin) * sizeof(float);
}

static size_t list_snapshot_bytes(const SegmentList *list) {
    size_t bytes = 0;
    for (int i = 0; i < list->count; i++)
        bytes += (size_t)round_up((int64_t)segment_bytes(&list->segments[i]), SNAPSHOT_ALIGN);
    return bytes;
}

/* What recipes keep is the same on all ranks; rank 0 saves it. */
static SegmentList kept_segments(const CheckpointState *state) {
    SegmentList list = {NULL, state->num_kept};
    list.segments = (Segment *)xmalloc((size_t)list.count * sizeof(Segment));
    for (int i = 0; i < list.count; i++) {
        const NamedTensor *n = &state->kept[i];
        Tensor t = n->tensor;
        CHECK(t.dtype == DT_F32, "%s is %s", n->name, dtype_info[t.dtype].name);
        Segment *s = &list.segments[i];
        *s = (Segment){.rows = t.rows, .cols = t.cols, .end = t.rows * t.cols};
        s->data = (const float *)t.data;
        snprintf(s->name.text, sizeof(s->name.text), "%s", n->name);
    }
    return list;
}

/* The files of a rank into `files`, and on rank 0 the indices into `indices`, where not NULL. */
static int list_files(const CheckpointTensors *t, const CheckpointState *state, int rank,
                      SavedFile files[ALL_SETS], char **indices) {
    int count = 0, ranks = ranks_of(t->comm);
    for (; count < NUM_SETS; count++) {
        SegmentList all = layout_segments(t, (SetId)count);
        files[count].name = checkpoint_file_name((SetId)count, rank, ranks);
        files[count].list = layout_segments_of(&all, rank);
        if (indices && rank == 0 && ranks > 1)
            indices[count] = layout_index_text(&all, (SetId)count, ranks);
        free(all.segments);
    }
    if (rank != 0 || state->num_kept == 0) return count;
    files[count].name = checkpoint_file_name(SET_KEPT, 0, 1);
    files[count++].list = kept_segments(state);
    return count;
}

static void free_files(SavedFile *files, int count) {
    for (int i = 0; i < count; i++) {
        free(files[i].name);
        free(files[i].list.segments);
    }
}

size_t checkpoint_snapshot_bytes(const CheckpointTensors *tensors, const CheckpointState *state,
                                 int rank) {
    SavedFile files[ALL_SETS];
    size_t bytes = 0;
    int count = list_files(tensors, state, rank, files, NULL);
    for (int i = 0; i < count; i++) bytes += list_snapshot_bytes(&files[i].list);
    free_files(files, count);
    return bytes;
}

/* The segments' data is the snapshot's from here on. The device is done with it when this returns,
   so that another thread may read it beside the device's later work. */
static void take_snapshot(CheckpointSave *s) {
    char *to = (char *)s->policy.snapshot;
    for (int f = 0; f < s->num_files && to; f++) {
        SegmentList *list = &s->files[f].list;
        for (int i = 0; i < list->count; i++) {
            Segment *segment = &list->segments[i];
            size_t bytes = segment_bytes(segment);
            s->device->copy(s->device, to, segment->data, bytes);
            segment->data = (const float *)to;
            to += round_up((int64_t)bytes, SNAPSHOT_ALIGN);
        }
    }
    s->device->synchronize(s->device);
}

// --- files of tensors ---

static int same_tensor(const Segment *a, const Segment *b) {
    return strcmp(a->name.text, b->name.text) == 0;
}

/* One entry a tensor: its stretches one after the other, as rows where they are whole rows. */
static void declare_entry(SafetensorsWriter *w, const Segment *s, int count) {
    int64_t elements = 0;
    int whole_rows = 1;
    for (int i = 0; i < count; i++) {
        elements += s[i].end - s[i].begin;
        whole_rows &= s[i].begin % s->cols == 0 && s[i].end % s->cols == 0;
    }
    int64_t rows = whole_rows ? elements / s->cols : 1;
    safetensors_declare(w, s->name.text, DT_F32, rows, elements / rows);
}

static void write_segment(SafetensorsWriter *w, const Segment *s, const CheckpointSave *save) {
    size_t left = segment_bytes(s);
    for (const char *p = (const char *)s->data; left > 0;) {
        size_t most = save->policy.staging_bytes, bytes = left < most ? left : most;
        save->device->download_beside(save->device, save->policy.staging, p, bytes);
        safetensors_write(w, save->policy.staging, bytes);
        p += bytes;
        left -= bytes;
    }
}

static char *write_file(SavedFile *file, const CheckpointSave *save) {
    char *path = format_string("%s/%s", save->temporary, file->name);
    SafetensorsWriter *w = safetensors_create(path, WHAT);
    free(path);
    safetensors_add_metadata(w, "format", "pt");   // other readers refuse a file without it
    const Segment *segments = file->list.segments;
    for (int i = 0, next; i < file->list.count; i = next) {
        for (next = i + 1; next < file->list.count; next++) {
            if (!same_tensor(&segments[i], &segments[next])) break;
        }
        declare_entry(w, &segments[i], next - i);
    }
    for (int i = 0; i < file->list.count; i++) {
        CHECK(segments[i].data, "%s is to be saved by a rank that has none of it",
              segments[i].name.text);
        if (!safetensors_problem(w)) write_segment(w, &segments[i], save);
    }
    return safetensors_try_finish(w, &file->sum);
}

// --- the two phases, in the thread where there is one ---

static char *write_own_files(CheckpointSave *s) {
    char *problem = NULL;
    for (int i = 0; i < s->num_files && !problem; i++) problem = write_file(&s->files[i], s);
    return problem;
}

static char *write_text(const CheckpointSave *s, const char *name, const char *text,
                        FileRecord *record) {
    OutFile f;
    char *path = format_string("%s/%s", s->temporary, name);
    char *problem = outfile_try_create(&f, path, WHAT);
    free(path);
    if (problem) return problem;
    problem = outfile_try_write(&f, text, strlen(text));
    *record = (FileRecord){name, {f.bytes, f.crc}};
    char *closing = outfile_try_close(&f);
    if (!problem) return closing;
    free(closing);
    return problem;
}

/* Whether a rank's file is where rank 0 sees it: nodes may have a directory of that name each. */
static char *find_file(const CheckpointSave *s, const FileRecord *record, int rank) {
    struct stat info;
    char *path = format_string("%s/%s", s->temporary, record->name), *problem = NULL;
    if (stat(path, &info) != 0 || info.st_size != record->sum.bytes) {
        problem = format_string(
            "%s: rank %d says that it has written '%s', but rank 0 does not see it whole: '%s' "
            "must be one directory of a file system that all nodes share",
            WHAT, rank, path, s->policy.dir);
    }
    free(path);
    return problem;
}

/* Everything that state.json lists, state.json at last. `records` has room for all. */
static char *write_rest(CheckpointSave *s, FileRecord *records, char **names) {
    int count = 0, ranks = ranks_of(s->comm);
    char *problem = NULL;
    for (int set = 0; set < NUM_SETS && !problem; set++) {
        for (int r = 0; r < ranks && !problem; r++) {
            names[count] = checkpoint_file_name((SetId)set, r, ranks);
            records[count] = (FileRecord){names[count], s->sums[r][set]};
            problem = find_file(s, &records[count++], r);
        }
    }
    if (s->num_files > NUM_SETS)
        records[count++] = (FileRecord){s->files[SET_KEPT].name, s->files[SET_KEPT].sum};
    for (int set = 0; set < NUM_SETS && !problem && s->indices[set]; set++) {
        char *name = names[ranks * NUM_SETS + set] = checkpoint_index_name((SetId)set);
        problem = write_text(s, name, s->indices[set], &records[count++]);
    }
    if (!problem && s->algorithms)
        problem = write_text(s, CHECKPOINT_ALGORITHMS, s->algorithms, &records[count++]);
    if (problem) return problem;
    FileRecord own;
    char *text = state_draft_text(s->draft, records, count);
    problem = write_text(s, "state.json", text, &own);
    free(text);
    return problem;
}

static char *commit(CheckpointSave *s) {
    int most = (ranks_of(s->comm) + 1) * NUM_SETS;
    FileRecord *records = (FileRecord *)xmalloc(((size_t)most + 2) * sizeof(FileRecord));
    char **names = (char **)xmalloc((size_t)most * sizeof(char *));
    char *problem = write_rest(s, records, names);
    for (int i = 0; i < most; i++) free(names[i]);
    free(names);
    free(records);
    if (!problem) problem = outfile_try_sync_directory(s->temporary, WHAT);
    if (!problem) problem = checkpoint_commit(s->policy.dir, s->temporary, s->step);
    if (!problem) checkpoint_apply_keep(&s->policy, s->step);
    return problem;
}

static char *work_of_phase(CheckpointSave *s) {
    if (s->phase == PHASE_WRITE) return write_own_files(s);
    return rank_of(s->comm) == 0 ? commit(s) : NULL;
}

static void *run_thread(void *arg) {
    CheckpointSave *s = (CheckpointSave *)arg;
    s->problem = work_of_phase(s);
    atomic_store(&s->running, 0);
    return NULL;
}

/* Without a snapshot, or without a thread to be had, the work is done here. */
static void start_phase(CheckpointSave *s, Phase phase) {
    s->phase = phase;
    atomic_store(&s->running, 1);
    s->has_thread = s->policy.snapshot && pthread_create(&s->thread, NULL, run_thread, s) == 0;
    if (!s->has_thread) run_thread(s);
}

static void join(CheckpointSave *s) {
    if (s->has_thread) pthread_join(s->thread, NULL);
    s->has_thread = 0;
}

// --- what all ranks do together ---

/* The same problem on all ranks, with the rank that had it where there are several. */
static void agree(CheckpointSave *s) {
    char *own = s->problem;
    if (own && ranks_of(s->comm) > 1) {
        s->problem = format_string("rank %d: %s", rank_of(s->comm), own);
        free(own);
    }
    s->problem = ranks_agree(s->comm, s->problem);
}

static char *make_named(const char *path) {
    char *problem = try_make_directory(path);
    if (!problem) return NULL;
    char *named = format_string("cannot create %s '%s': %s", WHAT, path, problem);
    free(problem);
    return named;
}

static char *make_temporary(const CheckpointSave *s) {
    char *problem = make_named(s->policy.dir);
    if (!problem) problem = checkpoint_try_recover(s->policy.dir);
    return problem ? problem : make_named(s->temporary);
}

/* The directory that all ranks write into, made by rank 0 and called after its process. */
static void open_temporary(CheckpointSave *s) {
    int32_t pid = (int32_t)getpid();
    if (ranks_of(s->comm) > 1) s->comm->broadcast(s->comm, &pid, DT_I32, 1);
    char *step = checkpoint_step_path(s->policy.dir, CHECKPOINT_TEMPORARY, s->step);
    s->temporary = format_string("%s_%d", step, (int)pid);
    free(step);
    if (rank_of(s->comm) == 0) s->problem = make_temporary(s);
    agree(s);
    if (s->problem) return;
    if (!file_exists(s->temporary)) {
        s->problem = format_string(
            "%s: '%s' is not seen, which rank 0 has made: it must be in one directory of a file "
            "system that all nodes share",
            WHAT, s->temporary);
    }
    agree(s);
}

static void share_sums(CheckpointSave *s) {
    int size = ranks_of(s->comm), rank = rank_of(s->comm);
    s->sums = (FileSum(*)[NUM_SETS])xmalloc((size_t)size * sizeof(*s->sums));
    for (int i = 0; i < NUM_SETS; i++) s->sums[rank][i] = s->files[i].sum;
    if (size > 1) comm_gather_blocks(s->comm, s->sums, sizeof(*s->sums));
}

/* Nobody writes any more. If even the removal fails, the next save or start tries again. */
static void end(CheckpointSave *s) {
    if (s->problem && rank_of(s->comm) == 0) free(outfile_try_remove_tree(s->temporary, WHAT));
    s->phase = PHASE_OVER;
}

/* All ranks are done with a phase. */
static void end_phase(CheckpointSave *s) {
    join(s);
    agree(s);
    if (!s->problem && s->phase == PHASE_WRITE) {
        share_sums(s);
        start_phase(s, PHASE_COMMIT);
        return;
    }
    end(s);
}

static void free_save(CheckpointSave *s) {
    free_files(s->files, s->num_files);
    for (int set = 0; set < NUM_SETS; set++) free(s->indices[set]);
    state_draft_free(s->draft);
    free(s->algorithms);
    free(s->sums);
    free(s->temporary);
    free(s);
}

CheckpointSave *checkpoint_begin(const CheckpointPolicy *policy, const CheckpointTensors *tensors,
                                 const CheckpointState *state) {
    CHECK(policy->staging && policy->staging_bytes > 0, "no staging memory");
    CHECK(policy->keep >= 0 && policy->major_every >= 0, "keep %d, major_every %lld", policy->keep,
          (long long)policy->major_every);
    CheckpointSave *s = (CheckpointSave *)xmalloc(sizeof(*s));
    s->policy = *policy;
    s->device = tensors->device;
    s->comm = tensors->comm;
    s->step = state->step;
    s->num_files = list_files(tensors, state, rank_of(s->comm), s->files, s->indices);
    if (rank_of(s->comm) == 0) s->draft = state_draft(state);
    if (state->gemm_algorithms && state->gemm_algorithms[0] && rank_of(s->comm) == 0)
        s->algorithms = xstrdup(state->gemm_algorithms);
    open_temporary(s);
    if (s->problem) {
        end(s);
        return s;
    }
    take_snapshot(s);
    start_phase(s, PHASE_WRITE);
    return s;
}

int checkpoint_done(CheckpointSave *s, int wait, char **problem) {
    while (s->phase != PHASE_OVER) {
        float running = (float)atomic_load(&s->running);
        if (wait) {
            join(s);
            running = 0;
        }
        if (!wait && ranks_of(s->comm) > 1) s->comm->all_reduce(s->comm, &running, 1, COMM_MAX);
        if (running != 0) return 0;
        end_phase(s);
    }
    *problem = s->problem;
    free_save(s);
    return 1;
}

char *checkpoint_save(const CheckpointPolicy *policy, const CheckpointTensors *tensors,
                      const CheckpointState *state) {
    char *problem;
    checkpoint_done(checkpoint_begin(policy, tensors, state), 1, &problem);
    return problem;
}
