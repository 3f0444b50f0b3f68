/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The queue of a group's operations, and the threads that run them: one operation at a time, in the order
 * of submission.
 *
 * The holder of the runner (comm/runner.h) runs: a synchronous caller, an engine thread, or a waiter.
 * Submitting pushes into the ring and sets QUEUED under the lock. The holder that finds the ring empty
 * clears it under the lock. So a synchronous call never overtakes what was queued before it, and QUEUED
 * without HELD always has a thread that sleeps on a doorbell, polls, or is on its way.
 *
 * Waking a thread takes longer than a small operation, which its submitter could run as well when it waits.
 * So engine threads poll if callers have waited for their requests at once many times in a row
 * (engine_thread.c has the states, and RUN-13 to RUN-17 the rules). An urgent request wakes them: one that
 * is polled, waited for with a time-out, or has a callback.
 *
 * If no thread can be made (a limit of processes, or of memory), a group goes on without. Its queue is
 * `unattended`, and is run by the next thread that waits, polls, submits another collective, or closes.
 *
 * Engine threads are made on first need. A thread that calls `complete` holds nothing, and another thread
 * is there to go on, so the callback may submit to this group and wait. The callback of a message does not
 * wait for an operation, and no callback waits for another one: if all other threads are inside these, and
 * do not come back soon, another thread calls it.
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
#define SHC_POLL_AFTER         16u /* more of them lose too much after one late wait */

struct shc_engine {
    struct shc_runner runner;
    struct shc_bell_shm bell; /* threads that wait for a request sleep here */
    /* Engine threads sleep here: the end of a request does not concern them. */
    struct shc_bell_shm work;
    shc_a32 soon;    /* requests in a row that were waited for at once; up to SHC_POLL_AFTER */
    shc_a32 urgent;  /* 1: something queued is not to wait until an engine thread looks by itself */
    shc_a32 polling; /* engine threads that sleep for poll_ns, without `work`'s flag */
    shc_a64 poll_ns; /* only tests change it */
    void *ring_memory;
    struct shc_ring popper; /* (runner) */
    shc_a32 queued;         /* requests in the ring */
    shc_a64 popped;         /* requests that have left it; stored to by the runner */

    pthread_mutex_t lock; /* guards what follows */
    struct shc_ring pusher;
    struct shc_os_thread threads[SHC_ENGINE_MAX_THREADS];
    int thread_count, most_threads; /* only tests change that */
    int able;           /* threads that are not inside a callback: they get back to the queue */
    int running;        /* of these, inside the queue's operations, which may take long */
    uint64_t called_ns; /* when the newest callback began */
    bool rejecting;     /* nothing can be submitted any more */
    bool straying;      /* a thread did not end in time, and may still touch this memory */
    struct shc_request *finished; /* waiting for their `complete`, oldest first */
    struct shc_request *dropped;  /* waiting for a caller's thread to retire them */
    /* Written under the lock, looked at without it. */
    shc_a32 has_finished, has_dropped, stopping;
    shc_a32 unattended; /* when a thread was last wanted, none could be made and none was able */
};

SHC_NODISCARD enum shc_status shc_engine_init(struct shc_engine *engine);

/* Makes a thread if there is none. The lock is held. */
SHC_NODISCARD enum shc_status shc_engine_need_thread(struct shc_comm *comm);

/* Makes a thread if fewer than `wanted` are able, and if it can. The lock is held. */
void shc_engine_have_threads(struct shc_comm *comm, int wanted);

/* From now on every submission fails with SHC_ERR_CLOSED. */
void shc_engine_reject(struct shc_engine *engine);

/* Ends the threads, waiting at most a second; those inside a callback end by themselves. pre: the runner is
 * held for good and the queue is drained. */
void shc_engine_stop(struct shc_engine *engine);

/* pre: stopped, and no thread is left over. */
void shc_engine_fini(struct shc_engine *engine);

/* Something is queued: an engine thread runs it, or a waiter. */
SHC_INLINE void shc_engine_ring_queued(struct shc_engine *engine)
{
    shc_bell_ring(&engine->work, false);
    shc_bell_ring(&engine->bell, false);
}

/* A thread that may run the request itself begins to wait for it. */
void shc_engine_note_wait(struct shc_engine *engine, struct shc_request *request);

/* A request was not waited for at once: engine threads do not poll. */
void shc_engine_note_late(struct shc_engine *engine);

/* A thread needs what is queued, and will not run it: wakes engine threads that poll. */
void shc_engine_make_urgent(struct shc_engine *engine);

SHC_INLINE bool shc_engine_is_urgent(const struct shc_engine *engine)
{
    /* acquire engine/urgent <- acq_rel in shc_engine_make_urgent(): no other data. */
    return shc_a32_load_acquire(&engine->urgent) != 0;
}

/* Wakes engine threads, also those that poll. */
void shc_engine_wake(struct shc_engine *engine);

/*
 * A thread takes, holds or releases a runner. This lies on its stack from before that until after it. So a
 * call of the interrupt callback on the same group fails, instead of waiting for the call that it
 * interrupts. The same holds for a signal handler at any point. (It does not protect a handler outside of
 * this: the queue has a lock, and submitting allocates memory.)
 */
struct shc_inside {
    struct shc_engine *engine;
    struct shc_inside *below; /* in which this call was made, on another group */
    bool by_bias;
};

/* The calling thread's; NULL: none. */
extern __thread struct shc_inside *shc_inside_now __attribute__((tls_model("initial-exec")));

/* Is the calling thread inside already? An operation submitted now would run only after that call has
 * ended. */
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

/* After all that the thread did about the runner. */
SHC_INLINE void shc_inside_end(struct shc_inside *inside)
{
    shc_fence_light();
    shc_inside_now = inside->below;
}

/* Takes the runner from 0, or for what is queued. False: its state is another, or the thread is inside
 * already. */
bool shc_engine_take(struct shc_engine *engine, struct shc_inside *inside, uint32_t from);

/* The same from 0, for a synchronous call that its thread's bias does not let in. `ring`: the bell must
 * still be rung. */
bool shc_engine_enter_by_word(struct shc_engine *engine, struct shc_inside *inside, bool ring);

/* Takes it for a synchronous call. Returns as shc_engine_take() does. */
SHC_INLINE bool shc_engine_enter(struct shc_engine *engine, struct shc_inside *inside)
{
    if (SHC_UNLIKELY(!shc_inside_begin(inside, engine)))
        return false;
    bool ring = false;
    inside->by_bias = shc_runner_enter_biased(&engine->runner, shc_thread_number(), &ring);
    return SHC_LIKELY(inside->by_bias) || shc_engine_enter_by_word(engine, inside, ring);
}

/* Releases it. */
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

/* Is something queued that no library thread runs, and can no thread be made that would run it? */
bool shc_engine_is_unattended(struct shc_comm *comm);

/* If so, runs it in the calling thread, up to `until` (NULL: all of it). `interruptible`: checks for
 * interrupts. SHC_ERR_INTERRUPTED: one of the operations that it ran has ended by that. */
SHC_NODISCARD enum shc_status
shc_engine_run_unattended(struct shc_comm *comm, struct shc_request *until, bool interruptible);

/* Queues the request; makes a thread if there is none. With SHC_ENGINE_RING_SLOTS requests queued it waits
 * for one to begin, and checks for interrupts meanwhile. */
SHC_NODISCARD enum shc_status shc_engine_submit(struct shc_comm *comm, struct shc_request *request);

/* The request has ended, and an engine thread must call its `complete`. The lock is held; the thread that
 * releases it rings after that. */
void shc_engine_call_back(struct shc_request *request);

/* Runs queued requests until the queue is empty, `until` is done, or, on an engine thread, a
 * `complete` is due. SHC_ERR_INTERRUPTED if one of them has ended by that. pre: the runner is held. */
enum shc_status shc_engine_run_queue(struct shc_comm *comm, struct shc_request *until,
                                     bool engine_thread);

/* Ends all queued requests with this status. pre: the runner is held. */
void shc_engine_drain(struct shc_comm *comm, enum shc_status status, const char *error);

/* A library thread has released its last reference: leaves the request for shc_engine_retire(). */
void shc_engine_drop(struct shc_engine *engine, struct shc_request *request);

/* Retires what library threads have dropped. On a caller's thread only. */
void shc_engine_retire_dropped(struct shc_engine *engine);

SHC_INLINE void shc_engine_retire(struct shc_engine *engine)
{
    /* relaxed: a hint; missed now, it is found at the next call. */
    if (SHC_UNLIKELY(shc_a32_load_relaxed(&engine->has_dropped)))
        shc_engine_retire_dropped(engine);
}
