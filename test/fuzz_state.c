/*
fuzz_state -- the state.json of a checkpoint. An input that begins with { is the object that the
CRC-32 covers, which is put around it; every other is the whole file. What the reader takes is
restored, written again and read back as the same.
*/
#include <stdlib.h>
#include <string.h>

#include "../llmc/checkpoint_state.h"
#include "fuzzing.h"

enum { NUM_FIELDS = 6, CAPACITY = 4 };

/* A state with a field of each kind. */
typedef struct {
    int64_t whole;
    uint64_t seed;
    double real, reals[CAPACITY], more[CAPACITY];
    int num_reals, num_more;
    char *text;
    CheckpointField fields[NUM_FIELDS];
    CheckpointState state;
} Everything;

static void everything_init(Everything *e) {
    memset(e, 0, sizeof(*e));
    const CheckpointField fields[NUM_FIELDS] = {
        {"whole", FIELD_INT, &e->whole, NULL, 0},
        {"seed", FIELD_SEED, &e->seed, NULL, 0},
        {"real", FIELD_REAL, &e->real, NULL, 0},
        {"text", FIELD_TEXT, &e->text, NULL, 0},
        {"reals", FIELD_REALS, e->reals, &e->num_reals, CAPACITY},
        {"more", FIELD_COUNTS_IF_ANY, e->more, &e->num_more, CAPACITY},
    };
    memcpy(e->fields, fields, sizeof(fields));
    e->state.fields = e->fields;
    e->state.num_fields = NUM_FIELDS;
}

static void everything_free(Everything *e) {
    free(e->text);
    free(e->state.config);
}

static void put_state(const char *text, size_t bytes) { fuzz_put_file("state.json", text, bytes); }

static void put_with_crc(const uint8_t *data, size_t size) {
    char head[64];
    int head_bytes =
        snprintf(head, sizeof(head),
                 "{\"crc32\": \"%08x\", \"checkpoint\": ", (unsigned)crc32_update(0, data, size));
    char *text = (char *)xmalloc((size_t)head_bytes + size + 2);
    memcpy(text, head, (size_t)head_bytes);
    memcpy(text + head_bytes, data, size);
    memcpy(text + head_bytes + size, "}\n", 2);
    put_state(text, (size_t)head_bytes + size + 2);
    free(text);
}

/* Reads the file into `e`; 0 where it is refused. */
static int restore(Everything *e) {
    StateFile *f = NULL;
    char *problem = state_open(fuzz_path("state.json"), &f);
    if (!problem) {
        FileSum sum;
        problem = state_check(f, &e->state);
        if (state_has_file(f, "model.safetensors")) {
            free(state_file_sum(f, "model.safetensors", &sum));
        }
        if (!problem) state_restore(f, &e->state);
        state_close(f);
    }
    free(problem);
    return problem == NULL;
}

/* The text of the state as it would be saved. */
static char *saved_text(const Everything *e) {
    const FileRecord files[] = {{"model.safetensors", {1024, 0x89abcdef}}};
    StateDraft *draft = state_draft(&e->state);
    char *text = state_draft_text(draft, files, ARRAY_LEN(files));
    state_draft_free(draft);
    return text;
}

void fuzz_input(const uint8_t *data, size_t size) {
    if (size > 0 && data[0] == '{') put_with_crc(data, size);
    else put_state((const char *)data, size);
    Everything found, again;
    everything_init(&found);
    everything_init(&again);
    if (restore(&found)) {
        const CheckpointState *s = &found.state;
        CHECK(s->step >= 0 && s->position >= 0 && s->tokens >= 0, "step %lld, position %lld",
              (long long)s->step, (long long)s->position);
        for (int i = 0; i < found.num_more; i++)
            CHECK((double)(int64_t)found.more[i] == found.more[i] && found.more[i] >= 0, "%g",
                  found.more[i]);
        char *text = saved_text(&found);
        put_state(text, strlen(text));
        CHECK(restore(&again), "what was saved is refused:\n%s", text);
        char *repeated = saved_text(&again);
        CHECK(strcmp(text, repeated) == 0, "saved\n%s\nreads back as\n%s", text, repeated);
        free(repeated);
        free(text);
    }
    everything_free(&found);
    everything_free(&again);
}
