/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Rendezvous: all ranks have the group or none has, and every rank learns which.
 *
 * Mirrors src/shm/comm/bootstrap.c, and decide, give up, pause and join of rendezvous.c;
 * docs/internals/protocol.md, RDV-7 to RDV-12. There are three ranks, and two attempts of one
 * generation. Each rank may fail in each attempt, one rank may die at any step, and one may give up at
 * any pause. The deadline passes only where it must: for ranks that wait for a rank which died before
 * its join record. Then: all ranks that end agree with the decision; a rank that has a group
 * sits in the same file as all others; every wait ends. A good verdict is a seat in the segment. Rank
 * 0's word in the segment makes what the store holds known sooner. Left out: generations
 * (generations.pml), and an interrupt that finds the decision "ok": that rank leaves a group that the
 * others have.
 *
 * FAULT_decision_stored       the decision is stored: the last one wins
 * FAULT_follower_decides_ok   a rank whose verdict is good decides "ok"
 * FAULT_give_up_regardless    a rank that gives up and finds "ok" leaves all the same
 * FAULT_decides_early         rank 0 decides when the first good verdict is there
 * FAULT_tells_first           rank 0 says "ok" in the segment, then decides
 * FAULT_word_alone            a rank that has a seat reads rank 0's word, and not the store
 * FAULT_seat_first            a rank takes its seat, then finds out whether it can
 * FAULT_silent_failure        a rank that cannot attach gives no verdict
 * FAULT_deaths_ignored        no rank looks at the others' processes
 * FAULT_leaves_first          a rank that gives up leaves its seat, then decides
 * FAULT_counts_unoffered      rank 0 counts an attempt that it has not offered
 * FAULT_pause_is_blind        rank 0 does not look at the decision while it waits for verdicts
 */

#define RANKS    3
#define ATTEMPTS 2
#define FORMS    3 /* the times that rank 0 tries; what it cannot offer is no attempt */

mtype = { NOTHING, OK, FAILED };

/* The store. */
bool joined[RANKS];
bool offer[FORMS + 2];
bool bad[RANKS * (FORMS + 2)]; /* verdicts */
mtype decision = NOTHING;

#define BAD(a, rank) bad[(a) * RANKS + (rank)]

/* The segments, by attempt. */
bool taken[RANKS * (FORMS + 2)]; /* the member's state: a rank that leaves does not make it EMPTY again */
mtype told[FORMS + 2] = NOTHING; /* FAILED: look at the store */

#define TAKEN(a, rank) taken[(a) * RANKS + (rank)]

byte seat[RANKS]; /* the attempt in whose file the rank has its block and its life word; 0: none */
byte victim;      /* RANKS: nobody dies */
byte impatient;   /* RANKS: nobody gives up */
bool killed, dead;
byte ended;
mtype result[RANKS] = NOTHING;

#ifdef FAULT_deaths_ignored
#define DEATH (dead && !joined[victim])
#else
#define DEATH dead /* a join record: look_at_ranks(); none: the deadline */
#endif

/* What ends a pause, except the key that is waited for. */
#define NEWS      (DEATH || me == impatient)
#define GIVEN_UP  (decision == FAILED)

/* shc_rendezvous_decide(): put_first. */
inline decide(wish)
{
    atomic {
        if
#ifdef FAULT_decision_stored
        :: true -> decision = wish
#else
        :: decision == NOTHING -> decision = wish
        :: else
#endif
        fi;
        decided = decision
    }
}

/* shc_rendezvous_give_up() */
inline give_up()
{
#ifdef FAULT_leaves_first
    seat[me] = 0;
#endif
    decide(FAILED);
#ifdef FAULT_give_up_regardless
    decided = FAILED
#endif
}

#define JUDGED (TAKEN(attempt, turn) || BAD(attempt, turn))

inline gather_verdicts()
{
    good = true;
    for (turn : 1 .. RANKS - 1) {
        if
        :: TAKEN(attempt, turn)
#ifdef FAULT_decides_early
            -> if
            :: good -> break
            :: else
            fi
#endif
        :: BAD(attempt, turn) -> good = false
        :: !JUDGED && NEWS -> give_up(); goto over
#ifndef FAULT_pause_is_blind
        :: !JUDGED && GIVEN_UP -> decided = FAILED; goto over
#endif
        fi
    }
    turn = 0
}

proctype Leader()
{
    byte me = 0;
    byte attempt = 1;
    byte form, turn;
    bool good;
    mtype decided = NOTHING;
    {
        joined[0] = true;
        for (form : 1 .. FORMS) {
            if
            :: attempt <= ATTEMPTS -> /* create_segment(), take_seat() */
                seat[0] = attempt;
                offer[attempt] = true;
                gather_verdicts();
                if
                :: good -> break
                :: else -> told[attempt] = FAILED; seat[0] = 0; attempt++
                fi
            :: good = false; /* not even offered */
#ifdef FAULT_counts_unoffered
                attempt++
#endif
            fi
        }
        if
        :: good ->
#ifdef FAULT_tells_first
            told[attempt] = OK;
#endif
            decide(OK)
        :: else -> decide(FAILED)
        fi;
over:
        if
        :: seat[0] != 0 -> told[seat[0]] = decided
        :: else
        fi;
        atomic { result[0] = decided; ended++ }
    } unless { me == victim && killed -> dead = true; ended++ }
}

#ifdef FAULT_word_alone
#define LOOKS (seat[me] == 0 || told[seat[me]] == FAILED)
#else
#define LOOKS true
#endif

proctype Follower(byte me)
{
    byte attempt = 1;
    mtype decided = NOTHING;
    {
        joined[me] = true;
        do
        /* await_news() */
        :: seat[me] != 0 && told[seat[me]] == OK -> decided = OK; break
        :: LOOKS && decision != NOTHING -> decided = decision; break
        :: decision == NOTHING && NEWS -> give_up(); break
        :: LOOKS && offer[attempt] ->
            seat[me] = 0; /* leave_seat(): the seat of the attempt before */
            if
            :: seat[me] = attempt; /* attach, check, take_seat() */
                TAKEN(attempt, me) = true;
#ifdef FAULT_follower_decides_ok
                decide(OK)
#endif
#ifdef FAULT_silent_failure
            :: skip
#else
            :: BAD(attempt, me) = true
#endif
#ifdef FAULT_seat_first
            :: TAKEN(attempt, me) = true; BAD(attempt, me) = true
#endif
            fi;
            attempt++
        od;
        atomic { result[me] = decided; ended++ }
    } unless { me == victim && killed -> dead = true; ended++ }
}

active proctype Killer()
{
    if
    :: victim < RANKS -> killed = true
    :: victim == RANKS
    fi
}

#define AGREES(rank) \
    (((rank) == victim && dead) || (result[rank] == decision && (decision != OK || SEATED(rank))))
#define SEATED(rank) (seat[rank] != 0 && seat[rank] == seat[0])

/* A dead rank may have died after the group was made. */
active proctype Judge()
{
    ended == RANKS;
    assert(AGREES(0));
    assert(AGREES(1));
    assert(AGREES(2));
    assert(decision != OK || (SEATED(1) && SEATED(2)));
    assert(dead || decision != NOTHING)
}

init
{
    atomic {
        select(victim : 0 .. RANKS);
        select(impatient : 0 .. RANKS);
        run Leader();
        run Follower(1);
        run Follower(2)
    }
}
