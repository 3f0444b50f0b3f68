/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Staging memory for large messages: a lazy segment, made by the group's first operation that needs it. If
 * it cannot be made (no memory, no permission), the small slots of the first segment do the work. All ranks
 * decide alike.
 *
 * It is as large as the group's operations have needed so far. At first its cells and slots are short. The
 * first operation that wants long ones (enum shc_arena_part) has the ranks make another arena in its place.
 * So a group that sends little keeps little. Any arena can carry any operation: its form decides the speed,
 * never whether it works.
 *
 * A cell is the smallest piece that changes hands. THE rule: a rank may store to a cell when the cell's
 * last writer and last readers, except that rank itself, show progress past that access. Each rank computes
 * for itself which cell it owns; nothing about it is in the segment.
 *
 * Exchange slots, per unordered pair of ranks: `depth` slots of two cells. In every use of a slot each side
 * stores one cell and then reads the other. The next use swaps the cells: each side stores into the cell it
 * has just read. Its lines are in this rank's cache already, and the peer has finished with it by
 * construction. So a use needs no flag except the peer's step that was waited for to read, provided every
 * use is two-way: both sides wait for each other's store of use m before they store for use m+1. All
 * operations here are two-way (empty slices take part too), with one exception: the root and an owner of a
 * slice in a reduce-scatter with gather swap nothing. The owner stores its result where the root's input
 * was, and the root reads it, and stores there next.
 *
 * Broadcast slots, per rank: one writer, all others read. They are refilled when
 * all readers show progress past their read. An operation begins after the slots of the last one, so that
 * all are used in turn: a line that is stored to again has then left its readers' nearest caches. After an
 * operation's meeting no rank still reads anything of an earlier operation. Two ranks that give in turns hand
 * slots over as they hand cells over: the one that has read them fills them next (STAGE-56).
 *
 * A rank's range begins with the cells of slot 0 of all pairs that lie in it. The cells of the other slots
 * follow, and its broadcast slots share memory with these. No operation stores to both, and after a meeting
 * all ranks have read what lay there. Before a meeting only two things are stored: chunk 0 into cells of
 * slot 0, and broadcast slots that the operation before did not use, or all of them if this rank stored
 * nothing in it (`stored_epoch`; shc_flow_begin(), shc_flow_go_on()). The latter holds because in an
 * operation in which a rank stores nothing, no other rank touches that part of its range either: the cells
 * there belong to it and its peer. The other one of two ranks may have given there, and then this rank has
 * read it (STAGE-56).
 */

#include "shm/proto/seat.h"
#include "shm/proto/wait.h"

#define SHC_ARENA_MAX_DEPTH            4
#define SHC_ARENA_MAX_BCAST_SLOT_DEPTH 32
#define SHC_ARENA_MIN_CELL_BYTES       2048
#define SHC_ARENA_MAX_CELL_BYTES       131072 /* length of a broadcast slot as well */

/* What a group wishes for; the same on all ranks. Each field is a size_t, for the table in coll/keys.c. */
struct shc_arena_sizes {
    size_t chunk_bytes;      /* of all slices together; one cell holds one slice */
    size_t depth;            /* exchange slots per pair: 2 to SHC_ARENA_MAX_DEPTH */
    size_t bcast_slot_bytes; /* of a broadcast slot; whole lines */
    size_t bcast_slot_depth; /* broadcast slots of each rank: 2 to SHC_ARENA_MAX_BCAST_SLOT_DEPTH */
};

/* The parts of an arena that have the length that the group asks for: bits of a set. The other parts are as
 * long as an operation of SHC_ARENA_SHORT_BYTES needs. */
enum shc_arena_part {
    SHC_ARENA_CELLS = 1,
    SHC_ARENA_BCAST_SLOTS = 2,
    SHC_ARENA_WHOLE = SHC_ARENA_CELLS | SHC_ARENA_BCAST_SLOTS,
};

#define SHC_ARENA_SHORT_BYTES ((size_t)32 << 10)

/* Sizes: the same on all ranks, computed from world size, limit, wishes and parts alone. */
struct shc_arena_geometry {
    uint32_t depth;            /* exchange slots per pair */
    size_t cell_bytes;         /* a multiple of SHC_LINE_BYTES */
    uint32_t pairs_hosted;     /* pairs that lie in one rank's range */
    uint32_t bcast_slot_depth; /* broadcast slots per rank */
    size_t bcast_slot_bytes;   /* of one broadcast slot */
    size_t range_bytes;        /* one rank's share of the segment, whole pages */
};

/* Bytes of broadcast slots that an operation used, or may have used: that many from there on, and after `ring`
 * from the first one on again. */
struct shc_arena_places {
    uint64_t epoch;
    size_t first, bytes, ring; /* ring 0: no operation has used any yet */
    int giver;                 /* of two ranks: the only one that gave; -1: there was none */
    int owner;                 /* whose slots they are; -1: each rank's own */
};

struct shc_arena {
    struct shc_arena_geometry geometry;
    struct shc_segment segment;
    struct shc_arena_sizes wish;
    size_t limit_bytes;
    /* Sets of enum shc_arena_part, the same on all ranks: what operations have asked for so far, and what
     * the arena has, or cannot have. */
    unsigned wanted, had;
    uint64_t attempt; /* the number of the last operation that made an arena */
    /* Of the last operation that used broadcast slots, and of the last one that used exchange cells: the
     * same for all ranks. */
    struct shc_arena_places in_bcast_slots;
    uint64_t swapped_epoch;
    /* The last operation in which this rank stored something here that others read after its meeting, also
     * if all its pieces were empty. */
    uint64_t stored_epoch;
    bool tried; /* the ranks have agreed on whether it exists */
    bool made;
    /* While it is made, at rank 0: enum shc_segment_form of this attempt; 0: none left. */
    uint32_t form;
    int8_t node_of[SHC_MAX_WORLD]; /* the NUMA node of each rank; -1: of none */
    uint8_t parity[SHC_MAX_WORLD][SHC_ARENA_MAX_DEPTH];
};

/* The largest geometry within the limit, with those parts long; depth 0 when there is none. */
struct shc_arena_geometry shc_arena_plan(int world_size, size_t limit_bytes,
                                         const struct shc_arena_sizes *wish, unsigned parts);

/* Bytes: the default limit. Every two ranks have cells of at least a minimum length, so it grows with the
 * square of a large world. */
size_t shc_arena_usual_limit(int world_size);

/* Bytes: with a smaller limit there is no geometry. */
size_t shc_arena_least_limit(int world_size);

/* The bytes of a rank's range that are stored to: exactly these are reserved for it. */
struct shc_arena_extent {
    size_t offset, bytes; /* in the segment */
};
struct shc_arena_extent shc_arena_extent_of(const struct shc_arena_geometry *geometry,
                                            int world_size, int rank);

/* The NUMA nodes that the memory of a part of a rank's range is from (MEM-15). */
struct shc_arena_home {
    size_t offset, bytes; /* in the segment */
    uint64_t nodes;
};
#define SHC_ARENA_MOST_HOMES (SHC_MAX_WORLD / 2 + 2)

/* post: *homes are the parts of the rank's extent, in their order; neighbours differ in their nodes. Returns how
 * many they are. node_of: of each rank, -1: not known. */
int shc_arena_homes(const struct shc_arena_geometry *geometry, int world_size, int rank,
                    const int8_t *node_of, struct shc_arena_home homes[SHC_ARENA_MOST_HOMES]);

void shc_arena_init(struct shc_arena *arena, int world_size, size_t limit_bytes,
                    const struct shc_arena_sizes *wish);

/*
 * Makes the arena with the other ranks, or agrees with them that there is none: arena->made. Called
 * by all ranks in the same operation, after they have met. Fails only as a wait fails.
 */
SHC_NODISCARD enum shc_status shc_arena_make(struct shc_arena *arena, struct shc_wait *wait);

void shc_arena_fini(struct shc_arena *arena);

/* Drops this rank's view of the arena, so that the operation that begins makes one with all that has been
 * asked for. Other ranks may still read in theirs what the last operation left there. */
SHC_COLD void shc_arena_outgrow(struct shc_arena *arena, int world_size);

/*
 * An operation begins that may need an arena, with those parts of it long. pre: all ranks call it with the
 * same parts in the same operation, before they store anything in it.
 */
SHC_INLINE void shc_arena_want(struct shc_arena *arena, int world_size, unsigned parts)
{
    arena->wanted |= parts;
    if (SHC_UNLIKELY((arena->wanted & ~arena->had) != 0))
        shc_arena_outgrow(arena, world_size);
}

/* There is no arena, and there will be none; the same on all ranks. */
SHC_INLINE bool shc_arena_refused(const struct shc_arena *arena)
{
    return arena->tried && !arena->made;
}

/* Where the pair's two cells of that slot begin. */
SHC_INLINE char *shc_arena_cells(const struct shc_arena *arena, int rank, int peer, int world_size,
                                 uint32_t slot)
{
    /* Each rank hosts the pairs with the next (world_size - 1) / 2 ranks. In an even world, the lower of
     * two opposite ranks hosts their pair as its last. */
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

/* This rank has stored and read: it stores next to the cell that it has read. */
SHC_INLINE void shc_exchange_swap(struct shc_arena *arena, int peer, uint32_t slot)
{
    arena->parity[peer][slot] ^= 1;
}

/* All ranks store to cells in this operation. */
SHC_INLINE void shc_exchange_note(struct shc_arena *arena, uint64_t epoch)
{
    arena->swapped_epoch = arena->stored_epoch = epoch;
}

/* Where the next operation begins, in each rank's broadcast slots. */
SHC_INLINE size_t shc_arena_places_end(const struct shc_arena_places *places)
{
    return places->ring > 0 ? (places->first + places->bytes) % places->ring : 0;
}

/* May the others still read cells, which lie where the broadcast slots do? The same answer on all ranks. */
SHC_INLINE bool shc_arena_may_have_cells(const struct shc_arena *arena, uint64_t epoch)
{
    return arena->swapped_epoch + 1 >= epoch;
}

/*
 * May a rank store to that many bytes of the owner's broadcast slots from there on (owner -1: of its own) before
 * it has met the others in this operation? The others may still be in the operation before. They have met this
 * rank in that one, so everything older has been read. The same answer on all ranks.
 */
SHC_INLINE bool shc_arena_is_free(const struct shc_arena *arena, uint64_t epoch, int owner,
                                  size_t first, size_t bytes)
{
    const struct shc_arena_places *last = &arena->in_bcast_slots;
    const bool apart = owner >= 0 && last->owner >= 0 && owner != last->owner;
    if (shc_arena_may_have_cells(arena, epoch))
        return false;
    if (last->epoch + 1 < epoch || apart)
        return true;
    const size_t end = last->first + last->bytes;
    const size_t again = end > last->ring ? end - last->ring : 0; /* bytes from the first slot on */
    return last->bytes < last->ring && (first + bytes <= last->first || first >= end - again) &&
           first >= again;
}

/* Of the first broadcast slot, in its rank's range: after the cells of slot 0. */
SHC_INLINE size_t shc_arena_bcast_slot_offset(const struct shc_arena_geometry *g)
{
    return (size_t)g->pairs_hosted * 2 * g->cell_bytes;
}

/* The first of the rank's broadcast slots, which are adjacent. */
SHC_INLINE char *shc_arena_bcast_slots(const struct shc_arena *arena, int rank)
{
    const struct shc_arena_geometry *g = &arena->geometry;
    return arena->segment.base + (size_t)rank * g->range_bytes + shc_arena_bcast_slot_offset(g);
}
