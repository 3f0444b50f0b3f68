/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Which algorithm carries an operation of a size between a number of ranks, and in which pieces. One struct
 * holds the limits: select.c has the default values, keys.c the keys under which a user sets them, tuning.c
 * reads these. All functions are pure: with the same arguments every rank gets the same answer. Ranks agree
 * on all limits except those that keys.c marks with may_differ.
 */

#include "shm/base/attrs.h"
#include "shm/proto/arena.h"
#include "shm/shmcoll.h"

enum shc_algorithm {
    SHC_ALGO_NOTHING,   /* no byte moves */
    SHC_ALGO_INLINE,    /* the data travels in the call line */
    SHC_ALGO_SMALL,     /* one round over the small slots, or one hand-off buffer */
    SHC_ALGO_TWO_PHASE, /* two rounds over the small slots: each rank reduces its slice for all */
    SHC_ALGO_DIRECT,    /* two ranks: one exchange of cells, both reduce everything */
    SHC_ALGO_PIPELINED, /* chunks through the arena; all_reduce: in two phases */
    SHC_ALGO_SCATTER_GATHER, /* reduce, through the arena: ranks without an output reduce the slices */
};

/* A factor (SHC_PREMUL_SUM) takes 8 of the inline bytes. Operations that reduce stop where it still fits. */
#define SHC_SELECT_REDUCED_INLINE (SHC_INLINE_BYTES - 8)

/* Handing a smaller part of the work to a thread takes longer than doing it. */
#define SHC_PART_BYTES ((size_t)32 << 10)

/* The longest step has a part for the caller and for this many threads. */
#define SHC_SELECT_MOST_THREADS ((int)(SHC_ARENA_MAX_CELL_BYTES / SHC_PART_BYTES) - 1)

/* A limit that nobody has set and whose default depends on the group. shc_select_settle() replaces
 * it. */
#define SHC_TUNING_AUTO (SIZE_MAX - 1)

/* docs/reference/tuning-keys.md says what each field is. SIZE_MAX: never. */
struct shc_tuning {
    size_t inline_bytes;
    size_t small_bytes, small_of_two_bytes, handoff_bytes;
    size_t direct_exchange_bytes;
    size_t two_phase_bytes, two_phase_reduce_bytes; /* that a rank, or the root, reads less */
    size_t scatter_gather_bytes;                    /* that the root moves less */
    size_t turn_bytes;
    size_t unpipelined_bytes;
    size_t push_bytes;
    size_t flag_bytes;
    size_t staging_non_temporal_bytes, output_non_temporal_bytes;
    size_t prefetch_bytes;
    size_t single_copy_bytes;
    struct shc_arena_sizes arena;
    /* No key: the group has more ranks than CPUs, so that each wait is a context switch. */
    bool crowded;
};

/* The default values on an AMD processor of that family (shc_cpu_amd_family(); 0: another processor), with
 * CPUs that share a cache of that size (0: unknown). */
struct shc_tuning shc_tuning_default(unsigned amd_family, size_t cache_bytes);

/*
 * Gives each limit that is SHC_TUNING_AUTO its value in this group, and makes steps, cells and slots long
 * enough that each of a pool's threads, and its caller, has a part of them. `threads`: the least number that
 * a rank of the group has. All ranks call it with the same arguments, once they have compared their limits.
 */
void shc_select_settle(struct shc_tuning *tuning, int world_size, int threads, bool crowded);

/* `bytes`: of one rank's input (broadcast: of the message; scatter: of the root's, without its own block).
 * Not for all-to-all, in which every rank decides for each block that it sends. */
enum shc_algorithm shc_select(const struct shc_tuning *tuning, enum shc_op_kind kind, size_t bytes,
                              int world_size);

/* Which parts of the arena (a set of enum shc_arena_part) have to be long for an operation that uses it, with
 * the same `bytes`. All-to-all: of the largest block times the ranks. */
unsigned shc_select_parts(enum shc_op_kind kind, enum shc_algorithm algorithm, size_t bytes,
                          int world_size);

/* How many bytes of a cell one step uses at most, with that input on every rank. The size matters for
 * all_reduce alone: in other operations it may differ between ranks. */
size_t shc_select_turn(const struct shc_tuning *tuning, enum shc_op_kind kind, size_t bytes,
                       int world_size);

/* Has an all_reduce one chunk in flight at a time? The same on all ranks. */
bool shc_select_unpipelined(const struct shc_tuning *tuning, size_t bytes, int world_size);

/* The length of the pieces in which two ranks pass `bytes` through a slot of that size: a half, a quarter, ...
 * of it (whole lines), or all of it. */
size_t shc_select_piece(const struct shc_tuning *tuning, size_t bytes, size_t slot_bytes,
                        int world_size);

/* Does every rank copy its block of a scatter out of the root's memory, if the kernel lets it and the others' blocks
 * have so many bytes? The same on all ranks. */
bool shc_select_pulls(const struct shc_tuning *tuning, size_t others_bytes, int world_size);

/* May a one-way message of so many bytes be stored to staging memory non-temporally? Each rank may decide for
 * itself. */
SHC_INLINE bool shc_select_streams(const struct shc_tuning *tuning, size_t bytes)
{
    return bytes >= tuning->staging_non_temporal_bytes;
}

/*
 * Is an output of so many bytes (scatter: of all ranks together) stored non-temporally? If ranks
 * exchange cells, an ordinary store would fetch each line of the output first. Otherwise only
 * outputs of twice that size are, because these fit no cache in any case. Each rank may decide for
 * itself.
 */
SHC_INLINE bool shc_select_streams_out(const struct shc_tuning *tuning, size_t bytes,
                                       bool exchanged)
{
    return (exchanged ? bytes : bytes / 2) >= tuning->output_non_temporal_bytes;
}
