/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * libnuma, opened by dlopen() when it is first needed: a library that is linked with it would not load
 * on a machine without it. What it says of this machine is read once. Any thread.
 */

#include "shm/os/os.h"

#define SHC_NUMA_MAX_NODES 64 /* nodes of a higher number are not known here */

struct shc_numa {
    /* NULL: built without libnuma, not installed, or refused by the kernel. */
    long (*mbind)(void *memory, unsigned long bytes, int mode, const unsigned long *nodes,
                  unsigned long max_node, unsigned flags);
    int8_t node_of[SHC_OS_MAX_CPUS]; /* -1: not known, or the machine has one node */
    /* The firmware's; 10: the same node, 0: not known. */
    uint8_t distance[SHC_NUMA_MAX_NODES][SHC_NUMA_MAX_NODES];
};

/* Of this machine. Without libnuma it has one node. */
const struct shc_numa *shc_numa_get(void);

/* The node in which all these CPUs lie. -1: there is none, or the machine has one node. */
int shc_numa_node_of(const struct shc_numa *numa, const struct shc_os_cpus *cpus);
