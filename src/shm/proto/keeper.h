/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The keeper: one thread per process that owns the process's life words, one for each group it has
 * joined. When the process dies in any way (SIGKILL, a crash, _exit, exec), the kernel walks that
 * thread's robust list before it tears down the memory, and marks every word: within a millisecond,
 * whatever the size of the process and whoever has inherited its files.
 *
 * Only the keeper edits its list; others ask it to and wait for the answer. A forked child has no
 * keeper until it makes one.
 */

#include "shm/base/status.h"
#include "shm/proto/layout.h"

struct shc_keeper;

/* Starts the thread. SHC_ERR_SYSTEM when it cannot start. */
SHC_NODISCARD enum shc_status shc_keeper_start(struct shc_keeper **keeper);

/* False where the kernel or a container's filter does not mark words; then the looks at /proc of
 * those who wait are the only witness. Probed once, when the keeper starts. */
bool shc_keeper_marks(struct shc_keeper *keeper);

/* Links the word: from now on it tells of this process's life. The mapping must have
 * SHC_OS_ROBUST_DISTANCE bytes of private memory in front of it. */
void shc_keeper_link(struct shc_keeper *keeper, shc_a32 *life);

/* Unlinks the word; before its mapping goes, or the kernel's walk would end there. */
void shc_keeper_unlink(struct shc_keeper *keeper, shc_a32 *life);
