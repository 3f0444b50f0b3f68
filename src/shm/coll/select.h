/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Which algorithm, for which operation, size and world: one table, and what it answers. The preset
 * one is in select.c; tuning.h reads another one. Pure: all ranks get the same answer from the same
 * arguments, and have the same table but for what each may decide for itself.
 */

#include "shm/base/attrs.h"
#include "shm/proto/arena.h"
#include "shm/shmcoll.h"

enum shc_algorithm {
    SHC_ALGO_NOTHING, /* no byte moves */
    SHC_ALGO_INLINE,  /* the payload rides in the call line */
    SHC_ALGO_SMALL,   /* one round over the small slots, or a relay slot */
    SHC_ALGO_SLICED,  /* two over the small slots: each rank reduces its slice for all */
    SHC_ALGO_ONE_USE, /* one use of an exchange slot per pair (two ranks) */
    SHC_ALGO_STAGED,  /* chunks through the arena */
    SHC_ALGO_SPREAD,  /* likewise; of a reduce the ranks that have no output do the work */
};

/* How many bytes each form of an operation carries at most; the first that carries them is chosen. */
struct shc_forms {
    size_t inline_bytes;
    size_t small_bytes;
    size_t small_bytes_of_two; /* ranks, which have relay slots, or can swap cells */
    size_t one_use_bytes;      /* two ranks only */
};

/* A premul factor takes 8 of the inline bytes, so that what reduces ends where that still fits. */
#define SHC_SELECT_REDUCED_INLINE (SHC_INLINE_BYTES - 8)

/* A smaller part of a piece of work costs more to hand out than to do. */
#define SHC_PART_BYTES ((size_t)32 << 10)

/* So many threads beside the caller have a part of the longest turn. */
#define SHC_SELECT_MOST_THREADS ((int)(SHC_ARENA_MAX_CELL_BYTES / SHC_PART_BYTES) - 1)

struct shc_tuning {
    struct shc_forms forms[SHC_OP_KIND_COUNT];
    bool
        crowded; /* on all ranks: there are more of them than CPUs, each wait is a context switch */
    /* More ranks than two: an all_reduce is sliced where each rank reads so many bytes less then, a reduce
     * where its root does; of more than three it is spread where its root moves so many less. */
    size_t sliced_bytes, sliced_bytes_crowded;
    size_t sliced_reduce_bytes, sliced_reduce_bytes_crowded;
    size_t spread_bytes, spread_bytes_crowded;
    size_t turn_bytes;        /* of a cell that a turn of two ranks uses at most */
    size_t long_turn_bytes;   /* an all_reduce of so many and more uses the whole cell */
    size_t lockstep_bytes;    /* one of two ranks of so many and more: shc_select_lockstep() */
    size_t flag_bytes;        /* that are copied in the time that a flag costs */
    size_t stream_bytes;      /* what goes one way may pass the caches from here on */
    size_t stream_out_bytes;  /* an output of so many passes the caches: shc_select_streams_out() */
    size_t ask_ahead_bytes;   /* up to here, who stores where others have read asks for the lines */
    size_t scatter_cma_bytes; /* more than two ranks: so many for others are copied by them */
    size_t scatter_cma_of_many_bytes; /* likewise with more ranks than four */
    struct shc_arena_sizes arena;
};

/* On an AMD processor of that family (shc_cpu_amd_family()), or on another one: 0; with CPUs that share a
 * cache of so many bytes, or 0: not known. */
struct shc_tuning shc_tuning_preset(unsigned amd_family, size_t cache_bytes);

/* `bytes`: of one rank's input (broadcast: of the message; scatter: of the root's, without its own block).
 * All-to-all has no row: every rank decides for the blocks it sends. */
enum shc_algorithm shc_select(const struct shc_tuning *tuning, enum shc_op_kind kind, size_t bytes,
                              int world_size);

/* Which parts of the arena (a set of enum shc_arena_part) are to be long for an operation that uses one, with
 * the same `bytes`. Of all-to-all: of the largest block times the ranks. */
unsigned shc_select_parts(enum shc_op_kind kind, enum shc_algorithm algorithm, size_t bytes,
                          int world_size);

/* How many bytes of a cell a turn uses at most, in an operation with that input on every rank (but for
 * all_reduce the size does not matter, as it may differ). */
size_t shc_select_turn(const struct shc_tuning *tuning, enum shc_op_kind kind, size_t bytes,
                       int world_size);

/* Has an all_reduce one chunk under way at a time? The same on all ranks. */
bool shc_select_lockstep(const struct shc_tuning *tuning, size_t bytes, int world_size);

/* How long the pieces are in which two ranks pass `bytes` through a slot of that size: a half, a
 * quarter, ... of it (whole lines), or all of it. */
size_t shc_select_piece(const struct shc_tuning *tuning, size_t bytes, size_t slot_bytes,
                        int world_size);

/* Makes turns, cells and slots long enough that each of a pool's threads, and its caller, has a part
 * of them. `threads`: what all ranks have at least; 0 changes nothing. */
void shc_select_for_pool(struct shc_tuning *tuning, int world_size, int threads);

/* Does every rank copy its block of a scatter out of the root's memory, with so many bytes for others? */
bool shc_select_pulls(const struct shc_tuning *tuning, size_t others_bytes, int world_size);

/* Does a message of so many bytes that goes one way pass the caches on its way into staging? Each
 * rank may decide for itself. */
SHC_INLINE bool shc_select_streams(const struct shc_tuning *tuning, size_t bytes)
{
    return bytes >= tuning->stream_bytes;
}

/* Is an output of so many bytes (of a scatter: of all ranks) stored past the caches? Where a cell is
 * exchanged each of its lines would be fetched first; else only what is twice as long, and finds no room
 * in the caches whatever happens. Each rank may decide for itself. */
SHC_INLINE bool shc_select_streams_out(const struct shc_tuning *tuning, size_t bytes,
                                       bool exchanged)
{
    return (exchanged ? bytes : bytes / 2) >= tuning->stream_out_bytes;
}
