/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A message in a long hand-off buffer that is read while it is stored: the receive that takes it has all
 * of it, its sender never waits in the middle, and only the rank that holds the buffer stores to it.
 *
 * Mirrors post_by_long() in src/shm/p2p/send.c, take_message() and take_more() in receive.c, and
 * shc_unexpected_keep() and shc_unexpected_add() in match.c; docs/internals/protocol/messages.md, P2P-12,
 * P2P-24, P2P-25, P2P-27, P2P-35, P2P-36 and P2P-60. One sender has three messages of three pieces, one
 * long hand-off buffer and a few lines. A message goes in fragments in that buffer, or through the pool, a
 * piece at a time and among the others; or whole in the buffer while the rest of another one is to come.
 * Receives are posted in any order, at any time. One of them may be withdrawn and posted again, and one of
 * them may be of another type. A rank that holds the buffer stores to it at once. Left out: tags and
 * receives from any rank (p2p.pml), the bytes in the pool and its credit, and that a NACK may find no line
 * (pool.pml), the other uses of a long hand-off buffer (exchange_messages.pml), and the other one of the
 * two. A deadline in the middle of a message fails the group, so no receive is withdrawn there.
 *
 * FAULT_held_ahead          a receiver that reads a fragment holds the buffer
 * FAULT_held_unread         a receiver holds the buffer, then copies the last fragment
 * FAULT_held_unexpected     a receiver holds the buffer of a message that has no receive
 * FAULT_no_line_left        fragments take the last line, too
 * FAULT_said_too_early      the line goes out, then the piece is stored
 * FAULT_one_offset          each fragment is stored at the beginning of the buffer
 * FAULT_two_unasked         a message goes in fragments while the rest of another one is to come
 * FAULT_half_lost           a receive that takes a message in the middle gets only what is to come
 * FAULT_drop_unheld         the last fragment of a message that is dropped does not hand the buffer over
 * FAULT_withdrawn_halfway   a receive is withdrawn while its message is coming
 */

#define MESSAGES 3
#define PIECES   3
#define LINES    3
#define NONE     7

mtype = { EAGER, FIRST, MORE };
mtype = { NEW, POSTED, FILLING, OVER };

byte misfit; /* the message whose receive is of another type, or NONE */

/* ---- what is shared ---- */

#define PIECE(m, i) ((m) * 4 + (i) + 1)
#ifdef FAULT_one_offset
#define AT(i) 0
#else
#define AT(i) (i)
#endif

byte buffer[PIECES]; /* the message and the piece that it holds */
chan lines = [LINES] of { mtype, byte, bool, byte, byte }; /* frame, message, in the buffer; pieces: from, to */
bool is_back = true; /* the receiver has handed the buffer back */
byte nack = NONE;

/* ---- the sender ---- */

#ifdef FAULT_no_line_left
#define MAY_GO_AHEAD (len(lines) < LINES)
#else
#define MAY_GO_AHEAD (len(lines) + 1 < LINES)
#endif
#ifdef FAULT_two_unasked
#define MAY_BEGIN true
#else
#define MAY_BEGIN (rest == NONE)
#endif

inline store()
{
    assert(!is_back);
    buffer[AT(i)] = PIECE(next, i)
}

/* All of it at once, without a wait. */
inline send_by_long()
{
    is_back = false;
    frame = EAGER;
    do
    :: i < PIECES - 1 && MAY_GO_AHEAD && (frame == MORE || MAY_BEGIN) ->
        frame = (i == 0 -> FIRST : MORE);
#ifdef FAULT_said_too_early
        lines!frame,next,true,i,(i + 1);
        store();
#else
        store();
        lines!frame,next,true,i,(i + 1);
#endif
        frame = MORE;
        i++
    :: else -> break
    od;
    from = i;
    do
    :: i < PIECES -> store(); i++
    :: else -> break
    od;
    assert(nfull(lines));
    atomic {
        lines!frame,next,true,from,PIECES;
        frame = 0;
        from = 0;
        i = 0;
        next++
    }
}

inline send_by_pool()
{
    atomic {
        if
        :: rest == NONE ->
            lines!FIRST,next,false,0,1;
            rest = next;
            sent = 1;
            next++
        :: rest != NONE ->
            lines!MORE,rest,false,sent,(sent + 1);
            sent++;
            if
            :: sent == PIECES -> rest = NONE; sent = 0
            :: else
            fi
        fi
    }
}

proctype Sender()
{
    mtype frame;
    byte rest = NONE; /* the message through the pool that is not yet sent */
    byte sent, next, from, i;
    do
    :: next < MESSAGES && is_back && nfull(lines) -> send_by_long()
    :: (rest != NONE || next < MESSAGES) && nfull(lines) -> send_by_pool()
    :: atomic { rest != NONE && nack == rest -> rest = NONE; sent = 0 }
    :: rest == NONE && next == MESSAGES -> break
    od
}

/* ---- the receiver ---- */

#define PENDS(m) (state[m] == POSTED || state[m] == FILLING)
#define PENDING  (PENDS(0) || PENDS(1) || PENDS(2))
#ifdef FAULT_withdrawn_halfway
#define MAY_WITHDRAW(m) PENDS(m)
#else
#define MAY_WITHDRAW(m) (state[m] == POSTED)
#endif

/* The receiver's own bytes go in, and the buffer goes back. */
inline hold()
{
    d_step {
        assert(!is_back);
        buffer[0] = 0;
        buffer[1] = 0;
        buffer[2] = 0;
        is_back = true
    }
}

/* To the receive, the pieces up to this one. */
inline copy(to)
{
#ifdef FAULT_held_unread
    if
    :: in_long && to == PIECES -> hold()
    :: else
    fi;
#endif
    do
    :: got[m] < to ->
        assert(!in_long || buffer[AT(got[m])] == PIECE(m, got[m]));
        got[m]++
    :: else -> break
    od;
#if defined(FAULT_held_ahead)
    if
    :: in_long -> hold()
    :: else
    fi;
#elif !defined(FAULT_held_unread)
    if
    :: in_long && to == PIECES -> hold()
    :: else
    fi;
#endif
    if
    :: got[m] == PIECES -> state[m] = OVER
    :: else -> state[m] = FILLING
    fi
}

/* A receive takes the message, of which so many pieces have come. */
inline take(to)
{
    if
    :: m == misfit && to == PIECES ->
        state[m] = OVER;
        if
        :: in_long -> hold()
        :: else
        fi
    :: m == misfit && to < PIECES -> /* the rest is dropped as it comes */
        atomic {
            state[m] = OVER;
            got[m] = to;
            coming = m;
            nack = (in_long -> NONE : m)
        }
    :: m != misfit ->
#ifdef FAULT_half_lost
        if
        :: coming == m -> got[m] = 0; state[m] = FILLING
        :: else -> copy(to)
        fi;
#else
        copy(to);
#endif
        if
        :: coming == m -> coming = NONE
        :: else
        fi
    fi
}

inline keep()
{
    atomic {
        by_long[m] = in_long;
        kept[m] = to;
        if
        :: frame == FIRST -> coming = m
        :: else
        fi
    };
#ifdef FAULT_held_unexpected
    if
    :: in_long && to == PIECES -> hold()
    :: else
    fi
#endif
}

/* More of the message that no receive fills itself with. */
inline add()
{
    assert(coming == m);
    if
    :: state[m] == OVER ->
        assert(from == got[m]);
        got[m] = to
    :: else ->
        assert(from == kept[m] && by_long[m] == in_long);
        kept[m] = to
    fi;
    if
    :: to == PIECES ->
        coming = NONE;
#ifndef FAULT_drop_unheld
        if
        :: state[m] == OVER && in_long -> hold()
        :: else
        fi
#endif
    :: else
    fi
}

inline read_line()
{
    lines?<frame,m,in_long,from,to>;
    if
    :: frame == MORE && state[m] == FILLING -> assert(from == got[m]); copy(to)
    :: frame == MORE && state[m] != FILLING -> add()
    :: frame != MORE ->
        assert(frame == EAGER || coming == NONE || state[coming] == OVER);
        if
        :: state[m] == POSTED -> take(to)
        :: else -> keep()
        fi
    fi;
    atomic { lines?_,_,_,_,_; frame = 0; m = 0; in_long = false; from = 0; to = 0 }
}

inline post(which)
{
    state[which] = POSTED;
    if
    :: kept[which] > 0 ->
        atomic { m = which; in_long = by_long[m]; to = kept[m] };
        take(to);
        atomic { kept[m] = 0; by_long[m] = false; m = 0; in_long = false; to = 0 }
    :: else
    fi
}

inline withdraw(which)
{
    atomic { state[which] = NEW; withdrawn = true }
}

proctype Receiver()
{
    mtype state[MESSAGES] = NEW;
    byte got[MESSAGES], kept[MESSAGES]; /* pieces in the receive; pieces that came, and have none */
    bool by_long[MESSAGES];             /* of a kept message */
    byte coming = NONE;                 /* kept or dropped, and its rest is to come */
    mtype frame;
    byte m, from, to;
    bool in_long, withdrawn;
    do
    :: state[0] == NEW -> post(0)
    :: state[1] == NEW -> post(1)
    :: state[2] == NEW -> post(2)
    :: !withdrawn && MAY_WITHDRAW(0) -> withdraw(0)
    :: !withdrawn && MAY_WITHDRAW(1) -> withdraw(1)
    :: !withdrawn && MAY_WITHDRAW(2) -> withdraw(2)
    :: PENDING && nempty(lines) -> read_line()
    :: state[0] == OVER && state[1] == OVER && state[2] == OVER -> break
    od
}

init
{
    atomic {
        if
        :: misfit = NONE
        :: misfit = 0
        :: misfit = 1
        fi;
        run Sender();
        run Receiver()
    }
    _nr_pr == 1; /* both have ended */
    assert(is_back || nempty(lines)) /* a receiver with nothing pending reads no lines */
}
