/* SPDX-License-Identifier: BSD-3-Clause */
/* The turn of an operation: which one it is, and what comes before and after it. */
#include "hosts/group.h"

#include "shm/base/lateness.h"
#include "shm/comm/island.h"

#include <stdio.h>

static enum shc_status barrier(const struct shc_hosts_call *call)
{
    char *nothing;
    return shc_hosts_meet(call, 0, NULL, &nothing);
}

static enum shc_status run_kind(const struct shc_hosts_call *call)
{
    SHC_TRY(shc_hosts_announce(call));
    if (shc_hosts_is_ordered(call->hosts, call->op))
        return shc_hosts_ordered(call);
    switch (call->op->kind) {
    case SHC_BARRIER:
        return call->proves ? shc_hosts_agree(call, shc_hosts_try_rail(call->hosts))
                            : barrier(call);
    case SHC_BROADCAST:
        return shc_hosts_broadcast(call);
    case SHC_ALL_GATHER:
    case SHC_ALL_GATHER_UNEVEN:
    case SHC_GATHER:
        return shc_hosts_gather(call);
    case SHC_REDUCE_SCATTER:
    case SHC_REDUCE_SCATTER_UNEVEN:
    case SHC_SCATTER:
        return shc_hosts_scatter(call);
    case SHC_ALL_TO_ALL:
        return shc_hosts_alltoall(call);
    case SHC_ALL_REDUCE_SPARSE:
        return shc_hosts_sparse(call);
    default:
        return shc_hosts_reduce(call);
    }
}

enum shc_status shc_hosts_turn(void *ctx, struct shc_turn *turn)
{
    struct shc_hosts_call *call = ctx;
    struct shc_hosts *hosts = call->hosts;
    call->said.number = ++hosts->number;
    shc_island_say(hosts->island, &call->said);
    hosts->turn = turn;
    hosts->deadline_ns = shc_deadline_after(shc_clock_ns(), turn->timeout_ns);
    enum shc_status st = shc_dead_begin(call);
    if (st == SHC_OK)
        st = shc_dead_lacks_store(hosts) ? shc_hosts_tell_gone(call) : run_kind(call);
    if (st != SHC_OK && !turn->error[0])
        snprintf(turn->error, sizeof turn->error, "%s", shc_error_text());
    st = shc_dead_settle(hosts, st, 0);
    if (st != SHC_OK && st != SHC_ERR_CLOSED)
        shc_comm_abort(hosts->island, turn->error); /* the others must not wait for this rank */
    shc_dead_end(hosts, st);
    shc_island_say(hosts->island, NULL);
    if (st == SHC_OK && hosts->line.rest)
        hosts->line.rest(hosts->line.ctx);
    hosts->turn = NULL;
    return st;
}

static bool has(enum shc_op_kind kind)
{
    return kind <= SHC_ALL_REDUCE_SPARSE;
}

enum shc_status shc_hosts_describe(struct shc_hosts *hosts, const struct shc_op *op,
                                   struct shc_hosts_call *call, char *error)
{
    const enum shc_op_kind kind = op->kind;
    error[0] = '\0';
    *call = (struct shc_hosts_call){.hosts = hosts, .op = op};
    if (!has(kind)) {
        snprintf(error, SHC_HOSTS_ERROR_BYTES, "%s: a group over several hosts does not have it",
                 shc_op_kind_name(kind));
        return SHC_ERR_UNSUPPORTED;
    }
    if (kind == SHC_ALL_REDUCE_SPARSE && shc_hosts_is_ordered(hosts, op)) {
        snprintf(error, SHC_HOSTS_ERROR_BYTES,
                 "%s: a group over several hosts does not have it for sums in the order of ranks",
                 shc_op_kind_name(kind));
        return SHC_ERR_UNSUPPORTED;
    }
    if (!hosts->gate) {
        snprintf(error, SHC_HOSTS_ERROR_BYTES, "the group has no engines yet");
        return SHC_ERR_INVALID;
    }
    SHC_TRY(shc_check_for(hosts->rank, hosts->plan.world, op, &call->count, &call->elem_bytes));
    shc_hosts_say_call(call);
    return SHC_OK;
}
