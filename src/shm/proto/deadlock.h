/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A cycle of waits: rank 0 waits in one group for rank 1, which waits in another group for rank 0. No group alone
 * shows that, so a rank that is late reads the boards of the processes that it waits for, of those that they wait
 * for, and so on. DEAD-1 to DEAD-7 of docs/internals/protocol/waiting.md.
 */

#include "shm/proto/board.h"
#include "shm/proto/seat.h"

#define SHC_DEADLOCK_TEXT 1536

/* Is this rank's wait on this group, which is late, part of a cycle that cannot end, and is this rank the one that
 * says so? Then the text names all waits of the cycle; true once for each wait. `message`: the one that is late, or
 * NULL for a call. Takes milliseconds.
 *
 * A cycle must be seen twice. After the first time shc_deadlock_is_suspected() is true for a while, and this function
 * is to be called again after the next look at what is waited for. pre: the runner, or the lock of messages, is held. */
bool shc_deadlock_find(struct shc_seat *seat, const struct shc_board_awaited *message, char *text,
                       size_t capacity);

SHC_INLINE bool shc_deadlock_is_suspected(const struct shc_seat *seat, bool of_messages)
{
    return seat->suspicions[of_messages].seen_ns != 0;
}
