/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/exec/topo.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#define LIST_BYTES 4096

bool shc_topo_parse_cpus(const char *text, struct shc_os_cpus *cpus)
{
    *cpus = (struct shc_os_cpus){{0}};
    while (*text && *text != '\n') {
        char *end;
        long first = strtol(text, &end, 10), last = first;
        if (end == text)
            return false;
        if (*end == '-') {
            text = end + 1;
            last = strtol(text, &end, 10);
            if (end == text)
                return false;
        }
        if (first < 0 || last < first || last >= SHC_OS_MAX_CPUS)
            return false;
        for (long cpu = first; cpu <= last; cpu++)
            shc_os_cpus_add(cpus, (int)cpu);
        text = *end == ',' ? end + 1 : end;
        if (*end && *end != ',' && *end != '\n')
            return false;
    }
    return true;
}

bool shc_topo_near_cpus(struct shc_os_cpus *cpus)
{
    return shc_os_cpus_allowed(cpus) == 0 && shc_numa_node_of(shc_numa_get(), cpus) >= 0;
}

/* The first of the CPU's siblings. */
static int core_of(const char *root, int cpu)
{
    char path[PATH_MAX], list[LIST_BYTES];
    struct shc_os_cpus siblings;
    snprintf(path, sizeof path, "%s/devices/system/cpu/cpu%d/topology/thread_siblings_list", root,
             cpu);
    if (shc_os_read_text(path, list, sizeof list) != 0 || !shc_topo_parse_cpus(list, &siblings))
        return cpu;
    int first = 0;
    while (first < cpu && !shc_os_cpus_have(&siblings, first))
        first++;
    return first;
}

void shc_topo_cores(const char *root, const struct shc_os_cpus *cpus, struct shc_os_cpus *cores)
{
    *cores = (struct shc_os_cpus){{0}};
    for (int cpu = 0; cpu < SHC_OS_MAX_CPUS; cpu++)
        if (shc_os_cpus_have(cpus, cpu))
            shc_os_cpus_add(cores, core_of(root, cpu));
}

void shc_topo_crowd_add(struct shc_topo_crowd *crowd, const struct shc_os_cpus *cores)
{
    for (int core = 0; core < SHC_OS_MAX_CPUS; core++)
        crowd->ranks[core] = (uint16_t)(crowd->ranks[core] + shc_os_cpus_have(cores, core));
}

double shc_topo_share(const struct shc_topo_crowd *crowd, const struct shc_os_cpus *cores)
{
    double share = 0;
    for (int core = 0; core < SHC_OS_MAX_CPUS; core++)
        if (shc_os_cpus_have(cores, core) && crowd->ranks[core] > 0)
            share += 1.0 / crowd->ranks[core];
    return share;
}

int shc_topo_spare(double share)
{
    const int whole = (int)(share + 1e-6); /* a sum of thirds may end a little below its 4 */
    return whole > 1 ? whole - 1 : 0;
}
