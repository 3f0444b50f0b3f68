/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/exec/place.h"

#include <limits.h>

/* From here to that CPU. Where a node is not known, all are as far. */
static int distance_of(const struct shc_numa *numa, int here, int cpu)
{
    const int node = here >= 0 && here < SHC_OS_MAX_CPUS ? numa->node_of[here] : -1;
    const int its = numa->node_of[cpu];
    if (node < 0 || its < 0)
        return UINT8_MAX;
    if (node == its)
        return 0;
    const int distance = numa->distance[node][its];
    return distance > 0 ? distance : UINT8_MAX;
}

bool shc_place_choose(const struct shc_numa *numa, const struct shc_os_cpus *allowed, int here,
                      const struct shc_os_cpus *taken, struct shc_os_cpus *free)
{
    int nearest = INT_MAX;
    *free = (struct shc_os_cpus){{0}};
    for (int cpu = 0; cpu < SHC_OS_MAX_CPUS; cpu++) {
        if (cpu == here || !shc_os_cpus_have(allowed, cpu) || shc_os_cpus_have(taken, cpu))
            continue;
        const int distance = distance_of(numa, here, cpu);
        if (distance < nearest)
            *free = (struct shc_os_cpus){{0}};
        if (distance <= nearest)
            shc_os_cpus_add(free, cpu);
        nearest = distance < nearest ? distance : nearest;
    }
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
    struct shc_os_cpus before, free, after;
    if (shc_os_cpus_allowed(&before) != 0 ||
        !shc_place_choose(shc_numa_get(), &before, here, taken, &free) ||
        shc_os_thread_pin(&free) != 0)
        return false;
    /* A CPU outside that set: another thread has pinned this one meanwhile, on purpose, so
     * that pinning stays. */
    if (shc_os_cpus_allowed(&after) == 0 && !within(&after, &free))
        return true;
    return shc_os_thread_pin(&before) == 0;
}

/* A rank is taken to be where its process's first thread is, as most programs call from there. If
 * ranks are threads of this process, it is not known where they are. */
bool shc_place_migrate(const struct shc_seat *seat)
{
    const int here = shc_os_cpu_current();
    struct shc_os_cpus taken = {{0}};
    bool shared = false;
    if (!shc_place_has_choice())
        return false;
    for (int rank = 0; rank < seat->world_size; rank++) {
        const struct shc_os_process process = shc_seat_process(seat, rank);
        const bool ours = process.pid == seat->self.pid;
        if (ours && (rank != seat->rank || shc_os_thread_id() == process.pid))
            continue;
        const int cpu = shc_os_process_cpu(&seat->self, &process);
        shared = shared || (cpu >= 0 && cpu == here && !ours);
        shc_os_cpus_add(&taken, cpu);
    }
    return shared && shc_place_move(here, &taken);
}
