/* SPDX-License-Identifier: BSD-3-Clause */
/* What operations are made of: calls of the island, calls of an engine, and the wait for these. */
#include "hosts/group.h"
#include "hosts/hosts_late.h"

#include "shm/base/lateness.h"
#include "shm/base/num.h"
#include "shm/comm/island.h"

#include <stdio.h>
#include <string.h>

#define GRACE_NS   (500 * SHC_NS_PER_MS) /* HOST-26 */
#define OTHERS_NS  (250 * SHC_NS_PER_MS)
#define HINT_LOOKS 6
#define SLICE_NS   (10 * SHC_NS_PER_MS) /* between two looks at what may end a wait */

bool shc_hosts_is_interrupted(void *ctx)
{
    const struct shc_hosts *hosts = ctx;
    const bool asks = hosts->making || (hosts->turn && hosts->turn->interruptible);
    return asks && hosts->interrupted && hosts->interrupted(hosts->interrupted_ctx);
}

static uint64_t left_ns(const struct shc_hosts *hosts)
{
    const uint64_t now_ns = shc_clock_ns();
    if (hosts->deadline_ns == SHC_NO_DEADLINE)
        return SHC_NO_DEADLINE;
    return hosts->deadline_ns > now_ns ? hosts->deadline_ns - now_ns : 1;
}

enum shc_status shc_hosts_island_first(struct shc_hosts *hosts, struct shc_op *op)
{
    op->timeout_ns = left_ns(hosts);
    return shc_run(hosts->island, op);
}

enum shc_status shc_hosts_island(struct shc_hosts *hosts, struct shc_op *op)
{
    op->timeout_ns = shc_deadline_after(GRACE_NS, left_ns(hosts));
    return shc_run(hosts->island, op);
}

enum shc_status shc_hosts_ticket(struct shc_hosts *hosts, struct shc_ticket **ticket)
{
    *ticket = shc_gate_ticket(hosts->gate);
    return *ticket ? SHC_OK
                   : shc_hosts_fail(hosts, SHC_ERR_NOMEM, "no memory for a call of the engine");
}

/* All rails share the link, so this one has a part of what it carries. */
enum shc_status shc_hosts_rail_ticket(struct shc_hosts *hosts, uint64_t bytes,
                                      struct shc_ticket **ticket)
{
    SHC_TRY(shc_hosts_ticket(hosts, ticket));
    shc_gate_measure(*ticket, bytes * (uint64_t)hosts->plan.rails);
    return SHC_OK;
}

enum shc_status shc_hosts_begun(struct shc_hosts *hosts, struct shc_ticket **ticket, int error)
{
    char why[64];
    if (error == 0)
        return SHC_OK;
    shc_ticket_done(*ticket, "");
    shc_gate_abandon(*ticket);
    *ticket = NULL;
    return shc_hosts_fail(hosts, SHC_ERR_SYSTEM, "the engine between hosts began no call: %s",
                          strerror_r(error, why, sizeof why));
}

static enum shc_status time_is_over(struct shc_hosts *hosts)
{
    char whom[256];
    shc_late_missing_text(hosts, whom, sizeof whom);
    return shc_hosts_fail(hosts, SHC_ERR_TIMEOUT, SHC_TIMED_OUT "%.3f s waiting for %s",
                          (double)hosts->turn->timeout_ns / (double)SHC_NS_PER_S, whom);
}

/* Is there a reason to wait no longer? */
static enum shc_status look_around(struct shc_hosts *hosts)
{
    SHC_TRY(shc_comm_error(hosts->sequencer));
    SHC_TRY(shc_dead_look(hosts));
    SHC_TRY(shc_comm_error(hosts->island));
    if (shc_clock_ns() >= shc_deadline_after(hosts->deadline_ns, OTHERS_NS))
        return time_is_over(hosts);
    if (shc_hosts_is_interrupted(hosts))
        return shc_hosts_fail(hosts, SHC_ERR_INTERRUPTED,
                              "interrupted by a signal while waiting for the other hosts of \"%s\"",
                              shc_hosts_group_name(hosts));
    return SHC_OK;
}

/* An engine knows that a connection has ended, and not why. */
static enum shc_status engine_failed(struct shc_hosts *hosts, const char *error)
{
    char joined[256];
    /* A close of this rank ends its calls of the engine. */
    SHC_TRY(shc_comm_error(hosts->sequencer));
    shc_reason_joined_text(hosts, joined, sizeof joined);
    const enum shc_status st = shc_hosts_fail(
        hosts, SHC_ERR_SYSTEM, "the engine between the hosts of \"%s\" failed: %s; it joins %s",
        shc_hosts_group_name(hosts), error, joined);
    const struct shc_hosts_call *call = hosts->dead.call;
    if (call && call->proves) /* a proof goes on */
        return st;
    SHC_TRY(shc_leaving_ask(hosts));
    return shc_dead_settle(hosts, st, HINT_LOOKS);
}

/* For late lines, and for tools. */
static void await(struct shc_hosts *hosts, bool awaits)
{
    shc_dead_await(hosts, awaits);
    shc_island_await(hosts->island, hosts->number, awaits);
}

enum shc_status shc_hosts_await(struct shc_hosts *hosts, struct shc_ticket **ticket)
{
    char error[SHC_HOSTS_ERROR_BYTES];
    enum shc_status st = SHC_OK;
    bool waits = false;
    while (st == SHC_OK && !shc_gate_wait(*ticket, SLICE_NS, error)) {
        if (!waits)
            await(hosts, true);
        waits = true;
        st = look_around(hosts);
    }
    if (waits)
        await(hosts, false);
    if (st != SHC_OK)
        shc_gate_abandon(*ticket);
    *ticket = NULL;
    SHC_TRY(st);
    if (!error[0])
        return SHC_OK;
    return engine_failed(hosts, error);
}
