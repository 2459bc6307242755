/* sampler -- draws tokens one by one; the whole context is run again for each (there is no
   key/value cache). */
#include "sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "rng.h"
#include "stop.h"

enum { TOKEN_MULTIPLE = 32 };   // rows that a quantised forward pass comes in

/* Largest logit first; equal ones by index, so that the order is the same everywhere. */
static int by_logit(const void *a, const void *b, void *logits) {
    float x = ((const float *)logits)[*(const int *)a],
          y = ((const float *)logits)[*(const int *)b];
    if (x != y) return x < y ? 1 : -1;
    return *(const int *)a - *(const int *)b;
}

int sampler_pick(const float *logits, int vocab, float temperature, int top_k, float u,
                 int *order) {
    for (int v = 0; v < vocab; v++) order[v] = v;
    qsort_r(order, (size_t)vocab, sizeof(int), by_logit, (void *)(uintptr_t)logits);
    if (temperature <= 0) return order[0];
    int kept = top_k > 0 && top_k < vocab ? top_k : vocab;
    double total = 0, seen = 0;
    for (int i = 0; i < kept; i++) {
        total += exp((logits[order[i]] - logits[order[0]]) / temperature);
    }
    for (int i = 0; i < kept; i++) {
        seen += exp((logits[order[i]] - logits[order[0]]) / temperature);
        if (u * total < seen) return order[i];
    }
    return order[kept - 1];
}

/* Length of the forward pass that shows position n - 1: a multiple of 32 where the model's context
   allows one. */
static int forward_length(const Model *m, int n) {
    return (int)min_i64(round_up(n, TOKEN_MULTIPLE), m->max_T);
}

static void write_token(const Tokenizer *tokenizer, int32_t token, FILE *out) {
    size_t bytes;
    const uint8_t *text = tokenizer_decode(tokenizer, token, &bytes);
    fwrite(text, 1, bytes, out);
    fflush(out);
}

void sampler_run(Model *m, const Tokenizer *tokenizer, const SampleOptions *o, FILE *out) {
    int vocab = m->config.vocab, eot = tokenizer_end_of_text(tokenizer);
    int32_t *prompt;
    int64_t prompt_len = tokenizer_encode(tokenizer, o->prompt, strlen(o->prompt), &prompt);
    int32_t *history = (int32_t *)xmalloc((size_t)(1 + prompt_len + o->tokens) * sizeof(int32_t));
    int32_t *context = (int32_t *)xmalloc((size_t)m->max_T * sizeof(int32_t));
    float *logits = (float *)xmalloc((size_t)vocab * sizeof(float));
    int *order = (int *)xmalloc((size_t)vocab * sizeof(int));
    int64_t length = 0;
    history[length++] = eot;   // every document in training begins so
    for (int64_t i = 0; i < prompt_len; i++) history[length++] = prompt[i];
    for (int64_t i = 0; i < prompt_len; i++) write_token(tokenizer, prompt[i], out);
    for (int64_t i = 0; i < o->tokens && !stop_requested(); i++) {
        int n = (int)min_i64(length, m->max_T), T = forward_length(m, n);
        for (int t = 0; t < T; t++) context[t] = t < n ? history[length - n + t] : eot;
        model_logits(m, context, T, n - 1, logits);
        Philox4 bits =
            philox4x32_10(rng_group_counter((uint64_t)i, RNG_STREAM_SAMPLE, (uint32_t)o->index),
                          (uint32_t)o->seed, (uint32_t)(o->seed >> 32));
        int token =
            sampler_pick(logits, vocab, o->temperature, o->top_k, rng_uniform(bits.w[0]), order);
        if (token == eot) break;
        history[length++] = token;
        write_token(tokenizer, token, out);
    }
    fputc('\n', out);
    free(prompt);
    free(history);
    free(context);
    free(logits);
    free(order);
}
