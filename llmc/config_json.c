/*
config_json -- files as JSON with comments, and where in a file something stands. cJSON keeps no
positions: comments are blanked in place, so that every byte stays where it was, and a place is
found again by walking the text along its path.
*/
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config_parts.h"

/* --- positions --- */

static const char *skip_space(const char *s) {
    while (*s == ' ' || *s == '\t' || *s == '\r' || *s == '\n') s++;
    return s;
}

/* From a quote to behind its partner. */
static const char *skip_string(const char *s) {
    for (s++; *s && *s != '"'; s++) {
        if (*s == '\\' && s[1]) s++;
    }
    return *s ? s + 1 : s;
}

static const char *skip_value(const char *s) {
    int depth = 0;
    do {
        if (*s == '"') {
            s = skip_string(s);
            continue;
        }
        if (*s == '{' || *s == '[') depth++;
        if (*s == '}' || *s == ']') depth--;
        if (*s) s++;
    } while (*s && (depth > 0 || !strchr(",}] \t\r\n:", *s)));
    return s;
}

/* From a member to its value; an element is its own value. */
static const char *value_of(const char *s) {
    if (*s != '"') return s;
    const char *colon = skip_space(skip_string(s));
    return *colon == ':' ? skip_space(colon + 1) : s;
}

/* From a bracket to member or element number `index` inside. */
static const char *seek(const char *s, int index) {
    s = skip_space(*s ? s + 1 : s);
    while (index-- > 0) {
        s = skip_space(skip_value(value_of(s)));
        if (*s == ',') s = skip_space(s + 1);
    }
    return s;
}

static int line_of(const char *text, const char *at, int *column) {
    int line = 1;
    const char *begin = text;
    for (const char *s = text; s < at; s++) {
        if (*s != '\n') continue;
        line++;
        begin = s + 1;
    }
    if (column) *column = (int)(at - begin) + 1;
    return line;
}

int where_line(const Where *w, int *column) {
    const char *at = skip_space(w->text);
    for (int i = 0; i < w->depth; i++) at = seek(i ? value_of(at) : at, w->path[i]);
    return line_of(w->text, at, column);
}

Where where_child(const Where *w, int index, const char *name) {
    Where child = *w;
    CHECK(child.depth < CONFIG_DEPTH, "key %s lies too deep", w->key);
    child.path[child.depth++] = index;
    size_t used = strlen(child.key), room = sizeof(child.key) - used;
    if (name) {
        snprintf(child.key + used, room, "%s%s", used ? "." : "", name);
    } else {
        snprintf(child.key + used, room, "[%d]", index);
    }
    return child;
}

/* --- errors --- */

void config_fail(const Where *w, const char *format, ...) {
    char message[4096];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    if (!w->file) die(EXIT_CONFIG, "config: command line: key \"%s\" %s", w->key, message);
    int column, line = where_line(w, &column);
    die(EXIT_CONFIG, "config: %s:%d:%d: key \"%s\" %s", w->file, line, column, w->key, message);
}

static void fail_at(const char *file, const char *text, const char *at, const char *what) NORETURN;
static void fail_at(const char *file, const char *text, const char *at, const char *what) {
    int column, line = line_of(text, at, &column);
    die(EXIT_CONFIG, "config: %s:%d:%d: %s", file, line, column, what);
}

void config_refuse_duplicates(const cJSON *object, const Where *w) {
    int i = 0;
    for (const cJSON *member = object->child; member; member = member->next, i++) {
        int j = 0;
        for (const cJSON *other = object->child; other != member; other = other->next, j++) {
            if (strcmp(other->string, member->string) != 0) continue;
            Where here = where_child(w, i, member->string);
            if (!w->file) config_fail(&here, "is given twice");
            Where first = where_child(w, j, other->string);
            config_fail(&here, "is given twice; the first is in line %d", where_line(&first, NULL));
        }
    }
}

/* --- text to JSON --- */

char *config_read_file(const char *path, size_t *bytes) {
    struct stat info;
    if (stat(path, &info) != 0 || access(path, R_OK) != 0) {
        die(EXIT_CONFIG,
            "config: cannot open \"%s\": %s; what has no = in it is the path of a JSON file", path,
            strerror(errno));
    }
    if (S_ISDIR(info.st_mode)) {
        die(EXIT_CONFIG, "config: \"%s\" is a directory; expected a JSON file", path);
    }
    return read_text_file(path, "config", bytes);
}

/* Checks one string from its quote on and returns what follows it. */
static char *check_string(const char *file, const char *text, char *s) {
    char *begin = s;
    for (s++; *s != '"'; s++) {
        if (*s == '\n' || *s == '\0') {
            fail_at(file, text, begin, "this string is not closed in its line");
        }
        if (*s != '\\') continue;
        if (strncmp(s, "\\u0000", 6) == 0) fail_at(file, text, s, "a string cannot hold \\u0000");
        if (s[1] && s[1] != '\n') s++;
    }
    return s + 1;
}

/* Blanks comments; refuses what cJSON would pass or could not point at. */
static void prepare(const char *file, char *text) {
    int depth = 0;
    for (char *s = text; *s;) {
        if (*s == '"') {
            s = check_string(file, text, s);
            continue;
        }
        if (s[0] == '/' && s[1] == '/') {
            for (; *s && *s != '\n'; s++) *s = ' ';
            continue;
        }
        depth += (*s == '{' || *s == '[') - (*s == '}' || *s == ']');
        if (depth > CONFIG_DEPTH) fail_at(file, text, s, "brackets lie deeper here than any key");
        s++;
    }
}

cJSON *config_json_parse(const char *file, char *text, size_t bytes) {
    if (strlen(text) != bytes) {
        fail_at(file, text, text + strlen(text), "a zero byte: this is not a text file");
    }
    if (memcmp(text, "\xEF\xBB\xBF", bytes < 3 ? bytes : 3) == 0 && bytes >= 3) {
        memset(text, ' ', 3);   // the byte order mark of some editors
    }
    prepare(file, text);
    const char *begin = skip_space(text), *end = NULL;
    if (*begin == '\0') die(EXIT_CONFIG, "config: %s is empty; expected a JSON object", file);
    cJSON *json = cJSON_ParseWithLengthOpts(text, bytes + 1, &end, 1);
    if (!json && *skip_space(end) == '\0') {
        fail_at(file, text, end, "the text ends before the JSON does: a bracket is not closed");
    }
    if (!json) {
        char what[128];
        int shown = (int)min_i64((int64_t)strcspn(end, "\n"), 64);
        snprintf(what, sizeof(what), "no JSON from here on: %.*s", shown, end);
        fail_at(file, text, end, what);
    }
    if (!cJSON_IsObject(json)) fail_at(file, text, begin, "expected a JSON object in braces");
    return json;
}
