/*
sampler -- text from a model: the next token drawn from softmax(logits / temperature) over the top_k
largest.
*/
#ifndef LLMC_SAMPLER_H
#define LLMC_SAMPLER_H

#include <stdio.h>

#include "model.h"
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Index drawn by `u` in [0, 1); temperature 0 takes the largest; top_k 0 keeps all. order: (vocab)
   work space. */
int sampler_pick(const float *logits, int vocab, float temperature, int top_k, float u, int *order);

typedef struct {
    const char *prompt;       // "" starts from the end-of-text token
    int64_t tokens;           // to generate at most; ends early at end of text
    float temperature;
    int top_k;
    uint64_t seed;
    int index;                // which sample: another stream of random numbers
} SampleOptions;

/* Writes prompt and continuation to `out` as they come. The context is the last max_T tokens. */
void sampler_run(Model *m, const Tokenizer *tokenizer, const SampleOptions *options, FILE *out);

#ifdef __cplusplus
}
#endif
#endif
