/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The collectives: one file each, over `plan` (arithmetic), `proto` (moving), `kernel` (combining).
 * An algorithm sees bytes and one erased reduce function, never a dtype, a device or an atomic.
 *
 * Every operation has the same outline:
 *   enter   publish the call line, with the payload or the small slot filled before it
 *   meet    wait for all ranks' call lines and compare them
 *   move    only now may user memory change
 * Staging cells may be filled before the meeting; they are not user memory.
 *
 * Run by the one thread that holds the group's runner word.
 */

#include "shm/coll/plan.h"
#include "shm/exec/pool.h"
#include "shm/kernel/buf.h"
#include "shm/kernel/copy.h"
#include "shm/kernel/kernel.h"
#include "shm/proto/arena.h"
#include "shm/proto/wait.h"

/* One collective under way. */
struct shc_task {
    struct shc_seat *seat;
    struct shc_arena *arena;
    struct shc_wait wait; /* its epoch, deadline and patience */
    struct shc_call call;
    struct shc_buf in;  /* what this rank gives; empty where it gives nothing */
    struct shc_buf out; /* what it gets; may be the memory of in */
    shc_reduce_fn reduce;
    double factor;         /* PREMUL_SUM */
    struct shc_pool *pool; /* helps with large slices; may be NULL */
    char *scratch;         /* SHC_SCRATCH_BYTES, for memory that is not contiguous */
};

/* Twice the largest piece an algorithm handles at once. */
#define SHC_SCRATCH_BYTES (256u << 10)

/* Runs the operation of task->call. SHC_OK when the output is complete. */
SHC_NODISCARD enum shc_status shc_coll_run(struct shc_task *task);

/* One collective per file. */
SHC_NODISCARD enum shc_status shc_barrier_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_broadcast_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_allreduce_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_allgather_run(struct shc_task *task);

/* ---- steps they share (coll.c) ---- */

/* Publishes the call line and rings: from here on giving up fails the group. */
void shc_task_enter(struct shc_task *task, const void *payload, size_t payload_bytes);

/* Waits until all ranks are in the same call. */
SHC_NODISCARD enum shc_status shc_task_meet(struct shc_task *task);

/* task->reduce(args), large ones in parts on the pool's threads: the same bits. */
void shc_task_reduce(struct shc_task *task, const struct shc_reduce_args *args);

/* Makes sure that the question of an arena is settled, behind the meeting. True: there is one. */
SHC_NODISCARD enum shc_status shc_task_arena(struct shc_task *task, bool *made);

/*
 * Chunks through shout slots, arena or not. In turn k, `give` fills this rank's slot with its
 * chunk k (givers only), and `take` works on the slots that hold chunk k (takers only).
 */
struct shc_shout {
    struct shc_task *task;
    size_t total_bytes; /* of one giver's contribution */
    int giver;          /* the one rank that gives; -1: all give, all take */
    void (*give)(struct shc_task *task, struct shc_span chunk, char *slot);
    void (*take)(struct shc_task *task, struct shc_span chunk, char *const *slots);
};

/* pre: the ranks have met. */
SHC_NODISCARD enum shc_status shc_shout_run(const struct shc_shout *shout);
