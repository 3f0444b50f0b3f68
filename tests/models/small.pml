/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Small slots by parity: filled without a look, and yet never while a rank still reads them.
 *
 * Mirrors run_small() of src/shm/coll/ and shc_flow_run() without an arena;
 * docs/internals/protocol.md, CALL-3 to CALL-5, STAGE-23 and STAGE-25 to STAGE-29. Two or three
 * ranks make EPOCHS operations. The first rank to get there chooses the operation:
 * - one slot per rank is filled before the call line;
 * - one slot is filled by rank 0 alone, or one by each other rank for rank 0 alone: always in their own
 *   blocks, or with two ranks in a hand-off slot (hand-off slot);
 * - a message is cut into 2 or 3 chunks, given by all or by rank 0 alone.
 * Call lines are plain epochs here: calls.pml has them.
 *
 * FAULT_no_trailing_wait    a chunked operation ends without waiting for the others' last read
 * FAULT_fill_before_meeting a chunked operation fills its first slots before the meeting
 * FAULT_refills_early       a chunk goes into a slot before all have taken the slot's last chunk
 * FAULT_one_slot            one slot per rank instead of two
 * FAULT_turns_alone         only one of the two ranks' slots changes hands
 * FAULT_relay_stays         a rank that gives again at once stores to the hand-off slot that it gave in
 * FAULT_relay_unseen        a rank that reads does not note which rank gave
 * FAULT_relay_own           a rank that gives reads the slot again after the meeting
 */

#define RANKS  3
#define EPOCHS 3

mtype = { UNKNOWN, SMALL, ROOT_SMALL, OTHERS_SMALL, ALL_GIVE, ROOT_GIVES, ROOT_TAKES };
mtype kind[EPOCHS + 1] = UNKNOWN;
byte chunks[EPOCHS + 1];

byte call[RANKS];     /* the newest epoch published */
byte progress[RANKS]; /* epoch * 16 + step */
byte slot[RANKS * 2]; /* what is in it: FILLED() */
byte relay[2];        /* what is in each hand-off slot: FILLED() */
byte ranks = RANKS;   /* the number of ranks */

#define P(step)     (epoch * 16 + (step))
#define STEP_OUT(k)  ((k) == 0 -> 1 : 2 * (k))
#define STEP_WORK(k) (2 * (k) + 3)

#define FILLED(rank, k) ((epoch * 4 + (k)) * 4 + (rank))

/* shc_seat_slot_in() */
#ifdef FAULT_one_slot
#define SLOT_IN(host, k) slot[(host) * 2]
#else
#define SLOT_IN(host, k) slot[(host) * 2 + ((k) & 1)]
#endif
/* shc_seat_host(); chunks stay in the own block */
#ifdef FAULT_turns_alone
#define HOST(rank) ((ranks == 2 && (rank) == 0) -> (epoch >> 1 & 1) : (rank))
#else
#define HOST(rank) (ranks == 2 -> ((rank) ^ (epoch >> 1 & 1)) : (rank))
#endif
#define SLOT(rank) SLOT_IN(HOST(rank), epoch)

/* shc_hand_off_slot_pass(): of two ranks, in an operation in which one gives */
#define GIVER (kind[epoch] == OTHERS_SMALL)

#ifdef FAULT_relay_own
#define RELAY_READER true
#else
#define RELAY_READER (me == 1)
#endif

inline pass()
{
    if
#ifdef FAULT_relay_unseen
    :: ranks == 2 && me == GIVER ->
#else
    :: ranks == 2 ->
#endif
#ifndef FAULT_relay_stays
        relay_slot = (relay_giver == GIVER && relay_epoch + 1 == epoch -> 1 - relay_slot : relay_slot);
#endif
        relay_giver = GIVER;
        relay_epoch = epoch
    :: else
    fi
}

#define CHUNKED (kind[epoch] != SMALL && kind[epoch] != ROOT_SMALL && kind[epoch] != OTHERS_SMALL)

inline choose()
{
    atomic {
        if
        :: kind[epoch] == UNKNOWN ->
            if
            :: kind[epoch] = SMALL
            :: kind[epoch] = ROOT_SMALL
            :: kind[epoch] = OTHERS_SMALL
            :: kind[epoch] = ALL_GIVE
            :: kind[epoch] = ROOT_GIVES
            :: kind[epoch] = ROOT_TAKES
            fi;
            if
            :: CHUNKED -> chunks[epoch] = 3
            :: CHUNKED -> chunks[epoch] = 2
            :: !CHUNKED
            fi
        :: else
        fi
    }
}

#define GIVES(rank) (kind[epoch] == ALL_GIVE || (kind[epoch] == ROOT_GIVES) == ((rank) == 0))
#define TAKES(rank) (kind[epoch] == ALL_GIVE || (kind[epoch] == ROOT_TAKES) == ((rank) == 0))
#define NEXT(n)     ((me + (n)) % ranks) /* the n-th rank after this one */

inline meet()
{
    call[NEXT(1)] >= epoch;
    call[NEXT(2)] >= epoch
}

/* wait_taken(): all takers but this rank have taken chunk k. */
inline wait_taken(k)
{
    !TAKES(NEXT(1)) || progress[NEXT(1)] >= P(STEP_WORK(k));
    NEXT(2) == me || !TAKES(NEXT(2)) || progress[NEXT(2)] >= P(STEP_WORK(k))
}

inline give_chunk(k)
{
#ifndef FAULT_refills_early
    if
    :: k >= 2 -> wait_taken(k - 2)
    :: else
    fi;
#endif
    SLOT_IN(me, k) = FILLED(me, k);
    progress[me] = P(STEP_OUT(k))
}

inline take_chunk(k)
{
    !GIVES(NEXT(1)) || progress[NEXT(1)] >= P(STEP_OUT(k));
    NEXT(2) == me || !GIVES(NEXT(2)) || progress[NEXT(2)] >= P(STEP_OUT(k));
    assert(!GIVES(me) || SLOT_IN(me, k) == FILLED(me, k));
    assert(!GIVES(NEXT(1)) || SLOT_IN(NEXT(1), k) == FILLED(NEXT(1), k));
    assert(NEXT(2) == me || !GIVES(NEXT(2)) || SLOT_IN(NEXT(2), k) == FILLED(NEXT(2), k));
    progress[me] = P(STEP_WORK(k))
}

/* shc_flow_run() */
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
    byte epoch, chunk, relay_epoch;
    bit relay_slot, relay_giver;
    for (epoch : 1 .. EPOCHS) {
        choose();
        if
        :: kind[epoch] == SMALL -> SLOT(me) = FILLED(me, 0)
        :: kind[epoch] == ROOT_SMALL || kind[epoch] == OTHERS_SMALL ->
            pass();
            if
            :: GIVER != (me != 0)
            :: GIVER == (me != 0) && ranks == 2 -> relay[relay_slot] = FILLED(me, 0)
            :: GIVER == (me != 0) && ranks > 2 -> SLOT_IN(me, epoch) = FILLED(me, 0)
            fi
#ifdef FAULT_fill_before_meeting
        :: CHUNKED && GIVES(me) -> SLOT_IN(me, 0) = FILLED(me, 0); progress[me] = P(1)
#endif
        :: else
        fi;
        call[me] = epoch; /* shc_task_enter() */
        meet();
        if
        :: kind[epoch] == SMALL ->
            assert(SLOT(me) == FILLED(me, 0));
            assert(SLOT(NEXT(1)) == FILLED(NEXT(1), 0));
            assert(SLOT(NEXT(2)) == FILLED(NEXT(2), 0))
        :: kind[epoch] == ROOT_SMALL && ranks > 2 -> assert(SLOT_IN(0, epoch) == FILLED(0, 0))
        :: kind[epoch] == OTHERS_SMALL && me == 0 && ranks > 2 ->
            assert(SLOT_IN(1, epoch) == FILLED(1, 0));
            assert(SLOT_IN(2, epoch) == FILLED(2, 0))
        :: kind[epoch] == ROOT_SMALL && ranks == 2 && RELAY_READER ->
            assert(relay[relay_slot] == FILLED(0, 0))
        :: kind[epoch] == OTHERS_SMALL && me == 0 && ranks == 2 ->
            assert(relay[relay_slot] == FILLED(1, 0))
        :: kind[epoch] == ROOT_SMALL && ranks == 2 && !RELAY_READER
        :: kind[epoch] == OTHERS_SMALL && me != 0
        :: else -> chunked()
        fi
    }
}

init
{
    atomic {
        select(ranks : 2 .. RANKS);
        run Rank(0);
        run Rank(1);
        if
        :: ranks == RANKS -> run Rank(2)
        :: else
        fi
    }
}
