/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Mail doorbell and progress thread (progress thread): no message is left, in whatever order threads wait, come or go.
 *
 * Mirrors src/shm/p2p/progress.c; docs/internals/protocol/messages.md, P2P-45 to P2P-52 and P2P-61; waiting.md,
 * WAIT-17 and WAIT-18. One rank has four threads: one sends or receives message 1 and waits for it; another one makes a pass of its own,
 * submits message 2 and never waits; the progress thread; and one closes the group at any time or never. Two
 * peers, each with one of the messages, ring the one mail doorbell. Message 2 takes an answer of this rank in
 * between, so it needs passes at two moments. The waiter may be held up for ever in the interrupt callback,
 * after a signal. Peers or their messages may also fail to come; then message 2 has a deadline, for which a
 * thread that makes the passes must be up. What is done under the rank's lock is one step; rings are steps of
 * their own. Left out: the doorbell itself (bell.pml), life words (park.pml), the ends of all other sleeps by
 * time, which would hide what is lost, and that a submitting thread counts as a waiter meanwhile: that is under
 * the lock, and ends with the submission. A nap ends when it must: one that changes nothing is no step.
 *
 * FAULT_ring_before_store      a peer rings, then stores
 * FAULT_no_look_after_listen   a thread that sleeps on the mail doorbell makes no pass after raising the flag
 * FAULT_one_woken              a ring wakes one sleeper
 * FAULT_finishes_in_silence    a thread that ends another thread's message does not ring for it
 * FAULT_no_second_look         the progress thread does not look again before its idle sleep
 * FAULT_called_unless_waited   a submission while a thread waits leaves the progress thread asleep
 * FAULT_trusts_the_waiter      the progress thread leaves the passes to a waiter that is held up
 * FAULT_forgives_the_waiter    after a submission a waiter that is held up counts again
 * FAULT_leaves_in_silence      a waiter that leaves does not call the progress thread
 * FAULT_held_up_in_silence     nor one that a signal has woken
 * FAULT_counts_the_held_up     a waiter that is held up still counts as parked
 * FAULT_due_before_parked      a sleeper looks when it must be up, and only then says that it parks
 * FAULT_submits_in_silence     a submission does not ring for a thread that is parked
 * FAULT_close_without_call     a closing thread does not ring for the progress thread
 * FAULT_close_without_look     the memory goes without a look whether a thread is inside
 */

#define PROGRESS_THREAD   0 /* sleepers */
#define WAITER  1

/* What a message needs of its peer, one thing after the other, with a pass in between. */
#define WHOLE(m) (m)
#define NEXT(m)  (placed[m] < WHOLE(m) && submitted[m] && seen[m] == placed[m])

byte placed[3]; /* by the peer of message m, visible */
byte seen[3];   /* by a pass */
bool submitted[3];
bool pends[3]; /* submitted, and not over */
byte waiters;
bool held_up; /* the waiter, for ever */
byte parked;  /* waiters that sleep until something happens */
bool progress_thread_parked;
bool knows[2]; /* that sleeper is up in time for message 2 */
bool closed, unmapped, progress_thread_ended;

#define PENDING (pends[1] || pends[2])
#ifdef FAULT_trusts_the_waiter
#define WAITED (waiters > 0)
#else
#define WAITED (waiters > 0 && (parked > 0 || !held_up))
#endif
#define WATCHES (waiters > 0 && parked > 0)

/* The mail doorbell, and the progress thread's own doorbell. */
bit flag, progress_flag;
bool moved[2] = true; /* the count, since that sleeper read it */
bool progress_thread_moved = true;
bool asleep[2], progress_asleep;

inline ring_mail()
{
    d_step {
        if
        :: flag ->
            flag = 0;
            moved[PROGRESS_THREAD] = true;
            moved[WAITER] = true;
#ifdef FAULT_one_woken
            if
            :: asleep[PROGRESS_THREAD] -> asleep[PROGRESS_THREAD] = false
            :: else -> asleep[WAITER] = false
            fi
#else
            asleep[PROGRESS_THREAD] = false;
            asleep[WAITER] = false
#endif
        :: else
        fi
    }
}

inline ring_progress_thread()
{
    d_step {
        if
        :: progress_flag ->
            progress_flag = 0;
            progress_thread_moved = true;
            progress_asleep = false
        :: else
        fi
    }
}

/* shc_p2p_pass(), with the ring at its end if it ended something that another thread may sleep for. The
 * lock is held: inside an atomic. `waiting`: the calling thread counts as a waiter; `late`: the time
 * of message 1 is over. */
inline pass(waiting, late)
{
    assert(!unmapped);
    for (m : 1 .. 2) {
        if
        :: pends[m] ->
            seen[m] = placed[m];
            pends[m] = seen[m] < WHOLE(m) && !(late && m == 1);
            ended = ended || !pends[m]
        :: else
        fi
    }
    m = 0;
#ifndef FAULT_finishes_in_silence
    if
    :: ended && waiters > waiting -> ring_mail()
    :: else
    fi;
#endif
    ended = false
}

/* shc_bell_listen() and shc_bell_sleep(); the caller then waits for the end of the sleep. */
inline listen(me)
{
    atomic { assert(!unmapped); moved[me] = false; flag = 1 }
}

inline fall_asleep(me)
{
    atomic { asleep[me] = !moved[me]; moved[me] = true }
}

inline submit(n)
{
    atomic {
        if
        :: closed -> goto over
        :: else
        fi;
        submitted[n] = true;
        pends[n] = true;
        pass(0, false);
#ifdef FAULT_forgives_the_waiter
        held_up = false;
#endif
#ifdef FAULT_called_unless_waited
        call = PENDING && waiters == 0;
#else
        call = PENDING;
#endif
#ifndef FAULT_submits_in_silence
        if
        :: PENDING && (parked > 0 || progress_thread_parked) -> ring_mail()
        :: else
        fi
#endif
    };
    atomic {
        if
        :: call -> ring_progress_thread()
        :: else
        fi;
        call = false
    }
}

/* message_done() */
inline look()
{
    atomic {
        if
        :: !closed && pends[1] -> pass(1, false)
        :: else
        fi;
        if
        :: !pends[1] -> moved[WAITER] = true; parked = parked - counted; counted = 0; break
        :: else
        fi
    }
}

/* due_ns() of progress.c */
inline find_due(me)
{
    atomic { knows[me] = pends[2] }
}

active proctype Waiter()
{
    bool ended, call;
    byte m, counted;
    submit(1);
    atomic {
        if
        :: closed -> goto over
        :: else -> waiters++
        fi
    };
    do
    :: look();
       listen(WAITER);
#ifdef FAULT_due_before_parked
       find_due(WAITER);
#endif
       atomic { parked++; counted = 1 };
#ifndef FAULT_no_look_after_listen
       look();
#endif
#ifndef FAULT_due_before_parked
       find_due(WAITER);
#endif
       fall_asleep(WAITER);
end_wait:
       !asleep[WAITER];
       atomic { parked--; counted = 0; knows[WAITER] = false }
    :: true -> /* a signal */
#ifndef FAULT_held_up_in_silence
       ring_progress_thread();
#endif
#ifdef FAULT_counts_the_held_up
       parked++;
#endif
       held_up = true;
       goto over
    od;
    knows[WAITER] = false;
#ifndef FAULT_leaves_in_silence
    if
    :: PENDING -> ring_progress_thread()
    :: else
    fi;
#endif
    waiters--;
over:
    skip
}

active proctype Submitter()
{
    bool ended, call;
    byte m;
    atomic { /* a send that returns immediately: a pass */
        if
        :: closed -> goto over
        :: else -> pass(0, false)
        fi
    };
    submit(2);
    atomic { /* perhaps another pass, which finds that the time of message 1 is over */
        if
        :: true
        :: !closed -> pass(0, true)
        fi
    };
over:
    skip
}

proctype Peer(byte m)
{
    do
#ifdef FAULT_ring_before_store
    :: NEXT(m) -> ring_mail(); placed[m]++
#else
    :: atomic { NEXT(m) -> placed[m]++ }; ring_mail()
#endif
    :: closed || (submitted[m] && !pends[m]) -> break
    :: break /* the rest does not come */
    od
}

/* progress_thread_relieved() */
inline relieve()
{
    if /* without the lock */
    :: atomic { closed || WAITED || !PENDING -> moved[PROGRESS_THREAD] = true; break }
    :: else
    fi;
    atomic {
        if
        :: closed || WAITED || !PENDING -> moved[PROGRESS_THREAD] = true; break
        :: else -> pass(0, false)
        fi;
        if
        :: !PENDING -> moved[PROGRESS_THREAD] = true; break
        :: else
        fi
    }
}

active proctype ProgressThread()
{
    bool ended;
    byte m;
    do
    :: closed -> break
    :: !closed && PENDING && !WAITED -> /* drive() */
       do
       :: relieve();
          listen(PROGRESS_THREAD);
          progress_thread_parked = true;
#ifndef FAULT_no_look_after_listen
          relieve();
#endif
          find_due(PROGRESS_THREAD);
          fall_asleep(PROGRESS_THREAD);
end_drive: !asleep[PROGRESS_THREAD];
          atomic { progress_thread_parked = false; knows[PROGRESS_THREAD] = false }
       od;
       atomic { progress_thread_parked = false; knows[PROGRESS_THREAD] = false }
    :: !closed && (!PENDING || WATCHES) -> /* sleep_until_called() */
       atomic { progress_thread_moved = false; progress_flag = 1 };
#ifndef FAULT_no_second_look
       atomic {
           if
           :: (PENDING && !WATCHES) || closed -> progress_thread_moved = true
           :: else
           fi
       };
#endif
       atomic { progress_asleep = !progress_thread_moved; progress_thread_moved = true };
end_idle:
       !progress_asleep
    od;
    progress_thread_ended = true
}

active proctype Closer()
{
    if
    :: true
    :: atomic { /* shc_p2p_silence() */
           closed = true;
           pends[1] = false;
           pends[2] = false;
           ring_mail()
       };
#ifndef FAULT_close_without_call
       ring_progress_thread();
#endif
#ifndef FAULT_close_without_look
       waiters == 0 || held_up; /* then the memory stays */
#endif
       progress_thread_ended;
       unmapped = !held_up
    fi
}

/* Nothing happens any more: who is up when the time of message 2 is over? */
active proctype Clock()
{
    timeout;
    d_step {
        assert(!asleep[WAITER] || (pends[1] && seen[1] == placed[1]));
        assert(!pends[2] || seen[2] == placed[2]);
        assert(!pends[2] || (asleep[WAITER] && knows[WAITER]) || (asleep[PROGRESS_THREAD] && knows[PROGRESS_THREAD]))
    }
}

init
{
    atomic {
        run Peer(1);
        run Peer(2)
    }
}
