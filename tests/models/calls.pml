/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Call lines by parity of the epoch: no rank takes a line for its epoch that belongs to another one, and
 * no output changes in an operation that the ranks have called differently.
 *
 * Mirrors src/shm/proto/call.c, shc_call_meet() of src/shm/proto/wait.c and the stickiness of a
 * failed call in shc_comm_execute(); docs/internals/protocol.md, CALL-1 to CALL-5 and LIFE-12. Two
 * or three ranks make EPOCHS operations. In each one they publish, meet, read the payloads, and change
 * the output. One rank may leave before any of them: the others then give up with PEER_LEFT and make no
 * further calls. One rank may make another call than the others, once: then no rank's output
 * changes, and all end. Left out: death (members.pml), memory order and the seal (weak_call.cc).
 *
 * FAULT_one_line              one line per rank instead of two
 * FAULT_root_is_early         rank 0 returns from an operation (a broadcast's root) without meeting
 * FAULT_goes_on               a rank that gave up with PEER_LEFT makes its next call
 * FAULT_compares_one          a rank compares its call with its neighbour's alone
 * FAULT_turns_alone           only one of the two ranks' lines changes hands
 * FAULT_output_before_meeting the output changes as each line comes in
 */

#define RANKS  3
#define EPOCHS 4

typedef Line {
    byte epoch;
    byte hash; /* stands for hash and payload: twice the epoch, + 1 for the other call */
    byte writer;
}

/* shc_seat_host() */
#ifdef FAULT_turns_alone
#define HOST(rank, e) ((ranks == 2 && (rank) == 0) -> ((e) >> 1 & 1) : (rank))
#else
#define HOST(rank, e) (ranks == 2 -> ((rank) ^ ((e) >> 1 & 1)) : (rank))
#endif
#ifdef FAULT_one_line
#define LINE(rank, e) line[HOST(rank, e) * 2]
#else
#define LINE(rank, e) line[HOST(rank, e) * 2 + ((e) & 1)]
#endif

byte ranks = RANKS; /* the number of ranks */
Line line[RANKS * 2];
byte said[RANKS]; /* the newest epoch that the rank has said */
bool left[RANKS];
bool leaver;
bool failed;     /* the abort word */
byte stray;      /* the epoch that is called differently; 0: none */
byte stray_rank; /* the rank that does so */

#define HASH(rank, e)  (2 * (e) + (stray == (e) && stray_rank == (rank)))
#define EPOCH_OF(hash) ((hash) / 2)

/* shc_call_latest() < epoch of a rank that has left: it will never publish this epoch. */
#define LEFT_BEFORE(rank, e) (left[rank] && said[rank] < (e))
#define NEXT(n)              ((me + (n)) % ranks) /* the n-th rank after this one */
#define REACHED(rank, e) (LINE(rank, e).epoch >= (e))

inline change_output()
{
    assert(stray != epoch)
}

/* shc_call_meet(): `met`, unless the calls differ, or a rank has left, or the group has failed. */
inline meet()
{
    met = true;
    for (turn : 1 .. ranks - 1) {
        peer = NEXT(turn);
        if
        :: REACHED(peer, epoch) -> /* shc_wait_reached() */
            seen = LINE(peer, epoch).hash;
            assert(EPOCH_OF(seen) == epoch && LINE(peer, epoch).writer == peer);
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
        :: !REACHED(peer, epoch) && (failed || LEFT_BEFORE(NEXT(1), epoch) || LEFT_BEFORE(NEXT(2), epoch)) ->
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
        said[me] = epoch; /* shc_call_publish() */
        LINE(me, epoch).hash = HASH(me, epoch);
        LINE(me, epoch).writer = me;
        LINE(me, epoch).epoch = epoch;
#ifdef FAULT_root_is_early
        if
        :: me == 0 -> goto next
        :: else
        fi;
#endif
        meet();
        if
#ifdef FAULT_goes_on
        :: !met && failed -> goto over
#else
        :: !met -> goto over /* comm->broken */
#endif
        :: else
        fi;
        for (turn : 0 .. ranks - 1) { /* the payloads, its own as well, after the meeting */
            if
            :: met -> assert(EPOCH_OF(LINE(NEXT(turn), epoch).hash) == epoch);
                assert(LINE(NEXT(turn), epoch).writer == NEXT(turn))
            :: else
            fi
        }
        if
        :: met -> change_output()
        :: else
        fi;
next:
        turn = 0
    }
over:
    skip
}

init
{
    atomic {
        select(ranks : 2 .. RANKS);
        select(stray : 0 .. EPOCHS);
        if
        :: stray != 0 -> select(stray_rank : 0 .. ranks - 1)
        :: else
        fi;
        run Rank(0);
        run Rank(1);
        if
        :: ranks == RANKS -> run Rank(2)
        :: else
        fi
    }
}
