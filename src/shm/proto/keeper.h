/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The keeper: a thread that owns the process's life words, one for each group it has joined. When the
 * process dies in any way (SIGKILL, a crash, _exit, exec), the kernel walks that thread's robust list
 * before it tears down the memory, and marks every word: within a millisecond, whatever the size of the
 * process and those that have inherited its files.
 *
 * The kernel's walk ends after 2048 words, so a keeper owns half as many at most, and further words have
 * a keeper of their own. Only a keeper edits its list; others ask it to and wait for the answer. A
 * forked child has no keeper until it makes one.
 */

#include "shm/base/status.h"
#include "shm/proto/layout.h"

struct shc_keeper;

/* Starts the thread. SHC_ERR_SYSTEM when it cannot start. */
SHC_NODISCARD enum shc_status shc_keeper_start(struct shc_keeper **keeper);

/* False where the kernel or a container's filter does not mark words; then the looks at /proc of
 * those who wait are the only witness. Probed once, when the keeper starts. */
bool shc_keeper_marks(struct shc_keeper *keeper);

#define SHC_KEEPER_WORDS 1024 /* of one keeper */

/* Links the word: from now on it tells of this process's life. The mapping must have
 * SHC_OS_ROBUST_DISTANCE bytes of private memory before it. Returns the keeper that has it: one of
 * the process to which the given one belongs, perhaps new. */
struct shc_keeper *shc_keeper_link(struct shc_keeper *any, shc_a32 *life);

/* Unlinks the word, by the keeper that has it; before its mapping goes, or the kernel's walk would end
 * there. */
void shc_keeper_unlink(struct shc_keeper *keeper, shc_a32 *life);
