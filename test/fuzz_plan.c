/*
fuzz_plan -- what the sizes of a config are multiplied to: an input is words of the command line,
one a line. Of a config that the parser takes, the model is declared, its memory measured and a
step on `ranks` GPUs predicted, by the products that a file of another could have made too large.
What no machine holds may be refused as out of memory.
*/
#include <stdlib.h>
#include <string.h>

#include "../llmc/ops.h"
#include "../llmc/plan.h"
#include "../llmc/predict.h"
#include "fuzzing.h"

enum { MAX_WORDS = 32, NUM_RANKS = 3, MAX_LAYERS = 16 };   // more layers only add up

/* Splits the lines of `text` in place. A word without = would be the path of some file. */
static int split_words(char *text, char **words) {
    int count = 0;
    for (char *word = strtok(text, "\n"); word && count < MAX_WORDS; word = strtok(NULL, "\n")) {
        if (strchr(word, '=')) words[count++] = word;
    }
    return count;
}

static Device *device;

/* Before any input, whose memory goes with it. */
__attribute__((constructor)) static void open_device(void) { device = device_cpu_open(1); }

static void plan(const Config *c, int ranks) {
    Model m;
    memset(&m, 0, sizeof(m));
    config_accumulation(c, ranks);
    model_declare(&m, c);
    model_split(&m, c, 0, ranks);
    model_measure(&m, c, device, &ops_cpu, 1);
    CHECK(plan_memory_bytes(&m) > 0, "no memory");
    free(plan_memory_text(&m));
    free(plan_precision_text(&m, 1, NULL));
    free(predict_text(&m, c, ranks, 10));
    model_free(&m);
}

void fuzz_input(const uint8_t *data, size_t size) {
    static const int ranks[NUM_RANKS] = {1, 3, 64};
    char *text = (char *)xmalloc(size + 1), *words[MAX_WORDS];
    if (size > 0) memcpy(text, data, size);
    Config c;
    config_parse(&c, split_words(text, words), words);
    fuzz_refuses_also(EXIT_OOM);
    for (int i = 0; i < NUM_RANKS && c.model.layers <= MAX_LAYERS; i++) plan(&c, ranks[i]);
    config_free(&c);
    free(text);
}
