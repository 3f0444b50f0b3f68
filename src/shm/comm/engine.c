/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/engine.h"

#include "shm/base/log.h"
#include "shm/comm/comm.h"
#include "shm/comm/request.h"
#include "shm/proto/board.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLL_NS (400 * SHC_NS_PER_US)
#define SOON_NS (50 * SHC_NS_PER_US) /* a thread that waits so soon does nothing else meanwhile */

enum shc_status shc_engine_init(struct shc_engine *engine)
{
    size_t bytes = shc_align_up(shc_ring_bytes(SHC_ENGINE_RING_SLOTS, 1), SHC_LINE_BYTES);
    engine->ring_memory = aligned_alloc(SHC_LINE_BYTES, bytes);
    if (!engine->ring_memory)
        return shc_fail(SHC_ERR_NOMEM, "no memory for the submission ring");
    memset(engine->ring_memory, 0, bytes);
    engine->popper = shc_ring_view(engine->ring_memory, SHC_ENGINE_RING_SLOTS, 1);
    engine->pusher = engine->popper;
    /* relaxed: no other thread knows the engine yet. */
    shc_a64_store_relaxed(&engine->poll_ns, POLL_NS);
    engine->most_threads = SHC_ENGINE_MAX_THREADS;
    shc_bias_init(&engine->runner.bias, SHC_BIAS_FIRST_PAY);
    pthread_mutex_init(&engine->lock, NULL);
    return SHC_OK;
}

void shc_engine_fini(struct shc_engine *engine)
{
    pthread_mutex_destroy(&engine->lock);
    free(engine->ring_memory);
}

/* ---- the runner ---- */

__thread struct shc_inside *shc_inside_now;

bool shc_engine_take(struct shc_engine *engine, struct shc_inside *inside, uint32_t from)
{
    if (!shc_inside_begin(inside, engine))
        return false;
    if (shc_runner_take(&engine->runner, from, shc_thread_number()))
        return true;
    shc_inside_end(inside);
    return false;
}

bool shc_engine_enter_by_word(struct shc_engine *engine, struct shc_inside *inside, bool ring)
{
    const uint64_t me = shc_thread_number();
    bool paid = false;
    if (SHC_UNLIKELY(ring))
        shc_engine_ring_queued(engine);
    if (!shc_runner_enter(&engine->runner, me, &paid)) {
        shc_inside_end(inside);
        return false;
    }
    if (SHC_UNLIKELY(paid) && shc_bias_is_possible())
        shc_bias_give(&engine->runner.bias, me);
    return true;
}

/* ---- adaptive wake-up ---- */

void shc_engine_note_late(struct shc_engine *engine)
{
    /* relaxed: a hint, like everything that decides about polling. */
    shc_a32_store_relaxed(&engine->soon, 0);
}

void shc_engine_note_wait(struct shc_engine *engine, struct shc_request *request)
{
    /* relaxed: of this request's waiters, one more or less does not matter. */
    const uint64_t submitted_ns = shc_a64_load_relaxed(&request->submitted_ns);
    if (submitted_ns == 0)
        return;
    /* relaxed: a hint. */
    shc_a64_store_relaxed(&request->submitted_ns, 0);
    /* relaxed: a hint; if two threads wait at once, one more or less does not matter. */
    const uint32_t soon = shc_a32_load_relaxed(&engine->soon);
    if (shc_clock_ns() - submitted_ns >= SOON_NS)
        shc_engine_note_late(engine);
    else if (soon < SHC_POLL_AFTER) {
        /* relaxed: a hint. */
        shc_a32_store_relaxed(&engine->soon, soon + 1);
    }
}

void shc_engine_wake(struct shc_engine *engine)
{
    /* acquire engine/polling <- acq_rel in poll_queue(): no other data. */
    if (shc_a32_load_acquire(&engine->polling) > 0)
        shc_bell_rouse(&engine->work, false);
    else
        shc_bell_ring(&engine->work, false);
}

void shc_engine_make_urgent(struct shc_engine *engine)
{
    if (shc_engine_is_urgent(engine))
        return;
    /* acq_rel engine/urgent: before the look for threads that poll; these look for it after they have said
     * so. */
    (void)shc_a32_exchange_acq_rel(&engine->urgent, 1);
    shc_engine_wake(engine);
}

/* ---- the queue ---- */

void shc_engine_reject(struct shc_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->rejecting = true;
    pthread_mutex_unlock(&engine->lock);
}

/* Pushes the request; the lock is held. */
static enum shc_status push_locked(struct shc_comm *comm, struct shc_request *request, bool *full)
{
    struct shc_engine *engine = &comm->engine;
    uint64_t word = (uint64_t)(uintptr_t)request;
    *full = false;
    if (engine->rejecting)
        return shc_fail(SHC_ERR_CLOSED, "this rank has closed the group");
    shc_engine_have_threads(comm, 1); /* else a waiting thread runs it */
    *full = !shc_ring_push(&engine->pusher, &word);
    if (!*full) {
        /* acq_rel engine/queued: a count. */
        shc_a32_add_acq_rel(&engine->queued, 1);
        shc_board_submit(&comm->seat.board);
        shc_runner_note_queued(&engine->runner);
    }
    return SHC_OK;
}

static bool has_room(void *arg)
{
    const struct shc_engine *engine = arg;
    /* acquire engine/queued <- acq_rel in pop(): a count. */
    return shc_a32_load_acquire(&engine->queued) < SHC_ENGINE_RING_SLOTS;
}

/* A thousand operations in flight: they begin and end without this thread. */
static enum shc_status wait_for_room(struct shc_comm *comm, const struct shc_request *request)
{
    struct shc_wait wait = {
        .seat = &comm->seat,
        .call = &request->task.call,
        .timeout_ns = SHC_NO_DEADLINE,
        .interruptible = true,
    };
    const struct shc_target target = {
        .ready = has_room,
        .arg = &comm->engine,
        .bell = &comm->engine.bell,
        .peer = -1,
    };
    return shc_wait_for(&wait, &target);
}

enum shc_status shc_engine_submit(struct shc_comm *comm, struct shc_request *request)
{
    struct shc_engine *engine = &comm->engine;
    for (;;) {
        bool full;
        pthread_mutex_lock(&engine->lock);
        enum shc_status st = push_locked(comm, request, &full);
        pthread_mutex_unlock(&engine->lock);
        SHC_TRY(st);
        if (!full)
            break;
        if (shc_engine_is_inside(engine))
            return shc_fail(SHC_ERR_INVALID,
                            "too many operations in flight for one more from inside a call on the "
                            "same group (a signal handler?)");
        SHC_TRY(shc_engine_run_unattended(comm, NULL, true));
        SHC_TRY(wait_for_room(comm, request));
    }
    shc_engine_ring_queued(engine);
    /* relaxed: its waiters are told of it by this thread. (A wake-up takes long, and is no delay of theirs.) */
    shc_a64_store_relaxed(&request->submitted_ns, shc_clock_ns());
    return SHC_OK;
}

/* Clears QUEUED if nothing is queued. Otherwise a thread that releases the runner wakes another for
 * nothing, and the next synchronous call takes its turn after that one. (runner) */
static void settle(struct shc_engine *engine)
{
    if (!shc_ring_empty(&engine->popper))
        return;
    pthread_mutex_lock(&engine->lock);
    if (shc_ring_empty(&engine->popper)) {
        shc_runner_note_empty(&engine->runner);
        /* acq_rel engine/urgent: nothing is queued. */
        (void)shc_a32_exchange_acq_rel(&engine->urgent, 0);
    }
    pthread_mutex_unlock(&engine->lock);
}

/* The next request, or NULL when the ring is empty; then QUEUED is cleared. (runner) */
static struct shc_request *pop(struct shc_engine *engine)
{
    uint64_t word;
    settle(engine);
    if (!shc_ring_pop(&engine->popper, &word))
        return NULL;
    /* relaxed: only the runner stores to it. */
    const uint64_t popped = shc_a64_load_relaxed(&engine->popped);
    /* relaxed: for an engine thread that polls. */
    shc_a64_store_relaxed(&engine->popped, popped + 1);
    /* acq_rel engine/queued: a count. */
    shc_a32_add_acq_rel(&engine->queued, (uint32_t)-1);
    return (struct shc_request *)(uintptr_t)word;
}

static enum shc_status run_request(struct shc_comm *comm, struct shc_request *request,
                                   bool engine_thread)
{
    enum shc_status st;
    /* acq_rel request/state: against the caller that cancels it. */
    if (!shc_a32_cas_acq_rel(&request->state, SHC_REQUEST_QUEUED, SHC_REQUEST_RUNNING)) {
        st = shc_fail(SHC_ERR_INTERRUPTED, "interrupted before it began");
    } else {
        request->task.wait.interruptible = !engine_thread;
        request->task.wait.patience =
            engine_thread ? comm->seat.patience_engine : comm->seat.patience;
        st = shc_comm_execute(comm, &request->task);
    }
    shc_board_end_queued(&comm->seat.board);
    shc_request_finish(request, st, st == SHC_OK ? "" : shc_error_text());
    return st;
}

enum shc_status shc_engine_run_queue(struct shc_comm *comm, struct shc_request *until,
                                     bool engine_thread)
{
    struct shc_engine *engine = &comm->engine;
    struct shc_request *request;
    enum shc_status st = SHC_OK;
    while ((request = pop(engine)) != NULL) {
        bool last = request == until; /* it may be freed by its owner once it is done */
        if (run_request(comm, request, engine_thread) == SHC_ERR_INTERRUPTED)
            st = SHC_ERR_INTERRUPTED;
        if (last) {
            settle(engine);
            break;
        }
        /* acquire engine/finished <- release in list_append(): a callback is due. */
        if (engine_thread && shc_a32_load_acquire(&engine->has_finished))
            break;
    }
    return st;
}

void shc_engine_drain(struct shc_comm *comm, enum shc_status status, const char *error)
{
    struct shc_request *request;
    while ((request = pop(&comm->engine)) != NULL)
        shc_request_finish(request, status, error);
}

/* ---- what is left of requests ---- */

void shc_engine_drop(struct shc_engine *engine, struct shc_request *request)
{
    /* acq_rel request/references: the other party's last use comes before the retirement. */
    if (shc_a32_add_acq_rel(&request->references, (uint32_t)-1) != 1)
        return;
    pthread_mutex_lock(&engine->lock);
    request->next = engine->dropped;
    engine->dropped = request;
    /* relaxed: a hint; the list itself is read under the lock. */
    shc_a32_store_relaxed(&engine->has_dropped, 1);
    pthread_mutex_unlock(&engine->lock);
}

void shc_engine_retire_dropped(struct shc_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    struct shc_request *request = engine->dropped;
    engine->dropped = NULL;
    /* relaxed: a hint; the list itself is read under the lock. */
    shc_a32_store_relaxed(&engine->has_dropped, 0);
    pthread_mutex_unlock(&engine->lock);
    while (request) {
        struct shc_request *next = request->next;
        shc_request_retire(request);
        request = next;
    }
}
