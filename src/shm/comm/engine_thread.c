/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The states of an engine thread, each edge with its cause:
 *
 *   start      +------+   a callback is due, and is not left to another thread       +----------+
 *     |        |      | -----------------------------------------------------------> | CALL     |
 *     +------> |      | <----------------------------------------------------------- |          |
 *              |      |   none is due any more                                       +----------+
 *              |      |   something is queued, and the runner is free                +----------+
 *              |      | -----------------------------------------------------------> | RUN      |
 *              |      | <----------------------------------------------------------- |          |
 *              | LOOK |   the queue is empty, or a callback is due                   +----------+
 *              |      |   callers wait at once, and requests came since the last     +----------+
 *              |      | -----------------------------------------------------------> | POLL     |
 *              |      | <----------------------------------------------------------- |          |
 *              |      |   400 us are over, or something is urgent or due             +----------+
 *              |      |   nothing to do, or a callback is left to another thread     +----------+
 *              |      | -----------------------------------------------------------> | DOORBELL |
 *              |      | <----------------------------------------------------------- |          |
 *     +------- |      |   rung, or its time limit is over                            +----------+
 *     v        +------+
 *   END: the engine stops, and no callback is due. HALT: the process exits.
 *
 * There are two ways to sleep. On the DOORBELL the flag of `work` is raised, so a submission wakes the
 * thread by a system call. POLL is a sleep of 400 us without the flag: a submission costs nothing, and the
 * caller runs it when it waits. Something that stays queued for the whole of a POLL has no such caller, and
 * this thread runs it.
 */
#include "shm/base/log.h"
#include "shm/comm/comm.h"
#include "shm/comm/engine.h"
#include "shm/comm/request.h"

#include <errno.h>

/* An idle thread looks around this often even if no doorbell rings. That costs nothing, and recovers from a
 * stopped debugger session or a lost signal. */
#define IDLE_SLICE_NS (10 * SHC_NS_PER_S)
#define STOP_NS       SHC_NS_PER_S

#define CALL_NS      (100 * SHC_NS_PER_US) /* most callbacks are shorter */
#define CALL_DOUBLES 7u

/* Has an engine thread something to do other than running what is queued? */
static bool is_due(const struct shc_engine *engine)
{
    /* acquire engine/finished <- release in list_append(): something to complete. */
    if (shc_a32_load_acquire(&engine->has_finished))
        return true;
    /* acquire engine/stopping <- release in shc_engine_stop(): no other data. */
    return shc_a32_load_acquire(&engine->stopping) != 0;
}

/* ---- how it sleeps ---- */

/* HALT: the process is going away under us. Never runs anything again. */
static void halt(void)
{
    for (;;)
        shc_os_sleep_ns(3600 * SHC_NS_PER_S);
}

static bool callers_wait_soon(const struct shc_engine *engine)
{
    /* relaxed: a hint. */
    return shc_a32_load_relaxed(&engine->soon) >= SHC_POLL_AFTER;
}

/* POLL. True: requests came and went meanwhile, so poll again. False: run what is queued, or sleep on the
 * doorbell. `popped`: the count at the end of the last turn. The lock is not held. */
static bool poll_queue(struct shc_engine *engine, uint64_t *popped)
{
    const bool queued = shc_runner_is_queued(&engine->runner);
    /* acquire bell/count <- acq_rel in shc_bell_rouse(): read before the look. */
    const uint32_t heard = shc_a32_load_acquire(&engine->work.count);
    /* acq_rel engine/polling: a hint; a thread that misses it lets the sleep end by itself. */
    shc_a32_add_acq_rel(&engine->polling, 1);
    /* relaxed: no other data comes with it. */
    const uint64_t poll_ns = shc_a64_load_relaxed(&engine->poll_ns);
    int error = 0;
    if (!is_due(engine) && !shc_engine_is_urgent(engine))
        error = shc_os_futex_wait(&engine->work.count, heard, poll_ns, false);
    /* acq_rel engine/polling: a hint; a thread that misses it lets the sleep end by itself. */
    shc_a32_add_acq_rel(&engine->polling, (uint32_t)-1);
    const uint64_t before = *popped;
    /* relaxed: a counter. */
    *popped = shc_a64_load_relaxed(&engine->popped);
    if (error != ETIMEDOUT)
        return false;
    if (queued && *popped == before)
        shc_engine_note_late(engine);
    return *popped != before;
}

/* DOORBELL, until there may be something to do. `grace_ns`: a callback that is due is left to another thread
 * for so long; 0: none is. The lock is not held. */
static void sleep_on_doorbell(struct shc_engine *engine, uint64_t grace_ns)
{
    const uint32_t heard = shc_bell_listen(&engine->work);
    if (!shc_runner_is_queued(&engine->runner) && (grace_ns > 0 || !is_due(engine)))
        shc_bell_sleep(&engine->work, heard, grace_ns > 0 ? grace_ns : IDLE_SLICE_NS, false);
}

/* ---- callbacks ---- */

/* The lock is held. */
static void note_unattended(struct shc_engine *engine, bool unattended)
{
    /* relaxed: a hint; a thread that acts on it looks again under the lock. */
    shc_a32_store_relaxed(&engine->unattended, unattended);
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
    shc_engine_have_threads(request->comm,
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
        shc_engine_have_threads(comm, wanted_for_callbacks(engine));
    else if (shc_runner_is_queued(&engine->runner)) /* later the submission looks */
        shc_engine_have_threads(comm, 1);
    pthread_mutex_unlock(&engine->lock);
    if (!shc_process_callback_begin())
        halt();
    shc_request_complete(request);
    shc_process_callback_end();
    pthread_mutex_lock(&engine->lock);
}

/*
 * How long a callback that is due is left to the threads inside other callbacks, which will most likely come
 * back for it soon. The time doubles with each more of them: otherwise a thousand short callbacks would make
 * a thread each. (0 if something is queued, which would wait as long.)
 */
static uint64_t grace_ns_left(const struct shc_engine *engine)
{
    const unsigned calling = (unsigned)(engine->thread_count - engine->able);
    if (calling == 0 || shc_runner_is_queued(&engine->runner))
        return 0;
    const uint64_t grace_ns = CALL_NS << (calling < CALL_DOUBLES ? calling - 1 : CALL_DOUBLES);
    const uint64_t begun_ns = engine->called_ns, now_ns = shc_clock_ns();
    return now_ns - begun_ns < grace_ns ? begun_ns + grace_ns - now_ns : 0;
}

/* CALL, until no callback is due. The lock is held, and released meanwhile. */
static void call_callbacks(struct shc_comm *comm)
{
    struct shc_engine *engine = &comm->engine;
    while (engine->finished) {
        engine->able--;
        complete_one(comm);
        engine->able++;
        note_unattended(engine, false);
    }
}

/* ---- the thread ---- */

/* RUN, or DOORBELL if there is nothing to run. The lock is not held. */
static void run_or_sleep(struct shc_comm *comm)
{
    struct shc_engine *engine = &comm->engine;
    struct shc_inside inside;
    if (!shc_engine_take(engine, &inside, SHC_RUNNER_QUEUED)) {
        sleep_on_doorbell(engine, 0);
        return;
    }
    pthread_mutex_lock(&engine->lock);
    if (!engine->finished) { /* else a thread that appended to it since counts on this one */
        engine->running++;
        pthread_mutex_unlock(&engine->lock);
        (void)shc_engine_run_queue(comm, NULL, true);
        pthread_mutex_lock(&engine->lock);
        engine->running--;
    }
    pthread_mutex_unlock(&engine->lock);
    shc_engine_leave(&inside);
}

/* LOOK: the begin of each turn. The lock is held. False: END. */
static bool take_turn(struct shc_comm *comm, uint64_t *popped)
{
    struct shc_engine *engine = &comm->engine;
    const uint64_t grace_ns = engine->finished ? grace_ns_left(engine) : 0;
    if (engine->finished && grace_ns == 0) {
        call_callbacks(comm);
        return true;
    }
    /* relaxed: stored under the lock that is held here. */
    if (!engine->finished && shc_a32_load_relaxed(&engine->stopping))
        return false;
    pthread_mutex_unlock(&engine->lock);
    if (grace_ns > 0) {
        sleep_on_doorbell(engine, grace_ns);
    } else {
        if (shc_process_leaving())
            halt();
        if (!callers_wait_soon(engine) || !poll_queue(engine, popped))
            run_or_sleep(comm);
    }
    pthread_mutex_lock(&engine->lock);
    return true;
}

static void engine_thread(void *arg)
{
    struct shc_comm *comm = arg;
    uint64_t popped = 0;
    pthread_mutex_lock(&comm->engine.lock);
    while (take_turn(comm, &popped))
        continue; /* `able` counts this thread while it is not inside a callback */
    comm->engine.able--;
    pthread_mutex_unlock(&comm->engine.lock);
}

/* ---- how many there are ---- */

/* 0, or an error; EAGAIN also if there are as many as there may be. The lock is held. */
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

static void say_full(const struct shc_comm *comm)
{
    static shc_a32 said;
    /* acq_rel engine/said: only the first thread says it; no other data. */
    if (shc_a32_exchange_acq_rel(&said, 1) == 0)
        shc_log(SHC_LOG_INFO,
                "%s: the %d threads for callbacks that a group may have are there. "
                "While all are inside callbacks, further ones wait. (Said once.)",
                shc_seat_member_name(&comm->seat, comm->seat.rank).text, SHC_ENGINE_MAX_THREADS);
}

void shc_engine_have_threads(struct shc_comm *comm, int wanted)
{
    struct shc_engine *engine = &comm->engine;
    if (SHC_LIKELY(engine->able >= wanted) || shc_process_leaving())
        return;
    const int error = start_thread(comm);
    if (engine->thread_count == SHC_ENGINE_MAX_THREADS)
        say_full(comm);
    else if (error != 0)
        shc_seat_lacks_thread(&comm->seat, error);
    note_unattended(engine, engine->able == 0);
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

bool shc_engine_is_unattended(struct shc_comm *comm)
{
    struct shc_engine *engine = &comm->engine;
    /* relaxed: a hint; a thread that acts on it looks again under the lock. */
    if (SHC_LIKELY(!shc_a32_load_relaxed(&engine->unattended)) ||
        !shc_runner_is_queued(&engine->runner))
        return false;
    pthread_mutex_lock(&engine->lock);
    shc_engine_have_threads(comm, 1);
    const bool unattended = engine->able == 0;
    pthread_mutex_unlock(&engine->lock);
    return unattended;
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
    shc_engine_wake(engine);
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
