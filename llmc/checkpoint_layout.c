/*
checkpoint_layout -- which rank's file has which stretch of which tensor: pure arithmetic over the
ParamTable and the ranges, the same on all ranks. Opens no file. See checkpoint_parts.h.
  index file  {"metadata": {"total_size": BYTES}, "weight_map": {NAME: FILE, ...}}, as others write
              it for models in several files; a tensor that is cut has instead of FILE an object
              {"shape": [ROWS, COLS], "parts": [[FILE, BEGIN, END], ...]} of elements, row by row
*/
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_parts.h"

// clang-format off
const CheckpointArray checkpoint_arrays[NUM_ARRAYS] = {
    {SET_MODEL,     "",   offsetof(FlatRange, master)},
    {SET_OPTIMIZER, "m.", offsetof(FlatRange, m)},
    {SET_OPTIMIZER, "v.", offsetof(FlatRange, v)},
};
// clang-format on
static const char *const set_names[ALL_SETS] = {"model", "optimizer", "recipe"};

float *checkpoint_array_data(const CheckpointArray *array, const FlatRange *range) {
    return *(float *const *)((const char *)range + array->at);
}

TensorName checkpoint_tensor_name(const CheckpointArray *array, const char *param) {
    TensorName name;
    snprintf(name.text, sizeof(name.text), "%s%s", array->prefix, param);
    return name;
}

char *checkpoint_file_name(SetId set, int index, int count) {
    if (count == 1) return format_string("%s.safetensors", set_names[set]);
    return format_string("%s-%05d-of-%05d.safetensors", set_names[set], index + 1, count);
}

char *checkpoint_index_name(SetId set) {
    return format_string("%s.safetensors.index.json", set_names[set]);
}

// --- who has what ---

/* The beginning of a tensor, or the end, that is nearest to an element of the flat space. */
static int64_t nearest_cut(const ParamTable *params, int64_t at) {
    const Param *p = param_table_at(params, at);
    return at - p->offset <= param_end(p) - at ? p->offset : param_end(p);
}

FlatRange *checkpoint_whole_tensors(const ParamTable *params, int size) {
    FlatRange *ranges = (FlatRange *)xmalloc((size_t)size * sizeof(FlatRange));
    int64_t begin = 0;
    for (int r = 0; r < size; r++) {
        int64_t even = params->num_elements / size * (r + 1);
        int64_t end = r == size - 1 ? params->num_elements : nearest_cut(params, even);
        ranges[r] = (FlatRange){begin,
                                end,
                                r,
                                (float *)tensor_span(params->master, begin, end - begin).data,
                                (float *)tensor_span(params->m, begin, end - begin).data,
                                (float *)tensor_span(params->v, begin, end - begin).data,
                                tensor_span(params->value, begin, end - begin).data};
        begin = end;
    }
    return ranges;
}

/* One rank's part of a bucket. Values of all parts are here, but for matrices of blocks at level
   3. */
static FlatRange bucket_part(const ParamTable *params, const ZeroPlan *z, const ZeroBucket *b,
                             int owner) {
    FlatRange r = {.begin = b->cuts[owner], .end = b->cuts[owner + 1], .owner = owner};
    int has_all_values = z->level < 3 || !b->range.is_block;
    if (has_all_values)
        r.value =
            tensor_span(params->value, b->value_at + r.begin - b->range.begin, r.end - r.begin)
                .data;
    if (owner != z->rank) return r;
    ZeroKept kept = zero_kept(z, b, params);
    r.value = kept.value.data;
    r.master = (float *)kept.master.data;
    r.m = (float *)kept.m.data;
    r.v = (float *)kept.v.data;
    return r;
}

static int compare_ranges(const void *a, const void *b) {
    const FlatRange *x = (const FlatRange *)a, *y = (const FlatRange *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);   // empty ones first
}

FlatRange *checkpoint_parts_of(const ParamTable *params, const ZeroPlan *zero, int *count) {
    *count = zero->num_buckets * zero->size;
    FlatRange *ranges = (FlatRange *)xmalloc((size_t)*count * sizeof(FlatRange));
    for (int b = 0; b < zero->num_buckets; b++) {
        for (int r = 0; r < zero->size; r++)
            ranges[b * zero->size + r] = bucket_part(params, zero, &zero->buckets[b], r);
    }
    qsort(ranges, (size_t)*count, sizeof(FlatRange), compare_ranges);
    return ranges;
}

void layout_cut(const Param *p, const FlatRange *range, int64_t *begin, int64_t *end) {
    *begin = max_i64(0, range->begin - p->offset);
    *end = max_i64(*begin, min_i64(p->rows * p->cols, range->end - p->offset));
}

static void check_ranges(const CheckpointTensors *t) {
    int64_t at = 0;
    for (int i = 0; i < t->num_ranges; i++) {
        const FlatRange *r = &t->ranges[i];
        CHECK(r->begin >= at && r->end >= r->begin && r->owner >= 0 && r->owner < ranks_of(t->comm),
              "range %d is [%lld, %lld) of rank %d, after %lld", i, (long long)r->begin,
              (long long)r->end, r->owner, (long long)at);
        at = r->end;
    }
}

static void add_segment(SegmentList *list, const Segment *s) {
    if ((list->count & (list->count - 1)) == 0) {   // 0, 1, 2, 4, ...: room for as many again
        size_t room = list->count ? 2 * (size_t)list->count : 1;
        list->segments = (Segment *)xrealloc(list->segments, room * sizeof(Segment));
    }
    list->segments[list->count++] = *s;
}

/* The stretches of one tensor, which cover it. */
static void add_tensor(SegmentList *list, const CheckpointTensors *t, const CheckpointArray *array,
                       const Param *p) {
    int64_t at = 0;
    for (int r = 0; r < t->num_ranges; r++) {
        const FlatRange *range = &t->ranges[r];
        Segment s = {.name = checkpoint_tensor_name(array, p->name),
                     .rows = p->rows,
                     .cols = p->cols,
                     .owner = range->owner};
        layout_cut(p, range, &s.begin, &s.end);
        if (s.begin == s.end) continue;
        CHECK(s.begin == at, "elements %lld to %lld of %s are in no range", (long long)at,
              (long long)s.begin, p->name);
        at = s.end;
        float *data = checkpoint_array_data(array, range);
        if (data) s.data = data + (p->offset + s.begin - range->begin);
        add_segment(list, &s);
    }
    CHECK(at == p->rows * p->cols, "%s ends in no range", p->name);
}

SegmentList layout_segments(const CheckpointTensors *t, SetId set) {
    SegmentList list = {NULL, 0};
    check_ranges(t);
    for (int k = 0; k < NUM_ARRAYS; k++) {
        if (checkpoint_arrays[k].set != set) continue;
        for (int i = 0; i < t->params->count; i++)
            add_tensor(&list, t, &checkpoint_arrays[k], &t->params->params[i]);
    }
    return list;
}

SegmentList layout_segments_of(const SegmentList *all, int owner) {
    SegmentList list = {NULL, 0};
    for (int i = 0; i < all->count; i++) {
        if (all->segments[i].owner == owner) add_segment(&list, &all->segments[i]);
    }
    return list;
}

// --- the index ---

static cJSON *describe_cut(const Segment *s, int num_parts, SetId set, int count) {
    cJSON *tensor = cJSON_CreateObject();
    double shape[2] = {(double)s->rows, (double)s->cols};
    cJSON_AddItemToObject(tensor, "shape", cJSON_CreateDoubleArray(shape, 2));
    cJSON *parts = cJSON_AddArrayToObject(tensor, "parts");
    for (int i = 0; i < num_parts; i++) {
        char *file = checkpoint_file_name(set, s[i].owner, count);
        cJSON *part = cJSON_CreateArray();
        cJSON_AddItemToArray(part, cJSON_CreateString(file));
        cJSON_AddItemToArray(part, cJSON_CreateNumber((double)s[i].begin));
        cJSON_AddItemToArray(part, cJSON_CreateNumber((double)s[i].end));
        cJSON_AddItemToArray(parts, part);
        free(file);
    }
    return tensor;
}

static cJSON *describe_whole(const Segment *s, SetId set, int count) {
    char *file = checkpoint_file_name(set, s->owner, count);
    cJSON *text = cJSON_CreateString(file);
    free(file);
    return text;
}

char *layout_index_text(const SegmentList *all, SetId set, int count) {
    cJSON *index = cJSON_CreateObject();
    cJSON *metadata = cJSON_AddObjectToObject(index, "metadata");
    cJSON *map = cJSON_AddObjectToObject(index, "weight_map");
    int64_t elements = 0;
    for (int i = 0, next; i < all->count; i = next) {
        const Segment *s = &all->segments[i];
        for (next = i; next < all->count; next++) {
            if (strcmp(all->segments[next].name.text, s->name.text) != 0) break;
        }
        elements += s->rows * s->cols;
        cJSON_AddItemToObject(map, s->name.text,
                              next - i == 1 ? describe_whole(s, set, count)
                                            : describe_cut(s, next - i, set, count));
    }
    cJSON_AddNumberToObject(metadata, "total_size", (double)elements * sizeof(float));
    char *json = cJSON_Print(index);
    if (!json) die(EXIT_OOM, "out of host memory: index of a checkpoint");
    char *text = format_string("%s\n", json);
    cJSON_free(json);
    cJSON_Delete(index);
    return text;
}

// --- ranks ---

char *ranks_agree(Comm *comm, char *problem) {
    enum { TEXT_BYTES = 1024 };
    float any = problem != NULL;
    int size = ranks_of(comm);
    if (size == 1) return problem;
    comm->all_reduce(comm, &any, 1, COMM_MAX);
    if (any == 0) return NULL;
    char *texts = (char *)xmalloc((size_t)size * TEXT_BYTES), *first = texts;
    if (problem) snprintf(texts + (size_t)comm->rank * TEXT_BYTES, TEXT_BYTES, "%s", problem);
    free(problem);
    comm_gather_blocks(comm, texts, TEXT_BYTES);
    while (!*first) first += TEXT_BYTES;
    problem = xstrdup(first);
    free(texts);
    return problem;
}
