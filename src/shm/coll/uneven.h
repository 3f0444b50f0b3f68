/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Blocks that differ in size: the table of sizes that each rank says, and one block of each rank to all ranks.
 */

#include "shm/coll/task.h"

/* One block for each rank, in rank order without gaps: the block of rank r ends where that of rank
 * r + 1 begins. */
struct shc_blocks {
    size_t begin[SHC_MAX_WORLD + 1];
};

SHC_INLINE struct shc_span shc_blocks_at(const struct shc_blocks *blocks, int rank)
{
    return (struct shc_span){blocks->begin[rank], blocks->begin[rank + 1] - blocks->begin[rank]};
}

/* Before the call line: puts the bytes of each tensor of the list into this rank's small slot, and
 * the blocks that they make into `blocks`. */
void shc_uneven_fill_table(struct shc_task *task, const struct shc_buf *list,
                           struct shc_blocks *blocks);

/* After the meeting: the other ranks' tables must say the same as `blocks`, which is this rank's
 * own. `format` words a difference. Its arguments are a rank, that rank's own entry in elements,
 * another rank, and the entry that this other rank has for the first one. */
SHC_NODISCARD enum shc_status shc_uneven_compare_tables(struct shc_task *task, const char *format,
                                                        const struct shc_blocks *blocks);

/*
 * Brings the input of every rank to all ranks: it becomes that rank's block of the output. Before
 * the call line, shc_blocks_pack() copies the input into the small slot, `skip` bytes from its
 * beginning, if it fits. After the meeting, when all ranks know all sizes, shc_blocks_spread()
 * moves everything. `skip` is the same on all ranks.
 */
SHC_INLINE bool shc_blocks_packed(size_t bytes, size_t skip)
{
    return bytes <= SHC_SMALL_SLOT_BYTES - skip;
}

void shc_blocks_pack(struct shc_task *task, size_t skip);
SHC_NODISCARD enum shc_status shc_blocks_spread(struct shc_task *task,
                                                const struct shc_blocks *blocks, size_t skip);
