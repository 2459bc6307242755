/*
config_changes -- what a saved config and the present one disagree on. Both are read as JSON text of
all keys, so that a number is the same however it was written.
*/
#include <stdlib.h>
#include <string.h>

#include "config_parts.h"

enum { VALUE_ROOM = 160 };   // of one value in a line; long lists are cut

/* 1 when one of the names, separated by spaces, is the key or a group that it is in. */
static int is_among(const char *names, const char *key) {
    while (*names) {
        size_t length = strcspn(names, " ");
        int begins = strncmp(names, key, length) == 0;
        if (begins && (key[length] == '\0' || key[length] == '.')) return 1;
        names += length + strspn(names + length, " ");
    }
    return 0;
}

static const cJSON *value_of(const cJSON *root, const char *key) {
    while (root && *key) {
        char part[64];
        size_t length = strcspn(key, ".");
        snprintf(part, sizeof(part), "%.*s", (int)length, key);
        root = cJSON_GetObjectItemCaseSensitive(root, part);
        key += length + (key[length] == '.');
    }
    return root;
}

static const char *value_text(const cJSON *value, char buffer[VALUE_ROOM]) {
    char *printed = cJSON_PrintUnformatted(value);
    if (!printed) die(EXIT_OOM, "out of host memory: cannot write a value of the config");
    int is_word = cJSON_IsString(value) && value->valuestring[0];
    int length = snprintf(buffer, VALUE_ROOM, "%s", is_word ? value->valuestring : printed);
    if (length >= VALUE_ROOM) memcpy(buffer + VALUE_ROOM - 4, "...", 4);
    cJSON_free(printed);
    return buffer;
}

static void add_line(char **lines, const char *key, const cJSON *from, const cJSON *to) {
    char old_text[VALUE_ROOM], new_text[VALUE_ROOM];
    char *longer = format_string("%s%s: %s -> %s\n", *lines, key, value_text(from, old_text),
                                 value_text(to, new_text));
    free(*lines);
    *lines = longer;
}

char *config_changes(const Config *c, const char *saved, const char *names) {
    char *present = config_to_json(c), *lines = xstrdup("");
    cJSON *from = cJSON_Parse(saved), *to = cJSON_Parse(present);
    for (int i = 0; i < num_config_keys; i++) {
        const ConfigKey *key = &config_keys[i];
        // A preset is but a name for what its keys say.
        if (key->kind == KIND_PRESET || (names && !is_among(names, key->name))) continue;
        const cJSON *old_value = value_of(from, key->name), *value = value_of(to, key->name);
        if (!old_value || cJSON_Compare(old_value, value, 1)) continue;
        add_line(&lines, key->name, old_value, value);
    }
    cJSON_Delete(from);
    cJSON_Delete(to);
    free(present);
    return lines;
}

int config_equal_elements(const Config *c, const char *saved, const char *key) {
    char *present = config_to_json(c);
    cJSON *from = cJSON_Parse(saved), *to = cJSON_Parse(present);
    const cJSON *old_list = value_of(from, key), *list = value_of(to, key);
    int most = (int)min_i64(cJSON_GetArraySize(old_list), cJSON_GetArraySize(list)), equal = 0;
    while (equal < most && cJSON_Compare(cJSON_GetArrayItem(old_list, equal),
                                         cJSON_GetArrayItem(list, equal), 1))
        equal++;
    cJSON_Delete(from);
    cJSON_Delete(to);
    free(present);
    return equal;
}
