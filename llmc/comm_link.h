/*
comm_link -- TCP connections (IPv4) between the processes of one job. Both ends prove that they mean
each other: a listener has a random key, which travels to the other ranks on a way that only they
can read, and each connection begins with it, with the caller's rank and with the rank it wants.
What answers at an address that an earlier job has left, or that means another machine from here, is
so told apart from the rank that was meant. Not for bulk data: comm_socket.c does that.

Deadlines are of now_ms(); INFINITY waits for ever.
*/
#ifndef LLMC_COMM_LINK_H
#define LLMC_COMM_LINK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LINK_TEXT = 1024, LINK_HOST = 64 };

/* Where a rank listens. Sent as it is: the ranks of a job run the same program. */
typedef struct {
    char key[36];          // 32 hexadecimal digits
    char addresses[512];   // with spaces between; the likeliest to be reached from afar first
    int32_t port;
} Door;

typedef struct {
    int fd;
    Door door;
} Listener;

/* What a process says of itself. */
typedef struct {
    char magic[16];
    Door door;   // its own; key "" for none
    char job[128], host[LINK_HOST];
    uint64_t host_id;   // of host name and boot: equal for processes of one host
    int32_t rank, size, pid, local_rank;
} Self;

Self link_self(int rank, int size);
/* Listens on `interface`, a name or an address, or on all for "". Dies with EXIT_CONFIG naming
   parallel.interface and those that there are. */
Listener link_listen(const char *interface);
void link_close(Listener *l);

/* Connects to rank `to`, which answers within `patience_ms` from each address. -1, and why in `why`
   [LINK_TEXT], where nobody or somebody else is there. Dies as the other end says. */
int link_connect(const Door *door, const char *interface, const Self *self, int to,
                 double patience_ms, char *why);
/* Takes the calls of all ranks from `first` on: fds[r], peers[r]. Ranks whose fds[r] is not -1 are
   there already. Returns how many have not come by the deadline. Dies, and with it those that have
   come, when two processes have one rank or one was told of another number of ranks. */
int link_gather(const Listener *l, const Self *self, int first, int *fds, Self *peers,
                double deadline);
/* Tells the other end to die so; link_await is where it learns it. */
void link_refuse(int fd, int exit_code, const char *text);
void link_welcome(int fd);
/* Waits for link_welcome. -1 where the other end has gone, or is silent until the deadline. */
int link_await(int fd, double deadline);

/* The whole of data; -1 where the connection ends or the deadline comes first. */
int link_write(int fd, const void *data, size_t bytes, double deadline);
int link_read(int fd, void *data, size_t bytes, double deadline);

#ifdef __cplusplus
}
#endif
#endif
