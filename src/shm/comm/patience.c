/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/comm.h"

#include "shm/base/config.h"
#include "shm/exec/place.h"
#include "shm/proto/wait.h"

#define SPIN_NS         (5 * SHC_NS_PER_US)
#define SPIN_CROWDED_NS (1 * SHC_NS_PER_US)
#define YIELDS          100u
#define AWAKE_NS        (200 * SHC_NS_PER_US) /* going to sleep and being woken may take so long */

int shc_usable_cpus(const struct shc_seat *seat)
{
    struct shc_os_cpus all = {{0}};
    int quota = 0;
    for (int rank = 0; rank < seat->world_size; rank++) {
        const struct shc_identity identity = shc_seat_identity(seat, rank);
        for (size_t i = 0; i < sizeof all.bits / sizeof all.bits[0]; i++)
            all.bits[i] |= identity.cpus.bits[i];
        if (identity.cpu_quota > 0 && (quota == 0 || identity.cpu_quota < quota))
            quota = identity.cpu_quota;
    }
    const int cpus = shc_os_cpus_count(&all);
    return quota > 0 && quota < cpus ? quota : cpus;
}

/* Spinning pays only while every spinner has a CPU of its own. Otherwise it takes the CPU from the rank
 * that is waited for. It covers the skew of ranks that run at the same time. After that, yielding polls
 * almost as fast and costs no other thread a CPU (docs/notebook/waiting-and-start-up.md). A sleeper is
 * woken late, and perhaps on the CPU of the thread that woke it. */
static struct shc_patience patience_for(bool room, uint64_t crowded_ns)
{
    const int spin_us = shc_config_get()->spin_us;
    const uint64_t spin_ns = spin_us >= 0 ? (uint64_t)spin_us * SHC_NS_PER_US
                             : room       ? SPIN_NS
                                          : crowded_ns;
    return (struct shc_patience){
        .spins = shc_wait_spins_for(spin_ns),
        .yields = YIELDS,
        .awake_ns = room ? AWAKE_NS : 0,
        .migrates = room && shc_config_get()->move,
    };
}

void shc_patience_set(struct shc_seat *seat)
{
    const int cpus = shc_usable_cpus(seat);
    const bool room = seat->world_size <= cpus;
    seat->cpu_sharing.room = room;
    seat->cpu_sharing.migrate = shc_place_migrate;
    /* In a collective of more ranks than CPUs, some rank that is waited for has no CPU. The other side of a
     * message may well have one. */
    seat->patience = patience_for(room, 0);
    seat->patience_p2p = patience_for(room, SPIN_CROWDED_NS);
    /* Next to an engine thread, the application's own thread wants to run. */
    seat->patience_engine = patience_for(2 * seat->world_size <= cpus, SPIN_CROWDED_NS);
}
