/*
network -- how long a collective takes between GPUs that need not be there: bytes over the
bandwidths of links, and hops. Arithmetic alone: it knows no step, no model and no communicator.

Ranks fill nodes. Within a node links join all of them; between nodes each GPU has a port of its
own. With g ranks a node on n nodes, R = g n:
  one way        reduce-scatter or all-gather of S bytes: a ring in each node, and one between the
                 nodes for each of the g parts:
                   (g-1)/g S / links  +  (n-1)/n (S/g) / ports  +  (g-1) hops  +  (n-1) hops
  both ways      an all-reduce is one after the other
  small          all-reduce of a few bytes: up a tree and down again, (g-1) + log2(n) hops each way
Both begin with what a collective costs that has nothing to do. The two levels do not overlap, and
nothing else is on the wires.
*/
#ifndef LLMC_NETWORK_H
#define LLMC_NETWORK_H

#include <stdio.h>

#include "config.h"
#include "device_facts.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    double link, port;           // bytes a second and direction of a GPU, as collectives reach them
    double link_hop, port_hop;   // seconds
    double small_link_hop, small_port_hop;
    int node;   // most ranks on one node
} Network;

/* Of a device in the table, with the keys plan.gpus_per_node, plan.link and plan.network. */
Network network_of(const Config *c, DeviceModel device);
int network_nodes(const Network *n, int ranks);
/* Seconds of one reduce-scatter or all-gather of a buffer of so many bytes; 0 for one rank. */
double network_one_way(const Network *n, int ranks, double bytes);
/* Seconds of one all-reduce of a few bytes. */
double network_small(const Network *n, int ranks);
/* What each rank sends, and receives, of one way: the part of the buffer that is not its own. */
double network_sent(int ranks, double bytes);
/* The assumptions in four lines, with where they are from. */
void network_print(FILE *out, const Config *c, DeviceModel device);

#ifdef __cplusplus
}
#endif
#endif
