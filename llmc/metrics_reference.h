/*
metrics_reference -- the loss curves of another run, for the live gap of this one to it.
The gap is (run - reference) / reference in percent at equal tokens: positive = worse. The training
gap compares sums over the last REFERENCE_WINDOW steps, since single batches are noise; where the
reference has no step with just these tokens, its curve is a straight line between the neighbours,
and outside of its range there is no gap. Validations are far apart and losses no straight lines, so
a validation loss is compared by itself, and only with one of the reference at nearly these tokens.
Private to metrics.c.
*/
#ifndef LLMC_METRICS_REFERENCE_H
#define LLMC_METRICS_REFERENCE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define REFERENCE_WINDOW 20

typedef struct Reference Reference;

/* Reads DIR/metrics.jsonl; lines that are no records (a run killed while writing) are passed over.
   Dies with EXIT_DATA naming log.reference when there is no file or no training step in it. */
Reference *reference_open(const char *dir);
void reference_close(Reference *r);
/* Takes one training loss in and returns the gap over the last steps, NaN where there is none. */
double reference_train_gap(Reference *r, int64_t tokens, double loss);
/* 1 once a training gap is of as many steps as it can be. */
int reference_is_smooth(const Reference *r);
/* Where its training losses end. */
int64_t reference_end_tokens(const Reference *r);
/* NaN where the reference has no validation within so many tokens. */
double reference_val_gap(const Reference *r, int64_t tokens, int64_t within, double loss);

#ifdef __cplusplus
}
#endif
#endif
