/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The liveness thread: it owns the process's life words, one for each group that the process has joined. When the
 * process dies in any way (SIGKILL, a crash, _exit, exec), the kernel walks that thread's robust list before it tears
 * down the memory, and marks every word. That takes less than a millisecond, independent of the size of the process
 * and of others that inherited its files.
 *
 * The kernel's walk ends after 2048 words. So a liveness thread owns at most half as many, and further words
 * have a liveness thread of their own. Only a liveness thread edits its list; other threads ask it to, and wait for
 * the answer. A forked child has no liveness thread until it makes one.
 */

#include "shm/base/status.h"
#include "shm/proto/layout.h"

struct shc_liveness;

/* Starts the thread. SHC_ERR_SYSTEM if it cannot start. */
SHC_NODISCARD enum shc_status shc_liveness_start(struct shc_liveness **liveness);

/* False if the kernel or a container's filter does not mark words. Then the only witness is /proc,
 * at which waiting ranks look. Probed once, when the liveness thread starts. */
bool shc_liveness_marks(struct shc_liveness *liveness);

#define SHC_LIVENESS_WORDS 1024 /* words of one liveness thread */

/* Links the word: from now on it tells whether this process lives. The mapping must have
 * SHC_OS_ROBUST_DISTANCE bytes of private memory before it. Returns the liveness thread that has the word:
 * one of the process to which the given one belongs, perhaps a new one. */
struct shc_liveness *shc_liveness_link(struct shc_liveness *any, shc_a32 *life);

/* Unlinks the word, by the liveness thread that has it. Needed before its mapping goes: the kernel's walk
 * would end there. */
void shc_liveness_unlink(struct shc_liveness *liveness, shc_a32 *life);
