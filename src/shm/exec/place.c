/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/exec/place.h"

enum { WORDS = SHC_OS_MAX_CPUS / 64 };

static bool any(const struct shc_os_cpus *cpus)
{
    for (int i = 0; i < WORDS; i++)
        if (cpus->bits[i])
            return true;
    return false;
}

bool shc_place_choose(const struct shc_topo *topo, const struct shc_os_cpus *allowed, int here,
                      const struct shc_os_cpus *taken, struct shc_os_cpus *free)
{
    const int node = shc_topo_node_of(topo, here);
    struct shc_os_cpus near = {{0}};
    for (int i = 0; i < WORDS; i++)
        free->bits[i] = allowed->bits[i] & ~taken->bits[i];
    if (here >= 0 && here < SHC_OS_MAX_CPUS)
        free->bits[here / 64] &= ~(1ULL << (here % 64));
    for (int n = 0; n < topo->node_count; n++)
        for (int i = 0; i < WORDS && node >= 0 && topo->node_ids[n] == node; i++)
            near.bits[i] = free->bits[i] & topo->node_cpus[n].bits[i];
    if (any(&near))
        *free = near;
    return any(free);
}

bool shc_place_has_choice(void)
{
    struct shc_os_cpus allowed;
    int cpus = 0;
    if (shc_os_cpus_allowed(&allowed) != 0)
        return false;
    for (int i = 0; i < WORDS; i++)
        cpus += __builtin_popcountll(allowed.bits[i]);
    return cpus > 1;
}

static bool within(const struct shc_os_cpus *inner, const struct shc_os_cpus *outer)
{
    for (int i = 0; i < WORDS; i++)
        if (inner->bits[i] & ~outer->bits[i])
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
