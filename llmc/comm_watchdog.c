/*
comm_watchdog -- the thread, its connections and its verdicts; see comm_watchdog.h. Rank 0 judges
for all, because it hears all; the others only judge rank 0.
*/
#include "comm_watchdog.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm_link.h"

enum {
    BEAT_MS = 1000,          // between messages
    LOOK_MS = 100,           // between looks at what has come
    QUIET_MS = 3000,         // after which a rank that says nothing is suspected
    SILENCE_MS = 30000,      // after which it counts as dead
    ASLEEP_MS = 5000,        // this process itself was stopped, if the thread slept so long
    OPEN_MS = 10000,         // to make the connections
    LAST_WORDS_MS = 10000,   // to close the record; then the process ends whatever it does
    LINGER_MS = 2000,        // of these, for the others to hear why
    FAULT_MS = 3000,         // for the dead rank to be known where the device only sees a fault
    MAX_NAMED = 4,           // ranks that are behind
    LONG_WORK = 10           // times the timeout
};

typedef enum { DOING_NOTHING, DOING_WAIT, DOING_QUEUED } Doing;
typedef enum { MESSAGE_BEAT, MESSAGE_FAILED, MESSAGE_VERDICT, MESSAGE_BYE } MessageKind;

/* How far a rank is. */
typedef struct {
    int64_t progress;      // counts everything that goes on
    int64_t collective;    // number of the last one begun, from 1
    int64_t count, step;   // its elements; -1 before the first step
    int32_t doing;         // Doing
    char name[24], work[24];
    double begun_ms;   // now_ms() of the collective's begin; in messages: how long ago
} Status;

typedef struct {
    int32_t kind, rank, exit_code;
    Status status;
    char text[LINK_TEXT];
} Message;

typedef struct {
    int fd;                // -1: not connected
    int has_left;          // it has said MESSAGE_BYE
    double heard, moved;   // now_ms() of its last message, of its last progress
    size_t used;           // of the message that is coming
    Message coming;
    Status status;
    int32_t pid;
    char host[LINK_HOST];
} Peer;

static struct {
    pthread_mutex_t lock;   // of own and device
    Status own;
    WatchdogDevice device;

    int running;
    atomic_int closing;
    pthread_t thread;
    double timeout_ms;   // 0: never
    int rank, size;      // size 1: only this process is watched
    int connected;
    Peer *peers;            // [size]; all but its own at rank 0, else only rank 0
    pthread_mutex_t wire;   // of sending
    atomic_int ended;       // what this process ends of has been said, or heard
} w = {.lock = PTHREAD_MUTEX_INITIALIZER,
       .wire = PTHREAD_MUTEX_INITIALIZER,
       .size = 1,
       .own = {.step = -1}};

// --- what the communicators and the program tell ---

static void note(const char *name, int64_t count, Doing doing) {
    pthread_mutex_lock(&w.lock);
    w.own.progress++;
    w.own.doing = doing;
    if (name) {
        w.own.collective++;
        w.own.count = count;
        w.own.begun_ms = now_ms();
        snprintf(w.own.name, sizeof(w.own.name), "%s", name);
    }
    pthread_mutex_unlock(&w.lock);
}

void watchdog_begin(const char *name, int64_t count) { note(name, count, DOING_WAIT); }
void watchdog_end(void) { note(NULL, 0, DOING_NOTHING); }
void watchdog_queued(void) { note(NULL, 0, DOING_QUEUED); }

void watchdog_tick(void) {
    pthread_mutex_lock(&w.lock);
    w.own.progress++;
    pthread_mutex_unlock(&w.lock);
}

void watchdog_step(int64_t step) {
    pthread_mutex_lock(&w.lock);
    w.own.progress++;
    w.own.step = step;
    pthread_mutex_unlock(&w.lock);
}

void watchdog_enter(const char *work) {
    pthread_mutex_lock(&w.lock);
    w.own.progress++;
    snprintf(w.own.work, sizeof(w.own.work), "%s", work);
    pthread_mutex_unlock(&w.lock);
}

void watchdog_leave(void) { watchdog_enter(""); }

void watchdog_device(const WatchdogDevice *device) {
    static const WatchdogDevice none = {NULL, NULL, NULL};
    pthread_mutex_lock(&w.lock);
    w.device = device ? *device : none;
    pthread_mutex_unlock(&w.lock);
}

/* With begun_ms as the time since then. */
static Status own_status(void) {
    pthread_mutex_lock(&w.lock);
    Status s = w.own;
    pthread_mutex_unlock(&w.lock);
    s.begun_ms = now_ms() - s.begun_ms;
    return s;
}

// --- what it says ---

/* "waits in all_reduce #1234 (7 elements) since 61 s, step 17" */
static const char *status_text(const Status *s, char *text, size_t room) {
    static const char *const verbs[] = {
        [DOING_NOTHING] = "is past", [DOING_WAIT] = "waits in", [DOING_QUEUED] = "has queued"};
    char where[64] = "";
    if (s->step >= 0) snprintf(where, sizeof(where), ", step %lld", (long long)s->step);
    if (s->work[0])
        snprintf(where + strlen(where), sizeof(where) - strlen(where), " (%s)", s->work);
    if (s->collective == 0) {
        snprintf(text, room, "has begun no collective%s", where);
    } else {
        snprintf(text, room, "%s %s #%lld (%lld elements) begun %.0f s ago%s", verbs[s->doing],
                 s->name, (long long)s->collective, (long long)s->count, s->begun_ms / 1000.0,
                 where);
    }
    return text;
}

static const char *peer_text(int rank, char *text, size_t room) {
    snprintf(text, room, "rank %d (pid %d on %s)", rank, w.peers[rank].pid, w.peers[rank].host);
    return text;
}

// --- the end ---

static void *end_late(void *exit_code) {
    usleep(LAST_WORDS_MS * 1000);
    _exit((int)(intptr_t)exit_code);
}

/* 1 for the first to ask; the process ends within LAST_WORDS_MS, for what hangs may be what die()
   wants to write to. */
static int begin_end(int exit_code) {
    pthread_t late;
    if (atomic_exchange(&w.ended, 1)) return 0;
    pthread_create(&late, NULL, end_late, (void *)(intptr_t)exit_code);
    return 1;
}

static void end_here(int exit_code, const char *text) NORETURN;
static void end_here(int exit_code, const char *text) {
    char own[256];
    Status status = own_status();
    while (!begin_end(exit_code)) pause();   // another thread has, in watchdog_tell
    pthread_mutex_lock(&w.lock);
    WatchdogDevice device = w.device;
    pthread_mutex_unlock(&w.lock);
    if (device.stop) device.stop(device.impl);
    die((ExitCode)exit_code, "%s. This rank %s", text, status_text(&status, own, sizeof(own)));
}

// --- messages ---

static void send_to(int rank, const Message *m) {
    pthread_mutex_lock(&w.wire);
    // Messages are few and small; who does not take them is silent, and found so.
    if (w.peers[rank].fd >= 0) send(w.peers[rank].fd, m, sizeof(*m), MSG_NOSIGNAL | MSG_DONTWAIT);
    pthread_mutex_unlock(&w.wire);
}

static void send_all(MessageKind kind, int exit_code, const char *text) {
    Message m;
    memset(&m, 0, sizeof(m));
    m.kind = kind;
    m.rank = w.rank;
    m.exit_code = exit_code;
    m.status = own_status();
    snprintf(m.text, sizeof(m.text), "%s", text);
    for (int r = 0; r < w.size; r++) send_to(r, &m);
}

/* Rank 0 tells all, another rank only itself: it has lost rank 0. */
static void judge(int exit_code, const char *text) NORETURN;
static void judge(int exit_code, const char *text) {
    if (w.connected && w.rank == 0) send_all(MESSAGE_VERDICT, exit_code, text);
    end_here(exit_code, text);
}

/* A process that ends over unread messages takes its last ones back, if they are still on their
   way: so it reads until the others have ended too, or have closed their side as it does here. */
static void linger(void) {
    double deadline = now_ms() + LINGER_MS;
    for (int r = 0; r < w.size; r++)
        if (w.peers[r].fd >= 0) shutdown(w.peers[r].fd, SHUT_WR);
    for (int r = 0; r < w.size; r++) {
        Message unread;
        while (w.peers[r].fd >= 0 &&
               link_read(w.peers[r].fd, &unread, sizeof(unread), deadline) == 0)
            continue;
    }
}

int watchdog_tell(int exit_code, const char *message) {
    if (!w.running || !w.connected) return 0;
    if (begin_end(exit_code)) {
        char text[LINK_TEXT];
        snprintf(text, sizeof(text), "rank %d failed: %s", w.rank, message);
        send_all(w.rank == 0 ? MESSAGE_VERDICT : MESSAGE_FAILED, exit_code, text);
    }
    linger();
    return 1;
}

void watchdog_peer_lost(void) {
    if (w.running && w.connected) usleep(FAULT_MS * 1000);
}

static void handle(int rank) {
    Peer *p = &w.peers[rank];
    const Message *m = &p->coming;
    p->heard = now_ms();
    if (m->status.progress != p->status.progress) p->moved = p->heard;
    p->status = m->status;
    if (m->kind == MESSAGE_FAILED) judge(m->exit_code, m->text);
    if (m->kind == MESSAGE_VERDICT) end_here(m->exit_code, m->text);
    p->has_left = m->kind == MESSAGE_BYE;
}

static int is_heard(int rank) { return w.peers[rank].fd >= 0 && !w.peers[rank].has_left; }

static void judge_dead(int rank, const char *how) {
    char who[128], was[256], text[LINK_TEXT];
    snprintf(text, sizeof(text), "%s %s; it %s", peer_text(rank, who, sizeof(who)), how,
             status_text(&w.peers[rank].status, was, sizeof(was)));
    judge(EXIT_HANG, text);
}

/* All that a connection holds. */
static void listen_to(int rank) {
    Peer *p = &w.peers[rank];
    while (is_heard(rank)) {
        ssize_t got =
            recv(p->fd, (char *)&p->coming + p->used, sizeof(Message) - p->used, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (got <= 0) judge_dead(rank, "went away: killed, crashed, or its host is down");
        p->used += (size_t)got;
        if (p->used < sizeof(Message)) continue;
        p->used = 0;
        p->coming.text[LINK_TEXT - 1] = '\0';
        handle(rank);
    }
}

// --- judging ---

static void check_silence(double now) {
    char how[96];
    for (int r = 0; r < w.size; r++) {
        if (!is_heard(r) || now - w.peers[r].heard < SILENCE_MS) continue;
        snprintf(how, sizeof(how),
                 "has not been heard of for %.0f s: its process is stopped or its host is down",
                 (now - w.peers[r].heard) / 1000.0);
        judge_dead(r, how);
    }
}

static int is_silent(int rank, double now) { return now - w.peers[rank].heard > QUIET_MS; }

/* How likely it is that a rank holds up the others: it is silent, and what it said last may not be
   all that it has done; it has not come to the lowest collective; it is in that one, as others. */
static int suspicion(int rank, int64_t lowest, double now) {
    const Status *s = &w.peers[rank].status;
    if (is_silent(rank, now)) return 3;
    if (s->collective > lowest) return 0;
    return s->doing == DOING_NOTHING ? 2 : 1;
}

/* The likeliest. */
static void name_behind(char *text, size_t room, double now) {
    int64_t lowest = INT64_MAX;
    int worst = 0, named = 0;
    for (int r = 0; r < w.size; r++) lowest = min_i64(lowest, w.peers[r].status.collective);
    for (int r = 0; r < w.size; r++) {
        int suspected = suspicion(r, lowest, now);
        if (suspected > worst) worst = suspected;
    }
    text[0] = '\0';
    for (int r = 0; r < w.size && named < MAX_NAMED; r++) {
        char who[128], what[256], quiet[64] = "";
        if (suspicion(r, lowest, now) < worst) continue;
        if (is_silent(r, now))
            snprintf(quiet, sizeof(quiet), " (this it said %.0f s ago)",
                     (now - w.peers[r].heard) / 1000.0);
        size_t used = strlen(text);
        snprintf(text + used, room - used, "%s%s %s%s",
                 named++ ? ", " : "; behind: ", peer_text(r, who, sizeof(who)),
                 status_text(&w.peers[r].status, what, sizeof(what)), quiet);
    }
}

/* Nobody has moved for as long as the longest work that somebody is at may take. */
static void check_progress(double now) {
    double moved = 0;
    int is_long = 0;
    char text[LINK_TEXT], behind[768] = "";
    for (int r = 0; r < w.size; r++) {
        moved = fmax(moved, w.peers[r].moved);
        // A rank at long work says so every second.
        is_long |= w.peers[r].status.work[0] && !is_silent(r, now);
    }
    if (w.timeout_ms == 0 || now - moved < w.timeout_ms * (is_long ? LONG_WORK : 1)) return;
    if (w.connected) name_behind(behind, sizeof(behind), now);
    snprintf(
        text, sizeof(text),
        "nothing has gone on%s for %.0f s (parallel.timeout_s is %g%s): a collective, a device "
        "or a file system hangs, or a step takes longer; a scheduler may start the job again%s",
        w.connected ? " on any rank" : "", (now - moved) / 1000.0, w.timeout_ms / 1000.0,
        is_long ? ", tenfold for long work" : "", behind);
    judge(EXIT_HANG, text);
}

/* A fault of the device's communicator most often is another rank's death: that is said first. */
static void check_device(double now) {
    static double since;
    pthread_mutex_lock(&w.lock);
    const char *fault = w.device.fault ? w.device.fault(w.device.impl) : NULL;
    pthread_mutex_unlock(&w.lock);
    if (!fault) {
        since = 0;
        return;
    }
    if (since == 0) since = now;
    if (now - since < FAULT_MS) return;
    char text[LINK_TEXT];
    snprintf(text, sizeof(text), "rank %d: the device's communicator failed: %s", w.rank, fault);
    if (w.connected && w.rank > 0) send_all(MESSAGE_FAILED, EXIT_DEVICE, text);
    judge(EXIT_DEVICE, text);
}

static void note_own_progress(double now) {
    Peer *own = &w.peers[w.rank];
    Status s = own_status();
    if (s.progress != own->status.progress) own->moved = now;
    own->status = s;
    own->heard = now;
}

static void listen_once(struct pollfd *polled) {
    int count = 0;
    for (int r = 0; r < w.size; r++)
        if (is_heard(r)) polled[count++] = (struct pollfd){w.peers[r].fd, POLLIN, 0};
    poll(polled, (nfds_t)count, LOOK_MS);
    for (int r = 0; r < w.size; r++) listen_to(r);
}

static void *watch(void *unused) {
    (void)unused;
    struct pollfd *polled = (struct pollfd *)xmalloc((size_t)w.size * sizeof(struct pollfd));
    double last = now_ms(), beat = 0;
    while (!atomic_load(&w.closing) && !atomic_load(&w.ended)) {
        listen_once(polled);
        double now = now_ms();
        if (now - last > ASLEEP_MS) {   // with all others, perhaps: what they owe counts from here
            for (int r = 0; r < w.size; r++)
                w.peers[r].heard += now - last, w.peers[r].moved += now - last;
        }
        last = now;
        note_own_progress(now);
        if (now - beat >= BEAT_MS) {
            send_all(MESSAGE_BEAT, 0, "");
            beat = now;
        }
        check_silence(now);
        check_device(now);
        if (w.rank == 0 || !w.connected) check_progress(now);
    }
    if (!atomic_load(&w.ended)) send_all(MESSAGE_BYE, 0, "");
    free(polled);
    return NULL;
}

// --- opening and closing ---

/* Rank 0's door to all, then one call of each. 1 where all have come through. */
static int connect_all(Transport *t, const char *interface, char *why) {
    Self self = link_self(t->rank, t->size);
    Self *callers = (Self *)xmalloc((size_t)t->size * sizeof(Self));
    int *fds = (int *)xmalloc((size_t)t->size * sizeof(int));
    Listener l;
    memset(&l, 0, sizeof(l));
    for (int r = 0; r < t->size; r++) fds[r] = -1;
    callers[t->rank] = self;
    if (t->rank == 0) {
        l = link_listen(interface);
        callers[0].door = l.door;
    }
    t->broadcast(t, &callers[0], sizeof(Self));
    int32_t failed = 0;
    if (t->rank == 0) {
        failed = link_gather(&l, &callers[0], 1, fds, callers, now_ms() + OPEN_MS);
        snprintf(why, LINK_TEXT, "%d of %d ranks do not reach %.*s", (int)failed, t->size, 300,
                 l.door.addresses);
        link_close(&l);
    } else {
        fds[0] = link_connect(&callers[0].door, interface, &self, 0, OPEN_MS, why);
    }
    t->broadcast(t, &failed, sizeof(failed));
    for (int r = 0; r < t->size; r++) {
        Peer *p = &w.peers[r];
        if (failed && fds[r] >= 0) close(fds[r]);
        p->fd = failed ? -1 : fds[r];
        p->pid = callers[r].pid;
        memcpy(p->host, callers[r].host, sizeof(p->host));
    }
    free(fds);
    free(callers);
    return !failed;
}

static void start_thread(double timeout_ms) {
    double now = now_ms();
    for (int r = 0; r < w.size; r++) w.peers[r].heard = w.peers[r].moved = now;
    w.timeout_ms = timeout_ms;
    atomic_store(&w.closing, 0);
    atomic_store(&w.ended, 0);
    if (pthread_create(&w.thread, NULL, watch, NULL) != 0)
        die(EXIT_OOM, "cannot start the watchdog's thread: %s", strerror(errno));
    w.running = 1;
}

static void take_peers(int rank, int size) {
    w.rank = rank;
    w.size = size;
    w.peers = (Peer *)xmalloc((size_t)size * sizeof(Peer));
    for (int r = 0; r < size; r++) w.peers[r].fd = -1;
}

void watchdog_open(Transport *t, const CommOptions *options) {
    char why[LINK_TEXT];
    take_peers(t->rank, t->size);
    w.connected = connect_all(t, options->interface, why);
    if (!w.connected) {
        log_warn("no TCP connections between the ranks: %s. One that dies will only be noticed by "
                 "what started them, or after parallel.timeout_s; parallel.interface may help",
                 why);
        w.peers[0] = w.peers[t->rank];
        w.rank = 0, w.size = 1;
    }
    watchdog_enter("start");
    start_thread(options->timeout_s * 1000.0);
}

void watchdog_train(double timeout_s) {
    watchdog_leave();
    if (w.running || timeout_s == 0) return;
    take_peers(0, 1);
    start_thread(timeout_s * 1000.0);
}

void watchdog_close(Transport *t) {
    if (!w.running) return;
    // While they are watched: from here on a rank that hangs would hold the others for ever.
    watchdog_begin("barrier", 0);
    t->barrier(t);
    watchdog_end();
    atomic_store(&w.closing, 1);
    pthread_join(w.thread, NULL);
    // No connection is closed that another rank may still read.
    t->barrier(t);
    for (int r = 0; r < w.size; r++)
        if (w.peers[r].fd >= 0) close(w.peers[r].fd);
    free(w.peers);
    w.running = w.connected = 0;
}
