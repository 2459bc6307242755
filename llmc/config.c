/*
config -- from the words of the command line to a Config: reads files and what they extend, flattens
them to settings (a key, a value, a place), and applies these in the order of precedence. What keys
exist and what a value may be is not known here.
*/
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "config_parts.h"

typedef struct {
    const ConfigKey *key;   // NULL: precision.GEMM.OPERAND.FIELD
    const cJSON *value;     // of one of the parser's documents
    Where where;
    int source;   // counts files and words; 0: defaults and preset
} Setting;

typedef struct {
    Setting *items;
    int count;
} SettingList;

/* A file that was read, or the value of a word. Settings point into it. */
typedef struct {
    char *path, *real_path, *text;   // NULL for a word
    cJSON *json;
    int open;   // 1 while the files it extends are read
} Document;

typedef struct {
    Config *config;
    Document *documents;
    int num_documents;
    // in this order they are applied
    SettingList extended, files, words;
    int *set_by;                                    // [num_config_keys] source of each key's value
    Rule *cells;                                    // of precision.GEMM.OPERAND.FIELD keys
    char (*cell_keys)[sizeof(((Where *)0)->key)];   // [num_cells]
    int num_cells;
} Parser;

/* --- sources to settings --- */

static Document *add_document(Parser *p) {
    size_t bytes = (size_t)(p->num_documents + 1) * sizeof(Document);
    p->documents = (Document *)xrealloc(p->documents, bytes);
    Document *d = &p->documents[p->num_documents++];
    memset(d, 0, sizeof(*d));
    return d;
}

static void add_setting(SettingList *list, const Setting *s) {
    list->items = (Setting *)xrealloc(list->items, (size_t)(list->count + 1) * sizeof(Setting));
    list->items[list->count++] = *s;
}

static void fail_unknown(const Where *w) NORETURN;
static void fail_unknown(const Where *w) {
    char suggestion[256];
    config_fail(w, "is unknown%s", config_suggestion(w->key, suggestion, sizeof(suggestion)));
}

static int is_cell_key(const char *name) {
    GemmKind gemm;
    const char *operand, *field;
    return config_cell_key(name, &gemm, &operand, &field);
}

static void refuse_repeated(const SettingList *list, const Setting *s) {
    for (int i = 0; i < list->count; i++) {
        const Setting *other = &list->items[i];
        if (other->source != s->source || strcmp(other->where.key, s->where.key) != 0) continue;
        config_fail(&s->where, "is given twice; the first is in line %d",
                    where_line(&other->where, NULL));
    }
}

/* Appends one setting for each key below an object, whether nested or dotted. */
static void flatten(SettingList *list, const cJSON *object, const Where *w, int source) {
    config_refuse_duplicates(object, w);
    int i = 0;
    for (const cJSON *member = object->child; member; member = member->next, i++) {
        if (w->depth == 0 && strcmp(member->string, "extends") == 0) continue;
        Setting s = {NULL, member, where_child(w, i, member->string), source};
        s.key = config_key_find(s.where.key);
        if (s.key || is_cell_key(s.where.key)) {
            refuse_repeated(list, &s);
            add_setting(list, &s);
        } else if (!config_is_group(s.where.key)) {
            fail_unknown(&s.where);
        } else if (!cJSON_IsObject(member)) {
            config_fail(&s.where, "is a group of keys, expected an object; see `help %s`",
                        s.where.key);
        } else {
            flatten(list, member, &s.where, source);
        }
    }
}

static void add_file(Parser *p, SettingList *list, const char *path, const Where *from);

/* "extends": a path or a list of paths, relative to the file that says so. */
static void add_extended(Parser *p, const cJSON *value, const Where *w) {
    if (cJSON_IsArray(value)) {
        int i = 0;
        for (const cJSON *item = value->child; item; item = item->next, i++) {
            Where element = where_child(w, i, NULL);
            if (!cJSON_IsString(item)) config_fail(&element, "must be the path of a JSON file");
            add_extended(p, item, &element);
        }
        return;
    }
    if (!cJSON_IsString(value)) config_fail(w, "must be a path or a list of paths of JSON files");
    const char *slash = strrchr(w->file, '/');
    int folder = slash && value->valuestring[0] != '/' ? (int)(slash + 1 - w->file) : 0;
    char *path = format_string("%.*s%s", folder, w->file, value->valuestring);
    add_file(p, &p->extended, path, w);
    free(path);
}

/* 1 when an extended file was read before: what two files extend counts once. */
static int is_known(const Parser *p, const char *real_path, const Where *from) {
    for (int i = 0; i < p->num_documents; i++) {
        const Document *d = &p->documents[i];
        if (!d->real_path || strcmp(d->real_path, real_path) != 0) continue;
        if (d->open) config_fail(from, "is a circle: %s extends itself", d->path);
        return 1;
    }
    return 0;
}

/* `from` is the place that extends the file, NULL for a file of the command line. */
static void add_file(Parser *p, SettingList *list, const char *path, const Where *from) {
    char *in_run = format_string("%s/config.resolved.json", path);
    if (file_exists(in_run)) path = in_run;   // the directory of a run stands for its config
    size_t bytes;
    char *text = config_read_file(path, &bytes);
    char *real_path = realpath(path, NULL);   // NULL where it has just gone
    if (from && real_path && is_known(p, real_path, from)) {
        free(text);
        free(real_path);
        free(in_run);
        return;
    }
    int source = p->num_documents + 1;
    Document *d = add_document(p);
    d->path = xstrdup(path);
    free(in_run);
    d->text = text;
    d->real_path = real_path;
    d->json = config_json_parse(d->path, text, bytes);
    d->open = 1;
    Where root = {.file = d->path, .text = text};
    int i = 0;
    for (const cJSON *member = d->json->child; member; member = member->next, i++) {
        if (strcmp(member->string, "extends") != 0) continue;
        Where here = where_child(&root, i, member->string);
        add_extended(p, member, &here);
    }
    d = &p->documents[source - 1];   // reading others moved the array
    d->open = 0;
    flatten(list, d->json, &root, source);
}

static void add_word(Parser *p, const char *word) {
    const char *equals = strchr(word, '=');
    Where w = {.key = ""};
    snprintf(w.key, sizeof(w.key), "%.*s", (int)(equals - word), word);
    Setting s = {config_key_find(w.key), NULL, w, p->num_documents + 1};
    if (!s.key && config_is_group(w.key)) {
        config_fail(&w, "is a group of keys; see `help %s`", w.key);
    }
    if (!s.key && !is_cell_key(w.key)) fail_unknown(&w);
    Document *d = add_document(p);
    d->json = s.key ? config_word_value(s.key, equals + 1, &w) : cJSON_CreateString(equals + 1);
    s.value = d->json;
    add_setting(&p->words, &s);
}

/* KEY=VALUE; a path may have a = behind a slash. */
static int is_word(const char *arg) {
    size_t length = strcspn(arg, "=/");
    return length > 0 && arg[length] == '=';
}

/* --- settings to values --- */

static void apply_text(Parser *p, const ConfigKey *key, const char *text) {
    Where w = {.key = ""};
    snprintf(w.key, sizeof(w.key), "%s", key->name);
    cJSON *value = config_word_value(key, text, &w);
    config_set(p->config, key, value, &w);
    cJSON_Delete(value);
    p->set_by[key - config_keys] = 0;
}

static void apply_preset(Parser *p, const Preset *preset) {
    char *settings = xstrdup(preset->settings), *rest = settings;
    for (char *word = strsep(&rest, " "); word; word = strsep(&rest, " ")) {
        char *name = strsep(&word, "=");
        const ConfigKey *key = config_key_find(name);
        CHECK(key && word, "preset %s: %s", preset->name, name);
        apply_text(p, key, word);
    }
    free(settings);
}

/* The last one given counts, wherever it stands; what is set beside it stays on top. */
static const Setting *last_preset(const Parser *p) {
    const SettingList *lists[] = {&p->words, &p->files, &p->extended};
    for (int l = 0; l < ARRAY_LEN(lists); l++) {
        for (int i = lists[l]->count; i-- > 0;) {
            const Setting *s = &lists[l]->items[i];
            if (strcmp(s->where.key, "model.preset") == 0) return s;
        }
    }
    return NULL;
}

static void find_and_apply_preset(Parser *p) {
    const Setting *s = last_preset(p);
    if (!s) return;
    config_set(p->config, s->key, s->value, &s->where);
    if (p->config->model.preset[0]) apply_preset(p, preset_find(p->config->model.preset));
}

/* One rule for a precision.GEMM.OPERAND.FIELD key; a later one takes the place of an earlier. */
static void apply_cell(Parser *p, const Setting *s) {
    GemmKind gemm;
    const char *operand, *field;
    CHECK(config_cell_key(s->where.key, &gemm, &operand, &field), "key %s", s->where.key);
    Rule rule = rule_default();
    rule_set(&rule, "gemm", gemm_names[gemm]);
    rule_set(&rule, "operand", operand);
    config_set_rule(&rule, field, s->value, &s->where);
    int i = 0;
    while (i < p->num_cells && strcmp(p->cell_keys[i], s->where.key) != 0) i++;
    if (i == p->num_cells) {
        p->num_cells++;
        p->cells = (Rule *)xrealloc(p->cells, (size_t)p->num_cells * sizeof(Rule));
        p->cell_keys = xrealloc(p->cell_keys, (size_t)p->num_cells * sizeof(p->cell_keys[0]));
        memcpy(p->cell_keys[i], s->where.key, sizeof(s->where.key));
    }
    p->cells[i] = rule;
}

/* train.tokens on the command line takes back train.steps of a file. */
static void reset_exclusive(Parser *p, const Setting *s) {
    if (!s->key->exclusive || (cJSON_IsNumber(s->value) && s->value->valuedouble == 0)) return;
    for (int i = 0; i < num_config_keys; i++) {
        const ConfigKey *key = &config_keys[i];
        if (key->exclusive && key != s->key && p->set_by[i] < s->source) {
            apply_text(p, key, key->initial);
        }
    }
}

static void apply_settings(Parser *p, const SettingList *list) {
    for (int i = 0; i < list->count; i++) {
        const Setting *s = &list->items[i];
        if (!s->key) {
            apply_cell(p, s);
            continue;
        }
        reset_exclusive(p, s);
        config_set(p->config, s->key, s->value, &s->where);
        p->set_by[s->key - config_keys] = s->source;
    }
}

static void append_cells(Parser *p) {
    RuleList *rules = &p->config->precision.rules;
    int count = rules->count + p->num_cells;
    rules->items = (Rule *)xrealloc(rules->items, (size_t)count * sizeof(Rule));
    for (int i = 0; i < p->num_cells; i++) rules->items[rules->count++] = p->cells[i];
}

/* The model.* keys of files and words, each with a space behind it. */
static char *given_model_keys(const Parser *p) {
    char *names = xstrdup("");
    for (int i = 0; i < num_config_keys; i++) {
        if (p->set_by[i] == 0 || strncmp(config_keys[i].name, "model.", 6) != 0) continue;
        char *longer = format_string("%s%s ", names, config_keys[i].name);
        free(names);
        names = longer;
    }
    return names;
}

/* A preset named on the command line seems to be the model, but a file's keys go over it. */
static void note_preset_changes(Parser *p) {
    Config *c = p->config, preset;
    if (!c->model.preset[0]) return;
    char *names = given_model_keys(p);
    if (strcmp(names, "model.preset ") != 0) {
        char word[64], *args[] = {word};
        snprintf(word, sizeof(word), "model.preset=%s", c->model.preset);
        config_parse(&preset, ARRAY_LEN(args), args);
        char *alone = config_to_json(&preset), *lines = config_changes(c, alone, names);
        if (lines[0]) c->preset_changes = xstrdup(lines);
        free(lines);
        free(alone);
        config_free(&preset);
    }
    free(names);
}

static void parser_free(Parser *p) {
    for (int i = 0; i < p->num_documents; i++) {
        cJSON_Delete(p->documents[i].json);
        free(p->documents[i].path);
        free(p->documents[i].real_path);
        free(p->documents[i].text);
    }
    free(p->documents);
    free(p->extended.items);
    free(p->files.items);
    free(p->words.items);
    free(p->set_by);
    free(p->cells);
    free(p->cell_keys);
}

void config_parse(Config *c, int num_args, char **args) {
    memset(c, 0, sizeof(*c));
    Parser p = {.config = c};
    p.set_by = (int *)xmalloc((size_t)num_config_keys * sizeof(int));
    for (int i = 0; i < num_args; i++) {
        if (!is_word(args[i])) add_file(&p, &p.files, args[i], NULL);
    }
    for (int i = 0; i < num_args; i++) {
        if (is_word(args[i])) add_word(&p, args[i]);
    }
    for (int i = 0; i < num_config_keys; i++) {
        apply_text(&p, &config_keys[i], config_keys[i].initial);
    }
    find_and_apply_preset(&p);
    apply_settings(&p, &p.extended);
    apply_settings(&p, &p.files);
    apply_settings(&p, &p.words);
    append_cells(&p);
    config_finish(c, p.set_by[config_key_find("model.layers") - config_keys] > 0);
    note_preset_changes(&p);
    parser_free(&p);
}

void config_free(Config *c) {
    config_free_sources(&c->data.train);
    config_free_sources(&c->data.val);
    free(c->precision.rules.items);
    c->precision.rules.items = NULL;
    c->precision.rules.count = 0;
    free(c->precision.schedule.items);
    c->precision.schedule.items = NULL;
    c->precision.schedule.count = 0;
    free(c->preset_changes);
    c->preset_changes = NULL;
}

/* --- echo --- */

/* The object that holds the last part of a dotted name, made where it is missing. */
static cJSON *group_of(cJSON *root, const char *name, const char **last) {
    cJSON *object = root;
    const char *dot;
    while ((dot = strchr(name, '.')) != NULL) {
        char part[64];
        snprintf(part, sizeof(part), "%.*s", (int)(dot - name), name);
        cJSON *inner = cJSON_GetObjectItemCaseSensitive(object, part);
        object = inner ? inner : cJSON_AddObjectToObject(object, part);
        name = dot + 1;
    }
    *last = name;
    return object;
}

/* ckpt.dir as it is without being given: left open, so that another log.dir takes it along. */
static int follows_log_dir(const Config *c) {
    size_t length = strlen(c->log.dir);
    return strncmp(c->ckpt.dir, c->log.dir, length) == 0 &&
           strcmp(c->ckpt.dir + length, "/ckpt") == 0;
}

char *config_to_json(const Config *c) {
    cJSON *root = cJSON_CreateObject();
    for (int i = 0; i < num_config_keys; i++) {
        const char *last;
        cJSON *group = group_of(root, config_keys[i].name, &last);
        int follows = strcmp(config_keys[i].name, "ckpt.dir") == 0 && follows_log_dir(c);
        cJSON *value = follows ? cJSON_CreateString("") : config_get(c, &config_keys[i]);
        cJSON_AddItemToObject(group, last, value);
    }
    char *printed = cJSON_Print(root);
    if (!printed) die(EXIT_OOM, "out of host memory: cannot write the config as JSON");
    char *text = format_string("%s\n", printed);
    cJSON_free(printed);
    cJSON_Delete(root);
    return text;
}

void config_refuse_flags(int num_args, char **args) {
    for (int i = 0; i < num_args; i++) {
        if (args[i][0] != '-') continue;
        char name[64], suggestion[256];
        const char *word = args[i] + (strncmp(args[i], "--", 2) == 0 ? 2 : 0);
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(word, "="), word);
        die(EXIT_CONFIG,
            "unknown flag %s; flags are --help, --version and, of train, --dry-run; values are set "
            "by key=value%s",
            args[i], config_suggestion(name, suggestion, sizeof(suggestion)));
    }
}
