/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * One collective under way, and what all algorithms do with it: announce the call, meet the other ranks, choose
 * a path, find slots and cells. The layers above this one:
 *
 *   parts       copies and reductions of pieces
 *   round       one round over call lines or slots
 *   flow        chunks through broadcast slots or exchange cells
 *   reduction   whole operations that reduce
 *   uneven      blocks that differ in size
 *   runs        the algorithms, one collective per file
 *
 * Every operation has the same three parts:
 *   1. enter   Publish the call line (CALL-1). The payload, slot or cell that it announces is filled before.
 *   2. meet    Wait for the call lines of all ranks, and compare them (CALL-2).
 *   3. move    Only now may user memory change.
 * Staging memory may be filled before the meeting, because it is not user memory.
 *
 * One thread at a time runs all this: the one that holds the group's runner.
 */

#include "shm/base/once.h"
#include "shm/coll/plan.h"
#include "shm/coll/select.h"
#include "shm/exec/copymode.h"
#include "shm/exec/pool.h"
#include "shm/kernel/buf.h"
#include "shm/kernel/kernel.h"
#include "shm/proto/arena.h"
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
    union {
        struct shc_sparse *sparse;           /* its tensors, in the place of `in` and `out` */
        const struct shc_function *function; /* SHC_CALL */
    };
    shc_reduce_fn add;     /* sparse: adds this rank's entries that share an index */
    double factor;         /* PREMUL_SUM: this rank's */
    const double *factors; /* all ranks'; set after the meeting, while an algorithm reduces */
    const void *more;      /* what an algorithm passes to its own callbacks */
    /* SHC_COPY_TRIALS of its kind: the copy modes of one-way stores. */
    struct shc_copy_trial *trials;
    struct shc_copy_trial *trial; /* the one of the flow under way; NULL: ordinary stores */
    bool cma;              /* the kernel may copy out of this rank's memory, and out of others' */
    struct shc_pool *pool; /* threads that help with large pieces; may be NULL */
    char *scratch;         /* SHC_SCRATCH_BYTES, for memory that is not contiguous */
};

/* Twice the largest piece that an algorithm handles at once. */
#define SHC_SCRATCH_BYTES (2u * SHC_ARENA_MAX_CELL_BYTES)

/* ---- enter and meet ---- */

/* The payload of a rank's call line in this operation: shc_call_payload(). */
SHC_INLINE char *shc_task_payload(const struct shc_task *task, int rank)
{
    return shc_call_payload(task->seat, rank, task->wait.epoch);
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

/* ---- the path ---- */

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

/* ---- exchange cells ---- */

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

/* How many bytes of whole elements a turn puts into a cell. The size of opaque elements may not
 * divide the cell's. */
size_t shc_task_cell_bytes(const struct shc_task *task);

/* ---- what a rank says of its tensors ---- */

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

/* ---- an input that must stay as it is ---- */

/* Puts a copy of the input in the place of task->in, for an output that is part of the input and is
 * written before the whole input has left. SHC_ERR_NOMEM. post: when the operation has ended, the
 * caller frees *copy and puts the former task->in back. */
SHC_NODISCARD enum shc_status shc_task_copy_input(struct shc_task *task, void **copy);
