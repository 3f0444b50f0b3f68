/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Exchange slots of a pair: the reader of a cell is its next writer, and no flag says so.
 *
 * Mirrors run_pipeline() and run_unpipelined() of src/shm/coll/allreduce.c, run_root() and run_owner()
 * of src/shm/coll/reduce.c, and shc_swap_begin() and shc_swap_run() of src/shm/coll/flow.c, with
 * the cells of src/shm/proto/arena.h; docs/internals/protocol.md, STAGE-1 to STAGE-12 and STAGE-15.
 * Two ranks make OPS operations. The first rank to get there chooses each one:
 * - one use of a cell: a direct exchange (swap) of one chunk that was begun before the call line;
 * - longer swaps, begun early or, as while there is no arena yet, late;
 * - a swap that was begun with no bytes and is not run, as where no rank gives anything;
 * - out, work, back for 1, DEPTH or DEPTH + 1 chunks, or unpipelined (unpipelined) for 1 or 3;
 * - a reduce by reduce-scatter and gather (spread), for 1 or DEPTH + 1, whose root is either of them,
 *   or a third rank;
 * - a one-way flow, which no operation of the code has yet: there the giver waits for the reader's
 *   step of the slot's use before.
 * Every read is compared with what should be in the cell, so a store that comes too early shows,
 * whether the last content was read or not.
 *
 * Or rank 0 stores into a broadcast slot: after the meeting it fills the slot, which lies over both
 * cells of the last exchange slot, and ends without a look at the reader. (Before the meeting it may do
 * so only where no cells were used in the operation before: bcast_slot.pml.)
 *
 * FAULT_no_swap        one side does not swap the cells after a one-use operation
 * FAULT_reads_own      the own cell is read again after its publication
 * FAULT_one_way        the giver of a one-way flow does not look at the reader's step
 * FAULT_early_reuse    out(k) runs one chunk further ahead than there are slots
 * FAULT_work_unready   work(k) does not wait for the peer's out(k)
 * FAULT_back_unready   back(k) does not wait for the peer's work(k)
 * FAULT_unpipelined_steps an unpipelined operation counts steps as the pipeline does
 * FAULT_spread_swaps   an owner swaps its cells with the root as it does with other owners
 * FAULT_spread_unready the root takes results without a look at the owner's work(k)
 * FAULT_spread_unasked an owner works without a look at the root's out(k)
 * FAULT_spread_early   the root gives one chunk more than there are slots before it takes
 * FAULT_swap_early     a swap gives one chunk more than there are slots before it reads
 * FAULT_swap_unready   a swap reads without a look at the peer's out(k)
 * FAULT_swap_unmet     a swap that was begun reads chunk 0 before the meeting
 * FAULT_begun_swaps    one side swaps the cells of a swap that is not run
 * FAULT_begun_differs  one side begins a swap, the other is late
 * FAULT_swap_keeps     a swap stores chunk k + DEPTH into its own cell again
 * FAULT_bcast_slot_at_zero  a broadcast slot lies over the cells of slot 0
 * FAULT_bcast_slot_unmet    a broadcast slot is filled before the meeting
 */

#define OPS   3
#define DEPTH 2
#ifdef FAULT_early_reuse
#define AHEAD (DEPTH + 1)
#else
#define AHEAD DEPTH
#endif

#ifdef FAULT_swap_early
#define GIVEN (DEPTH + 1)
#else
#define GIVEN DEPTH
#endif

mtype = { UNKNOWN, ONE_USE, TWO_USES, UNPIPELINED, SPREAD_1, SPREAD_0, OWNERS, SWAPS, LATE_SWAPS, BEGUN_ONLY,
          ONE_WAY, BCAST_SLOT };
#define IS_SPREAD (kind[epoch] == SPREAD_0 || kind[epoch] == SPREAD_1) /* the rank that is the root */
mtype kind[OPS + 1] = UNKNOWN;
byte chunks[OPS + 1];

byte call[2];           /* the newest epoch published */
byte progress[2];       /* epoch * 32 + step */
byte cell[DEPTH * 2];   /* TAG of what is in it */
bit parity[2 * DEPTH];  /* private: struct shc_arena's, of rank 0 and of rank 1 */

#define P(step)      (epoch * 32 + (step))
#ifdef FAULT_unpipelined_steps
#define LOCKED       false
#else
#define LOCKED       (kind[epoch] == UNPIPELINED)
#endif
#define STEP_OUT(k)  (LOCKED -> 2 * (k) + 1 : ((k) == 0 -> 1 : 2 * (k)))
#define STEP_WORK(k) (LOCKED -> 2 * (k) + 2 : 2 * (k) + 3)

/* What is in a cell: input (use 1) or result (use 2) of a chunk, and the rank that stored it. */
#define TAG(k, use, who) (epoch * 64 + (k) * 4 + ((use) - 1) * 2 + (who))

#define SLOT(k)       (kind[epoch] == UNPIPELINED -> 0 : (k) % DEPTH)
#define NEXT(k)       ((k) + (kind[epoch] == UNPIPELINED -> 1 : AHEAD))
#define WRITE_CELL(k) cell[2 * SLOT(k) + (parity[me * DEPTH + SLOT(k)] ^ (me == 1))]
#define READ_CELL(k)  cell[2 * SLOT(k) + (parity[me * DEPTH + SLOT(k)] ^ (me == 0))]
#define SWAP(k)       parity[me * DEPTH + SLOT(k)] = !parity[me * DEPTH + SLOT(k)]
#define PEER          (1 - me)

#ifdef FAULT_bcast_slot_at_zero
#define OVER 0
#else
#define OVER (DEPTH - 1)
#endif

inline choose()
{
    atomic {
        if
        :: kind[epoch] == UNKNOWN ->
            if
            :: kind[epoch] = ONE_USE
            :: kind[epoch] = TWO_USES
            :: kind[epoch] = UNPIPELINED
            :: kind[epoch] = SPREAD_1
            :: kind[epoch] = SPREAD_0
            :: kind[epoch] = OWNERS
            :: kind[epoch] = SWAPS
            :: kind[epoch] = LATE_SWAPS
            :: kind[epoch] = BEGUN_ONLY
            :: kind[epoch] = ONE_WAY
            :: kind[epoch] = BCAST_SLOT
            fi;
            if
            :: kind[epoch] == TWO_USES -> chunks[epoch] = 1
            :: kind[epoch] == TWO_USES -> chunks[epoch] = DEPTH
            :: kind[epoch] == TWO_USES -> chunks[epoch] = DEPTH + 1
            :: kind[epoch] == UNPIPELINED -> chunks[epoch] = 1
            :: kind[epoch] == UNPIPELINED -> chunks[epoch] = 3
            :: IS_SPREAD || kind[epoch] == OWNERS -> chunks[epoch] = 1
            :: IS_SPREAD || kind[epoch] == OWNERS -> chunks[epoch] = DEPTH + 1
            :: kind[epoch] == SWAPS || kind[epoch] == LATE_SWAPS -> chunks[epoch] = 1
            :: kind[epoch] == SWAPS || kind[epoch] == LATE_SWAPS -> chunks[epoch] = DEPTH + 1
            :: kind[epoch] == SWAPS || kind[epoch] == LATE_SWAPS -> chunks[epoch] = 2 * DEPTH + 1
            :: kind[epoch] == ONE_WAY -> chunks[epoch] = 2 * DEPTH + 1
            :: else
            fi
        :: else
        fi
    }
}

inline enter() { call[me] = epoch }
inline meet() { call[PEER] >= epoch }

inline run_one_use()
{
    WRITE_CELL(0) = TAG(0, 1, me);
    enter();
    meet();
    assert(READ_CELL(0) == TAG(0, 1, PEER));
#ifdef FAULT_reads_own
    assert(WRITE_CELL(0) == TAG(0, 1, me));
#endif
#ifdef FAULT_no_swap
    if
    :: me == 0 -> SWAP(0)
    :: else
    fi
#else
    SWAP(0)
#endif
}

inline stage_out(k)
{
    WRITE_CELL(k) = TAG(k, 1, me);
    progress[me] = P(STEP_OUT(k))
}

inline work(k)
{
#ifndef FAULT_work_unready
    progress[PEER] >= P(STEP_OUT(k));
#endif
    assert(READ_CELL(k) == TAG(k, 1, PEER));
    SWAP(k);
    WRITE_CELL(k) = TAG(k, 2, me); /* the cell just read */
    progress[me] = P(STEP_WORK(k))
}

/* back(k), and in the same pass out(NEXT(k)) into the cell just read. */
inline take_back(k)
{
#ifndef FAULT_back_unready
    progress[PEER] >= P(STEP_WORK(k));
#endif
    assert(READ_CELL(k) == TAG(k, 2, PEER));
    SWAP(k);
    if
    :: NEXT(k) < chunks[epoch] ->
        WRITE_CELL(k) = TAG(NEXT(k), 1, me);
        progress[me] = P(STEP_OUT(NEXT(k)))
    :: else
    fi
}

inline run_pipeline()
{
    enter();
    for (turn : 0 .. chunks[epoch] + AHEAD - 1) {
        if
        :: turn >= AHEAD -> take_back(turn - AHEAD)
        :: turn < AHEAD && turn < chunks[epoch] -> stage_out(turn)
        :: else
        fi;
        if
        :: turn == 0 -> meet()
        :: turn > 0 && turn <= chunks[epoch] -> work(turn - 1)
        :: else
        fi
    }
    turn = 0
}

inline run_unpipelined()
{
    enter();
    stage_out(0);
    meet();
    for (turn : 0 .. chunks[epoch] - 1) {
        work(turn);
        take_back(turn)
    }
    turn = 0
}

/* An owner shows out(k) for the other owners; between it and the root only the root's cell is used. */
inline spread_own()
{
    for (turn : 0 .. chunks[epoch]) {
        if
        :: turn < chunks[epoch] -> progress[me] = P(STEP_OUT(turn))
        :: else
        fi;
        if
        :: turn == 0 -> meet()
        :: else ->
#ifndef FAULT_spread_unasked
            progress[PEER] >= P(STEP_OUT(turn - 1));
#endif
            assert(READ_CELL(turn - 1) == TAG(turn - 1, 1, PEER));
            READ_CELL(turn - 1) = TAG(turn - 1, 2, me);
#ifdef FAULT_spread_swaps
            SWAP(turn - 1);
#endif
            progress[me] = P(STEP_WORK(turn - 1))
        fi
    }
    turn = 0
}

#ifdef FAULT_spread_early
#define SPREAD_AHEAD (DEPTH + 1)
#else
#define SPREAD_AHEAD DEPTH
#endif

inline spread_root()
{
    for (turn : 0 .. SPREAD_AHEAD - 1) {
        if
        :: turn < chunks[epoch] -> stage_out(turn)
        :: else
        fi;
        if
        :: turn == 0 -> meet()
        :: else
        fi
    }
    for (turn : 0 .. chunks[epoch] - 1) {
#ifndef FAULT_spread_unready
        progress[PEER] >= P(STEP_WORK(turn));
#endif
        assert(WRITE_CELL(turn) == TAG(turn, 2, PEER));
        if
        :: turn + SPREAD_AHEAD < chunks[epoch] -> stage_out(turn + SPREAD_AHEAD)
        :: else
        fi
    }
    turn = 0
}

/* Two owners that are not the root: one use for each chunk, while the next chunk is on its way. */
inline run_owners()
{
    enter();
    for (turn : 0 .. chunks[epoch]) {
        if
        :: turn < chunks[epoch] -> stage_out(turn)
        :: else
        fi;
        if
        :: turn == 0 -> meet()
        :: else ->
            progress[PEER] >= P(STEP_OUT(turn - 1));
            assert(READ_CELL(turn - 1) == TAG(turn - 1, 1, PEER));
            SWAP(turn - 1);
            progress[me] = P(STEP_WORK(turn - 1))
        fi
    }
    turn = 0
}

inline run_spread()
{
    enter();
    if
    :: me == (kind[epoch] == SPREAD_0) -> spread_own()
    :: else -> spread_root()
    fi
}

/* shc_swap_run(): chunk k + DEPTH goes into the cell that chunk k was read from. Begun: the call
 * line announces chunk 0. */
inline run_swap(begun)
{
    if
    :: begun -> WRITE_CELL(0) = TAG(0, 1, me)
    :: else
    fi;
    enter();
#ifndef FAULT_swap_unmet
    meet();
#endif
    for (turn : 0 .. GIVEN - 1) {
        if
        :: turn >= begun && turn < chunks[epoch] -> stage_out(turn)
        :: else
        fi
    }
    for (turn : 0 .. chunks[epoch] - 1) {
#ifndef FAULT_swap_unready
        (begun && turn == 0) || progress[PEER] >= P(STEP_OUT(turn));
#endif
        assert(READ_CELL(turn) == TAG(turn, 1, PEER));
#ifndef FAULT_swap_keeps
        SWAP(turn);
#endif
        if
        :: turn + GIVEN < chunks[epoch] -> stage_out(turn + GIVEN)
        :: else
        fi
    }
    turn = 0
}

inline begin_only()
{
    enter();
    meet();
#ifdef FAULT_begun_swaps
    if
    :: me == 0 -> SWAP(0)
    :: else
    fi
#endif
}

/* Rank 0 gives, rank 1 reads; both swap at every use. */
inline run_one_way()
{
    enter();
    meet();
    for (turn : 0 .. chunks[epoch] - 1) {
        if
        :: me == 0 ->
#ifndef FAULT_one_way
            turn < DEPTH || progress[1] >= P(STEP_WORK(turn - DEPTH));
#endif
            WRITE_CELL(turn) = TAG(turn, 1, 0);
            progress[0] = P(STEP_OUT(turn))
        :: me == 1 ->
            progress[0] >= P(STEP_OUT(turn));
            assert(READ_CELL(turn) == TAG(turn, 1, 0));
            progress[1] = P(STEP_WORK(turn))
        fi;
        SWAP(turn)
    }
    turn = 0
}

/* shc_flow_run(), one chunk. */
inline run_bcast_slot()
{
    enter();
#ifndef FAULT_bcast_slot_unmet
    meet();
#endif
    if
    :: me == 0 ->
        cell[2 * OVER] = TAG(0, 1, 0);
        cell[2 * OVER + 1] = TAG(0, 1, 0);
        progress[0] = P(STEP_OUT(0));
    :: me == 1 ->
        progress[0] >= P(STEP_OUT(0));
        assert(cell[2 * OVER] == TAG(0, 1, 0));
        assert(cell[2 * OVER + 1] == TAG(0, 1, 0));
        progress[1] = P(STEP_WORK(0))
    fi
}

proctype Rank(bit me)
{
    byte epoch, turn;
    for (epoch : 1 .. OPS) {
        choose();
        if
        :: kind[epoch] == ONE_USE -> run_one_use()
        :: kind[epoch] == TWO_USES -> run_pipeline()
        :: kind[epoch] == UNPIPELINED -> run_unpipelined()
        :: IS_SPREAD -> run_spread()
        :: kind[epoch] == OWNERS -> run_owners()
#ifdef FAULT_begun_differs
        :: kind[epoch] == SWAPS -> run_swap(me)
#else
        :: kind[epoch] == SWAPS -> run_swap(1)
#endif
        :: kind[epoch] == LATE_SWAPS -> run_swap(0)
        :: kind[epoch] == BEGUN_ONLY -> begin_only()
        :: kind[epoch] == ONE_WAY -> run_one_way()
        :: kind[epoch] == BCAST_SLOT -> run_bcast_slot()
        fi
    }
}

init
{
    atomic {
        run Rank(0);
        run Rank(1)
    }
}
