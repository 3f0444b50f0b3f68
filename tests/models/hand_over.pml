/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Broadcast slots of two ranks that give in turns: the rank that has read them fills them next.
 *
 * Mirrors choose_places(), is_free() and shc_flow_run() of src/shm/coll/flow.c; docs/internals/protocol.md,
 * STAGE-13, STAGE-15 to STAGE-21 and STAGE-56. Two ranks make OPS operations, which follow one another without a
 * look. The first rank to get there chooses the operation (one rank gives, both give, an exchange or a barrier) and
 * its length; long messages do not change hands. In the first operation a rank gives. Two slots stand for those of
 * each rank. Call lines are plain epochs here: calls.pml has them. bcast_slot.pml has what three ranks do. The two
 * cells of an exchange lie over rank 0's slots.
 *
 * FAULT_gives_again    a rank that gave the last time, too, takes the same places once more
 * FAULT_forgets_cells  places that change hands are free also right after an exchange
 * FAULT_too_long       where places change hands, chunks that come round to one again are stored early, too
 * FAULT_own_memory     each rank remembers the slots of the last flow as its own
 * FAULT_is_apart       where both give, a rank takes its slots for other ones than those of the last flow
 * FAULT_old_places     a rank that only takes remembers the places of the flow before
 */

#define OPS   3
#define DEPTH 2
#define NONE  2

mtype = { UNKNOWN, GIVE, BOTH, EXCHANGE, BARRIER };
mtype kind[OPS + 1] = UNKNOWN;
byte chunks[OPS + 1];
byte givers[OPS + 1]; /* the only rank that gives; NONE */
bool is_long[OPS + 1]; /* so that nothing changes hands */

byte call[2];         /* the newest epoch published */
byte progress[2];     /* epoch * 16 + step */
byte slot[2 * DEPTH]; /* epoch * 16 + giver * 8 + chunk of what is in it */

#define P(step)      (epoch * 16 + (step))
#define STEP_OUT(k)  ((k) == 0 -> 1 : 2 * (k))
#define STEP_WORK(k) (2 * (k) + 3)

#define PEER         (1 - me)
#define FLOWS        (kind[epoch] == GIVE || kind[epoch] == BOTH)
#define GIVES(rank)  (kind[epoch] == BOTH || givers[epoch] == (rank))
#define TAKES(rank)  (kind[epoch] == BOTH || givers[epoch] == 1 - (rank))
#define OWNER(rank)  (owner == NONE -> (rank) : owner)
#define SLOT(rank, k) slot[OWNER(rank) * DEPTH + (first + (k)) % DEPTH]
#define FILLED(rank, k) (epoch * 16 + (rank) * 8 + (k))
#define CELL(rank)   slot[rank]

#ifdef FAULT_is_apart
#define APART (owner != last_owner)
#else
#define APART (owner != NONE && last_owner != NONE && owner != last_owner)
#endif

/* The place of chunk k is one of the last flow's. */
#define TAKEN_BEFORE(k) ((DEPTH + (first + (k)) % DEPTH - last_first) % DEPTH < last_chunks)

/* is_free() */
#ifdef FAULT_forgets_cells
#define NO_CELLS (handed_over || swapped + 1 < epoch)
#else
#define NO_CELLS (swapped + 1 < epoch)
#endif
#ifdef FAULT_too_long
#define FITS(k) (handed_over || (k) < DEPTH)
#else
#define FITS(k) ((k) < DEPTH)
#endif
#define FREE(k) (FITS(k) && NO_CELLS && (handed_over || last + 1 < epoch || APART || !TAKEN_BEFORE(k)))

#ifdef FAULT_gives_again
#define OTHER_GAVE (last_giver != NONE)
#else
#define OTHER_GAVE (last_giver == 1 - givers[epoch])
#endif

inline choose()
{
    atomic {
        if
        :: kind[epoch] == UNKNOWN ->
            if
            :: kind[epoch] = GIVE; givers[epoch] = 0
            :: kind[epoch] = GIVE; givers[epoch] = 1
            :: epoch > 1 -> kind[epoch] = BOTH; givers[epoch] = NONE
            :: epoch > 1 -> kind[epoch] = EXCHANGE; givers[epoch] = NONE
            :: epoch > 1 -> kind[epoch] = BARRIER; givers[epoch] = NONE
            fi;
            if
            :: givers[epoch] != NONE -> is_long[epoch] = true
            :: true
            fi;
            if
            :: chunks[epoch] = 1
            :: FLOWS -> chunks[epoch] = DEPTH
            :: FLOWS -> chunks[epoch] = DEPTH + 1
            fi
        :: else
        fi;
        if
        :: FLOWS -> /* choose_places() */
            owner = givers[epoch];
            first = (last_first + last_chunks) % DEPTH;
            handed_over = givers[epoch] != NONE && last > 0 && OTHER_GAVE && !is_long[epoch];
            if
            :: handed_over ->
                owner = last_owner;
                first = last_first
            :: else
            fi;
            announced = FREE(0)
        :: else
        fi
    }
}

inline leave_places()
{
    d_step {
        last = epoch;
        last_chunks = chunks[epoch];
        last_giver = givers[epoch];
#ifdef FAULT_old_places
        last_first = (GIVES(me) -> first : last_first);
#else
        last_first = first;
#endif
#ifdef FAULT_own_memory
        last_owner = (givers[epoch] == NONE -> NONE : me)
#else
        last_owner = owner
#endif
    }
}

/* shc_flow_begin() */
inline begin()
{
    if
    :: FLOWS && announced && GIVES(me) ->
        SLOT(me, 0) = FILLED(me, 0);
        begun = 1
    :: else
    fi
}

/* shc_flow_go_on() */
inline go_on()
{
    if
    :: FLOWS && GIVES(me) && !TAKES(me) ->
        do
        :: begun < chunks[epoch] && ((begun < DEPTH && epoch > stored + 1) || FREE(begun)) ->
            atomic {
                SLOT(me, begun) = FILLED(me, begun);
                progress[me] = P(STEP_OUT(begun));
                begun++
            }
        :: break
        od
    :: else
    fi
}

inline give_chunk(k)
{
    if
    :: k >= DEPTH -> !TAKES(PEER) || progress[PEER] >= P(STEP_WORK(k - DEPTH))
    :: else
    fi;
    SLOT(me, k) = FILLED(me, k);
    progress[me] = P(STEP_OUT(k))
}

inline take_chunk(k)
{
    ((k) == 0 && announced) || !GIVES(PEER) || progress[PEER] >= P(STEP_OUT(k));
    assert(!GIVES(PEER) || SLOT(PEER, k) == FILLED(PEER, k));
    progress[me] = P(STEP_WORK(k))
}

/* shc_flow_run() */
inline run_flow()
{
    leave_places();
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
    :: GIVES(me) -> stored = epoch
    :: else
    fi;
    d_step {
        begun = 0;
        chunk = 0;
        first = 0;
        owner = NONE;
        announced = false;
        handed_over = false
    }
}

/* shc_swap_run(), one turn */
inline run_exchange()
{
    swapped = epoch;
    stored = epoch;
    CELL(me) = FILLED(me, 0);
    progress[me] = P(STEP_OUT(0));
    progress[PEER] >= P(STEP_OUT(0));
    assert(CELL(PEER) == FILLED(PEER, 0))
}

proctype Rank(byte me)
{
    byte epoch, chunk, begun, stored, swapped;
    byte first, owner;
    byte last, last_first, last_chunks; /* arena->in_bcast_slots */
    byte last_giver = NONE, last_owner = NONE;
    bool announced, handed_over;
    for (epoch : 1 .. OPS) {
        choose();
        begin();
        call[me] = epoch; /* shc_task_enter() */
        go_on();
        call[PEER] >= epoch; /* shc_task_meet() */
        if
        :: kind[epoch] == EXCHANGE -> run_exchange()
        :: kind[epoch] == BARRIER
        :: else -> run_flow()
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
