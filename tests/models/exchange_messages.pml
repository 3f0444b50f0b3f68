/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Large messages that pass one another between two ranks, in long hand-off buffers: they arrive whole and in
 * order, only the rank that holds a buffer stores to it, and no rank waits for ever.
 *
 * Mirrors the long hand-off buffers of src/shm/proto/pair.c, and what shc_p2p_trade() and stream() in
 * send.c and take_more() in receive.c of src/shm/p2p do with them; docs/internals/protocol/messages.md,
 * P2P-29 to P2P-34. Each rank announces one message of up to four pieces (FIRST), or none. The prefix, if there is
 * one, goes with the header, in a long hand-off buffer. The rest goes after the receiver's CTS, which comes
 * after it has posted its receive, at any time. While more is to come from the other side a chunk goes in
 * such a buffer, and none goes while the other side has still to read a line that names one. Otherwise a
 * chunk goes through the only pool buffer. A chunk that comes in a long hand-off buffer takes the next one
 * back with it, if there is one and a line is free. Rank 1 may also send one short message in such a buffer,
 * at any time, in two fragments if there are lines, and otherwise whole; its receive is posted at any time.
 * Lines are read while something of the rank's own is pending. Left out: matching (p2p.pml), several
 * messages one way, and more pool buffers (pool.pml).
 *
 * FAULT_waits_unowed         a rank that has sent in a long hand-off buffer waits for one to come back, also
 *                            when none is due
 * FAULT_reads_nothing        a rank that waits until such a buffer has been read does not read
 * FAULT_sender_reads         lines are read only while the rank's own send is pending
 * FAULT_kept                 a rank that sends a buffer goes on holding it
 * FAULT_held_unread          a buffer is stored to, and goes out, before it has been read
 * FAULT_held_by_unexpected   a rank that gets a prefix holds its buffer before the message has a receive
 * FAULT_trades_fragment      a fragment that comes unasked takes a chunk back with it
 */

#define LINES 2
#define NONE  3 /* long hand-off buffers are named by the rank in whose mailbox they lie */
#define POOL  2 /* the sender's pool buffer */

mtype = { FIRST, CTS, MORE, PART, WHOLE }; /* PART, WHOLE: of the short message */
mtype = { DONE };                          /* it has been received */

/* ---- what is shared ---- */

#define PIECE(rank, i) ((rank) * 4 + (i) + 1)
#define SHORT          15
byte buffer[2]; /* the rank and the piece that it holds */
byte rest[2];   /* where the second fragment of the short message lies */
byte pool[2];
bool pool_back[2] = true;
byte posted[2], taken[2]; /* lines to rank r, and those that rank r has read */
chan line_to_0 = [LINES] of { mtype, byte, byte }; /* kind, place, piece */
chan line_to_1 = [LINES] of { mtype, byte, byte };

/* ---- private, but read by assertions ---- */

#define HOLDS(rank, f) holds[(rank) * 2 + (f)]
bool holds[4];
byte size[2]; /* pieces that rank r sends */
bool has_short; /* rank 1 sends a short message in such a buffer, too */

#define ROOM   (posted[1 - me] - taken[1 - me] < LINES)
#define OWED   (granted && got < size[1 - me])
#define IS_OUT (taken[1 - me] < named)
#define HELD   (HOLDS(me, 0) || HOLDS(me, 1))

#ifdef FAULT_waits_unowed
#define HOLDS_BACK (named > 0 && !HELD)
#else
#define HOLDS_BACK (OWED && IS_OUT)
#endif

#define STREAMS (wanted && sent < size[me])

/* Something is pending. */
#define AWAITS_SHORT (has_short && short_asked && short_came != DONE)
#define RECEIVES     ((asked && got < size[1 - me]) || AWAITS_SHORT)
#if defined(FAULT_reads_nothing)
#define READS !(STREAMS && HOLDS_BACK)
#elif defined(FAULT_sender_reads)
#define READS (sent < size[me] || AWAITS_SHORT)
#else
#define READS (sent < size[me] || RECEIVES)
#endif

/* shc_pair_post() */
inline post(kind, place, piece)
{
    out!kind,place,piece;
    posted[1 - me]++
}

/* shc_long_lend(): `w` is the buffer that came last. */
inline hand_over(bytes)
{
    w = (HOLDS(me, newest) -> newest : 1 - newest);
    assert(HOLDS(me, w) && !HOLDS(1 - me, w));
    buffer[w] = bytes;
#ifndef FAULT_kept
    HOLDS(me, w) = false;
#endif
    named = posted[1 - me] + 1
}

/* With the prefix or without it. */
inline announce()
{
    atomic {
        announced = true;
        if
        :: HELD ->
            hand_over(PIECE(me, sent));
            post(FIRST, w, sent);
            sent++
        :: post(FIRST, NONE, 0)
        fi;
        w = 0
    }
}

inline send_chunk()
{
    atomic {
        if
        :: OWED && HELD ->
            hand_over(PIECE(me, sent));
            post(MORE, w, sent);
            sent++
        :: else ->
            if
            :: pool_back[me] ->
                pool_back[me] = false;
                pool[me] = PIECE(me, sent);
                post(MORE, POOL, sent);
                sent++
            :: else
            fi
        fi;
        w = 0
    }
}

/* The short message: at once, and nothing goes out in between. */
inline send_short()
{
    atomic {
        hand_over(SHORT);
        if
        :: posted[1 - me] - taken[1 - me] + 2 <= LINES -> post(PART, w, 0); named++
        :: else
        fi
    };
    rest[w] = SHORT;
    atomic { post(WHOLE, w, 0); short_sent = true; w = 0 }
}

inline hold(f)
{
    assert(!HOLDS(1 - me, f));
    HOLDS(me, f) = true;
    newest = f
}

inline read_piece()
{
    assert(at == got);
    if
    :: where == POOL ->
        assert(pool[1 - me] == PIECE(1 - me, at));
        pool_back[1 - me] = true
    :: else -> assert(buffer[where] == PIECE(1 - me, at))
    fi;
    got++
}

/* The prefix is read when a receive has been posted for the message. */
inline take_prefix()
{
    atomic {
        if
        :: where != NONE -> read_piece(); hold(where)
        :: else
        fi;
        has_come = false;
        prefix = NONE
    }
}

#define TRADES (STREAMS && ROOM)

/* shc_p2p_trade(), or the chunk alone. */
inline take_chunk()
{
    if
    :: atomic { where != POOL && TRADES ->
#ifdef FAULT_held_unread
            hold(where);
            hand_over(PIECE(me, sent));
            read_piece();
#else
            read_piece();
            hold(where);
            hand_over(PIECE(me, sent));
#endif
            assert(w == where);
            post(MORE, w, sent);
            sent++;
            w = 0
        }
    :: atomic { else ->
            read_piece();
            if
            :: where != POOL -> hold(where)
            :: else
            fi
        }
    fi
}

/* The receive reads what has come; with all of it the buffer is this rank's. */
inline take_short()
{
    atomic {
        assert(buffer[where] == SHORT);
        if
        :: short_came == WHOLE ->
            assert(rest[where] == SHORT);
            rest[where] = 0;
            hold(where);
            short_came = DONE
        :: short_came == PART ->
#ifdef FAULT_trades_fragment
            if
            :: TRADES -> hold(where); hand_over(PIECE(me, sent)); post(MORE, w, sent); sent++; w = 0
            :: else
            fi
#endif
            short_at = where
        fi
    }
}

proctype Rank(byte me; chan in, out)
{
    mtype kind, short_came; /* of the short message: the last line */
    byte sent, got, named, where, at, w, short_at;
    byte newest = me;
    byte prefix = NONE; /* where it is while the announced message has no receive */
    bool announced, wanted, asked, has_come, granted;
    bool short_sent = !(has_short && me == 1), short_asked;
    do
    :: !announced && size[me] > 0 && ROOM -> announce()
    :: !short_sent && ROOM && HELD -> send_short()
    :: atomic { !short_sent && !HELD -> has_short = false; short_sent = true } /* it goes elsewhere */
    :: atomic { !asked && size[1 - me] > 0 -> asked = true } /* the receive is posted */
    :: atomic { has_short && me == 0 && !short_asked ->
            short_asked = true;
            where = short_at
        };
        if
        :: short_came != 0 -> take_short()
        :: else
        fi;
        where = 0
    :: atomic { asked && has_come && ROOM ->
            where = prefix;
            at = 0;
            granted = true;
            post(CTS, NONE, 0)
        };
        take_prefix();
        where = 0
    :: STREAMS && ROOM && !HOLDS_BACK && (pool_back[me] || (OWED && HELD)) -> send_chunk()
    :: READS && nempty(in) ->
        atomic { in?<kind,where,at> };
        if
        :: kind == FIRST -> atomic {
                assert(!has_come);
                has_come = true;
                prefix = where;
#ifdef FAULT_held_by_unexpected
                if
                :: where != NONE -> hold(where)
                :: else
                fi
#endif
            }
        :: kind == CTS -> assert(announced); wanted = true
        :: kind == MORE -> assert(granted); take_chunk()
        :: kind == PART || kind == WHOLE ->
            atomic { short_came = kind; short_at = where };
            if
            :: short_asked -> take_short()
            :: else
            fi
        fi;
        atomic { in?kind,where,at; taken[me]++; kind = 0; where = 0; at = 0 } /* shc_pair_take() */
    :: sent == size[me] && got == size[1 - me] && short_sent &&
       (me == 1 || !has_short || short_came == DONE) && empty(in) -> break
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
        if
        :: x < 4 && y < 4 -> has_short = true /* with fewer pieces, to keep it small */
        :: true
        fi;
        x = 0;
        y = 0;
        HOLDS(0, 0) = true;
        HOLDS(1, 1) = true;
        run Rank(0, line_to_0, line_to_1);
        run Rank(1, line_to_1, line_to_0)
    }
}
