/*
comm_watchdog -- a thread that ends the process, and with it the job, when a rank dies or nothing
goes on, and says which rank and which collective. Not a part of any communicator: they tell it what
they begin.

With several ranks each has a TCP connection to rank 0, beside the communicator, over which it tells
every second how far it is:
  a rank dies         its connection ends: all ranks end at once, with EXIT_HANG and its name
  a rank fails        it says so in die(): all ranks end with its exit code and message
  a rank is silent    for 30 s (stopped, its host down): likewise EXIT_HANG
  nothing goes on     on any rank for parallel.timeout_s: EXIT_HANG; each rank says what it waits in
                      or since when it has been past it, and which ranks are behind
What goes on is told by collectives and, on a CPU, by each block of a pass; of a GPU's work the host
sees the end alone. Work that takes long by its nature (watchdog_enter) may take ten times as long.
Where no such connection can be made, which is said, each rank watches only itself.

The functions that tell may be called from one thread, also when no watchdog runs.
*/
#ifndef LLMC_COMM_WATCHDOG_H
#define LLMC_COMM_WATCHDOG_H

#include "comm_transport.h"
#include "common.h"

#ifdef __cplusplus
extern "C" {
#endif

#define COMM_TIMEOUT_S 600.0

/* Of a communicator whose collectives run beside the host. */
typedef struct {
    void *impl;
    const char *(*fault)(void *impl);   // what has gone wrong with it, NULL for nothing
    void (*stop)(void *impl);           // takes back what cannot finish
} WatchdogDevice;

/* Starts it for the ranks of a transport, which all call this. */
void watchdog_open(Transport *t, const CommOptions *options);
/* From here on steps follow each other, and are expected to; a process without ranks starts to be
   watched. */
void watchdog_train(double timeout_s);
/* All ranks of the transport call it, when none has anything left to do. */
void watchdog_close(Transport *t);

/* A collective begins; its number goes up. Then it is done, or left to the device. */
void watchdog_begin(const char *collective, int64_t count);
void watchdog_end(void);
void watchdog_queued(void);
/* Something went on. */
void watchdog_tick(void);
void watchdog_step(int64_t step);
/* Long work begins; `work` is not copied. Not nested. */
void watchdog_enter(const char *work);
void watchdog_leave(void);

/* NULL takes it back. */
void watchdog_device(const WatchdogDevice *device);
/* Tells the other ranks that this one ends, so that they do, and waits for them to know it; then
   the caller ends. 0: they cannot be told so. */
int watchdog_tell(int exit_code, const char *message);
/* The communicator has lost a rank: waits a little for the watchdog to find out which went first
   and to end the process. Returns where it does not. */
void watchdog_peer_lost(void);

#ifdef __cplusplus
}
#endif
#endif
