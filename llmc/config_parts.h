/*
config_parts -- what the files of config share and nobody else includes:
  config_keys.c     the table of keys           config_presets.c  the table of presets
  config_json.c     text to JSON, positions     config_value.c    one value in and out of a Config
  config.c          sources in their order      config_check.c    what must hold between keys
  config_help.c     the tables as text for users
  config_changes.c  two configs compared
*/
#ifndef LLMC_CONFIG_PARTS_H
#define LLMC_CONFIG_PARTS_H

#include <cjson/cJSON.h>

#include "common.h"
#include "config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- keys --- */

typedef enum {
    KIND_INT, KIND_INT64, KIND_FLOAT, KIND_DOUBLE, KIND_BOOL, KIND_ENUM, KIND_STRING, KIND_PRESET,
    KIND_RECIPE,
    KIND_PAIR,      // two floats
    KIND_SEED,      // uint64_t
    KIND_SOURCES, KIND_RULES, KIND_SCHEDULE,   // lists come last
    NUM_KINDS
} ValueKind;

#define CONFIG_MAX_COUNT 9007199254740992.0   // 2^53: a JSON number holds all integers up to it

enum { OPEN_MIN = 1, OPEN_MAX = 2 };   // the end of the range is not in it

typedef struct {
    const char *name;        // "model.layers"
    ValueKind kind;
    size_t offset, bytes;    // of the value in Config
    const char *initial;     // default, as one would write it after KEY=
    double min, max;         // of numbers and of both values of a pair
    const char *help;        // one line, with the unit
    const char *elsewhere;   // what llm.c and nanoGPT call it; NULL where they have none
    int open;                // OPEN_MIN | OPEN_MAX
    // setting one such key takes back what earlier sources gave the others
    int exclusive;
    // KIND_ENUM: the first text, and how far apart they lie in their table
    const char *const *names;
    size_t name_stride;
    int num_names;
} ConfigKey;

extern const ConfigKey config_keys[];
extern const int num_config_keys;
/* Text number i that the value of a key can have, NULL past the last. */
const char *config_choice(const ConfigKey *key, int i);
const ConfigKey *config_key_find(const char *name);
/* 1 when keys begin with "NAME.": "optim", "precision.keep_bf16", "precision.wgrad.x". */
int config_is_group(const char *name);
/* Splits "precision.GEMM.OPERAND.FIELD", which stands for one rule on every layer. 0: it is not. */
int config_cell_key(const char *name, GemmKind *gemm, const char **operand, const char **field);

typedef struct {
    const char *name, *summary;
    const char *settings;   // "KEY=VALUE KEY=VALUE ..."
} Preset;
extern const Preset presets[];
extern const int num_presets;
const Preset *preset_find(const char *name);

/* --- JSON --- */

enum { CONFIG_DEPTH = 10 };   // members and elements down to a value; no key lies deeper

/* A place in a source, for messages. A path has the number of the member or element at each depth,
   from the root on: names would not tell duplicates apart. */
typedef struct {
    const char *file;        // NULL: a word of the command line
    const char *text;        // of the file
    char key[128];           // dotted, "precision.rules[1].hadamard"
    int path[CONFIG_DEPTH];
    int depth;
} Where;

/* "config: FILE:LINE:COLUMN: key "KEY" MESSAGE", or "command line" for the position. */
void config_fail(const Where *w, const char *format, ...) NORETURN PRINTF_LIKE(2, 3);
/* A member of an object, or with name NULL an element of a list. */
Where where_child(const Where *w, int index, const char *name);
/* Line of a place, and its column if not NULL, both from 1; columns count bytes. */
int where_line(const Where *w, int *column);
/* Dies when two members of the object have the same name. */
void config_refuse_duplicates(const cJSON *object, const Where *w);

/* Parses text that is one JSON object (caller deletes). Comments are overwritten by spaces. Dies
   naming `file` and the position. */
cJSON *config_json_parse(const char *file, char *text, size_t bytes);
/* Caller frees. Dies with EXIT_CONFIG when there is no such file. */
char *config_read_file(const char *path, size_t *bytes);

/* --- values --- */

void config_set(Config *c, const ConfigKey *key, const cJSON *value, const Where *w);
/* What is written after KEY= as the value that JSON would have; caller deletes. */
cJSON *config_word_value(const ConfigKey *key, const char *text, const Where *w);
cJSON *config_get(const Config *c, const ConfigKey *key);
/* rule_set on the text of a string, number, true or false; dies for what is not legal. */
void config_set_rule(Rule *rule, const char *key, const cJSON *value, const Where *w);
/* The rule that an object's members make, but for those named in `others` (NULL ends them). */
Rule config_rule_of(const cJSON *object, const Where *w, const char *const *others);
/* Dies for a rule that sets nothing. */
void config_refuse_idle_rule(const Rule *rule, const Where *w);
/* Adds what config_rule_of would read. */
void config_add_rule(cJSON *object, const Rule *rule);
/* With the fewest digits that read back as the same float. */
cJSON *config_number_of_float(float x);
/* precision.schedule (config_schedule.c). */
void config_set_schedule(void *at, const ConfigKey *key, const cJSON *value, const Where *w);
cJSON *config_get_schedule(const void *at, const ConfigKey *key);
extern const char config_schedule_legal[];
/* "1 to 4096", "a, b, c": what a value of the key may be. Returns buffer. */
const char *config_legal(const ConfigKey *key, char *buffer, int size);
void config_free_sources(SourceList *list);

/* --- checks --- */

/* Fills in what is derived and dies when keys contradict each other. layers_given: 1 when a source
   sets model.layers. */
void config_finish(Config *c, int layers_given);

#ifdef __cplusplus
}
#endif
#endif
