/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Survivors: the ranks of a group that are left agree about who that is, though two of them may die at
 * any step.
 *
 * Mirrors python/shmcoll/_shrink.py; docs/internals/protocol/survivors.md, SHRINK-1 to SHRINK-5. There
 * are three ranks, all of which call. Each has its own view of who is gone, which may be old. Making a
 * group is one step for each rank and one decision (bootstrap.pml has it in full). It may fail when a rank
 * of it is seen to be gone. In a round two groups are made one after the other: that of the time between, and
 * the new one, which fails only where the one before is there to tell of a death. When the second fails, the
 * ranks begin again with those of the first one, in keys of their own: here that is the next round. Left
 * out: time limits, and a store that lies or is gone.
 *
 * FAULT_last_wins          a proposal takes the place of an earlier one
 * FAULT_nobody_waited_for  a rank proposes those that have come
 * FAULT_failed_stays       a round that has failed is not left
 * FAULT_deaths_ignored     making the first group takes no notice of deaths
 * FAULT_nothing_between    making the second one does not
 */

#define RANKS  3
#define ROUNDS 3 /* two ranks die at most */
#define ALL    7
#define BIT(rank) (1 << (rank))

mtype = { NOTHING, OK, FAILED };

/* The store. */
byte came[ROUNDS];
byte left[ROUNDS]; /* 0: not decided */
bool failed[ROUNDS];

/* The two groups of a round: which ranks have come to it, and what is decided. */
byte joined[2 * ROUNDS];
mtype made[2 * ROUNDS] = NOTHING;

byte dead;
byte result[RANKS]; /* the ranks of its new group; 0: none yet */

#ifdef FAULT_deaths_ignored
#define SEEN(second) (second && (members & dead))
#else
#ifdef FAULT_nothing_between
#define SEEN(second) (!second && (members & dead))
#else
#define SEEN(second) (members & dead)
#endif
#endif

#define GROUP(second) (2 * round + second)

inline make_group(second)
{
    joined[GROUP(second)] = joined[GROUP(second)] | BIT(me);
    if
    :: atomic {
            made[GROUP(second)] == NOTHING && (joined[GROUP(second)] & members) == members ->
            made[GROUP(second)] = OK
        }
    :: atomic { made[GROUP(second)] == NOTHING && SEEN(second) -> made[GROUP(second)] = FAILED }
    :: made[GROUP(second)] != NOTHING
    fi
}

inline agree()
{
    do
    :: round < ROUNDS - 1 && failed[round] -> round++
    :: else -> break
    od;
    came[round] = came[round] | BIT(me);
    do
    :: left[round] != 0 && !failed[round] -> break
#ifndef FAULT_failed_stays
    :: failed[round] ->
        round++;
        came[round] = came[round] | BIT(me)
#endif
    :: left[round] == 0 && !failed[round] && gone != (dead & members) -> gone = dead & members
    :: left[round] == 0 && !failed[round] &&
#ifdef FAULT_nobody_waited_for
       (came[round] & ~gone) != 0 -> wish = came[round] & ~gone;
#else
       ((came[round] | gone) & members) == members -> wish = members & ~gone;
#endif
        atomic {
            if
#ifdef FAULT_last_wins
            :: true -> left[round] = wish
#else
            :: left[round] == 0 -> left[round] = wish
            :: else
#endif
            fi;
            wish = 0
        }
    od;
    members = left[round];
    assert(members & BIT(me)) /* nobody that is alive is left behind */
}

proctype Rank(byte me)
{
    byte round, gone, wish;
    byte members = ALL, before = ALL;
    {
        do
        :: members = before;
            agree();
            make_group(0);
            if
            :: made[GROUP(0)] == FAILED -> failed[round] = true
            :: made[GROUP(0)] == OK ->
                make_group(1);
                if
                :: made[GROUP(1)] == FAILED ->
                    before = members;
                    round++
                :: made[GROUP(1)] == OK ->
                    result[me] = members;
                    break
                fi
            fi
        od
    } unless { dead & BIT(me) }
}

active proctype Killer()
{
    byte victim;
    if
    :: select(victim : 0 .. RANKS - 1); dead = dead | BIT(victim)
    :: true
    fi;
    if
    :: select(victim : 0 .. RANKS - 1); dead = dead | BIT(victim)
    :: true
    fi
}

#define ENDED(rank) ((dead & BIT(rank)) || result[rank] != 0)

active proctype Judge()
{
    ENDED(0) && ENDED(1) && ENDED(2);
    byte one, other;
    for (one : 0 .. RANKS - 1) {
        for (other : 0 .. RANKS - 1) {
            assert(result[one] == 0 || result[other] == 0 || result[one] == result[other])
        }
    }
}

init
{
    atomic {
        run Rank(0);
        run Rank(1);
        run Rank(2)
    }
}
