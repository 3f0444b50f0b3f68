/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Single-copy (CMA) of blocks from the root's memory: what a rank calls the result is what the root gave,
 * whatever the root does. No rank waits for ever, or blames a caller whose rank has given up.
 *
 * Mirrors run_pulled() of src/shm/coll/scatter.c and src/shm/proto/cma.c;
 * docs/internals/protocol.md, STAGE-30 to STAGE-38 and LIFE-12. Rank 0 gives, two ranks take,
 * EPOCHS times. Twice in a run a rank may be in trouble: the root closes its group in the middle,
 * a rank's deadline passes, or the root dies. A root that has given up has its memory again: the memory
 * changes, or is unmapped. After a death its thread's number may be another process's, whose memory can
 * be copied as well. A copy is made in two pieces.
 *
 * FAULT_no_withdrawal   the root gives up without saying so
 * FAULT_late_withdrawal the root says so only after its caller has had its memory again
 * FAULT_no_wait         the root does not wait until all have taken
 * FAULT_look_before     takers look at the root before the copy, not after it
 * FAULT_no_member       takers do not look whether the root lives
 * FAULT_one_place       one place for what is offered instead of two
 * FAULT_blames_at_once  a copy that fails is an error of the call, whatever the root has done
 * FAULT_only_abort      a rank that finds the root gone waits for the group's failure alone
 */

#define EPOCHS 3
#define ROOT   0

#define CHANGED 14 /* what is in memory that the root no longer gives */
#define GONE    15

byte memory;       /* the epoch of what is in it */
byte offer[3 * 2]; /* each rank's, by parity: the epoch of what it offers there */
byte withdrawn[2]; /* by parity */
byte call[3];      /* the newest epoch published */
byte taken[3];     /* the newest epoch whose block the rank has */
bool failed;       /* the abort word */
bool dead, left;   /* the root */
bool blamed;       /* a rank has called it an error of the call */
byte trouble = 2;

mtype = { OK, CLOSED, FAILED, DEAD };

#ifdef FAULT_one_place
#define PLACE 0
#else
#define PLACE (epoch & 1)
#endif

#define OFFER(rank) offer[(rank) * 2 + PLACE]

/* A wait ends with what it waits for, or with what happens to this rank or the group. */
inline wait(condition)
{
    if
    :: condition
    :: failed -> status = FAILED
    :: trouble > 0 && !(condition) -> trouble--; failed = true; status = FAILED /* its deadline */
    :: me == ROOT && trouble > 0 -> trouble--; status = CLOSED
    :: me == ROOT && trouble > 0 -> trouble--; status = DEAD
    :: (me != ROOT && (dead || left)) -> failed = true; status = FAILED
    fi
}

proctype Root()
{
    byte me = ROOT, epoch = 1;
    mtype status = OK;
    do
    :: epoch <= EPOCHS && status == OK ->
        memory = epoch;
        OFFER(ROOT) = epoch;
        call[ROOT] = epoch;
        wait(call[1] >= epoch && call[2] >= epoch);
        if
        :: status == OK -> assert(OFFER(1) == epoch && OFFER(2) == epoch)
        :: else
        fi;
#ifndef FAULT_no_wait
        if
        :: status == OK -> wait(taken[1] >= epoch && taken[2] >= epoch)
        :: else
        fi;
#endif
        if
        :: status == OK -> epoch++
        :: else -> break
        fi
    :: else -> break
    od;
    if
    :: status == OK || status == DEAD
    :: else ->
#if !defined(FAULT_no_withdrawal) && !defined(FAULT_late_withdrawal)
        withdrawn[PLACE] = epoch;
#endif
        if
        :: memory = CHANGED
        :: memory = GONE
        fi;
#ifdef FAULT_late_withdrawal
        withdrawn[PLACE] = epoch;
#endif
        if
        :: status == CLOSED -> left = true
        :: trouble > 0 -> trouble--; status = DEAD
        :: else
        fi
    fi;
    if
    :: status == DEAD -> /* life word, then memory; then its number may be another process's */
        dead = true;
        memory = GONE;
        if
        :: memory = CHANGED
        :: true
        fi
    :: else
    fi
}

/* What has become of the root, or of the group. */
inline find_out()
{
    if
    :: failed
#ifndef FAULT_only_abort
    :: dead || left -> failed = true
#endif
    fi;
    status = FAILED
}

#ifdef FAULT_no_member
#define KEPT (withdrawn[PLACE] != epoch)
#else
#define KEPT (withdrawn[PLACE] != epoch && !dead && !left)
#endif

inline copy(piece)
{
    if
    :: status == OK && failed -> find_out()
    :: status == OK && !failed ->
        piece = memory;
        if
        :: piece != GONE
#ifdef FAULT_blames_at_once
        :: piece == GONE && dead -> find_out()
        :: piece == GONE && !dead ->
#else
        :: piece == GONE && !KEPT -> find_out()
        :: piece == GONE && KEPT && failed -> find_out()
        :: piece == GONE && KEPT && !failed ->
#endif
            blamed = true;
            status = FAILED
        fi
    :: else
    fi
}

proctype Taker(byte me)
{
    byte epoch = 1, first, second;
    mtype status = OK;
    do
    :: epoch <= EPOCHS && status == OK ->
        OFFER(me) = epoch;
        call[me] = epoch;
        wait(call[ROOT] >= epoch && call[3 - me] >= epoch);
        if
        :: status == OK ->
            assert(OFFER(ROOT) == epoch && OFFER(3 - me) == epoch);
#ifdef FAULT_look_before
            if
            :: KEPT
            :: else -> find_out()
            fi;
#endif
            copy(first);
            copy(second);
#ifndef FAULT_look_before
            if
            :: status == OK && !KEPT -> find_out()
            :: else
            fi;
#endif
            if
            :: status == OK ->
                assert(first == epoch && second == epoch);
                taken[me] = epoch;
                epoch++
            :: else
            fi
        :: else
        fi
    :: else -> break
    od;
    assert(!blamed)
}

init
{
    atomic {
        run Root();
        run Taker(1);
        run Taker(2)
    }
}
