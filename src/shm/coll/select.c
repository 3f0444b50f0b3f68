/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/select.h"

#include "shm/base/num.h"
#include "shm/proto/layout.h"

/* Measured (docs/notebook/performance.md): close to the best both with and without a cache that the CPUs
 * share. */
static const struct shc_tuning defaults = {
    .inline_bytes = SHC_INLINE_BYTES,
    .small_bytes = SHC_SMALL_SLOT_BYTES,
    .small_of_two_bytes = 4 << 10,
    .handoff_bytes = SHC_HAND_OFF_SLOT_BYTES,
    .direct_exchange_bytes = 32 << 10,
    .two_phase_bytes = SHC_TUNING_AUTO,
    .two_phase_reduce_bytes = SHC_TUNING_AUTO,
    .scatter_gather_bytes = SHC_TUNING_AUTO,
    /* A short step: the next step finds this one's lines in the nearest cache. Without a pipeline that
     * holds for long steps as well, and long steps wait for fewer flags. */
    .turn_bytes = 64 << 10,
    .unpipelined_bytes = 3 << 20,
    .push_bytes = 64 << 10,
    .flag_bytes = 2 << 10,
    .staging_non_temporal_bytes = 8 << 10,
    .output_non_temporal_bytes = 16 << 20,
    .prefetch_bytes = 32 << 10,
    .single_copy_bytes = SHC_TUNING_AUTO,
    .arena =
        {
            .chunk_bytes = SHC_TUNING_AUTO,
            .depth = 3,
            .bcast_slot_bytes = 64 << 10,
            .bcast_slot_depth = SHC_TUNING_AUTO,
        },
};

/* On a Zen 5 the string instructions, which memcpy uses above 2 KiB, take a line over without reading it. */
#define ZEN_5                0x1a
#define ZEN_5_PREFETCH_BYTES ((size_t)512)

struct shc_tuning shc_tuning_default(unsigned amd_family, size_t cache_bytes)
{
    struct shc_tuning tuning = defaults;
    if (cache_bytes > 0) /* half of a cache that has to hold an input, and the other rank's, too */
        tuning.output_non_temporal_bytes = cache_bytes / 2;
    if (amd_family == ZEN_5)
        tuning.prefetch_bytes = ZEN_5_PREFETCH_BYTES;
    return tuning;
}

/* ---- what depends on the group ---- */

/* A larger group has many pairs, and each of them has cells of its own. */
#define FEW_RANKS 4

#define CHUNK_BYTES             ((size_t)256 << 10)
#define CHUNK_BYTES_OF_MANY     ((size_t)128 << 10)
#define BROADCAST_DEPTH         ((size_t)24)
#define BROADCAST_DEPTH_OF_MANY ((size_t)4)

/* With single copy the root no longer copies everything. But blocks that the caches still hold reach the
 * others faster through staging memory, as long as few ranks wait for them. */
#define SINGLE_COPY_BYTES         ((size_t)8 << 20)
#define SINGLE_COPY_BYTES_OF_MANY ((size_t)512 << 10)

/* These algorithms read less and wait more. A wait of ranks that share CPUs is a context switch: there they
 * do not pay. */
#define TWO_PHASE_BYTES        ((size_t)3 << 10)
#define TWO_PHASE_REDUCE_BYTES ((size_t)20 << 10)
#define SCATTER_GATHER_BYTES   ((size_t)48 << 10)

static void settle(size_t *value, size_t automatic)
{
    if (*value == SHC_TUNING_AUTO)
        *value = automatic;
}

static void raise(size_t *value, size_t least)
{
    if (*value < least)
        *value = least;
}

/* Not measured: an unpipelined all_reduce with a pool's threads, each of which has its part of a step in
 * its own caches. */
static void settle_for_pool(struct shc_tuning *tuning, int world_size, int threads)
{
    const size_t parts = (size_t)threads + 1;
    const size_t turn = shc_min_size(parts * SHC_PART_BYTES, SHC_ARENA_MAX_CELL_BYTES);
    raise(&tuning->turn_bytes, turn);
    raise(&tuning->arena.chunk_bytes, turn * (size_t)world_size);
    raise(&tuning->arena.bcast_slot_bytes, turn);
    raise(&tuning->flag_bytes, SHC_ARENA_MAX_CELL_BYTES); /* a piece is the message, or the slot */
    tuning->unpipelined_bytes = SIZE_MAX;
}

void shc_select_settle(struct shc_tuning *tuning, int world_size, int threads, bool crowded)
{
    const bool few = world_size <= FEW_RANKS;
    settle(&tuning->arena.chunk_bytes, few ? CHUNK_BYTES : CHUNK_BYTES_OF_MANY);
    settle(&tuning->arena.bcast_slot_depth, few ? BROADCAST_DEPTH : BROADCAST_DEPTH_OF_MANY);
    settle(&tuning->single_copy_bytes, few ? SINGLE_COPY_BYTES : SINGLE_COPY_BYTES_OF_MANY);
    settle(&tuning->two_phase_bytes, crowded ? SIZE_MAX : TWO_PHASE_BYTES);
    settle(&tuning->two_phase_reduce_bytes, crowded ? SIZE_MAX : TWO_PHASE_REDUCE_BYTES);
    settle(&tuning->scatter_gather_bytes, crowded ? SIZE_MAX : SCATTER_GATHER_BYTES);
    tuning->crowded = crowded;
    if (threads > 0)
        settle_for_pool(tuning, world_size, threads);
}

/* ---- the algorithm ---- */

/* What two ranks use for short data. */
enum slots {
    NO_SLOTS,
    SMALL_SLOTS, /* each rank stores something, and reads what the other has stored */
    HANDOFF,     /* one rank stores, the other one reads */
};

struct form {
    size_t inline_most;
    enum slots of_two;
};

/* Operations without a row carry everything through the arena. */
static const struct form forms[SHC_OP_KIND_COUNT] = {
    [SHC_BROADCAST] = {SHC_INLINE_BYTES, HANDOFF},
    [SHC_GATHER] = {SHC_INLINE_BYTES, HANDOFF},
    [SHC_SCATTER] = {SHC_INLINE_BYTES, HANDOFF},
    [SHC_REDUCE] = {SHC_SELECT_REDUCED_INLINE, HANDOFF},
    [SHC_ALL_GATHER] = {SHC_INLINE_BYTES, SMALL_SLOTS},
    [SHC_REDUCE_SCATTER] = {SHC_SELECT_REDUCED_INLINE, SMALL_SLOTS},
    [SHC_ALL_REDUCE] = {SHC_SELECT_REDUCED_INLINE, SMALL_SLOTS},
};

static size_t small_limit(const struct shc_tuning *tuning, enum shc_op_kind kind, int world_size)
{
    const enum slots slots = forms[kind].of_two;
    if (slots == NO_SLOTS)
        return 0;
    if (world_size != 2)
        return tuning->small_bytes;
    if (slots == HANDOFF)
        return tuning->handoff_bytes;
    /* Measured. Each of two ranks reads only half of an input in a reduce_scatter. */
    return tuning->small_of_two_bytes / (kind == SHC_REDUCE_SCATTER ? 2 : 1);
}

/* A rank that reduces everything reads (p - 1) S bytes. A rank that reduces a slice, and takes the
 * results of the others, reads 2 S (1 - 1/p) bytes, and waits once more. */
static bool has_two_phases(const struct shc_tuning *tuning, enum shc_op_kind kind, size_t bytes,
                           int world_size)
{
    const size_t p = (size_t)world_size, less = bytes * (p - 1) * (p - 2) / p;
    if (p < 3)
        return false;
    if (kind == SHC_REDUCE)
        return less >= tuning->two_phase_reduce_bytes;
    return kind == SHC_ALL_REDUCE && less >= tuning->two_phase_bytes;
}

/* A root that reduces everything reads (p - 1) S bytes. Otherwise it stores S bytes, and reads the
 * results from the same cells. */
static bool scatters_and_gathers(const struct shc_tuning *tuning, enum shc_op_kind kind,
                                 size_t bytes, int world_size)
{
    return kind == SHC_REDUCE && world_size > 3 &&
           bytes * (size_t)(world_size - 3) >= tuning->scatter_gather_bytes;
}

enum shc_algorithm shc_select(const struct shc_tuning *tuning, enum shc_op_kind kind, size_t bytes,
                              int world_size)
{
    if (bytes == 0 || kind == SHC_BARRIER)
        return SHC_ALGO_NOTHING;
    if (bytes <= shc_min_size(tuning->inline_bytes, forms[kind].inline_most))
        return SHC_ALGO_INLINE;
    if (bytes <= small_limit(tuning, kind, world_size))
        return has_two_phases(tuning, kind, bytes, world_size) ? SHC_ALGO_TWO_PHASE
                                                               : SHC_ALGO_SMALL;
    if (kind == SHC_ALL_REDUCE && world_size == 2 && bytes <= tuning->direct_exchange_bytes)
        return SHC_ALGO_DIRECT;
    return scatters_and_gathers(tuning, kind, bytes, world_size) ? SHC_ALGO_SCATTER_GATHER
                                                                 : SHC_ALGO_PIPELINED;
}

/* Does the operation use exchange cells, and not broadcast slots? */
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
        return algorithm == SHC_ALGO_SCATTER_GATHER;
    }
}

/*
 * A short cell holds one step of a short operation, so that operation uses the same cells as if they were
 * long. Broadcast slots are used in turn. Few ranks have many slots, and all of them from the first operation
 * on. Then a line has left its reader's caches before it is stored to again.
 */
unsigned shc_select_parts(enum shc_op_kind kind, enum shc_algorithm algorithm, size_t bytes,
                          int world_size)
{
    const bool is_short = bytes <= SHC_ARENA_SHORT_BYTES && algorithm != SHC_ALGO_SCATTER_GATHER;
    if (exchanges(kind, algorithm, world_size))
        return is_short ? 0 : SHC_ARENA_CELLS;
    return is_short && world_size > FEW_RANKS ? 0 : SHC_ARENA_BCAST_SLOTS;
}

/* ---- the pieces ---- */

/* From this size on an all_reduce in a pipeline uses whole cells, too. */
#define WHOLE_CELLS_FROM ((size_t)8 << 20)

size_t shc_select_turn(const struct shc_tuning *tuning, enum shc_op_kind kind, size_t bytes,
                       int world_size)
{
    const size_t whole_cells_from = shc_min_size(tuning->unpipelined_bytes, WHOLE_CELLS_FROM);
    /* With more ranks than CPUs each wait is a context switch, so a step should be long. */
    if (world_size > 2 || (kind == SHC_ALL_REDUCE && bytes >= whole_cells_from))
        return SIZE_MAX;
    return tuning->turn_bytes;
}

bool shc_select_unpipelined(const struct shc_tuning *tuning, size_t bytes, int world_size)
{
    /* If each wait is a context switch, a rank should move many bytes between two waits. Not measured with
     * more ranks that have a CPU each. */
    return world_size == 2 && !tuning->crowded && bytes >= tuning->unpipelined_bytes;
}

bool shc_select_pulls(const struct shc_tuning *tuning, size_t others_bytes, int world_size)
{
    /* Two ranks copy at the same time in any case: one rank copies what the other one has just
     * stored. */
    return world_size > 2 && world_size <= SHC_CMA_RANKS &&
           others_bytes >= tuning->single_copy_bytes;
}

/*
 * A taker begins when the first piece is there, so it ends one piece later than the giver. Each
 * piece costs one flag. The sum of both is least with pieces of sqrt(bytes * flag_bytes).
 */
size_t shc_select_piece(const struct shc_tuning *tuning, size_t bytes, size_t slot_bytes,
                        int world_size)
{
    /* A wait may be a context switch, as in shc_select_turn(). */
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
