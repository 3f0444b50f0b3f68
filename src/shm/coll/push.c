/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A large all_reduce whose tensors may lie in heaps of their processes (HEAP-7 to HEAP-14).
 *
 *   1. enter   The call line says where this rank's input and output lie in its heap, if they do, and whether this
 *              rank reaches the heaps of all others.
 *   2. meet, and choose. If all ranks have said both, the operation is pushed; otherwise it is staged.
 *   3. Rank r reduces slice r from the inputs of all ranks, and stores it into the outputs of all.
 *   4. Publish step 1, wait for that of all, and look whether a rank has given up meanwhile.
 *
 * Cost per rank: S bytes loaded and S stored, of which S (1 - 1/p) each in other ranks' tensors, and one flag.
 *
 * The line that a rank stores its result to is the one that it has just read, and that the line's owner reads and
 * stores to next: it changes hands as a cell does. A prefetch for writing asks for it with one request in the place
 * of two.
 *
 * Edges: call/publish, progress/step, cma/withdrawn.
 */
#include "shm/base/log.h"
#include "shm/coll/reduction.h"
#include "shm/coll/runs.h"
#include "shm/proto/cma.h"
#include "shm/proto/peer_heaps.h"

#include <stdio.h>
#include <string.h>

#define DONE_STEP 1

/* Between two blocks a failure of the group is noticed. The kernel works on 1 KiB at a time; meanwhile the
 * lines of the next KiB are prefetched. */
#define BLOCK_BYTES ((size_t)1 << 20)
#define PIECE_BYTES ((size_t)SHC_KERNEL_BLOCK_BYTES)

/* In the payload of a call line, after the room for a factor. */
enum { PLACED = 1, REACHES = 2, OFFERED = PLACED | REACHES };

struct place {
    uint64_t in, out; /* offsets in the rank's heap */
    uint64_t said;    /* PLACED: they mean something. REACHES: the rank has mapped all heaps */
};

#define PLACE_OFFSET sizeof(double)
_Static_assert(PLACE_OFFSET + sizeof(struct place) <= SHC_INLINE_BYTES, "a place fits a line");

struct push {
    struct shc_task *task;
    struct place own;
    char *in[SHC_MAX_WORLD], *out[SHC_MAX_WORLD]; /* of each rank, as mapped here */
};

/* ---- enter ---- */

static bool find(const struct shc_task *task, struct place *place)
{
    const struct shc_peer_heaps *heaps = task->seat->heaps;
    const size_t bytes = task->in.bytes;
    if (!heaps || !task->in.flat || !task->out.flat ||
        !heaps->hooks->place(task->out.flat, bytes, &place->out))
        return false;
    place->in = place->out;
    return task->in.flat == task->out.flat || heaps->hooks->place(task->in.flat, bytes, &place->in);
}

/* Before the call line: stores into its payload. */
static void say(struct push *push)
{
    struct shc_task *task = push->task;
    push->own = (struct place){0};
    if (find(task, &push->own) && shc_peer_heaps_say_own(task->seat))
        push->own.said = shc_peer_heaps_reach_all(task->seat) ? OFFERED : PLACED;
    memcpy(shc_task_payload(task, task->seat->rank) + PLACE_OFFSET, &push->own, sizeof push->own);
}

/* ---- choose ---- */

static struct place heard(const struct shc_task *task, int rank)
{
    struct place place;
    shc_copy_once(&place, shc_task_payload(task, rank) + PLACE_OFFSET, sizeof place);
    return place;
}

/* After the meeting. *pushes: all ranks have said both; the same on all ranks. */
static enum shc_status choose(struct push *push, bool *pushes)
{
    struct shc_task *task = push->task;
    struct shc_seat *seat = task->seat;
    struct place places[SHC_MAX_WORLD];
    *pushes = false;
    for (int turn = 1; turn < seat->world_size; turn++) {
        const int peer = shc_seat_peer(seat, turn);
        places[peer] = heard(task, peer);
        if (places[peer].said != OFFERED)
            return SHC_OK;
    }
    push->in[seat->rank] = task->in.flat;
    push->out[seat->rank] = task->out.flat;
    for (int turn = 1; turn < seat->world_size; turn++) {
        const int peer = shc_seat_peer(seat, turn);
        push->in[peer] = shc_peer_heaps_at(seat, peer, places[peer].in, task->in.bytes);
        push->out[peer] = shc_peer_heaps_at(seat, peer, places[peer].out, task->in.bytes);
        if (!push->in[peer] || !push->out[peer])
            return shc_task_fail_damaged(task, peer);
    }
    *pushes = true;
    return SHC_OK;
}

/* ---- push ---- */

static void reduce(struct push *push, struct shc_span piece)
{
    const void *src[SHC_MAX_WORLD];
    void *dst[SHC_MAX_WORLD];
    const int world = push->task->seat->world_size;
    for (int rank = 0; rank < world; rank++) {
        src[rank] = push->in[rank] + piece.offset;
        dst[rank] = push->out[rank] + piece.offset;
    }
    shc_task_reduce_into(push->task, src, piece.bytes, dst, world);
}

static void ask_ahead(const struct push *push, struct shc_span piece)
{
    const struct shc_seat *seat = push->task->seat;
    for (int turn = 1; piece.bytes > 0 && turn < seat->world_size; turn++)
        shc_cpu_will_store(push->out[shc_seat_peer(seat, turn)] + piece.offset, piece.bytes);
}

/* Threads that share the work have caches of their own: they ask for themselves. */
static void push_block(struct push *push, struct shc_span block)
{
    if (shc_task_splits(push->task, block.bytes)) {
        reduce(push, block);
        return;
    }
    for (uint64_t k = 0; k * PIECE_BYTES < block.bytes; k++) {
        struct shc_span piece = shc_plan_chunk(block.bytes, PIECE_BYTES, k);
        struct shc_span next = shc_plan_chunk(block.bytes, PIECE_BYTES, k + 1);
        piece.offset += block.offset;
        next.offset += block.offset;
        ask_ahead(push, next);
        reduce(push, piece);
    }
}

/* A rank that gives up has its memory back while others may be reading it (HEAP-11). */
static enum shc_status look_back(struct shc_task *task)
{
    const struct shc_seat *seat = task->seat;
    for (int turn = 1; turn < seat->world_size; turn++) {
        const int peer = shc_seat_peer(seat, turn);
        if (SHC_UNLIKELY(shc_cma_has_withdrawn(seat, peer, task->wait.epoch)))
            return shc_cma_find_out(&task->wait, peer);
    }
    return SHC_OK;
}

/* Another group's operation has failed in the same block: some of its pages are no longer those that the others have
 * stored to. */
static enum shc_status check_place(struct shc_task *task)
{
    struct place now;
    if (SHC_LIKELY(find(task, &now)))
        return SHC_OK;
    return shc_wait_give_up(&task->wait, SHC_ERR_ABORTED,
                            "an operation of another group on the same block of shared memory "
                            "has failed meanwhile");
}

static enum shc_status run(struct push *push)
{
    struct shc_task *task = push->task;
    struct shc_seat *seat = task->seat;
    double factors[SHC_MAX_WORLD];
    const struct shc_span all = {0, task->in.bytes};
    const struct shc_span slice = shc_plan_slice(all, seat->world_size, seat->rank);
    shc_task_read_factors(task, factors);
    for (uint64_t k = 0; k * BLOCK_BYTES < slice.bytes; k++) {
        struct shc_span block = shc_plan_chunk(slice.bytes, BLOCK_BYTES, k);
        block.offset += slice.offset;
        if (SHC_UNLIKELY(k > 0 && shc_cma_has_failed(&task->wait)))
            return shc_cma_find_out(&task->wait, shc_seat_peer(seat, 1));
        push_block(push, block);
    }
    shc_progress_publish(seat, task->wait.epoch, DONE_STEP);
    SHC_TRY(shc_progress_wait_all(&task->wait, DONE_STEP));
    SHC_TRY(look_back(task));
    SHC_TRY(check_place(task));
    /* relaxed: a number for people, which the runner alone stores. */
    shc_a64_store_relaxed(&seat->heaps->pushed, shc_a64_load_relaxed(&seat->heaps->pushed) + 1);
    return SHC_OK;
}

/* ---- the whole operation ---- */

static enum shc_status run_offered(struct push *push, shc_staged_fn staged)
{
    bool pushes;
    SHC_TRY(shc_task_meet(push->task));
    SHC_TRY(choose(push, &pushes));
    return pushes ? run(push) : staged(push->task);
}

/* The caller gets its memory back, and others may yet store to it (HEAP-12). */
static SHC_COLD enum shc_status divorce(struct shc_task *task, enum shc_status st)
{
    char why[SHC_STRERROR_BYTES], text[SHC_ERROR_TEXT_BYTES];
    const int error = task->seat->heaps->hooks->divorce(task->out.flat, task->out.bytes);
    if (error == 0)
        return st;
    snprintf(text, sizeof text, "%s", shc_error_text());
    strerror_r(error, why, sizeof why);
    shc_log(
        SHC_LOG_WARN,
        "%s has failed in an operation on %zu bytes of shared memory, and cannot take them back "
        "(%s). Until the other ranks have ended, one that is still in that operation may store "
        "there",
        shc_seat_member_name(task->seat, task->seat->rank).text, task->out.bytes, why);
    return shc_fail(st, "%s; its output is still open to the other ranks (%s)", text, why);
}

enum shc_status shc_push_run(struct shc_task *task, shc_staged_fn staged)
{
    struct push push = {.task = task};
    say(&push);
    shc_task_enter_reducing(task, 0);
    const bool offered = push.own.said == OFFERED;
    const enum shc_status st = offered ? run_offered(&push, staged) : staged(task);
    if (SHC_UNLIKELY(st != SHC_OK))
        return offered ? divorce(task, st) : st;
    if (SHC_UNLIKELY(push.own.said == PLACED))
        shc_peer_heaps_open(task->seat);
    return SHC_OK;
}
