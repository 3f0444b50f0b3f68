/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Callbacks: one may submit to its own group and wait, as deep as it likes. The callback of a message
 * waits for no operation. Every callback runs.
 *
 * Mirrors take_turn(), shc_engine_have_threads() and complete_one() of src/shm/comm/engine_thread.c,
 * shc_engine_run_queue() of engine.c, and wait_until_ended() and wait_for_callback() of request.c;
 * docs/internals/protocol.md, RUN-4, RUN-22 and RUN-23. Three programs:
 * (1) Callbacks are nested. A caller submits requests 1 and 2 and waits for 1, or does not. The
 * callback of 1 waits for 2; that of 2 submits 3 and waits for it; 3 has none.
 * (2) Callbacks return at once. A caller submits 1 and 2 and waits for 1, then for a message with a
 * callback. Only then comes another rank, for which 2 waits inside.
 * (3) A caller submits 2 alone and waits for a message, whose callback waits for another message's
 * callback. Then the other rank comes.
 * A message ends in a pass of the caller. Engine threads are made on demand. Left out: the ring and its
 * lock (runner.pml), the bell (bell.pml), POLL, how long a thread leaves a callback to others,
 * time-outs, close, and that no thread can be made.
 *
 * FAULT_no_second_thread       no thread checks whether another thread is able to go on
 * FAULT_who_runs_is_free       no thread checks whether all able threads are inside an operation
 * FAULT_next_callback_waits    the same check is missing where a thread begins a callback while another is due
 * FAULT_runs_beside_due        an engine thread that takes the runner does not check whether a callback is due
 * FAULT_waiter_runs_on         a thread that waits for a callback runs what comes after its operation
 * FAULT_waiter_comes_late      a thread that gets the runner only after its operation has ended runs later ones
 * FAULT_holds_the_runner       a callback runs while its thread still holds the runner
 * FAULT_complete_without_ring  no thread rings when a callback has returned
 * FAULT_finish_without_ring    no thread rings for waiting threads when a request is done
 * FAULT_due_rings_waiters_alone  no thread rings for engine threads when a callback is due
 * FAULT_done_is_over           a wait ends before the callback has run
 */

#define REQUESTS 5
#define LAST     3 /* has no callback */
#define MESSAGE  4
#define OTHER    5 /* has no callback */
#define CALLER   0 /* the threads: the caller, and engine threads from 1 on */
#define THREADS  5

#define HELD   1
#define QUEUED 2
#define NOBODY 0

byte runner;
chan ring = [REQUESTS] of { byte };
chan finished = [REQUESTS] of { byte }; /* requests that wait for their callback */
byte able;    /* engine threads that are not inside a callback */
byte running; /* of the able ones, those inside an operation of the queue */
byte threads; /* engine threads that have been made */
bool done[REQUESTS + 1], completed[REQUESTS + 1];
bool nested, paired; /* programs 1 and 3 */
bool released;       /* request 2 may end */

bool flag, work; /* the bells of threads that wait for a request, and of idle engine threads */
bool idle[THREADS]; /* the thread listens to `work` */
bool moved[THREADS], asleep[THREADS];

#define NOTIFIES(request) ((request) != LAST)

#ifdef FAULT_done_is_over
#define IS_OVER(request) done[request]
#else
#define IS_OVER(request) (done[request] && (!NOTIFIES(request) || completed[request]))
#endif

#ifdef FAULT_waiter_runs_on
#define HAS_ENDED(request) IS_OVER(request)
#else
#define HAS_ENDED(request) done[request]
#endif

#define HAS_WORK (nempty(finished) || runner == QUEUED)

inline ring_bell()
{
    d_step {
        if
        :: flag ->
            flag = false;
            for (i : 0 .. THREADS - 1) {
                moved[i] = moved[i] || !idle[i];
                asleep[i] = asleep[i] && idle[i]
            }
            i = 0
        :: else
        fi
    }
}

inline ring_work()
{
    d_step {
        if
        :: work ->
            work = false;
            for (i : 0 .. THREADS - 1) {
                moved[i] = moved[i] || idle[i];
                asleep[i] = asleep[i] && !idle[i]
            }
            i = 0
        :: else
        fi
    }
}

inline listen()
{
    atomic { moved[me] = false; idle[me] = false; flag = true }
}

inline listen_for_work()
{
    atomic { moved[me] = false; idle[me] = true; work = true }
}

inline fall_asleep()
{
    atomic {
        if
        :: !moved[me] -> asleep[me] = true
        :: else
        fi
    }
}

#ifdef FAULT_who_runs_is_free
#define ALL_RUN false
#else
#define ALL_RUN (len(finished) > 0 && able == running)
#endif

/* The lock is held: the caller is in an atomic step. */
inline have_threads(too_few)
{
    if
    :: too_few ->
        assert(threads < THREADS - 1);
        threads++;
        able++;
        run Engine(threads)
    :: else
    fi
}

/* shc_engine_submit() */
inline submit(request)
{
    atomic { have_threads(able == 0); ring!request; runner = runner | QUEUED };
    ring_work();
    ring_bell()
}

/* shc_request_finish() */
inline finish(request)
{
    atomic {
        assert(!done[request]);
        done[request] = true;
        if
        :: NOTIFIES(request) -> finished!request
        :: else
        fi;
        if
        :: request >= MESSAGE -> have_threads(able == 0 || ALL_RUN)
        :: NOTIFIES(request) && request < MESSAGE -> have_threads(able == 0)
        :: else
        fi
    };
#ifndef FAULT_finish_without_ring
    ring_bell();
#endif
    if
#ifndef FAULT_due_rings_waiters_alone
    :: NOTIFIES(request) -> ring_work()
#endif
    :: else
    fi
}

inline drop()
{
    atomic { before = runner; runner = runner & ~HELD };
    if
    :: before & QUEUED -> ring_work(); ring_bell()
    :: else
    fi;
    before = 0
}

/* shc_engine_run_queue(): until `until` is done, or an engine thread has a callback to run. */
inline run_queue(until)
{
    do
    :: atomic { ring?request };
        request != 2 || nested || released;
        finish(request);
        if
        :: request == until || (me != CALLER && depth == 0 && nempty(finished)) ->
            request = NOBODY;
            break
        :: else -> request = NOBODY
        fi
    :: atomic { empty(ring) -> runner = runner & ~QUEUED };
        break
    od
}

/* wait_until_ended() and wait_for_callback() */
inline wait_for(mine)
{
    do
    :: HAS_ENDED(mine) -> break
    :: else ->
        if
        :: atomic { runner == QUEUED -> runner = QUEUED | HELD };
#ifndef FAULT_waiter_comes_late
            if
            :: !HAS_ENDED(mine) -> run_queue(mine)
            :: else
            fi;
#else
            run_queue(mine);
#endif
            drop()
        :: runner != QUEUED ->
            listen();
            if
            :: HAS_ENDED(mine) || runner == QUEUED
            :: else -> fall_asleep(); !asleep[me]
            fi
        fi
    od;
    wait_for_callback(mine)
}

inline wait_for_callback(mine)
{
    do
    :: IS_OVER(mine) -> break
    :: else ->
        listen();
        if
        :: IS_OVER(mine)
        :: else -> fall_asleep(); !asleep[me]
        fi
    od;
    assert(!NOTIFIES(mine) || completed[mine])
}

/* complete_one(), after take_callback(). */
inline complete()
{
    depth = 1;
    if
    :: nested ->
        if
        :: callback == 1
        :: callback == 2 -> submit(LAST)
        fi;
        wait_for(callback + 1)
    :: paired && callback == MESSAGE -> wait_for_callback(OTHER)
    :: else
    fi;
    depth = 0;
    completed[callback] = true;
#ifndef FAULT_complete_without_ring
    ring_bell();
#endif
    atomic { callback = NOBODY; able++ }
}

/* The thread can do nothing else until its callback has returned. */
inline take_callback()
{
    able--;
    finished?callback;
#ifndef FAULT_no_second_thread
    if
#ifndef FAULT_next_callback_waits
    :: nempty(finished) -> have_threads(able == 0 || ALL_RUN)
#else
    :: nempty(finished) -> have_threads(able == 0)
#endif
    :: empty(finished) -> have_threads(able == 0 && (runner & QUEUED))
    fi
#endif
}

active proctype Caller()
{
    byte i, before, request, depth;
    byte me = CALLER;
    if /* (those with few states first: most faults are there) */
    :: true ->
        submit(1);
        submit(2);
        wait_for(1);
        finish(MESSAGE);
        wait_for_callback(MESSAGE);
        released = true
    :: paired = true;
        d_step { done[1] = true; completed[1] = true };
        submit(2);
        finish(MESSAGE);
        finish(OTHER);
        wait_for_callback(MESSAGE);
        released = true
    :: nested = true;
        submit(1);
        submit(2);
        if
        :: wait_for(1)
        :: true
        fi
    fi
}

proctype Engine(byte me)
{
    byte i, before, request, callback, depth;
end:
    do
    :: atomic { nempty(finished) -> take_callback() };
        complete()
    :: empty(finished) ->
        if
        :: atomic { runner == QUEUED -> runner = QUEUED | HELD };
            if
#ifndef FAULT_runs_beside_due
            :: atomic { empty(finished) -> running++ };
#else
            :: atomic { true -> running++ };
#endif
                run_queue(NOBODY);
                running--
#ifndef FAULT_runs_beside_due
            :: nempty(finished)
#endif
            fi;
#ifdef FAULT_holds_the_runner
            if
            :: atomic { nempty(finished) -> take_callback() };
                complete()
            :: empty(finished)
            fi;
#endif
            drop()
        :: runner != QUEUED ->
            listen_for_work(); /* sleep_on_doorbell() */
            if
            :: HAS_WORK
            :: else ->
                fall_asleep();
end_asleep:
                !asleep[me]
            fi
        fi
    od
}

/* When nothing moves any more, all has run. */
active proctype Watch()
{
    timeout ->
    assert(done[1] && done[2] && completed[1] && completed[2]);
    assert(nested -> done[LAST] : completed[MESSAGE]);
    assert(!paired || completed[OTHER])
}
