/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The blocks of this process's heap: the functions of shmcoll_memory.h; and the heaps of other processes that this
 * one has mapped. Any thread.
 *
 * Fork: a child has none of its parent's blocks. The parent's mapping stays in it, so that it can read what its
 * parent's tensors hold; the child's own heap lies elsewhere.
 */

#include "shm/proto/heap.h"
#include "shm/proto/peer_heaps.h"

#include <stdbool.h>

/* The name by which others find this process's heap. False: it has none. */
bool shc_memory_heap_name(struct shc_heap_name *name);

/* Where these bytes lie in the heap. False: not in one block of this process, or in one that is divorced. */
bool shc_memory_place(const void *memory, size_t bytes, uint64_t *offset);

/* Puts private copies in the place of the pages that hold these bytes, which lie in a block (HEAP-12). From then on
 * the block has no place, and its range of the heap is nobody else's (HEAP-13). ENOMEM: the pages are still the
 * heap's. */
SHC_NODISCARD int shc_memory_divorce(void *memory, size_t bytes);

/* These, and the heaps of other processes that this one has mapped, for a group. */
extern const struct shc_heap_hooks shc_memory_hooks;

/* Called once in a forked child, by the thread that makes the process's state anew. */
void shc_memory_forget_parent(void);
