/*
verbs -- the words of the command line that are no config: the verb, found in main's table or
refused, flags, and the verb help. Runs no other verb.
*/
#ifndef LLMC_VERBS_H
#define LLMC_VERBS_H

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *name;
    int (*run)(int num_args, char **args);   // of the words after the verb; returns an ExitCode
    const char *summary;
} Verb;

/* Tables end with a row whose name is NULL. */
const Verb *verbs_find(const Verb *verbs, const char *name);   // NULL where there is none
void verbs_usage(const Verb *verbs, FILE *out);
/* A first word that is neither a verb nor a config is most likely a misspelled verb: dies with
   EXIT_CONFIG. Words that may be a path, a key or a flag pass. */
void verbs_refuse_unknown(const Verb *verbs, const char *word);
/* The verb help: all of it, --markdown, or what each of the names is. */
void verbs_help(const Verb *verbs, int num_args, char **args);
/* Takes the flag out of args; returns whether it was there. */
int verbs_take_flag(int *num_args, char **args, const char *flag);

#ifdef __cplusplus
}
#endif
#endif
