/*
tokenizer -- reading the vocabulary, splitting text into words as GPT-2 does, merging within them.
All tokens lie in one pool of bytes; a hash table of ids finds the token of some bytes.
*/
#include "tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "common.h"

#define MAX_SIZE (1 << 24)   // of a vocabulary; far above any in use, so that sizes fit in an int

/* Both are read and merged alike: in a byte vocabulary there is nothing to merge. */
static const char *const kinds[] = {"byte", "bpe"};

struct Tokenizer {
    char *path;
    int size, end_of_text;
    uint8_t *pool;     // the bytes of all tokens, in the order of ids
    size_t *offsets;   // (size + 1): token i is pool[offsets[i]] .. pool[offsets[i + 1]]
    int32_t *table;    // (table_mask + 1): id + 1, or 0 for a free place
    uint32_t table_mask;
};

// --- finding a token by its bytes ---

static uint32_t hash_bytes(const uint8_t *bytes, size_t num_bytes) {
    uint32_t hash = 2166136261u;   // FNV-1a
    for (size_t i = 0; i < num_bytes; i++) hash = (hash ^ bytes[i]) * 16777619u;
    return hash;
}

/* The place in the table of the token with these bytes, or the free place where it would be. */
static int32_t *find_place(const Tokenizer *t, const uint8_t *bytes, size_t num_bytes) {
    uint32_t at = hash_bytes(bytes, num_bytes) & t->table_mask;
    for (; t->table[at] != 0; at = (at + 1) & t->table_mask) {
        size_t start = t->offsets[t->table[at] - 1], end = t->offsets[t->table[at]];
        if (end - start == num_bytes && memcmp(t->pool + start, bytes, num_bytes) == 0) break;
    }
    return &t->table[at];
}

/* The id, or -1. */
static int32_t find_token(const Tokenizer *t, const uint8_t *bytes, size_t num_bytes) {
    return *find_place(t, bytes, num_bytes) - 1;
}

/* Where two ids have the same bytes the higher one is found: a SentencePiece vocabulary lists its
   fallback bytes before the characters that text is made of. */
static void build_table(Tokenizer *t) {
    uint32_t places = 16;
    while (places < 2 * (uint32_t)t->size) places *= 2;
    t->table = xmalloc(places * sizeof(int32_t));
    t->table_mask = places - 1;
    for (int id = 0; id < t->size; id++) {
        size_t num_bytes = t->offsets[id + 1] - t->offsets[id];
        if (num_bytes > 0) *find_place(t, t->pool + t->offsets[id], num_bytes) = id + 1;
    }
}

// --- reading the file ---

static int base64_value(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *found = c ? strchr(digits, c) : NULL;
    return found ? (int)(found - digits) : -1;
}

/* Decodes padded base64 into out; returns the number of bytes, or -1 when it is not well formed. */
static int64_t base64_decode(const char *text, size_t length, uint8_t *out) {
    if (length == 0 || length % 4 != 0) return -1;
    size_t padding = text[length - 1] != '=' ? 0 : text[length - 2] != '=' ? 1 : 2;
    size_t num_bytes = 0;
    uint32_t bits = 0;
    for (size_t i = 0; i < length; i++) {
        int value = i < length - padding ? base64_value(text[i]) : 0;
        if (value < 0) return -1;
        bits = bits << 6 | (uint32_t)value;
        if (i % 4 != 3) continue;
        for (int shift = 16; shift >= 0; shift -= 8) out[num_bytes++] = (uint8_t)(bits >> shift);
    }
    return (int64_t)(num_bytes - padding);
}

static void read_header(Tokenizer *t, const char *line) {
    char kind[8];
    int used = 0;
    int fields =
        sscanf(line, "# train_gpt_nvfp4 vocabulary v1, size %9d, end_of_text %9d, kind %7s%n",
               &t->size, &t->end_of_text, kind, &used);
    if (fields != 3 || line[used] != '\0')
        die(EXIT_DATA,
            "tokenizer %s: line 1 is '%.100s', expected '# train_gpt_nvfp4 vocabulary v1, size N, "
            "end_of_text E, kind byte|bpe'; data/prepare_text.py writes it as tokenizer.vocab",
            t->path, line);
    if (t->size < 1 || t->size > MAX_SIZE)
        die(EXIT_DATA, "tokenizer %s: line 1: size %d; legal is 1 to %d", t->path, t->size,
            MAX_SIZE);
    if (t->end_of_text < 0 || t->end_of_text >= t->size)
        die(EXIT_DATA, "tokenizer %s: line 1: end_of_text %d; legal is 0 to size - 1 = %d", t->path,
            t->end_of_text, t->size - 1);
    for (int i = 0; i < ARRAY_LEN(kinds); i++)
        if (strcmp(kind, kinds[i]) == 0) return;
    die(EXIT_DATA, "tokenizer %s: line 1: kind '%s'; legal are byte and bpe", t->path, kind);
}

/* Ends the line at `text` with a NUL; returns the start of the next, or NULL if no newline came. */
static char *cut_line(char *text) {
    char *newline = strchr(text, '\n');
    if (!newline) return NULL;
    *newline = '\0';
    return newline + 1;
}

static void die_truncated(const Tokenizer *t, int line) NORETURN;
static void die_truncated(const Tokenizer *t, int line) {
    die(EXIT_DATA, "tokenizer %s is truncated: line %d is missing or cut, %d are expected", t->path,
        line, t->size + 1);
}

/* `text` has num_bytes, which bounds the size that line 1 may ask memory for. */
static void read_tokens(Tokenizer *t, char *text, size_t num_bytes) {
    size_t most_lines = num_bytes / 2;   // a character and a newline make the shortest
    if ((size_t)t->size > most_lines) die_truncated(t, (int)most_lines + 2);
    t->pool = xmalloc(num_bytes + 3);   // base64 shrinks; its padding is written too
    t->offsets = xmalloc(((size_t)t->size + 1) * sizeof(size_t));
    for (int id = 0; id < t->size; id++) {
        char *line = text;
        text = cut_line(line);
        if (!text) die_truncated(t, id + 2);
        int64_t length = 0;
        if (strcmp(line, "-") != 0)
            length = base64_decode(line, strlen(line), t->pool + t->offsets[id]);
        if (length < 0)
            die(EXIT_DATA, "tokenizer %s: line %d is '%.100s', expected base64 or -", t->path,
                id + 2, line);
        t->offsets[id + 1] = t->offsets[id] + (size_t)length;
    }
    if (*text != '\0')
        die(EXIT_DATA, "tokenizer %s: line %d is beyond size %d of line 1", t->path, t->size + 2,
            t->size);
}

Tokenizer *tokenizer_open(const char *path) {
    size_t num_bytes;
    char *text = read_text_file(path, "tokenizer", &num_bytes);
    Tokenizer *t = xmalloc(sizeof(*t));
    t->path = xstrdup(path);
    char *tokens = cut_line(text);
    read_header(t, text);
    if (!tokens) die(EXIT_DATA, "tokenizer %s is truncated: it ends within line 1", path);
    size_t header_bytes = (size_t)(tokens - text), token_bytes = strlen(tokens);
    if (header_bytes + token_bytes != num_bytes)
        die(EXIT_DATA, "tokenizer %s has a NUL byte at byte %zu", path, header_bytes + token_bytes);
    read_tokens(t, tokens, token_bytes);
    free(text);
    build_table(t);
    return t;
}

void tokenizer_close(Tokenizer *t) {
    free(t->table);
    free(t->offsets);
    free(t->pool);
    free(t->path);
    free(t);
}

int tokenizer_size(const Tokenizer *t) { return t->size; }
int tokenizer_end_of_text(const Tokenizer *t) { return t->end_of_text; }

const uint8_t *tokenizer_decode(const Tokenizer *t, int32_t token, size_t *num_bytes) {
    CHECK(token >= 0 && token < t->size, "token %d of %d", token, t->size);
    *num_bytes = t->offsets[token + 1] - t->offsets[token];
    return t->pool + t->offsets[token];
}

// --- splitting text into words ---
// GPT-2's pattern: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

typedef enum { CLASS_SPACE, CLASS_LETTER, CLASS_DIGIT, CLASS_OTHER } CharClass;

static CharClass class_of(uint8_t c) {
    if (c == ' ' || (c >= '\t' && c <= '\r')) return CLASS_SPACE;
    if (c >= '0' && c <= '9') return CLASS_DIGIT;
    int letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80;
    return letter ? CLASS_LETTER : CLASS_OTHER;
}

/* Length of a contraction at the start of s, apostrophe included, or 0. */
static size_t contraction_length(const uint8_t *s, size_t n) {
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (int i = 0; i < ARRAY_LEN(endings); i++) {
        size_t length = strlen(endings[i]);
        if (n >= length && memcmp(s, endings[i], length) == 0) return length;
    }
    return 0;
}

/* Length of the word at the start of s; n > 0. */
static size_t word_length(const uint8_t *s, size_t n) {
    size_t length = contraction_length(s, n);
    if (length > 0) return length;
    size_t start = s[0] == ' ' && n > 1;   // one space leads a word, or is white space with it
    CharClass class = class_of(s[start]);
    for (length = start + 1; length < n && class_of(s[length]) == class;) length++;
    // White space leaves its last character to the word after it, if there is one.
    if (class == CLASS_SPACE && length < n && length > 1) length--;
    return length;
}

// --- merging within a word ---

/* Writes the ids of one word, n <= TOKENIZER_WORD_BYTES, to ids; returns their number. */
static int64_t encode_word(const Tokenizer *t, const uint8_t *s, size_t n, int32_t *ids) {
    size_t starts[TOKENIZER_WORD_BYTES + 1];   // part i is s[starts[i]] .. s[starts[i + 1]]
    size_t num_parts = n;
    for (size_t i = 0; i <= n; i++) starts[i] = i;
    while (num_parts > 1) {
        int32_t lowest = INT32_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < num_parts; i++) {
            int32_t id = find_token(t, s + starts[i], starts[i + 2] - starts[i]);
            if (id < 0 || id >= lowest) continue;
            lowest = id;
            at = i;
        }
        if (lowest == INT32_MAX) break;
        memmove(&starts[at + 1], &starts[at + 2], (num_parts - at - 1) * sizeof(starts[0]));
        num_parts--;
    }
    for (size_t i = 0; i < num_parts; i++) {
        ids[i] = find_token(t, s + starts[i], starts[i + 1] - starts[i]);
        if (ids[i] < 0)
            die(EXIT_DATA, "tokenizer %s has no token for byte 0x%02x of the text", t->path,
                s[starts[i]]);
    }
    return (int64_t)num_parts;
}

int64_t tokenizer_encode(const Tokenizer *t, const char *text, size_t num_bytes, int32_t **ids) {
    const uint8_t *s = (const uint8_t *)text;
    int64_t count = 0;
    *ids =
        xmalloc(max_i64((int64_t)num_bytes, 1) * sizeof(int32_t));   // a token has a byte or more
    for (size_t at = 0; at < num_bytes;) {
        size_t word = word_length(s + at, num_bytes - at);
        size_t part = (size_t)min_i64((int64_t)word, TOKENIZER_WORD_BYTES);
        count += encode_word(t, s + at, part, *ids + count);
        at += part;
    }
    return count;
}
