/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Broadcast slots: a slot is refilled only when every reader has taken the chunk before.
 *
 * Mirrors shc_flow_run() of src/shm/coll/flow.c with an arena; docs/internals/protocol.md,
 * STAGE-13 to STAGE-22. Three ranks make OPS operations, which follow one another without a look:
 * the next begins while readers may be at the end of the last. The first rank to get there chooses
 * the operation (a broadcast from rank 0, its reverse, an all-gather, an exchange or a barrier) and
 * its length. Two slots stand for the arena's. Call lines are plain epochs here: calls.pml has
 * them. An operation begins in the slot after those of the last one. A giver may wait, at the end,
 * until all is taken. Chunk 0 is stored before the call line, which announces it, if the operation
 * before has left its slot alone: all ranks know that. A rank that does not take may store more before
 * the meeting: into slots that the operation before left alone, or to which this rank stored nothing in
 * it. An exchange uses a cell that lies over each rank's first slot: here its host stores and the next
 * rank reads (exchange.pml has the rest).
 *
 * FAULT_waits_for_one   a slot is refilled when the first reader has taken its chunk
 * FAULT_does_not_wait   a slot is refilled when its turn comes
 * FAULT_begins_early    a rank that does not take stores before the meeting whatever it stored in the last one
 * FAULT_announces_all   chunk 0 is stored before the call line wherever its slot is
 * FAULT_announces_cells chunk 0 is stored before the call line where only cells were used
 * FAULT_not_announced   the readers take chunk 0 for announced where it is not
 * FAULT_announced_late  chunk 0 is announced, and stored after the call line
 * FAULT_step_early      a reader shows its step before it has read
 * FAULT_own_slots       only a rank that gives goes on to the slot after those of this operation
 * FAULT_forgets_cells   what a rank stores into an exchange cell does not count as stored
 */

#define RANKS 3
#define OPS   3
#define DEPTH 2

mtype = { UNKNOWN, BROADCAST, TO_ROOT, ALL_GATHER, EXCHANGE, BARRIER };
mtype kind[OPS + 1] = UNKNOWN;
byte chunks[OPS + 1];

byte call[RANKS];         /* the newest epoch published */
byte progress[RANKS];     /* epoch * 16 + step */
byte slot[RANKS * DEPTH]; /* epoch * 8 + chunk of what is in it */

#define P(step)      (epoch * 16 + (step))
#define STEP_OUT(k)  ((k) == 0 -> 1 : 2 * (k))
#define STEP_WORK(k) (2 * (k) + 3)

#define SLOT(rank, k) slot[(rank) * DEPTH + (first + (k)) % DEPTH]
#define CELL(rank)    slot[(rank) * DEPTH]
#define GIVES(rank)   (kind[epoch] == ALL_GATHER || (kind[epoch] == BROADCAST) == ((rank) == 0))
#define TAKES(rank)   (kind[epoch] == ALL_GATHER || (kind[epoch] == TO_ROOT) == ((rank) == 0))
#define BCAST_SLOTS        (kind[epoch] != EXCHANGE && kind[epoch] != BARRIER)
#define NEXT(n)       ((me + (n)) % RANKS) /* the n-th rank after this one */

/* shc_arena_is_free(): the slot of chunk k lies after those of the last operation. */
#ifdef FAULT_announces_all
#define FREE(k) ((k) < DEPTH)
#else
#ifdef FAULT_announces_cells
#define FREE(k) (chunks[epoch - 1] + (k) < DEPTH)
#else
#define FREE(k) (kind[epoch - 1] != EXCHANGE && chunks[epoch - 1] + (k) < DEPTH)
#endif
#endif

#ifdef FAULT_not_announced
#define ANNOUNCED true
#else
#define ANNOUNCED announced
#endif

inline choose()
{
    atomic {
        if
        :: kind[epoch] == UNKNOWN ->
            if
            :: kind[epoch] = BROADCAST; chunk = DEPTH - 1
            :: kind[epoch] = BROADCAST; chunk = DEPTH + 1
            :: kind[epoch] = TO_ROOT; chunk = DEPTH
            :: kind[epoch] = ALL_GATHER; chunk = DEPTH + 1
            :: kind[epoch] = EXCHANGE /* of no chunks */
            :: kind[epoch] = BARRIER
            fi;
            chunks[epoch] = chunk;
            chunk = 0
        :: else
        fi;
        announced = BCAST_SLOTS && FREE(0) /* shc_flow_begin() */
    }
}

inline meet()
{
    call[NEXT(1)] >= epoch;
    call[NEXT(2)] >= epoch
}

inline give_chunk(k)
{
#ifndef FAULT_does_not_wait
    if
    :: k >= DEPTH -> /* wait_taken(k - DEPTH) */
        !TAKES(NEXT(1)) || progress[NEXT(1)] >= P(STEP_WORK(k - DEPTH));
#ifndef FAULT_waits_for_one
        !TAKES(NEXT(2)) || progress[NEXT(2)] >= P(STEP_WORK(k - DEPTH))
#endif
    :: else
    fi;
#endif
    SLOT(me, k) = epoch * 8 + k;
    progress[me] = P(STEP_OUT(k))
}

inline take_chunk(k)
{
    ((k) == 0 && ANNOUNCED) || !GIVES(NEXT(1)) || progress[NEXT(1)] >= P(STEP_OUT(k));
    ((k) == 0 && ANNOUNCED) || !GIVES(NEXT(2)) || progress[NEXT(2)] >= P(STEP_OUT(k));
#ifdef FAULT_step_early
    progress[me] = P(STEP_WORK(k));
#endif
    assert(!GIVES(NEXT(1)) || SLOT(NEXT(1), k) == epoch * 8 + k);
    assert(!GIVES(NEXT(2)) || SLOT(NEXT(2), k) == epoch * 8 + k);
#ifndef FAULT_step_early
    progress[me] = P(STEP_WORK(k))
#endif
}

/* shc_flow_begin() */
inline begin()
{
    if
    :: announced && GIVES(me) ->
        SLOT(me, 0) = epoch * 8;
        begun = 1
    :: else
    fi
}

/* shc_flow_go_on() */
inline go_on()
{
    if
    :: BCAST_SLOTS && GIVES(me) && !TAKES(me) ->
        do
#ifdef FAULT_begins_early
        :: begun < chunks[epoch] && begun < DEPTH ->
#else
        :: begun < chunks[epoch] && begun < DEPTH && (epoch > stored + 1 || FREE(begun)) ->
#endif
            atomic {
                SLOT(me, begun) = epoch * 8 + begun;
                progress[me] = P(STEP_OUT(begun));
                begun++
            }
        :: break
        od
    :: else
    fi
}

/* shc_flow_run() */
inline run_bcast_slot()
{
    for (chunk : 0 .. chunks[epoch]) {
        if
        :: chunk >= begun && chunk < chunks[epoch] && GIVES(me) -> give_chunk(chunk)
        :: else
        fi;
        if
        :: chunk > 0 && TAKES(me) -> take_chunk(chunk - 1)
        :: else
        fi
    }
    if
    :: GIVES(me) -> /* flow.timed_whole */
        !TAKES(NEXT(1)) || progress[NEXT(1)] >= P(STEP_WORK(chunks[epoch] - 1));
        !TAKES(NEXT(2)) || progress[NEXT(2)] >= P(STEP_WORK(chunks[epoch] - 1))
    :: true
    fi;
    begun = 0;
    announced = false;
    chunk = 0
}

/* shc_swap_run(), one turn */
inline run_exchange()
{
    CELL(me) = epoch * 8;
#ifndef FAULT_forgets_cells
    stored = epoch;
#endif
    progress[me] = P(STEP_OUT(0));
    progress[NEXT(1)] >= P(STEP_OUT(0)) && progress[NEXT(2)] >= P(STEP_OUT(0));
    assert(CELL(NEXT(1)) == epoch * 8)
}

proctype Rank(byte me)
{
    byte epoch, chunk, first, begun, stored;
    bool announced;
    for (epoch : 1 .. OPS) {
        choose();
#ifdef FAULT_announced_late
        call[me] = epoch;
        begin();
#else
        begin();
        call[me] = epoch; /* shc_task_enter() */
#endif
        go_on();
        meet();
        if
        :: kind[epoch] == EXCHANGE -> run_exchange()
        :: kind[epoch] == BARRIER
        :: else ->
            run_bcast_slot();
            if
            :: GIVES(me) -> stored = epoch
            :: else
            fi
        fi;
#ifdef FAULT_own_slots
        if
        :: GIVES(me) -> first = (first + chunks[epoch]) % DEPTH
        :: else
        fi
#else
        first = (first + chunks[epoch]) % DEPTH
#endif
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
