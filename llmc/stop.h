/*
stop -- asked to end by a signal: what arrives, and what it does at which stage of a training run.
  before stop_defer   nothing can be lost yet: the process ends at once with EXIT_INTERRUPTED
  after it            the first signal asks, and stop_requested() says so; the run saves and ends
                      when it gets there. No number of further signals changes that, but one: Ctrl-C
                      (SIGINT) again, a second or more after the one before it, ends the process at
                      once, as a person means it who presses it twice. A storm of one second does
                      not, and SIGTERM never does: schedulers repeat it.
Signals: SIGINT, SIGTERM, SIGHUP (terminal gone), SIGUSR1 (a scheduler's early warning, and what
mpirun passes on at once), SIGPIPE (the reader of standard output is gone). One that was ignored
when the program started stays ignored, as nohup means it.
It decides nothing for other ranks: who is asked votes, and all stop together (StepState).
  tests     test_program_signals.c
*/
#ifndef LLMC_STOP_H
#define LLMC_STOP_H

#ifdef __cplusplus
extern "C" {
#endif

/* From here on signals end the process at once, and say that nothing is lost. */
void stop_listen(void);
/* From here on signals ask. `speaks`: this process says on stderr that it was asked. */
void stop_defer(int speaks);
int stop_requested(void);
/* "SIGTERM", or "none" where no signal asked. */
const char *stop_signal(void);

#ifdef __cplusplus
}
#endif
#endif
