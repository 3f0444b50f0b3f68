/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * CUDA collectives as rounds: what a stream reads of another rank is what that rank staged for this
 * round, also when a rank dies and poison ends waits.
 *
 * Mirrors src/cuda_ipc/work.c, enqueue.c, lane.c and watch.c; docs/internals/cuda/rounds.md. A rank is its stream
 * (the rounds of all operations, in order) and its watcher. Staging and reading take two steps each, so
 * that they overlap where they may. In every second round the half is filled by the reduction of the
 * round before, as in an all_reduce of two rounds. The last rank may die before any of its steps; then
 * its peer's watcher fails the group. A stream that stays in a wait is an invalid end state. Left out:
 * records, the routes' memory, several streams.
 *
 * FAULT_one_half             a rank has one half
 * FAULT_arrive_first         arrival is written before staging
 * FAULT_wait_for_last        a round waits for the arrivals of the one before
 * FAULT_no_wait              a round does not wait
 * FAULT_fill_early           the reduction fills the next half before the wait
 * FAULT_poison_first         waits are ended, then the group is marked as failed
 * FAULT_gate_blind           the gate does not look at the group's word
 * FAULT_stage_ungated        staging does not look at the gate
 * FAULT_poison_once          poison is written once
 */

#define RANKS  2
#define ROUNDS 4
#define POISON 99
#define TORN   77

#ifdef FAULT_one_half
#define HALF(k) 0
#else
#define HALF(k) ((k) & 1)
#endif

typedef Rank {
    byte half[2];     /* the round whose data it holds */
    byte arrived;     /* the other rank's word in this rank's memory */
    bool shut;        /* the gate */
    bool over;        /* the stream is idle */
    byte finished;    /* rounds whose gate was open */
}

Rank rank[RANKS];
bool failed;          /* the group's word */
bool dead;            /* the last rank */

#define OTHER    (1 - me)
#define DIES     (me == RANKS - 1)
#define FILLS(k) (((k) & 1) == 0) /* this round's half was filled by the one before */

/* Two steps, so that a reader may come between. */
inline write_half(k)
{
    rank[me].half[HALF(k)] = TORN;
    rank[me].half[HALF(k)] = k
}

#ifdef FAULT_stage_ungated
#define MAY_STAGE true
#else
#define MAY_STAGE (!rank[me].shut)
#endif

inline stage(k)
{
    if
    :: !FILLS(k) && MAY_STAGE -> write_half(k)
    :: else
    fi
}

inline fill_next(k)
{
    if
    :: FILLS(k + 1) && !rank[me].shut -> write_half(k + 1)
    :: else
    fi
}

#if defined(FAULT_no_wait)
#define REACHED(k) true
#elif defined(FAULT_wait_for_last)
#define REACHED(k) (rank[me].arrived >= (k) - 1)
#else
#define REACHED(k) (rank[me].arrived >= (k))
#endif

/* One look of the gate kernel at all words. */
inline gate(k)
{
    atomic {
        if
#ifndef FAULT_gate_blind
        :: failed -> rank[me].shut = true
#endif
        :: rank[me].arrived == POISON -> rank[me].shut = true
        :: else
        fi
    }
}

/* Looks at the other rank's half when the read begins and when it ends. A rank that reads something
 * else has given the user wrong data. That is allowed only if the group is known to have failed by
 * then. */
inline consume(k)
{
    if
    :: !rank[me].shut ->
        seen = rank[OTHER].half[HALF(k)];
        if
        :: rank[OTHER].half[HALF(k)] != seen -> seen = TORN
        :: else
        fi;
        assert(seen == k);
        rank[me].finished = k
    :: else
    fi;
    seen = 0
}

proctype Stream(byte me)
{
    byte k = 1, seen;
    do
    :: k > ROUNDS -> break
    :: k <= ROUNDS && DIES -> dead = true; goto gone
    :: k <= ROUNDS ->
#ifdef FAULT_arrive_first
        rank[OTHER].arrived = k;
        stage(k);
#else
        stage(k);
        if
        :: DIES -> dead = true; goto gone
        :: true
        fi;
        rank[OTHER].arrived = k;
#endif
#ifdef FAULT_fill_early
        fill_next(k);
#endif
        REACHED(k);
        gate(k);
#ifndef FAULT_fill_early
        fill_next(k);
#endif
        consume(k);
        k++
    od;
    rank[me].over = true;
    /* A stream that ends without a failure has done all rounds. */
    assert(failed || rank[me].finished == ROUNDS);
gone:
    skip
}

/* Sees the death, or the group's failure; fails the group; poisons until its stream is idle. */
proctype Watcher(byte me)
{
    if
    :: dead && !DIES
    :: failed
    :: rank[me].over -> goto over
    :: dead && DIES -> goto over
    fi;
#ifdef FAULT_poison_first
    rank[me].arrived = POISON;
#endif
    failed = true;
    do
    :: rank[me].over -> break
    :: dead && DIES -> break
    :: else ->
        if
        :: !rank[me].over && rank[me].arrived != POISON -> rank[me].arrived = POISON
        :: rank[me].over || (dead && DIES)
        fi;
#ifdef FAULT_poison_once
        break
#endif
    od;
over:
    skip
}

/* A rank aborts, at any time or never: a live rank goes on writing meanwhile. */
proctype Abort()
{
    if
    :: failed = true
    :: true
    fi
}

init
{
    atomic {
        run Stream(0);
        run Stream(1);
        run Watcher(0);
        run Watcher(1);
        run Abort()
    }
}
