/* verbs -- the words of the command line that are no config; see verbs.h. */
#include "verbs.h"

#include <string.h>

#include "common.h"
#include "config.h"

const Verb *verbs_find(const Verb *verbs, const char *name) {
    for (const Verb *v = verbs; v->name; v++)
        if (strcmp(v->name, name) == 0) return v;
    return NULL;
}

void verbs_usage(const Verb *verbs, FILE *out) {
    fprintf(out, "usage: train_gpt_nvfp4 [verb] config.json [more.json ...] [key=value ...]\n");
    for (const Verb *v = verbs; v->name; v++) fprintf(out, "  %-8s %s\n", v->name, v->summary);
    fprintf(out, "exit codes: 0 done, 2 config, 3 data or disk, 4 device, 5 out of memory, "
                 "6 diverged, 7 hang, 130 interrupted; --version tells which program this is\n");
}

void verbs_refuse_unknown(const Verb *verbs, const char *word) {
    if (word[0] == '-' || strpbrk(word, "=./") || file_exists(word)) return;
    char names[256] = "";
    int at = 0;
    for (const Verb *v = verbs; v->name && at < (int)sizeof(names); v++)
        at += snprintf(names + at, sizeof(names) - (size_t)at, "%s%s", at ? ", " : "", v->name);
    die(EXIT_CONFIG, "\"%s\" is neither a verb nor a file; verbs are %s", word, names);
}

void verbs_help(const Verb *verbs, int num_args, char **args) {
    if (verbs_take_flag(&num_args, args, "--markdown")) {
        if (num_args > 0) die(EXIT_CONFIG, "help --markdown takes no name, and there is %s", *args);
        config_help_markdown();
        return;
    }
    if (num_args == 0) verbs_usage(verbs, stdout);
    if (num_args == 0) config_help(NULL);
    for (int i = 0; i < num_args; i++) {
        if (i > 0) printf("\n");
        const Verb *verb = verbs_find(verbs, args[i]);
        if (verb) printf("verb %s: %s\n", verb->name, verb->summary);
        if (!verb || config_help_knows(args[i])) config_help(args[i]);
    }
}

int verbs_take_flag(int *num_args, char **args, const char *flag) {
    int kept = 0, found = 0;
    for (int i = 0; i < *num_args; i++) {
        if (strcmp(args[i], flag) == 0) found = 1;
        else args[kept++] = args[i];
    }
    *num_args = kept;
    return found;
}
