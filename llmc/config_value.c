/*
config_value -- one value into and out of a Config, by its kind. One row a kind: what it is called,
how it is set from JSON, how it is written as JSON.
*/
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config_parts.h"

typedef struct {
    const char *name;   // as in "expected a number"
    void (*set)(void *at, const ConfigKey *key, const cJSON *value, const Where *w);
    cJSON *(*get)(const void *at, const ConfigKey *key);
} KindInfo;
static const KindInfo kinds[NUM_KINDS];

/* --- messages --- */

static const char *type_name(const cJSON *value) {
    if (cJSON_IsBool(value)) return "true or false";
    if (cJSON_IsNumber(value)) return "a number";
    if (cJSON_IsString(value)) return "a string";
    if (cJSON_IsArray(value)) return "a list";
    if (cJSON_IsObject(value)) return "an object";
    return "null";
}

static void fail_type(const ConfigKey *key, const cJSON *value, const Where *w) NORETURN;
static void fail_type(const ConfigKey *key, const cJSON *value, const Where *w) {
    char legal[512];
    config_legal(key, legal, sizeof(legal));
    config_fail(w, "is %s, expected %s; legal: %s", type_name(value), kinds[key->kind].name, legal);
}

static const char *range_text(const ConfigKey *key, char *buffer, int size) {
    if (key->max >= CONFIG_MAX_COUNT) {
        snprintf(buffer, size, "at least %g", key->min);
    } else if (key->open & OPEN_MIN) {
        snprintf(buffer, size, "above %.10g, up to %.10g", key->min, key->max);
    } else {
        snprintf(buffer, size, "%.10g to %s%.10g", key->min, key->open & OPEN_MAX ? "below " : "",
                 key->max);
    }
    return buffer;
}

static const char *choices_text(const ConfigKey *key, char *buffer, int size) {
    int at = 0;
    for (int i = 0; config_choice(key, i) && at < size; i++) {
        const char *choice = config_choice(key, i), *quote = strchr(choice, ' ') ? "\"" : "";
        at += snprintf(buffer + at, (size_t)(size - at), "%s%s%s%s", i ? ", " : "", quote, choice,
                       quote);
    }
    return buffer;
}

const char *config_legal(const ConfigKey *key, char *buffer, int size) {
    char range[128];
    switch (key->kind) {
    case KIND_INT:
    case KIND_INT64:
    case KIND_FLOAT:
    case KIND_DOUBLE: return range_text(key, buffer, size);
    case KIND_ENUM:
    case KIND_PRESET:
    case KIND_RECIPE: return choices_text(key, buffer, size);
    case KIND_PAIR:
        snprintf(buffer, size, "[a, b], each %s", range_text(key, range, sizeof(range)));
        return buffer;
    case KIND_STRING: snprintf(buffer, size, "up to %d bytes", (int)key->bytes - 1); return buffer;
    case KIND_BOOL: snprintf(buffer, size, "true, false"); return buffer;
    case KIND_SEED:
        snprintf(buffer, size, "0 to 2^53 - 1, or a string of digits below 2^64");
        return buffer;
    case KIND_SOURCES:
        snprintf(buffer, size,
                 "a glob, or a list of globs and {\"path\": glob, \"weight\": above 0}");
        return buffer;
    case KIND_RULES:
        snprintf(buffer, size, "a list of objects with some of %s", rule_keys());
        return buffer;
    case KIND_SCHEDULE: snprintf(buffer, size, "%s", config_schedule_legal); return buffer;
    case NUM_KINDS: break;
    }
    CHECK(0, "kind %d", key->kind);
    return NULL;
}

/* --- numbers --- */

static double checked_number(const ConfigKey *key, const cJSON *value, const Where *w) {
    if (!cJSON_IsNumber(value)) fail_type(key, value, w);
    double x = value->valuedouble, min = key->min, max = key->max;
    int is_whole = key->kind == KIND_INT || key->kind == KIND_INT64;
    if (is_whole && isfinite(x) && x != floor(x)) {
        config_fail(w, "is %.10g, expected a whole number", x);
    }
    if (key->kind == KIND_FLOAT || key->kind == KIND_PAIR) {   // what counts is the rounded value
        x = (float)x;
        min = (float)min;
        max = (float)max;
    }
    int above = key->open & OPEN_MIN ? x > min : x >= min;
    int below = key->open & OPEN_MAX ? x < max : x <= max;
    if (above && below) return x;   // not for NaN
    char legal[128];
    config_fail(w, "is %.10g; legal: %s", value->valuedouble,
                range_text(key, legal, sizeof(legal)));
}

static void set_int(void *at, const ConfigKey *key, const cJSON *value, const Where *w) {
    *(int *)at = (int)checked_number(key, value, w);
}

static void set_int64(void *at, const ConfigKey *key, const cJSON *value, const Where *w) {
    *(int64_t *)at = (int64_t)checked_number(key, value, w);
}

static void set_float(void *at, const ConfigKey *key, const cJSON *value, const Where *w) {
    *(float *)at = (float)checked_number(key, value, w);
}

static void set_double(void *at, const ConfigKey *key, const cJSON *value, const Where *w) {
    *(double *)at = checked_number(key, value, w);
}

static void set_pair(void *at, const ConfigKey *key, const cJSON *value, const Where *w) {
    if (!cJSON_IsArray(value)) fail_type(key, value, w);
    int count = cJSON_GetArraySize(value);
    if (count != 2) config_fail(w, "has %d values, expected 2", count);
    for (int i = 0; i < 2; i++) {
        Where element = where_child(w, i, NULL);
        ((float *)at)[i] = (float)checked_number(key, cJSON_GetArrayItem(value, i), &element);
    }
}

/* cJSON itself prints 15 digits, which are not always enough. */
static cJSON *number_of_int(int64_t x) {
    char text[32];
    snprintf(text, sizeof(text), "%lld", (long long)x);
    return cJSON_CreateRaw(text);
}

static cJSON *get_int(const void *at, const ConfigKey *key) {
    (void)key;
    return number_of_int(*(const int *)at);
}

static cJSON *get_int64(const void *at, const ConfigKey *key) {
    (void)key;
    return number_of_int(*(const int64_t *)at);
}

/* The shortest decimals that read back as the same value: 0.1, not 0.10000000149011612. */
static cJSON *number_of_double(double x) {
    char text[32];
    int digits = 1;
    do snprintf(text, sizeof(text), "%.*g", digits, x);
    while (strtod(text, NULL) != x && ++digits <= 17);
    return cJSON_CreateRaw(text);
}

cJSON *config_number_of_float(float x) {
    char text[32];
    int digits = 1;
    do snprintf(text, sizeof(text), "%.*g", digits, x);
    while ((float)strtod(text, NULL) != x && ++digits <= 9);
    return cJSON_CreateRaw(text);
}

static cJSON *get_float(const void *at, const ConfigKey *key) {
    (void)key;
    return config_number_of_float(*(const float *)at);
}

static cJSON *get_double(const void *at, const ConfigKey *key) {
    (void)key;
    return number_of_double(*(const double *)at);
}

static cJSON *get_pair(const void *at, const ConfigKey *key) {
    (void)key;
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < 2; i++) {
        cJSON_AddItemToArray(list, config_number_of_float(((const float *)at)[i]));
    }
    return list;
}

/* A string of digits holds all 64 bits; a JSON number only integers below 2^53. */
static void set_seed(void *at, const ConfigKey *key, const cJSON *value, const Where *w) {
    if (cJSON_IsNumber(value)) {
        double x = value->valuedouble;
        if (!(x >= 0 && x < CONFIG_MAX_COUNT && x == floor(x))) {
            char legal[128];
            config_fail(w, "is %.17g; legal: %s", x, config_legal(key, legal, sizeof(legal)));
        }
        *(uint64_t *)at = (uint64_t)x;
        return;
    }
    if (!cJSON_IsString(value)) fail_type(key, value, w);
    const char *text = value->valuestring;
    errno = 0;
    unsigned long long seed = strtoull(text, NULL, 10);
    if (!*text || strspn(text, "0123456789") != strlen(text) || errno) {
        char legal[128];
        config_fail(w, "is \"%.64s\"; legal: %s", text, config_legal(key, legal, sizeof(legal)));
    }
    *(uint64_t *)at = seed;
}

static cJSON *get_seed(const void *at, const ConfigKey *key) {
    (void)key;
    uint64_t seed = *(const uint64_t *)at;
    if ((double)seed < CONFIG_MAX_COUNT) return number_of_int((int64_t)seed);
    char text[32];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)seed);
    return cJSON_CreateString(text);
}

/* --- choices and text --- */

static void set_bool(void *at, const ConfigKey *key, const cJSON *value, const Where *w) {
    if (!cJSON_IsBool(value)) fail_type(key, value, w);
    *(int *)at = cJSON_IsTrue(value);
}

static cJSON *get_bool(const void *at, const ConfigKey *key) {
    (void)key;
    return cJSON_CreateBool(*(const int *)at);
}

/* 1 for texts that differ in case, spaces and dashes at most: "rtx5090" and "RTX 5090". */
static int is_alike(const char *a, const char *b) {
    for (;; a++, b++) {
        a += strspn(a, " -_");
        b += strspn(b, " -_");
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b)) return 0;
        if (!*a) return 1;
    }
}

/* Presets and recipes are names, and are what they are. */
static int checked_choice(const ConfigKey *key, const cJSON *value, const Where *w) {
    if (!cJSON_IsString(value)) fail_type(key, value, w);
    int exactly = key->kind != KIND_ENUM;
    for (int i = 0; config_choice(key, i); i++) {
        const char *choice = config_choice(key, i), *given = value->valuestring;
        if (exactly ? strcmp(choice, given) == 0 : is_alike(choice, given)) return i;
    }
    char legal[512];
    config_fail(w, "is \"%.64s\"; legal: %s", value->valuestring,
                config_legal(key, legal, sizeof(legal)));
}

/* Enumerations without a negative value are unsigned here, of the size of an int. */
static void set_enum(void *at, const ConfigKey *key, const cJSON *value, const Where *w) {
    int choice = checked_choice(key, value, w);
    memcpy(at, &choice, sizeof(choice));
}

static cJSON *get_enum(const void *at, const ConfigKey *key) {
    int choice;
    memcpy(&choice, at, sizeof(choice));
    return cJSON_CreateString(config_choice(key, choice));
}

static void set_recipe(void *at, const ConfigKey *key, const cJSON *value, const Where *w) {
    *(const Recipe **)at = &recipes[checked_choice(key, value, w)];
}

static cJSON *get_recipe(const void *at, const ConfigKey *key) {
    (void)key;
    return cJSON_CreateString((*(const Recipe *const *)at)->name);
}

static void set_string(void *at, const ConfigKey *key, const cJSON *value, const Where *w) {
    if (!cJSON_IsString(value)) fail_type(key, value, w);
    size_t length = strlen(value->valuestring);
    if (length >= key->bytes) {
        config_fail(w, "has %zu bytes; legal: up to %zu", length, key->bytes - 1);
    }
    memcpy(at, value->valuestring, length + 1);
}

static cJSON *get_string(const void *at, const ConfigKey *key) {
    (void)key;
    return cJSON_CreateString((const char *)at);
}

static void set_preset(void *at, const ConfigKey *key, const cJSON *value, const Where *w) {
    int is_none = cJSON_IsString(value) && value->valuestring[0] == '\0';
    const char *name = is_none ? "" : presets[checked_choice(key, value, w)].name;
    snprintf((char *)at, key->bytes, "%s", name);
}

/* --- lists --- */

void config_free_sources(SourceList *list) {
    for (int i = 0; i < list->count; i++) free(list->items[i].path);
    free(list->items);
    list->items = NULL;
    list->count = 0;
}

static char *source_path(const cJSON *value, const Where *w) {
    if (!cJSON_IsString(value)) config_fail(w, "is %s, expected a path or glob", type_name(value));
    if (!value->valuestring[0]) config_fail(w, "is empty, expected a path or glob");
    return xstrdup(value->valuestring);
}

static SourceConfig source_of(const ConfigKey *key, const cJSON *value, const Where *w) {
    SourceConfig source = {NULL, 1};
    if (!cJSON_IsObject(value)) {
        source.path = source_path(value, w);
        return source;
    }
    config_refuse_duplicates(value, w);
    int i = 0;
    for (const cJSON *member = value->child; member; member = member->next, i++) {
        Where here = where_child(w, i, member->string);
        if (strcmp(member->string, "path") == 0) {
            source.path = source_path(member, &here);
        } else if (strcmp(member->string, "weight") == 0) {
            source.weight = cJSON_IsNumber(member) ? member->valuedouble : 0;
            if (!(source.weight > 0 && source.weight <= 1e9)) {
                config_fail(&here, "must be a number above 0, up to 1e9");
            }
        } else {
            config_fail(&here, "is unknown; an entry of %s has \"path\" and \"weight\"", key->name);
        }
    }
    if (!source.path) config_fail(w, "has no \"path\"");
    return source;
}

static void set_sources(void *at, const ConfigKey *key, const cJSON *value, const Where *w) {
    SourceList *list = (SourceList *)at;
    if (!cJSON_IsString(value) && !cJSON_IsArray(value)) fail_type(key, value, w);
    config_free_sources(list);
    int count = cJSON_IsArray(value) ? cJSON_GetArraySize(value) : 1;
    list->items = (SourceConfig *)xmalloc((size_t)count * sizeof(SourceConfig));
    if (cJSON_IsString(value)) {
        list->items[list->count++] = source_of(key, value, w);
        return;
    }
    for (const cJSON *item = value->child; item; item = item->next) {
        Where element = where_child(w, list->count, NULL);
        list->items[list->count] = source_of(key, item, &element);
        list->count++;
    }
}

static cJSON *get_sources(const void *at, const ConfigKey *key) {
    (void)key;
    const SourceList *list = (const SourceList *)at;
    cJSON *array = cJSON_CreateArray();
    for (int i = 0; i < list->count; i++) {
        cJSON *source = cJSON_CreateObject();
        cJSON_AddStringToObject(source, "path", list->items[i].path);
        cJSON_AddItemToObject(source, "weight", number_of_double(list->items[i].weight));
        cJSON_AddItemToArray(array, source);
    }
    return array;
}

void config_set_rule(Rule *rule, const char *key, const cJSON *value, const Where *w) {
    char number[32];
    const char *text = NULL;
    if (cJSON_IsString(value)) text = value->valuestring;
    if (cJSON_IsBool(value)) text = cJSON_IsTrue(value) ? "1" : "0";
    if (cJSON_IsNumber(value)) {
        snprintf(number, sizeof(number), "%.15g", value->valuedouble);
        text = number;
    }
    if (!text) config_fail(w, "is %s, expected a string or a number", type_name(value));
    const char *error = rule_set(rule, key, text);
    if (error) config_fail(w, "is refused: %s", error);
}

static int is_among(const char *name, const char *const *names) {
    while (names && *names && strcmp(*names, name) != 0) names++;
    return names && *names;
}

Rule config_rule_of(const cJSON *value, const Where *w, const char *const *others) {
    if (!cJSON_IsObject(value)) {
        config_fail(w, "is %s, expected an object with some of %s", type_name(value), rule_keys());
    }
    config_refuse_duplicates(value, w);
    Rule rule = rule_default();
    int i = 0;
    for (const cJSON *member = value->child; member; member = member->next, i++) {
        if (is_among(member->string, others)) continue;
        Where here = where_child(w, i, member->string);
        config_set_rule(&rule, member->string, member, &here);
    }
    const char *error = rule_error(&rule);
    if (error) config_fail(w, "changes nothing: %s", error);
    return rule;
}

void config_refuse_idle_rule(const Rule *rule, const Where *w) {
    if (rule_sets(rule)) return;
    config_fail(w, "changes nothing: it says where, but not what; give it a \"recipe\", or a field "
                   "of operands such as \"format\"; `help precision.rules` lists them");
}

static void set_rules(void *at, const ConfigKey *key, const cJSON *value, const Where *w) {
    RuleList *list = (RuleList *)at;
    if (!cJSON_IsArray(value)) fail_type(key, value, w);
    int count = cJSON_GetArraySize(value);
    free(list->items);
    list->items = (Rule *)xmalloc((size_t)count * sizeof(Rule));
    list->count = 0;
    for (const cJSON *item = value->child; item; item = item->next) {
        Where element = where_child(w, list->count, NULL);
        list->items[list->count] = config_rule_of(item, &element, NULL);
        config_refuse_idle_rule(&list->items[list->count], &element);
        list->count++;
    }
}

void config_add_rule(cJSON *object, const Rule *rule) {
    for (int k = 0; rule_key(k); k++) {
        const char *text = rule_get(rule, rule_key(k));
        if (text) cJSON_AddStringToObject(object, rule_key(k), text);
    }
}

static cJSON *get_rules(const void *at, const ConfigKey *key) {
    (void)key;
    const RuleList *list = (const RuleList *)at;
    cJSON *array = cJSON_CreateArray();
    for (int i = 0; i < list->count; i++) {
        cJSON *rule = cJSON_CreateObject();
        config_add_rule(rule, &list->items[i]);
        cJSON_AddItemToArray(array, rule);
    }
    return array;
}

/* --- by kind --- */

static const KindInfo kinds[NUM_KINDS] = {
    [KIND_INT] = {"a whole number", set_int, get_int},
    [KIND_INT64] = {"a whole number", set_int64, get_int64},
    [KIND_FLOAT] = {"a number", set_float, get_float},
    [KIND_DOUBLE] = {"a number", set_double, get_double},
    [KIND_BOOL] = {"true or false", set_bool, get_bool},
    [KIND_ENUM] = {"a name", set_enum, get_enum},
    [KIND_STRING] = {"a string", set_string, get_string},
    [KIND_PRESET] = {"a name", set_preset, get_string},
    [KIND_RECIPE] = {"a name", set_recipe, get_recipe},
    [KIND_PAIR] = {"a list of two numbers", set_pair, get_pair},
    [KIND_SEED] = {"a whole number", set_seed, get_seed},
    [KIND_SOURCES] = {"a glob or a list", set_sources, get_sources},
    [KIND_RULES] = {"a list", set_rules, get_rules},
    [KIND_SCHEDULE] = {"a list", config_set_schedule, config_get_schedule},
};

void config_set(Config *c, const ConfigKey *key, const cJSON *value, const Where *w) {
    kinds[key->kind].set((char *)c + key->offset, key, value, w);
}

cJSON *config_get(const Config *c, const ConfigKey *key) {
    return kinds[key->kind].get((const char *)c + key->offset, key);
}

/* --- words of the command line --- */

static cJSON *json_word(const ConfigKey *key, const char *text, const Where *w) {
    cJSON *value = cJSON_ParseWithOpts(text, NULL, 1);
    if (!value) {
        config_fail(w, "is not JSON: %.64s; expected %s", text, kinds[key->kind].name);
    }
    return value;
}

static cJSON *number_word(const ConfigKey *key, const char *text, const Where *w) {
    char *end = NULL;
    double x = strtod(text, &end);
    // strtod also takes hexadecimal, infinity and leading space.
    if (!*text || *end || strspn(text, "0123456789+-.eE") != strlen(text)) {
        char legal[128];
        config_fail(w, "is \"%.64s\", expected %s; legal: %s", text, kinds[key->kind].name,
                    config_legal(key, legal, sizeof(legal)));
    }
    return cJSON_CreateNumber(x);
}

static cJSON *bool_word(const char *text, const Where *w) {
    int is_true = !strcmp(text, "true") || !strcmp(text, "1");
    if (!is_true && strcmp(text, "false") && strcmp(text, "0")) {
        config_fail(w, "is \"%.64s\"; legal: true, false", text);
    }
    return cJSON_CreateBool(is_true);
}

cJSON *config_word_value(const ConfigKey *key, const char *text, const Where *w) {
    switch (key->kind) {
    case KIND_INT:
    case KIND_INT64:
    case KIND_FLOAT:
    case KIND_DOUBLE: return number_word(key, text, w);
    case KIND_BOOL: return bool_word(text, w);
    case KIND_PAIR:
    case KIND_RULES:
    case KIND_SCHEDULE: return json_word(key, text, w);
    case KIND_SOURCES:
        if (!text[0]) return cJSON_CreateArray();
        if (text[0] == '[') return json_word(key, text, w);
        return cJSON_CreateString(text);
    default: return cJSON_CreateString(text);
    }
}
