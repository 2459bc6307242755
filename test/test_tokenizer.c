/*
test_tokenizer -- decoding and encoding against the `tokenizers` library, and corrupt vocabularies.
The expected ids are in fixtures/, made by fixtures/make_tokenizer.py.
*/
#include "../llmc/tokenizer.h"

#include "../llmc/common.h"
#include "test.h"

#define BPE_FILE   "test/fixtures/tokenizer_bpe.vocab"
#define CASES_FILE "test/fixtures/tokenizer_cases.txt"

static const char *scratch(const char *name) {
    static char path[512];
    snprintf(path, sizeof(path), "%s/%s", test_temp_dir(), name);
    return path;
}

static const char *write_file(const char *name, const char *text, size_t num_bytes) {
    const char *path = scratch(name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(text, 1, num_bytes, f) != num_bytes || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
    return path;
}

static Tokenizer *open_text(const char *text) {
    return tokenizer_open(write_file("text.vocab", text, strlen(text)));
}

/* Appends the base64 of a token and a newline. */
static char *put_token(char *out, const void *token, size_t num_bytes) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *bytes = token;
    for (size_t i = 0; i < num_bytes; i += 3) {
        size_t left = num_bytes - i;
        uint32_t bits = (uint32_t)bytes[i] << 16 | (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                        (left > 2 ? bytes[i + 2] : 0);
        *out++ = digits[bits >> 18];
        *out++ = digits[bits >> 12 & 63];
        *out++ = left > 1 ? digits[bits >> 6 & 63] : '=';
        *out++ = left > 2 ? digits[bits & 63] : '=';
    }
    *out++ = '\n';
    *out = '\0';
    return out;
}

/* The 256 bytes, then the given tokens, then the end of text. */
static Tokenizer *open_tokens(const char *kind, const char *const *tokens, int count) {
    static char text[1 << 13];
    char *end =
        text + sprintf(text, "# train_gpt_nvfp4 vocabulary v1, size %d, end_of_text %d, kind %s\n",
                       257 + count, 256 + count, kind);
    for (int i = 0; i < 256; i++) end = put_token(end, &(uint8_t){(uint8_t)i}, 1);
    for (int i = 0; i < count; i++) end = put_token(end, tokens[i], strlen(tokens[i]));
    strcpy(end, "-\n");
    return open_text(text);
}

/* Expects the tokens to spell the text. */
static void expect_decodes(const Tokenizer *t, const int32_t *ids, int64_t count, const char *text,
                           size_t num_bytes, int line) {
    size_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        size_t length;
        const uint8_t *bytes = tokenizer_decode(t, ids[i], &length);
        REQUIRE(at + length <= num_bytes, "case %d: more bytes than the text", line);
        EXPECT_BITS(bytes, text + at, length, "case %d, token %d", line, (int)i);
        at += length;
    }
    EXPECT_EQ_I64(at, num_bytes, "case %d", line);
}

// --- byte tokenizer ---

CASE(byte_tokenizer_is_exact) {
    Tokenizer *t = open_tokens("byte", NULL, 0);
    EXPECT_EQ_I64(tokenizer_size(t), 257);
    EXPECT_EQ_I64(tokenizer_end_of_text(t), 256);
    char text[256];
    for (int i = 0; i < 256; i++) text[i] = (char)(255 - i);
    int32_t *ids;
    int64_t count = tokenizer_encode(t, text, sizeof(text), &ids);
    EXPECT_EQ_I64(count, 256);
    for (int i = 0; i < 256; i++) EXPECT_EQ_I64(ids[i], 255 - i, "byte %d", i);
    expect_decodes(t, ids, count, text, sizeof(text), 0);
    free(ids);
    size_t length = 9;
    tokenizer_decode(t, 256, &length);
    EXPECT_EQ_I64(length, 0, "end of text has no bytes");
    EXPECT_ABORTS("token 257 of 257", tokenizer_decode(t, 257, &length));
    EXPECT_ABORTS("token -1 of 257", tokenizer_decode(t, -1, &length));
    tokenizer_close(t);
}

// --- BPE ---

static int hex_value(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

/* Splits "hex: id id id" in place; returns the number of ids. */
static int parse_case(char *line, char *text, size_t *num_bytes, int32_t *ids) {
    char *colon = strchr(line, ':');
    *num_bytes = (size_t)(colon - line) / 2;
    for (size_t i = 0; i < *num_bytes; i++)
        text[i] = (char)(hex_value(line[2 * i]) << 4 | hex_value(line[2 * i + 1]));
    int count = 0;
    for (char *id = strtok(colon + 1, " \n"); id; id = strtok(NULL, " \n")) ids[count++] = atoi(id);
    return count;
}

CASE(bpe_ids_are_those_of_the_tokenizers_library) {
    Tokenizer *t = tokenizer_open(BPE_FILE);
    EXPECT_EQ_I64(tokenizer_size(t), 512);
    EXPECT_EQ_I64(tokenizer_end_of_text(t), 511);
    FILE *cases = fopen(CASES_FILE, "r");
    REQUIRE(cases != NULL, "cannot open " CASES_FILE);
    static char line[1 << 14], text[1 << 13];
    static int32_t want[1 << 13];
    int number = 0;
    while (fgets(line, sizeof(line), cases)) {
        number++;
        size_t num_bytes;
        int want_count = parse_case(line, text, &num_bytes, want);
        int32_t *ids;
        int64_t count = tokenizer_encode(t, text, num_bytes, &ids);
        EXPECT_EQ_I64(count, want_count, "case %d", number);
        EXPECT_BITS(ids, want, (size_t)min_i64(count, want_count) * sizeof(int32_t), "case %d",
                    number);
        expect_decodes(t, ids, count, text, num_bytes, number);
        free(ids);
    }
    EXPECT(number > 60, "%d cases", number);
    fclose(cases);
    tokenizer_close(t);
}

/* Tokens that a wrong split into words would make or miss; a vertical bar is where one ends. */
CASE(bpe_splits_words_as_gpt2_does) {
    // clang-format off
    const char *const tokens[] = {
        "ll", "llx", "'ll", "'s", "sx", "a1", "1a", "a!", "!a", "  ", " a", "  a", "aa", "\v\v",
        "\r\n", "\n\n", "\n ", "\xc3\xa9", "a\xc3\xa9", "\xc3\xa9!", "\303\2511", " '", " 1",
        " !", "''",
    };
    // clang-format on
    const char *const rows[] = {
        "'ll|x",                                 // a contraction is a word
        "llx",                                   // but not without its apostrophe
        "'s|x",        "a|1|a",       "a|!|a",   // letters, digits and marks part
        " a| 1| !",                              // each takes one space before it
        " | a",        "  | a",                  // and only one
        "a|  ",                                  // white space at the end is whole
        "a|\v|\v|a",   "a|\r|\n|a",              // elsewhere its last character stands apart
        "a|\n\n|\n|a", "a|\n| a",
        "aa|a",                         // of two equal pairs the first is merged
        "a\xc3\xa9|!", "a\xc3\xa9|1",   // bytes from 0x80 on are letters
        " '|s",        "''",            // a space or a mark before it: no contraction
    };
    Tokenizer *t = open_tokens("bpe", tokens, ARRAY_LEN(tokens));
    for (int r = 0; r < ARRAY_LEN(rows); r++) {
        char text[64] = "", got[128] = "";
        for (const char *c = rows[r]; *c; c++)
            if (*c != '|') strncat(text, c, 1);
        int32_t *ids;
        int64_t count = tokenizer_encode(t, text, strlen(text), &ids);
        for (int64_t i = 0; i < count; i++) {
            size_t length;
            const uint8_t *bytes = tokenizer_decode(t, ids[i], &length);
            snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s%.*s", i ? "|" : "",
                     (int)length, (const char *)bytes);
        }
        EXPECT(strcmp(got, rows[r]) == 0, "row %d: got %s, want %s", r, got, rows[r]);
        free(ids);
    }
    tokenizer_close(t);
}

/* Words longer than the limit are cut, not lost, and bytes need not be UTF-8. */
CASE(bpe_any_bytes_come_back) {
    Tokenizer *t = tokenizer_open(BPE_FILE);
    static char text[20000];
    uint32_t state = 1;
    for (size_t i = 0; i < sizeof(text); i++) {
        state = state * 1664525u + 1013904223u;
        text[i] = i < 10000 ? (char)(state >> 24) : 'e';   // one word of 10000 letters
    }
    int32_t *ids;
    int64_t count = tokenizer_encode(t, text, sizeof(text), &ids);
    expect_decodes(t, ids, count, text, sizeof(text), 0);
    free(ids);
    tokenizer_close(t);
}

/* "ab" is a token and so is a second "a", as in a SentencePiece vocabulary; "b" is none at all. */
CASE(bpe_tokens_with_equal_bytes_and_missing_bytes) {
    Tokenizer *t = open_text("# train_gpt_nvfp4 vocabulary v1, size 5, end_of_text 0, kind bpe\n"
                             "-\nYQ==\nYWI=\nYQ==\nIA==\n");
    int32_t *ids;
    const int32_t want[3] = {2, 4, 3};   // "ab", " ", "a": the higher of its two ids
    int64_t count = tokenizer_encode(t, "ab a", 4, &ids);
    REQUIRE(count == 3, "%d tokens", (int)count);
    EXPECT_BITS(ids, want, sizeof(want));
    free(ids);
    EXPECT_DIES(EXIT_DATA, "has no token for byte 0x62", tokenizer_encode(t, "a b", 3, &ids));
    tokenizer_close(t);
}

// --- files that are refused ---

#define HEADER(rest) "# train_gpt_nvfp4 vocabulary v1, " rest "\n"
#define SOUND        HEADER("size 2, end_of_text 1, kind bpe")

CASE(corrupt_vocabularies_refused) {
    const struct {
        const char *text, *message;
    } rows[] = {
        {"", "line 1 is '', expected '# train_gpt_nvfp4 vocabulary v1"},
        {"{\"version\": \"1.0\"}\n", "line 1 is '{\"version\""},
        {"# train_gpt_nvfp4 vocabulary v2, size 2, end_of_text 1, kind bpe\nYQ==\n-\n",
         "line 1 is"},
        {HEADER("size 2, end_of_text 1, kind bpe ") "YQ==\n-\n", "line 1 is"},
        {HEADER("size 2, end_of_text 1, kind bpe\r") "YQ==\n-\n", "line 1 is"},
        {HEADER("size two, end_of_text 1, kind bpe") "YQ==\n-\n", "line 1 is"},
        {HEADER("size 2, end_of_text 1, kind word") "YQ==\n-\n", "kind 'word'; legal are byte and"},
        {HEADER("size 0, end_of_text 0, kind bpe") "", "line 1: size 0; legal is 1 to"},
        {HEADER("size -2, end_of_text 0, kind bpe") "YQ==\n-\n", "line 1: size -2; legal is 1 to"},
        {HEADER("size 99999999, end_of_text 0, kind bpe") "YQ==\n", "line 1: size 99999999; legal"},
        {HEADER("size 2, end_of_text 2, kind bpe") "YQ==\n-\n",
         "end_of_text 2; legal is 0 to size"},
        {HEADER("size 2, end_of_text -1, kind bpe") "YQ==\n-\n", "end_of_text -1; legal is 0"},
        {"# train_gpt_nvfp4 vocabulary v1, size 2, end_of_text 1, kind bpe", "ends within line 1"},
        {SOUND "YQ==\n", "is truncated: line 3 is missing or cut, 3 are expected"},
        {SOUND "YQ==\n-", "is truncated: line 3 is missing or cut"},
        {SOUND "YQ==\n-\nYg==\n", "line 4 is beyond size 2 of line 1"},
        {SOUND "YQ==\n-\n\n", "line 4 is beyond size 2"},
        {SOUND "YQ=\n-\n", "line 2 is 'YQ=', expected base64 or -"},
        {SOUND "YWJjZ\n-\n", "line 2 is 'YWJjZ', expected base64 or -"},
        {SOUND "Y!==\n-\n", "line 2 is 'Y!==', expected base64 or -"},
        {SOUND "Y===\n-\n", "line 2 is 'Y===', expected base64 or -"},
        {SOUND "====\n-\n", "line 2 is '====', expected base64 or -"},
        {SOUND "Y=Q=\n-\n", "line 2 is 'Y=Q=', expected base64 or -"},
        {SOUND "YQ==\n\n", "line 3 is '', expected base64 or -"},
        {SOUND "YQ== \n-\n", "line 2 is 'YQ== ', expected base64 or -"},
    };
    for (int r = 0; r < ARRAY_LEN(rows); r++) {
        EXPECT_DIES(EXIT_DATA, rows[r].message, open_text(rows[r].text));
        EXPECT_DIES(EXIT_DATA, "text.vocab", open_text(rows[r].text));
    }
    tokenizer_close(open_text(SOUND "YQ==\n-\n"));   // the same file without a fault
}

CASE(nul_byte_and_absent_file_refused) {
    const char text[] = SOUND "YQ==\n-\n\0";
    EXPECT_DIES(EXIT_DATA, "has a NUL byte at byte 72",
                tokenizer_open(write_file("nul.vocab", text, sizeof(text) - 1)));
    EXPECT_DIES(EXIT_DATA, "absent.vocab", tokenizer_open(scratch("absent.vocab")));
}

TEST_MAIN_END
