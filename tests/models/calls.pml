/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Call lines by parity of the epoch: nobody reads a line that is not the one of its own epoch, and
 * no output changes in an operation that the ranks have called differently.
 *
 * Mirrors src/shm/proto/call.c, shc_call_meet() of src/shm/proto/wait.c and the stickiness of a
 * failed call in shc_comm_execute(); docs/PROTOCOL.md, sections 2 and 5. Three ranks make EPOCHS
 * operations, each: publish, meet, read the payloads, change the output. One rank may leave in
 * front of any of them; the others then give up with PEER_LEFT and make no further calls. One rank
 * may make another call than the others, once: then no rank's output changes, and all end. Left
 * out: death (members.pml), memory order and the seal (weak_call.cc).
 *
 * FAULT_one_line              one line per rank instead of two
 * FAULT_root_is_early         rank 0 returns from an operation (a broadcast's root) without meeting
 * FAULT_goes_on               a rank that gave up with PEER_LEFT makes its next call
 * FAULT_compares_one          a rank compares its call with its neighbour's alone
 * FAULT_output_before_meeting the output changes as each line comes in
 */

#define RANKS  3
#define EPOCHS 4

typedef Line {
    byte epoch;
    byte hash; /* stands for hash, payload and words: twice the epoch, + 1 for the other call */
}

#ifdef FAULT_one_line
#define LINE(rank, e) line[(rank) * 2]
#else
#define LINE(rank, e) line[(rank) * 2 + ((e) & 1)]
#endif

Line line[RANKS * 2];
bool left[RANKS];
bool leaver;
bool failed;     /* the abort word */
byte stray;      /* the epoch that is called differently; 0: none */
byte stray_rank; /* by whom */

#define HASH(rank, e)  (2 * (e) + (stray == (e) && stray_rank == (rank)))
#define EPOCH_OF(hash) ((hash) / 2)

/* shc_call_latest() < epoch of a rank that has left: it never will publish this epoch. */
#define LEFT_BEFORE(rank, e) \
    (left[rank] && line[(rank) * 2].epoch < (e) && line[(rank) * 2 + 1].epoch < (e))
#define REACHED(rank, e) (LINE(rank, e).epoch >= (e))

inline change_output()
{
    assert(stray != epoch)
}

/* shc_call_meet(): `met`, unless the calls differ, or a rank has left, or the group has failed. */
inline meet()
{
    met = true;
    for (turn : 1 .. RANKS - 1) {
        peer = (me + turn) % RANKS;
        if
        :: REACHED(peer, epoch) -> /* shc_wait_reached() */
            seen = LINE(peer, epoch).hash;
            assert(EPOCH_OF(seen) == epoch);
            if
#ifdef FAULT_compares_one
            :: turn == 1 && seen != HASH(me, epoch) -> /* shc_call_meet() */
#else
            :: seen != HASH(me, epoch) ->
#endif
                failed = true;
                met = false
            :: else
            fi;
            seen = 0;
            if
            :: !met -> break
            :: else
            fi;
#ifdef FAULT_output_before_meeting
            change_output()
#endif
        :: !REACHED(peer, epoch) && (failed || LEFT_BEFORE((me + 1) % RANKS, epoch) ||
                                     LEFT_BEFORE((me + 2) % RANKS, epoch)) ->
            met = false;
            break
        fi
    }
    peer = 0;
    turn = 0
}

proctype Rank(byte me)
{
    byte epoch, turn, peer, seen;
    bool met;
    for (epoch : 1 .. EPOCHS) {
        if
        :: atomic { !leaver -> leaver = true }
            left[me] = true; /* shc_member_leave() */
            goto over
        :: true
        fi;
        LINE(me, epoch).hash = HASH(me, epoch); /* shc_call_publish() */
        LINE(me, epoch).epoch = epoch;
#ifdef FAULT_root_is_early
        if
        :: me == 0 -> goto next
        :: else
        fi;
#endif
        meet();
#ifndef FAULT_goes_on
        if
        :: !met -> goto over /* comm->broken */
        :: else
        fi;
#endif
        for (turn : 1 .. RANKS - 1) { /* the payloads, behind the meeting */
            if
            :: met -> assert(EPOCH_OF(LINE((me + turn) % RANKS, epoch).hash) == epoch)
            :: else
            fi
        }
        change_output();
next:
        turn = 0
    }
over:
    skip
}

init
{
    atomic {
        select(stray : 0 .. EPOCHS);
        if
        :: stray != 0 -> select(stray_rank : 0 .. RANKS - 1)
        :: else
        fi;
        run Rank(0);
        run Rank(1);
        run Rank(2)
    }
}
