/* checkpoint_state -- one row a kind of field: how it is written, recognised and read. */
#include "checkpoint_state.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "json_count.h"

enum { STATE_VERSION = 1, NUM_OWN_FIELDS = 5 };
static const size_t MAX_STATE = 64 << 20;   // bytes; a state has some thousands
static const char HEAD[] = "{\"crc32\": \"%08" PRIx32 "\", \"checkpoint\": ";
static const char TAIL[] = "}\n";

struct StateFile {
    cJSON *body;   // the object "checkpoint"
};

// --- kinds of fields ---

/* cJSON prints numbers to within an epsilon only, so the digits are made here. */
static cJSON *raw_real(double v) {
    CHECK(isfinite(v), "%g cannot be kept in a checkpoint", v);
    char digits[32];
    snprintf(digits, sizeof(digits), "%.17g", v);
    return cJSON_CreateRaw(digits);
}

static cJSON *write_int(const CheckpointField *f) {
    int64_t v = *(const int64_t *)f->data;
    CHECK(fabs((double)v) <= JSON_MAX_INTEGER, "%s is %lld", f->key, (long long)v);
    char digits[32];
    snprintf(digits, sizeof(digits), "%lld", (long long)v);
    return cJSON_CreateRaw(digits);
}

static cJSON *write_seed(const CheckpointField *f) {
    char digits[32];
    snprintf(digits, sizeof(digits), "%" PRIu64, *(const uint64_t *)f->data);
    return cJSON_CreateString(digits);
}

static cJSON *write_real(const CheckpointField *f) { return raw_real(*(const double *)f->data); }

static cJSON *write_text(const CheckpointField *f) {
    const char *text = *(char *const *)f->data;
    return cJSON_CreateString(text ? text : "");
}

static cJSON *write_reals(const CheckpointField *f) {
    cJSON *array = cJSON_CreateArray();
    for (int i = 0; i < *f->count; i++) {
        cJSON_AddItemToArray(array, raw_real(((const double *)f->data)[i]));
    }
    return array;
}

static int is_int(const cJSON *item, const CheckpointField *f) {
    (void)f;
    return json_is_integer(item);
}

static int is_count(const cJSON *item, const CheckpointField *f) {
    (void)f;
    return json_count(item) >= 0;
}

static int is_seed(const cJSON *item, const CheckpointField *f) {
    (void)f;
    const char *digits = cJSON_GetStringValue(item);
    if (!digits || !*digits || digits[strspn(digits, "0123456789")]) return 0;
    errno = 0;
    strtoull(digits, NULL, 10);
    return errno == 0;
}

static int is_real(const cJSON *item, const CheckpointField *f) {
    (void)f;
    return cJSON_IsNumber(item) && isfinite(item->valuedouble);
}

static int is_text(const cJSON *item, const CheckpointField *f) {
    (void)f;
    return cJSON_IsString(item);
}

static int is_array_of(int (*is)(const cJSON *, const CheckpointField *), const cJSON *item,
                       const CheckpointField *f) {
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) > f->capacity) return 0;
    const cJSON *value;
    cJSON_ArrayForEach(value, item) {
        if (!is(value, f)) return 0;
    }
    return 1;
}

static int is_reals(const cJSON *item, const CheckpointField *f) {
    return is_array_of(is_real, item, f);
}

static void read_int(const cJSON *item, const CheckpointField *f) {
    *(int64_t *)f->data = (int64_t)item->valuedouble;
}

static void read_seed(const cJSON *item, const CheckpointField *f) {
    *(uint64_t *)f->data = strtoull(item->valuestring, NULL, 10);
}

static void read_real(const cJSON *item, const CheckpointField *f) {
    *(double *)f->data = item->valuedouble;
}

static void read_text(const cJSON *item, const CheckpointField *f) {
    free(*(char **)f->data);
    *(char **)f->data = xstrdup(item->valuestring);
}

static void read_reals(const cJSON *item, const CheckpointField *f) {
    int n = 0;
    const cJSON *value;
    cJSON_ArrayForEach(value, item)((double *)f->data)[n++] = value->valuedouble;
    *f->count = n;
}

typedef struct {
    const char *name;   // for "expected ..."
    cJSON *(*write)(const CheckpointField *);
    int (*is)(const cJSON *, const CheckpointField *);
    void (*read)(const cJSON *, const CheckpointField *);
} FieldRow;

static int is_counts_if_any(const cJSON *item, const CheckpointField *f) {
    return !item || is_array_of(is_count, item, f);
}

static void read_reals_if_any(const cJSON *item, const CheckpointField *f) {
    *f->count = 0;
    if (item) read_reals(item, f);
}

// clang-format off
static const FieldRow kinds[NUM_FIELD_KINDS] = {
    //               name                          write        is        read
    [FIELD_INT]   = {"a whole number",             write_int,   is_int,   read_int},
    [FIELD_COUNT] = {"a whole number, 0 or more",  write_int,   is_count, read_int},
    [FIELD_SEED]  = {"a string of digits",         write_seed,  is_seed,  read_seed},
    [FIELD_REAL]  = {"a number",                   write_real,  is_real,  read_real},
    [FIELD_TEXT]  = {"a string",                   write_text,  is_text,  read_text},
    [FIELD_REALS] = {"an array of numbers (not too long)", write_reals, is_reals, read_reals},
    [FIELD_COUNTS_IF_ANY] = {"an array of whole numbers, 0 or more (not too long)", write_reals,
                             is_counts_if_any, read_reals_if_any},
};
// clang-format on

/* The members of the state itself are fields like any other. */
static void own_fields(CheckpointState *s, CheckpointField out[NUM_OWN_FIELDS]) {
    const CheckpointField own[NUM_OWN_FIELDS] = {
        {"step", FIELD_COUNT, &s->step, NULL, 0},
        {"position", FIELD_COUNT, &s->position, NULL, 0},
        {"tokens", FIELD_COUNT, &s->tokens, NULL, 0},
        {"seed", FIELD_SEED, &s->seed, NULL, 0},
        {"config", FIELD_TEXT, &s->config, NULL, 0},
    };
    memcpy(out, own, sizeof(own));
}

// --- writing ---

static void write_fields(cJSON *to, const CheckpointField *fields, int count) {
    for (int i = 0; i < count; i++) {
        cJSON_AddItemToObject(to, fields[i].key, kinds[fields[i].kind].write(&fields[i]));
    }
}

static void write_sums(cJSON *to, const FileRecord *files, int count) {
    for (int i = 0; i < count; i++) {
        char crc[16];
        snprintf(crc, sizeof(crc), "%08" PRIx32, files[i].sum.crc);
        cJSON *file = cJSON_AddObjectToObject(to, files[i].name);
        cJSON_AddNumberToObject(file, "bytes", (double)files[i].sum.bytes);
        cJSON_AddStringToObject(file, "crc32", crc);
    }
}

struct StateDraft {
    cJSON *body;   // the object "checkpoint", its "files" empty
};

StateDraft *state_draft(const CheckpointState *state) {
    CheckpointState copy = *state;   // fields point to what a load would write
    CheckpointField own[NUM_OWN_FIELDS];
    own_fields(&copy, own);
    StateDraft *draft = (StateDraft *)xmalloc(sizeof(*draft));
    cJSON *body = draft->body = cJSON_CreateObject();
    cJSON_AddNumberToObject(body, "version", STATE_VERSION);
    write_fields(body, own, NUM_OWN_FIELDS);
    cJSON_AddObjectToObject(body, "files");
    write_fields(cJSON_AddObjectToObject(body, "fields"), state->fields, state->num_fields);
    return draft;
}

void state_draft_free(StateDraft *draft) {
    if (draft) cJSON_Delete(draft->body);
    free(draft);
}

char *state_draft_text(StateDraft *draft, const FileRecord *files, int num_files) {
    write_sums(cJSON_GetObjectItemCaseSensitive(draft->body, "files"), files, num_files);
    char *json = cJSON_Print(draft->body);
    if (!json) die(EXIT_OOM, "out of host memory: state of a checkpoint");
    char head[64];
    snprintf(head, sizeof(head), HEAD, crc32_update(0, json, strlen(json)));
    char *text = format_string("%s%s%s", head, json, TAIL);
    cJSON_free(json);
    return text;
}

// --- reading ---

/* Finds the body's text between head and tail, and compares its CRC. */
static char *split_text(char *text, size_t bytes, char **body, size_t *body_bytes) {
    uint32_t stored = 0;
    char head[64];
    int head_bytes = snprintf(head, sizeof(head), HEAD, stored);
    size_t tail_bytes = strlen(TAIL);
    if (bytes < (size_t)head_bytes + tail_bytes) return format_string("truncated");
    if (sscanf(text, HEAD, &stored) == 1) snprintf(head, sizeof(head), HEAD, stored);
    if (memcmp(text, head, (size_t)head_bytes) != 0) {
        return format_string("does not begin as the state of a checkpoint does");
    }
    *body = text + head_bytes;
    *body_bytes = bytes - (size_t)head_bytes - tail_bytes;
    uint32_t found = crc32_update(0, *body, *body_bytes);
    if (found != stored || memcmp(*body + *body_bytes, TAIL, tail_bytes) != 0) {
        return format_string("damaged: crc32 is %08" PRIx32 ", expected %08" PRIx32, found, stored);
    }
    return NULL;
}

char *state_open(const char *path, StateFile **out) {
    size_t bytes, body_bytes = 0;
    char *body = NULL, *problem, *text = try_read_text_file(path, MAX_STATE, &bytes, &problem);
    if (!text) return problem;
    problem = split_text(text, bytes, &body, &body_bytes);
    cJSON *json = problem ? NULL : cJSON_ParseWithLength(body, body_bytes);
    free(text);
    if (problem) return problem;
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(json, "version");
    if (!cJSON_IsNumber(version) || version->valuedouble != STATE_VERSION) {
        cJSON_Delete(json);
        return format_string("not of format version %d, the one that this program reads",
                             STATE_VERSION);
    }
    *out = (StateFile *)xmalloc(sizeof(**out));
    (*out)->body = json;
    return NULL;
}

void state_close(StateFile *f) {
    cJSON_Delete(f->body);
    free(f);
}

int state_has_file(const StateFile *f, const char *name) {
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(f->body, "files");
    return cJSON_GetObjectItemCaseSensitive(files, name) != NULL;
}

char *state_file_sum(const StateFile *f, const char *name, FileSum *out) {
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(f->body, "files");
    const cJSON *file = cJSON_GetObjectItemCaseSensitive(files, name);
    out->bytes = json_count(cJSON_GetObjectItemCaseSensitive(file, "bytes"));
    const char *crc = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(file, "crc32"));
    if (out->bytes < 0 || !crc || sscanf(crc, "%8" SCNx32, &out->crc) != 1) {
        return format_string("no size and crc32 of %s", name);
    }
    return NULL;
}

static char *check_fields(const cJSON *from, const CheckpointField *fields, int count) {
    for (int i = 0; i < count; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, fields[i].key);
        if (kinds[fields[i].kind].is(item, &fields[i])) continue;
        return format_string("'%s' is %s, expected %s", fields[i].key,
                             item ? "something else" : "missing", kinds[fields[i].kind].name);
    }
    return NULL;
}

static void read_fields(const cJSON *from, const CheckpointField *fields, int count) {
    for (int i = 0; i < count; i++) {
        kinds[fields[i].kind].read(cJSON_GetObjectItemCaseSensitive(from, fields[i].key),
                                   &fields[i]);
    }
}

char *state_check(const StateFile *f, const CheckpointState *state) {
    CheckpointState copy = *state;
    CheckpointField own[NUM_OWN_FIELDS];
    own_fields(&copy, own);
    char *problem = check_fields(f->body, own, NUM_OWN_FIELDS);
    if (problem) return problem;
    return check_fields(cJSON_GetObjectItemCaseSensitive(f->body, "fields"), state->fields,
                        state->num_fields);
}

void state_restore(const StateFile *f, CheckpointState *state) {
    CheckpointField own[NUM_OWN_FIELDS];
    own_fields(state, own);
    read_fields(f->body, own, NUM_OWN_FIELDS);
    read_fields(cJSON_GetObjectItemCaseSensitive(f->body, "fields"), state->fields,
                state->num_fields);
}
