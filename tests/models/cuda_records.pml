/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The records of CUDA collectives: ranks that make different calls write no user's byte, and ranks that
 * make the same calls get no false alarm.
 *
 * Mirrors src/cuda_ipc/work.c, enqueue.c, lane.c and the gate kernel; docs/internals/cuda/rounds.md. A rank is
 * its CPU, which writes records ahead into a ring of two slots and enqueues, and its stream. A call takes
 * one round or two, so that streams which disagree meet in rounds of different operations. Arrivals are
 * counters, as in cuda_rounds. Data, failures and their ends are left to that model: a stream whose
 * gate was shut goes on as poison lets it, or stays.
 *
 * FAULT_no_flow           the CPU writes over a record without a look at which streams have read it
 * FAULT_own_flow          the CPU looks at its own stream alone
 * FAULT_done_early        a stream says done before its operation's gate
 * FAULT_record_late       the record is written after the operation has been enqueued
 * FAULT_gate_reopens      the gate of the next operation opens again
 * FAULT_gate_late         records are compared in an operation's last round
 */

#define RANKS 2
#define OPS   3
#define SLOTS 2
#define OTHER (1 - me)
#define SLOT(s) ((s) & 1)
#define RECORD(s, k) ((s) * 2 + (k))

typedef Rank {
    byte slot[SLOTS];
    byte queued;        /* operations that the CPU has enqueued */
    byte done;
    byte arrived;       /* the other's word here */
    bool shut;
}

Rank rank[RANKS];
byte call[2 * (OPS + 1)]; /* what each rank's user calls: rounds - 1 */
byte first = 99;          /* the first operation in which they differ */
#define DIFFER (first <= OPS)

#define CALL(r, s) call[(r) * (OPS + 1) + (s)]

#if defined(FAULT_no_flow)
#define ROOM(s) true
#elif defined(FAULT_own_flow)
#define ROOM(s) (rank[me].done + SLOTS >= s)
#else
#define ROOM(s) (rank[0].done + SLOTS >= s && rank[1].done + SLOTS >= s)
#endif

proctype Cpu(byte me)
{
    byte s = 1;
    do
    :: s > OPS -> break
    :: s <= OPS ->
#ifdef FAULT_gate_reopens
endc: /* the fault must show as something worse than a CPU that waits */
#endif
        if
        :: ROOM(s)
        :: rank[me].shut -> break /* the group has failed */
        fi;
#ifdef FAULT_record_late
        rank[me].queued = s;
        rank[me].slot[SLOT(s)] = RECORD(s, CALL(me, s));
#else
        rank[me].slot[SLOT(s)] = RECORD(s, CALL(me, s));
        rank[me].queued = s;
#endif
        s++
    od
}

/* One look of the gate kernel, which may come late. */
inline gate()
{
    atomic {
        if
        :: rank[OTHER].slot[SLOT(s)] != RECORD(s, CALL(me, s)) ->
            assert(DIFFER); /* otherwise it is a false alarm */
            rank[me].shut = true
        :: else ->
#ifdef FAULT_gate_reopens
            rank[me].shut = false
#else
            skip
#endif
        fi
    }
}

proctype Stream(byte me)
{
    byte s = 1, k = 0, i;
    do
    :: s > OPS -> break
    :: s <= OPS ->
end:    rank[me].queued >= s;
        for (i : 0 .. CALL(me, s)) {
            k++;
            rank[OTHER].arrived = k;
endw:       rank[me].arrived >= k || rank[me].shut; /* poison */
#ifdef FAULT_done_early
            rank[me].done = s;
#endif
#ifdef FAULT_gate_late
            if
            :: i == CALL(me, s) -> gate()
            :: else
            fi;
#else
            if
            :: i == 0 -> gate()
            :: else
            fi;
#endif
            if /* the user's bytes */
            :: !rank[me].shut -> assert(s < first)
            :: else
            fi
        }
        i = 0;
        rank[me].done = s;
        s++
    od
}

init
{
    byte s;
    atomic {
        for (s : 1 .. OPS) {
            if
            :: CALL(0, s) = 0
            :: CALL(0, s) = 1
            fi;
            if
            :: CALL(1, s) = CALL(0, s)
            :: CALL(1, s) = 1 - CALL(0, s);
               if
               :: first > s -> first = s
               :: else
               fi
            fi
        }
        s = 0;
        run Cpu(0);
        run Cpu(1);
        run Stream(0);
        run Stream(1)
    }
}
