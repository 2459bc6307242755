/*
eval -- validation loss over a fixed set of tokens, the same whatever the batch and the number of
ranks: sequences 0 .. n-1 of the validation data in file order, in micro-batches of eval.micro.
*/
#ifndef LLMC_EVAL_H
#define LLMC_EVAL_H

#include "comm.h"
#include "config.h"
#include "dataloader.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const DataLoader *data;
    int64_t sequences;          // a multiple of micro
    int micro, seq_len;
    int stopped;                // the last pass was left: a rank was asked to stop (stop.h)
    int32_t *inputs, *targets;  // one micro-batch on the host
} Evaluation;

/* Takes eval.tokens of the data, or all of it when eval.tokens is 0 or more than there is; whole
   micro-batches. Dies with EXIT_DATA when there is not one. */
Evaluation eval_open(const Config *c, const DataLoader *data);
void eval_close(Evaluation *e);
/* "192 of the 256 tokens of data.val", and eval.tokens where it asks for more. */
void eval_describe(const Evaluation *e, const Config *c, char *buffer, int size);
/* Mean loss in nats a token. Every rank of the host calls it and gets the same number, whose bits
   do not depend on how many there are, and which means nothing where `stopped` is set. */
double eval_run(Evaluation *e, Model *m, Comm *host);
/* The same of the same weights with all linears in the model's dtype. */
double eval_run_plain(Evaluation *e, Model *m, Comm *host);

#ifdef __cplusplus
}
#endif
#endif
