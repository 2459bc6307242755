/*
comm_socket -- the transport of ranks that were only told their number: a TCP connection between
every two of them. Rank 0 writes where it listens into the rendezvous file; the others call it, and
once all are there it tells everyone where everyone listens. A connection that ends is a rank that
has died, and is known at once.

A file that an earlier start has left does no harm: what it names does not answer, or answers that
it is of another start (comm_link.h), and the ranks wait for rank 0 to replace it.
*/
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm_link.h"
#include "comm_transport.h"
#include "comm_watchdog.h"
#include "common.h"
#include "outfile.h"

enum {
    LOOK_AGAIN_US = 100000,   // at the rendezvous file, for rank 0 to have written it
    CHECK_FILE_MS = 1000,     // for rank 0 to see whether it is still the one it wrote
    ANSWER_MS = 10000,        // for rank 0, busy with others, to answer a call
    GRACE_MS = 10000,         // that ranks wait longer for rank 0 than it waits for them
    MAX_RENDEZVOUS_BYTES = 4096
};
#define RENDEZVOUS_FORMAT                                                                          \
    "train_gpt_nvfp4 rendezvous 1\nkey %s\nport %d\npid %d\nhost %s\naddresses "

/* What one connection still has to carry. */
typedef struct {
    const char *out;
    char *in;
    size_t out_left, in_left;
} Traffic;

typedef struct {
    int *fds;                // [size] of the other ranks; -1 of this one
    Self *peers;             // [size]
    Traffic *traffic;        // [size]
    struct pollfd *polled;   // [size] those that are not done
    int *polled_rank;        // [size] whose they are
} Mesh;

// --- carrying bytes ---

static void lost(const Mesh *m, int rank, const char *why) {
    const Self *p = &m->peers[rank];
    watchdog_peer_lost();
    die(EXIT_HANG, "rank %d (pid %d on %s) went away: %s", rank, p->pid, p->host, why);
}

static void send_some(const Mesh *m, int rank) {
    Traffic *t = &m->traffic[rank];
    ssize_t sent = send(m->fds[rank], t->out, t->out_left, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) lost(m, rank, strerror(errno));
    if (sent > 0) t->out += sent, t->out_left -= (size_t)sent;
}

static void receive_some(const Mesh *m, int rank) {
    Traffic *t = &m->traffic[rank];
    ssize_t got = recv(m->fds[rank], t->in, t->in_left, MSG_DONTWAIT);
    if (got == 0) lost(m, rank, "it closed the connection");
    if (got < 0 && errno != EAGAIN && errno != EINTR) lost(m, rank, strerror(errno));
    if (got > 0) t->in += got, t->in_left -= (size_t)got;
}

/* Until all traffic is done: with all ranks at once, in both directions. */
static void carry(Transport *t) {
    Mesh *m = (Mesh *)t->impl;
    for (;;) {
        int busy = 0;
        for (int r = 0; r < t->size; r++) {
            const Traffic *traffic = &m->traffic[r];
            short events =
                (short)((traffic->out_left ? POLLOUT : 0) | (traffic->in_left ? POLLIN : 0));
            if (!events) continue;
            m->polled[busy] = (struct pollfd){m->fds[r], events, 0};
            m->polled_rank[busy++] = r;
        }
        if (busy == 0) return;
        if (poll(m->polled, (nfds_t)busy, -1) < 0) continue;   // a signal
        for (int i = 0; i < busy; i++) {
            int r = m->polled_rank[i], ready = m->polled[i].revents;
            if (m->traffic[r].out_left && ready & (POLLOUT | POLLERR)) send_some(m, r);
            if (m->traffic[r].in_left && ready & (POLLIN | POLLHUP | POLLERR)) receive_some(m, r);
        }
    }
}

static Traffic traffic_of(const void *send, Pieces out, void *receive, Pieces in, int rank,
                          int unit) {
    Traffic t = {
        send ? (const char *)send + (int64_t)out.starts[rank] * unit : NULL,
        receive ? (char *)receive + (int64_t)in.starts[rank] * unit : NULL,
        send ? (size_t)out.counts[rank] * (size_t)unit : 0,
        receive ? (size_t)in.counts[rank] * (size_t)unit : 0,
    };
    return t;
}

static void socket_exchange(Transport *t, const void *send, Pieces out, void *receive, Pieces in,
                            int unit) {
    Mesh *m = (Mesh *)t->impl;
    for (int r = 0; r < t->size; r++) m->traffic[r] = traffic_of(send, out, receive, in, r, unit);
    Traffic *own = &m->traffic[t->rank];
    memcpy(own->in, own->out, own->in_left);
    own->in_left = own->out_left = 0;
    carry(t);
}

static void socket_gather(Transport *t, void *data, Pieces parts, int unit) {
    Mesh *m = (Mesh *)t->impl;
    Traffic own = traffic_of(data, parts, NULL, parts, t->rank, unit);
    for (int r = 0; r < t->size; r++) {
        m->traffic[r] = traffic_of(NULL, parts, data, parts, r, unit);
        m->traffic[r].out = own.out;
        m->traffic[r].out_left = own.out_left;
        if (r == t->rank) m->traffic[r].out_left = m->traffic[r].in_left = 0;
    }
    carry(t);
}

static void socket_broadcast(Transport *t, void *data, int bytes) {
    Mesh *m = (Mesh *)t->impl;
    for (int r = 0; r < t->size; r++) {
        Traffic from_root = {(const char *)data, NULL, (size_t)bytes, 0},
                to_here = {NULL, (char *)data, 0, (size_t)bytes}, none = {NULL, NULL, 0, 0};
        m->traffic[r] = r == t->rank ? none : t->rank == 0 ? from_root : r == 0 ? to_here : none;
    }
    carry(t);
}

static void socket_barrier(Transport *t) {
    Mesh *m = (Mesh *)t->impl;
    static const char out[1] = "";
    char in[1];
    for (int r = 0; r < t->size; r++) {
        Traffic byte = {out, in, 1, 1}, none = {NULL, NULL, 0, 0};
        m->traffic[r] = r == t->rank ? none : byte;
    }
    carry(t);
}

/* Connections that end tell the others. */
static void socket_abort(Transport *t, int exit_code) { (void)t, (void)exit_code; }

static void socket_close(Transport *t) {
    Mesh *m = (Mesh *)t->impl;
    for (int r = 0; r < t->size; r++)
        if (m->fds[r] >= 0) close(m->fds[r]);
    free(m->fds);
    free(m->peers);
    free(m->traffic);
    free(m->polled);
    free(m->polled_rank);
    free(m);
    free(t);
}

// --- the rendezvous file ---

/* Of this start of this job where the launcher names it, so that others do not replace it. */
static char *rendezvous_path(const Launch *launch, const CommOptions *o) {
    if (o->file[0]) return xstrdup(o->file);
    char *path =
        format_string("%s/rendezvous%s%s", o->directory, launch->job[0] ? "." : "", launch->job);
    for (char *p = path + strlen(o->directory) + 1; *p; p++)
        if (*p == '/') *p = '_';
    return path;
}

/* Bytes of the deepest directory above path that is there; 0 for the current one and the root. */
static size_t existing_length(const char *path) {
    char *folder = xstrdup(path), *slash;
    size_t length = 0;
    while (length == 0 && (slash = strrchr(folder, '/')) && slash > folder) {
        *slash = '\0';
        if (file_exists(folder)) length = strlen(folder);
    }
    free(folder);
    return length;
}

/* Removes the file, and the directories below `existed` that were made for it, as far as they are
   empty: a dry run leaves nothing behind. */
static void remove_rendezvous(const char *path, size_t existed) {
    char *folder = xstrdup(path), *slash;
    unlink(path);
    while ((slash = strrchr(folder, '/')) && (size_t)(slash - folder) > existed) {
        *slash = '\0';
        if (rmdir(folder) != 0) break;
    }
    free(folder);
}

/* What is there may be a user's file, or a device: only rendezvous files and empty ones are
   replaced. */
static void refuse_foreign_file(const char *path) {
    static const char magic[] = "train_gpt_nvfp4 rendezvous ";
    char head[sizeof(magic)] = "";
    struct stat info;
    if (lstat(path, &info) != 0) return;
    FILE *f = S_ISREG(info.st_mode) ? fopen(path, "rb") : NULL;
    size_t got = f ? fread(head, 1, sizeof(magic) - 1, f) : 0;
    if (f) fclose(f);
    if (f && (info.st_size == 0 || (got == sizeof(magic) - 1 && strcmp(head, magic) == 0))) return;
    die(EXIT_CONFIG,
        "parallel.rendezvous_file '%s' is there and is no rendezvous file, and would be replaced; "
        "give a name that nothing else has",
        path);
}

/* Only this user may read the key. */
static void write_rendezvous(const char *path, const Self *self) {
    char *folder = xstrdup(path), *slash = strrchr(folder, '/');
    if (slash && slash > folder) {
        *slash = '\0';
        make_directory(folder, "the directory of parallel.rendezvous_file");
    }
    free(folder);
    char *content = format_string(RENDEZVOUS_FORMAT "%s\n", self->door.key, (int)self->door.port,
                                  (int)self->pid, self->host, self->door.addresses);
    // By a name of its own: another process may be at the same file.
    char *own = format_string("%s.%s", path, self->door.key);
    mode_t mask = umask(077);
    outfile_replace(own, "parallel.rendezvous_file", content, strlen(content));
    umask(mask);
    if (rename(own, path) != 0)
        die(EXIT_DATA, "parallel.rendezvous_file: cannot rename '%s' to '%s': %s", own, path,
            strerror(errno));
    free(own);
    free(content);
}

/* What the file says; 0, and why in `why`, where it says nothing. */
static int read_rendezvous(const char *path, Self *root, char *why) {
    size_t bytes;
    char *problem, *content = try_read_text_file(path, MAX_RENDEZVOUS_BYTES, &bytes, &problem);
    if (!content) {
        snprintf(why, LINK_TEXT, "%s", problem);
        free(problem);
        return 0;
    }
    memset(root, 0, sizeof(*root));
    int at = 0, port, pid;
    int known = sscanf(
        content, "train_gpt_nvfp4 rendezvous 1 key %35s port %d pid %d host %63s addresses %n",
        root->door.key, &port, &pid, root->host, &at);
    int whole = known == 4 && at > 0 && content[bytes - 1] == '\n';
    if (whole) {
        root->door.port = port;
        root->pid = pid;
        snprintf(root->door.addresses, sizeof(root->door.addresses), "%.*s",
                 (int)strcspn(content + at, "\n"), content + at);
    } else {
        snprintf(why, LINK_TEXT, "it is no rendezvous file");
    }
    free(content);
    return whole;
}

// --- coming together ---

static double deadline_of(const CommOptions *o) {
    return o->timeout_s > 0 ? now_ms() + o->timeout_s * 1000.0 : INFINITY;
}

/* "1, 3 and 5 more": the ranks from `first` on that have not come. */
static void name_missing(const int *fds, int first, int size, char *text, size_t room) {
    int named = 0, others = 0;
    text[0] = '\0';
    for (int r = first; r < size; r++) {
        if (fds[r] >= 0) continue;
        size_t used = strlen(text);
        if (named < 8) snprintf(text + used, room - used, "%s%d", named++ ? ", " : "", r);
        else others++;
    }
    size_t used = strlen(text);
    if (others) snprintf(text + used, room - used, " and %d more", others);
}

/* Those of the ranks from `first` on that have come end likewise. */
static void tell_arrived(const Mesh *m, int first, int size, int exit_code, const char *message) {
    for (int r = first; r < size; r++)
        if (m->fds[r] >= 0) link_refuse(m->fds[r], exit_code, message);
}

static void die_of_missing(const Mesh *m, int first, const Launch *launch, const CommOptions *o,
                           const char *path) NORETURN;
static void die_of_missing(const Mesh *m, int first, const Launch *launch, const CommOptions *o,
                           const char *path) {
    char missing[128], message[LINK_TEXT];
    name_missing(m->fds, first, launch->size, missing, sizeof(missing));
    snprintf(
        message, sizeof(message),
        "of %d ranks (%s) these did not come to rank %d within %g s (parallel.timeout_s): %s. "
        "Look at how they ended; did they start, with this same parallel.rendezvous_file (%s)%s?",
        launch->size, launch->by, launch->rank, o->timeout_s, missing, path, launch->hint);
    tell_arrived(m, first, launch->size, EXIT_DEVICE, message);
    die(EXIT_DEVICE, "%s", message);
}

/* Writes the file again where it is gone. Dies where another process has replaced it: ranks would
   come partly here, partly there. */
static void check_rendezvous(const Mesh *m, const Launch *launch, const CommOptions *o,
                             const char *path) {
    const Self *self = &m->peers[0];
    Self other;
    char why[LINK_TEXT], message[LINK_TEXT];
    if (!file_exists(path)) write_rendezvous(path, self);
    if (!read_rendezvous(path, &other, why) || strcmp(other.door.key, self->door.key) == 0) return;
    snprintf(message, sizeof(message),
             "while pid %d on %s, rank 0, waited for the others, pid %d on %s, also rank 0, "
             "replaced %.300s; give each process its own RANK, and each job its own "
             "parallel.rendezvous_file",
             self->pid, self->host, other.pid, other.host, path);
    tell_arrived(m, 1, launch->size, EXIT_CONFIG, message);
    // If it is of the same job, it learns of this one, and both end: link_gather.
    int fd = link_connect(&other.door, o->interface, self, 0, ANSWER_MS, why);
    if (fd >= 0) close(fd);
    die(EXIT_CONFIG, "%s", message);
}

/* How many ranks have not come in time. */
static int await_ranks(Mesh *m, const Listener *l, const Launch *launch, const CommOptions *o,
                       const char *path) {
    double deadline = deadline_of(o);
    for (;;) {
        double look = fmin(deadline, now_ms() + CHECK_FILE_MS);
        int missing = link_gather(l, &m->peers[0], 1, m->fds, m->peers, look);
        if (missing == 0 || now_ms() >= deadline) return missing;
        check_rendezvous(m, launch, o, path);
    }
}

/* Rank 0: all others call; then each learns of all. */
static void receive_ranks(Mesh *m, const Listener *l, const Launch *launch, const CommOptions *o,
                          const char *path) {
    int size = launch->size;
    size_t existed = existing_length(path);
    refuse_foreign_file(path);
    write_rendezvous(path, &m->peers[0]);
    int missing = await_ranks(m, l, launch, o, path);
    remove_rendezvous(path, existed);
    if (missing > 0) die_of_missing(m, 1, launch, o, path);
    for (int r = 1; r < size; r++) {
        link_welcome(m->fds[r]);
        if (link_write(m->fds[r], m->peers, (size_t)size * sizeof(Self), now_ms() + GRACE_MS) != 0)
            die(EXIT_HANG, "rank %d (pid %d on %s) went away", r, m->peers[r].pid,
                m->peers[r].host);
    }
}

/* Another rank: finds rank 0 by the file, as soon as it is the right one. */
static int call_rank_0(const Self *self, Self *root, const Launch *launch, const CommOptions *o,
                       const char *path) {
    char why[LINK_TEXT] = "", where[LINK_TEXT] = "";
    double deadline = deadline_of(o);
    while (now_ms() < deadline) {
        if (read_rendezvous(path, root, why)) {
            int fd = link_connect(&root->door, o->interface, self, 0, ANSWER_MS, why);
            if (fd >= 0) return fd;
            snprintf(where, sizeof(where), ", which pid %d on %s wrote", root->pid, root->host);
        }
        usleep(LOOK_AGAIN_US);
    }
    die(EXIT_DEVICE,
        "rank 0 of %d (%s) did not come within %g s (parallel.timeout_s): %.300s%.200s: %.300s. "
        "All ranks must see this parallel.rendezvous_file%s",
        launch->size, launch->by, o->timeout_s, path, where, why, launch->hint);
}

static void join_ranks(Mesh *m, const Listener *l, const Launch *launch, const CommOptions *o,
                       const char *path) {
    int size = launch->size, rank = launch->rank;
    Self self = m->peers[rank], root;
    char why[LINK_TEXT];
    m->fds[0] = call_rank_0(&self, &root, launch, o, path);
    // Rank 0 began to wait before it answered.
    double deadline = deadline_of(o) + GRACE_MS;
    if (link_await(m->fds[0], deadline) != 0 ||
        link_read(m->fds[0], m->peers, (size_t)size * sizeof(Self), deadline) != 0)
        die(EXIT_HANG, "rank 0 (pid %d on %s) went away while ranks were coming", root.pid,
            root.host);
    for (int r = 1; r < rank; r++) {
        const Self *peer = &m->peers[r];
        m->fds[r] = link_connect(&peer->door, o->interface, &self, r, deadline - now_ms(), why);
        if (m->fds[r] < 0)
            die(EXIT_DEVICE,
                "cannot reach rank %d (pid %d on %s) at %s. Ranks reach each other by TCP on any "
                "port; parallel.interface names the interface to use",
                r, peer->pid, peer->host, why);
    }
    if (link_gather(l, &self, rank + 1, m->fds, m->peers, deadline) > 0)
        die_of_missing(m, rank + 1, launch, o, path);
}

/* Among the ranks of its host, in order. */
static int local_rank_of(const Mesh *m, int rank) {
    int before = 0;
    for (int r = 0; r < rank; r++) before += m->peers[r].host_id == m->peers[rank].host_id;
    return before;
}

Transport *transport_socket_open(const Launch *launch, const CommOptions *o) {
    size_t size = (size_t)launch->size;
    Mesh *m = (Mesh *)xmalloc(sizeof(Mesh));
    m->fds = (int *)xmalloc(size * sizeof(int));
    m->peers = (Self *)xmalloc(size * sizeof(Self));
    m->traffic = (Traffic *)xmalloc(size * sizeof(Traffic));
    m->polled = (struct pollfd *)xmalloc(size * sizeof(struct pollfd));
    m->polled_rank = (int *)xmalloc(size * sizeof(int));
    for (int r = 0; r < launch->size; r++) m->fds[r] = -1;

    Listener l = link_listen(o->interface);
    Self *self = &m->peers[launch->rank];
    *self = link_self(launch->rank, launch->size);
    self->door = l.door;
    snprintf(self->job, sizeof(self->job), "%s", launch->job);
    char *path = rendezvous_path(launch, o);
    (launch->rank == 0 ? receive_ranks : join_ranks)(m, &l, launch, o, path);
    free(path);
    link_close(&l);

    Transport *t = (Transport *)xmalloc(sizeof(Transport));
    t->name = "sockets";
    t->rank = launch->rank;
    t->size = launch->size;
    t->local_rank = launch->local_rank >= 0 ? launch->local_rank : local_rank_of(m, t->rank);
    t->impl = m;
    t->exchange = socket_exchange;
    t->gather = socket_gather;
    t->broadcast = socket_broadcast;
    t->barrier = socket_barrier;
    t->abort = socket_abort;
    t->close = socket_close;
    return t;
}
