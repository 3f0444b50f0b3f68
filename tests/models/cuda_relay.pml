/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * CUDA collectives through the relay: what is copied back to a user's tensor is the right result of
 * that operation or the tensor's own bytes, also when a rank dies, when ranks call different
 * operations, and when the group fails at any time while streams go on with what is enqueued.
 *
 * Mirrors the relay of src/cuda_ipc; docs/internals/cuda/relay.md. A rank is its stream and its relay
 * thread. Two ranks have three operations, sums in one round or in two; or three ranks have one in two
 * rounds and one in one. Operations are in place in turn: where one rank's is, the next rank's is not.
 * In the last operation but one the last rank may call something else, in one round, in two, or not
 * through the relay. The last rank may die at any step, or the group may fail at any time; with three
 * ranks, not where calls differ. A half or a result holds 2s, a rank's own bytes in operation s, or
 * 2s + 1, the result of all ranks' bytes. To fill a half or a result and to read halves takes two steps,
 * so that they overlap where they may. A stream or thread that stays in a wait is an invalid end state.
 * Left out: the rounds of operations that do not go through the relay (a rank in one waits for poison),
 * the ring of records (cuda_records), operations whose enqueuing broke off.
 *
 * FAULT_look_ahead        a relay looks at the abort word before the arrivals alone
 * FAULT_look_first        a relay looks at the abort word after the arrivals, and not after its read:
 *                         meanwhile another rank may have failed two operations and stage over what
 *                         is read
 * FAULT_relay_deaf        a relay that waits does not look at the abort word
 * FAULT_arrive_first      a stream arrives, then stages
 * FAULT_one_half          a rank has one half
 * FAULT_no_second_wait    a sum in two rounds waits for the first alone
 * FAULT_release_first     a relay releases its stream, then decides
 * FAULT_release_unstaged  a relay that fails an operation does not wait for its own stream's arrival
 * FAULT_no_refill         a relay that fails an operation in place does not put back what was staged
 * FAULT_one_cell          out of place, the tensor's bytes are kept where the result will be
 * FAULT_poison_released   a watcher ends its stream's wait
 * FAULT_records_early     records are compared before all of them are there
 */

#define TORN   77
#define POISON 99

#ifdef FAULT_one_half
#define HALF(m) 0
#else
#define HALF(m) ((m) & 1)
#endif

typedef Rank {
    byte half[2];
    byte arrived;
    byte released;
    byte result;   /* what will be copied back */
    byte old;      /* out of place: the tensor's own bytes */
    bool recorded; /* records of all its calls are there, and the calls are enqueued */
}

mtype = { NOTHING, ABORT, DEATH };

Rank rank[3];
bool aborted; /* the group's word */
bool dead;    /* the last rank */

/* Chosen once. */
byte ranks;
byte first, second; /* the rounds of operations 1 and 2; a third has one */
byte differs;       /* the operation in which the last rank makes another call, or 0 */
byte otherwise;     /* its rounds there; 0: not through the relay */
mtype trouble;

#define OPS         (5 - ranks)
#define LAST(r)     ((r) == ranks - 1)
#define DIES        (LAST(me) && dead)
#define SAME(s)     ((s) == 1 -> first : ((s) == 2 -> second : 1))
#define ROUNDS(s)   (LAST(me) && (s) == differs -> otherwise : SAME(s))
#define IN_PLACE(s) ((((s) + me) & 1) == 1)
#define OWN(s)      (2 * (s))
#define RESULT(s)   (2 * (s) + 1)

#define ALL(is, k)    (is(0, k) && is(1, k) && (ranks == 2 || is(2, k)))
#define RECORDED(r, s) rank[r].recorded
#define ARRIVED(r, m) (rank[r].arrived >= (m))
#define HALF_0_IS(r, what) (rank[r].half[0] == (what))
#define HALF_1_IS(r, what) (rank[r].half[HALF(1)] == (what))
/* All halves of round m. */
#define ALL_HOLD(m, what) (HALF(m) == 0 -> ALL(HALF_0_IS, what) : ALL(HALF_1_IS, what))

/* ---- the stream ---- */

/* Staging and arrival are one step: no other rank sees a difference. */
inline stage()
{
#ifdef FAULT_arrive_first
    rank[me].arrived = m;
#endif
    rank[me].half[HALF(m)] = TORN;
    d_step {
        rank[me].half[HALF(m)] = OWN(s);
        if
        :: IN_PLACE(s)
        :: else ->
#ifdef FAULT_one_cell
            rank[me].result = OWN(s)
#else
            rank[me].old = OWN(s)
#endif
        fi;
        rank[me].arrived = m
    }
}

inline copy_back()
{
    atomic {
        rank[me].released >= s;
        assert(rank[me].result == RESULT(s) || (aborted && rank[me].result == OWN(s)));
        assert(differs == 0 || s < differs || rank[me].result == OWN(s));
        m = m + ROUNDS(s);
        s++
    }
}

proctype Stream(byte me)
{
    byte s = 1, m = 1;
    {
        do
        :: !rank[me].recorded -> rank[me].recorded = true
        :: rank[me].recorded && s <= OPS && ROUNDS(s) != 0 ->
            stage();
            copy_back()
        :: rank[me].recorded && s <= OPS && ROUNDS(s) == 0 && aborted -> /* poison */
            s++
        :: s > OPS -> break
        od;
        assert(differs == 0 || aborted)
    } unless { DIES }
}

/* ---- the relay thread ---- */

/* Waits for round k and begins to read. Records come before arrivals. Arrivals stay: a relay that has
 * seen them all, and then looks at the abort word, has seen both at once. */
inline meet(k, what, to)
{
#ifdef FAULT_look_ahead
    fails = aborted;
#endif
    atomic {
        if
#ifdef FAULT_records_early
        :: ALL(ARRIVED, k)
#else
        :: s != differs && ALL(ARRIVED, k)
        :: s == differs && ALL(RECORDED, s) -> aborted = true /* the error says which rank called what */
#endif
#ifndef FAULT_relay_deaf
        :: aborted
#endif
        fi;
#ifndef FAULT_look_ahead
        fails = aborted;
#endif
        begin_reading(k, what, to)
    }
}

inline begin_reading(k, what, to)
{
    if
    :: fails
    :: else ->
        good = ALL_HOLD(k, what);
        to = TORN
    fi
}

/* `to` gets the result of all that was read, which must stay there to the end. */
inline end_reading(k, what, to)
{
    good = good && ALL_HOLD(k, what);
    to = (good -> RESULT(s) : TORN)
}

inline release()
{
    rank[me].released = s;
    m = m + ROUNDS(s);
    s++;
    good = false;
    fails = false
}

/* What will be copied back is what is in the result. */
inline put_back()
{
    atomic {
#ifndef FAULT_release_unstaged
        rank[me].arrived >= m;
#endif
        if
        :: IN_PLACE(s) ->
#ifdef FAULT_no_refill
            skip
#else
            rank[me].result = rank[me].half[HALF(m)]
#endif
        :: else ->
#ifdef FAULT_one_cell
            skip
#else
            rank[me].result = rank[me].old
#endif
        fi;
        release()
    }
}

/* A sum in two rounds: the own slice, which all fetch in the next round. */
inline sum_ahead()
{
    meet(m, OWN(s), rank[me].half[HALF(m + 1)]);
    if
    :: fails
    :: else ->
        d_step {
            end_reading(m, OWN(s), rank[me].half[HALF(m + 1)]);
            rank[me].arrived = m + 1
        }
#ifdef FAULT_no_second_wait
        d_step {
            begin_reading(m + 1, RESULT(s), rank[me].result)
        }
#else
        meet(m + 1, RESULT(s), rank[me].result)
#endif
    fi
}

inline relay()
{
#ifdef FAULT_records_early
    if
    :: s == differs && ALL(RECORDED, s) -> aborted = true
    :: else
    fi;
#endif
    if
    :: ROUNDS(s) == 1 -> meet(m, OWN(s), rank[me].result)
    :: ROUNDS(s) == 2 -> sum_ahead()
    fi;
#ifdef FAULT_release_first
    rank[me].released = s;
#endif
    atomic {
        if
        :: fails
        :: !fails && ROUNDS(s) == 1 -> end_reading(m, OWN(s), rank[me].result)
        :: !fails && ROUNDS(s) == 2 -> end_reading(m + 1, RESULT(s), rank[me].result)
        fi;
#if !defined(FAULT_look_first) && !defined(FAULT_look_ahead)
        fails = fails || aborted; /* also looked at after all that was read */
#endif
        if
        :: fails
        :: else -> /* this operation is carried out */
            assert(good && s != differs);
            release()
        fi
    }
    if
    :: fails -> put_back()
    :: else
    fi
}

proctype Relay(byte me)
{
    byte s = 1, m = 1;
    bool good, fails;
    {
        do
        :: s <= OPS && ROUNDS(s) != 0 -> relay()
        :: s <= OPS && ROUNDS(s) == 0 -> s++
        :: s > OPS -> break
        od
    } unless { DIES }
}

/* ---- the others ---- */

/* Sees that a rank has died; or a deadline is over, or a rank aborts. */
proctype Watcher()
{
end:
    if
    :: trouble == ABORT
    :: trouble == DEATH -> dead = true
    fi;
    aborted = true;
#ifdef FAULT_poison_released
    rank[0].released = POISON
#endif
}

init
{
    atomic {
        select(ranks : 2 .. 3);
        if
        :: ranks == 2 ->
            select(first : 1 .. 2);
            select(second : 1 .. 2)
        :: ranks == 3 ->
            first = 2;
            second = 1
        fi;
        if
        :: true ->
            differs = OPS - 1;
            select(otherwise : 0 .. 2)
        :: true -> /* then records tell nothing */
            rank[0].recorded = true;
            rank[1].recorded = true;
            rank[2].recorded = true
        fi;
        if
        :: trouble = NOTHING
        :: differs == 0 || ranks == 2 -> trouble = ABORT
        :: differs == 0 || ranks == 2 -> trouble = DEATH
        fi;
        run Stream(0);
        run Relay(0);
        run Stream(1);
        run Relay(1);
        if
        :: ranks == 3 ->
            run Stream(2);
            run Relay(2)
        :: ranks == 2
        fi;
        run Watcher()
    }
}
