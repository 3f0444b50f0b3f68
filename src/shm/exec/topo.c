/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/exec/topo.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

void shc_topo_read(struct shc_topo *topo, const char *root)
{
    char path[PATH_MAX], list[LIST_BYTES];
    struct shc_os_cpus nodes;
    *topo = (struct shc_topo){0};
    snprintf(path, sizeof path, "%s/devices/system/node/online", root);
    if (shc_os_read_text(path, list, sizeof list) != 0 || !shc_topo_parse_cpus(list, &nodes))
        nodes = (struct shc_os_cpus){{0}};
    for (int node = 0; node < SHC_OS_MAX_CPUS && topo->node_count < SHC_TOPO_MAX_NODES; node++) {
        if (!shc_os_cpus_have(&nodes, node))
            continue;
        snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", root, node);
        if (shc_os_read_text(path, list, sizeof list) != 0 ||
            !shc_topo_parse_cpus(list, &topo->node_cpus[topo->node_count]))
            continue;
        topo->node_ids[topo->node_count++] = node;
    }
    if (topo->node_count == 0)
        topo->node_count = 1;
}

int shc_topo_node_of(const struct shc_topo *topo, int cpu)
{
    for (int i = 0; i < topo->node_count; i++)
        if (shc_os_cpus_have(&topo->node_cpus[i], cpu))
            return topo->node_ids[i];
    return -1;
}

int shc_topo_current_node(void)
{
    struct shc_topo topo;
    struct shc_os_cpus allowed;
    shc_topo_read(&topo, "/sys");
    int node = shc_topo_node_of(&topo, shc_os_cpu_current());
    if (topo.node_count < 2 || node < 0 || shc_os_cpus_allowed(&allowed) != 0)
        return -1;
    for (int cpu = 0; cpu < SHC_OS_MAX_CPUS; cpu++)
        if (shc_os_cpus_have(&allowed, cpu) && shc_topo_node_of(&topo, cpu) != node)
            return -1; /* the scheduler may move it anywhere */
    return node;
}

bool shc_topo_near_cpus(struct shc_os_cpus *cpus)
{
    /* The allowed CPUs lie in one node, or there is no current node. */
    return shc_topo_current_node() >= 0 && shc_os_cpus_allowed(cpus) == 0;
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
