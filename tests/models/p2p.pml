/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Point-to-point: messages arrive whole, once and in order; no rank waits for ever; a sender that
 * left harms no rank.
 *
 * Mirrors src/shm/proto/pair.c, src/shm/p2p/send.c, receive.c and match.c, and the check of LEFT in
 * deadline.c; docs/internals/protocol/messages.md, P2P-2 to P2P-8, P2P-42 to P2P-45, P2P-57 and P2P-61.
 * There are three ranks, each with at most three sends and receives. A rank waits for some of them
 * before it posts the next. A pair has one line, so that it is always full. A rank has two eager buffers,
 * one of them for bytes that no receive has asked for. A line holds one unit of a message, a buffer two.
 * Messages have one to three units. A message of three is announced (FIRST with `asks`), with a prefix of
 * two if a buffer is free. One rank may stop for ever, one may leave early. A rank makes passes while
 * something of its own is pending; the order in which they look at the peers is left open. A message is
 * identified by its sender's request, which stands for tag, size and number. Left out: messages to the rank
 * itself (the same lines), sleeping (mail.pml), deaths and time-outs (they fail the group), messages that
 * come unasked (pool.pml, fragments.pml), hand-off buffers, and sends that wait until they are read.
 *
 * FAULT_buffers_alone       a stream never goes through the lines
 * FAULT_whole_takes_all     all buffers may hold messages that have no receive
 * FAULT_header_stays        a header that finds no receive stays in its line
 * FAULT_unexpected_unseen   a receive looks at messages that come later, not at unexpected ones
 * FAULT_taken_before_read   `taken` moves, then the line is read
 * FAULT_word_before_read    the buffer's word moves, then the buffer is read
 * FAULT_answers_lost        CTS and NACK are dropped when the line is full
 * FAULT_writes_first        a rank that has something to write, and no line, does not read
 * FAULT_overtakes           of the messages to a rank the last goes out first
 * FAULT_left_before_lines   the lines are looked at first, then the state of their writer
 * FAULT_lines_after_left    LEFT is published while a pass is running
 */

#define RANKS   3
#define OPS     3
#define BUFFERS 2
#define ANY     3 /* source */
#define NOTHING 15

#ifdef FAULT_whole_takes_all
#define WHOLE_BUFFERS 2
#else
#define WHOLE_BUFFERS 1
#endif

/* A request: its kind in one byte, and its state. */
#define SEND(peer, tag, size) (1 | ((peer) << 1) | ((tag) << 3) | ((size) << 4))
#define RECV(peer, tag, size) (((peer) << 1) | ((tag) << 3) | ((size) << 4))
#define SYNC                  64

#define SENDS(r) (what[r] & 1)
#define PEER(r)  ((what[r] >> 1) & 3)
#define TAG(r)   ((what[r] >> 3) & 1)
#define SIZE(r)  ((what[r] >> 4) & 3)
#define WAITS(r) (what[r] & SYNC)
#define RANK(r)  ((r) / OPS)

byte what[RANKS * OPS]; /* 0: none */

/* As in message.h; those from OVER on have ended. */
#define NEW        0
#define QUEUED     1
#define ANNOUNCED  2
#define STREAMING  3
#define POSTED     4
#define GRANT_DUE  5
#define REFUSE_DUE 6
#define FILLING    7
#define OVER       8
#define MISFIT     9
#define PEER_LEFT  10

byte state[RANKS * OPS];
byte source[RANKS * OPS]; /* the send that a receive was matched with */
byte moved[RANKS * OPS];
bool matched[RANKS * OPS]; /* a send whose header has found its receive */

/* ---- what is shared ---- */

#define EAGER 1
#define FIRST 2 /* the rest waits for CTS */
#define CTS   3
#define NACK  4
#define MORE  5

/* The pair's only line; the counters modulo 2. */
#define PAIR(from, to) ((from) * RANKS + (to))
bit number[RANKS * RANKS];
bit taken[RANKS * RANKS];
byte line_kind[RANKS * RANKS];
byte line_send[RANKS * RANKS];
byte line_at[RANKS * RANKS]; /* MORE: the first unit; its buffer, or BUFFERS: in the line */
byte line_buffer[RANKS * RANKS];

#define FULL(from, to) (number[PAIR(from, to)] != taken[PAIR(from, to)])

/* The first unit in a buffer, and its message. */
#define UNIT(send, at) ((send) * 4 + (at) + 1)
#define BUFFER(w)      (me * BUFFERS + (w))
byte buffer[RANKS * BUFFERS];
bit word[RANKS * RANKS * BUFFERS]; /* the reader's, modulo 2 */
#define WORD(reader, owner, w) word[PAIR(reader, owner) * BUFFERS + (w)]

mtype = { ALIVE, LEFT, STOPPED };
mtype member[RANKS] = ALIVE;
byte leaver = NOTHING, stopper = NOTHING; /* the ranks that may do so */

/* ---- private to a rank ---- */

/* A lease: 0 free, else the reader + 1, and whether no receive has asked for its bytes. */
byte lease[RANKS * BUFFERS];
bit due[RANKS * BUFFERS];
#define READER(w) ((lease[BUFFER(w)] & 3) - 1)
#define LENT(w)   (lease[BUFFER(w)] != 0)
#define IS_BACK(w) /* a rank that has left reads no more */ \
    (LENT(w) && (WORD(READER(w), me, w) == due[BUFFER(w)] || member[READER(w)] == LEFT))
#define IS_FREE(w) (!LENT(w) || IS_BACK(w))
#define CARRIES(w, peer) (lease[BUFFER(w)] == (peer) + 1) /* chunks */

/* Headers that no receive has taken, in the order of arrival: kind, send, buffer. */
chan unexpected[RANKS] = [4] of { byte, byte, byte };

#define NEXT(n)       ((me + (n)) % RANKS)
#define MINE(i)       (me * OPS + (i))
#define PENDS(r)      (state[r] != NEW && state[r] < OVER)
#define PENDING       (PENDS(MINE(0)) || PENDS(MINE(1)) || PENDS(MINE(2)))
#define GRANTS(r, p)  ((state[r] == GRANT_DUE || state[r] == REFUSE_DUE) && RANK(source[r]) == p)
#define ANSWERS(p)    (GRANTS(MINE(0), p) || GRANTS(MINE(1), p) || GRANTS(MINE(2), p))
#ifdef FAULT_buffers_alone
#define ROOM(p) (IS_FREE(0) || IS_FREE(1))
#else
#define ROOM(p) (IS_FREE(0) || IS_FREE(1) || !(CARRIES(0, p) || CARRIES(1, p)))
#endif
#define GOES_OUT(r, p) \
    (PEER(r) == p && (state[r] == QUEUED || (state[r] == STREAMING && ROOM(p))))
#define SENDABLE(p) (GOES_OUT(MINE(0), p) || GOES_OUT(MINE(1), p) || GOES_OUT(MINE(2), p))
#define WRITABLE(p) (!FULL(me, p) && (ANSWERS(p) || SENDABLE(p)))
#if defined(FAULT_writes_first)
#define READABLE(p) (FULL(p, me) && !(FULL(me, p) && (ANSWERS(p) || SENDABLE(p))))
#elif defined(FAULT_header_stays)
#define FITS(r, p) \
    (state[r] == POSTED && TAG(r) == TAG(line_send[PAIR(p, me)]) && (PEER(r) == p || PEER(r) == ANY))
#define READABLE(p) \
    (FULL(p, me) && (line_kind[PAIR(p, me)] > FIRST || FITS(MINE(0), p) || FITS(MINE(1), p) || \
                     FITS(MINE(2), p)))
#else
#define READABLE(p) FULL(p, me)
#endif

/* ---- reading ---- */

/* The receive r gets this header. Leaves in `w` the buffer to return. */
inline take_message()
{
    source[r] = send;
    assert(!matched[send]); /* once, and after what was sent before with this tag */
    matched[send] = true;
    for (k : RANK(send) * OPS .. RANK(send) * OPS + OPS - 1) {
        assert(k >= send || matched[k] || !SENDS(k) || PEER(k) != me || TAG(k) != TAG(send))
    }
    if
    :: kind == FIRST && SIZE(send) == SIZE(r) ->
        state[r] = GRANT_DUE;
        moved[r] = (w < BUFFERS -> 2 : 0) /* and is read after the CTS has gone: read_prefix() */
    :: kind == FIRST && SIZE(send) != SIZE(r) -> state[r] = REFUSE_DUE
    :: kind == EAGER ->
        if
        :: w < BUFFERS && SIZE(send) == SIZE(r) ->
            assert(buffer[RANK(send) * BUFFERS + w] == UNIT(send, 0))
        :: else
        fi;
        state[r] = (SIZE(send) == SIZE(r) -> OVER : MISFIT)
    fi
}

/* Of the receives that the header fits, the one that was posted first. */
inline match(send)
{
    r = NOTHING;
    for (k : MINE(0) .. MINE(OPS - 1)) {
        if
        :: r == NOTHING && state[k] == POSTED && TAG(k) == TAG(send) &&
           (PEER(k) == RANK(send) || PEER(k) == ANY) -> r = k
        :: else
        fi
    }
}

inline take_header(p)
{
    match(send);
    if
    :: r != NOTHING -> take_message()
    :: else ->
        unexpected[me]!kind,send,w;
        w = BUFFERS /* it stays lent */
    fi
}

inline take_more(p)
{
    r = NOTHING;
    for (k : MINE(0) .. MINE(OPS - 1)) {
        if
        :: state[k] == FILLING && source[k] == send -> r = k
        :: else
        fi
    }
    assert(r != NOTHING); /* otherwise the memory would be reported as damaged */
    assert(line_at[PAIR(p, me)] == moved[r]);
    if
    :: w < BUFFERS ->
        assert(buffer[p * BUFFERS + w] == UNIT(send, moved[r]));
        moved[r] = (moved[r] + 2 < SIZE(r) -> moved[r] + 2 : SIZE(r))
    :: else -> moved[r]++
    fi;
    if
    :: moved[r] == SIZE(r) -> state[r] = OVER; moved[r] = 0
    :: else
    fi
}

inline read_line(p)
{
    atomic {
        kind = line_kind[PAIR(p, me)];
        send = line_send[PAIR(p, me)];
        w = line_buffer[PAIR(p, me)];
        if
        :: kind == EAGER || kind == FIRST -> take_header(p)
        :: kind == CTS -> assert(state[send] == ANNOUNCED); state[send] = STREAMING
        :: kind == NACK -> assert(state[send] == ANNOUNCED); state[send] = MISFIT
        :: kind == MORE -> take_more(p)
        fi
    }
}

/* The CTS goes out, if there is a line, then the prefix is read. */
inline read_prefix(p)
{
    if
    :: kind == FIRST && w < BUFFERS ->
        atomic { prefix = UNIT(send, 0); held = w };
        if
        :: ANSWERS(p) && !FULL(me, p) -> write(p)
        :: else
        fi;
        atomic {
            assert(buffer[p * BUFFERS + held] == prefix);
            w = held;
            prefix = 0;
            held = 0
        }
    :: else
    fi
}

/* shc_place_return() */
inline return_buffer(owner)
{
    if
    :: w < BUFFERS -> WORD(me, owner, w) = 1 - WORD(me, owner, w)
    :: else
    fi
}

inline read(p)
{
#if defined(FAULT_taken_before_read)
    taken[PAIR(p, me)] = 1 - taken[PAIR(p, me)];
    read_line(p);
    return_buffer(p);
#elif defined(FAULT_word_before_read)
    w = line_buffer[PAIR(p, me)];
    return_buffer(p);
    read_line(p);
    taken[PAIR(p, me)] = 1 - taken[PAIR(p, me)];
#else
    read_line(p);
    read_prefix(p);
    return_buffer(p);
    taken[PAIR(p, me)] = 1 - taken[PAIR(p, me)]; /* shc_pair_take() */
#endif
    atomic { kind = 0; send = 0; w = 0; r = 0; k = 0 }
}

/* ---- writing ---- */

/* A buffer for p in `w`, or BUFFERS. */
inline lend(p, unasked)
{
    w = BUFFERS;
    k = 0; /* those lent unasked */
    for (r : 0 .. BUFFERS - 1) {
        if
        :: IS_BACK(r) -> lease[BUFFER(r)] = 0 /* reclaim() */
        :: else
        fi;
        if
        :: !LENT(r) && w == BUFFERS -> w = r
        :: lease[BUFFER(r)] > 4 -> k++
        :: else
        fi
    }
    if
    :: unasked && k >= WHOLE_BUFFERS -> w = BUFFERS
    :: else
    fi;
    if
    :: w < BUFFERS ->
        lease[BUFFER(w)] = p + 1 + (unasked -> 4 : 0);
        due[BUFFER(w)] = 1 - WORD(p, me, w)
    :: else
    fi
}

/* What goes out next to p: CTS and NACK, then the messages in their order. */
inline choose(p)
{
    send = NOTHING;
    for (k : MINE(0) .. MINE(OPS - 1)) {
        if
        :: send == NOTHING && GRANTS(k, p) -> send = k
        :: else
        fi
    }
    for (k : MINE(0) .. MINE(OPS - 1)) {
        if
#ifdef FAULT_overtakes
        :: (send == NOTHING || SENDS(send)) && SENDS(k) && GOES_OUT(k, p) -> send = k
#else
        :: send == NOTHING && SENDS(k) && GOES_OUT(k, p) -> send = k
#endif
        :: else
        fi
    }
}

#ifdef FAULT_answers_lost
inline drop_answers(p)
{
    atomic {
        for (k : MINE(0) .. MINE(OPS - 1)) {
            if
            :: GRANTS(k, p) -> state[k] = (state[k] == GRANT_DUE -> FILLING : MISFIT)
            :: else
            fi
        }
        k = 0
    }
}
#endif

/* The buffer is filled, then the line is released. */
inline write(p)
{
    atomic {
        choose(p);
        w = BUFFERS;
        if
        :: state[send] == GRANT_DUE -> kind = CTS
        :: state[send] == REFUSE_DUE -> kind = NACK
        :: state[send] == QUEUED ->
            if
            :: SIZE(send) >= 2 -> lend(p, true)
            :: else
            fi;
            kind = (SIZE(send) == 1 || (SIZE(send) == 2 && w < BUFFERS) -> EAGER : FIRST)
        :: state[send] == STREAMING ->
            lend(p, false);
            kind = MORE;
            /* Through the lines only when chunks to another rank have a buffer: messages without
             * a receive never have all buffers. */
            assert(w < BUFFERS || (LENT(0) && lease[BUFFER(0)] <= 4) ||
                   (LENT(1) && lease[BUFFER(1)] <= 4))
        fi;
        if
        :: w < BUFFERS -> buffer[BUFFER(w)] = UNIT(send, moved[send])
        :: else
        fi
    }
    atomic {
        assert(!FULL(me, p));
        line_kind[PAIR(me, p)] = kind;
        line_send[PAIR(me, p)] = (SENDS(send) -> send : source[send]);
        line_at[PAIR(me, p)] = moved[send];
        line_buffer[PAIR(me, p)] = w;
        number[PAIR(me, p)] = 1 - number[PAIR(me, p)]; /* shc_pair_post() */
        if
        :: kind == CTS -> state[send] = FILLING
        :: kind == NACK -> state[send] = MISFIT
        :: kind == EAGER -> state[send] = OVER
        :: kind == FIRST ->
            state[send] = ANNOUNCED;
            moved[send] = (w < BUFFERS -> 2 : 0) /* put_piece() */
        :: kind == MORE ->
            moved[send] = moved[send] + (w < BUFFERS -> 2 : 1);
            if
            :: moved[send] >= SIZE(send) -> state[send] = OVER; moved[send] = 0
            :: else
            fi
        fi;
        kind = 0; send = 0; w = 0; r = 0; k = 0
    }
}

/* ---- judging ---- */

#define SOURCE(r)  (state[r] == POSTED -> PEER(r) : RANK(source[r]))
#define WITH(r, p) (PENDS(r) && (SENDS(r) -> PEER(r) : SOURCE(r)) == (p))
#define WANTS(p)   (WITH(MINE(0), p) || WITH(MINE(1), p) || WITH(MINE(2), p))
#define IS_GONE(p) (member[p] == LEFT && !FULL(p, me))

/* Has k been sent in full, and is it what the receive r waits for? */
#define HAS_COME(k, r) \
    (SENDS(k) && PEER(k) == me && TAG(k) == TAG(r) && state[k] == OVER && !matched[k] && \
     (PEER(r) == RANK(k) || PEER(r) == ANY))

/* The lines were looked at after the state: p has left, and nothing of it is still to come. */
inline judge(p)
{
    for (r : MINE(0) .. MINE(OPS - 1)) {
        if
        :: WITH(r, p) || (WITH(r, ANY) && IS_GONE(NEXT(1)) && IS_GONE(NEXT(2))) ->
            for (k : 0 .. RANKS * OPS - 1) {
                assert(SENDS(r) || state[r] != POSTED || !HAS_COME(k, r))
            }
            assert(SENDS(r) || state[r] == POSTED || state[source[r]] != OVER);
            state[r] = PEER_LEFT
        :: else
        fi
    }
    r = 0;
    k = 0
}

#ifdef FAULT_left_before_lines
#define JUDGES(p) (emptied == (p) && member[p] == LEFT && (WANTS(p) || WANTS(ANY)))
#else
#define JUDGES(p) (IS_GONE(p) && (WANTS(p) || (WANTS(ANY) && IS_GONE(NEXT(1)) && IS_GONE(NEXT(2)))))
#endif

/* ---- a rank ---- */

#define POSTABLE  (next < OPS && what[MINE(next)] != 0 && \
                  (next == 0 || !WAITS(MINE(next - 1)) || !PENDS(MINE(next - 1))))
#define STUCK(r)  (PENDS(r) && !(stopper != NOTHING && member[stopper] == STOPPED && WITH(r, stopper)))
#define THROUGH   (!POSTABLE && !STUCK(MINE(0)) && !STUCK(MINE(1)) && !STUCK(MINE(2)))

inline post()
{
    atomic {
        w = BUFFERS;
        r = MINE(next);
        next++;
        if
        :: SENDS(r) -> state[r] = QUEUED
        :: else ->
            state[r] = POSTED;
#ifndef FAULT_unexpected_unseen
            for (i : 1 .. len(unexpected[me])) {
                unexpected[me]?kind,send,w;
                if
                :: state[r] == POSTED && TAG(send) == TAG(r) &&
                   (PEER(r) == RANK(send) || PEER(r) == ANY) ->
                    take_message();
                    returns = w;
                    owner = RANK(send);
                    came = kind;
                    from = send
                :: else -> unexpected[me]!kind,send,w
                fi
            }
            i = 0;
            w = returns;
            kind = came;
            send = from;
            returns = BUFFERS
#endif
        fi
    };
    read_prefix(owner);
    return_buffer(owner);
    atomic { owner = 0; came = 0; from = 0; kind = 0; send = 0; w = 0; r = 0; k = 0 }
}

proctype Rank(byte me)
{
    byte next, kind, send, w, r, k, i, owner, came, from, prefix, held;
    byte returns = BUFFERS;
    byte emptied = NOTHING;
    do
    :: POSTABLE -> post()
    :: PENDING && READABLE(NEXT(1)) -> read(NEXT(1))
    :: PENDING && READABLE(NEXT(2)) -> read(NEXT(2))
    :: WRITABLE(NEXT(1)) -> write(NEXT(1))
    :: WRITABLE(NEXT(2)) -> write(NEXT(2))
#ifdef FAULT_answers_lost
    :: FULL(me, NEXT(1)) && ANSWERS(NEXT(1)) -> drop_answers(NEXT(1))
    :: FULL(me, NEXT(2)) && ANSWERS(NEXT(2)) -> drop_answers(NEXT(2))
#endif
#ifdef FAULT_left_before_lines
    :: WANTS(NEXT(1)) && !FULL(NEXT(1), me) && emptied == NOTHING -> emptied = NEXT(1)
#endif
    :: atomic { JUDGES(NEXT(1)) -> judge(NEXT(1)) }
    :: atomic { JUDGES(NEXT(2)) -> judge(NEXT(2)) }
    :: me == stopper -> member[me] = STOPPED; goto over
    :: me == leaver -> goto leaves
    :: THROUGH -> goto leaves
    od;
leaves:
    member[me] = LEFT;
#ifdef FAULT_lines_after_left
    if
    :: WRITABLE(NEXT(1)) -> write(NEXT(1))
    :: WRITABLE(NEXT(2)) -> write(NEXT(2))
    :: else
    fi;
#endif
over:
    skip
}

/* ---- what they do ---- */

#define RUN(rank, a, b, c) \
    what[(rank) * OPS] = a; \
    what[(rank) * OPS + 1] = b; \
    what[(rank) * OPS + 2] = c

init
{
    byte x, y, z, t;
    atomic {
        select(x : 1 .. 3);
        select(y : 1 .. 3);
        select(t : 0 .. 1);
        if
        :: /* two ranks send to one another; tags in the opposite order, or, with one tag, misfits */
           select(z : 1 .. 3);
           RUN(0, SEND(1, 0, x), SEND(1, t, y), RECV(1, 0, z));
           if
           :: RUN(1, SEND(0, 0, z), RECV(0, t, y) | SYNC, RECV(0, 0, x))
           :: RUN(1, RECV(0, 0, x) | SYNC, RECV(0, t, y) | SYNC, SEND(0, 0, z))
           fi
        :: /* both have more to send than a line holds, and no rank receives the second */
           RUN(0, SEND(1, 0, x), SEND(1, 1, 1), RECV(1, 0, y));
           RUN(1, SEND(0, 0, y), SEND(0, 1, 1), RECV(0, 0, x))
        :: /* 1 wants 2 first, 2 wants 0 first */
           RUN(0, SEND(1, 0, x), SEND(2, 0, y), 0);
           RUN(1, RECV(2, 0, 1 + t) | SYNC, RECV(0, 0, x), 0);
           RUN(2, RECV(0, 0, y) | SYNC, SEND(1, 0, 1 + t), 0)
        :: /* two that have no receive, and one that has one */
           RUN(0, SEND(1, 0, 2), SEND(1, 0, 2), SEND(1, 1, 3));
           RUN(1, RECV(0, 1, 3) | SYNC, RECV(0, 0, 2), RECV(0, 0, 2))
        :: /* 1 may stop with buffers of 0, of which 2 wants a message */
           RUN(0, SEND(1, 0, 2), SEND(1, 1, 3), SEND(2, 0, y));
           RUN(1, RECV(0, 1, 3), RECV(0, 0, 2), 0);
           RUN(2, RECV(0, 0, y), 0, 0);
           stopper = 1
        :: /* any source together with a named one */
           RUN(0, SEND(1, 0, x), SEND(1, 1, y), 0);
           RUN(2, SEND(1, 0, x), 0, 0);
           if
           :: RUN(1, RECV(ANY, 0, x), RECV(ANY, 0, x) | SYNC, RECV(0, 1, y))
           :: RUN(1, RECV(0, 1, y) | SYNC, RECV(ANY, 0, x), RECV(ANY, 0, x))
           fi
        :: /* 0 may leave at any time; so may 1 */
           RUN(0, SEND(1, 0, x), SEND(1, 1, y), 0);
           if
           :: RUN(1, RECV(0, t, (t -> y : x)) | SYNC, RECV(0, 1 - t, (t -> x : y)), 0)
           :: RUN(1, RECV(ANY, t, (t -> y : x)), 0, 0)
           fi;
           select(leaver : 0 .. 1)
        fi;
        x = 0; y = 0; z = 0; t = 0;
        run Rank(0);
        run Rank(1);
        run Rank(2)
    }
}
