/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Which ranks of an all_to_all disagree? Each host tells each other one what its ranks give, in one exchange of the
 * leaders. A host whose rank expects something else says so in a record.
 */
#include "hosts/hosts_trade.h"

#include <string.h>

/* Of the elements that the ranks of one host give those of another: 8 bytes for each pair. No record is as long. */
static uint64_t told_bytes(const struct shc_hosts_plan *plan, int one, int other)
{
    const size_t pairs =
        (size_t)shc_hosts_plan_size(plan, one) * (size_t)shc_hosts_plan_size(plan, other);
    return shc_align_up(pairs * sizeof(uint64_t), 64) + sizeof(uint64_t);
}

/* Is there room for what each host tells? The same on all hosts. */
static bool may_tell(const struct shc_hosts_plan *plan)
{
    uint64_t most = 0;
    for (int host = 0; host < plan->hosts; host++) {
        uint64_t bytes = 0;
        for (int other = 0; other < plan->hosts; other++)
            bytes += told_bytes(plan, host, other);
        most = bytes > most ? bytes : most;
    }
    return most <= shc_hosts_chunk_elements(plan, 1);
}

/* Exchanges what each host gives. It goes from `narrow` to `wide`. */
static enum shc_status tell_given(const struct shc_hosts_trade *t)
{
    struct shc_hosts *hosts = t->blocks.hosts;
    struct shc_ticket *ticket;
    char *at = hosts->stage.narrow;
    for (int host = 0; host < hosts->plan.hosts; host++) {
        const int ranks = shc_hosts_plan_size(&hosts->plan, host);
        hosts->in_bytes[host] = told_bytes(&hosts->plan, hosts->host, host);
        for (int i = 0; i < shc_hosts_trade_ranks(t) * ranks; i++) {
            const uint64_t bytes =
                shc_hosts_given(t, i / ranks, shc_hosts_rank_at(hosts, host, i % ranks), 0);
            memcpy(at + (size_t)i * sizeof bytes, &bytes, sizeof bytes);
        }
        at += hosts->in_bytes[host];
    }
    SHC_TRY(shc_hosts_ticket(hosts, &ticket));
    SHC_TRY(
        shc_hosts_begun(hosts, &ticket,
                        hosts->line.exchange(hosts->line.ctx, hosts->stage.narrow, hosts->in_bytes,
                                             hosts->stage.wide, hosts->in_bytes, ticket)));
    return shc_hosts_await(hosts, &ticket);
}

/* The first rank of this island that expects another size than is given. */
static enum shc_status find_pair(const struct shc_hosts_trade *t)
{
    struct shc_hosts *hosts = t->blocks.hosts;
    const struct shc_hosts_plan *plan = &hosts->plan;
    const char *at = hosts->stage.wide;
    for (int host = 0; host < plan->hosts; host++) {
        const int ranks = shc_hosts_plan_size(plan, host), own = shc_hosts_trade_ranks(t);
        for (int i = 0; i < ranks * own; i++) {
            const int from = shc_hosts_rank_at(hosts, host, i / own);
            const int to = shc_hosts_rank_at(hosts, hosts->host, i % own);
            const uint64_t expects = shc_hosts_wanted(t, i % own, from, 0);
            uint64_t gives;
            memcpy(&gives, at + (size_t)i * sizeof gives, sizeof gives);
            if (gives != expects)
                return shc_hosts_fail(
                    hosts, SHC_ERR_MISMATCH,
                    "calls of \"%s\" differ: all_to_all #%llu: rank %d sends %llu elements to rank "
                    "%d, which expects %llu",
                    shc_hosts_group_name(hosts), (unsigned long long)hosts->number,
                    (int)plan->name_of[from], (unsigned long long)(gives / t->call->elem_bytes),
                    (int)plan->name_of[to], (unsigned long long)(expects / t->call->elem_bytes));
        }
        at += hosts->in_bytes[host];
    }
    return SHC_OK;
}

enum shc_status shc_hosts_sizes_differ(const struct shc_hosts_trade *t)
{
    struct shc_hosts *hosts = t->blocks.hosts;
    struct shc_hosts_trade whole = *t;
    enum shc_status st = SHC_OK;
    whole.blocks.width = SHC_HOSTS_WHOLE;
    if (may_tell(&hosts->plan)) {
        SHC_TRY(tell_given(&whole));
        st = shc_hosts_agree_leaders(t->call, find_pair(&whole));
    }
    return st != SHC_OK
               ? st
               : shc_hosts_fail(hosts, SHC_ERR_MISMATCH,
                                "calls of \"%s\" differ: all_to_all #%llu: a rank sends another "
                                "number of elements than its receiver expects",
                                shc_hosts_group_name(hosts), (unsigned long long)hosts->number);
}
