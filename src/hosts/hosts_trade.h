/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/* The sizes of an all_to_all over several hosts. */
#include "hosts/hosts_blocks.h"

#include "shm/base/num.h"

struct shc_hosts_trade {
    /* First, for shc_hosts_blocks_cut(), which uses only hosts, width and columns. */
    struct shc_hosts_blocks blocks;
    const struct shc_hosts_call *call;
    /* Sizes of the tensors that the ranks of the island give, and then of those that they want, by local and other
     * rank; NULL: all have `each` elements. */
    uint64_t *table;
    uint64_t each;
    bool fits; /* the call is short for this host */
    uint64_t
        message_at[SHC_HOSTS_EAGER_HOSTS]; /* the leader, of a short call: where a host's begins */
};

#define SHC_HOSTS_WHOLE (UINT64_MAX / 64) /* the width of a column that has whole tensors */

SHC_INLINE int shc_hosts_trade_ranks(const struct shc_hosts_trade *t)
{
    return shc_hosts_plan_size(&t->blocks.hosts->plan, t->blocks.hosts->host);
}

/* How much is in the column of what a rank of the island gives to `other`, or wants from it. In bytes. */
SHC_INLINE uint64_t shc_hosts_given(const struct shc_hosts_trade *t, int local, int other,
                                    uint64_t first)
{
    const size_t world = (size_t)t->blocks.hosts->plan.world;
    const uint64_t size = t->table ? t->table[(size_t)local * 2 * world + (size_t)other] : t->each;
    return size <= first ? 0 : shc_min_size(size - first, t->blocks.width) * t->call->elem_bytes;
}

SHC_INLINE uint64_t shc_hosts_wanted(const struct shc_hosts_trade *t, int local, int other,
                                     uint64_t first)
{
    return shc_hosts_given(t, local, other + t->blocks.hosts->plan.world, first);
}

/* ---- hosts_sizes.c ---- */

/* The leader of each host, once they know that a rank gives another one what that does not expect: names them. Returns a
 * failure. */
SHC_NODISCARD enum shc_status shc_hosts_sizes_differ(const struct shc_hosts_trade *t);
