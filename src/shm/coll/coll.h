/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The collectives: one file each, over `plan` (arithmetic), `proto` (moving), `kernel` (combining).
 * An algorithm sees bytes and one erased reduce function, never a dtype, a device or an atomic.
 *
 * Every operation has the same outline:
 *   enter   publish the call line, with the payload, or a slot or cell, filled before it
 *   meet    wait for all ranks' call lines and compare them
 *   move    only now may user memory change
 * Staging cells may be filled before the meeting; they are not user memory.
 *
 * Run by the one thread that holds the group's runner.
 */

#include "shm/coll/plan.h"
#include "shm/coll/select.h"
#include "shm/exec/copymode.h"
#include "shm/exec/pool.h"
#include "shm/kernel/buf.h"
#include "shm/kernel/copy.h"
#include "shm/kernel/kernel.h"
#include "shm/proto/arena.h"
#include "shm/proto/cma.h"
#include "shm/proto/wait.h"

#include <string.h>

/* One collective under way. */
struct shc_task {
    struct shc_seat *seat;
    struct shc_arena *arena;
    const struct shc_tuning *tuning;
    struct shc_wait wait; /* its epoch, deadline and patience */
    struct shc_call call;
    struct shc_buf in;  /* what this rank gives; empty where it gives nothing */
    struct shc_buf out; /* what it gets; may be the memory of in */
    bool selected;      /* `algorithm` is shc_select()'s answer */
    enum shc_algorithm algorithm;
    unsigned parts; /* of the arena, that it wants long */
    shc_reduce_fn reduce;
    struct shc_sparse *sparse; /* in the place of `in` and `out` */
    shc_reduce_fn add;         /* its entries that share an index */
    double factor;             /* PREMUL_SUM */
    const double *factors;     /* the ranks', behind the meeting, while an algorithm reduces */
    const void *more;          /* what an algorithm hands to its own callbacks */
    struct shc_copy_trial
        *trials;           /* SHC_COPY_TRIALS of its kind: how it stores what goes one way */
    bool cma;              /* the kernel may copy out of this rank's memory, or others' */
    struct shc_pool *pool; /* helps with large pieces; may be NULL */
    char *scratch;         /* SHC_SCRATCH_BYTES, for memory that is not contiguous */
};

/* Twice the largest piece an algorithm handles at once. */
#define SHC_SCRATCH_BYTES (2u * SHC_ARENA_MAX_CELL_BYTES)

/* Runs the operation of task->call. SHC_OK when the output is complete. */
SHC_NODISCARD enum shc_status shc_coll_run(struct shc_task *task);

/* One collective per file. */
SHC_NODISCARD enum shc_status shc_barrier_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_broadcast_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_allreduce_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_allreduce_sparse_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_reduce_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_gather_run(struct shc_task *task); /* also all_gather */
SHC_NODISCARD enum shc_status shc_scatter_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_reduce_scatter_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_reduce_scatter_uneven_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_alltoall_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_gather_uneven_run(struct shc_task *task);

/* ---- in parts, where large, on the pool's threads as well: the same bytes (parts.c) ---- */

SHC_INLINE bool shc_task_splits(const struct shc_task *task, size_t bytes)
{
    return SHC_UNLIKELY(bytes >= 2 * SHC_PART_BYTES && task->pool);
}

/* shc_buf_read() and shc_buf_stream() of the input, shc_buf_write() to the output. */
void shc_task_read(const struct shc_task *task, size_t offset, void *cell, size_t bytes);
void shc_task_stream(const struct shc_task *task, size_t offset, void *slot, size_t bytes);
void shc_task_write(const struct shc_task *task, size_t offset, const void *cell, size_t bytes);

/* Does what shc_task_write() copies pass the caches? */
bool shc_task_streams_out(const struct shc_task *task);

/* The same copy, past them or not. */
void shc_task_put(const struct shc_task *task, size_t offset, const void *from, size_t bytes,
                  bool past);

/* shc_copy_exchange(). */
void shc_task_exchange(const struct shc_task *task, char *out, char *cell, const char *next,
                       size_t bytes);

/* task->reduce(args). Small calls come here, too, and feel each instruction. */
void shc_task_reduce_in_parts(const struct shc_task *task, const struct shc_reduce_args *args);

SHC_INLINE void shc_task_reduce(const struct shc_task *task, const struct shc_reduce_args *args)
{
    if (shc_task_splits(task, args->count * task->call.elem_bytes))
        shc_task_reduce_in_parts(task, args);
    else
        task->reduce(args);
}

/* ---- steps they share (coll.c, flow.c) ---- */

/* The payload of a rank's call line in this operation: shc_call_payload(). */
SHC_INLINE char *shc_task_payload(const struct shc_task *task, int rank)
{
    return shc_call_payload(task->seat, rank, task->wait.epoch);
}

/* An operation that one round does: where each rank's bytes are. From shc_round_begin() alone, before anything of
 * it is stored. */
struct shc_round {
    bool in_line; /* in the call lines; else in slots */
    bool one_way; /* not all ranks store */
};

/* Where that rank's bytes are: in its call line, or in its small slot of this epoch. Where not all ranks store, the one
 * of two that does uses a relay slot; of more, each stays in its own block, so that fewer lines go round. */
SHC_INLINE char *shc_round_place(const struct shc_task *task, const struct shc_round *round,
                                 int rank)
{
    if (round->in_line)
        return shc_task_payload(task, rank);
    if (!round->one_way)
        return shc_seat_small_slot(task->seat, rank, task->wait.epoch);
    if (task->seat->world_size == SHC_RELAY_RANKS)
        return shc_seat_relay(task->seat, task->seat->relay.slot);
    return shc_seat_slot_in(task->seat, rank, task->wait.epoch);
}

/*
 * All ranks call it, and nothing fails between it and the call line: it notes whose turn the relay slots are.
 * `lent_bytes`: how much this rank stores in an operation in which it takes nothing, else 0. The others have read those
 * bytes when all meet in the next operation. Then this rank asks for the lines, if it is likely to store to them in the
 * operation after that.
 */
SHC_INLINE struct shc_round shc_round_begin(const struct shc_task *task, bool in_line, bool one_way,
                                            size_t lent_bytes)
{
    struct shc_seat *seat = task->seat;
    const struct shc_round round = {.in_line = in_line, .one_way = one_way};
    if (in_line || !one_way)
        return round;
    const bool root_takes = task->call.kind == SHC_GATHER || task->call.kind == SHC_REDUCE;
    if (seat->world_size == SHC_RELAY_RANKS)
        shc_relay_pass(seat, root_takes ? 1 - task->call.root : task->call.root, task->wait.epoch);
    seat->lent[task->wait.epoch & 1] =
        lent_bytes <= task->tuning->prefetch_bytes ? (uint32_t)lent_bytes : 0;
    return round;
}

/* Bytes of the rank's factor, in front of its payload. */
SHC_INLINE size_t shc_task_factor_bytes(const struct shc_task *task)
{
    return task->call.redop == SHC_PREMUL_SUM ? sizeof task->factor : 0;
}

/* Publishes the call line, with what has been stored into its payload, and rings: from here on
 * giving up fails the group. */
SHC_INLINE void shc_task_enter(struct shc_task *task)
{
    shc_call_publish(task->seat, task->wait.epoch, &task->call);
    task->wait.published = true;
    shc_bell_ring(shc_seat_bell(task->seat, task->seat->rank), true);
}

/* Waits until all ranks are in the same call. */
SHC_NODISCARD SHC_INLINE enum shc_status shc_task_meet(struct shc_task *task)
{
    return shc_call_meet(&task->wait);
}

/*
 * The same for operations that reduce: enter with the rank's factor, if there is one, in front
 * of the first `inline_bytes` of its input; after the meeting, read all ranks' factors into `factors`
 * (room for each rank), for shc_task_reduce_to().
 */
SHC_INLINE void shc_task_enter_reducing(struct shc_task *task, size_t inline_bytes)
{
    char *payload = shc_task_payload(task, task->seat->rank);
    size_t used = shc_task_factor_bytes(task);
    if (used != 0)
        memcpy(payload, &task->factor, used);
    shc_buf_read(&task->in, 0, payload + used, inline_bytes);
    shc_task_enter(task);
}

void shc_task_read_factors(struct shc_task *task, double *factors);

/* Reduces so many bytes of each of src[0..world_size-1] into dst[0..dst_count-1]. */
SHC_INLINE void shc_task_reduce_into(struct shc_task *task, const void *const *src, size_t bytes,
                                     void *const *dst, int dst_count)
{
    /* (What can be reduced has 1, 2, 4, 8 or 16 bytes, and a division takes its time.) */
    const struct shc_reduce_args args = {
        .src = src,
        .dst = dst,
        .src_count = task->seat->world_size,
        .dst_count = dst_count,
        .count = bytes >> __builtin_ctz(task->call.elem_bytes),
        .factors = task->call.redop == SHC_PREMUL_SUM ? task->factors : NULL,
    };
    shc_task_reduce(task, &args);
}

/* Reduces src[0..world_size-1] into that piece of the output, and into dst[0..more-1] beside it;
 * dst has room for one more. Uses the first half of the scratch. */
SHC_INLINE void shc_task_reduce_to(struct shc_task *task, const void *const *src,
                                   struct shc_span where, void **dst, int more)
{
    void *direct = shc_buf_direct(&task->out, where.offset, where.bytes);
    dst[more] = direct ? direct : task->scratch;
    shc_task_reduce_into(task, src, where.bytes, dst, more + 1);
    if (!direct)
        shc_buf_write(&task->out, where.offset, task->scratch, where.bytes);
}

/* Reduces what the other ranks have stored, in cells[rank], and that piece of this rank's own input
 * into that piece of the output. Own input is read from user memory, not from a cell just filled:
 * the peer may store its next operation into that once it has read. Uses the scratch. */
void shc_task_reduce_cells(struct shc_task *task, char *const *cells, struct shc_span own,
                           struct shc_span where);

/* The whole of a reducing operation in a world of one: it still divides, scales and rounds. */
SHC_NODISCARD enum shc_status shc_task_reduce_alone(struct shc_task *task);

/* The whole of one in one round: everybody's input lies in the call lines (in_line) or in small or relay
 * slots, but for that of a reduce's root, which stays in the root's memory. `skip` bytes into it
 * begins what this rank reduces into that piece of its output. */
SHC_NODISCARD enum shc_status shc_task_reduce_round(struct shc_task *task, bool in_line,
                                                    size_t skip, struct shc_span where);

/* One through shout slots, whose inputs the taker reduces, or (-1) all ranks; and the rest of it behind
 * its meeting. */
struct shc_shout shc_task_reduce_shout(struct shc_task *task, int taker);
SHC_NODISCARD enum shc_status shc_task_run_reduce_shout(struct shc_shout *shout);

/* The cells of the present use of an exchange slot by this rank and a peer: the one that it stores to, and
 * the one that it reads. */
SHC_INLINE char *shc_task_write_cell(const struct shc_task *task, int peer, uint32_t slot)
{
    return shc_exchange_write_cell(task->arena, task->seat->rank, peer, task->seat->world_size,
                                   slot);
}

SHC_INLINE char *shc_task_read_cell(const struct shc_task *task, int peer, uint32_t slot)
{
    return shc_exchange_read_cell(task->arena, task->seat->rank, peer, task->seat->world_size,
                                  slot);
}

/* An all_reduce, or a reduce, of more than two ranks over the small slots in two steps (sliced.c). */
SHC_NODISCARD enum shc_status shc_task_run_sliced(struct shc_task *task);

/* That piece of this rank's own input, as a source of a reduction. Uses the second half of the
 * scratch. */
const void *shc_task_own(struct shc_task *task, struct shc_span piece);

/* This rank's own bytes, from its input to its output. Uses the scratch. */
void shc_task_keep(struct shc_task *task, size_t in_offset, size_t out_offset, size_t bytes);

/* A copy of the input takes its place: the output is part of it, and is written before all of the
 * input has left. SHC_ERR_NOMEM. post: *copy is to be freed when the operation has ended, and what
 * task->in was before is to be put back. */
SHC_NODISCARD enum shc_status shc_task_copy_input(struct shc_task *task, void **copy);

/*
 * A cell changes hands: what the peer left in it goes to that piece of the output, and that piece of
 * the input into the lines just read, in one pass where both lie in plain memory. Either may be
 * empty. The caller tells the arena that the cell has been used.
 */
void shc_task_trade(struct shc_task *task, char *cell, struct shc_span got, struct shc_span given);

/*
 * shc_select() for this task, which asks with the same `bytes` each time that it runs: what all ranks call
 * with, before any of them stores to the arena. Where there is no arena, nor will there be, the small slots
 * carry what they can; the same on all ranks.
 */
SHC_INLINE enum shc_algorithm shc_task_select(struct shc_task *task, size_t bytes)
{
    const int world = task->seat->world_size;
    if (SHC_UNLIKELY(!task->selected)) {
        task->algorithm = shc_select(task->tuning, task->call.kind, bytes, world);
        task->parts = shc_select_parts(task->call.kind, task->algorithm, bytes, world);
    }
    task->selected = true;
    if (task->algorithm <= SHC_ALGO_TWO_PHASE)
        return task->algorithm;
    shc_arena_want(task->arena, world, task->parts);
    const bool cannot = shc_arena_refused(task->arena);
    return SHC_UNLIKELY(cannot && bytes <= SHC_SMALL_SLOT_BYTES) ? SHC_ALGO_SMALL : task->algorithm;
}

/* The same of an operation whose sizes are known only after its meeting, before shc_task_arena(). What
 * has been stored to the arena before stays where it is: then the next operation's is another one. */
void shc_task_want(struct shc_task *task, size_t bytes);

/* Makes sure that the question of an arena is settled, behind the meeting. True: there is one. */
SHC_NODISCARD enum shc_status shc_task_arena(struct shc_task *task, bool *made);

/* Without an arena a flow goes through the small slots, which this operation has filled before its
 * call line: takes step 1 to know that all ranks have read them. The flow's steps begin behind. */
SHC_NODISCARD enum shc_status shc_small_slots_reuse(struct shc_task *task);

/* How a message is cut, and into which places: the same on all ranks. */
struct shc_cut {
    size_t place_bytes; /* whole lines: a slot, or a part of one */
    size_t chunk_bytes; /* whole elements */
    uint32_t depth;     /* in places */
    uint32_t first;     /* place of chunk 0 */
    uint64_t chunk_count;
};

/*
 * Chunks through shout slots, arena or not. In turn k, `give` fills this rank's slot with its
 * chunk k (givers only), and `take` works on the slots that hold chunk k (takers only). The one taker
 * of a flow gives nothing: its own slot is not filled.
 */
struct shc_shout {
    struct shc_task *task;
    size_t total_bytes;  /* of one giver's contribution */
    int giver;           /* the one rank that gives; -1: all, but the one taker */
    int taker;           /* the one rank that takes; -1: all, but the one giver */
    uint64_t first_step; /* steps the operation has published before */
    bool announced; /* chunk 0, by the givers' call lines; not `cut` yet: if its place is free */
    struct shc_cut cut;          /* depth 0: not yet */
    uint64_t begun;              /* chunks that this rank has stored before the meeting */
    struct shc_copy_meter meter; /* of these */
    void (*give)(struct shc_task *task, struct shc_span chunk, char *slot);
    void (*take)(struct shc_task *task, struct shc_span chunk, char *const *slots);
    /* Where this rank gives: behind the publication of a chunk, while the caches have it, what it keeps
     * of that; the chunk may reach beyond its input. Or NULL. */
    void (*keep)(struct shc_task *task, struct shc_span chunk);
};

/* That piece of this rank's input into its shout slot: past the caches where it is a large one
 * and that is faster. */
void shc_give_piece(struct shc_task *task, struct shc_span piece, char *slot);

/* The usual `give`: the chunk of this rank's input, which may end before it. */
void shc_give_input(struct shc_task *task, struct shc_span chunk, char *slot);

/* A number of chunks that the steps of an operation cannot count fails the group. */
SHC_NODISCARD enum shc_status shc_check_length(struct shc_task *task, uint64_t chunk_count);

/* Before the call line, which then announces chunk 0: stores it, where nobody may still be reading what
 * lies there. All ranks call it, or none. The flow must be run, or what it has stored is read by nobody. */
void shc_shout_begin(struct shc_shout *shout);

/* Between entering and meeting: who gives and does not take stores more chunks likewise, a few, or what
 * it can while others are not here yet. Each rank may call it or not. */
void shc_shout_go_on(struct shc_shout *shout);

/* pre: the ranks have met. */
SHC_NODISCARD enum shc_status shc_shout_run(struct shc_shout *shout);

/*
 * Chunks through exchange cells: in turn k every rank stores given(peer, k), a piece of its input,
 * into the cell of the pair, and copies what the peer stored to got(peer, k), a piece of its output
 * (behind the last chunk both are empty); or it works on all peers' cells at once in take()
 * (cells[own rank] is NULL).
 */
struct shc_swap {
    struct shc_task *task;
    uint64_t chunk_count; /* the same on all ranks */
    struct shc_span (*given)(const struct shc_task *task, int peer, uint64_t k);
    struct shc_span (*got)(const struct shc_task *task, int peer, uint64_t k);
    void (*take)(struct shc_task *task, uint64_t k, char *const *cells); /* NULL: got() */
    /* Likewise what this rank keeps of chunk k. Or NULL. */
    void (*keep)(struct shc_task *task, uint64_t k);
    bool begun; /* set by shc_swap_begin(), or _empty() */
};

/* How many bytes of whole elements a turn puts into a cell: opaque ones may not divide it. */
size_t shc_task_cell_bytes(const struct shc_task *task);

/* Before the call line, which then announces chunk 0: stores it, if there is an arena yet. Needs
 * given() only. The swap must be run, unless no rank gives anything: then nobody's cells change. */
void shc_swap_begin(struct shc_swap *swap);

/* The same for a rank whose chunk 0 is empty: others may begin with something. */
SHC_INLINE void shc_swap_begin_empty(struct shc_swap *swap)
{
    swap->begun = swap->task->arena->made;
}

/* pre: the ranks have met, and there is an arena. Begun: at least one chunk, maybe of no bytes. */
SHC_NODISCARD enum shc_status shc_swap_run(const struct shc_swap *swap);

/* ---- blocks that differ in size (uneven.c) ---- */

/* What a rank says of its tensors in its small slot of this operation: puts it there, before the call
 * line; copies another rank's out of there once, after the meeting. That one may say anything, and
 * change it at any time; what this rank has said itself it knows, and never reads there. */
SHC_INLINE void shc_task_say(const struct shc_task *task, const void *from, size_t bytes)
{
    memcpy(shc_seat_small_slot(task->seat, task->seat->rank, task->wait.epoch), from, bytes);
}

SHC_INLINE void shc_task_hear(const struct shc_task *task, int rank, void *to, size_t bytes)
{
    shc_copy_once(to, shc_seat_small_slot(task->seat, rank, task->wait.epoch), bytes);
}

/* One number of those that begin the rank's small slot. */
SHC_INLINE uint64_t shc_task_hear_number(const struct shc_task *task, int rank, size_t index)
{
    const char *slot = shc_seat_small_slot(task->seat, rank, task->wait.epoch);
    uint64_t number;
    shc_copy_once(&number, slot + index * sizeof number, sizeof number);
    return number;
}

/* A rank has said what no rank says. */
SHC_NODISCARD SHC_COLD enum shc_status shc_task_fail_damaged(struct shc_task *task, int rank);

/* One block for each rank, one behind the other: that of rank r ends where that of r + 1 begins. */
struct shc_blocks {
    size_t begin[SHC_MAX_WORLD + 1];
};

SHC_INLINE struct shc_span shc_blocks_at(const struct shc_blocks *blocks, int rank)
{
    return (struct shc_span){blocks->begin[rank], blocks->begin[rank + 1] - blocks->begin[rank]};
}

/* Before the call line: the bytes of each tensor of the list, into this rank's small slot. */
void shc_uneven_fill_table(struct shc_task *task, const struct shc_buf *list,
                           struct shc_blocks *blocks);

/* Behind the meeting: the others' tables must say the same as these, this rank's own. `format` words the
 * difference for a rank, its own entry in elements, another rank, that one's entry. */
SHC_NODISCARD enum shc_status shc_uneven_compare_tables(struct shc_task *task, const char *format,
                                                        const struct shc_blocks *blocks);

/*
 * Every rank's input to all ranks: it becomes that rank's block of the output. Before the call line,
 * pack() lays the input into the small slot, `skip` bytes from its beginning, if it fits; behind the
 * meeting, when all know all sizes, spread() moves everything. `skip` is the same on all ranks.
 */
SHC_INLINE bool shc_blocks_packed(size_t bytes, size_t skip)
{
    return bytes <= SHC_SMALL_SLOT_BYTES - skip;
}

void shc_blocks_pack(struct shc_task *task, size_t skip);
SHC_NODISCARD enum shc_status shc_blocks_spread(struct shc_task *task,
                                                const struct shc_blocks *blocks, size_t skip);
