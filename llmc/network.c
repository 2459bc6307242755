/* network -- collectives as bytes and hops; see network.h. */
#include "network.h"

#include <math.h>

#include "common.h"

/* NCCL's own model of rings and trees, src/graph/tuning.cc of 2.2x: protocols Simple and LL. */
static const double RING_SECONDS = 8.4e-6, TREE_SECONDS = 6.8e-6;
static const double PORT_HOP = 14e-6, SMALL_PORT_HOP = 5e-6;
/* Of a port, what large collectives reach; assumed. */
static const double PORT_SHARE = 0.85;

static const LinkFacts *link_of(DeviceModel device) {
    return &link_facts[device_facts[device].link];
}

static double link_bandwidth(const Config *c, DeviceModel device) {
    return c->plan.link > 0 ? c->plan.link * 1e9 : link_of(device)->bandwidth;
}

Network network_of(const Config *c, DeviceModel device) {
    CHECK(device != DEVICE_MODEL_AUTO, "links of a device that nothing is known of");
    const LinkFacts *link = link_of(device);
    int node = c->plan.gpus_per_node ? c->plan.gpus_per_node : device_facts[device].node;
    Network n = {
        .link = link_bandwidth(c, device) * link->share,
        .port = c->plan.network * 1e9 * PORT_SHARE,
        .link_hop = link->hop_seconds,
        .port_hop = PORT_HOP,
        .small_link_hop = link->small_hop_seconds,
        .small_port_hop = SMALL_PORT_HOP,
        .node = node,
    };
    return n;
}

int network_nodes(const Network *n, int ranks) { return (int)ceil_div(ranks, n->node); }

/* Ranks of a node; where the last node is not full, the mean. */
static double ranks_a_node(const Network *n, int ranks) {
    return (double)ranks / network_nodes(n, ranks);
}

double network_one_way(const Network *n, int ranks, double bytes) {
    if (ranks == 1) return 0;
    double nodes = network_nodes(n, ranks), g = ranks_a_node(n, ranks);
    double within = (g - 1) / g * bytes / n->link + (g - 1) * n->link_hop;
    double between = (nodes - 1) / nodes * (bytes / g) / n->port + (nodes - 1) * n->port_hop;
    return RING_SECONDS + within + between;
}

double network_small(const Network *n, int ranks) {
    if (ranks == 1) return 0;
    double within = (ranks_a_node(n, ranks) - 1) * n->small_link_hop;
    double between = ceil(log2(network_nodes(n, ranks))) * n->small_port_hop;
    return TREE_SECONDS + 2 * (within + between);
}

double network_sent(int ranks, double bytes) { return bytes * (ranks - 1) / ranks; }

void network_print(FILE *out, const Config *c, DeviceModel device) {
    const LinkFacts *link = link_of(device);
    Network n = network_of(c, device);
    fprintf(out, "  assumed  %d GPUs a node (%s), %.0f GB/s each way between them (%s)\n", n.node,
            c->plan.gpus_per_node ? "plan.gpus_per_node" : device_facts[device].name,
            link_bandwidth(c, device) * 1e-9, c->plan.link > 0 ? "plan.link" : link->name);
    fprintf(out, "           collectives reach %.0f %% of it: %s\n", 100 * link->share,
            link->share_from);
    fprintf(out,
            "           %.0f GB/s a GPU between nodes (plan.network; InfiniBand NDR has 50), of "
            "it %.0f %%: assumed\n",
            c->plan.network, 100 * PORT_SHARE);
    fprintf(out,
            "           rings, %.1f us from GPU to GPU and %.0f us from node to node: NCCL's "
            "own model\n",
            n.link_hop * 1e6, n.port_hop * 1e6);
}
