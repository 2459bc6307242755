/* comm_link -- connections that know whom they lead to; see comm_link.h. */
#include "comm_link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common.h"

static const char MAGIC[16] = "gpt-nvfp4 rank1";

enum {
    BACKLOG = 4096,
    CONNECT_MS = 3000,   // of one address; a host that is there answers in milliseconds
    STRANGER_MS = 2000   // for a caller to say who it is
};

typedef enum { ANSWER_WELCOME, ANSWER_NOT_ME, ANSWER_DIE } AnswerKind;

typedef struct {
    Self self;
    int32_t to;
    char key[36];
} Call;

typedef struct {
    char magic[16];
    int32_t kind, exit_code;
    char text[LINK_TEXT];
} Answer;

// --- bytes ---

/* Until the descriptor is ready. 0 once the deadline has passed. */
static int wait_ready(int fd, short events, double deadline) {
    struct pollfd p = {fd, events, 0};
    for (;;) {
        double left = fmin(deadline - now_ms(), 1000.0);
        if (left <= 0) return 0;
        if (poll(&p, 1, (int)ceil(left)) > 0) return 1;
    }
}

int link_write(int fd, const void *data, size_t bytes, double deadline) {
    const char *at = (const char *)data;
    while (bytes > 0) {
        ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) at += sent, bytes -= (size_t)sent;
        else if (errno == EAGAIN && !wait_ready(fd, POLLOUT, deadline)) return -1;
        else if (errno != EAGAIN && errno != EINTR) return -1;
    }
    return 0;
}

int link_read(int fd, void *data, size_t bytes, double deadline) {
    char *at = (char *)data;
    while (bytes > 0) {
        if (!wait_ready(fd, POLLIN, deadline)) return -1;
        ssize_t got = recv(fd, at, bytes, MSG_DONTWAIT);
        if (got > 0) at += got, bytes -= (size_t)got;
        else if (got == 0 || (errno != EAGAIN && errno != EINTR)) return -1;
    }
    return 0;
}

// --- who this is ---

/* Of a text; FNV-1a. */
static uint64_t hash_text(uint64_t hash, const char *text) {
    for (; *text; text++) hash = (hash ^ (uint8_t)*text) * 0x100000001B3u;
    return hash;
}

Self link_self(int rank, int size) {
    Self s;
    memset(&s, 0, sizeof(s));
    memcpy(s.magic, MAGIC, sizeof(MAGIC));
    gethostname(s.host, sizeof(s.host) - 1);
    s.rank = rank;
    s.size = size;
    s.pid = getpid();
    s.local_rank = -1;
    // Host names may repeat in a cluster of images; a boot is one machine's.
    size_t bytes;
    char *problem,
        *boot = try_read_text_file("/proc/sys/kernel/random/boot_id", 256, &bytes, &problem);
    s.host_id = hash_text(hash_text(0xCBF29CE484222325u, s.host), boot ? boot : "");
    free(boot ? boot : problem);
    return s;
}

// --- listening ---

static void make_key(char key[36]) {
    uint8_t random[16];
    if (getrandom(random, sizeof(random), 0) != sizeof(random))
        die(EXIT_DEVICE, "no random numbers for the key of the ranks: %s", strerror(errno));
    for (int i = 0; i < 16; i++) snprintf(key + 2 * i, 3, "%02x", random[i]);
}

/* The interface of the default route, "" without one. */
static void default_interface(char name[IF_NAMESIZE]) {
    name[0] = '\0';
    FILE *f = fopen("/proc/net/route", "r");
    char line[256], interface[IF_NAMESIZE];
    unsigned destination;
    while (f && !name[0] && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%15s %x", interface, &destination) == 2 && destination == 0)
            memcpy(name, interface, IF_NAMESIZE);
    }
    if (f) fclose(f);
}

static void add_address(char *list, size_t room, const struct sockaddr *address) {
    char text[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &((const struct sockaddr_in *)address)->sin_addr, text, sizeof(text));
    size_t used = strlen(list);
    if (used + strlen(text) + 2 < room)
        snprintf(list + used, room - used, "%s%s", used ? " " : "", text);
}

/* How far down the list an interface comes: that of the default route, others, loopback. */
static int rank_of_interface(const struct ifaddrs *i, const char *by_default) {
    if (i->ifa_flags & IFF_LOOPBACK) return 2;
    return strcmp(i->ifa_name, by_default) == 0 ? 0 : 1;
}

/* Addresses of the interface, or of all for ""; their names into `names` when there are none. */
static void list_addresses(const char *interface, char *addresses, size_t room, char *names,
                           size_t names_room) {
    char by_default[IF_NAMESIZE];
    struct ifaddrs *all = NULL;
    default_interface(by_default);
    addresses[0] = names[0] = '\0';
    if (getifaddrs(&all) != 0) die(EXIT_DEVICE, "getifaddrs failed: %s", strerror(errno));
    for (int turn = 0; turn < 3; turn++) {
        for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
            if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP) ||
                rank_of_interface(i, by_default) != turn)
                continue;
            size_t used = strlen(names);
            snprintf(names + used, names_room - used, "%s%s", used ? ", " : "", i->ifa_name);
            if (!interface[0] || strcmp(interface, i->ifa_name) == 0)
                add_address(addresses, room, i->ifa_addr);
        }
    }
    freeifaddrs(all);
}

/* The address to bind to: any for "", that of an interface, or the one that is given. */
static struct sockaddr_in own_address(const char *interface, char *addresses, size_t room) {
    struct sockaddr_in own = {.sin_family = AF_INET};
    char names[512], first[INET_ADDRSTRLEN];
    if (inet_pton(AF_INET, interface, &own.sin_addr) == 1) {
        snprintf(addresses, room, "%s", interface);
        return own;
    }
    list_addresses(interface, addresses, room, names, sizeof(names));
    if (!addresses[0]) {
        die(EXIT_CONFIG,
            "parallel.interface is '%s'; legal: an IPv4 address of this host, or one of its "
            "interfaces that have one: %s",
            interface, names[0] ? names : "(none)");
    }
    if (interface[0] && sscanf(addresses, "%15s", first) == 1)
        inet_pton(AF_INET, first, &own.sin_addr);
    return own;
}

Listener link_listen(const char *interface) {
    Listener l = {socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), {"", "", 0}};
    make_key(l.door.key);
    struct sockaddr_in own = own_address(interface, l.door.addresses, sizeof(l.door.addresses));
    socklen_t bytes = sizeof(own);
    if (l.fd < 0 || bind(l.fd, (struct sockaddr *)&own, sizeof(own)) != 0 ||
        listen(l.fd, BACKLOG) != 0 || getsockname(l.fd, (struct sockaddr *)&own, &bytes) != 0) {
        die(errno == EADDRNOTAVAIL ? EXIT_CONFIG : EXIT_DEVICE,
            "cannot listen for other ranks on %s: %s; parallel.interface names an interface or an "
            "IPv4 address of this host",
            interface[0] ? interface : "any interface", strerror(errno));
    }
    l.door.port = ntohs(own.sin_port);
    return l;
}

void link_close(Listener *l) {
    close(l->fd);
    l->fd = -1;
}

// --- answers ---

static int answer(int fd, AnswerKind kind, int exit_code, const char *text) {
    Answer a;
    memset(&a, 0, sizeof(a));
    memcpy(a.magic, MAGIC, sizeof(MAGIC));
    a.kind = kind;
    a.exit_code = exit_code;
    snprintf(a.text, sizeof(a.text), "%s", text);
    return link_write(fd, &a, sizeof(a), now_ms() + STRANGER_MS);
}

void link_refuse(int fd, int exit_code, const char *text) {
    answer(fd, ANSWER_DIE, exit_code, text);
}
void link_welcome(int fd) { answer(fd, ANSWER_WELCOME, 0, ""); }

/* ANSWER_WELCOME, ANSWER_NOT_ME, or -1 for no answer. */
static int hear_answer(int fd, double deadline) {
    Answer a;
    if (link_read(fd, &a, sizeof(a), deadline) != 0) return -1;
    if (memcmp(a.magic, MAGIC, sizeof(MAGIC)) != 0) return -1;
    a.text[LINK_TEXT - 1] = '\0';
    if (a.kind == ANSWER_DIE) die((ExitCode)a.exit_code, "%s", a.text);
    return a.kind;
}

int link_await(int fd, double deadline) {
    return hear_answer(fd, deadline) == ANSWER_WELCOME ? 0 : -1;
}

// --- calling ---

static void set_options(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

/* -1 with errno. */
static int connect_within(const char *address, int port, const char *interface, double deadline) {
    char unused[512];
    struct sockaddr_in own = {.sin_family = AF_INET},
                       other = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, address, &other.sin_addr) != 1) return errno = EINVAL, -1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (interface[0]) own = own_address(interface, unused, sizeof(unused));
    int failed = 0;
    socklen_t bytes = sizeof(failed);
    if (interface[0] && bind(fd, (struct sockaddr *)&own, sizeof(own)) != 0) failed = errno;
    if (!failed && connect(fd, (struct sockaddr *)&other, sizeof(other)) != 0) failed = errno;
    if (failed == EINPROGRESS) {
        if (!wait_ready(fd, POLLOUT, deadline)) failed = ETIMEDOUT;
        else getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &bytes);
    }
    if (!failed) return set_options(fd), fd;
    close(fd);
    errno = failed;
    return -1;
}

int link_connect(const Door *door, const char *interface, const Self *self, int to,
                 double patience_ms, char *why) {
    Call call;
    memset(&call, 0, sizeof(call));
    call.self = *self;
    call.to = to;
    memcpy(call.key, door->key, sizeof(call.key));
    char list[sizeof(door->addresses)], *rest = list;
    memcpy(list, door->addresses, sizeof(list));
    snprintf(why, LINK_TEXT, "no address");
    for (char *address; (address = strsep(&rest, " "));) {
        int fd = connect_within(address, door->port, interface,
                                now_ms() + fmin(CONNECT_MS, patience_ms));
        if (fd < 0) {
            snprintf(why, LINK_TEXT, "%s:%d: %s", address, door->port, strerror(errno));
            continue;
        }
        double deadline = now_ms() + patience_ms;
        int sent = link_write(fd, &call, sizeof(call), deadline) == 0;
        int kind = sent ? hear_answer(fd, deadline) : -1;
        if (kind == ANSWER_WELCOME) return fd;
        close(fd);
        snprintf(why, LINK_TEXT, "%s:%d: %s", address, door->port,
                 kind == ANSWER_NOT_ME ? "another job listens there" : "no answer");
    }
    return -1;
}

// --- being called ---

static void refuse_all(int fd, const int *fds, int size, const char *text) {
    link_refuse(fd, EXIT_CONFIG, text);
    for (int r = 0; r < size; r++)
        if (fds[r] >= 0) link_refuse(fds[r], EXIT_CONFIG, text);
    die(EXIT_CONFIG, "%s", text);
}

/* 1 where the caller belongs to this job and means this rank. Dies where the job is at odds. */
static int belongs(int fd, const Call *call, const Listener *l, const Self *self, const int *fds,
                   const Self *peers) {
    const Self *caller = &call->self;
    char text[LINK_TEXT];
    if (memcmp(caller->magic, MAGIC, sizeof(MAGIC)) != 0) return 0;
    if (memcmp(call->key, l->door.key, sizeof(call->key)) != 0 || call->to != self->rank ||
        strncmp(caller->job, self->job, sizeof(self->job)) != 0) {
        answer(fd, ANSWER_NOT_ME, 0, "");
        return 0;
    }
    if (caller->size != self->size) {
        snprintf(text, sizeof(text),
                 "rank %d (pid %d on %.63s) was told that there are %d ranks, rank %d that there "
                 "are %d; start all with the same WORLD_SIZE",
                 caller->rank, caller->pid, caller->host, caller->size, self->rank, self->size);
        refuse_all(fd, fds, self->size, text);
    }
    if (caller->rank < 0 || caller->rank >= self->size) return 0;
    const Self *before = caller->rank == self->rank ? self
                         : fds[caller->rank] >= 0   ? &peers[caller->rank]
                                                    : NULL;
    if (before && (before->pid != caller->pid || before->host_id != caller->host_id)) {
        snprintf(text, sizeof(text),
                 "two processes are rank %d: pid %d on %.63s and pid %d on %.63s; give each its "
                 "own RANK, or each job its own parallel.rendezvous_file",
                 caller->rank, before->pid, before->host, caller->pid, caller->host);
        refuse_all(fd, fds, self->size, text);
    }
    return 1;
}

/* Who calls next; -1 where it is nobody of this job. */
static int take_call(const Listener *l, const Self *self, const int *fds, const Self *peers,
                     Self *caller) {
    Call call;
    int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return -1;
    set_options(fd);
    if (link_read(fd, &call, sizeof(call), now_ms() + STRANGER_MS) != 0 ||
        !belongs(fd, &call, l, self, fds, peers)) {
        close(fd);
        return -1;
    }
    *caller = call.self;
    return fd;
}

/* What it was reached by becomes the first of its addresses: the way there is known to work. */
static void note_way(int fd, Self *caller) {
    struct sockaddr_in from;
    socklen_t bytes = sizeof(from);
    char address[INET_ADDRSTRLEN], said[sizeof(caller->door.addresses)];
    getpeername(fd, (struct sockaddr *)&from, &bytes);
    inet_ntop(AF_INET, &from.sin_addr, address, sizeof(address));
    memcpy(said, caller->door.addresses, sizeof(said));
    snprintf(caller->door.addresses, sizeof(said), "%s %.400s", address, said);
}

int link_gather(const Listener *l, const Self *self, int first, int *fds, Self *peers,
                double deadline) {
    int missing = 0;
    for (int r = first; r < self->size; r++) missing += fds[r] < 0;
    while (missing > 0 && wait_ready(l->fd, POLLIN, deadline)) {
        Self caller;
        int fd = take_call(l, self, fds, peers, &caller);
        if (fd < 0) continue;
        int r = caller.rank;
        // A caller that did not wait for the answer calls again.
        if (fds[r] >= 0) close(fds[r]);
        else missing--;
        note_way(fd, &caller);
        fds[r] = fd;
        peers[r] = caller;
        link_welcome(fd);
    }
    return missing;
}
