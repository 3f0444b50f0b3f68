/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Long hand-off buffers (ferries): large messages that pass one another between two ranks arrive whole
 * and in order, only the holder of a ferry stores to it, and no rank waits for ever.
 *
 * Mirrors the ferries of src/shm/proto/pair.c, and what src/shm/p2p/send.c and receive.c do with
 * them; docs/internals/protocol.md, P2P-29 to P2P-34. Each rank sends one message of up to four
 * pieces to the other, or none. The eager prefix (head), if there is one, goes with the announcement
 * (RTS), by ferry. The rest goes after the receiver's CTS, which comes after it has posted its receive,
 * at any time. While more is to come from the other side a chunk goes by ferry, and none goes while the
 * other side has still to read a ferry. Otherwise a chunk goes through the only bulk window. A chunk
 * that comes by ferry takes the next one back with it, if there is one and a line is free. Lines are
 * read while something of the rank's own is pending. Left out: matching (p2p.pml), whole messages (they
 * come and go like heads), several messages one way, more bulk windows (bulk.pml).
 *
 * FAULT_waits_unowed   a rank that has sent by ferry waits for one to come back, also when none is due
 * FAULT_reads_nothing  a rank that waits until a ferry has been read does not read
 * FAULT_sender_reads   lines are read only while the rank's own send is pending
 * FAULT_kept           a rank that sends a ferry goes on holding it
 * FAULT_held_unread    a ferry is stored to, and goes out, before it has been read
 * FAULT_held_by_stray  a rank that gets a head by ferry holds the ferry before the message has a receive
 */

#define LINES 2
#define NONE  3 /* ferries are named by the rank in whose mailbox they lie */
#define BULK  2 /* the sender's bulk window */

mtype = { RTS, CTS, CHUNK };

/* ---- what is shared ---- */

#define PIECE(rank, i) ((rank) * 4 + (i) + 1)
byte ferry[2]; /* the rank and the piece that it holds */
byte bulk[2];
bool bulk_back[2] = true;
byte posted[2], taken[2]; /* lines to rank r, and those that rank r has read */
chan line_to_0 = [LINES] of { mtype, byte, byte }; /* kind, window, piece */
chan line_to_1 = [LINES] of { mtype, byte, byte };

/* ---- private, but read by assertions ---- */

#define HOLDS(rank, f) holds[(rank) * 2 + (f)]
bool holds[4];
byte size[2]; /* pieces that rank r sends */

#define ROOM   (posted[1 - me] - taken[1 - me] < LINES)
#define OWED   (asked && got < size[1 - me])
#define IS_OUT (taken[1 - me] < ferried)
#define HELD   (HOLDS(me, 0) || HOLDS(me, 1))

#ifdef FAULT_waits_unowed
#define HOLDS_BACK (ferried > 0 && !HELD)
#else
#define HOLDS_BACK (OWED && IS_OUT)
#endif

#define STREAMS (wanted && sent < size[me])

/* Something is pending. */
#if defined(FAULT_reads_nothing)
#define READS !(STREAMS && HOLDS_BACK)
#elif defined(FAULT_sender_reads)
#define READS (sent < size[me])
#else
#define READS (sent < size[me] || (asked && got < size[1 - me]))
#endif

/* shc_pair_post() */
inline post(kind, window, piece)
{
    out!kind,window,piece;
    posted[1 - me]++
}

/* shc_ferry_lend(): `w` is the ferry that came last. */
inline hand_over()
{
    w = (HOLDS(me, newest) -> newest : 1 - newest);
    assert(HOLDS(me, w) && !HOLDS(1 - me, w));
    ferry[w] = PIECE(me, sent);
#ifndef FAULT_kept
    HOLDS(me, w) = false;
#endif
    ferried = posted[1 - me] + 1
}

/* With the eager prefix or without it. */
inline announce()
{
    atomic {
        announced = true;
        if
        :: HELD ->
            hand_over();
            post(RTS, w, sent);
            sent++
        :: post(RTS, NONE, 0)
        fi;
        w = 0
    }
}

inline send_chunk()
{
    atomic {
        if
        :: OWED && HELD ->
            hand_over();
            post(CHUNK, w, sent);
            sent++
        :: else ->
            if
            :: bulk_back[me] ->
                bulk_back[me] = false;
                bulk[me] = PIECE(me, sent);
                post(CHUNK, BULK, sent);
                sent++
            :: else
            fi
        fi;
        w = 0
    }
}

inline hold(f)
{
    HOLDS(me, f) = true;
    newest = f
}

inline read_piece()
{
    assert(at == got);
    if
    :: where == BULK ->
        assert(bulk[1 - me] == PIECE(1 - me, at));
        bulk_back[1 - me] = true
    :: else -> assert(ferry[where] == PIECE(1 - me, at))
    fi;
    got++
}

/* The eager prefix is read when a receive has been posted for the message. */
inline take_head()
{
    atomic {
        if
        :: where != NONE -> read_piece(); hold(where)
        :: else
        fi;
        has_come = false;
        head = NONE
    }
}

/* shc_p2p_trade(), or the chunk alone. */
inline take_chunk()
{
    if
    :: atomic { where != BULK && STREAMS && ROOM ->
#ifdef FAULT_held_unread
            hold(where);
            hand_over();
            read_piece();
#else
            read_piece();
            hold(where);
            hand_over();
#endif
            assert(w == where);
            post(CHUNK, w, sent);
            sent++;
            w = 0
        }
    :: atomic { else ->
            read_piece();
            if
            :: where != BULK -> hold(where)
            :: else
            fi
        }
    fi
}

proctype Rank(byte me; chan in, out)
{
    mtype kind;
    byte sent, got, ferried, where, at, w;
    byte newest = me;
    byte head = NONE; /* where the eager prefix of an announced message is, while it has no receive */
    bool announced, wanted, asked, has_come;
    do
    :: !announced && size[me] > 0 && ROOM -> announce()
    :: atomic { !asked && size[1 - me] > 0 -> asked = true } /* the receive is posted */
    :: atomic { asked && has_come && ROOM ->
            where = head;
            at = 0;
            post(CTS, NONE, 0)
        };
        take_head()
    :: STREAMS && ROOM && !HOLDS_BACK && (bulk_back[me] || (OWED && HELD)) -> send_chunk()
    :: READS && nempty(in) ->
        atomic { in?<kind,where,at> };
        if
        :: kind == RTS -> atomic {
                assert(!has_come);
                has_come = true;
                head = where;
#ifdef FAULT_held_by_stray
                if
                :: where != NONE -> hold(where)
                :: else
                fi
#endif
            }
        :: kind == CTS -> assert(announced); wanted = true
        :: kind == CHUNK -> assert(asked); take_chunk()
        fi;
        atomic { in?kind,where,at; taken[me]++; kind = 0; where = 0; at = 0 } /* shc_pair_take() */
    :: sent == size[me] && got == size[1 - me] && empty(in) -> break
    od
}

init
{
    byte x, y;
    atomic {
        select(x : 1 .. 4); /* a message that fits one piece is never announced */
        select(y : 1 .. 4);
        size[0] = (x == 1 -> 0 : x);
        size[1] = (y == 1 -> 0 : y);
        x = 0;
        y = 0;
        HOLDS(0, 0) = true;
        HOLDS(1, 1) = true;
        run Rank(0, line_to_0, line_to_1);
        run Rank(1, line_to_1, line_to_0)
    }
}
