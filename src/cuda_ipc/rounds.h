/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Which bytes move in which round of a collective (docs/internals/cuda/rounds.md): pure arithmetic, the
 * same on all ranks where it must be. No memory, no I/O.
 *
 * Offsets are bytes into the flattened input and output, or into a half. Where ranks' blocks go to
 * different ranks, a half is cut into one segment per rank. Cuts are whole lines, so they cut no
 * element that can be reduced, and change no result.
 */

#include "shm/base/attrs.h"
#include "shm/shmcoll.h"
#include <stdbool.h>

struct shc_rounds {
    enum shc_op_kind kind;
    int rank, world;
    int root;          /* where there is one */
    size_t half_bytes; /* whole lines, at least one per rank */
    bool two;          /* all_reduce: by slices, two rounds a chunk */
    /* The bytes of each rank (all_gather, gather, scatter, reduce_scatter), or all bytes (broadcast,
     * all_reduce, reduce). */
    uint64_t bytes;
    const uint64_t *blocks; /* by rank, where they differ (uneven); else NULL */
    /* all_to_all: to and from each rank, and the most that any rank sends another. */
    const uint64_t *sends, *receives;
    uint64_t largest;
    uint64_t fullest; /* the most of any pair, what ranks keep for themselves included */
};

enum shc_move_kind {
    SHC_MOVE_STAGE,     /* input [from] to one's own half [to]; after these the rank arrives */
    SHC_MOVE_KEEP,      /* input [from] to output [to] */
    SHC_MOVE_FETCH,     /* rank's half [from] to output [to] */
    SHC_MOVE_SUM,       /* all ranks' halves [from], reduced, to output [to] */
    SHC_MOVE_SUM_AHEAD, /* the same to one's own half of the next round */
};

struct shc_move {
    enum shc_move_kind kind;
    int rank; /* SHC_MOVE_FETCH */
    uint64_t from, to, bytes;
};

/* Of one round: a stage and a fetch per rank, and one more. */
#define SHC_ROUND_MOVES (2 * SHC_MAX_WORLD + 1)

/* Is this all_reduce better done by slices? `sharing`: so many ranks, at most, are on one GPU. */
bool shc_rounds_wants_two(const struct shc_rounds *rounds, int sharing);

/* Of the largest block (of what there is, where ranks have none of their own), which decides how long all are
 * at it. An all_to_all's are those between different ranks. */
uint64_t shc_rounds_longest(const struct shc_rounds *rounds);

/* At least one: an operation without bytes is a meeting, too. */
uint64_t shc_rounds_count(const struct shc_rounds *rounds);

/* The moves of round `k` of the operation, from 0: those that stage first; none is empty. Returns
 * how many. */
size_t shc_rounds_moves(const struct shc_rounds *rounds, uint64_t k,
                        struct shc_move moves[SHC_ROUND_MOVES]);
