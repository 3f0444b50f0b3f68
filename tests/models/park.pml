/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Parking: a rank that sleeps without slices on a doorbell and the life words does not sleep on after a rank is gone.
 *
 * Mirrors src/shm/proto/park.c and sleep_until() of src/shm/proto/wait.c; docs/internals/protocol/waiting.md,
 * WAIT-11 to WAIT-14. The end of a sleep by time is left out, because it would hide every lost wake-up. So a lost
 * wake-up shows as a sleeper that never ends (invalid end state).
 *
 * Two ranks sleep until a third one is gone, which leaves, or dies, or begins to end and then dies. The kernel marks
 * the life word of a process that dies and wakes one of the threads that sleep on it; that one may find that its data
 * has come, and look no more. The process of a rank that was
 * leaving is gone some time after the mark, and until then its waiters look in slices. Stores are seen in order:
 * bell.pml has the store buffers.
 *
 * FAULT_no_pass_on          the thread that the kernel woke for a life word wakes no other
 * FAULT_not_awaited         the life word lacks the bit by which the kernel wakes
 * FAULT_silent_leave        LEFT does not ring
 * FAULT_look_before_words   the sleeper looks at the members, then reads the words
 * FAULT_sleep_on_mark       a life word that is marked, of a rank that is still leaving, is slept on
 */

#define SLEEPERS 2

mtype = { alive, leaving, left, dead };

mtype state = alive;
bool marked;      /* the life word */
bool ended;       /* the process can be waited for */
bit flag;         /* the doorbell */
byte count;
bool asleep[SLEEPERS];

inline wake_all()
{
    atomic {
        for (i : 0 .. SLEEPERS - 1) {
            asleep[i] = false
        }
        i = 0
    }
}

/* shc_group_wake() */
inline ring()
{
    atomic { was = flag; flag = 0 }
    if
    :: was -> atomic { count++; was = 0 }; wake_all()
    :: else
    fi
}

inline kernel_marks()
{
    atomic {
        marked = true;
#ifndef FAULT_not_awaited
        if /* one of those that sleep */
        :: asleep[0] -> asleep[0] = false
        :: asleep[1] -> asleep[1] = false
        :: !asleep[0] && !asleep[1]
        fi
#endif
    }
}

active proctype Member()
{
    bit was;
    byte i;
    if
    :: atomic { state == alive -> state = left };
#ifndef FAULT_silent_leave
       ring()
#endif
    :: kernel_marks();
       ended = true
    :: atomic { state == alive -> state = leaving };
       kernel_marks();
       ended = true
    fi
}

/* shc_member_look() */
inline look()
{
    atomic {
        if
        :: marked && state == alive -> state = dead; changed = true
        :: marked && state == leaving && ended -> state = left; changed = true
        :: else
        fi
    };
    if
    :: changed -> ring(); changed = false
    :: else
    fi;
    gone = (state == left || state == dead)
}

/* shc_park_begin() */
inline read_words()
{
    life = marked;
    heard = count;
    flag = 1
}

proctype Sleeper(byte me)
{
    bit was;
    byte i, heard;
    bool life, changed, gone;
    do
    :: gone -> break
    :: else ->
#ifdef FAULT_look_before_words
        look();
        read_words();
#else
        read_words();
        look();
#endif
        if
        :: gone -> break
        :: else
        fi;
#ifndef FAULT_sleep_on_mark
        if
        :: life -> ended; goto next /* slices, until the process is gone */
        :: else
        fi;
#endif
        atomic { /* the kernel compares and queues in one */
            if
            :: count == heard && marked == life -> asleep[me] = true
            :: else
            fi
        }
        !asleep[me];
#ifndef FAULT_no_pass_on
        if
        :: marked != life -> wake_all()
        :: else
        fi;
#endif
        if
        :: break /* what it waits for has come, and it does not look */
        :: true
        fi;
next:
        skip
    od
}

init
{
    atomic {
        run Sleeper(0);
        run Sleeper(1)
    }
}
