/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Captured operations: every replay waits for the same values again, so a rank's gate sets its words
 * back. What a stream reads of another rank is what that rank staged for this round, no arrival is
 * lost or taken twice, and every stream ends, also when the group fails at any time.
 *
 * Mirrors src/cuda_ipc/capture.c, lane.c and the gate of kernel/bodies.cuh;
 * docs/internals/cuda/captured.md. A rank is its stream (replays of an operation of two rounds) and its
 * watcher. The gate looks and stores in two steps, so that poison may come between. The group may fail
 * at any time; the watcher of each rank then poisons while its stream is busy. A replay is launched
 * after a failure, too. A stream that stays in a wait is an invalid end state. Left out: values that
 * tell calls apart, memory of the routes, eager operations (they share nothing but the abort word).
 *
 * FAULT_one_parity      all rounds use the same words
 * FAULT_odd_rounds      an operation has one round: parity does not alternate
 * FAULT_no_reset        the gate leaves the words as they are
 * FAULT_reset_late      words are set back after the next arrival
 * FAULT_one_half        all rounds use the same half
 * FAULT_gate_blind      the gate does not look at the group's word
 * FAULT_poison_once     poison is written once
 * FAULT_poison_first    waits are ended, then the group is marked as failed
 */

#define REPLAYS 2
#define POISON  9
#define TORN    77

#ifdef FAULT_odd_rounds
#define ROUNDS 3
#else
#define ROUNDS 2
#endif
#ifdef FAULT_one_parity
#define PARITY 0
#else
#define PARITY (k & 1)
#endif
#ifdef FAULT_one_half
#define HALF 0
#else
#define HALF (k & 1)
#endif

typedef Rank {
    byte word[2]; /* by parity: the other rank writes 1, this one's gate 0 */
    byte half[2]; /* the replay and round whose data it holds: 10 * replay + round */
    bool shut;
    bool busy;
    bool over;
    byte finished; /* replays that were carried out */
}

Rank rank[2];
bool failed; /* the group's word */

#define OTHER (1 - me)
#define DATA  (10 * replay + k + 1)

/* Two steps, so that a reader may come between. */
inline stage()
{
    if
    :: !rank[me].shut ->
        rank[me].half[HALF] = TORN;
        rank[me].half[HALF] = DATA
    :: else
    fi
}

inline reset()
{
#ifndef FAULT_no_reset
    rank[me].word[PARITY] = 0
#else
    skip
#endif
}

/* Looks at the word, then at the group's word; stores the verdict in a step of its own. */
inline gate()
{
    atomic {
        opens = (!rank[me].shut && rank[me].word[PARITY] == 1);
#ifndef FAULT_gate_blind
        opens = opens && !failed
#endif
    }
    if
    :: opens ->
#ifndef FAULT_reset_late
        reset()
#else
        skip
#endif
    :: else ->
        rank[me].shut = true
    fi
}

/* Looks at the half when the read begins and when it ends. */
inline consume()
{
    if
    :: !rank[me].shut ->
        seen = rank[OTHER].half[HALF];
        if
        :: rank[OTHER].half[HALF] != seen -> seen = TORN
        :: else
        fi;
        assert(seen == DATA)
    :: else
    fi;
    seen = 0
}

proctype Stream(byte me)
{
    byte replay, k, seen;
    bool opens;
    do
    :: replay == REPLAYS -> break
    :: else ->
        rank[me].busy = true;
        k = 0;
        do
        :: k == ROUNDS -> break
        :: else ->
            stage();
            rank[OTHER].word[PARITY] = 1;
#ifdef FAULT_reset_late
            if
            :: opens && (replay > 0 || k > 0) -> rank[me].word[1 - PARITY] = 0
            :: else
            fi;
#endif
            rank[me].word[PARITY] >= 1; /* poison, too */
            gate();
            consume();
            k++
        od;
        rank[me].busy = false;
        if
        :: !rank[me].shut -> rank[me].finished++
        :: else
        fi;
        replay++
    od;
    rank[me].over = true;
    assert(failed || rank[me].finished == REPLAYS)
}

inline poison()
{
    rank[me].word[0] = POISON;
    rank[me].word[1] = POISON
}

/* Learns that the group has failed; poisons whenever a replay is under way. */
proctype Watcher(byte me)
{
    if
    :: failed
    :: rank[me].over && !failed -> goto over
    fi;
    poison();
    do
    :: rank[me].over -> break
#ifndef FAULT_poison_once
    :: rank[me].busy && (rank[me].word[0] == 0 || rank[me].word[1] == 0) -> poison()
#endif
    od;
over:
    skip
}

/* A rank fails the group, at any time or never: first the word, then its own waits. */
proctype Abort(byte me)
{
    if
    :: true ->
#ifdef FAULT_poison_first
        poison();
#endif
        failed = true
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
        run Abort(1)
    }
}
