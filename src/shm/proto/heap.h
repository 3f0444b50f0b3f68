/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The heap of a process: a memfd, mapped once over a large range of addresses, which grows and never shrinks. It
 * is sealed against shrinking, so no process that has it mapped ever meets SIGBUS.
 *
 * Which parts of it are blocks is the owner's private knowledge (comm/blocks.h). docs/internals/protocol/heap.md has
 * the rules.
 */

#include "shm/proto/layout.h"

/* The longest heap: addresses, not memory. */
#define SHC_HEAP_RANGE ((size_t)64 << 30)

/* This process's own heap. base == NULL: there is none. */
struct shc_heap {
    int fd;
    char *base;
    size_t bytes; /* of the file */
    struct shc_heap_name name;
};

/* Makes an empty heap. post: nothing is mapped after an error. */
SHC_NODISCARD int shc_heap_make(struct shc_heap *heap);

/* Makes the file at least so long. ENOSPC or EFBIG: no room. EBADF: the program has closed the descriptor. */
SHC_NODISCARD int shc_heap_grow(struct shc_heap *heap, size_t bytes);

/* post: these pages are there. ENOSPC or EFBIG: no room; some of them may be there. EBADF: the program
 * has closed the descriptor. */
SHC_NODISCARD int shc_heap_reserve(const struct shc_heap *heap, size_t offset, size_t bytes);

/* Gives these pages back to the system, unless the program has closed the descriptor. */
void shc_heap_punch(const struct shc_heap *heap, size_t offset, size_t bytes);

/* The heap of another process, mapped here. */
struct shc_heap_view {
    struct shc_os_process owner;
    struct shc_heap_name name;
    int fd;
    char *base;
    size_t bytes; /* of the file, when it was asked for last */
};

/*
 * Opens and maps the heap of that name, which any process may have written (HEAP-6). ESTALE: it is not the file
 * described. EPERM: it is no file without a name of this user, sealed against shrinking. Otherwise why it cannot be
 * reached: another pid namespace, or user.
 * A forked child does not have the mapping.
 */
SHC_NODISCARD int shc_heap_attach(struct shc_heap_view *view, const struct shc_os_process *owner,
                                  const struct shc_heap_name *name);
void shc_heap_detach(struct shc_heap_view *view);

/* Where these bytes of the heap lie here; NULL: the file does not have them all (HEAP-9). The numbers may come from
 * any process. */
char *shc_heap_at(struct shc_heap_view *view, uint64_t offset, uint64_t bytes);
