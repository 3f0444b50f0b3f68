/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The heaps of other processes that this one has mapped: each once, whatever the number of groups (HEAP-6). Any
 * thread.
 *
 * Fork: a child has no such mapping, so that it cannot store into other processes' tensors.
 */

#include "shm/proto/heap.h"

/* Maps that heap, unless it is mapped, and counts its users. As shc_heap_attach(). post: *view is a copy, for the
 * caller alone. */
SHC_NODISCARD int shc_view_open(const struct shc_os_process *owner,
                                const struct shc_heap_name *name, struct shc_heap_view *view);

/* One user less; the last one unmaps it. */
void shc_view_close(const struct shc_heap_view *view);

/* How many are mapped. */
size_t shc_view_count(void);

/* As shc_memory_forget_parent(). */
void shc_views_forget_parent(void);
