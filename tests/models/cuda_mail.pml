/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * CUDA messages of one channel: what the receiver reads is what was sent, also when a rank dies,
 * a rank aborts, and poison ends waits.
 *
 * Mirrors src/cuda_ipc/mail.c, lane.c and watch.c; docs/internals/cuda/messages.md. A rank is the stream
 * of its end and its watcher. The sender also has its CPU, which writes records ahead into a ring of one.
 * The first message is one piece, the second three, through two slots. Staging and reading take two steps
 * each, so that they overlap where they may. One of the two ranks, or none, may die before it tells the
 * other; a third one may fail the group at any time. A stream that stays in a wait is an invalid end
 * state. Left out: calls that differ (cuda_records), the receiver's own record, several streams of an end.
 *
 * FAULT_one_slot             the sender has one slot
 * FAULT_no_wait              the sender does not wait for what was taken
 * FAULT_sent_first           sent is written before staging
 * FAULT_taken_first          taken is written before reading
 * FAULT_gate_first           the sender's gate comes before its wait
 * FAULT_no_gate              the sender has no gate
 * FAULT_gate_blind           gates do not look at the group's word
 * FAULT_gate_shared          another end of the receiver's rank has the same gate
 * FAULT_poison_first         waits are ended, then the group is marked as failed
 * FAULT_poison_once          poison is written once
 * FAULT_no_flow              the CPU writes over a record without a look at which streams have read it
 * FAULT_own_flow             the CPU looks at its own stream alone
 */

#define MESSAGES 2
#define PIECES   4
#define POISON   99
#define TORN     77
#define NOBODY   9
#define FROM     0 /* the ranks */
#define TO       1

#define MESSAGE(k) ((k) == 1 -> 1 : 2)
#define FIRST(k)   ((k) <= 2)

#ifdef FAULT_one_slot
#define SLOT(k) 0
#else
#define SLOT(k) ((k) & 1)
#endif

byte slot[2];        /* the piece it holds */
byte record;         /* the message */
byte queued;         /* messages that the sender's CPU has enqueued */
byte past;           /* messages that the sender's stream is past */
byte word[2];        /* taken, in the sender's memory; sent, in the receiver's */
bool shut[2];        /* the gates */
bool over[2];        /* the streams are idle */
byte finished;       /* pieces that were read */
bool failed;         /* the group's word */
byte mortal = NOBODY;
bool dead;

#define DIES(r) (mortal == (r))
#define taken   word[FROM]
#define sent    word[TO]

/* One look of the gate kernel. */
inline gate(r)
{
    atomic {
        if
#ifndef FAULT_gate_blind
        :: failed -> shut[r] = true
#endif
        :: word[r] == POISON -> shut[r] = true
        :: else
        fi
    }
}

#if defined(FAULT_no_wait)
#define TAKEN(k) true
#else
#define TAKEN(k) (taken + 2 >= (k))
#endif

inline stage(k)
{
    if
    :: !shut[FROM] ->
        slot[SLOT(k)] = TORN;
        slot[SLOT(k)] = k
    :: else
    fi
}

proctype Sender()
{
    byte k = 1;
    do
    :: k > PIECES -> break
    :: k <= PIECES ->
        if
        :: queued >= MESSAGE(k)
        :: failed && queued < MESSAGE(k) -> break /* the CPU enqueues nothing more */
        fi;
#ifdef FAULT_gate_first
        gate(FROM);
        TAKEN(k);
#elif defined(FAULT_no_gate)
        TAKEN(k);
#else
        TAKEN(k);
        gate(FROM);
#endif
#ifdef FAULT_sent_first
        sent = k;
        stage(k);
#else
        stage(k);
        if
        :: DIES(FROM) -> dead = true; goto gone
        :: true
        fi;
        sent = k;
#endif
        if
        :: k == 1 || k == PIECES -> past++
        :: else
        fi;
        k++
    od;
    over[FROM] = true;
gone:
    skip
}

#if defined(FAULT_no_flow)
#define ROOM(m) true
#elif defined(FAULT_own_flow)
#define ROOM(m) (past + 1 >= (m))
#else
#define ROOM(m) (taken >= (m) - 1)
#endif

proctype Cpu()
{
    byte m = 1;
    do
    :: m > MESSAGES -> break
    :: m <= MESSAGES ->
        if
        :: ROOM(m)
        :: failed || (dead && DIES(FROM)) -> break
        fi;
        atomic {
            record = m;
            queued = m
        }
        m++
    od
}

/* Looks at the slot when the read begins and when it ends. */
inline read(k)
{
    if
    :: !shut[TO] ->
        seen = slot[SLOT(k)];
        if
        :: slot[SLOT(k)] != seen -> seen = TORN
        :: else
        fi;
        assert(seen == k);
        finished = k
    :: else
    fi;
    seen = 0
}

proctype Receiver()
{
    byte k = 1, seen;
    do
    :: k > PIECES -> break
    :: k <= PIECES ->
        sent >= k;
        atomic {
            if /* otherwise it is a false alarm */
            :: FIRST(k) && sent != POISON ->
                assert(failed || record == MESSAGE(k))
            :: else
            fi;
            gate(TO)
        }
#ifdef FAULT_taken_first
        taken = k;
        read(k);
#else
        read(k);
        if
        :: DIES(TO) -> dead = true; goto gone
        :: true
        fi;
        taken = k;
#endif
        k++
    od;
    over[TO] = true;
    /* A stream that ends without a failure has all pieces. */
    assert(failed || finished == PIECES);
gone:
    skip
}

#ifdef FAULT_gate_shared
/* The other end's gate kernel has looked, and stores its verdict. */
proctype Neighbour()
{
    if
    :: !failed -> shut[TO] = false
    :: failed
    fi
}
#endif

/* Sees the other rank's death, or the group's failure; fails the group; poisons until its stream is
 * idle. */
proctype Watcher(byte me)
{
    if
    :: dead && !DIES(me)
    :: failed
    :: over[me] -> goto rest
    :: dead && DIES(me) -> goto rest
    fi;
#ifdef FAULT_poison_first
    word[me] = POISON;
#endif
    failed = true;
    do
    :: over[me] -> break
    :: dead && DIES(me) -> break
    :: else ->
        if
        :: !over[me] && word[me] != POISON -> word[me] = POISON
        :: over[me] || (dead && DIES(me))
        fi;
#ifdef FAULT_poison_once
        break
#endif
    od;
rest:
    skip
}

/* A third rank, at any time or never. */
proctype Third()
{
    if
    :: failed = true
    :: true
    fi
}

init
{
    atomic {
        if
        :: mortal = FROM
        :: mortal = TO
        :: true
        fi;
        run Sender();
        run Cpu();
        run Receiver();
        run Watcher(FROM);
        run Watcher(TO);
#ifdef FAULT_gate_shared
        run Neighbour();
#endif
        run Third()
    }
}
