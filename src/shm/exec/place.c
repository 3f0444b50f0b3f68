/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/exec/place.h"

bool shc_place_choose(const struct shc_topo *topo, const struct shc_os_cpus *allowed, int here,
                      const struct shc_os_cpus *taken, struct shc_os_cpus *free)
{
    const int node = shc_topo_node_of(topo, here);
    struct shc_os_cpus near = {{0}};
    *free = near;
    for (int cpu = 0; cpu < SHC_OS_MAX_CPUS; cpu++) {
        if (cpu == here || !shc_os_cpus_have(allowed, cpu) || shc_os_cpus_have(taken, cpu))
            continue;
        shc_os_cpus_add(free, cpu);
        if (node >= 0 && shc_topo_node_of(topo, cpu) == node)
            shc_os_cpus_add(&near, cpu);
    }
    if (shc_os_cpus_count(&near) > 0)
        *free = near;
    return shc_os_cpus_count(free) > 0;
}

bool shc_place_has_choice(void)
{
    struct shc_os_cpus allowed;
    return shc_os_cpus_allowed(&allowed) == 0 && shc_os_cpus_count(&allowed) > 1;
}

static bool within(const struct shc_os_cpus *inner, const struct shc_os_cpus *outer)
{
    for (int cpu = 0; cpu < SHC_OS_MAX_CPUS; cpu++)
        if (shc_os_cpus_have(inner, cpu) && !shc_os_cpus_have(outer, cpu))
            return false;
    return true;
}

bool shc_place_move(int here, const struct shc_os_cpus *taken)
{
    struct shc_topo topo;
    struct shc_os_cpus before, free, after;
    shc_topo_read(&topo, "/sys"); /* first: it takes its time */
    if (shc_os_cpus_allowed(&before) != 0 ||
        !shc_place_choose(&topo, &before, here, taken, &free) || shc_os_thread_pin(&free) != 0)
        return false;
    /* A CPU beyond those: somebody else has pinned it meanwhile, and means that. */
    if (shc_os_cpus_allowed(&after) == 0 && !within(&after, &free))
        return true;
    return shc_os_thread_pin(&before) == 0;
}
