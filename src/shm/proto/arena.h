/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Staging memory for large messages: a lazy segment, made by the group's first operation that needs
 * it. Where it cannot be made (no memory, no permission) the small slots of the first segment do
 * the work; the choice is the same on all ranks.
 *
 * It is as large as the group's operations have needed so far: at first its cells and slots are short, and
 * the first operation that wants long ones (enum shc_arena_part) has the ranks make another arena in its
 * place. So a group that sends little keeps little, whatever it could send. Any arena can carry any
 * operation: which one there is decides how fast that goes, never whether.
 *
 * A cell is the smallest piece that changes hands. THE rule: a cell may be stored to when its last
 * writer and its last readers, oneself excepted, show progress past that access. Who owns what is
 * private arithmetic of each rank; nothing about it is in the segment.
 *
 * Exchange slots, per unordered pair of ranks: `depth` slots of two cells. In every use of a slot
 * each side stores one cell and then reads the other. The next use swaps the cells: each side
 * stores into the cell it has just read, whose lines are in its cache already, and which the peer
 * is done with by construction. So a use needs no flag beyond the peer's step that was waited for
 * to read, provided every use is two-way: both sides wait for each other's store of use m before
 * they store for use m+1. All operations here are (empty slices take part too), but for the root and an
 * owner of a spread reduce, who swap nothing: the owner stores its result where the root's input was, and
 * the root reads it, and stores there next.
 *
 * Shout slots, per rank: one writer, all others read. Refilled when all readers show progress past
 * their read. An operation begins behind the slots of the last one, so that all are used in turn: a
 * line that is stored to again has then left its readers' nearest caches. Behind its meeting nothing
 * of an earlier operation is still being read.
 *
 * A rank's range begins with the cells of slot 0 of all pairs that lie in it; those of the other
 * slots come behind, and its shout slots lie over these. No operation stores to both, and behind a
 * meeting all have read what lay there. In front of one only two things are stored: chunk 0 into cells
 * of slot 0, and shout slots that the operation before left alone, or all by a rank that stored nothing
 * in it (`stored_epoch`; shc_shout_begin(), shc_shout_go_on()). The latter holds because nobody else
 * touches that part of its range either, in an operation in which it stores nothing itself: the cells
 * there are its own and its peer's.
 */

#include "shm/proto/seat.h"
#include "shm/proto/wait.h"

#define SHC_ARENA_MAX_DEPTH       4
#define SHC_ARENA_MAX_SHOUT_DEPTH 32
#define SHC_ARENA_MIN_CELL_BYTES  2048
#define SHC_ARENA_MAX_CELL_BYTES  131072 /* of a shout slot as well */

/* What a group wishes for; the same on all ranks. Each field is a size_t, for the table in coll/keys.c. */
struct shc_arena_sizes {
    size_t chunk_bytes; /* of all slices together; one cell holds one slice */
    size_t depth;       /* exchange slots per pair: 2 to SHC_ARENA_MAX_DEPTH */
    size_t shout_bytes; /* of a broadcast slot; whole lines */
    size_t shout_depth; /* broadcast slots of each rank: 2 to SHC_ARENA_MAX_SHOUT_DEPTH */
};

/* What of an arena has the length that the group wishes for: bits of a set. What has not is as long as an
 * operation of SHC_ARENA_SHORT_BYTES needs. */
enum shc_arena_part {
    SHC_ARENA_CELLS = 1,
    SHC_ARENA_SHOUTS = 2,
    SHC_ARENA_WHOLE = SHC_ARENA_CELLS | SHC_ARENA_SHOUTS,
};

#define SHC_ARENA_SHORT_BYTES ((size_t)32 << 10)

/* Sizes: the same on all ranks, from world size, limit, wishes and parts alone. */
struct shc_arena_geometry {
    uint32_t depth;        /* exchange slots per pair */
    size_t cell_bytes;     /* a multiple of SHC_LINE_BYTES */
    uint32_t pairs_hosted; /* pairs that lie in one rank's range */
    uint32_t shout_depth;  /* shout slots per rank */
    size_t shout_bytes;    /* of one shout slot */
    size_t range_bytes;    /* one rank's share of the segment, whole pages */
};

/* Bytes of every rank's shout slots that an operation used, or may have used: so many from there on,
 * and behind `ring` from the first one on again. */
struct shc_arena_places {
    uint64_t epoch;
    size_t first, bytes, ring;
};

struct shc_arena {
    struct shc_arena_geometry geometry;
    struct shc_segment segment;
    struct shc_arena_sizes wish;
    size_t limit_bytes;
    /* Sets of enum shc_arena_part, the same on all ranks: what operations have wanted so far, and what the
     * arena has, or cannot have. */
    unsigned wanted, had;
    uint64_t attempt; /* the number of the last one to make an arena */
    /* Of the last operation that used shout slots, and of the last one that used exchange cells: the
     * same for all ranks. */
    struct shc_arena_places shouted;
    uint64_t swapped_epoch;
    /* The last operation in which this rank stored something here that others read behind its meeting,
     * also where all its pieces were empty. */
    uint64_t stored_epoch;
    bool tried; /* the ranks have agreed on whether it exists */
    bool made;
    uint32_t
        form; /* while it is made, at rank 0: enum shc_segment_form of this attempt; 0: none left */
    int node; /* where this rank's range should be; -1: anywhere */
    uint8_t parity[SHC_MAX_WORLD][SHC_ARENA_MAX_DEPTH];
};

/* The largest geometry within the limit, with those parts long; depth 0 when there is none. */
struct shc_arena_geometry shc_arena_plan(int world_size, size_t limit_bytes,
                                         const struct shc_arena_sizes *wish, unsigned parts);

/* Bytes: the limit where nobody has set one. Every two ranks have cells, and these a least length, so that it
 * grows with the square of a large world. */
size_t shc_arena_usual_limit(int world_size);

/* Bytes: below this limit there is no geometry. */
size_t shc_arena_least_limit(int world_size);

/* The bytes of a rank's range that are stored to: reserved for it, and nothing beside them. */
struct shc_arena_extent {
    size_t offset, bytes; /* in the segment */
};
struct shc_arena_extent shc_arena_extent_of(const struct shc_arena_geometry *geometry,
                                            int world_size, int rank);

void shc_arena_init(struct shc_arena *arena, int world_size, size_t limit_bytes,
                    const struct shc_arena_sizes *wish, int node);

/*
 * Makes the arena with the other ranks, or agrees with them that there is none: arena->made. Called
 * by all ranks in the same operation, after they have met. Fails only as a wait fails.
 */
SHC_NODISCARD enum shc_status shc_arena_make(struct shc_arena *arena, struct shc_wait *wait);

void shc_arena_fini(struct shc_arena *arena);

/* Drops this rank's view of the arena, so that the operation that begins makes one with all that is
 * wanted. The others may still be reading what the last operation left in theirs. */
SHC_COLD void shc_arena_outgrow(struct shc_arena *arena, int world_size);

/*
 * An operation that may need an arena begins, and wants those parts of it long. pre: all ranks call it with
 * the same parts in the same operation, before they store anything in it.
 */
SHC_INLINE void shc_arena_want(struct shc_arena *arena, int world_size, unsigned parts)
{
    arena->wanted |= parts;
    if (SHC_UNLIKELY((arena->wanted & ~arena->had) != 0))
        shc_arena_outgrow(arena, world_size);
}

/* There is none, nor will there be; the same on all ranks. */
SHC_INLINE bool shc_arena_refused(const struct shc_arena *arena)
{
    return arena->tried && !arena->made;
}

/* Where the pair's two cells of that slot begin. */
SHC_INLINE char *shc_arena_cells(const struct shc_arena *arena, int rank, int peer, int world_size,
                                 uint32_t slot)
{
    /* Each rank hosts the pairs with the next (world_size - 1) / 2 ranks; of an even world, the
     * lower rank of two opposite ones hosts theirs as its last. */
    const struct shc_arena_geometry *g = &arena->geometry;
    int ahead = peer - rank + (peer < rank ? world_size : 0);
    bool hosted = 2 * ahead < world_size || (2 * ahead == world_size && rank < peer);
    int host = hosted ? rank : peer;
    size_t index = (size_t)(hosted ? ahead : world_size - ahead) - 1;
    return arena->segment.base + (size_t)host * g->range_bytes +
           (slot * (size_t)g->pairs_hosted + index) * 2 * g->cell_bytes;
}

/* The cells of the present use of (peer, slot): the one `rank` stores to, the one it reads. */
SHC_INLINE char *shc_exchange_write_cell(const struct shc_arena *arena, int rank, int peer,
                                         int world_size, uint32_t slot)
{
    uint32_t cell = arena->parity[peer][slot] ^ (rank > peer);
    return shc_arena_cells(arena, rank, peer, world_size, slot) + cell * arena->geometry.cell_bytes;
}

SHC_INLINE char *shc_exchange_read_cell(const struct shc_arena *arena, int rank, int peer,
                                        int world_size, uint32_t slot)
{
    uint32_t cell = arena->parity[peer][slot] ^ (rank < peer);
    return shc_arena_cells(arena, rank, peer, world_size, slot) + cell * arena->geometry.cell_bytes;
}

/* This rank has stored and read: what it read is what it stores to next. */
SHC_INLINE void shc_exchange_swap(struct shc_arena *arena, int peer, uint32_t slot)
{
    arena->parity[peer][slot] ^= 1;
}

/* All ranks store to cells in this operation. */
SHC_INLINE void shc_exchange_note(struct shc_arena *arena, uint64_t epoch)
{
    arena->swapped_epoch = arena->stored_epoch = epoch;
}

/* Where the next operation begins, in each rank's shout slots. */
SHC_INLINE size_t shc_arena_places_end(const struct shc_arena_places *places)
{
    return places->ring > 0 ? (places->first + places->bytes) % places->ring : 0;
}

/*
 * May a rank store to so many bytes of its shout slots from there on before it has met the others in
 * this operation? They may still be in the one before, which it has met them in: what is older has been
 * read. The same answer on all ranks.
 */
SHC_INLINE bool shc_arena_is_free(const struct shc_arena *arena, uint64_t epoch, size_t first,
                                  size_t bytes)
{
    const struct shc_arena_places *last = &arena->shouted;
    if (arena->swapped_epoch + 1 >= epoch)
        return false;
    if (last->epoch + 1 < epoch)
        return true;
    const size_t end = last->first + last->bytes;
    const size_t again = end > last->ring ? end - last->ring : 0; /* bytes from the first slot on */
    return last->bytes < last->ring && (first + bytes <= last->first || first >= end - again) &&
           first >= again;
}

/* Of the first shout slot, in its rank's range: behind the cells of slot 0. */
SHC_INLINE size_t shc_arena_shout_offset(const struct shc_arena_geometry *g)
{
    return (size_t)g->pairs_hosted * 2 * g->cell_bytes;
}

/* The first of the rank's shout slots, which lie one behind the other. */
SHC_INLINE char *shc_arena_shouts(const struct shc_arena *arena, int rank)
{
    const struct shc_arena_geometry *g = &arena->geometry;
    return arena->segment.base + (size_t)rank * g->range_bytes + shc_arena_shout_offset(g);
}
