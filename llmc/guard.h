/*
guard -- decides what loss or gradient norm is too far from the last 128 accepted ones. It keeps the
two windows and turns a z-score limit into an absolute one, which the device compares with (the
update is skipped there, without asking the host). It does not skip anything itself.
A value's z-score is its distance from the mean of the window in population standard deviations.
Skipped steps and values that are not finite never enter a window: one spike must not raise the mean
and the deviation that the next one is measured by.
All arithmetic is in double over the values in order of arrival, so a window that was saved and
loaded gives the same bits as one that was never interrupted.
  tests     test_guard.c
*/
#ifndef LLMC_GUARD_H
#define LLMC_GUARD_H

#ifdef __cplusplus
extern "C" {
#endif

#define GUARD_WINDOW 128

typedef struct {
    int count;                     // values held, at most GUARD_WINDOW
    double values[GUARD_WINDOW];   // oldest first
} GuardWindow;

typedef struct {
    double loss_z, norm_z;    // guard.skip_loss_z, guard.skip_grad_z; 0: no limit
    GuardWindow loss, norm;   // the state: what a checkpoint keeps
    double skips;             // the same: steps skipped in a row, whatever for
} Guard;

Guard guard_make(double loss_z, double norm_z);
/* What one step came to, in order of steps. */
void guard_push(Guard *g, double loss, double norm, int skipped);
/* mean + z * deviation of the window; +infinity when its z limit is 0, the window is not full, or
   all its values are equal (no deviation to measure by). */
float guard_loss_max(const Guard *g);
float guard_norm_max(const Guard *g);
/* z-score of a value that is not yet in the window; NaN until the window is full and deviates. */
double guard_z(const GuardWindow *w, double value);

#ifdef __cplusplus
}
#endif
#endif
