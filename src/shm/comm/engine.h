/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The queue of a group's operations, and who runs them: one at a time, in the order of submission.
 *
 * Whoever holds the runner (comm/runner.h) runs: a synchronous caller, an engine thread, or a waiter.
 * Submitting pushes into the ring and sets QUEUED under the lock; the holder that finds the ring
 * empty clears it under the lock. So a synchronous call never overtakes what was queued before it,
 * and QUEUED without HELD always has a thread parked on a bell, in a nap, or on its way.
 *
 * To wake a thread takes longer than a small operation, which its submitter could run as well when it
 * waits. So where small requests have been waited for at once, many times in a row, engine threads do
 * not ask to be woken: they nap, and look again every nap_ns, until nothing has come for a while.
 * What somebody needs without running it is pressing: a large request, one that is polled, waited for
 * with a time-out, or has a callback; it wakes them. A small one that is waited for late, or never,
 * ends the naps, and twice as many have to come in a row before they begin again.
 *
 * Where no thread can be made (a limit of processes, or of memory) a group goes on without: its queue is
 * `unattended`, and is run by the next thread that waits, polls, submits another collective, or closes.
 *
 * Engine threads are made on first need. A thread that calls `complete` holds nothing, and another
 * thread is there to go on: the callback may submit to this group and wait. Nor does the callback of a
 * message wait for an operation, nor any one for another: where all other threads are inside these, and do
 * not come back soon, another thread calls it.
 */

#include "shm/base/atomic.h"
#include "shm/comm/runner.h"
#include "shm/os/os.h"
#include "shm/proto/bell.h"
#include "shm/proto/ring.h"

#include <pthread.h>

struct shc_comm;
struct shc_request;

#define SHC_ENGINE_MAX_THREADS 64
#define SHC_ENGINE_RING_SLOTS  1024u
#define SHC_FIRST_HABIT        8u

struct shc_engine {
    struct shc_runner runner;
    struct shc_bell_shm bell; /* who waits for a request sleeps here */
    struct shc_bell_shm work; /* and here engine threads, which the end of one does not concern */
    shc_a32 hasty;            /* small requests in a row that were waited for at once, */
    shc_a32 habit;            /* of which so many let engine threads nap */
    shc_a32 pressing;         /* 1: something queued is not to wait for the end of a nap */
    shc_a64 nap_ns;           /* only tests change it */
    shc_a32 napping;          /* so many engine threads sleep for a moment, without `work`'s flag */
    void *ring_memory;
    struct shc_ring popper; /* (runner) */
    shc_a32 queued;         /* requests in the ring */
    shc_a64 popped;         /* stored to by the runner: that have left it */

    pthread_mutex_t lock; /* guards what follows */
    struct shc_ring pusher;
    struct shc_os_thread threads[SHC_ENGINE_MAX_THREADS];
    int thread_count, most_threads; /* only tests change that */
    int able;           /* threads that are not inside a callback: they get back to the queue */
    int running;        /* of these, inside what they run of it, which may last */
    uint64_t called_ns; /* when the newest callback began */
    bool rejecting;     /* nothing can be submitted any more */
    bool straying;      /* a thread did not end in time, and may still touch this memory */
    struct shc_request *finished; /* waiting for their `complete`, oldest first */
    struct shc_request *dropped;  /* waiting for a caller's thread to retire them */
    /* Written under the lock, looked at without it. */
    shc_a32 has_finished, has_dropped, stopping;
    shc_a32
        unattended; /* the last time a thread was wanted none could be made, and none was able */
};

SHC_NODISCARD enum shc_status shc_engine_init(struct shc_engine *engine);

/* Makes a thread if there is none. The lock is held. */
SHC_NODISCARD enum shc_status shc_engine_need_thread(struct shc_comm *comm);

/* From now on every submission fails with SHC_ERR_CLOSED. */
void shc_engine_reject(struct shc_engine *engine);

/* Ends the threads, waiting at most a second; those inside a callback are left to end by
 * themselves. pre: the runner is held for good and the queue is drained. */
void shc_engine_stop(struct shc_engine *engine);

/* pre: stopped, and no thread strays. */
void shc_engine_fini(struct shc_engine *engine);

/* Something is queued: an engine thread runs it, or a waiter. */
SHC_INLINE void shc_engine_ring_queued(struct shc_engine *engine)
{
    shc_bell_ring(&engine->work, false);
    shc_bell_ring(&engine->bell, false);
}

/* A thread that may run the request itself begins to wait for it. */
void shc_engine_awaited(struct shc_engine *engine, struct shc_request *request);

/* Have enough been waited for at once? */
bool shc_engine_has_habit(const struct shc_engine *engine);

/* A small request was not waited for at once. */
void shc_engine_not_awaited(struct shc_engine *engine);

/* Somebody needs what is queued, and will not run it. */
void shc_engine_press(struct shc_engine *engine);

/*
 * A thread takes, holds or drops a runner: on its stack, from before that until behind it, so that the interrupt
 * callback, when it makes a call on the same group, is told so instead of waiting for what lies beneath it; a
 * signal handler likewise, wherever it comes. (Not what such a handler may find outside: the queue has a lock, and
 * who submits asks for memory.)
 */
struct shc_inside {
    struct shc_engine *engine;
    struct shc_inside *below; /* in which this call was made, on another group */
    bool by_bias;
};

/* The calling thread's; NULL: none. */
extern __thread struct shc_inside *shc_inside_now __attribute__((tls_model("initial-exec")));

/* Is the calling thread inside already? What it submitted would run when that call has ended, and not
 * before. */
SHC_INLINE bool shc_engine_is_inside(const struct shc_engine *engine)
{
    const struct shc_inside *inside = shc_inside_now;
    while (SHC_UNLIKELY(inside != NULL && inside->engine != engine))
        inside = inside->below;
    return inside != NULL;
}

/* From here on a call inside finds this one. False: it is one itself. */
SHC_INLINE bool shc_inside_begin(struct shc_inside *inside, struct shc_engine *engine)
{
    if (SHC_UNLIKELY(shc_engine_is_inside(engine)))
        return false;
    inside->engine = engine;
    inside->below = shc_inside_now;
    inside->by_bias = false;
    shc_fence_light(); /* of this thread and its handlers */
    shc_inside_now = inside;
    shc_fence_light();
    return true;
}

/* Behind all that the thread did about the runner. */
SHC_INLINE void shc_inside_end(struct shc_inside *inside)
{
    shc_fence_light();
    shc_inside_now = inside->below;
}

/* Takes the runner from 0, or for what is queued. False: it is not so, or the thread is inside already. */
bool shc_engine_take(struct shc_engine *engine, struct shc_inside *inside, uint32_t from);

/* The same from 0, for a synchronous call that its thread's bias does not let in. `ring`: it is still to be
 * rung. */
bool shc_engine_enter_by_word(struct shc_engine *engine, struct shc_inside *inside, bool ring);

/* Takes it for a synchronous call. As shc_engine_take(). */
SHC_INLINE bool shc_engine_enter(struct shc_engine *engine, struct shc_inside *inside)
{
    if (SHC_UNLIKELY(!shc_inside_begin(inside, engine)))
        return false;
    bool ring = false;
    inside->by_bias = shc_runner_enter_biased(&engine->runner, shc_thread_number(), &ring);
    return SHC_LIKELY(inside->by_bias) || shc_engine_enter_by_word(engine, inside, ring);
}

/* Lets go of it. */
SHC_INLINE void shc_engine_leave(struct shc_inside *inside)
{
    struct shc_engine *engine = inside->engine;
    const bool ring = SHC_LIKELY(inside->by_bias)
                          ? shc_runner_leave_biased(&engine->runner, shc_thread_number())
                          : shc_runner_drop(&engine->runner);
    shc_inside_end(inside);
    if (SHC_UNLIKELY(ring))
        shc_engine_ring_queued(engine);
}

/* Is something queued that no thread of ours runs, and none can be made that does? */
bool shc_engine_is_unattended(struct shc_comm *comm);

/* If so, runs it in the calling thread, up to `until` (NULL: all of it); `interruptible`: asks for interrupts.
 * SHC_ERR_INTERRUPTED: one of what it ran has ended by that. */
SHC_NODISCARD enum shc_status
shc_engine_run_unattended(struct shc_comm *comm, struct shc_request *until, bool interruptible);

/* Queues the request; makes a thread if there is none. With SHC_ENGINE_RING_SLOTS requests queued it
 * waits for one to begin, and asks for interrupts meanwhile. */
SHC_NODISCARD enum shc_status shc_engine_submit(struct shc_comm *comm, struct shc_request *request);

/* The request has ended, and an engine thread is to call its `complete`. The lock is held; who gives it up
 * rings behind that. */
void shc_engine_call_back(struct shc_request *request);

/* Wakes an engine thread also from a nap. */
void shc_engine_ring_now(struct shc_engine *engine);

/* Runs queued requests until the queue is empty, `until` is done, or, on an engine thread, a
 * `complete` is due. SHC_ERR_INTERRUPTED if one of them has ended by that. pre: the runner is held. */
enum shc_status shc_engine_run_queue(struct shc_comm *comm, struct shc_request *until,
                                     bool engine_thread);

/* Ends all queued requests with this status. pre: the runner is held. */
void shc_engine_drain(struct shc_comm *comm, enum shc_status status, const char *error);

/* A library thread has let go of its last reference: leaves the request for shc_engine_retire(). */
void shc_engine_drop(struct shc_engine *engine, struct shc_request *request);

/* Retires what library threads have dropped. On a caller's thread only. */
void shc_engine_retire_dropped(struct shc_engine *engine);

SHC_INLINE void shc_engine_retire(struct shc_engine *engine)
{
    /* relaxed: a hint; missed now, it is found at the next call. */
    if (SHC_UNLIKELY(shc_a32_load_relaxed(&engine->has_dropped)))
        shc_engine_retire_dropped(engine);
}
