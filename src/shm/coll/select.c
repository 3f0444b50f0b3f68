/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/select.h"

#include "shm/base/num.h"
#include "shm/proto/layout.h"

enum { MOVES = SHC_INLINE_BYTES, REDUCES = SHC_SELECT_REDUCED_INLINE };
enum { SLOT = SHC_SMALL_SLOT_BYTES, RELAY = SHC_RELAY_BYTES };

/* Where one form ends, and the rest, is measured (docs/notebook/performance.md): the one policy that is near
 * the best whether the CPUs share a cache or not. */
/* clang-format off */
static const struct shc_tuning preset = {
    .forms = {
        [SHC_BROADCAST]      = {MOVES,   SLOT, RELAY,   0},
        [SHC_GATHER]         = {MOVES,   SLOT, RELAY,   0},
        [SHC_SCATTER]        = {MOVES,   SLOT, RELAY,   0},
        [SHC_REDUCE]         = {REDUCES, SLOT, RELAY,   0},
        [SHC_ALL_GATHER]     = {MOVES,   SLOT, 4 << 10, 0},
        [SHC_REDUCE_SCATTER] = {REDUCES, SLOT, 2 << 10, 0},
        [SHC_ALL_REDUCE]     = {REDUCES, SLOT, 4 << 10, 32 << 10},
        [SHC_ALL_TO_ALL]     = {0,       0,    4 << 10, 0}, /* of a block */
    },
    .sliced_bytes                = 3 << 10,
    .sliced_bytes_crowded        = SIZE_MAX,
    .spread_bytes                = 48 << 10,
    .spread_bytes_crowded        = SIZE_MAX,
    .sliced_reduce_bytes         = 20 << 10,
    .sliced_reduce_bytes_crowded = SIZE_MAX,
    /* A turn ends soon, so that the next one finds its lines in the nearest cache. In lockstep it does so
     * anyway, and long turns have fewer flags. */
    .turn_bytes       = 64 << 10,
    .long_turn_bytes  = 3 << 20,
    .lockstep_bytes   = 3 << 20,
    .flag_bytes       = 2 << 10,
    .stream_bytes     = 32 << 10,
    .stream_out_bytes = 16 << 20,
    .ask_ahead_bytes  = 32 << 10,
    /* The root no longer copies all of it; blocks that the caches still have come to the others
     * faster through staging memory, where few wait for them. */
    .scatter_cma_bytes         = 8 << 20,
    .scatter_cma_of_many_bytes = 512 << 10,
    .arena = {
        .chunk_bytes         = 256 << 10,
        .chunk_of_many_bytes = 128 << 10,
        .depth               = 3,
        .shout_bytes         = 64 << 10,
        .shout_depth         = 24,
        .shout_depth_of_many = 4,
    },
};
/* clang-format on */

/* Its string instructions, which memcpy uses for more than 2 KiB, take lines over without reading them. */
#define ZEN_5            0x1a
#define ZEN_5_ASKS_UP_TO ((size_t)512)

struct shc_tuning shc_tuning_preset(unsigned amd_family, size_t cache_bytes)
{
    struct shc_tuning tuning = preset;
    if (cache_bytes > 0)
        tuning.stream_out_bytes =
            cache_bytes / 2; /* an input, and the other rank's, are there, too */
    if (amd_family == ZEN_5)
        tuning.ask_ahead_bytes = ZEN_5_ASKS_UP_TO;
    return tuning;
}

/* Who reduces all reads (p - 1) S, who reduces a slice and takes the others' 2 S (1 - 1/p), and waits once
 * more. */
static bool slices(const struct shc_tuning *tuning, enum shc_op_kind kind, size_t bytes,
                   int world_size)
{
    const size_t p = (size_t)world_size, less = bytes * (p - 1) * (p - 2) / p;
    if (p < 3)
        return false;
    if (kind == SHC_REDUCE)
        return less >= (tuning->crowded ? tuning->sliced_reduce_bytes_crowded
                                        : tuning->sliced_reduce_bytes);
    return kind == SHC_ALL_REDUCE &&
           less >= (tuning->crowded ? tuning->sliced_bytes_crowded : tuning->sliced_bytes);
}

/* A root that reduces all reads (p - 1) S; else it stores S, and reads the results where that was. */
static bool spreads(const struct shc_tuning *tuning, enum shc_op_kind kind, size_t bytes,
                    int world_size)
{
    const size_t least = tuning->crowded ? tuning->spread_bytes_crowded : tuning->spread_bytes;
    return kind == SHC_REDUCE && world_size > 3 && bytes * (size_t)(world_size - 3) >= least;
}

enum shc_algorithm shc_select(const struct shc_tuning *tuning, enum shc_op_kind kind, size_t bytes,
                              int world_size)
{
    const struct shc_forms *forms = &tuning->forms[kind];
    if (bytes == 0 || kind == SHC_BARRIER)
        return SHC_ALGO_NOTHING;
    if (bytes <= forms->inline_bytes)
        return SHC_ALGO_INLINE;
    if (bytes <= (world_size == 2 ? forms->small_bytes_of_two : forms->small_bytes))
        return slices(tuning, kind, bytes, world_size) ? SHC_ALGO_SLICED : SHC_ALGO_SMALL;
    if (world_size == 2 && bytes <= forms->one_use_bytes)
        return SHC_ALGO_ONE_USE;
    return spreads(tuning, kind, bytes, world_size) ? SHC_ALGO_SPREAD : SHC_ALGO_STAGED;
}

/* Does it go through exchange cells, and not through shout slots? */
static bool exchanges(enum shc_op_kind kind, enum shc_algorithm algorithm, int world_size)
{
    switch (kind) {
    case SHC_ALL_REDUCE:
    case SHC_REDUCE_SCATTER:
    case SHC_REDUCE_SCATTER_UNEVEN:
    case SHC_ALL_TO_ALL:
        return true;
    case SHC_ALL_GATHER:
        return world_size == 2;
    default:
        return algorithm == SHC_ALGO_SPREAD;
    }
}

/*
 * Short cells have one turn of what is short, and so it has the places that it would have among long ones.
 * Shout slots are used in turn, so that of few ranks, which have many, all are there for the first one (their
 * number is what has a line leave its reader's caches before it is stored to again).
 */
unsigned shc_select_parts(enum shc_op_kind kind, enum shc_algorithm algorithm, size_t bytes,
                          int world_size)
{
    const bool is_short = bytes <= SHC_ARENA_SHORT_BYTES && algorithm != SHC_ALGO_SPREAD;
    if (exchanges(kind, algorithm, world_size))
        return is_short ? 0 : SHC_ARENA_CELLS;
    return is_short && world_size > 4 ? 0 : SHC_ARENA_SHOUTS;
}

size_t shc_select_turn(const struct shc_tuning *tuning, enum shc_op_kind kind, size_t bytes,
                       int world_size)
{
    /* More ranks than CPUs: each wait is a context switch, so that a turn should be long. */
    if (world_size > 2 || (kind == SHC_ALL_REDUCE && bytes >= tuning->long_turn_bytes))
        return SIZE_MAX;
    return tuning->turn_bytes;
}

bool shc_select_lockstep(const struct shc_tuning *tuning, size_t bytes, int world_size)
{
    /* Where each wait is a context switch a rank should get far with each one. Not tried with more ranks
     * that have a CPU each. */
    return world_size == 2 && !tuning->crowded && bytes >= tuning->lockstep_bytes;
}

bool shc_select_pulls(const struct shc_tuning *tuning, size_t others_bytes, int world_size)
{
    /* Two ranks copy at the same time anyway, the one what the other has just stored. */
    if (world_size < 3)
        return false;
    return others_bytes >=
           (world_size > 4 ? tuning->scatter_cma_of_many_bytes : tuning->scatter_cma_bytes);
}

/*
 * A taker begins when the first piece is there, so that it ends a piece behind the giver; each piece
 * costs a flag. The sum of both is least with pieces of sqrt(bytes * flag_bytes).
 */
size_t shc_select_piece(const struct shc_tuning *tuning, size_t bytes, size_t slot_bytes,
                        int world_size)
{
    /* As for a turn. */
    if (world_size > 2)
        return slot_bytes;
    size_t piece = slot_bytes;
    for (;;) {
        const size_t half = shc_align_up(piece / 2, SHC_LINE_BYTES);
        if (half < SHC_ARENA_MIN_CELL_BYTES || half * half / tuning->flag_bytes < bytes)
            return piece;
        piece = half;
    }
}

/* Not tried with a pool's threads, each of which has its part of a turn in its own caches: no lockstep,
 * and long turns where they paid without it. */
#define POOL_LONG_TURN_BYTES ((size_t)8 << 20)

static void raise(size_t *value, size_t least)
{
    if (*value < least)
        *value = least;
}

void shc_select_for_pool(struct shc_tuning *tuning, int world_size, int threads)
{
    if (threads == 0)
        return;
    const size_t parts = (size_t)threads + 1;
    const size_t turn = shc_min_size(parts * SHC_PART_BYTES, SHC_ARENA_MAX_CELL_BYTES);
    raise(&tuning->turn_bytes, turn);
    raise(&tuning->arena.chunk_bytes, turn * (size_t)world_size);
    raise(&tuning->arena.chunk_of_many_bytes, turn * (size_t)world_size);
    raise(&tuning->arena.shout_bytes, turn);
    raise(&tuning->flag_bytes, SHC_ARENA_MAX_CELL_BYTES); /* no shorter than message or slot */
    raise(&tuning->lockstep_bytes, SIZE_MAX);
    raise(&tuning->long_turn_bytes, POOL_LONG_TURN_BYTES);
}
