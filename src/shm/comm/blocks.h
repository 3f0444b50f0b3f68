/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Which parts of a heap are blocks, and which are free: private arithmetic over whole pages, without a
 * lock and without a system call. The entries lie in the order of their offsets, without a gap.
 *
 * A free part is *ready* if all its pages are backed by memory. Otherwise none is: free parts of the two kinds
 * are joined only when a block needs both.
 */

#include "shm/base/attrs.h"

#include <stdbool.h>

enum shc_block_state {
    SHC_BLOCK_EMPTY,
    SHC_BLOCK_READY,
    SHC_BLOCK_USED,
    SHC_BLOCK_DIVORCED, /* a block of its owner's alone, as long as it is in use */
    SHC_BLOCK_LOST,     /* a divorced one that has been freed: nobody gets it again (HEAP-13) */
};

struct shc_block {
    size_t offset, bytes;
    enum shc_block_state state;
    uint64_t freed_at; /* READY: when it was freed, counted in frees */
};

struct shc_blocks {
    struct shc_block *entry; /* NULL if there is none */
    size_t count, room;
    size_t end; /* of the last one: the heap's length */
    size_t used_bytes, used_count;
    size_t ready_bytes;
    uint64_t frees;
};

struct shc_part {
    size_t offset, bytes;
};

/*
 * Finds room for a block of so many bytes: the smallest free part that is ready, then the smallest that is
 * empty, then parts that follow one another, then the heap's end, which `end` says anew. post: *taken is a
 * USED block. *ready: its pages are there; otherwise the caller reserves them. *rest: pages that must be
 * given back, if rest->bytes is not 0. False: no memory for the table, or the heap would be longer than
 * `limit`; nothing has changed.
 */
SHC_NODISCARD bool shc_blocks_take(struct shc_blocks *blocks, size_t bytes, size_t limit,
                                   struct shc_part *taken, bool *ready, struct shc_part *rest);

/* The block that holds this offset, USED or DIVORCED; or NULL. */
const struct shc_block *shc_blocks_find(const struct shc_blocks *blocks, size_t offset);

/* The block that holds this offset becomes a DIVORCED one. */
void shc_blocks_divorce(struct shc_blocks *blocks, size_t offset);

/* Frees the block that begins there; its pages are kept, and those of a divorced one are lost. False: no block
 * begins there. */
SHC_NODISCARD bool shc_blocks_give(struct shc_blocks *blocks, size_t offset);

/* The same for a block whose pages are not there. */
void shc_blocks_give_empty(struct shc_blocks *blocks, size_t offset);

/* If more than `most` bytes are ready: makes some of them empty, from the part that was freed first. post:
 * *part is what the caller gives back. False: nothing is too much. */
SHC_NODISCARD bool shc_blocks_trim(struct shc_blocks *blocks, size_t most, struct shc_part *part);
