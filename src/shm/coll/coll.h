/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The collectives, one file for each. An algorithm computes with `plan`, moves bytes with `proto`, and
 * combines them with `kernel`. It sees bytes and one type-erased reduce function. It never sees a dtype, a
 * device or an atomic.
 *
 * Every operation has the same three parts:
 *   1. enter   Publish the call line (CALL-1). The payload, slot or cell that it announces is filled before.
 *   2. meet    Wait for the call lines of all ranks, and compare them (CALL-2).
 *   3. move    Only now may user memory change.
 * Staging memory may be filled before the meeting, because it is not user memory.
 *
 * One thread at a time runs all this: the one that holds the group's runner.
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
    struct shc_buf in;  /* what this rank gives; empty if it gives nothing */
    struct shc_buf out; /* what this rank gets; may be the same memory as `in` */
    bool selected;      /* `algorithm` is shc_select()'s answer */
    enum shc_algorithm algorithm;
    unsigned parts; /* of the arena: those that it wants long (STAGE-51) */
    shc_reduce_fn reduce;
    struct shc_sparse *sparse; /* its tensors, in the place of `in` and `out` */
    shc_reduce_fn add;         /* sparse: adds this rank's entries that share an index */
    double factor;             /* PREMUL_SUM: this rank's */
    const double *factors;     /* all ranks'; set after the meeting, while an algorithm reduces */
    const void *more;          /* what an algorithm passes to its own callbacks */
    struct shc_copy_trial
        *trials;           /* SHC_COPY_TRIALS of its kind: the copy modes of one-way stores */
    bool cma;              /* the kernel may copy out of this rank's memory, and out of others' */
    struct shc_pool *pool; /* threads that help with large pieces; may be NULL */
    char *scratch;         /* SHC_SCRATCH_BYTES, for memory that is not contiguous */
};

/* Twice the largest piece that an algorithm handles at once. */
#define SHC_SCRATCH_BYTES (2u * SHC_ARENA_MAX_CELL_BYTES)

/* Runs the operation of task->call. SHC_OK: the output is complete. */
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

/* ---- large pieces in parts, also on the pool's threads; the bytes stay the same (parts.c) ---- */

SHC_INLINE bool shc_task_splits(const struct shc_task *task, size_t bytes)
{
    return SHC_UNLIKELY(bytes >= 2 * SHC_PART_BYTES && task->pool);
}

/* shc_buf_read() of the input, shc_buf_stream() of the input, and shc_buf_write() to the output. */
void shc_task_read(const struct shc_task *task, size_t offset, void *cell, size_t bytes);
void shc_task_stream(const struct shc_task *task, size_t offset, void *slot, size_t bytes);
void shc_task_write(const struct shc_task *task, size_t offset, const void *cell, size_t bytes);

/* Does shc_task_write() use non-temporal stores? */
bool shc_task_streams_out(const struct shc_task *task);

/* The copy of shc_task_write(), with non-temporal stores if `past`. */
void shc_task_put(const struct shc_task *task, size_t offset, const void *from, size_t bytes,
                  bool past);

/* shc_copy_exchange(), or shc_copy_exchange_past() if the output is large and this is no
 * all_reduce. */
void shc_task_exchange(const struct shc_task *task, char *out, char *cell, const char *next,
                       size_t bytes);

/* task->reduce(args), in parts if it is large. Small calls come this way too, and there each
 * instruction counts. */
void shc_task_reduce_in_parts(const struct shc_task *task, const struct shc_reduce_args *args);

SHC_INLINE void shc_task_reduce(const struct shc_task *task, const struct shc_reduce_args *args)
{
    if (shc_task_splits(task, args->count * task->call.elem_bytes))
        shc_task_reduce_in_parts(task, args);
    else
        task->reduce(args);
}

/* ---- steps that the collectives share (coll.c, flow.c) ---- */

/* The payload of a rank's call line in this operation: shc_call_payload(). */
SHC_INLINE char *shc_task_payload(const struct shc_task *task, int rank)
{
    return shc_call_payload(task->seat, rank, task->wait.epoch);
}

/* An operation of one round: where the bytes of each rank are. Only shc_round_begin() makes it,
 * before the operation stores anything. */
struct shc_round {
    bool in_line; /* in the call lines; otherwise in slots */
    bool one_way; /* not every rank stores */
};

/* Where the bytes of that rank are: in its call line, or in its small slot of this epoch. If not
 * all ranks store, the rank of two that stores uses a hand-off slot (in the code: relay; STAGE-26).
 * With more ranks each one stays in its own block, so that fewer lines move between caches
 * (CALL-5). */
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
 * Begins an operation of one round. All ranks call it, and nothing fails between it and the call
 * line: it notes which rank gives, so that both ranks count the hand-off slots alike (STAGE-26).
 *
 * `lent_bytes`: how many bytes this rank stores in an operation in which it takes nothing,
 * otherwise 0. The others have read those bytes when all ranks meet in the next operation. Then
 * this rank asks for the lines (CALL-6), if it is likely to store to them in the operation after
 * that.
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

/* Bytes of the rank's factor, which comes before its payload. */
SHC_INLINE size_t shc_task_factor_bytes(const struct shc_task *task)
{
    return task->call.redop == SHC_PREMUL_SUM ? sizeof task->factor : 0;
}

/* Publishes the call line, with what has been stored into its payload, and rings the doorbell. From
 * here on, a rank that gives up fails the group. */
SHC_INLINE void shc_task_enter(struct shc_task *task)
{
    shc_call_publish(task->seat, task->wait.epoch, &task->call);
    task->wait.published = true;
    shc_bell_ring(shc_seat_bell(task->seat, task->seat->rank), true);
}

/* Waits until all ranks have made the same call. */
SHC_NODISCARD SHC_INLINE enum shc_status shc_task_meet(struct shc_task *task)
{
    return shc_call_meet(&task->wait);
}

/*
 * Enters an operation that reduces. The payload is the rank's factor, if there is one, and after it
 * the first `inline_bytes` of its input.
 *
 * After the meeting, shc_task_read_factors() reads all ranks' factors into `factors` (room for each
 * rank), for shc_task_reduce_to().
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

/* Reduces `bytes` bytes of each of src[0..world_size-1] into dst[0..dst_count-1]. */
SHC_INLINE void shc_task_reduce_into(struct shc_task *task, const void *const *src, size_t bytes,
                                     void *const *dst, int dst_count)
{
    /* A type that can be reduced has 1, 2, 4, 8 or 16 bytes. A shift is faster than a division. */
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

/* Reduces src[0..world_size-1] into that piece of the output, and into dst[0..more-1] as well. dst
 * has room for one more pointer. Uses the first half of the scratch. */
SHC_INLINE void shc_task_reduce_to(struct shc_task *task, const void *const *src,
                                   struct shc_span where, void **dst, int more)
{
    void *direct = shc_buf_direct(&task->out, where.offset, where.bytes);
    dst[more] = direct ? direct : task->scratch;
    shc_task_reduce_into(task, src, where.bytes, dst, more + 1);
    if (!direct)
        shc_buf_write(&task->out, where.offset, task->scratch, where.bytes);
}

/* Reduces what the other ranks have stored, in cells[rank], and the piece `own` of this rank's
 * input, into the piece `where` of the output. The own input is read from user memory, not from a
 * cell that this rank has just filled: once the peer has read that cell, it may store its next
 * operation there (STAGE-5). Uses the scratch. */
void shc_task_reduce_cells(struct shc_task *task, char *const *cells, struct shc_span own,
                           struct shc_span where);

/* A whole operation that reduces, in a world of one. It still divides, scales and rounds. */
SHC_NODISCARD enum shc_status shc_task_reduce_alone(struct shc_task *task);

/* A whole operation that reduces in one round. The input of each rank is in its call line
 * (in_line), in its small slot or in a hand-off slot. The root of a reduce stores its input into no
 * slot. What this rank reduces into the piece `where` of its output begins `skip` bytes into each
 * input. */
SHC_NODISCARD enum shc_status shc_task_reduce_round(struct shc_task *task, bool in_line,
                                                    size_t skip, struct shc_span where);

/* An operation through broadcast slots whose inputs the rank `taker` reduces, or all ranks if it is
 * -1; and the part of that operation after the meeting. */
struct shc_shout shc_task_reduce_shout(struct shc_task *task, int taker);
SHC_NODISCARD enum shc_status shc_task_run_reduce_shout(struct shc_shout *shout);

/* The cells of an exchange slot in its present use by this rank and a peer (STAGE-2): the one that
 * this rank stores to, and the one that it reads. */
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

/* An all_reduce or a reduce of more than two ranks in two phases over the small slots (STAGE-24;
 * sliced.c). */
SHC_NODISCARD enum shc_status shc_task_run_sliced(struct shc_task *task);

/* That piece of this rank's own input, as a source of a reduction. Uses the second half of the
 * scratch. */
const void *shc_task_own(struct shc_task *task, struct shc_span piece);

/* Copies this rank's own bytes from its input to its output. Uses the scratch. */
void shc_task_keep(struct shc_task *task, size_t in_offset, size_t out_offset, size_t bytes);

/* Puts a copy of the input in the place of task->in, for an output that is part of the input and is
 * written before the whole input has left. SHC_ERR_NOMEM. post: when the operation has ended, the
 * caller frees *copy and puts the former task->in back. */
SHC_NODISCARD enum shc_status shc_task_copy_input(struct shc_task *task, void **copy);

/*
 * A cell changes hands. What the peer left in the cell goes to the piece `got` of the output. The
 * piece `given` of the input goes into the lines just read, in one pass if both pieces are
 * contiguous. Either piece may be empty. The caller tells the arena that the cell has been used.
 */
void shc_task_trade(struct shc_task *task, char *cell, struct shc_span got, struct shc_span given);

/*
 * shc_select() for this task. `bytes` is the same on all ranks, and the same each time that the
 * task runs. All ranks call it before any of them stores to the arena. If there is no arena and
 * there will be none, the small slots carry what they can. The answer is the same on all ranks.
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

/* shc_arena_want() for an operation whose sizes are known only after its meeting; before
 * shc_task_arena(). What has been stored to the arena before the meeting stays where it is. In that
 * case the next operation makes the longer arena (STAGE-53). */
void shc_task_want(struct shc_task *task, size_t bytes);

/* After the meeting: settles whether there is an arena. *made: there is one. */
SHC_NODISCARD enum shc_status shc_task_arena(struct shc_task *task, bool *made);

/* Without an arena a flow goes through the small slots, which this operation has filled before its
 * call line. Publishes step 1 and waits for it: then all ranks have read the slots (STAGE-42). The
 * flow's steps begin after that one. */
SHC_NODISCARD enum shc_status shc_small_slots_reuse(struct shc_task *task);

/* How a message is cut, and into which places. The same on all ranks. */
struct shc_cut {
    size_t place_bytes; /* whole lines: a slot, or a part of one */
    size_t chunk_bytes; /* whole elements */
    uint32_t depth;     /* number of places */
    uint32_t first;     /* place of chunk 0 */
    uint64_t chunk_count;
};

/*
 * Chunks through broadcast slots (in the code: shout slots), or through small slots if there is no
 * arena. In turn k, `give` fills this rank's slot with its chunk k, if it is a giver. `take` works
 * on the slots that hold chunk k, if this rank is a taker. The only taker of a flow gives nothing,
 * so its own slot is not filled.
 */
struct shc_shout {
    struct shc_task *task;
    size_t total_bytes;  /* of one giver's contribution */
    int giver;           /* the only rank that gives; -1: all ranks except the only taker */
    int taker;           /* the only rank that takes; -1: all ranks except the only giver */
    uint64_t first_step; /* steps that the operation has published before */
    bool announced;      /* chunk 0, by call lines; before `cut` is made: if its place is free */
    struct shc_cut cut;  /* depth 0: not cut yet */
    uint64_t begun;      /* chunks that this rank has stored before the meeting */
    struct shc_copy_meter meter; /* measures the stores of these */
    void (*give)(struct shc_task *task, struct shc_span chunk, char *slot);
    void (*take)(struct shc_task *task, struct shc_span chunk, char *const *slots);
    /* If this rank gives: copies what it keeps of a chunk, after the chunk's publication, while the
     * caches have it. The chunk may reach beyond its input. May be NULL. */
    void (*keep)(struct shc_task *task, struct shc_span chunk);
};

/* Stores that piece of this rank's input into its broadcast slot: non-temporally if the input is
 * large and the trial of copy modes has chosen that. */
void shc_give_piece(struct shc_task *task, struct shc_span piece, char *slot);

/* The usual `give`: the chunk of this rank's input, which may end before the chunk. */
void shc_give_input(struct shc_task *task, struct shc_span chunk, char *slot);

/* Fails the group if the steps of an operation cannot count so many chunks. */
SHC_NODISCARD enum shc_status shc_check_length(struct shc_task *task, uint64_t chunk_count);

/* Before the call line, which then announces chunk 0: stores chunk 0, if no rank may still be
 * reading what lies there (STAGE-17, STAGE-18). All ranks call it, or none. The flow must be run;
 * otherwise no rank reads what it has stored. */
void shc_shout_begin(struct shc_shout *shout);

/* Between entering and meeting: a rank that gives and does not take stores more chunks into free
 * slots (STAGE-20). It stores a few, or as many as it can while other ranks have not arrived. Each
 * rank may call it or not. */
void shc_shout_go_on(struct shc_shout *shout);

/* pre: the ranks have met. */
SHC_NODISCARD enum shc_status shc_shout_run(struct shc_shout *shout);

/*
 * Chunks through exchange cells. In turn k every rank stores given(peer, k), a piece of its input,
 * into a cell of the pair. Then it copies what the peer has stored to got(peer, k), a piece of its
 * output. After the last chunk both pieces are empty. Or it works on the cells of all peers at once
 * in take(); then cells[own rank] is NULL.
 */
struct shc_swap {
    struct shc_task *task;
    uint64_t chunk_count; /* the same on all ranks */
    struct shc_span (*given)(const struct shc_task *task, int peer, uint64_t k);
    struct shc_span (*got)(const struct shc_task *task, int peer, uint64_t k);
    void (*take)(struct shc_task *task, uint64_t k, char *const *cells); /* NULL: got() is used */
    /* Copies what this rank keeps of chunk k, after the chunk's publication. May be NULL. */
    void (*keep)(struct shc_task *task, uint64_t k);
    bool begun; /* set by shc_swap_begin() or shc_swap_begin_empty() */
};

/* How many bytes of whole elements a turn puts into a cell. The size of opaque elements may not
 * divide the cell's. */
size_t shc_task_cell_bytes(const struct shc_task *task);

/* Before the call line, which then announces chunk 0: stores chunk 0, if there is an arena already
 * (STAGE-12). Needs given() only. The swap must be run, unless no rank gives anything: then no
 * rank's cells change hands. */
void shc_swap_begin(struct shc_swap *swap);

/* shc_swap_begin() of a rank whose chunk 0 is empty. Other ranks may have something in theirs. */
SHC_INLINE void shc_swap_begin_empty(struct shc_swap *swap)
{
    swap->begun = swap->task->arena->made;
}

/* pre: the ranks have met, and there is an arena. If `begun`: there is at least one chunk, which
 * may have no bytes. */
SHC_NODISCARD enum shc_status shc_swap_run(const struct shc_swap *swap);

/* ---- blocks that differ in size (uneven.c) ---- */

/* What a rank says of its tensors in its small slot of this operation. shc_task_say() puts it there
 * before the call line. shc_task_hear() copies what another rank says, once, after the meeting.
 * That rank may say anything, and may change it at any time. A rank knows what it has said itself,
 * and never reads it there (TRUST-1, TRUST-2). */
SHC_INLINE void shc_task_say(const struct shc_task *task, const void *from, size_t bytes)
{
    memcpy(shc_seat_small_slot(task->seat, task->seat->rank, task->wait.epoch), from, bytes);
}

SHC_INLINE void shc_task_hear(const struct shc_task *task, int rank, void *to, size_t bytes)
{
    shc_copy_once(to, shc_seat_small_slot(task->seat, rank, task->wait.epoch), bytes);
}

/* One of the numbers at the beginning of the rank's small slot. */
SHC_INLINE uint64_t shc_task_hear_number(const struct shc_task *task, int rank, size_t index)
{
    const char *slot = shc_seat_small_slot(task->seat, rank, task->wait.epoch);
    uint64_t number;
    shc_copy_once(&number, slot + index * sizeof number, sizeof number);
    return number;
}

/* Fails the group: a rank has said what no rank says. */
SHC_NODISCARD SHC_COLD enum shc_status shc_task_fail_damaged(struct shc_task *task, int rank);

/* One block for each rank, in rank order without gaps: the block of rank r ends where that of rank
 * r + 1 begins. */
struct shc_blocks {
    size_t begin[SHC_MAX_WORLD + 1];
};

SHC_INLINE struct shc_span shc_blocks_at(const struct shc_blocks *blocks, int rank)
{
    return (struct shc_span){blocks->begin[rank], blocks->begin[rank + 1] - blocks->begin[rank]};
}

/* Before the call line: puts the bytes of each tensor of the list into this rank's small slot, and
 * the blocks that they make into `blocks`. */
void shc_uneven_fill_table(struct shc_task *task, const struct shc_buf *list,
                           struct shc_blocks *blocks);

/* After the meeting: the other ranks' tables must say the same as `blocks`, which is this rank's
 * own. `format` words a difference. Its arguments are a rank, that rank's own entry in elements,
 * another rank, and the entry that this other rank has for the first one. */
SHC_NODISCARD enum shc_status shc_uneven_compare_tables(struct shc_task *task, const char *format,
                                                        const struct shc_blocks *blocks);

/*
 * Brings the input of every rank to all ranks: it becomes that rank's block of the output. Before
 * the call line, shc_blocks_pack() copies the input into the small slot, `skip` bytes from its
 * beginning, if it fits. After the meeting, when all ranks know all sizes, shc_blocks_spread()
 * moves everything. `skip` is the same on all ranks.
 */
SHC_INLINE bool shc_blocks_packed(size_t bytes, size_t skip)
{
    return bytes <= SHC_SMALL_SLOT_BYTES - skip;
}

void shc_blocks_pack(struct shc_task *task, size_t skip);
SHC_NODISCARD enum shc_status shc_blocks_spread(struct shc_task *task,
                                                const struct shc_blocks *blocks, size_t skip);
