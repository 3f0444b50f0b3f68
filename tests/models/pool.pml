/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The eager pool: what goes through it arrives whole and once, in whatever order it is received. No rank
 * waits for ever, and no more is put aside than is allowed.
 *
 * Mirrors the pool and the credit of src/shm/proto/pair.c, send_by_pool(), stream() and shc_p2p_answer()
 * in src/shm/p2p/send.c, take_message() and take_more() in receive.c, and shc_unexpected_keep() and
 * shc_unexpected_add() in match.c; docs/internals/protocol/messages.md, P2P-16, P2P-17, P2P-19, P2P-20,
 * P2P-23 to P2P-28 and P2P-44. One sender has three messages of one to three buffers. One receiver asks for
 * them in any order, at any time, two of them perhaps by receives of another type. There are two buffers,
 * fewer than lines, so that the count of buffers is needed. The receiver may have to put two buffers aside.
 * A message of up to two goes without CTS if it may. Any other one is announced (FIRST with `asks`), and
 * goes after its CTS. A rank reads while something of its own is pending. Back to the sender there is one
 * line. Left out: matching (p2p.pml), prefixes and long hand-off buffers (fragments.pml and
 * exchange_messages.pml), how many messages wait for CTS after one that was put aside (P2P-26: any may),
 * fragments that a receiver cannot put aside for lack of memory, and the ends of a group.
 *
 * FAULT_buffers_kept        a rank that reads what no receive takes keeps its buffers
 * FAULT_no_credit           messages go without CTS whenever there are buffers
 * FAULT_credit_too_early    what is put aside counts as taken
 * FAULT_credit_by_all       a receive that takes an announced message returns credit, too
 * FAULT_count_before_read   the count of buffers read moves, then they are read
 * FAULT_round_forgotten     a buffer is stored to again without a look at the count
 * FAULT_two_unasked         a message begins to come unasked before the rest of another one has come
 * FAULT_rest_forgotten      the rest of a message that is dropped is not expected
 * FAULT_drop_awaited        no message may come unasked until the rest of a dropped one has come
 * FAULT_nack_owed           a NACK is owed also when all of the message has come
 * FAULT_nack_is_damage      a NACK of a message that is over is not expected
 */

#define MESSAGES 3
#define BUFFERS  2
#define LINES    3
#define ASIDE    2
#define NONE     7

mtype = { QUEUED, ANNOUNCED, UNASKED, STREAMING, OVER }; /* the sender's states */
mtype = { NEW, POSTED, GRANT_DUE, REFUSE_DUE, FILLING, DONE }; /* the receiver's */
mtype = { EAGER, FIRST, ASKS, MORE }; /* ASKS: FIRST, and the rest waits for CTS */

byte size[MESSAGES];   /* in buffers */
bool misfit[MESSAGES]; /* received as another type */

/* ---- what is shared ---- */

#define PIECE(m, i) ((m) * 4 + (i) + 1)
byte buffer[BUFFERS]; /* the message and the piece that it holds */
byte pool_read;       /* the receiver's words */
byte credit_back;
byte credit_used; /* the sender's own; checked at the end */
chan lines = [LINES] of { mtype, byte, byte }; /* frame, message, buffer or NONE */
chan answers = [1] of { byte, bool };          /* CTS; or NACK */

/* ---- the sender ---- */

#define FREE (BUFFERS - (lent - pool_read))
#ifdef FAULT_round_forgotten
#define MAY_LEND true
#else
#define MAY_LEND (FREE > 0)
#endif
#ifdef FAULT_no_credit
#define CREDIT(n) true
#else
#define CREDIT(n) (credit_used - credit_back + (n) <= ASIDE)
#endif
#ifdef FAULT_two_unasked
#define IS_ONE_UNASKED false
#else
#define IS_ONE_UNASKED (state[0] == UNASKED || state[1] == UNASKED || state[2] == UNASKED)
#endif
#define MAY_GO_UNASKED(m) \
    (size[m] <= ASIDE && MAY_LEND && CREDIT(size[m]) && (size[m] == 1 || !IS_ONE_UNASKED))

/* Buffers are lent in turn; the one that goes out next is filled, then its line is released. */
inline fill(m)
{
    atomic {
        buffer[lent % BUFFERS] = PIECE(m, sent[m]);
        sent[m]++
    }
}

inline begin(m)
{
    if
    :: MAY_GO_UNASKED(m) ->
        fill(m);
        atomic {
            lines!(size[m] == 1 -> EAGER : FIRST),m,(lent % BUFFERS);
            credit_used = credit_used + size[m];
            lent++;
            state[m] = (size[m] == 1 -> OVER : UNASKED);
            next++
        }
    :: atomic { true -> /* also where copy modes are being tried, or messages pass one another */
            lines!ASKS,m,NONE;
            state[m] = ANNOUNCED;
            next++
        }
    fi
}

inline send_more(m)
{
    fill(m);
    atomic {
        lines!MORE,m,(lent % BUFFERS);
        lent++;
        if
        :: sent[m] == size[m] -> state[m] = OVER
        :: else
        fi
    }
}

inline take_answer()
{
    atomic {
        answers?answered,fits;
        if
        :: fits -> assert(state[answered] == ANNOUNCED); state[answered] = STREAMING
        :: else ->
#ifdef FAULT_nack_is_damage
            assert(state[answered] == ANNOUNCED || state[answered] == UNASKED);
#else
            assert(state[answered] != QUEUED && state[answered] != STREAMING);
#endif
            state[answered] = OVER
        fi;
        answered = 0;
        fits = false
    }
}

#define STREAMS(m) ((state[m] == STREAMING || state[m] == UNASKED) && MAY_LEND && nfull(lines))
#define GOES(m)    (state[m] != QUEUED && state[m] != OVER)

proctype Sender()
{
    mtype state[MESSAGES] = QUEUED;
    byte sent[MESSAGES];
    byte next, lent, answered;
    bool fits;
    do
    :: next < MESSAGES && nfull(lines) -> begin(next)
    :: STREAMS(0) -> send_more(0)
    :: STREAMS(1) -> send_more(1)
    :: STREAMS(2) -> send_more(2)
    :: (GOES(0) || GOES(1) || GOES(2)) && nempty(answers) -> take_answer()
    :: next == MESSAGES && !GOES(0) && !GOES(1) && !GOES(2) -> break
    od
}

/* ---- the receiver ---- */

#define PENDS(m) (state[m] != NEW && state[m] != DONE)
#define PENDING  (PENDS(0) || PENDS(1) || PENDS(2))

/* A receive takes the message, of which `n` buffers have come. */
inline take(m, n)
{
    if
#ifdef FAULT_credit_by_all
    :: true -> credit_back = credit_back + size[m]
#else
    :: frame != ASKS -> credit_back = credit_back + size[m]
    :: else
#endif
    fi;
    got[m] = n;
    unasked[m] = frame == FIRST;
    if
    :: coming == m -> coming = NONE
    :: else
    fi;
    if
    :: misfit[m] && frame == EAGER -> state[m] = DONE
    :: misfit[m] && frame != EAGER ->
        state[m] = REFUSE_DUE;
#ifndef FAULT_rest_forgotten
        if
        :: frame == FIRST -> coming = m
        :: else
        fi
#endif
    :: !misfit[m] && frame == EAGER -> state[m] = DONE
    :: !misfit[m] && frame == FIRST -> state[m] = FILLING
    :: !misfit[m] && frame == ASKS -> state[m] = GRANT_DUE
    fi
}

inline put_aside()
{
    came[m] = frame;
    if
    :: frame != ASKS ->
        aside[m] = 1;
        held = held + size[m]; /* room for all of it */
        assert(held <= ASIDE);
#ifdef FAULT_credit_too_early
        credit_back = credit_back + size[m]
#endif
    :: else
    fi;
    if
    :: frame == FIRST -> coming = m
    :: else
    fi
}

/* More of the message that is kept or dropped. */
inline add()
{
    assert(coming == m);
    if
    :: state[m] == NEW || state[m] == POSTED -> aside[m]++
    :: else -> got[m]++
    fi;
    if
    :: got[m] + aside[m] == size[m] ->
        coming = NONE;
        if
        :: aside[m] > 0 -> came[m] = EAGER /* from now on it looks like one */
        :: else
        fi
    :: else
    fi
}

#define IS_DROPPED(m) (state[m] == REFUSE_DUE || state[m] == DONE)
#ifdef FAULT_drop_awaited
#define MAY_COME_UNASKED (coming == NONE)
#else
#define MAY_COME_UNASKED (coming == NONE || IS_DROPPED(coming))
#endif

/* What has been read to its end: nothing else is done in between. */
inline take_line()
{
    atomic {
        if
        :: frame == MORE && state[m] == FILLING ->
            got[m]++;
            if
            :: got[m] == size[m] -> state[m] = DONE
            :: else
            fi
        :: frame == MORE && state[m] != FILLING -> add()
        :: frame != MORE ->
            assert(frame != FIRST || MAY_COME_UNASKED);
            kept = state[m] == NEW;
            if
            :: kept -> put_aside()
            :: else -> take(m, (which == NONE -> 0 : 1))
            fi
        fi
    }
}

inline read_buffer()
{
    if
    :: which != NONE ->
        assert(buffer[which] == PIECE(m, got[m] + aside[m]))
    :: else
    fi
}

/* shc_place_return() */
inline give_back()
{
    if
#ifdef FAULT_buffers_kept
    :: which != NONE && !kept -> pool_read++
#else
    :: which != NONE -> pool_read++
#endif
    :: else
    fi
}

inline read_line()
{
    lines?<frame,m,which>;
    assert(which == NONE || which == pool_read % BUFFERS);
#ifdef FAULT_count_before_read
    give_back();
    read_buffer();
    take_line();
#else
    read_buffer();
    take_line();
    give_back();
#endif
    atomic { lines?_,_,_; frame = 0; m = 0; which = 0; kept = false }
}

inline post(n)
{
    atomic {
        state[n] = POSTED;
        if
        :: came[n] != 0 ->
            frame = came[n];
            came[n] = 0;
            if
            :: frame != ASKS -> held = held - size[n]
            :: else
            fi;
#ifdef FAULT_credit_too_early
            if
            :: frame != ASKS -> credit_back = credit_back - size[n] /* counted before */
            :: else
            fi;
#endif
            take(n, aside[n]);
            aside[n] = 0;
            frame = 0
        :: else
        fi
    }
}

/* P2P-28: is the sender still to be told? */
#ifdef FAULT_nack_owed
#define IS_OWED(m) true
#else
#define IS_OWED(m) (!unasked[m] || coming == m)
#endif
#define ANSWERS(m)    (state[m] == GRANT_DUE || (state[m] == REFUSE_DUE && IS_OWED(m)))
#define MAY_ANSWER(m) (ANSWERS(m) && nfull(answers))
#define MAY_FORGET(m) (state[m] == REFUSE_DUE && !IS_OWED(m))

inline answer(n)
{
    atomic {
        answers!n,(state[n] == GRANT_DUE);
        state[n] = (state[n] == GRANT_DUE -> FILLING : DONE)
    }
}

proctype Receiver()
{
    mtype state[MESSAGES] = NEW;
    byte got[MESSAGES], aside[MESSAGES]; /* buffers of it that were received, or put aside */
    mtype came[MESSAGES];                /* the header that was put aside */
    bool unasked[MESSAGES];
    byte coming = NONE; /* kept or dropped, and its rest is to come */
    mtype frame;
    byte held, m, which;
    bool kept;
    do
    :: state[0] == NEW -> post(0)
    :: state[1] == NEW -> post(1)
    :: state[2] == NEW -> post(2)
    :: MAY_ANSWER(0) -> answer(0)
    :: MAY_ANSWER(1) -> answer(1)
    :: MAY_ANSWER(2) -> answer(2)
    :: MAY_FORGET(0) -> state[0] = DONE
    :: MAY_FORGET(1) -> state[1] = DONE
    :: MAY_FORGET(2) -> state[2] = DONE
    :: PENDING && nempty(lines) -> read_line()
    :: state[0] == DONE && state[1] == DONE && state[2] == DONE -> break
    od;
    assert(held == 0)
}

init
{
    byte k;
    atomic {
        select(k : 1 .. 3);
        size[0] = k;
        select(k : 1 .. 3);
        size[1] = k;
        select(k : 1 .. 3);
        size[2] = k;
        if
        :: true
        :: misfit[1] = true
        :: misfit[0] = true; misfit[1] = true
        fi;
        k = 0;
        run Sender();
        run Receiver()
    }
    _nr_pr == 1; /* both have ended */
    assert(credit_back == credit_used)
}
