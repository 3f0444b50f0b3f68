/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Flag and doorbell: no rank sleeps on after what it waits for has come.
 *
 * Mirrors src/shm/proto/bell.h and sleep_slice() of src/shm/proto/wait.c;
 * docs/internals/protocol.md, WAIT-1. The end of a 10 ms slice is left out, because it would hide every
 * lost wake-up. So a lost wake-up shows as a sleeper that never ends (invalid end state).
 *
 * The bell's owner publishes two words and rings. A finder sets the abort word and rings, too. The
 * owner may stop between two publications, and then only the finder ends the wait. The owner's stores
 * stay in a store buffer for a while: a read-modify-write empties it, a plain load does not.
 *
 * FAULT_futex_on_flag       the flag itself is the futex word
 * FAULT_futex_on_data       one flag, but each sleeper's futex is the data word it waits for
 * FAULT_plain_flag          the publisher looks at the flag with a plain load
 * FAULT_look_before_flag    the sleeper looks at the data, then raises the flag and sleeps
 * FAULT_heard_behind_look   the sleeper reads count only after its look at the data
 */

#define SLEEPERS 2
#define CALL     0 /* the words: the call line's epoch, the progress */
#define PROGRESS 1

byte word[2];
bool finder; /* the abort word */
bit flag;
byte count;
bool asleep[SLEEPERS];    /* in the futex's queue ... */
byte asleep_on[SLEEPERS]; /* ... of this data word (FAULT_futex_on_data) */
bool complete;            /* the owner has published everything */

/* The owner's store buffer: its stores become visible in order, some time later. */
chan buffer = [4] of { byte, byte };

active proctype Drain()
{
    byte w, v;
end:
    do
    :: atomic { buffer?w,v -> word[w] = v }
    od
}

/* shc_bell_ring(); `buffered`: the ringer's stores go through the buffer; `w`: the word it stored
 * last. */
inline ring(buffered, w)
{
#ifdef FAULT_plain_flag
    was = flag;
    if
    :: was -> flag = 0
    :: else
    fi;
#else
    atomic { (!buffered || len(buffer) == 0) -> was = flag; flag = 0 } /* exchange(flag, 0): hinge (a) */
#endif
    if
    :: was ->
        atomic { (!buffered || len(buffer) == 0) -> count++ } /* add */
        atomic { /* futex wake all */
            for (i : 0 .. SLEEPERS - 1) {
                if
#ifdef FAULT_futex_on_data
                :: asleep[i] && asleep_on[i] == w -> asleep[i] = false
#else
                :: asleep[i] -> asleep[i] = false
#endif
                :: else
                fi
            }
            i = 0
        }
    :: else
    fi;
    was = 0
}

active proctype Owner()
{
    bit was;
    byte i;
    buffer!CALL,1;
    ring(true, CALL);
    if
    :: goto over
    :: true
    fi;
    buffer!PROGRESS,1;
    ring(true, PROGRESS);
    buffer!CALL,2; /* two stores, one ring */
    buffer!PROGRESS,2;
    ring(true, PROGRESS);
    complete = true;
over:
    skip
}

active proctype Finder()
{
    bit was;
    byte i;
    if
    :: finder = true; /* compare-and-swap */
       ring(false, 2)
    :: complete
    fi
}

#define READY (word[w] >= want)

#if defined(FAULT_futex_on_flag)
#define UNCHANGED (flag == 1)
#elif defined(FAULT_futex_on_data)
#define UNCHANGED (word[w] == heard)
#else
#define UNCHANGED (count == heard)
#endif

/* Until word w has reached `want`, or the group has failed. */
inline wait_for(w, want)
{
    do
    :: READY -> break
    :: !READY && finder -> break
    :: !READY && !finder ->
#ifdef FAULT_futex_on_data
        heard = word[w];
#else
        heard = count; /* shc_bell_listen() */
#endif
#ifndef FAULT_look_before_flag
        flag = 1; /* exchange(flag, 1): hinge (b) */
#endif
        if
        :: READY -> break
        :: else
        fi;
        if
        :: finder -> break
        :: else
        fi;
#ifdef FAULT_heard_behind_look
        heard = count;
#endif
#ifdef FAULT_look_before_flag
        flag = 1;
#endif
        atomic { /* shc_bell_sleep(): the kernel compares and queues in one */
            if
            :: UNCHANGED -> asleep[me] = true; asleep_on[me] = w
            :: else
            fi
        }
        !asleep[me]
    od;
    heard = 0
}

proctype Sleeper(byte me)
{
    byte heard;
    wait_for(CALL, 1);
    wait_for(CALL, 2)
}

proctype OtherSleeper(byte me)
{
    byte heard;
    wait_for(PROGRESS, 1);
    wait_for(PROGRESS, 2)
}

init
{
    atomic {
        run Sleeper(0);
        run OtherSleeper(1)
    }
}
