/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A message in a long hand-off buffer (ferry) that is copied while it is stored: the receive that takes
 * it has all of it, its sender never waits in the middle, and only the holder of the ferry stores to it.
 *
 * Mirrors post_by_ferry() in src/shm/p2p/send.c, take_ahead(), take_message() and receive_ahead()
 * in receive.c; docs/internals/protocol.md, P2P-35 to P2P-41. One sender has two messages of three
 * pieces, one ferry and a few lines. The receiver posts its receives one after the other, and may
 * withdraw the first one at any time. It may have no receive when a line comes. A receive without a
 * request copies what is ahead, and remembers nothing. Left out: tags and other sizes (p2p.pml), the
 * other uses of a ferry (ferry.pml), which of the two ferries it is, and messages without a ferry.
 *
 * FAULT_any_receive      a receive counts bytes that another receive has copied
 * FAULT_held_ahead       a receiver that reads a line about bytes that are ahead holds the ferry
 * FAULT_held_unread      a receiver takes the message and holds the ferry, then copies the rest
 * FAULT_no_line_left     lines about bytes that are ahead take the last line, too
 * FAULT_said_too_early   the line goes out, then the piece is stored
 */

#define MESSAGES 2
#define RECEIVES 3
#define PIECES   3
#define LINES    2
#define NONE     7

mtype = { AHEAD, EAGER };

/* ---- what is shared ---- */

#define PIECE(m, i) ((m) * 4 + (i) + 1)
byte ferry[PIECES]; /* the message and the piece that it holds */
chan lines = [LINES] of { mtype, byte, byte }; /* kind, message, pieces */
bool is_back = true; /* the receiver has given the ferry back */

/* ---- the sender ---- */

#ifdef FAULT_no_line_left
#define MAY_GO_AHEAD (len(lines) < LINES)
#else
#define MAY_GO_AHEAD (len(lines) + 1 < LINES)
#endif

/* The sender sends at once, and waits for nothing. */
inline send(m)
{
    i = 0;
    do
    :: i < PIECES - 1 && MAY_GO_AHEAD ->
#ifdef FAULT_said_too_early
        lines!AHEAD,m,(i + 1);
        ferry[i] = PIECE(m, i);
#else
        ferry[i] = PIECE(m, i);
        lines!AHEAD,m,(i + 1);
#endif
        i++
    :: else -> break
    od;
    do
    :: i < PIECES ->
        ferry[i] = PIECE(m, i);
        i++
    :: else -> break
    od;
    assert(nfull(lines));
    lines!EAGER,m,PIECES
}

proctype Sender()
{
    byte m, i;
    do
    :: m < MESSAGES && is_back && nfull(lines) ->
        is_back = false;
        send(m);
        m++
    :: m == MESSAGES -> break
    od
}

/* ---- the receiver ---- */

/* The pieces, from the first one on, that the receive does not have. */
inline copy(count)
{
    do
    :: i < count ->
        memory[posted * PIECES + i] = ferry[i];
        i++
    :: else -> break
    od
}

inline take(m)
{
#ifdef FAULT_any_receive
    i = (ahead_message == m -> ahead_count : 0);
#else
    i = (ahead_message == m && ahead_receive == posted -> ahead_count : 0);
#endif
#ifdef FAULT_held_unread
    is_back = true;
    copy(PIECES);
#else
    copy(PIECES);
    is_back = true;
#endif
    i = 0;
    do
    :: i < PIECES ->
        assert(memory[posted * PIECES + i] == PIECE(m, i));
        i++
    :: else -> break
    od;
    i = 0;
    assert(m == over); /* in their order */
    over++;
    posted = NONE
}

inline read_line()
{
    lines?<kind,m,n>;
    if
    :: kind == AHEAD && posted != NONE ->
        i = (ahead_message == m && ahead_receive == posted -> ahead_count : 0);
        copy(n);
        i = 0;
        if
        :: ahead_receive = posted; ahead_message = m; ahead_count = n
        :: ahead_receive = NONE; ahead_message = NONE; ahead_count = 0 /* it has no request */
        fi;
#ifdef FAULT_held_ahead
        is_back = true
#endif
    :: kind == AHEAD && posted == NONE
    :: kind == EAGER && posted != NONE -> take(m)
    :: kind == EAGER && posted == NONE -> stray = m
    fi;
    atomic {
        lines?_,_,_;
        kind = 0;
        m = 0;
        n = 0
    }
}

proctype Receiver()
{
    byte memory[RECEIVES * PIECES];
    byte ahead_receive = NONE, ahead_message = NONE, ahead_count;
    byte posted = NONE, stray = NONE, next, over, m, n, i;
    mtype kind;
    do
    :: posted == NONE && next < RECEIVES && over < MESSAGES ->
        posted = next;
        next++;
        if
        :: stray != NONE ->
            m = stray;
            stray = NONE;
            take(m);
            m = 0
        :: else
        fi
    :: posted == 0 && next == 1 && over == 0 -> posted = NONE /* it times out, or is cancelled */
    :: over < MESSAGES && stray == NONE && nempty(lines) -> read_line()
    :: over == MESSAGES -> break
    od
}

init
{
    atomic {
        run Sender();
        run Receiver()
    }
    _nr_pr == 1; /* both have ended */
    assert(is_back && empty(lines))
}
