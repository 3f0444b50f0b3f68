/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Which CPUs a rank has: of one NUMA node, as libnuma says (os/numa.h), and of which cores, as sysfs says:
 * libnuma knows no cores. The root of sysfs is an argument, so that a test can show another machine. Any
 * thread; no state.
 */

#include "shm/os/numa.h"

/* The CPUs of the calling thread's node that it may use; false if there is only one node, or if its
 * CPUs span several. */
bool shc_topo_near_cpus(struct shc_os_cpus *cpus);

/* One CPU for each core that has one of `cpus`: the first of its siblings, also if that one is not
 * in `cpus`, so that ranks on two siblings name the same CPU. A CPU that sysfs does not know is a
 * core of its own. */
void shc_topo_cores(const char *root, const struct shc_os_cpus *cpus, struct shc_os_cpus *cores);

/* How many ranks may use each core. */
struct shc_topo_crowd {
    uint16_t ranks[SHC_OS_MAX_CPUS];
};

void shc_topo_crowd_add(struct shc_topo_crowd *crowd, const struct shc_os_cpus *cores);

/* The share of the cores that one of the ranks gets that use them: its part of each. */
double shc_topo_share(const struct shc_topo_crowd *crowd, const struct shc_os_cpus *cores);

/* How many reduction threads fit in a share, in addition to the rank itself. */
int shc_topo_spare(double share);

/* Parses "0-3,8" into a set; false on anything else. */
bool shc_topo_parse_cpus(const char *text, struct shc_os_cpus *cpus);
