/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Shout slots: a slot is refilled only when every reader has taken the chunk before.
 *
 * Mirrors shc_shout_run() of src/shm/coll/flow.c with an arena; docs/PROTOCOL.md, section 6. Three
 * ranks make OPS operations, which follow one another without a look: the next begins while readers
 * may be at the end of the last. The first rank to get there chooses what it is, a broadcast from
 * rank 0, its reverse, an all-gather or an exchange, and its length. Two slots stand for the arena's. Call
 * lines are plain epochs here: calls.pml has them. An operation begins in the slot behind those of the last
 * one. A giver may wait, at the end, until all is taken. One that does not take may begin before the
 * meeting, if it has stored nothing in the operation in front of this one. An exchange uses a cell that lies
 * over each rank's first slot: here its host stores and the next rank reads (exchange.pml has the rest).
 *
 * FAULT_waits_for_one   a slot is refilled when the first reader has taken its chunk
 * FAULT_does_not_wait   a slot is refilled when its turn comes
 * FAULT_begins_early    who does not take begins before the meeting whatever it has stored in the last one
 * FAULT_step_early      a reader shows its step before it has read
 * FAULT_own_slots       only who gives goes on to the slot behind those of this operation
 * FAULT_forgets_cells   what a rank stores into an exchange cell does not count as stored
 */

#define RANKS 3
#define OPS   3
#define DEPTH 2

mtype = { UNKNOWN, BROADCAST, TO_ROOT, ALL_GATHER, EXCHANGE };
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
#define NEXT(n)       ((me + (n)) % RANKS) /* the n-th rank behind this one */

inline choose()
{
    atomic {
        if
        :: kind[epoch] == UNKNOWN ->
            if
            :: kind[epoch] = BROADCAST; select(chunk : DEPTH - 1 .. DEPTH + 1)
            :: kind[epoch] = TO_ROOT; select(chunk : DEPTH - 1 .. DEPTH)
            :: kind[epoch] = ALL_GATHER; chunk = DEPTH + 1
            :: kind[epoch] = EXCHANGE /* of no chunks */
            fi;
            chunks[epoch] = chunk;
            chunk = 0
        :: else
        fi
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
    !GIVES(NEXT(1)) || progress[NEXT(1)] >= P(STEP_OUT(k));
    !GIVES(NEXT(2)) || progress[NEXT(2)] >= P(STEP_OUT(k));
#ifdef FAULT_step_early
    progress[me] = P(STEP_WORK(k));
#endif
    assert(!GIVES(NEXT(1)) || SLOT(NEXT(1), k) == epoch * 8 + k);
    assert(!GIVES(NEXT(2)) || SLOT(NEXT(2), k) == epoch * 8 + k);
#ifndef FAULT_step_early
    progress[me] = P(STEP_WORK(k))
#endif
}

/* shc_shout_run() */
/* shc_shout_begin() */
inline begin()
{
    if
#ifdef FAULT_begins_early
    :: GIVES(me) && !TAKES(me) ->
#else
    :: GIVES(me) && !TAKES(me) && epoch > stored + 1 ->
#endif
        do
        :: begun < chunks[epoch] && begun < DEPTH ->
            atomic {
                SLOT(me, begun) = epoch * 8 + begun;
                begun++
            }
        :: break
        od
    :: else
    fi
}

inline run_shout()
{
    if
    :: begun > 0 -> progress[me] = P(STEP_OUT(begun - 1))
    :: else
    fi;
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
    for (epoch : 1 .. OPS) {
        choose();
        call[me] = epoch; /* shc_task_enter() */
        begin();
        meet();
        if
        :: kind[epoch] == EXCHANGE -> run_exchange()
        :: else ->
            run_shout();
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
