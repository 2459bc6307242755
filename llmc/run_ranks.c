/* run_ranks -- opening the ranks, and what they must have in common; see run_ranks.h. */
#include "run_ranks.h"

#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "version.h"

enum { GPU_NAME = 64 };

/* Where ranks may differ. */
static const char *const keys_of_hosts[] = {"threads", "parallel.interface",
                                            "parallel.rendezvous_file"};

static int may_differ(const char *line) {
    for (int i = 0; i < ARRAY_LEN(keys_of_hosts); i++) {
        size_t length = strlen(keys_of_hosts[i]);
        if (strncmp(line, keys_of_hosts[i], length) == 0 && line[length] == ':') return 1;
    }
    return 0;
}

static void compare_programs(const Run *r) {
    char *own = format_string("%s, %s", version_git_hash(), version_build());
    char *first = comm_share_text(r->host, own);
    if (strcmp(own, first) != 0) {
        die(EXIT_CONFIG,
            "the program is not that of rank 0: commit %s; rank 0: %s. Build once and start the "
            "same "
            "file everywhere",
            own, first);
    }
    free(first);
    free(own);
}

static void compare_configs(const Run *r) {
    char *own = config_to_json(&r->config), *first = comm_share_text(r->host, own);
    char *lines = config_changes(&r->config, first, NULL), *rest = lines;
    char *others = xstrdup("");
    for (char *line = strsep(&rest, "\n"); line && line[0]; line = strsep(&rest, "\n")) {
        if (may_differ(line)) continue;
        char *longer = format_string("%s%s%s", others, others[0] ? "; " : "", line);
        free(others);
        others = longer;
    }
    if (others[0]) {
        die(EXIT_CONFIG,
            "the config is not that of rank 0: %s (rank 0 -> rank %d). Start all ranks with the "
            "same "
            "files and words",
            others, r->host->rank);
    }
    free(others);
    free(lines);
    free(first);
    free(own);
}

void run_open_ranks(Run *r) {
    const Config *c = &r->config;
    CommOptions options = {c->parallel.rendezvous, c->parallel.rendezvous_file, c->log.dir,
                           c->parallel.interface, c->parallel.timeout_s};
    r->host = comm_host_open(&options);
    if (r->host->size == 1) return;
    compare_programs(r);
    compare_configs(r);
}

int run_gpu_of_rank(const Run *r, int num_gpus) {
    const Comm *host = r->host;
    if (host->local_rank < num_gpus || num_gpus == 0) return host->local_rank;
    // Slurm may show each of its tasks one GPU, which is then number 0 for all of them.
    if (num_gpus == 1) return 0;
    die(EXIT_DEVICE,
        "this is rank %d of its host, counted from 0, which shows %d GPUs; a rank needs a GPU of "
        "its own: start at most %d ranks a host, or look at LOCAL_RANK and CUDA_VISIBLE_DEVICES",
        host->local_rank, num_gpus, num_gpus);
}

void run_check_gpus(const Run *r, const char *gpu) {
    Comm *host = r->host;
    if (host->size == 1) return;
    char(*names)[GPU_NAME] = (char(*)[GPU_NAME])xmalloc((size_t)host->size * GPU_NAME);
    snprintf(names[host->rank], GPU_NAME, "%s", gpu);
    comm_gather_blocks(host, names, GPU_NAME);
    for (int i = 0; i < host->rank; i++) {
        if (strcmp(names[i], names[host->rank]) != 0) continue;
        die(EXIT_DEVICE,
            "ranks %d and %d have the same GPU, %s; a rank needs one of its own: start as many "
            "ranks as there are GPUs, or look at LOCAL_RANK and CUDA_VISIBLE_DEVICES",
            i, host->rank, gpu);
    }
    free(names);
}
