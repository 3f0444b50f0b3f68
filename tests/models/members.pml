/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Deadline checks of members: a rank that published and then left is no error, and every wait ends after
 * a death.
 *
 * Mirrors src/shm/proto/member.c and wait_asleep() of src/shm/proto/wait.c;
 * docs/internals/protocol.md, LIFE-1 to LIFE-4, LIFE-9 to LIFE-12, LIFE-16, LIFE-17 and WAIT-6.
 * Three ranks make a broadcast, then a barrier: all publish the call line; the root waits until the
 * others have read a chunk; they wait for its next chunk; all publish the next call line. One rank,
 * the VICTIM, may leave before any of its own publications (another thread closes its group), die
 * before any store, or fail the group for a reason of its own. A rank whose call has failed may
 * leave, or end without a goodbye, and so may one that another group has told of the death: neither
 * is ever named instead of the VICTIM. There are no time-outs, and a rank whose call has failed may as
 * well do nothing: a wait that only it would end is an invalid end state. Ranks look at one another in
 * cyclic order, so it does not matter which of them is the victim when any of them may be the root.
 * Left out: deadlines and interrupts, which fail the group in the same way, and the second witness
 * in /proc. owed.pml covers an operation that does not need the dead rank, and shows that an operation
 * that was not finished ends for all ranks.
 *
 * FAULT_data_before_state      the data is looked at first, then the state of its writer
 * FAULT_left_by_old_line       for a rank other than the awaited one: its line is read, then its state
 * FAULT_abort_before_death     the abort word is not looked at again after a look for dead ranks
 * FAULT_abort_before_left      the abort word is not looked at again after a look for ranks that left
 * FAULT_deaths_before_left     no rank looks for the dead again after a look for ranks that left
 * FAULT_dead_over_left         DEAD is stored, not swapped in for ALIVE
 * FAULT_life_ignored           no rank looks at life words
 * FAULT_left_in_silence        a rank that left in the middle does not fail the group
 * FAULT_left_poisons           a rank that left between two calls fails the group
 * FAULT_publishes_behind_left  a call line comes out after LEFT: a thread was on its way
 * FAULT_leaving_is_alive       a rank that was LEAVING is alive also when its process has ended
 * FAULT_leaving_dies           a rank that was LEAVING is DEAD when its process has ended
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
#define CALL_LINE(at)   ((at) == 4 -> 4 : 1) /* of the operation that `at` belongs to, which counts */
#define FAILED(at)      (finder != 0 && (COVERS(0, at) || COVERS(1, at) || COVERS(2, at)))
#define COVERS(rank, at) (reason[rank] != 0 && reason[rank] <= CALL_LINE(at))

mtype = { ALIVE, LEFT, DEAD, LEAVING }; /* enum shc_member_state */
mtype state[RANKS] = ALIVE;
bool life[RANKS];   /* SHC_OS_OWNER_DIED is set */
byte newest[RANKS]; /* the rank's newest publication; it grows, like epochs and progress */
byte finder;        /* the abort word */
byte reason[RANKS]; /* the call line of the first operation that fails; 0: the rank has none */
bool killed;        /* VICTIM */
bool interrupted;   /* VICTIM has failed the group for a reason of its own, and left */
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
#ifndef FAULT_leaving_is_alive
    :: seen == LEAVING && life[rank] ->
        atomic {
#ifdef FAULT_leaving_dies
            state[rank] = DEAD;
#else
            state[rank] = (state[rank] == LEAVING -> LEFT : state[rank]);
#endif
            seen = state[rank]
        }
#endif
    :: else
    fi
}

/* shc_group_fail_from(); the abort word is written once. */
inline group_fail()
{
    if
#ifndef FAULT_abort_first
    :: atomic { !FAILED(at) -> reason[me] = CALL_LINE(at) };
#else
    :: !FAILED(at);
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
        reason[me] = CALL_LINE(at)
#endif
    :: else
    fi;
    failed = true
}

#define PEER  ((me + turn) % RANKS)
#define THIRD ((me + 3 - turn) % RANKS)

inline check_group()
{
    atomic {
        assert(finder == 0 || reason[finder - 1] != 0);
        if
        :: FAILED(at) ->
            assert(killed || left_inside || interrupted); /* other ranks harm no rank by leaving */
            failed = true
        :: else
        fi
    }
}

/* Looks at the abort word once more, after a look at a state. */
inline check_group_again()
{
    if
    :: FAILED(at) -> failed = true
    :: else
    fi
}

/* `judged` is the rank that died first, not one that was told of the death and ended. */
inline check_death()
{
    if
    :: judged != RANKS ->
#ifndef FAULT_abort_before_death
        check_group_again();
#endif
        if
        :: !failed ->
            assert(judged == VICTIM && killed && state[judged] == DEAD);
            group_fail()
        :: else
        fi;
        judged = RANKS
    :: else
    fi
}

/* Any death, whether this operation needs that rank or not. */
inline check_deaths()
{
    look(PEER);
    if
    :: seen == DEAD -> judged = PEER
    :: else ->
        look(THIRD);
        if
        :: seen == DEAD -> judged = THIRD
        :: else
        fi
    fi;
    check_death()
}

/* Judges `left`, a rank that has left. */
inline check_left()
{
#ifndef FAULT_deaths_before_left
    check_deaths();
#endif
#ifndef FAULT_abort_before_left
    if
    :: !failed -> check_group_again()
    :: else
    fi;
#endif
    if
    :: !failed ->
        assert(newest[left] < at); /* it will never publish this */
        assert(left == VICTIM && !interrupted); /* and nothing made it go */
        if
#ifndef FAULT_left_in_silence
        :: ENTERED(at) -> group_fail()
#endif
#ifdef FAULT_left_poisons
        :: !ENTERED(at) -> group_fail()
#endif
        :: else -> failed = true /* this call alone fails, and this rank makes no further calls */
        fi
    :: else
    fi
}

/* check_members(): first deaths that matter, then the peer's departure, then the third rank's. The
 * peer's state is in `seen`. */
inline check_members()
{
    left = (seen == LEFT -> PEER : RANKS);
    judged = (seen == DEAD -> PEER : RANKS);
    if
    :: judged == RANKS ->
#ifdef FAULT_left_by_old_line
        latest = newest[THIRD];
        look(THIRD);
#else
        look(THIRD);
        latest = newest[THIRD];
#endif
        judged = (seen == DEAD && latest < CALL_LINE(at) -> THIRD : RANKS);
        left = (left == RANKS && seen == LEFT && latest < CALL_LINE(at) -> THIRD : left);
        latest = 0
    :: else
    fi;
    check_death();
    if
    :: !failed && left != RANKS -> check_left()
    :: else
    fi
}

/* wait_asleep(): until the peer has published `at`. */
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
    check_group();
    if
    :: !failed -> check_members()
    :: else
    fi;
    left = RANKS;
    seen = ALIVE
}

/* What ends a wait once a look has found nothing. All of it lasts, so the look after it must see
 * it: a wait that looks a third time would never end. */
#ifdef FAULT_life_ignored
#define GONE(rank) (state[rank] == DEAD)
#else
#define GONE(rank) (state[rank] == DEAD || (state[rank] == ALIVE && life[rank]))
#endif
#define NEWS \
    (newest[PEER] >= at || FAILED(at) || HAS_LEFT(PEER) || GONE(PEER) || \
     ((HAS_LEFT(THIRD) || GONE(THIRD)) && newest[THIRD] < CALL_LINE(at)))
#ifdef FAULT_leaving_is_alive
#define HAS_LEFT(rank) (state[rank] == LEFT)
#else
#define HAS_LEFT(rank) (state[rank] == LEFT || (state[rank] == LEAVING && life[rank]))
#endif

/* A death between two reads is a death before the next store: no rank can tell them apart. A rank that
 * is told of the death in another group leaves this one, and tells no rank. */
inline may_die()
{
    if
    :: me == VICTIM ->
        if
        :: killed = true;
            life[me] = true; /* set by the kernel, after the death */
            goto gone
        :: at == PUBLICATIONS -> /* earlier it would show nothing new */
            interrupted = true;
            group_fail();
            goto told
        :: true
        fi
    :: me != VICTIM && killed && life[VICTIM] -> swap_state(me, LEFT); goto over
    :: me != VICTIM
    fi
}

proctype Rank(byte me; byte root)
{
    byte at, turn, latest;
    byte judged = RANKS, left = RANKS;
    mtype seen = ALIVE;
    bool failed;
    for (at : 1 .. PUBLICATIONS) {
        may_die();
        if
        :: me == VICTIM ->
            left_inside = at == 2 || at == 3;
            if
            :: true -> swap_state(me, LEFT) /* shc_member_leave() */
            :: true -> swap_state(me, LEAVING) /* its process begins to end */
            fi;
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
            :: failed -> goto told
            :: else
            fi;
            NEWS; /* the ends of slices without it are left out */
            atomic { /* in single steps it would repeat the first look, begun later */
                look_once();
                assert(failed)
            };
            goto told;
there:
            seen = ALIVE
        }
        turn = 0
    }
    may_die();
    swap_state(me, LEFT);
    goto over;
told:
    if
    :: true -> goto gone /* no wait may need its departure to end */
    :: swap_state(me, LEFT)
    :: finder != 0 -> life[me] = true; goto gone /* it ends without a goodbye */
    fi;
over:
    if
    :: state[me] == LEFT || state[me] == LEAVING -> life[me] = true /* the process ends some time later */
    :: else
    fi;
gone:
    atomic { at = 0; turn = 0; failed = false; seen = ALIVE } /* fewer states */
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
