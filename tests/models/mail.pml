/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Mail doorbell and progress thread (agent): no message is left, in whatever order threads wait, come or go.
 *
 * Mirrors src/shm/p2p/agent.c and shc_p2p_submit() and shc_p2p_pass() of p2p.c;
 * docs/internals/protocol/messages.md, P2P-45 to P2P-52 and P2P-61. One rank has four threads: one sends or
 * receives message 1 and waits for it; another one makes a pass of its own, submits message 2 and never
 * waits; the progress thread; and one closes the group at any time or never. Two peers, each with one of
 * the messages, ring the one mail doorbell. Message 2 takes an answer of this rank in between, so it needs
 * passes at two moments. The waiter may be held up for ever in the interrupt callback. What is done under
 * the rank's lock is one step; rings are steps of their own. Left out: the doorbell itself (bell.pml), the
 * ends of slices and of the idle sleep, which would hide what is lost, and that a submitting thread
 * counts as a waiter meanwhile: that is under the lock, and ends with the submission. A nap ends when it
 * must: one that changes nothing is no step.
 *
 * FAULT_ring_before_store      a peer rings, then stores
 * FAULT_no_look_after_listen   a thread that sleeps on the mail doorbell makes no pass after raising the flag
 * FAULT_one_woken              a ring wakes one sleeper
 * FAULT_finishes_in_silence    a thread that ends another thread's message does not ring for it
 * FAULT_no_second_look         the progress thread does not look again before its idle sleep
 * FAULT_called_unless_waited   a submission while a thread waits leaves the progress thread asleep
 * FAULT_trusts_the_waiter      the progress thread leaves the passes to a waiter that is held up
 * FAULT_forgives_the_waiter    after a submission a waiter that is held up counts again
 * FAULT_close_without_call     a closing thread does not ring for the progress thread
 * FAULT_close_without_look     the memory goes without a look whether a thread is inside
 */

#define AGENT   0 /* sleepers */
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
bool closed, unmapped, agent_ended;

#define PENDING (pends[1] || pends[2])
#ifdef FAULT_trusts_the_waiter
#define WAITED (waiters > 0)
#else
#define WAITED (waiters > 0 && !held_up)
#endif

/* The mail doorbell, and the progress thread's own doorbell. */
bit flag, agent_flag;
bool moved[2] = true; /* the count, since that sleeper read it */
bool agent_moved = true;
bool asleep[2], agent_asleep;

inline ring_mail()
{
    d_step {
        if
        :: flag ->
            flag = 0;
            moved[AGENT] = true;
            moved[WAITER] = true;
#ifdef FAULT_one_woken
            if
            :: asleep[AGENT] -> asleep[AGENT] = false
            :: else -> asleep[WAITER] = false
            fi
#else
            asleep[AGENT] = false;
            asleep[WAITER] = false
#endif
        :: else
        fi
    }
}

inline ring_agent()
{
    d_step {
        if
        :: agent_flag ->
            agent_flag = 0;
            agent_moved = true;
            agent_asleep = false
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
        call = PENDING && waiters == 0
#else
        call = PENDING
#endif
    };
    atomic {
        if
        :: call -> ring_agent()
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
        :: !pends[1] -> moved[WAITER] = true; break
        :: else
        fi
    }
}

active proctype Waiter()
{
    bool ended, call;
    byte m;
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
#ifndef FAULT_no_look_after_listen
       look();
#endif
       fall_asleep(WAITER);
       !asleep[WAITER]
    :: held_up = true; goto over
    od;
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
    atomic { /* another pass, which finds that the time of message 1 is over */
        if
        :: closed
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
    :: closed || (submitted[m] && !pends[m]) -> break /* every message comes to an end */
    od
}

/* agent_relieved() */
inline relieve()
{
    if /* without the lock */
    :: atomic { closed || WAITED || !PENDING -> moved[AGENT] = true; break }
    :: else
    fi;
    atomic {
        if
        :: closed || WAITED || !PENDING -> moved[AGENT] = true; break
        :: else -> pass(0, false)
        fi;
        if
        :: !PENDING -> moved[AGENT] = true; break
        :: else
        fi
    }
}

active proctype Agent()
{
    bool ended;
    byte m;
    do
    :: closed -> break
    :: !closed && PENDING && !WAITED -> /* drive() */
       do
       :: relieve();
          listen(AGENT);
#ifndef FAULT_no_look_after_listen
          relieve();
#endif
          fall_asleep(AGENT);
end_drive: !asleep[AGENT]
       od
    :: !closed && !PENDING -> /* sleep_idle() */
       atomic { agent_moved = false; agent_flag = 1 };
#ifndef FAULT_no_second_look
       atomic {
           if
           :: PENDING || closed -> agent_moved = true
           :: else
           fi
       };
#endif
       atomic { agent_asleep = !agent_moved; agent_moved = true };
end_idle:
       !agent_asleep
    od;
    agent_ended = true
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
       ring_agent();
#endif
#ifndef FAULT_close_without_look
       waiters == 0 || held_up; /* then the memory stays */
#endif
       agent_ended;
       unmapped = !held_up
    fi
}

init
{
    atomic {
        run Peer(1);
        run Peer(2)
    }
}
