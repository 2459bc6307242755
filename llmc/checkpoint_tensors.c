/*
checkpoint_tensors -- the files of tensors of one checkpoint: found, checked against state.json,
mapped, and brought together with the index so that every element of every tensor is in one place
exactly. Trusts nothing that it reads. See checkpoint_parts.h.
*/
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint_parts.h"
#include "json_count.h"

const char CHECKPOINT_ALGORITHMS[] = "gemm_algorithms.txt";
static const size_t MAX_ALGORITHMS = 1 << 20;   // bytes; some hundred lines of 200
static const size_t MAX_INDEX = 256 << 20;      // bytes; 200 a tensor and part
enum { MAX_FILES = 1 << 14 };                   // of a set, one of each rank that wrote it

// --- files as state.json knows them ---

/* The CRC of what remains to be read of a file. */
static char *check_crc(int fd, uint32_t expected) {
    enum { CHUNK = 1 << 20 };
    uint8_t *chunk = (uint8_t *)xmalloc(CHUNK);
    uint32_t found = 0;
    ssize_t got;
    while ((got = read(fd, chunk, CHUNK)) > 0) found = crc32_update(found, chunk, (size_t)got);
    char *problem = NULL;
    if (got < 0) problem = format_string("cannot read: %s", strerror(errno));
    else if (found != expected) {
        problem =
            format_string("damaged: crc32 is %08" PRIx32 ", expected %08" PRIx32, found, expected);
    }
    free(chunk);
    return problem;
}

/* Size first: it tells a truncated file from a damaged one, and costs nothing. */
static char *check_sum(const char *path, FileSum expected, int with_sum) {
    char *problem = NULL;
    int64_t bytes;
    int fd = open_regular_file(path, &bytes, &problem);
    if (fd < 0) return problem;
    if (bytes != expected.bytes) {
        problem =
            format_string("%lld bytes, expected %lld%s", (long long)bytes,
                          (long long)expected.bytes, bytes < expected.bytes ? " (truncated)" : "");
    } else if (with_sum) {
        problem = check_crc(fd, expected.crc);
    }
    close(fd);
    return problem;
}

char *problem_in_file(const char *name, char *problem) {
    if (!problem) return NULL;
    char *named = format_string("%s: %s", name, problem);
    free(problem);
    return named;
}

char *checkpoint_check_file(const char *path, const char *name, const StateFile *state,
                            int with_sum) {
    FileSum expected;
    char *file_path = format_string("%s/%s", path, name);
    char *problem = state_file_sum(state, name, &expected);
    if (!problem) problem = check_sum(file_path, expected, with_sum);
    free(file_path);
    return problem;
}

char *checkpoint_open_state(const char *path, StateFile **state) {
    char *state_path = format_string("%s/state.json", path);
    char *problem = state_open(state_path, state);
    free(state_path);
    return problem_in_file("state.json", problem);
}

static char *read_listed_text(const char *path, const char *name, const StateFile *state,
                              size_t most, char **problem) {
    char *text = NULL, *file_path = format_string("%s/%s", path, name);
    *problem = checkpoint_check_file(path, name, state, 1);
    if (!*problem) text = try_read_text_file(file_path, most, NULL, problem);
    free(file_path);
    return text;
}

char *checkpoint_read_algorithms(const char *path, const StateFile *state, char **problem) {
    return read_listed_text(path, CHECKPOINT_ALGORITHMS, state, MAX_ALGORITHMS, problem);
}

// --- the index ---

/* The number of a file's name in the set, a new one where it has none yet. */
static int file_number(TensorSet *s, const char *name) {
    for (int i = 0; i < s->num_files; i++) {
        if (strcmp(s->files[i], name) == 0) return i;
    }
    s->files = (char **)xrealloc(s->files, ((size_t)s->num_files + 1) * sizeof(char *));
    s->files[s->num_files] = xstrdup(name);
    return s->num_files++;
}

/* A file name of the checkpoint's own directory, or NULL. */
static const char *json_file(const cJSON *item) {
    const char *name = cJSON_GetStringValue(item);
    return name && name[0] && !strchr(name, '/') ? name : NULL;
}

static char *parse_part(TensorSet *s, SetTensor *t, const cJSON *json) {
    const char *file = json_file(cJSON_GetArrayItem(json, 0));
    int64_t begin = json_count(cJSON_GetArrayItem(json, 1));
    int64_t end = json_count(cJSON_GetArrayItem(json, 2));
    if (!file || begin < 0 || end < 0)
        return format_string("a part of tensor %s is not [file, begin, end]", t->name);
    int64_t before = t->num_parts ? t->parts[t->num_parts - 1].end : 0;
    if (begin != before || end <= begin) {
        return format_string("tensor %s has a part of elements %lld to %lld in %s, expected one "
                             "from %lld on (gap or overlap)",
                             t->name, (long long)begin, (long long)end, file, (long long)before);
    }
    t->parts[t->num_parts++] = (SetPart){file_number(s, file), begin, end, NULL};
    return NULL;
}

static char *parse_cut(TensorSet *s, SetTensor *t, const cJSON *json) {
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(json, "shape");
    const cJSON *parts = cJSON_GetObjectItemCaseSensitive(json, "parts"), *part;
    t->rows = json_count(cJSON_GetArrayItem(shape, 0));
    t->cols = json_count(cJSON_GetArrayItem(shape, 1));
    int64_t elements;
    if (t->rows < 1 || t->cols < 1 || !cJSON_IsArray(parts) ||
        __builtin_mul_overflow(t->rows, t->cols, &elements))
        return format_string("tensor %s is neither in one file nor in parts of a shape", t->name);
    t->parts = (SetPart *)xmalloc((size_t)cJSON_GetArraySize(parts) * sizeof(SetPart));
    cJSON_ArrayForEach(part, parts) {
        char *problem = parse_part(s, t, part);
        if (problem) return problem;
    }
    int64_t end = t->num_parts ? t->parts[t->num_parts - 1].end : 0;
    if (end == elements) return NULL;
    return format_string("the parts of tensor %s end at element %lld of %lld", t->name,
                         (long long)end, (long long)elements);
}

/* In one file; its shape and its end are known when that is open. */
static char *parse_whole(TensorSet *s, SetTensor *t, const cJSON *json) {
    t->parts = (SetPart *)xmalloc(sizeof(SetPart));
    t->parts[t->num_parts++] = (SetPart){file_number(s, json_file(json)), 0, 0, NULL};
    return NULL;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const SetTensor *)a)->name, ((const SetTensor *)b)->name);
}

static char *sort_tensors(TensorSet *s) {
    qsort(s->tensors, (size_t)s->count, sizeof(SetTensor), compare_names);
    for (int i = 1; i < s->count; i++) {
        if (compare_names(&s->tensors[i - 1], &s->tensors[i]) == 0)
            return format_string("tensor %s is there twice", s->tensors[i].name);
    }
    return NULL;
}

static char *parse_index(TensorSet *s, const char *text) {
    cJSON *index = cJSON_Parse(text);
    s->index = index;
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(index, "weight_map"), *item;
    if (!cJSON_IsObject(map)) return format_string("not an object with a \"weight_map\"");
    s->tensors = (SetTensor *)xmalloc((size_t)cJSON_GetArraySize(map) * sizeof(SetTensor));
    cJSON_ArrayForEach(item, map) {
        SetTensor *t = &s->tensors[s->count++];
        t->name = item->string;
        char *problem = json_file(item) ? parse_whole(s, t, item) : parse_cut(s, t, item);
        if (problem) return problem;
        if (s->num_files > MAX_FILES) return format_string("more than %d files", MAX_FILES);
    }
    if (s->num_files == 0) return format_string("no tensor in its \"weight_map\"");
    return sort_tensors(s);
}

char *set_find(TensorSet *s, SetId id, const char *path, const StateFile *state) {
    char *name = checkpoint_index_name(id), *problem = NULL;
    *s = (TensorSet){.id = id, .has_index = state_has_file(state, name)};
    if (s->has_index) {
        char *text = read_listed_text(path, name, state, MAX_INDEX, &problem);
        if (!problem) problem = parse_index(s, text);
        problem = problem_in_file(name, problem);
        free(text);
    } else {
        char *file = checkpoint_file_name(id, 0, 1);
        file_number(s, file);
        free(file);
    }
    free(name);
    s->open = (Safetensors **)xmalloc((size_t)s->num_files * sizeof(Safetensors *));
    return problem;
}

void set_close(TensorSet *s) {
    for (int i = 0; i < s->num_files; i++) {
        if (s->open && s->open[i]) safetensors_close(s->open[i]);
        free(s->files[i]);
    }
    for (int i = 0; i < s->count; i++) free(s->tensors[i].parts);
    free(s->open);
    free(s->files);
    free(s->tensors);
    cJSON_Delete((cJSON *)s->index);
    *s = (TensorSet){0};
}

char *set_check_file(const TensorSet *s, int file, const char *path, const StateFile *state,
                     int with_sum) {
    return problem_in_file(s->files[file],
                           checkpoint_check_file(path, s->files[file], state, with_sum));
}

char *set_open_file(TensorSet *s, int file, const char *path) {
    char *problem, *file_path = format_string("%s/%s", path, s->files[file]);
    s->open[file] = safetensors_try_open(file_path, &problem);
    free(file_path);
    return problem_in_file(s->files[file], problem);
}

// --- tensors and files together ---

static char *check_dtype(const SafetensorsEntry *e) {
    if (e->dtype == DT_F32) return NULL;
    return format_string("tensor %s is %s, expected f32", e->name, dtype_info[e->dtype].name);
}

/* A set without an index is its one file. */
static char *match_one_file(TensorSet *s) {
    const Safetensors *file = s->open[0];
    s->tensors = (SetTensor *)xmalloc((size_t)file->count * sizeof(SetTensor));
    for (; s->count < file->count; s->count++) {
        const SafetensorsEntry *e = &file->entries[s->count];
        char *problem = check_dtype(e);
        if (problem) return problem_in_file(s->files[0], problem);
        SetTensor *t = &s->tensors[s->count];
        *t = (SetTensor){e->name, e->rows, e->cols, (SetPart *)xmalloc(sizeof(SetPart)), 1};
        t->parts[0] = (SetPart){0, 0, e->rows * e->cols, (const char *)e->data};
    }
    return NULL;   // sorted, as the entries are
}

/* What was met of one file: elements of the tensor at hand, -1 for no part of it, and tensors. */
typedef struct {
    int64_t elements;
    int tensors;
} FileCount;

static char *match_part(TensorSet *s, SetTensor *t, SetPart *part, FileCount *count) {
    const SafetensorsEntry *e = safetensors_find(s->open[part->file], t->name);
    char *problem = e ? check_dtype(e) : format_string("tensor %s is missing", t->name);
    if (problem) return problem;
    int64_t has = e->rows * e->cols;
    if (t->rows == 0) {
        t->rows = e->rows;
        t->cols = e->cols;
        part->end = has;
    }
    int64_t at = max_i64(count->elements, 0), end = at + part->end - part->begin;
    if (end > has) {
        return format_string("tensor %s has %lld elements, expected %lld or more", t->name,
                             (long long)has, (long long)end);
    }
    part->data = (const char *)e->data + (size_t)at * sizeof(float);
    count->elements = end;
    return NULL;
}

/* That no element of the file's entry is left over. */
static char *finish_file(const Safetensors *file, const SetTensor *t, FileCount *count) {
    const SafetensorsEntry *e = safetensors_find(file, t->name);
    int64_t elements = count->elements;
    count->elements = -1;
    count->tensors++;
    if (e->rows * e->cols == elements) return NULL;
    return format_string("tensor %s has %lld elements, expected %lld", t->name,
                         (long long)(e->rows * e->cols), (long long)elements);
}

/* A file has the tensor's parts in it one after the other, as one entry. */
static char *match_tensor(TensorSet *s, SetTensor *t, FileCount *counts) {
    char *problem = NULL;
    for (int i = 0; i < t->num_parts && !problem; i++) {
        SetPart *part = &t->parts[i];
        problem = match_part(s, t, part, &counts[part->file]);
        problem = problem_in_file(s->files[part->file], problem);
    }
    for (int i = 0; i < t->num_parts && !problem; i++) {
        int file = t->parts[i].file;
        if (counts[file].elements < 0) continue;
        problem = problem_in_file(s->files[file], finish_file(s->open[file], t, &counts[file]));
    }
    return problem;
}

static char *match_files(TensorSet *s) {
    if (!s->has_index) return match_one_file(s);
    FileCount *counts = (FileCount *)xmalloc((size_t)s->num_files * sizeof(FileCount));
    char *problem = NULL;
    for (int f = 0; f < s->num_files; f++) counts[f].elements = -1;
    for (int i = 0; i < s->count && !problem; i++)
        problem = match_tensor(s, &s->tensors[i], counts);
    for (int f = 0; f < s->num_files && !problem; f++) {
        if (s->open[f]->count == counts[f].tensors) continue;
        problem = format_string("%s: %d tensors, the index has %d", s->files[f], s->open[f]->count,
                                counts[f].tensors);
    }
    free(counts);
    return problem;
}

char *set_match(TensorSet *s) {
    char *problem = match_files(s);
    s->is_whole = !problem;
    return problem;
}

const SetTensor *set_tensor(const TensorSet *s, const char *name) {
    SetTensor key = {.name = name};
    if (s->count == 0) return NULL;
    return (const SetTensor *)bsearch(&key, s->tensors, (size_t)s->count, sizeof(key),
                                      compare_names);
}

/* The data in a file need not be aligned to floats. */
void set_read(const SetTensor *t, int64_t begin, int64_t end, float *out) {
    for (int i = 0; i < t->num_parts; i++) {
        const SetPart *part = &t->parts[i];
        int64_t from = max_i64(begin, part->begin), to = min_i64(end, part->end);
        if (from >= to) continue;
        memcpy(out + (from - begin), part->data + (size_t)(from - part->begin) * sizeof(float),
               (size_t)(to - from) * sizeof(float));
    }
}

char *set_expect(const TensorSet *s, const char *name, int64_t rows, int64_t cols) {
    const SetTensor *t = set_tensor(s, name);
    char *file = s->has_index ? checkpoint_index_name(s->id) : xstrdup(s->files[0]);
    char *problem = NULL;
    if (!t) {
        problem = format_string("%s: tensor %s is missing, which the model has", file, name);
    } else if (t->rows != rows || t->cols != cols) {
        problem = format_string("%s: tensor %s has shape (%lld,%lld), the model's is (%lld,%lld)",
                                file, name, (long long)t->rows, (long long)t->cols, (long long)rows,
                                (long long)cols);
    }
    free(file);
    return problem;
}
