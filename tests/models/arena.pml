/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Making the arena: all ranks agree on whether there is one, and which attempt it is.
 *
 * Mirrors shc_arena_make() of src/shm/proto/arena.c; docs/internals/protocol.md, STAGE-47 to
 * STAGE-50. There are three ranks and three attempts. Each rank may fail to make, open or reserve in
 * each attempt, and one rank may die at any step. Then: no rank uses memory that another rank has not
 * reserved, all ranks that learn an outcome agree, and every wait ends. Left out: the operation around
 * it, whose ranks have met, and which form of memory an attempt has: rank 0 chooses the form alone,
 * from verdicts that it has read.
 *
 * FAULT_larger_is_good        a verdict of a later attempt reads as "reserved"
 * FAULT_first_bad_ends        the first bad verdict ends the attempt; no rank waits for the others
 * FAULT_silent_failure        a rank that fails gives no verdict
 * FAULT_verdict_too_early     the verdict comes before the reservation
 * FAULT_neighbour_alone       a rank looks at its own outcome and rank 0's alone
 * FAULT_deaths_ignored        a wait does not look at members
 */

#define RANKS    3
#define ATTEMPTS 3

#define RESERVED(a) ((a) * 4 + 1) /* enum outcome */
#define FAILED(a)   ((a) * 4 + 2)

byte name;            /* in rank 0's offer: the attempt whose file it is */
byte verdict[RANKS];  /* attempt * 4 + outcome, growing */
byte reserved[RANKS]; /* the attempt in whose file the rank has reserved its range */
byte victim;          /* RANKS: nobody dies */
bool killed, dead;
bool failed;          /* the abort word */

mtype = { BUSY, MADE, NONE, BROKEN };
mtype result[RANKS] = BUSY;
byte made_in;         /* the attempt of the arena that any rank has */

#ifdef FAULT_deaths_ignored
#define LOST false
#else
#define LOST (dead || failed)
#endif

/* read_verdict() */
inline read_verdict(rank)
{
    if
    :: verdict[rank] >= RESERVED(attempt) ->
#ifdef FAULT_larger_is_good
        good = good && verdict[rank] != FAILED(attempt)
#else
        good = good && verdict[rank] == RESERVED(attempt)
#endif
    :: verdict[rank] < RESERVED(attempt) && LOST ->
        failed = true; /* the group: the operation ends */
        result[me] = BROKEN;
        goto over
    fi
}

inline reserve()
{
    if
    :: reserved[me] = attempt
    :: good = false
    fi
}

/* Makes or opens the file, and reserves: `good`. */
inline take_part()
{
    if
    :: me == 0 -> name = attempt; reserve()
    :: me != 0 && good -> assert(name == attempt); reserve()
    :: good = false
    fi
}

inline publish_verdict()
{
    if
    :: good -> verdict[me] = RESERVED(attempt)
#ifdef FAULT_silent_failure
    :: else
#else
    :: else -> verdict[me] = FAILED(attempt)
#endif
    fi
}

/* attempt_once() */
inline attempt_once()
{
#ifdef FAULT_verdict_too_early
    good = true;
    if
    :: me == 0 -> name = attempt
    :: else -> read_verdict(0)
    fi;
    publish_verdict();
    if
    :: good -> reserved[me] = attempt
    :: else
    fi;
#else
    good = true;
    if
    :: me == 0
    :: else -> read_verdict(0)
    fi;
    atomic { /* no rank looks at `reserved` before the verdict */
        take_part();
        publish_verdict()
    }
#endif
#ifdef FAULT_neighbour_alone
    for (turn : 0 .. 0) {
#else
    for (turn : 0 .. RANKS - 1) {
#endif
        if
        :: turn == me
#ifdef FAULT_first_bad_ends
        :: turn != me && !good
        :: turn != me && good -> read_verdict(turn)
#else
        :: turn != me -> read_verdict(turn)
#endif
        fi
    }
    turn = 0
}

proctype Rank(byte me)
{
    byte attempt, turn;
    bool good;
    {
        for (attempt : 1 .. ATTEMPTS) {
            attempt_once();
            if
            :: good -> break
            :: else -> reserved[me] = 0 /* shc_segment_detach() */
            fi
        }
        if
        :: good ->
            atomic {
                assert(reserved[0] == attempt && reserved[1] == attempt && reserved[2] == attempt);
                assert(made_in == 0 || made_in == attempt);
                assert(result[0] != NONE && result[1] != NONE && result[2] != NONE);
                made_in = attempt;
                result[me] = MADE
            }
        :: else ->
            atomic {
                assert(made_in == 0);
                result[me] = NONE
            }
        fi;
over:
        skip
    } unless { me == victim && killed -> dead = true }
}

active proctype Killer()
{
    if
    :: victim < RANKS -> killed = true
    :: victim == RANKS
    fi
}

init
{
    atomic {
        select(victim : 0 .. RANKS);
        run Rank(0);
        run Rank(1);
        run Rank(2)
    }
}
