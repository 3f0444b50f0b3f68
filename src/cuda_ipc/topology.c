/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/topology.h"

#include <stdio.h>
#include <string.h>

static const char *const probe_names[SHC_PROBE_COUNT] = {
    [SHC_PROBE_NONE] = "was not tried", [SHC_PROBE_GOOD] = "works",
    [SHC_PROBE_REFUSED] = "is refused", [SHC_PROBE_WRONG] = "gives wrong data",
    [SHC_PROBE_LATE] = "does not end",
};

static const char *const route_names[SHC_ROUTE_COUNT] = {
    [SHC_ROUTE_ALONE] = "alone",
    [SHC_ROUTE_SAME_GPU] = "same GPU",
    [SHC_ROUTE_PEERS] = "peers",
    [SHC_ROUTE_HOST] = "host memory",
};

const char *shc_probe_name(unsigned probe)
{
    return probe < SHC_PROBE_COUNT ? probe_names[probe] : "is unknown";
}

const char *shc_route_name(enum shc_route route)
{
    return (unsigned)route < SHC_ROUTE_COUNT ? route_names[route] : "unknown";
}

static bool same_gpu(const struct shc_facts *facts, int a, int b)
{
    return memcmp(&facts->uuids[a], &facts->uuids[b], sizeof facts->uuids[a]) == 0;
}

static int gpu_of(const struct shc_facts *facts, struct shc_topology *topology, int rank)
{
    for (int r = 0; r < rank; r++)
        if (same_gpu(facts, r, rank))
            return topology->gpu_of[r];
    return topology->gpu_count++;
}

/* The number-th rank of the GPU, round and round: groups do not all burden the same process. */
static int leader_of(const struct shc_topology *topology, int gpu, uint64_t number)
{
    int before = (int)(number % (uint64_t)topology->gpus[gpu].count);
    for (int r = 0; r < topology->world; r++)
        if (topology->gpu_of[r] == gpu && before-- == 0)
            return r;
    return -1; /* no GPU is without a rank */
}

void shc_topology_place(const struct shc_facts *facts, struct shc_topology *topology)
{
    memset(topology, 0, sizeof *topology);
    topology->world = facts->world;
    for (int r = 0; r < facts->world; r++) {
        const int gpu = gpu_of(facts, topology, r);
        topology->gpu_of[r] = gpu;
        topology->gpus[gpu].count++;
        if (r > 0 && topology->gpu_of[r - 1] == gpu)
            topology->blocks[topology->block_count - 1].count++;
        else
            topology->blocks[topology->block_count++] =
                (struct shc_block){.first = r, .count = 1, .gpu = gpu};
    }
    for (int gpu = 0; gpu < topology->gpu_count; gpu++)
        topology->gpus[gpu].leader = leader_of(topology, gpu, facts->number);
}

static bool leads(const struct shc_topology *topology, int rank)
{
    return topology->gpus[topology->gpu_of[rank]].leader == rank;
}

bool shc_topology_needs(const struct shc_topology *topology, int from, int to)
{
    if (from == to)
        return false;
    return topology->gpu_of[from] == topology->gpu_of[to] ||
           (leads(topology, from) && leads(topology, to));
}

/* Writes the pair down, if it is the first of its kind. */
static void blame(char reason[SHC_TOPOLOGY_REASON_BYTES], const struct shc_facts *facts, int from,
                  int to)
{
    if (reason[0] == 0)
        snprintf(reason, SHC_TOPOLOGY_REASON_BYTES, "rank %d with rank %d's memory: it %s", from,
                 to, shc_probe_name(facts->probes[from][to]));
}

void shc_topology_route(const struct shc_facts *facts, struct shc_topology *topology)
{
    for (int gpu = 0; gpu < topology->gpu_count; gpu++)
        topology->gpus[gpu].inside =
            topology->gpus[gpu].count > 1 ? SHC_ROUTE_SAME_GPU : SHC_ROUTE_ALONE;
    topology->between = topology->gpu_count > 1 ? SHC_ROUTE_PEERS : SHC_ROUTE_ALONE;
    topology->inside_reason[0] = topology->between_reason[0] = 0;
    for (int from = 0; from < topology->world; from++) {
        for (int to = 0; to < topology->world; to++) {
            if (!shc_topology_needs(topology, from, to) ||
                facts->probes[from][to] == SHC_PROBE_GOOD)
                continue;
            const int gpu = topology->gpu_of[from];
            if (gpu == topology->gpu_of[to]) {
                topology->gpus[gpu].inside = SHC_ROUTE_HOST;
                blame(topology->inside_reason, facts, from, to);
            } else {
                topology->between = SHC_ROUTE_HOST;
                blame(topology->between_reason, facts, from, to);
            }
        }
    }
}
