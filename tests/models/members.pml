/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Judging members: a rank that published and then left is no error, and every wait ends after a
 * death.
 *
 * Mirrors src/shm/proto/member.c and wait_asleep() of src/shm/proto/wait.c; docs/PROTOCOL.md,
 * section 5. Three ranks make a broadcast, then a barrier: all publish the call line; the root
 * waits for the others' read of a chunk; they wait for its next one; all publish the next call line.
 * One rank, the VICTIM, may leave before any of its own publications (another thread closes its
 * group), or die before any store. There are no time-outs, and a rank whose call has failed makes
 * no other and does not even leave: a wait that only they would end is an invalid end state. Ranks
 * look at one another in cyclic order, so it does not matter which of them is the victim when any
 * of them may be the root. Left out: deadlines and interrupts, which fail the group in the same way,
 * and the second witness in /proc.
 *
 * FAULT_data_before_state      the data is looked at first, then the state of its writer
 * FAULT_left_by_old_line       of another rank than the one waited for: its line, then its state
 * FAULT_dead_over_left         DEAD is stored, not swapped in for ALIVE
 * FAULT_life_ignored           nobody looks at life words
 * FAULT_left_in_silence        a rank that left in the middle does not fail the group
 * FAULT_left_poisons           a rank that left between two calls fails the group
 * FAULT_publishes_behind_left  a call line comes out behind LEFT: a thread was on its way
 * FAULT_abort_first            the abort word is set before the reason is written
 * FAULT_abort_stored           the abort word is stored, not swapped in for 0
 */

#define RANKS  3
#define VICTIM 0

/* What is published: 1 the call line, 2 a reader's step, 3 the root's step; 4 the next call line. */
#define PUBLICATIONS    4
#define PUBLISHES(rank) ((at) == 2 -> (rank) != root : ((at) == 3 -> (rank) == root : true))
#define WAITS(rank)     ((at) == 2 -> (rank) == root : ((at) == 3 -> (rank) != root : true))
#define ENTERED(at)     ((at) == 2 || (at) == 3)
#define CALL_LINE(at)   ((at) == 4 -> 4 : 1) /* of the operation that `at` belongs to */

mtype = { ALIVE, LEFT, DEAD }; /* enum shc_member_state */
mtype state[RANKS] = ALIVE;
bool life[RANKS];   /* SHC_OS_OWNER_DIED is set */
byte newest[RANKS]; /* the rank's newest publication; it grows, like epochs and progress */
byte finder;        /* the abort word */
bool reason[RANKS];
bool killed;        /* VICTIM */
bool left_inside;   /* VICTIM has left with the broadcast's call line out, without its step */

inline swap_state(rank, to)
{
    atomic {
        if
        :: state[rank] == ALIVE -> state[rank] = to
        :: else
        fi
    }
}

/* shc_member_look() */
inline look(rank)
{
    seen = state[rank];
    if
#ifndef FAULT_life_ignored
    :: seen == ALIVE && life[rank] ->
        atomic {
#ifdef FAULT_dead_over_left
            state[rank] = DEAD;
#else
            swap_state(rank, DEAD);
#endif
            seen = state[rank]
        }
#endif
    :: else
    fi
}

/* shc_group_fail(); the abort word is written once. */
inline group_fail()
{
    if
#ifndef FAULT_abort_first
    :: atomic { finder == 0 -> reason[me] = true };
#else
    :: finder == 0;
#endif
        atomic {
            if
#ifndef FAULT_abort_stored
            :: finder != 0
            :: finder == 0 ->
#else
            :: true ->
#endif
                assert(finder == 0);
                finder = 1 + me
            fi
        }
#ifdef FAULT_abort_first
        reason[me] = true
#endif
    :: else
    fi;
    failed = true
}

#define PEER  ((me + turn) % RANKS)
#define THIRD ((me + 3 - turn) % RANKS)

/* wait_asleep(): until the peer has published `at`. Whom to judge, and for what, is in `judged`. */
inline look_once()
{
#ifdef FAULT_data_before_state
    if
    :: newest[PEER] >= at -> goto there
    :: else
    fi;
    look(PEER);
#else
    look(PEER);
    if
    :: newest[PEER] >= at -> goto there
    :: else
    fi;
#endif
    if
    :: atomic { finder != 0 -> /* judge_group() */
            assert(reason[finder - 1]);
            assert(killed || left_inside); /* who left between two calls harms neither */
            failed = true
        }
    :: else -> /* judge_members(): first the peer, then the third rank */
        if
        :: seen == LEFT -> judged = PEER
        :: else ->
            look(PEER);
            if
            :: seen == DEAD -> judged = PEER
            :: else ->
#ifdef FAULT_left_by_old_line
                latest = newest[THIRD];
                look(THIRD);
#else
                look(THIRD);
                latest = newest[THIRD];
#endif
                if
                :: seen == DEAD || (seen == LEFT && latest < CALL_LINE(at)) -> judged = THIRD
                :: else
                fi;
                latest = 0
            fi
        fi;
        if
        :: judged == RANKS
        :: judged != RANKS && seen == LEFT ->
            assert(newest[judged] < at); /* it never will publish this */
            if
#ifndef FAULT_left_in_silence
            :: ENTERED(at) -> group_fail()
#endif
#ifdef FAULT_left_poisons
            :: !ENTERED(at) -> group_fail()
#endif
            :: else -> failed = true /* this call alone, and this rank makes no further ones */
            fi
        :: judged != RANKS && seen == DEAD ->
            assert(judged == VICTIM && killed && state[judged] == DEAD);
            group_fail()
        fi;
        judged = RANKS
    fi;
    seen = ALIVE
}

/* What ends a wait once a look has found nothing. All of it lasts, so the look behind it must see
 * it: a wait that looks a third time would go round for ever. */
#ifdef FAULT_life_ignored
#define GONE(rank) (state[rank] == DEAD)
#else
#define GONE(rank) (state[rank] == DEAD || (state[rank] == ALIVE && life[rank]))
#endif
#define NEWS \
    (newest[PEER] >= at || finder != 0 || state[PEER] == LEFT || GONE(PEER) || GONE(THIRD) || \
     (state[THIRD] == LEFT && newest[THIRD] < CALL_LINE(at)))

/* A death between two reads is one in front of the next store: nobody can tell them apart. */
inline may_die()
{
    if
    :: me == VICTIM ->
        if
        :: killed = true;
            life[me] = true; /* the kernel, behind the death */
            goto gone
        :: true
        fi
    :: else
    fi
}

proctype Rank(byte me; byte root)
{
    byte at, turn, latest;
    byte judged = RANKS;
    mtype seen = ALIVE;
    bool failed;
    for (at : 1 .. PUBLICATIONS) {
        may_die();
        if
        :: me == VICTIM ->
            left_inside = at == 2 || at == 3;
            swap_state(me, LEFT); /* shc_member_leave() */
#ifdef FAULT_publishes_behind_left
            if
            :: PUBLISHES(me) -> newest[me] = at
            :: else
            fi;
#endif
            goto over
        :: true
        fi;
        if
        :: PUBLISHES(me) -> newest[me] = at
        :: else
        fi;
        for (turn : 1 .. 2) {
            if
            :: !WAITS(me) || !PUBLISHES(PEER) || newest[PEER] >= at -> goto there
            :: else
            fi;
            look_once();
            if
            :: failed -> goto over
            :: else
            fi;
            NEWS; /* the ends of slices without it are left out */
            atomic { /* in single steps it would be the first look again, begun later */
                look_once();
                assert(failed)
            };
            goto over;
there:
            seen = ALIVE
        }
        turn = 0
    }
    may_die();
    swap_state(me, LEFT);
over:
    if
    :: state[me] == LEFT -> life[me] = true /* the process ends some time behind its goodbye */
    :: else
    fi;
gone:
    skip
}

init
{
    byte root;
    atomic {
        select(root : 0 .. RANKS - 1);
        run Rank(0, root);
        run Rank(1, root);
        run Rank(2, root)
    }
}
