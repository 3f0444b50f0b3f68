/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * CUDA messages of one channel, some of them by the relay: after each one the receiver's tensor holds
 * the message or the tensor's own bytes, also when a rank dies, when the ends differ, and when the
 * group fails at any time while streams go on with what is enqueued.
 *
 * Mirrors src/cuda_ipc/relaymail.c and mail.c; docs/internals/cuda/relay.md, "Messages". A rank is the
 * stream of its end and its watcher. The receiver also has its relay thread, which meanwhile is in a
 * collective that the sender comes to after an answer to the first message. There are four messages in
 * one piece each, each by kernels or by the relay. The second may differ: then each end takes its own way
 * for it, by kernels in one piece or two, so that after it the ends may count differently. The sender's
 * k-th piece is k, in a slot and where it is copied to; the receiver's own bytes are 10 and more. To fill
 * a slot or a result, and to read one, takes two steps, so that they overlap where they may. A rank may
 * die at any step, or the group may fail at any time. A stream or a thread that stays in a wait is an
 * invalid end state. Left out: how records are used again, gates that are shared, poison that is written
 * once (all in cuda_mail); the rounds of collectives (cuda_relay); messages whose enqueuing broke off.
 *
 * FAULT_no_look           the relay thread does not look at the abort word after its copy
 * FAULT_look_first        the relay thread looks at the abort word before its copy alone
 * FAULT_taken_at_once     the relay thread writes taken where it finds sent; the stream does not
 * FAULT_unready           the relay thread serves what is sent, wherever its stream is
 * FAULT_fail_unready      where the group has failed the relay thread does not wait for its stream
 * FAULT_release_first     the relay thread releases its stream, then copies
 * FAULT_no_compare        the relay thread does not compare records
 * FAULT_gate_unseen       it does not look whether this end's gate has shut at an earlier message
 * FAULT_collective_alone  the relay thread serves no message while it is in a collective
 * FAULT_old_not_kept      the tensor's own bytes are not brought to the relay thread
 * FAULT_no_wait           the sender does not wait for what was taken
 * FAULT_one_memory        the relay's slots are those of the kernels
 * FAULT_poison_released   the receiver's watcher ends the wait for its relay thread, too
 */

#define MESSAGES 4
#define POISON   99
#define TORN     77
#define FROM     0 /* the ranks */
#define TO       1
#define KERNELS  0 /* the ways */
#define RELAY    1

mtype = { NOTHING, ABORT, DEATH };

byte slot[4];    /* the piece that it holds */
byte word[2];    /* taken, in the sender's memory; sent, in the receiver's */
bool shut[2];    /* the gates */
bool verdict;    /* of the receiver's gate */
bool over[2];    /* the streams are idle */
byte ready;      /* between the receiver's stream and its relay thread */
byte released;
byte result;     /* what will be copied back */
byte old;        /* the tensor's own bytes */
byte consumed;   /* the newest piece that the receiver's stream is past */
bool met;        /* the receiver's collective is over */
bool failed;     /* the group's word */
bool dead;

/* Chosen once. */
byte ways;       /* bit m: the way of message m, if it is the same at both ends */
byte differs;    /* 2, or 0: none */
byte way[2];     /* the ends' ways of the message that differs */
byte pieces[2];  /* its number of pieces at each end */
mtype trouble;
byte mortal;     /* the rank that dies, if there is a death */

#define taken word[FROM]
#define sent  word[TO]

#define DIES(r)      (dead && mortal == (r))
#define WAY(e, m)    ((m) == differs -> way[e] : ((ways >> (m)) & 1))
#define PIECES(e, m) ((m) == differs -> pieces[e] : 1)
/* The first piece of message m, as that end counts. */
#define FIRST(e, m)  ((m) + (differs != 0 && (m) > differs -> pieces[e] - 1 : 0))
#define OWN(m)       (10 + (m))
#define BY_RELAY(m)  (1 << (m))

#ifdef FAULT_one_memory
#define SLOT(w, k) slot[(k) & 1]
#else
#define SLOT(w, k) slot[2 * (w) + ((k) & 1)]
#endif

inline next_piece(e)
{
    k++;
    if
    :: k == FIRST(e, m) + PIECES(e, m) -> m++
    :: else
    fi
}

/* ---- the sender ---- */

#ifdef FAULT_no_wait
#define TAKEN(k) true
#else
#define TAKEN(k) (taken + 2 >= (k))
#endif

proctype Sender()
{
    byte m = 1, k = 1;
    {
        do
        :: m > MESSAGES -> break
        :: m <= MESSAGES ->
            atomic {
                TAKEN(k);
                assert(taken == POISON || taken <= consumed)
            }
            atomic {
                if
                :: WAY(FROM, m) == KERNELS && (failed || taken == POISON) -> shut[FROM] = true
                :: else
                fi;
                if
                :: WAY(FROM, m) == RELAY || !shut[FROM] -> SLOT(WAY(FROM, m), k) = TORN
                :: else
                fi
            }
            atomic { /* no rank sees a difference between staged and told */
                if
                :: WAY(FROM, m) == RELAY || !shut[FROM] -> SLOT(WAY(FROM, m), k) = k
                :: else
                fi;
                sent = k;
                next_piece(FROM)
            }
        od;
        over[FROM] = true
    } unless { DIES(FROM) }
}

/* ---- the receiver's stream ---- */

/* What was copied to the tensor, or is still in it. */
inline look_at_tensor()
{
    assert(seen == FIRST(FROM, m) || seen == OWN(m));
    assert(m != differs || seen == OWN(m));
    assert(seen != OWN(m) || failed || verdict)
}

inline tell(w)
{
    consumed = k;
#ifdef FAULT_taken_at_once
    if
    :: w == KERNELS -> taken = k
    :: else
    fi;
#else
    taken = k;
#endif
    next_piece(TO);
    seen = 0
}

inline receive_by_kernels()
{
    atomic {
        sent >= k;
        if /* what is read is there from here on */
        :: shut[TO]
        :: !shut[TO] && (failed || sent == POISON || m == differs) ->
            shut[TO] = true;
            verdict = true
        :: else -> seen = SLOT(KERNELS, k)
        fi
    }
    atomic {
        if
        :: shut[TO] -> seen = OWN(m)
        :: else -> assert(seen == k && SLOT(KERNELS, k) == k)
        fi;
        look_at_tensor()
    }
    atomic { tell(KERNELS) }
}

inline receive_by_relay()
{
    atomic {
#ifndef FAULT_old_not_kept
        old = OWN(m);
#endif
        ready = k
    }
    atomic {
        released >= k;
        seen = result
    }
    atomic {
        seen = (result == seen -> seen : TORN);
        look_at_tensor()
    }
    atomic { tell(RELAY) }
}

proctype Receiver()
{
    byte m = 1, k = 1, seen;
    {
        do
        :: m > MESSAGES -> break
        :: m <= MESSAGES && WAY(TO, m) == KERNELS -> receive_by_kernels()
        :: m <= MESSAGES && WAY(TO, m) == RELAY -> receive_by_relay()
        od;
        over[TO] = true
    } unless { DIES(TO) }
}

/* ---- the receiver's relay thread ---- */

#define ANSWERED (consumed >= 1 && !DIES(FROM))

#if defined(FAULT_unready)
#define READY true
#elif defined(FAULT_fail_unready)
#define READY (failed || ready >= k)
#else
#define READY (ready >= k)
#endif

#if defined(FAULT_collective_alone)
#define CALLED met
#elif defined(FAULT_taken_at_once)
#define CALLED told
#else
#define CALLED true
#endif

/* It is the message's turn. The look at the abort word comes before the look at sent. */
inline begin()
{
    if
    :: sent >= k
    :: failed -> fails = true
    fi;
#ifdef FAULT_look_first
    fails = failed;
#endif
    if /* before this message in the stream, so the verdict is known by now */
#ifndef FAULT_gate_unseen
    :: !fails && verdict -> fails = true
#endif
#ifndef FAULT_no_compare
    :: !fails && !verdict && m == differs -> fails = true
#endif
    :: else
    fi;
    if
    :: fails -> failed = true
    :: else ->
        good = SLOT(RELAY, k) == k;
        result = TORN
    fi;
#ifdef FAULT_release_first
    released = k
#endif
}

inline end_reading()
{
    good = good && SLOT(RELAY, k) == k;
    assert(good || failed);
    result = (good -> k : TORN);
#if !defined(FAULT_no_look) && !defined(FAULT_look_first)
    fails = failed
#endif
}

proctype Relay()
{
    byte m = 1, k = 1;
    bool good, fails;
#ifdef FAULT_taken_at_once
    bool told;
#endif
    {
        do
        :: m > MESSAGES && met -> break
        :: !met && (ANSWERED || failed) -> met = true
        :: m <= MESSAGES && WAY(TO, m) == KERNELS ->
            atomic {
                k = k + PIECES(TO, m);
                m++
            }
#ifdef FAULT_taken_at_once
        :: m <= MESSAGES && WAY(TO, m) == RELAY && !told && sent >= k ->
            taken = k;
            told = true
#endif
        :: atomic { m <= MESSAGES && WAY(TO, m) == RELAY && CALLED && READY && (failed || sent >= k) ->
            begin() };
            atomic {
                if
                :: !fails -> end_reading()
                :: fails
                fi;
                if
                :: fails -> result = old
                :: else
                fi;
                released = k;
                k++;
                m++;
                good = false;
                fails = false
#ifdef FAULT_taken_at_once
                ; told = false
#endif
            }
        od
    } unless { DIES(TO) }
}

/* ---- the others ---- */

/* Sees the other rank's death, its own gate's verdict, or the group's failure; fails the group; poisons
 * until its stream is idle. */
proctype Watcher(byte me)
{
    {
        if
        :: DIES(1 - me)
        :: failed
        :: me == TO && verdict
        :: over[me] && (me == FROM || (met && !verdict)) ->
            assert(differs == 0 || me == FROM || failed);
            goto rest
        fi;
        failed = true;
        do
        :: over[me] -> break
        :: !over[me] && word[me] != POISON -> word[me] = POISON
#ifdef FAULT_poison_released
        :: me == TO && !over[me] && released != POISON -> released = POISON
#endif
        od;
rest:
        skip
    } unless { DIES(me) }
}

proctype Trouble()
{
end:
    if
    :: trouble == ABORT -> failed = true
    :: trouble == DEATH -> dead = true
    fi
}

inline differing_end(e)
{
    pieces[e] = 1;
    if
    :: way[e] = RELAY
    :: way[e] = KERNELS
    :: pieces[e] = 2
    fi
}

init
{
    atomic {
        if
        :: true ->
            differs = 2;
            met = true;
            ways = BY_RELAY(1) | BY_RELAY(3) | BY_RELAY(4);
            differing_end(FROM);
            differing_end(TO)
        :: ways = BY_RELAY(1) | BY_RELAY(2) | BY_RELAY(3) | BY_RELAY(4)
        :: ways = BY_RELAY(1) | BY_RELAY(4)
        :: ways = BY_RELAY(3) | BY_RELAY(4)
        :: ways = BY_RELAY(2) | BY_RELAY(4)
        fi;
        if
        :: trouble = ABORT
        :: trouble = DEATH; mortal = TO
        :: trouble = DEATH
        :: trouble = NOTHING
        fi;
        run Sender();
        run Receiver();
        run Relay();
        run Watcher(FROM);
        run Watcher(TO);
        run Trouble()
    }
}
