/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Which ranks share a GPU, and by which way data goes inside a GPU and between GPUs: a pure
 * function of a table that all ranks have alike, so all decide alike. No memory, no I/O.
 *
 *   SAME_GPU  ranks of one GPU: the slabs of all are mapped by all, a leader executes
 *   PEERS     the leaders of the GPUs map one another's slabs
 *   HOST      through pinned host memory; what always works, and what a failed probe ends in
 *
 * It is all or none per GPU, and all or none between the GPUs: ways that differ by pair would need
 * algorithms of their own, and one bad pair slows the group down anyway.
 */

#include "cuda_ipc/cuda_abi.h"
#include "shm/base/attrs.h"
#include "shm/shmcoll.h"

/* What a rank found when it used another one's slab with real data. */
enum shc_probe {
    SHC_PROBE_NONE = 0, /* not tried */
    SHC_PROBE_GOOD,
    SHC_PROBE_REFUSED, /* it cannot be mapped */
    SHC_PROBE_WRONG,   /* other bytes than were written */
    SHC_PROBE_LATE,    /* the copy did not end */
    SHC_PROBE_COUNT
};

enum shc_route {
    SHC_ROUTE_ALONE = 0, /* there is nobody else */
    SHC_ROUTE_SAME_GPU,
    SHC_ROUTE_PEERS,
    SHC_ROUTE_HOST,
    SHC_ROUTE_COUNT
};

/* Probes come from other processes: a wild one gets a name too. */
const char *shc_probe_name(unsigned probe);
const char *shc_route_name(enum shc_route route);

/* What all ranks know. probes[a][b] is what rank a found with rank b's slab; a byte each, as they
 * are sent. Pairs that no decision needs may be NONE. */
struct shc_facts {
    int world;
    uint64_t number; /* of the group in its process: rotates the leaders */
    struct shc_cu_uuid uuids[SHC_MAX_WORLD];
    uint8_t probes[SHC_MAX_WORLD][SHC_MAX_WORLD];
};

/* Ranks first .. first + count - 1 are on one GPU, and their neighbours are not: sums in rank order
 * go from block to block. A GPU may have several. */
struct shc_block {
    int first, count, gpu;
};

struct shc_gpu_group {
    int count;  /* ranks */
    int leader; /* that executes, and that meets the other GPUs' leaders */
    enum shc_route inside;
};

#define SHC_TOPOLOGY_REASON_BYTES 128

struct shc_topology {
    int world, gpu_count, block_count;
    int gpu_of[SHC_MAX_WORLD];                /* by rank; GPUs are numbered by their lowest rank */
    struct shc_gpu_group gpus[SHC_MAX_WORLD]; /* by GPU */
    struct shc_block blocks[SHC_MAX_WORLD];
    enum shc_route between;
    /* The first pair that ruled out a shorter way: for the one line of the log. "" if none did. */
    char inside_reason[SHC_TOPOLOGY_REASON_BYTES];
    char between_reason[SHC_TOPOLOGY_REASON_BYTES];
};

/* Who is where, and who leads: needs no probe, and says which pairs to probe. */
void shc_topology_place(const struct shc_facts *facts, struct shc_topology *topology);

/* pre: placed. Must a probe of this ordered pair be made before shc_topology_route? */
bool shc_topology_needs(const struct shc_topology *topology, int from, int to);

/* pre: placed, from the same facts but for the probes. Decides the routes. */
void shc_topology_route(const struct shc_facts *facts, struct shc_topology *topology);
