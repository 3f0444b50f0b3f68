/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Operations with a block for each rank: who carries what, and when.
 *
 *   carrier  The block of local rank i of any host goes over rail i mod K, where K is the number of rails. On a host
 *            with K ranks every rank carries its own, and no rank hands on anything.
 *   column   Elements [first, first + width) of every block: what is under way at once. A result is put where its
 *            own column was read, or before it, so that an output may be an input.
 */

#include "hosts/group.h"

struct shc_hosts_blocks {
    struct shc_hosts *hosts;
    const struct shc_tensors *tensors; /* of this rank: all blocks */
    const struct shc_tensors
        *sizes; /* tensor r has the size of block r; NULL: all have `each` elements */
    uint64_t each;
    uint32_t elem_bytes; /* between hosts */
    uint32_t user_bytes; /* in user memory */
    bool lists;          /* `tensors` has a tensor for each block */
    uint64_t width, columns;
};

/* The blocks of a call, in `tensors`. SHC_ERR_UNSUPPORTED: the group has too many ranks for elements of this size. */
SHC_NODISCARD enum shc_status shc_hosts_blocks_init(struct shc_hosts_blocks *blocks,
                                                    const struct shc_hosts_call *call,
                                                    const struct shc_tensors *tensors,
                                                    uint32_t elem_bytes);

uint64_t shc_hosts_blocks_size(const struct shc_hosts_blocks *blocks, int rank);

/* How much of the block is in the column, in elements. */
uint64_t shc_hosts_blocks_part(const struct shc_hosts_blocks *blocks, int rank, uint64_t first);

/* Bytes of a column of all ranks of `host` that `rail` carries. */
uint64_t shc_hosts_blocks_carried(const struct shc_hosts_blocks *blocks, int host, int rail,
                                  uint64_t first);

/* A column of one block, out of user memory or into it. Returns its bytes there. */
uint64_t shc_hosts_blocks_read(const struct shc_hosts_blocks *blocks, int rank, uint64_t first,
                               char *to);
uint64_t shc_hosts_blocks_write(const struct shc_hosts_blocks *blocks, int rank, uint64_t first,
                                const char *from);

/* Where the block's column begins in user memory, if the block is one piece; else NULL. */
char *shc_hosts_blocks_at(const struct shc_hosts_blocks *blocks, int rank, uint64_t first);

/* Cuts a pass into columns; ctx: begins with the struct shc_hosts_blocks. */
void shc_hosts_blocks_cut(void *ctx, uint64_t index, struct shc_hosts_chunk *chunk);

/* The ranks of the island hand their columns to their carriers: `own` of each, and a carrier gets them one after the
 * other, in `to`. */
SHC_NODISCARD enum shc_status shc_hosts_blocks_bring(const struct shc_hosts_blocks *blocks,
                                                     uint64_t first, const char *own, char *to);

/* The reverse: a carrier has the columns of its ranks in `from`; each rank gets its own at *own, which is `from` or in
 * `room`. */
SHC_NODISCARD enum shc_status shc_hosts_blocks_spread(const struct shc_hosts_blocks *blocks,
                                                      uint64_t first, char *from, char *room,
                                                      char **own);

/* Does every rank of this host carry its own block? */
SHC_INLINE bool shc_hosts_blocks_are_own(const struct shc_hosts *hosts)
{
    return shc_hosts_plan_size(&hosts->plan, hosts->host) == hosts->plan.rails;
}

/* Rank number `local` of a host. */
SHC_INLINE int shc_hosts_rank_at(const struct shc_hosts *hosts, int host, int local)
{
    return hosts->plan.rank_at[hosts->plan.first[host] + local];
}
