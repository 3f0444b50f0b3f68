/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The heap of a process: a memfd, mapped once over a large range of addresses, which grows and never shrinks. It
 * is sealed against shrinking, so no process that has it mapped ever meets SIGBUS.
 *
 * Which parts of it are blocks is the owner's private knowledge (comm/blocks.h).
 */

#include "shm/os/os.h"

/* The longest heap: addresses, not memory. */
#define SHC_HEAP_RANGE ((size_t)64 << 30)

/* This process's own heap. base == NULL: there is none. */
struct shc_heap {
    int fd;
    char *base;
    size_t bytes; /* of the file */
};

/* Makes an empty heap. post: nothing is mapped after an error. */
SHC_NODISCARD int shc_heap_make(struct shc_heap *heap);

/* Makes the file at least so long. ENOSPC or EFBIG: no room. */
SHC_NODISCARD int shc_heap_grow(struct shc_heap *heap, size_t bytes);

/* post: these pages are there. ENOSPC or EFBIG: no room; some of them may be there. */
SHC_NODISCARD int shc_heap_reserve(const struct shc_heap *heap, size_t offset, size_t bytes);

/* Gives these pages back to the system. */
void shc_heap_punch(const struct shc_heap *heap, size_t offset, size_t bytes);
