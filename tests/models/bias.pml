/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A biased runner: one thread enters and leaves by plain stores, which stay in its store buffer for a
 * while. Any other thread that takes the word revokes the bias first. One thread is inside at a time,
 * no synchronous call overtakes what its own thread queued, and nothing stays queued while its engine
 * sleeps.
 *
 * Mirrors src/shm/comm/runner.h, os/bias.h and bias.c; docs/internals/protocol.md, RUN-7 to RUN-10.
 * The owner makes some calls, and submits in between. A second caller calls or submits at any time,
 * and an engine thread runs what is queued. A call that finds the runner taken is not made (in reality
 * it is queued: runner.pml covers that, and the engine). A locked instruction or a lock lets the
 * thread's earlier stores out first. Left out: signal handlers' calls, which the engine refuses while
 * their thread is between the begin of a take and the end of a drop.
 *
 * FAULT_no_heavy_fence      a revoking thread looks while the owner's store may be in its buffer
 * FAULT_bias_unlooked       after its store the owner looks at the word alone
 * FAULT_word_unlooked       after its store the owner looks at the bias alone
 * FAULT_bias_looked_before  a thread looks at the bias before it takes the word, and not after that
 * FAULT_taken_from_inside   a revoking thread goes in although the owner is inside
 * FAULT_leave_unlooked      the owner leaves without a look at the bias
 * FAULT_left_silent         the owner drops HELD, which was left to it, without a ring
 * FAULT_two_homes           the second caller may have a bias, too
 */

#define HELD   1
#define QUEUED 2

#define OWNER  1
#define SECOND 2
#define ENGINE 3

byte word, bias, inside;
bool lock, left;
chan buffer[4] = [2] of { byte }; /* the two callers' stores to inside */

byte queued; /* requests in the ring, */
byte own;    /* the owner's requests among them */
bool work, asleep; /* the engine's bell */

bool busy;

#define LIMIT 4

inline flush(who)
{
    do
    :: atomic { nempty(buffer[who]) -> buffer[who]?inside }
    :: empty(buffer[who]) -> break
    od
}

inline ring()
{
    atomic {
        if
        :: work -> work = false; asleep = false
        :: else
        fi
    }
}

inline operate(mine)
{
    atomic {
        assert(!busy);
        busy = true;
        assert(!mine || own == 0) /* no overtaking */
    };
    busy = false
}

/* shc_bias_revoke(); HELD is held. `got`: HELD is still held. */
inline revoke(me)
{
    atomic { !lock -> lock = true };
    was = bias;
    bias = 0;
#ifndef FAULT_no_heavy_fence
    if
    :: was != me && was != 0 -> atomic { flush(was) }
    :: else
    fi;
#endif
    left = inside != 0;
    got = !left;
#ifdef FAULT_taken_from_inside
    got = true;
#endif
    was = 0;
    lock = false
}

/* After the compare-and-set: shc_runner_take() */
inline look_at_bias(me)
{
#ifdef FAULT_bias_looked_before
    if
    :: found != 0 -> revoke(me)
    :: else -> got = true
    fi
#else
    if
    :: bias != 0 -> revoke(me)
    :: else -> got = true
    fi
#endif
}

inline drop_word()
{
    atomic { before = word; word = word & ~HELD };
    if
    :: before & QUEUED -> ring()
    :: else
    fi;
    before = 0
}

/* shc_runner_leave_biased() */
inline leave(me)
{
    buffer[me]!0;
#ifndef FAULT_leave_unlooked
    if
    :: bias == me
    :: else ->
        flush(me);
        atomic { !lock -> lock = true };
        if
        :: left ->
            left = false;
            atomic { before = word; word = word & ~HELD };
            if
#ifndef FAULT_left_silent
            :: before & QUEUED -> ring()
#endif
            :: else
            fi;
            before = 0
        :: else
        fi;
        lock = false
    fi
#endif
}

/* shc_runner_enter_biased(), and the call. `got`: the call was made. */
inline call_by_bias(me, mine)
{
    got = false;
    if
    :: bias == me ->
        buffer[me]!me;
        if
#ifdef FAULT_bias_unlooked
        :: true ->
#else
        :: bias == me ->
#endif
#ifdef FAULT_word_unlooked
            got = true
#else
            if
            :: word == 0 -> got = true
            :: else
            fi
#endif
#ifndef FAULT_bias_unlooked
        :: else
#endif
        fi;
        if
        :: got -> operate(mine)
        :: else
        fi;
        leave(me)
    :: else
    fi
}

/* shc_engine_enter_by_word(), and the call. */
inline call_by_word(me, mine)
{
    flush(me);
    found = bias;
    if
    :: atomic { word == 0 -> word = HELD };
        look_at_bias(me);
        if
        :: got ->
            operate(mine);
            if
#ifdef FAULT_two_homes
            :: bias = me
#else
            :: mine -> bias = me /* it has earned a bias */
#endif
            :: skip
            fi;
            drop_word()
        :: else
        fi
    :: else
    fi;
    found = 0
}

inline call(me, mine)
{
    call_by_bias(me, mine);
    if
    :: !got -> call_by_word(me, mine)
    :: else
    fi;
    got = false
}

inline submit(me, mine) /* shc_submit() */
{
    flush(me);
    atomic {
        queued++;
        own = own + mine;
        word = word | QUEUED
    };
    ring()
}

/* Takes what is queued, if no thread runs it, and runs it. */
inline run_queue(me)
{
    flush(me);
    found = bias;
    if
    :: atomic { word == QUEUED -> word = QUEUED | HELD };
        look_at_bias(me);
        if
        :: got ->
            operate(false);
            atomic { queued = 0; own = 0; word = word & ~QUEUED };
            drop_word()
        :: else
        fi;
        got = false
    :: else
    fi;
    found = 0
}

active proctype Owner()
{
    byte before, was, found, calls;
    bool got;
    do
    :: own > 0 -> run_queue(OWNER) /* it waits, and may run what is queued itself */
    :: calls < LIMIT ->
        calls++;
        if
        :: own == 0 -> submit(OWNER, true)
        :: skip
        fi;
        call(OWNER, true)
    :: else -> break
    od;
    flush(OWNER)
}

active proctype Second()
{
    byte before, was, found;
    bool got;
    if
#ifdef FAULT_two_homes
    :: call(SECOND, false); call(SECOND, false)
#else
    :: call_by_word(SECOND, false)
#endif
    :: skip
    fi;
    submit(SECOND, false)
}

active proctype Engine()
{
    byte before, was, found;
    bool got;
end:
    do
    :: word == QUEUED -> run_queue(ENGINE)
    :: else ->
        work = true;
        if
        :: word == QUEUED
        :: else ->
            atomic {
                if
                :: work -> asleep = true
                :: else
                fi
            };
end_asleep:
            !asleep
        fi
    od
}

/* A store buffer empties by itself, sooner or later. */
active proctype OwnersBuffer()
{
end:
    do
    :: atomic { nempty(buffer[OWNER]) -> buffer[OWNER]?inside }
    od
}

active proctype SecondsBuffer()
{
end:
    do
    :: atomic { nempty(buffer[SECOND]) -> buffer[SECOND]?inside }
    od
}

/* When nothing moves any more, nothing is queued, and the word is free. */
active proctype Watch()
{
    timeout -> assert(queued == 0 && word == 0 && !left)
}
