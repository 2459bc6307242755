/* safetensors -- a streaming writer and a mapping reader of one format; see safetensors.h. */
#include "safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"
#include "json_count.h"
#include "outfile.h"

enum { LENGTH_BYTES = 8 };   // the field before the header
static const int64_t MAX_HEADER = 100000000;   // the format's own limit
static const char METADATA[] = "__metadata__";

// --- writing ---

struct SafetensorsWriter {
    OutFile file;
    char *problem;   // the first failure, or NULL; then nothing more is written
    cJSON *header;
    int64_t declared_bytes;   // of data
    int64_t written_bytes;
    int header_written;
};

SafetensorsWriter *safetensors_create(const char *path, const char *what) {
    SafetensorsWriter *w = (SafetensorsWriter *)xmalloc(sizeof(*w));
    w->problem = outfile_try_create(&w->file, path, what);
    w->header = cJSON_CreateObject();
    return w;
}

void safetensors_add_metadata(SafetensorsWriter *w, const char *key, const char *value) {
    cJSON *metadata = cJSON_GetObjectItemCaseSensitive(w->header, METADATA);
    if (!metadata) metadata = cJSON_AddObjectToObject(w->header, METADATA);
    cJSON_AddStringToObject(metadata, key, value);
}

void safetensors_declare(SafetensorsWriter *w, const char *name, DType dtype, int64_t rows,
                         int64_t cols) {
    CHECK(!w->header_written, "%s: tensor %s declared after data", w->file.path, name);
    CHECK(dtype_info[dtype].safetensors, "%s has no name in safetensors", dtype_info[dtype].name);
    CHECK(!cJSON_GetObjectItemCaseSensitive(w->header, name), "tensor %s declared twice", name);
    int64_t end = w->declared_bytes + (int64_t)dtype_bytes(dtype, rows * cols);
    double dims[2] = {(double)rows, (double)cols},
           offsets[2] = {(double)w->declared_bytes, (double)end};
    cJSON *entry = cJSON_AddObjectToObject(w->header, name);
    cJSON_AddStringToObject(entry, "dtype", dtype_info[dtype].safetensors);
    int is_vector = rows == 1;
    cJSON_AddItemToObject(entry, "shape", cJSON_CreateDoubleArray(dims + is_vector, 2 - is_vector));
    cJSON_AddItemToObject(entry, "data_offsets", cJSON_CreateDoubleArray(offsets, 2));
    w->declared_bytes = end;
}

static void put(SafetensorsWriter *w, const void *data, size_t bytes) {
    if (!w->problem) w->problem = outfile_try_write(&w->file, data, bytes);
}

/* Spaces after the JSON bring the data to a multiple of 8, so that a mapped file is aligned. */
static void write_header(SafetensorsWriter *w) {
    char *json = cJSON_PrintUnformatted(w->header);
    if (!json) die(EXIT_OOM, "out of host memory: header of '%s'", w->file.path);
    size_t used = strlen(json), padded = (size_t)round_up((int64_t)used, 8);
    uint8_t length[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++) length[i] = (uint8_t)((uint64_t)padded >> 8 * i);
    put(w, length, LENGTH_BYTES);
    put(w, json, used);
    put(w, "       ", padded - used);
    cJSON_free(json);
    w->header_written = 1;
}

void safetensors_write(SafetensorsWriter *w, const void *data, size_t bytes) {
    if (!w->header_written) write_header(w);
    put(w, data, bytes);
    w->written_bytes += (int64_t)bytes;
}

const char *safetensors_problem(const SafetensorsWriter *w) { return w->problem; }

char *safetensors_try_finish(SafetensorsWriter *w, FileSum *sum) {
    if (!w->header_written) write_header(w);
    CHECK(w->problem || w->written_bytes == w->declared_bytes,
          "%s: %lld bytes written, %lld declared", w->file.path, (long long)w->written_bytes,
          (long long)w->declared_bytes);
    *sum = (FileSum){w->file.bytes, w->file.crc};
    char *problem = w->problem, *closing = w->file.fd >= 0 ? outfile_try_close(&w->file) : NULL;
    cJSON_Delete(w->header);
    free(w);
    if (!problem) return closing;
    free(closing);
    return problem;
}

FileSum safetensors_finish(SafetensorsWriter *w) {
    FileSum sum;
    char *problem = safetensors_try_finish(w, &sum);
    if (problem) die(EXIT_DATA, "%s", problem);
    return sum;
}

// --- reading ---

typedef struct {
    uint8_t *map;
    int64_t map_bytes;
    const uint8_t *data;   // after the header
    int64_t data_bytes;
    cJSON *header;
    SafetensorsEntry *entries;
} Reader;

static char *map_file(Reader *r, const char *path) {
    char *problem = NULL;
    int64_t bytes;
    int fd = open_regular_file(path, &bytes, &problem);
    if (fd < 0) return problem;
    if (bytes < LENGTH_BYTES) {
        problem = format_string("%lld bytes, too short for the header's length", (long long)bytes);
    } else {
        void *map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) problem = format_string("cannot map: %s", strerror(errno));
        else r->map = (uint8_t *)map, r->map_bytes = bytes;
    }
    close(fd);
    return problem;
}

/* cJSON before 1.7.18 may read a byte beyond the text it is given, and a mapped file can end there:
   it gets a copy with a zero behind it. */
static char *parse_json(Reader *r, const char *text, size_t length) {
    char *copy = (char *)xmalloc(length + 1);
    memcpy(copy, text, length);
    const char *end = copy;
    r->header = cJSON_ParseWithLengthOpts(copy, length, &end, 0);
    const char *kind = cJSON_IsObject(r->header) ? NULL : "is not a JSON object";
    while (!kind && end < copy + length && *end == ' ') end++;
    if (!kind && end < copy + length) kind = "has more than one JSON value";
    char *problem = NULL;
    if (kind)
        problem = format_string("header %s (byte %lld)", kind,
                                (long long)(end - copy) + LENGTH_BYTES);
    free(copy);
    return problem;
}

static char *parse_header(Reader *r) {
    uint64_t length = 0;
    for (int i = 0; i < LENGTH_BYTES; i++) length |= (uint64_t)r->map[i] << 8 * i;
    int64_t room = r->map_bytes - LENGTH_BYTES;
    if (length > (uint64_t)MAX_HEADER || length > (uint64_t)room) {
        return format_string("header of %llu bytes, but the file ends %lld bytes after its start "
                             "(truncated, or not a safetensors file)",
                             (unsigned long long)length, (long long)room);
    }
    r->data = r->map + LENGTH_BYTES + length;
    r->data_bytes = room - (int64_t)length;
    return parse_json(r, (const char *)r->map + LENGTH_BYTES, (size_t)length);
}

static char *parse_dtype(const cJSON *item, SafetensorsEntry *e) {
    const char *name = cJSON_GetStringValue(item);
    for (int t = 0; name && t < NUM_DTYPES; t++) {
        const char *known = dtype_info[t].safetensors;
        if (!known || strcmp(known, name) != 0) continue;
        e->dtype = (DType)t;
        return NULL;
    }
    return format_string("tensor %s: dtype %s%s%s is not one that this program reads", e->name,
                         name ? "'" : "", name ? name : "missing", name ? "'" : "");
}

static char *parse_shape(const cJSON *item, SafetensorsEntry *e) {
    if (!cJSON_IsArray(item)) return format_string("tensor %s: no shape", e->name);
    e->rank = cJSON_GetArraySize(item);
    e->rows = e->cols = 1;
    const cJSON *dim;
    cJSON_ArrayForEach(dim, item) {
        int64_t size = json_count(dim);
        if (size < 0 || __builtin_mul_overflow(e->rows, e->cols, &e->rows)) {
            return format_string("tensor %s: impossible shape", e->name);
        }
        e->cols = size;
    }
    int64_t elements, bits;
    if (__builtin_mul_overflow(e->rows, e->cols, &elements) ||
        __builtin_mul_overflow(elements, (int64_t)dtype_info[e->dtype].bits, &bits) || bits % 8) {
        return format_string("tensor %s: impossible shape", e->name);
    }
    e->bytes = (size_t)(bits / 8);
    return NULL;
}

static char *parse_offsets(const Reader *r, const cJSON *item, SafetensorsEntry *e) {
    int64_t begin = json_count(cJSON_GetArrayItem(item, 0));
    int64_t end = json_count(cJSON_GetArrayItem(item, 1));
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2 || begin < 0 || end < begin) {
        return format_string("tensor %s: data_offsets are not two rising numbers", e->name);
    }
    if (end > r->data_bytes) {
        return format_string("tensor %s ends at byte %lld of the data, which has only %lld "
                             "(file truncated?)",
                             e->name, (long long)end, (long long)r->data_bytes);
    }
    if ((size_t)(end - begin) != e->bytes) {
        return format_string("tensor %s: %lld bytes in the file, %zu by its shape and dtype",
                             e->name, (long long)(end - begin), e->bytes);
    }
    e->data = r->data + begin;
    return NULL;
}

static char *parse_entry(const Reader *r, const cJSON *item, SafetensorsEntry *e) {
    e->name = item->string;
    if (!cJSON_IsObject(item) || cJSON_GetArraySize(item) != 3) {
        return format_string("tensor %s: not an object of dtype, shape and data_offsets", e->name);
    }
    char *problem = parse_dtype(cJSON_GetObjectItemCaseSensitive(item, "dtype"), e);
    if (!problem) problem = parse_shape(cJSON_GetObjectItemCaseSensitive(item, "shape"), e);
    if (problem) return problem;
    return parse_offsets(r, cJSON_GetObjectItemCaseSensitive(item, "data_offsets"), e);
}

static char *check_metadata(const cJSON *metadata) {
    if (!metadata) return NULL;
    const cJSON *item = metadata->child;
    while (item && cJSON_IsString(item)) item = item->next;
    if (cJSON_IsObject(metadata) && !item) return NULL;
    return format_string("%s is not an object of strings", METADATA);
}

/* Empty tensors come before the one that starts where they do. */
static int compare_places(const void *a, const void *b) {
    const SafetensorsEntry *x = (const SafetensorsEntry *)a, *y = (const SafetensorsEntry *)b;
    if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const SafetensorsEntry *)a)->name, ((const SafetensorsEntry *)b)->name);
}

static char *check_layout(const Reader *r, int count) {
    const uint8_t *expected = r->data;
    qsort(r->entries, (size_t)count, sizeof(r->entries[0]), compare_places);
    for (int i = 0; i < count; i++) {
        const SafetensorsEntry *e = &r->entries[i];
        if (e->data != expected) {
            return format_string("tensor %s begins at byte %lld of the data, expected %lld "
                                 "(gap or overlap)",
                                 e->name, (long long)((const uint8_t *)e->data - r->data),
                                 (long long)(expected - r->data));
        }
        expected += e->bytes;
    }
    if (expected != r->data + r->data_bytes) {
        return format_string("%lld bytes after the last tensor",
                             (long long)(r->data + r->data_bytes - expected));
    }
    qsort(r->entries, (size_t)count, sizeof(r->entries[0]), compare_names);
    for (int i = 1; i < count; i++) {
        if (compare_names(&r->entries[i - 1], &r->entries[i]) == 0) {
            return format_string("tensor %s is there twice", r->entries[i].name);
        }
    }
    return NULL;
}

static char *read_all(Reader *r, const char *path, int *count) {
    char *problem = map_file(r, path);
    if (!problem) problem = parse_header(r);
    if (!problem) {
        problem = check_metadata(cJSON_GetObjectItemCaseSensitive(r->header, METADATA));
    }
    if (problem) return problem;
    r->entries = (SafetensorsEntry *)xmalloc((size_t)cJSON_GetArraySize(r->header) *
                                             sizeof(SafetensorsEntry));
    const cJSON *item;
    cJSON_ArrayForEach(item, r->header) {
        if (strcmp(item->string, METADATA) == 0) continue;
        problem = parse_entry(r, item, &r->entries[(*count)++]);
        if (problem) return problem;
    }
    return check_layout(r, *count);
}

static void free_reader(Reader *r) {
    free(r->entries);
    cJSON_Delete(r->header);
    if (r->map) munmap(r->map, (size_t)r->map_bytes);
    free(r);
}

Safetensors *safetensors_try_open(const char *path, char **problem) {
    Reader *r = (Reader *)xmalloc(sizeof(*r));
    int count = 0;
    *problem = read_all(r, path, &count);
    if (*problem) {
        free_reader(r);
        return NULL;
    }
    Safetensors *s = (Safetensors *)xmalloc(sizeof(*s));
    *s = (Safetensors){xstrdup(path), r->entries, count, r};
    return s;
}

Safetensors *safetensors_open(const char *path) {
    char *problem;
    Safetensors *s = safetensors_try_open(path, &problem);
    if (!s) die(EXIT_DATA, "'%s': %s", path, problem);
    return s;
}

void safetensors_close(Safetensors *s) {
    free_reader((Reader *)s->impl);
    free(s->path);
    free(s);
}

const SafetensorsEntry *safetensors_find(const Safetensors *s, const char *name) {
    SafetensorsEntry key = {.name = name};
    return (const SafetensorsEntry *)bsearch(&key, s->entries, (size_t)s->count, sizeof(key),
                                             compare_names);
}

const char *safetensors_metadata(const Safetensors *s, const char *key) {
    const cJSON *metadata =
        cJSON_GetObjectItemCaseSensitive(((const Reader *)s->impl)->header, METADATA);
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(metadata, key));
}
