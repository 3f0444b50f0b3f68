/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/thread_budget.h"

#include "shm/base/log.h"
#include "shm/coll/select.h"
#include "shm/comm/process.h"
#include "shm/exec/topo.h"

#include <stdio.h>

void shc_thread_budget_tell(const struct shc_thread_budget *budget, struct shc_identity *identity)
{
    identity->threads = shc_process_threads(budget->wish);
    if (identity->threads == SHC_THREADS_AUTO)
        shc_topo_cores("/sys", &identity->cpus, &identity->cores);
}

/* The number that is set, or -1: it depends on the cores. */
static int said_of(const struct shc_seat *seat, int rank)
{
    const int said = SHC_READ_ONCE(shc_seat_identity_shm(seat, rank)->said.threads);
    return said < SHC_POOL_MAX_THREADS ? said : SHC_POOL_MAX_THREADS;
}

/* That rank's share of all cores: at most the tightest quota. */
static double share_of(const struct shc_seat *seat, const struct shc_topo_crowd *crowd, int rank)
{
    const struct shc_os_cpus cores = shc_seat_identity(seat, rank).cores;
    double share = shc_topo_share(crowd, &cores);
    for (int other = 0; other < seat->world_size; other++) {
        const double quota = SHC_READ_ONCE(shc_seat_identity_shm(seat, other)->said.cpu_quota);
        if (quota > 0 && quota / seat->world_size < share)
            share = quota / seat->world_size;
    }
    return share;
}

/* A rank with `auto` takes no more threads than can help. */
static int threads_of(const struct shc_seat *seat, const struct shc_topo_crowd *crowd, int rank)
{
    const int said = said_of(seat, rank);
    if (said >= 0)
        return said;
    const int spare = shc_topo_spare(share_of(seat, crowd, rank));
    return spare < SHC_SELECT_MOST_THREADS ? spare : SHC_SELECT_MOST_THREADS;
}

void shc_thread_budget_muster(struct shc_thread_budget *budget, const struct shc_seat *seat)
{
    struct shc_topo_crowd crowd = {{0}};
    for (int rank = 0; rank < seat->world_size; rank++) {
        const struct shc_os_cpus cores = shc_seat_identity(seat, rank).cores;
        if (said_of(seat, rank) < 0)
            shc_topo_crowd_add(&crowd, &cores);
    }
    budget->agreed = SHC_POOL_MAX_THREADS;
    for (int rank = 0; rank < seat->world_size; rank++) {
        const int its = threads_of(seat, &crowd, rank);
        budget->agreed = its < budget->agreed ? its : budget->agreed;
    }
    const bool counts = said_of(seat, seat->rank) < 0;
    const int mine = threads_of(seat, &crowd, seat->rank);
    budget->pool = shc_process_pool(mine, counts);
    if (counts)
        snprintf(budget->from, sizeof budget->from,
                 "auto: %.2f cores for this rank, one for itself",
                 share_of(seat, &crowd, seat->rank));
    else
        snprintf(budget->from, sizeof budget->from, "%s",
                 budget->wish == SHC_THREADS_AUTO ? "auto: counted by another group"
                 : budget->wish == 0              ? "none asked for"
                                                  : "set");
    shc_log(SHC_LOG_INFO, "%s: %d reduction threads (%s); every rank has %d",
            shc_seat_member_name(seat, seat->rank).text, shc_pool_size(budget->pool), budget->from,
            budget->agreed);
}
