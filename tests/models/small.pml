/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Small slots by parity: filled without a look, and yet never while somebody still reads them.
 *
 * Mirrors run_small() of src/shm/coll/ and shc_shout_run() without an arena; docs/PROTOCOL.md,
 * sections 2 and 6. Three ranks make EPOCHS operations. The first rank to get there chooses what
 * the operation is: one slot per rank filled before the call line; or a message cut into 2 or 3
 * chunks, given by all or by rank 0 alone. Call lines are plain epochs here: calls.pml has them.
 *
 * FAULT_no_trailing_wait    a chunked operation ends without waiting for the others' last read
 * FAULT_fill_before_meeting a chunked operation fills its first slots before the meeting
 * FAULT_one_slot            one slot per rank instead of two
 */

#define RANKS  3
#define EPOCHS 3

mtype = { UNKNOWN, SMALL, ALL_GIVE, ROOT_GIVES, ROOT_TAKES };
mtype kind[EPOCHS + 1] = UNKNOWN;
byte chunks[EPOCHS + 1];

byte call[RANKS];     /* the newest epoch published */
byte progress[RANKS]; /* epoch * 16 + step */
byte slot[RANKS * 2]; /* epoch * 4 + chunk of what is in it */

#define P(step)     (epoch * 16 + (step))
#define STEP_OUT(k)  ((k) == 0 -> 1 : 2 * (k))
#define STEP_WORK(k) (2 * (k) + 3)

#ifdef FAULT_one_slot
#define SLOT(rank, parity) slot[(rank) * 2]
#else
#define SLOT(rank, parity) slot[(rank) * 2 + ((parity) & 1)]
#endif

inline choose()
{
    atomic {
        if
        :: kind[epoch] == UNKNOWN ->
            if
            :: kind[epoch] = SMALL
            :: kind[epoch] = ALL_GIVE
            :: kind[epoch] = ROOT_GIVES
            :: kind[epoch] = ROOT_TAKES
            fi;
            if
            :: kind[epoch] != SMALL -> chunks[epoch] = 3
            :: kind[epoch] != SMALL -> chunks[epoch] = 2
            :: kind[epoch] == SMALL
            fi
        :: else
        fi
    }
}

#define GIVES(rank) (kind[epoch] == ALL_GIVE || (kind[epoch] == ROOT_GIVES) == ((rank) == 0))
#define TAKES(rank) (kind[epoch] == ALL_GIVE || (kind[epoch] == ROOT_TAKES) == ((rank) == 0))
#define NEXT(n)     ((me + (n)) % RANKS) /* the n-th rank behind this one */

inline meet()
{
    call[NEXT(1)] >= epoch;
    call[NEXT(2)] >= epoch
}

/* wait_taken(): all takers but this rank have taken chunk k. */
inline wait_taken(k)
{
    !TAKES(NEXT(1)) || progress[NEXT(1)] >= P(STEP_WORK(k));
    !TAKES(NEXT(2)) || progress[NEXT(2)] >= P(STEP_WORK(k))
}

inline give_chunk(k)
{
    if
    :: k >= 2 -> wait_taken(k - 2)
    :: else
    fi;
    SLOT(me, k) = epoch * 4 + k;
    progress[me] = P(STEP_OUT(k))
}

inline take_chunk(k)
{
    !GIVES(NEXT(1)) || progress[NEXT(1)] >= P(STEP_OUT(k));
    !GIVES(NEXT(2)) || progress[NEXT(2)] >= P(STEP_OUT(k));
    assert(!GIVES(NEXT(1)) || SLOT(NEXT(1), k) == epoch * 4 + k);
    assert(!GIVES(NEXT(2)) || SLOT(NEXT(2), k) == epoch * 4 + k);
    progress[me] = P(STEP_WORK(k))
}

/* shc_shout_run() */
inline chunked()
{
    for (chunk : 0 .. chunks[epoch]) {
        if
#ifdef FAULT_fill_before_meeting
        :: chunk > 0 && chunk < chunks[epoch] && GIVES(me) -> give_chunk(chunk)
#else
        :: chunk < chunks[epoch] && GIVES(me) -> give_chunk(chunk)
#endif
        :: else
        fi;
        if
        :: chunk > 0 && TAKES(me) -> take_chunk(chunk - 1)
        :: else
        fi
    }
    chunk = 0;
#ifndef FAULT_no_trailing_wait
    wait_taken(chunks[epoch] - 1)
#endif
}

proctype Rank(byte me)
{
    byte epoch, chunk;
    for (epoch : 1 .. EPOCHS) {
        choose();
        if
        :: kind[epoch] == SMALL -> SLOT(me, epoch) = epoch * 4
#ifdef FAULT_fill_before_meeting
        :: kind[epoch] != SMALL && GIVES(me) -> SLOT(me, 0) = epoch * 4; progress[me] = P(1)
#endif
        :: else
        fi;
        call[me] = epoch; /* shc_task_enter() */
        meet();
        if
        :: kind[epoch] == SMALL ->
            assert(SLOT(NEXT(1), epoch) == epoch * 4);
            assert(SLOT(NEXT(2), epoch) == epoch * 4)
        :: else -> chunked()
        fi
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
