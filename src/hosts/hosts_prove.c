/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Can the engine do what a group needs? Each host says a byte of its own, and looks at what comes. So a missing call,
 * a connection that cannot be made and hosts that came in another order are found when the group is made.
 */
#include "hosts/group.h"

#include <string.h>

#define BYTES 64

static char byte_of(int host)
{
    return (char)(host % 127 + 1);
}

/* Is block h of `out` host h's, or, with `only`, all of it that host's? */
static bool is_right(const char *out, int blocks, int only)
{
    for (int i = 0; i < blocks * BYTES; i++)
        if (out[i] != byte_of(only >= 0 ? only : i / BYTES))
            return false;
    return true;
}

/* The end of a call that has begun, or not. */
static enum shc_status settle(struct shc_hosts *hosts, const char *call, struct shc_ticket **ticket,
                              enum shc_status st)
{
    if (st == SHC_OK)
        st = shc_hosts_await(hosts, ticket);
    if (st != SHC_ERR_SYSTEM)
        return st;
    return shc_hosts_fail(hosts, st, "the engine %s cannot %s bytes between hosts: %s",
                          hosts->engine, call, hosts->turn->error);
}

static enum shc_status wrong(struct shc_hosts *hosts, const char *call)
{
    return shc_hosts_fail(
        hosts, SHC_ERR_SYSTEM,
        "the engine between the hosts of \"%s\" is not usable: its %s gave rank %d other bytes "
        "than were sent",
        shc_hosts_group_name(hosts), call, (int)hosts->plan.name_of[hosts->rank]);
}

/* All blocks that this host gives are the same, so each host gets what all say. */
static enum shc_status try_gather(struct shc_hosts *hosts, bool exchanges)
{
    const struct shc_fabric *rail = &hosts->rail;
    const int all = hosts->plan.hosts;
    char *in = hosts->stage.chunk[0].in, *out = hosts->stage.chunk[0].out;
    struct shc_ticket *ticket;
    memset(in, byte_of(hosts->host), BYTES * (exchanges ? (size_t)all : 1));
    memset(out, 0, BYTES * (size_t)all);
    if (exchanges) {
        SHC_TRY(settle(hosts, "exchange", &ticket,
                       shc_hosts_exchange_even(hosts, in, BYTES, out, &ticket)));
    } else {
        SHC_TRY(shc_hosts_ticket(hosts, &ticket));
        SHC_TRY(settle(
            hosts, "gather", &ticket,
            shc_hosts_begun(hosts, &ticket, rail->gather(rail->ctx, in, BYTES, out, ticket))));
    }
    return is_right(out, all, -1) ? SHC_OK : wrong(hosts, exchanges ? "exchange" : "gather");
}

static enum shc_status try_broadcast(struct shc_hosts *hosts)
{
    const struct shc_fabric *rail = &hosts->rail;
    char *data = hosts->stage.chunk[0].in;
    struct shc_ticket *ticket;
    memset(data, byte_of(hosts->host), BYTES);
    SHC_TRY(shc_hosts_ticket(hosts, &ticket));
    SHC_TRY(settle(
        hosts, "broadcast", &ticket,
        shc_hosts_begun(hosts, &ticket, rail->broadcast(rail->ctx, data, BYTES, 0, ticket))));
    return is_right(data, 1, 0) ? SHC_OK : wrong(hosts, "broadcast");
}

enum shc_status shc_hosts_try_rail(struct shc_hosts *hosts)
{
    if (!shc_hosts_carries(hosts))
        return SHC_OK;
    SHC_TRY(try_gather(hosts, false));
    SHC_TRY(try_gather(hosts, true));
    return try_broadcast(hosts);
}
