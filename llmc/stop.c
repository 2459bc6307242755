/* stop -- the handler of the signals that ask a run to end; see stop.h. */
#include "stop.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

enum { SECOND_PRESS_MS = 1000 };   // a storm of signals has shorter gaps, a person does not

static const struct {
    int number;
    const char *name;
} signals[] = {
    {SIGINT, "SIGINT"},   {SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"},
    {SIGUSR1, "SIGUSR1"}, {SIGPIPE, "SIGPIPE"},
};

static volatile sig_atomic_t deferred, speaks_up, asked_by;   // asked_by: a signal's number, or 0
static _Atomic double last_interrupt_ms;                      // of the last SIGINT; 0: none yet

static const char *name_of(int number) {
    for (int i = 0; i < ARRAY_LEN(signals); i++)
        if (signals[i].number == number) return signals[i].name;
    return "none";
}

/* Of the functions that print, a signal's handler may use write() alone. */
static void say(int number, const char *what) {
    const char *parts[] = {"stop: ", name_of(number), what, "\n"};
    char line[256];
    size_t used = 0;
    for (int i = 0; i < ARRAY_LEN(parts); i++) {
        size_t length = strlen(parts[i]);
        memcpy(line + used, parts[i], length);
        used += length;
    }
    ssize_t ignored = write(STDERR_FILENO, line, used);
    (void)ignored;
}

static void end_now(int number, const char *what) NORETURN;
static void end_now(int number, const char *what) {
    say(number, what);
    _exit(EXIT_INTERRUPTED);
}

static int is_second_press(int number) {
    if (number != SIGINT) return 0;
    double now = now_ms(), last = last_interrupt_ms;
    last_interrupt_ms = now;
    return last > 0 && now - last >= SECOND_PRESS_MS;
}

static void on_signal(int number) {
    int saved_errno = errno;
    if (!deferred) end_now(number, ": ends before its first step; checkpoints are as they were");
    if (is_second_press(number))
        end_now(number, " again: ends at once; the last finished checkpoint stays");
    if (!asked_by) {
        asked_by = number;
        if (speaks_up)
            say(number, number == SIGINT ? ": saves and ends; Ctrl-C again ends at once"
                                         : ": saves and ends");
    }
    errno = saved_errno;
}

void stop_listen(void) {
    struct sigaction action, before;
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    // One at a time: a handler that another interrupts could say two things at once.
    for (int i = 0; i < ARRAY_LEN(signals); i++) sigaddset(&action.sa_mask, signals[i].number);
    for (int i = 0; i < ARRAY_LEN(signals); i++) {
        sigaction(signals[i].number, NULL, &before);
        if (before.sa_handler != SIG_IGN) sigaction(signals[i].number, &action, NULL);
    }
}

void stop_defer(int speaks) {
    speaks_up = speaks;
    deferred = 1;
}

int stop_requested(void) { return asked_by != 0; }

const char *stop_signal(void) { return name_of(asked_by); }
