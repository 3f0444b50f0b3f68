/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Runner word, ring and engine: no synchronous call overtakes what its own thread queued before it,
 * one operation runs at a time, and no request is forgotten, also when the group is closed.
 *
 * Mirrors src/shm/comm/engine.c and engine_thread.c, shc_runner_take() and shc_runner_drop() of
 * runner.h, shc_run() and wait_until_over() of request.c, and shc_comm_close() of comm.c;
 * docs/internals/protocol.md, RUN-1 to RUN-4. There are two callers, one engine thread, and a closer that comes at any time or never.
 * Caller 0: submit 1, run 2, submit 3, wait for 3. Caller 1: run 1, submit 2, and never wait for it. Left
 * out: the bias (bias.pml), callbacks, time-outs of a sleep, cancelling, a full ring, and what
 * happens inside an operation (close ends that in reality).
 *
 * FAULT_no_queued             the word is HELD alone; a thread that finds it 0 and the ring filled takes it
 * FAULT_no_second_look        QUEUED is cleared without another look at the ring
 * FAULT_clear_unlocked        the second look is under the lock, the clearing is not
 * FAULT_drop_without_ring     a thread that drops HELD does not look whether something was queued
 * FAULT_submit_without_ring   a submitter never rings
 * FAULT_queued_rings_waiters_alone  no thread rings for the engine's thread when something is queued
 * FAULT_endless_poll          a POLL of the engine's thread ends only with a ring
 * FAULT_close_without_reject  requests can be submitted after the end
 * FAULT_close_without_runner  the memory goes without a look whether a thread is inside
 * FAULT_close_without_drain   what is still queued is forgotten
 */

#define HELD   1
#define QUEUED 2

#define THREADS 3 /* caller 0, caller 1, the engine's */
#define ENGINE  2
#define NOBODY  0 /* no request */

/* A request is caller * 4 + its number in that caller's program order, from 1 on. */
#define CALLER(request) ((request) >> 2)
#define NUMBER(request) ((request) & 3)

byte runner;
chan ring = [4] of { byte };
bool lock;
bool done[8];
bit flag, work; /* the bells of waiters and of the engine: bell.pml has one in full */
bool moved[THREADS]; /* the bell's count, since this thread read it */
bool asleep[THREADS];

bool polling; /* the engine's thread, which looks again by itself */

/* What the properties need. */
bool busy;     /* an operation is running */
byte newest[2]; /* of each caller, the operation that ran last */
byte ran;
byte refused; /* because of the close, before or after the submission */

/* shc_comm_close() */
bool closed, rejecting, stopping, engine_ended, unmapped;

/* In one step: bell.pml has the bell in full. */
inline ring_bell()
{
    d_step {
        if
        :: flag ->
            flag = 0;
            moved[0] = true;
            moved[1] = true;
            asleep[0] = false;
            asleep[1] = false
        :: else
        fi
    }
}

inline ring_work()
{
    d_step {
        if
        :: work ->
            work = 0;
            moved[ENGINE] = true;
            asleep[ENGINE] = false
        :: else
        fi
    }
}

inline ring_queued() /* shc_engine_ring_queued() */
{
#ifndef FAULT_queued_rings_waiters_alone
    ring_work();
#endif
    ring_bell()
}

inline listen()
{
    atomic {
        moved[me] = false;
        if
        :: me == ENGINE -> work = 1
        :: else -> flag = 1
        fi
    }
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

inline execute(request)
{
    atomic {
        assert(!busy);
        busy = true;
        assert(!unmapped);
        assert(NUMBER(request) == newest[CALLER(request)] + 1); /* no overtaking */
        newest[CALLER(request)] = NUMBER(request)
    }
    atomic { busy = false; assert(!unmapped); ran++ }
}

/* shc_runner_take() from 0, of a synchronous caller. */
#define CAN_TAKE_FREE (runner == 0)

/* shc_runner_take() from QUEUED, of an engine thread or a waiter. */
#ifdef FAULT_no_queued
#define CAN_TAKE_QUEUED (runner == 0 && len(ring) > 0)
#else
#define CAN_TAKE_QUEUED (runner == QUEUED)
#endif

inline take() { runner = runner | HELD }

inline drop()
{
    atomic { before = runner; runner = runner & ~HELD }
#ifndef FAULT_drop_without_ring
    if
#ifdef FAULT_no_queued
    :: len(ring) > 0 -> ring_queued()
#else
    :: before & QUEUED -> ring_queued()
#endif
    :: else
    fi;
#endif
    before = 0
}

/* shc_engine_submit(); `given`: it was not rejected. */
inline push(request)
{
    if
    :: atomic { !lock && rejecting -> given = false; refused++ }
    :: atomic { !lock && !rejecting -> lock = true; given = true; ring!request };
        atomic {
#ifndef FAULT_no_queued
            runner = runner | QUEUED;
#endif
            lock = false
        }
#ifndef FAULT_submit_without_ring
        ring_queued()
#endif
    fi
}

/* shc_submit() */
inline submit(request)
{
    if
    :: closed -> given = false; refused++ /* shc_comm_usable() */
    :: else -> push(request)
    fi
}

/* pop(): the next request, or NOBODY; then QUEUED is cleared. Nobody pushes while this thread has
 * the lock, so what it does under the lock is one step. */
inline pop()
{
    if
    :: ring?request
    :: empty(ring) ->
#ifdef FAULT_no_second_look
        atomic { !lock -> runner = runner & ~QUEUED }
#else
        if
        :: atomic { !lock && nempty(ring) -> ring?request }
#ifdef FAULT_clear_unlocked
        :: !lock && empty(ring) -> runner = runner & ~QUEUED
#else
        :: atomic { !lock && empty(ring) -> runner = runner & ~QUEUED }
#endif
        fi
#endif
    fi
}

/* QUEUED is cleared where nothing is queued, also by a thread that has run what it waits for. */
inline settle()
{
    if
    :: nempty(ring)
    :: empty(ring) ->
        if
        :: atomic { !lock && nempty(ring) }
        :: atomic { !lock && empty(ring) -> runner = runner & ~QUEUED }
        fi
    fi
}

inline finish(request) /* shc_request_finish() */
{
    atomic { !lock -> assert(!done[request]); done[request] = true };
    ring_bell()
}

/* shc_engine_run_queue() */
inline run_queue(until)
{
    do
    :: pop();
        if
        :: request == NOBODY -> break
        :: else
        fi;
        execute(request);
        finish(request);
        if
        :: request == until -> request = NOBODY; settle(); break
        :: else -> request = NOBODY
        fi
    od
}

/* wait_until_over() without a time-out */
inline wait_until_over(mine)
{
    do
    :: done[mine] -> break
    :: else ->
        if
        :: atomic { CAN_TAKE_QUEUED -> take() }
            run_queue(mine);
            drop()
        :: !CAN_TAKE_QUEUED ->
            listen();
            if
            :: done[mine] || CAN_TAKE_QUEUED
            :: else -> fall_asleep(); !asleep[me]
            fi
        fi
    od
}

/* shc_run() */
inline run_now(mine)
{
    if
    :: closed -> refused++ /* shc_comm_usable() */
    :: else ->
        if
        :: atomic { CAN_TAKE_FREE -> take() }
            execute(mine);
            drop()
        :: !CAN_TAKE_FREE ->
            push(mine);
            if
            :: given -> wait_until_over(mine)
            :: else
            fi
        fi
    fi
}

active proctype Caller0()
{
    byte before, request;
    bool given;
    byte me = 0;
    submit(1);
    run_now(2);
    submit(3);
    if
    :: given -> wait_until_over(3)
    :: else
    fi
}

active proctype Caller1()
{
    byte before, request;
    bool given;
    byte me = 1;
    run_now(4 + 1);
    submit(4 + 2)
}

#define HAS_WORK (stopping || CAN_TAKE_QUEUED)

active proctype Engine()
{
    byte before, request;
    byte me = ENGINE;
    bool polled;
end:
    do
    :: stopping -> break
    :: !stopping ->
        if
        :: !polled -> /* poll_queue(): as long as anything moves, and no ring is needed */
            polled = true;
            polling = true;
#ifdef FAULT_endless_poll
            false;
#else
            timeout;
#endif
            polling = false
        :: atomic { CAN_TAKE_QUEUED -> take() }
            polled = false;
            run_queue(NOBODY);
            drop()
        :: !CAN_TAKE_QUEUED ->
            polled = false;
            listen(); /* sleep_on_doorbell() */
            if
            :: HAS_WORK
            :: else ->
                fall_asleep();
end_asleep:
                !asleep[me]
            fi
        fi
    od;
    engine_ended = true
}

/* shc_comm_close() */
active proctype Closer()
{
    byte before, request;
    if
    :: goto over
    :: closed = true
    fi;
#ifndef FAULT_close_without_reject
    atomic { !lock -> rejecting = true } /* shc_engine_reject() */
#endif
    ring_bell();
#ifndef FAULT_close_without_runner
    atomic { CAN_TAKE_FREE || CAN_TAKE_QUEUED -> take() } /* take_runner(): for good */
#endif
#ifndef FAULT_close_without_drain
    do /* shc_engine_drain() */
    :: pop();
        if
        :: request == NOBODY -> break
        :: else
        fi;
        atomic { refused++; newest[CALLER(request)] = NUMBER(request) };
        finish(request);
        request = NOBODY
    od;
#endif
    stopping = true;
    ring_work();
    engine_ended;
    unmapped = true;
over:
    skip
}

/* When nothing moves any more, all five operations have run, or were refused. */
active proctype Watch()
{
#ifdef FAULT_endless_poll
    timeout -> assert(ran + refused == 5)
#else
    timeout && !polling -> assert(ran + refused == 5)
#endif
}
