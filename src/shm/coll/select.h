/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Which algorithm, for which operation, size and world: one table (select.c), and what it answers.
 * Pure: all ranks get the same answer from the same arguments.
 */

#include "shm/base/attrs.h"
#include "shm/shmcoll.h"

enum shc_algorithm {
    SHC_ALGO_NOTHING, /* no byte moves */
    SHC_ALGO_INLINE,  /* the payload rides in the call line */
    SHC_ALGO_SMALL,   /* one round over the small slots */
    SHC_ALGO_ONE_USE, /* one use of an exchange slot per pair (two ranks) */
    SHC_ALGO_STAGED,  /* chunks through the arena */
};

/* `bytes`: of one rank's input (broadcast: of the message; scatter: of the root's). All-to-all has no
 * row: every rank decides for the blocks it sends. */
enum shc_algorithm shc_select(enum shc_op_kind kind, size_t bytes, int world_size);

/* How many bytes of a cell a turn uses at most, in an operation with that input on every rank (but for
 * all_reduce the size does not matter, as it may differ). */
size_t shc_select_turn(enum shc_op_kind kind, size_t bytes, int world_size);

/* Does a message of so many bytes that goes one way pass the caches on its way into staging? Each
 * rank may decide for itself. */
bool shc_select_streams(size_t bytes);
