/*
fuzz_config -- the config parser on anything: an input that begins with = is words of the command
line, one a line; one that begins with ~ is the config of an old checkpoint, which config_changes
compares; every other is a file. What the parser takes has an echo that reads back as the same echo.
*/
#include <stdlib.h>
#include <string.h>

#include "../llmc/config.h"
#include "fuzzing.h"

enum { MAX_WORDS = 16 };

/* Splits the lines of `text` in place. A word without = would be the path of some file. */
static int split_words(char *text, char **words) {
    int count = 0;
    for (char *word = strtok(text, "\n"); word && count < MAX_WORDS; word = strtok(NULL, "\n")) {
        if (strchr(word, '=')) words[count++] = word;
    }
    return count;
}

static void expect_echo(Config *c, char *path) {
    char *echo = config_to_json(c), *args[] = {path};
    config_free(c);
    fuzz_put_file("c.json", echo, strlen(echo));
    config_parse(c, 1, args);
    char *again = config_to_json(c);
    config_free(c);
    CHECK(strcmp(echo, again) == 0, "the echo\n%s\nreads back as\n%s", echo, again);
    free(echo);
    free(again);
}

static void compare_with(const char *saved) {
    Config c;
    config_parse(&c, 0, NULL);
    free(config_changes(&c, saved, "model batch data train optim sched precision guard seed"));
    config_free(&c);
}

void fuzz_input(const uint8_t *data, size_t size) {
    char *text = (char *)xmalloc(size + 1), *args[MAX_WORDS] = {(char *)fuzz_path("c.json")};
    if (size > 0) memcpy(text, data, size);
    int num_args = 1;
    if (text[0] == '~') {
        compare_with(text + 1);
        free(text);
        return;
    }
    if (text[0] == '=') num_args = split_words(text + 1, args);
    else fuzz_put_file("c.json", data, size);
    Config c;
    config_parse(&c, num_args, args);
    fuzz_accepted();
    expect_echo(&c, (char *)fuzz_path("c.json"));
    free(text);
}
