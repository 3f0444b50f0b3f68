/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The blocks of this process's heap: the functions of shmcoll_memory.h. Any thread; one lock for the process.
 *
 * Fork: a child has none of its parent's blocks. The parent's mapping stays in it, so that it can read what its
 * parent's tensors hold; the child's own heap lies elsewhere.
 */

/* Called once in a forked child, by the thread that makes the process's state anew. */
void shc_memory_forget_parent(void);
