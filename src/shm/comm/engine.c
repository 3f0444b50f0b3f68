/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/engine.h"

#include "shm/base/log.h"
#include "shm/comm/comm.h"
#include "shm/comm/request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An idle thread looks around this often even if no doorbell rings. That costs nothing, and recovers from a
 * stopped debugger session or a lost signal. */
#define IDLE_SLICE_NS (10 * SHC_NS_PER_S)
#define STOP_NS       SHC_NS_PER_S

#define CALL_NS      (100 * SHC_NS_PER_US) /* most callbacks are shorter */
#define CALL_DOUBLES 7u

#define NAP_NS      (400 * SHC_NS_PER_US)
#define IDLE_NAPS   2u
#define SMALL_BYTES ((size_t)32 << 10) /* more takes longer than a wake-up */

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
    shc_a64_store_relaxed(&engine->nap_ns, NAP_NS);
    /* relaxed: no other thread knows the engine yet. */
    shc_a32_store_relaxed(&engine->habit, SHC_FIRST_HABIT);
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

/* ---- threads ---- */

/* Has an engine thread something to do other than running what is queued? */
static bool is_due(const struct shc_engine *engine)
{
    /* acquire engine/finished <- release in list_append(): something to complete. */
    if (shc_a32_load_acquire(&engine->has_finished))
        return true;
    /* acquire engine/stopping <- release in shc_engine_stop(): no other data. */
    return shc_a32_load_acquire(&engine->stopping) != 0;
}

static bool has_work(const struct shc_engine *engine)
{
    return is_due(engine) || shc_runner_is_queued(&engine->runner);
}

/* The private state of an engine thread. */
struct naps {
    unsigned idle;              /* in a row, without a submission */
    uint64_t submitted, popped; /* the count at the last one's end */
};

/* Is something queued that no other thread would run soon? */
static bool is_pressing(const struct shc_engine *engine)
{
    /* acquire engine/pressing <- acq_rel in shc_engine_press(): no other data. */
    return shc_a32_load_acquire(&engine->pressing) != 0;
}

static bool may_nap(const struct shc_engine *engine, const struct naps *naps)
{
    return shc_engine_has_habit(engine) && naps->idle < IDLE_NAPS;
}

/* Sleeps for a moment without asking to be woken. True: what is queued was queued before that too, so no
 * thread is just about to run it; or it does not wait. The lock is not held. */
static bool nap(struct shc_comm *comm, struct naps *naps)
{
    struct shc_engine *engine = &comm->engine;
    const bool queued = shc_runner_is_queued(&engine->runner);
    /* acquire bell/count <- acq_rel in shc_bell_rouse(): read before the look. */
    const uint32_t heard = shc_a32_load_acquire(&engine->work.count);
    /* acq_rel engine/napping: a hint; a thread that misses it lets the nap end by itself. */
    shc_a32_add_acq_rel(&engine->napping, 1);
    /* relaxed: no other data comes with it. */
    const uint64_t nap_ns = shc_a64_load_relaxed(&engine->nap_ns);
    int error = 0;
    if (!is_due(engine) && !is_pressing(engine))
        error = shc_os_futex_wait(&engine->work.count, heard, nap_ns, false);
    /* acq_rel engine/napping: a hint; a thread that misses it lets the nap end by itself. */
    shc_a32_add_acq_rel(&engine->napping, (uint32_t)-1);
    /* relaxed: counters. */
    const uint64_t submitted = shc_a64_load_relaxed(&comm->submitted);
    /* relaxed: counters. */
    const uint64_t popped = shc_a64_load_relaxed(&engine->popped);
    const bool stuck = queued && popped == naps->popped;
    if (stuck)
        shc_engine_not_awaited(engine);
    naps->idle = submitted == naps->submitted ? naps->idle + 1 : 0;
    naps->submitted = submitted;
    naps->popped = popped;
    return stuck || error != ETIMEDOUT;
}

void shc_engine_ring_now(struct shc_engine *engine)
{
    /* acquire engine/napping <- acq_rel in nap(): no other data. */
    if (shc_a32_load_acquire(&engine->napping) > 0)
        shc_bell_rouse(&engine->work, false);
    else
        shc_bell_ring(&engine->work, false);
}

void shc_engine_press(struct shc_engine *engine)
{
    if (is_pressing(engine))
        return;
    /* acq_rel engine/pressing: before the look for threads that nap; these look for it after they have said
     * so. */
    (void)shc_a32_exchange_acq_rel(&engine->pressing, 1);
    shc_engine_ring_now(engine);
}

/* Sleeps until there may be something to do. The lock is not held. */
static void park(struct shc_comm *comm)
{
    struct shc_engine *engine = &comm->engine;
    uint32_t heard = shc_bell_listen(&engine->work);
    if (!has_work(engine))
        shc_bell_sleep(&engine->work, heard, IDLE_SLICE_NS, false);
}

/* The process is going away under us: never run anything again. */
static void park_for_ever(void)
{
    for (;;)
        shc_os_sleep_ns(3600 * SHC_NS_PER_S);
}

static void list_append(struct shc_request **list, shc_a32 *filled, struct shc_request *request)
{
    while (*list)
        list = &(*list)->next;
    request->next = NULL;
    *list = request;
    /* release engine/finished -> acquire in is_due(): the list, for a thread that then takes the lock. */
    shc_a32_store_release(filled, 1);
}

static struct shc_request *list_take(struct shc_request **list, shc_a32 *filled)
{
    struct shc_request *request = *list;
    *list = request->next;
    if (!*list) {
        /* relaxed: under the lock; a late reader finds the list empty and goes on. */
        shc_a32_store_relaxed(filled, 0);
    }
    return request;
}

/* 0, or an error; EAGAIN also if there are as many as there may be. The lock is held. */
static int start_thread(struct shc_comm *comm);

/* The lock is held. */
static void note_unattended(struct shc_engine *engine, bool unattended)
{
    /* relaxed: a hint; a thread that acts on it looks again under the lock. */
    shc_a32_store_relaxed(&engine->unattended, unattended);
}

/* Makes a thread if fewer are able than that. The lock is held. */
static void have_threads(struct shc_comm *comm, int wanted)
{
    struct shc_engine *engine = &comm->engine;
    if (SHC_LIKELY(engine->able >= wanted) || shc_process_leaving())
        return;
    const int error = start_thread(comm);
    if (error != 0)
        shc_seat_lacks_thread(&comm->seat, error);
    note_unattended(engine, engine->able == 0);
}

/* A thread for the next callback, whatever the others wait for in operations and in callbacks. */
static int wanted_for_callbacks(const struct shc_engine *engine)
{
    return engine->running + 1;
}

void shc_engine_call_back(struct shc_request *request)
{
    struct shc_engine *engine = &request->comm->engine;
    list_append(&engine->finished, &engine->has_finished, request);
    /* (After an operation the engine thread that runs, if one does, looks at once.) */
    have_threads(request->comm,
                 shc_is_message(request->op.kind) ? wanted_for_callbacks(engine) : 1);
}

/* Calls one `complete`. The lock is held, and released for the callback, which may wait for the queue or
 * for another callback. */
static void complete_one(struct shc_comm *comm)
{
    struct shc_engine *engine = &comm->engine;
    struct shc_request *request = list_take(&engine->finished, &engine->has_finished);
    engine->called_ns = shc_clock_ns();
    if (engine->finished)
        have_threads(comm, wanted_for_callbacks(engine));
    else if (shc_runner_is_queued(&engine->runner)) /* later the submission looks */
        have_threads(comm, 1);
    pthread_mutex_unlock(&engine->lock);
    if (!shc_process_callback_begin())
        park_for_ever();
    shc_request_complete(request);
    shc_process_callback_end();
    pthread_mutex_lock(&engine->lock);
}

/*
 * A callback is due, and the threads inside other callbacks will most likely come back for it soon. The
 * time that is left to them doubles with each more of them: otherwise a thousand short callbacks would make
 * a thread each. (Not if something is queued, which would wait as long.)
 */
static uint64_t patience_ns(const struct shc_engine *engine)
{
    const unsigned calling = (unsigned)(engine->thread_count - engine->able);
    if (calling == 0 || shc_runner_is_queued(&engine->runner))
        return 0;
    const uint64_t patience_ns = CALL_NS << (calling < CALL_DOUBLES ? calling - 1 : CALL_DOUBLES);
    const uint64_t begun_ns = engine->called_ns, now_ns = shc_clock_ns();
    return now_ns - begun_ns < patience_ns ? begun_ns + patience_ns - now_ns : 0;
}

/* The lock is held, and released meanwhile. */
static void leave_it(struct shc_comm *comm, uint64_t for_ns)
{
    struct shc_engine *engine = &comm->engine;
    pthread_mutex_unlock(&engine->lock);
    const uint32_t heard = shc_bell_listen(&engine->work);
    if (!shc_runner_is_queued(&engine->runner))
        shc_bell_sleep(&engine->work, heard, for_ns, false);
    pthread_mutex_lock(&engine->lock);
}

/* The lock is held, and released meanwhile. */
static void run_awhile(struct shc_comm *comm)
{
    struct shc_engine *engine = &comm->engine;
    engine->running++;
    pthread_mutex_unlock(&engine->lock);
    (void)shc_engine_run_queue(comm, NULL, true);
    pthread_mutex_lock(&engine->lock);
    engine->running--;
}

static void engine_thread(void *arg)
{
    struct shc_comm *comm = arg;
    struct shc_engine *engine = &comm->engine;
    struct naps naps = {0};
    struct shc_inside inside;
    bool came_back = false;
    pthread_mutex_lock(&engine->lock);
    for (;;) {
        /* `able` counts this thread while it is not inside a callback. */
        const uint64_t left_ns = engine->finished && !came_back ? patience_ns(engine) : 0;
        if (left_ns > 0) {
            leave_it(comm, left_ns);
            continue;
        }
        if (engine->finished) {
            engine->able--;
            complete_one(comm);
            engine->able++;
            note_unattended(engine, false);
            came_back = true;
            continue;
        }
        came_back = false;
        /* relaxed: stored under the lock that is held here. */
        if (shc_a32_load_relaxed(&engine->stopping))
            break;
        pthread_mutex_unlock(&engine->lock);
        if (shc_process_leaving())
            park_for_ever();
        if (may_nap(engine, &naps) && !nap(comm, &naps)) {
            /* look again in the next turn */
        } else if (shc_engine_take(engine, &inside, SHC_RUNNER_QUEUED)) {
            pthread_mutex_lock(&engine->lock);
            if (!engine->finished) /* a thread that appended to it since counts on this one */
                run_awhile(comm);
            pthread_mutex_unlock(&engine->lock);
            shc_engine_leave(&inside);
        } else {
            park(comm);
            naps.idle = 0;
        }
        pthread_mutex_lock(&engine->lock);
    }
    engine->able--;
    pthread_mutex_unlock(&engine->lock);
}

static int start_thread(struct shc_comm *comm)
{
    struct shc_engine *engine = &comm->engine;
    if (engine->thread_count >= engine->most_threads)
        return EAGAIN;
    const int error = shc_os_thread_start(&engine->threads[engine->thread_count], "shc-engine",
                                          engine_thread, comm);
    if (error != 0)
        return error;
    engine->thread_count++;
    engine->able++; /* being started */
    return 0;
}

enum shc_status shc_engine_need_thread(struct shc_comm *comm)
{
    if (comm->engine.thread_count > 0)
        return SHC_OK;
    const int error = start_thread(comm);
    if (error == 0)
        return SHC_OK;
    shc_seat_lacks_thread(&comm->seat, error);
    return shc_fail_errno(SHC_ERR_SYSTEM, error, "cannot start an engine thread");
}

void shc_engine_reject(struct shc_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->rejecting = true;
    pthread_mutex_unlock(&engine->lock);
}

static int thread_count(struct shc_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    int count = engine->thread_count;
    pthread_mutex_unlock(&engine->lock);
    return count;
}

void shc_engine_stop(struct shc_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    /* release engine/stopping -> acquire in is_due(): no other data. */
    shc_a32_store_release(&engine->stopping, 1);
    pthread_mutex_unlock(&engine->lock);
    shc_engine_ring_now(engine);
    uint64_t deadline_ns = shc_clock_ns() + STOP_NS;
    /* A thread that is joined here may have started another one during its last turns. */
    for (int i = 0; i < thread_count(engine); i++) {
        uint64_t now_ns = shc_clock_ns();
        uint64_t left_ns = now_ns < deadline_ns ? deadline_ns - now_ns : 0;
        if (shc_os_thread_join(&engine->threads[i], left_ns) != 0) {
            shc_os_thread_detach(&engine->threads[i]);
            engine->straying = true;
        }
    }
}

/* ---- the queue ---- */

/* Pushes the request; the lock is held. */
static enum shc_status push_locked(struct shc_comm *comm, struct shc_request *request, bool *full)
{
    struct shc_engine *engine = &comm->engine;
    uint64_t word = (uint64_t)(uintptr_t)request;
    *full = false;
    if (engine->rejecting)
        return shc_fail(SHC_ERR_CLOSED, "this rank has closed the group");
    have_threads(comm, 1); /* else a waiting thread runs it */
    *full = !shc_ring_push(&engine->pusher, &word);
    if (!*full) {
        /* acq_rel engine/queued: a count. */
        shc_a32_add_acq_rel(&engine->queued, 1);
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

/* Does it take less time than a wake-up, on all ranks? */
static bool is_small(const struct shc_task *task)
{
    const bool rooted = task->call.kind == SHC_GATHER || task->call.kind == SHC_SCATTER;
    const size_t blocks = rooted ? (size_t)task->seat->world_size : 1;
    return !task->sparse && (task->in.bytes + task->out.bytes) * blocks <= SMALL_BYTES;
}

enum shc_status shc_engine_submit(struct shc_comm *comm, struct shc_request *request)
{
    struct shc_engine *engine = &comm->engine;
    const bool small = is_small(&request->task);
    if (small)
        request->submitted_ns = shc_clock_ns();
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
    if (!small)
        shc_engine_press(engine);
    shc_engine_ring_queued(engine);
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
        /* acq_rel engine/pressing: nothing is queued. */
        (void)shc_a32_exchange_acq_rel(&engine->pressing, 0);
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
    /* relaxed: for an engine thread that naps. */
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

bool shc_engine_is_unattended(struct shc_comm *comm)
{
    struct shc_engine *engine = &comm->engine;
    /* relaxed: a hint; a thread that acts on it looks again under the lock. */
    if (SHC_LIKELY(!shc_a32_load_relaxed(&engine->unattended)) ||
        !shc_runner_is_queued(&engine->runner))
        return false;
    pthread_mutex_lock(&engine->lock);
    have_threads(comm, 1);
    const bool unattended = engine->able == 0;
    pthread_mutex_unlock(&engine->lock);
    return unattended;
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
