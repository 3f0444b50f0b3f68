/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls of the engine in which all hosts have blocks of one size. */
#include "hosts/group.h"

#include <string.h>

enum shc_status shc_hosts_exchange_even(struct shc_hosts *hosts, const char *in, uint64_t bytes,
                                        char *out, struct shc_ticket **ticket)
{
    const struct shc_fabric *rail = &hosts->rail;
    for (int host = 0; host < hosts->plan.hosts; host++)
        hosts->in_bytes[host] = bytes;
    SHC_TRY(shc_hosts_rail_ticket(hosts, bytes * (uint64_t)(hosts->plan.hosts - 1), ticket));
    return shc_hosts_begun(
        hosts, ticket,
        rail->exchange(rail->ctx, in, hosts->in_bytes, out, hosts->in_bytes, *ticket));
}

/* Of two hosts: each copies its own block, and they exchange the others. Returns what the engine does. */
static int exchange_of_two(struct shc_hosts *hosts, const struct shc_fabric *fabric, const char *in,
                           uint64_t bytes, char *out, struct shc_ticket *ticket)
{
    const int own = hosts->host, other = 1 - own;
    memcpy(out + (uint64_t)own * bytes, in, bytes);
    hosts->in_bytes[own] = 0;
    hosts->in_bytes[other] = bytes;
    return fabric->exchange(fabric->ctx, in, hosts->in_bytes, out + (uint64_t)other * bytes,
                            hosts->in_bytes, ticket);
}

enum shc_status shc_hosts_tell_leaders(struct shc_hosts *hosts, uint64_t bytes, char *out,
                                       struct shc_ticket **ticket)
{
    const struct shc_fabric *line = &hosts->line;
    char *record = hosts->stage.record;
    SHC_TRY(shc_hosts_ticket(hosts, ticket));
    if (hosts->plan.hosts == 2)
        return shc_hosts_begun(hosts, ticket,
                               exchange_of_two(hosts, line, record, bytes, out, *ticket));
    for (int host = 0; host < hosts->plan.hosts; host++) {
        if (host > 0)
            memcpy(record + (uint64_t)host * bytes, record, bytes);
        hosts->in_bytes[host] = bytes;
    }
    return shc_hosts_begun(
        hosts, ticket,
        line->exchange(line->ctx, record, hosts->in_bytes, out, hosts->in_bytes, *ticket));
}

enum shc_status shc_hosts_gather_even(struct shc_hosts *hosts, const char *in, uint64_t bytes,
                                      char *out, struct shc_ticket **ticket)
{
    const struct shc_fabric *rail = &hosts->rail;
    SHC_TRY(shc_hosts_rail_ticket(hosts, bytes * (uint64_t)(hosts->plan.hosts - 1), ticket));
    return shc_hosts_begun(hosts, ticket,
                           hosts->plan.hosts == 2
                               ? exchange_of_two(hosts, rail, in, bytes, out, *ticket)
                               : rail->gather(rail->ctx, in, bytes, out, *ticket));
}
