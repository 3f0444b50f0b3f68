/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A message by ferry that is copied while it is stored: whichever receive takes it has all of it, its sender
 * waits for nobody in the middle, and the ferry is stored to by nobody but who holds it.
 *
 * Mirrors post_by_ferry() in src/shm/p2p/send.c, take_ahead(), take_message() and receive_ahead()
 * in receive.c; docs/internals/protocol.md, P2P-35 to P2P-41. One sender with two messages of three
 * pieces, one ferry, a few lines. The receiver posts its receives one after the other, and may
 * withdraw the first one at any time; it may have no receive when a line comes. A receive without a
 * request copies what is ahead and keeps nothing in mind. Left out: tags and other sizes (p2p.pml),
 * what else goes by ferry (ferry.pml), which one of two, and messages that have none.
 *
 * FAULT_any_receive      a receive has what another one has copied
 * FAULT_held_ahead       who finds so much ahead holds the ferry
 * FAULT_held_unread      who takes the message holds the ferry, then copies the rest
 * FAULT_no_line_left     lines ahead take the last one, too
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
byte ferry[PIECES]; /* which message's which piece lies there */
chan lines = [LINES] of { mtype, byte, byte }; /* kind, message, pieces */
bool is_back = true; /* the receiver has handed the ferry over again */

/* ---- the sender ---- */

#ifdef FAULT_no_line_left
#define MAY_GO_AHEAD (len(lines) < LINES)
#else
#define MAY_GO_AHEAD (len(lines) + 1 < LINES)
#endif

/* At once: it waits for nothing. */
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

/* The pieces from the first one on that the receive has not. */
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
    :: posted == 0 && next == 1 && over == 0 -> posted = NONE /* its time is over, or it is cancelled */
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
