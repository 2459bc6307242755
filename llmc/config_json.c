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

/* From a quote to behind its partner. These functions walk text that is JSON. */
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

typedef struct {
    const char *name;
    int index;
} Member;

static int compare_members(const void *a, const void *b) {
    const Member *x = (const Member *)a, *y = (const Member *)b;
    int order = strcmp(x->name, y->name);
    return order ? order : x->index - y->index;
}

/* Sorted, since a file may hold any number of members. */
void config_refuse_duplicates(const cJSON *object, const Where *w) {
    int count = 0, again = 0;   // members[again] is the first in the text that was there before
    Member *members = (Member *)xmalloc((size_t)cJSON_GetArraySize(object) * sizeof(Member));
    for (const cJSON *m = object->child; m; m = m->next, count++)
        members[count] = (Member){m->string, count};
    qsort(members, (size_t)count, sizeof(Member), compare_members);
    for (int i = 1; i < count; i++) {
        int is_repeated = strcmp(members[i - 1].name, members[i].name) == 0;
        if (is_repeated && (!again || members[i].index < members[again].index)) again = i;
    }
    if (again) {
        Where here = where_child(w, members[again].index, members[again].name);
        if (!w->file) config_fail(&here, "is given twice");
        Where first = where_child(w, members[again - 1].index, members[again - 1].name);
        config_fail(&here, "is given twice; the first is in line %d", where_line(&first, NULL));
    }
    free(members);
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

/* Spaces over comments, which strings cannot hold. */
static void blank_comments(char *text) {
    for (char *s = text; *s; s++) {
        if (*s == '"') {
            for (s++; *s && *s != '"' && *s != '\n'; s++) {
                if (*s == '\\' && s[1] && s[1] != '\n') s++;
            }
            if (!*s) return;
        } else if (s[0] == '/' && s[1] == '/') {
            memset(s, ' ', strcspn(s, "\n"));
        }
    }
}

/* --- syntax: cJSON takes some texts that are no JSON, and does not point at what is wrong --- */

typedef struct {
    const char *file, *text;
    const char *at;   // what is read next
    int depth;        // brackets that are open
} Syntax;

static void syntax_fail(const Syntax *x, const char *what) NORETURN;
static void syntax_fail(const Syntax *x, const char *what) {
    char message[128];
    if (*x->at == '\0') fail_at(x->file, x->text, x->at, "the text ends before the JSON does");
    int shown = (int)min_i64((int64_t)strcspn(x->at, "\n"), 32);
    snprintf(message, sizeof(message), "%s here: %.*s", what, shown, x->at);
    fail_at(x->file, x->text, x->at, message);
}

static void check_string(Syntax *x) {
    const char *begin = x->at;
    for (x->at++; *x->at != '"'; x->at++) {
        if (*x->at == '\n' || *x->at == '\0') {
            fail_at(x->file, x->text, begin, "this string is not closed in its line");
        }
        char next = x->at[1];
        if (*x->at != '\\' || next == '\n' || next == '\0') continue;
        if (strncmp(x->at, "\\u0000", 6) == 0) syntax_fail(x, "a string cannot hold a zero byte");
        if (!strchr("\"\\/bfnrtu", next)) syntax_fail(x, "no escape of JSON");
        x->at++;
    }
    x->at++;
}

static const char *skip_digits(const char *s) { return s + strspn(s, "0123456789"); }

static void check_number(Syntax *x) {
    enum { MAX_LENGTH = 60 };   // cJSON reads no more
    const char *begin = x->at, *s = begin + (*begin == '-');
    const char *end = *s == '0' ? s + 1 : skip_digits(s);
    int is_number = end > s;
    if (*end == '.') {
        s = end + 1;
        end = skip_digits(s);
        is_number &= end > s;
    }
    if (*end == 'e' || *end == 'E') {
        s = end + 1 + (end[1] == '-' || end[1] == '+');
        end = skip_digits(s);
        is_number &= end > s;
    }
    if (!is_number || end - begin > MAX_LENGTH) syntax_fail(x, "no number of JSON");
    x->at = end;
}

static void check_value(Syntax *x);

static void check_members(Syntax *x, char close) {
    int is_object = close == '}';
    x->at = skip_space(x->at + 1);
    if (*x->at == close) {
        x->at++;
        return;
    }
    for (;;) {
        if (is_object) {
            if (*x->at != '"') syntax_fail(x, "expected a key in double quotes");
            check_string(x);
            x->at = skip_space(x->at);
            if (*x->at != ':') syntax_fail(x, "expected a colon");
            x->at = skip_space(x->at + 1);
        }
        check_value(x);
        x->at = skip_space(x->at);
        if (*x->at == close) break;
        if (*x->at != ',') syntax_fail(x, is_object ? "expected , or }" : "expected , or ]");
        x->at = skip_space(x->at + 1);
    }
    x->at++;
}

static void check_value(Syntax *x) {
    static const char *const words[] = {"true", "false", "null"};
    if (*x->at == '{' || *x->at == '[') {
        if (++x->depth > CONFIG_DEPTH) syntax_fail(x, "brackets deeper than any key");
        check_members(x, *x->at == '{' ? '}' : ']');
        x->depth--;
        return;
    }
    if (*x->at == '"') {
        check_string(x);
        return;
    }
    for (int i = 0; i < ARRAY_LEN(words); i++) {
        size_t length = strlen(words[i]);
        if (strncmp(x->at, words[i], length) != 0) continue;
        x->at += length;
        return;
    }
    if (*x->at != '-' && skip_digits(x->at) == x->at) syntax_fail(x, "expected a value");
    check_number(x);
}

cJSON *config_json_parse(const char *file, char *text, size_t bytes) {
    if (strlen(text) != bytes) {
        fail_at(file, text, text + strlen(text), "a zero byte: this is not a text file");
    }
    if (strncmp(text, "\xEF\xBB\xBF", 3) == 0) memset(text, ' ', 3);   // byte order mark
    blank_comments(text);
    Syntax x = {file, text, skip_space(text), 0};
    if (*x.at == '\0') die(EXIT_CONFIG, "config: %s is empty; expected a JSON object", file);
    if (*x.at != '{') syntax_fail(&x, "expected an object in braces");
    check_value(&x);
    x.at = skip_space(x.at);
    if (*x.at) syntax_fail(&x, "expected nothing more");
    const char *end = NULL;
    cJSON *json = cJSON_ParseWithOpts(text, &end, 1);
    // What is left: half a pair of \u escapes.
    if (!json) fail_at(file, text, end, "no text in UTF-16 escapes");
    return json;
}
