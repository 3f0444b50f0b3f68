/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The eager pool (bulk windows): what goes through it arrives whole and once, in whatever order it is
 * received. No rank waits for ever, and no more is put into the unexpected queue than is allowed.
 *
 * Mirrors the bulk windows of src/shm/proto/pair.c, and what src/shm/p2p/send.c and receive.c do
 * with them; docs/internals/protocol.md, P2P-16 to P2P-28. One sender has three messages. One receiver
 * asks for them in any order, one after the other or all at once, one of them perhaps by a receive of
 * another type. There are three windows, two of which may hold messages that no receive has taken. A
 * message has one to three windows. A message of up to two goes whole if it may, or open (the rest
 * follows the header unasked). Otherwise it is announced (RTS), with an eager prefix (head) of one
 * window or without. The receiver reads while something of its own is pending. Left out: matching
 * and full lines (p2p.pml); windows that are not in the pool; fragments in lines; that a rank which
 * finds no line for a refusal waits for a line, or for the rest of the message.
 *
 * FAULT_windows_kept        a rank that reads what no receive takes keeps its windows
 * FAULT_no_credit           whole messages go whenever there are windows
 * FAULT_credit_too_early    what is put aside counts as taken
 * FAULT_end_forgotten       windows left empty at the end of the round are not given back
 * FAULT_count_before_read   the count of windows read moves, then they are read
 * FAULT_round_forgotten     a window is stored to again without a look at the count
 * FAULT_two_open            a message goes open before the rest of another one has come
 * FAULT_open_uncounted      open messages go whenever there are windows
 * FAULT_rest_forgotten      the rest of a message that is dropped is not expected
 */

#define MESSAGES 3
#define WINDOWS  3
#define ASIDE    2
#define NONE     7

mtype = { QUEUED, ANNOUNCED, STREAMING, OPENED, OVER, EAGER, RTS, OPEN, CHUNK };

byte size[MESSAGES];  /* in windows */
byte order[MESSAGES]; /* in which the messages are received */
bool at_once;         /* all receives are posted; otherwise each one after the message before it has come */
byte misfit;          /* the message that is received as another type, or NONE */

/* ---- what is shared ---- */

#define PIECE(m, i) ((m) * 4 + (i) + 1)
byte window[WINDOWS]; /* the message and the piece that it holds */
byte bulk_read;       /* the receiver's words */
byte whole_taken;
byte lent; /* the sender's own; checked at the end */
chan lines = [2] of { mtype, byte, byte, byte }; /* kind, message, first window, how many */
chan words = [MESSAGES] of { byte, bool };       /* CTS; or REFUSE */

/* ---- the sender ---- */

#ifdef FAULT_round_forgotten
#define FREE WINDOWS
#else
#define FREE (WINDOWS - (lent - bulk_read))
#endif
#ifdef FAULT_no_credit
#define MAY_GO_WHOLE(n) true
#else
#define MAY_GO_WHOLE(n) (whole_sent - whole_taken + (n) <= ASIDE)
#endif

/* shc_window_lend_run(): `first`, or NONE. */
inline lend(n)
{
    atomic {
        if
        :: WINDOWS - at < n && FREE >= WINDOWS - at + n ->
            lent = lent + WINDOWS - at;
            at = 0
        :: else
        fi;
        if
        :: n <= FREE && n <= WINDOWS - at ->
            first = at;
            lent = lent + n;
            at = (at + n) % WINDOWS
        :: else -> first = NONE
        fi
    }
}

inline fill(m, n)
{
    i = 0;
    do
    :: i < n ->
        window[first + i] = PIECE(m, sent[m]);
        sent[m]++;
        i++
    :: else -> break
    od;
    i = 0
}

#ifdef FAULT_two_open
#define MAY_OPEN true
#else
#define MAY_OPEN (state[0] != OPENED && state[1] != OPENED && state[2] != OPENED)
#endif
#ifdef FAULT_open_uncounted
#define MAY_GO_OPEN(n) true
#else
#define MAY_GO_OPEN(n) MAY_GO_WHOLE(n)
#endif

inline announce(m)
{
    first = NONE;
    opens = false;
    if
    :: size[m] <= ASIDE && MAY_GO_WHOLE(size[m]) -> lend(size[m])
    :: size[m] > 1 && size[m] <= ASIDE && MAY_GO_OPEN(size[m]) && MAY_OPEN ->
        lend(1); /* or none is free */
        opens = true
    :: else
    fi;
    if
    :: opens ->
#ifndef FAULT_open_uncounted
        whole_sent = whole_sent + size[m];
#endif
        if
        :: first != NONE -> fill(m, 1)
        :: else
        fi;
        lines!OPEN,m,first,sent[m];
        state[m] = OPENED
    :: !opens && first != NONE ->
        whole_sent = whole_sent + size[m];
        fill(m, size[m]);
        lines!EAGER,m,first,size[m];
        state[m] = OVER
    :: else ->
        if
        :: size[m] > 1 && !waits -> lend(1)
        :: true
        fi;
        if
        :: first != NONE -> fill(m, 1)
        :: else
        fi;
        lines!RTS,m,first,sent[m];
        state[m] = ANNOUNCED;
        waits = true /* for its CTS or REFUSE; no other eager prefix goes before that */
    fi;
    next++;
    opens = false;
    first = 0
}

inline send_chunk(m)
{
    lend(1);
    if
    :: first != NONE ->
        fill(m, 1);
        lines!CHUNK,m,first,1;
        if
        :: sent[m] == size[m] -> state[m] = OVER
        :: else
        fi
    :: else
    fi;
    first = 0
}

#define STREAMS(m) ((state[m] == STREAMING || state[m] == OPENED) && FREE > 0)

proctype Sender()
{
    mtype state[MESSAGES] = QUEUED;
    byte sent[MESSAGES];
    byte next, at, whole_sent, first, i, m;
    bool waits, opens, fits;
    do
    :: next < MESSAGES && nfull(lines) -> announce(next)
    :: words?m,fits ->
        atomic {
            assert(state[m] == ANNOUNCED || (!fits && state[m] != QUEUED));
            if
            :: fits -> state[m] = STREAMING
            :: else -> state[m] = OVER /* an open message may be over already */
            fi;
            fits = false;
            waits = state[0] == ANNOUNCED || state[1] == ANNOUNCED || state[2] == ANNOUNCED;
            m = 0
        }
    :: STREAMS(0) && nfull(lines) -> send_chunk(0)
    :: STREAMS(1) && nfull(lines) -> send_chunk(1)
    :: STREAMS(2) && nfull(lines) -> send_chunk(2)
    :: next == MESSAGES && state[0] == OVER && state[1] == OVER && state[2] == OVER -> break
    od
}

/* ---- the receiver ---- */

#define HERE(m)  (got[m] == size[m] || raised[m])
#define PENDS(m) (posted[m] && !HERE(m))
#define PENDING  (PENDS(0) || PENDS(1) || PENDS(2))

/* shc_window_return() */
inline give_back()
{
    atomic {
        if
        :: n > 0 ->
#ifdef FAULT_end_forgotten
            bulk_read = bulk_read + n;
#else
            bulk_read = bulk_read + (first + WINDOWS - at) % WINDOWS + n;
#endif
            at = (first + n) % WINDOWS
        :: else
        fi
    }
}

/* Reads their pieces after the first `from` ones. */
inline read_windows(from)
{
    i = 0;
    do
    :: i < n ->
        assert(window[first + i] == PIECE(m, from + i));
        i++
    :: else -> break
    od;
    i = 0
}

/* A receive takes the message, of which `came_with` windows came, or is of another type. */
inline take(m, came_with)
{
    if
    :: kind == EAGER -> whole_taken = whole_taken + size[m]
#ifndef FAULT_open_uncounted
    :: kind == OPEN -> whole_taken = whole_taken + size[m]
#endif
    :: kind == RTS -> words!m,(m != misfit)
    :: else
    fi;
    if
    :: m == misfit ->
        raised[m] = true;
        got[m] = came_with;
        if
        :: kind == OPEN ->
            words!m,false;
#ifdef FAULT_rest_forgotten
            open = NONE
#else
            open = m
#endif
        :: else
        fi
    :: else ->
        got[m] = came_with;
        if
        :: kind == OPEN && open == m -> open = NONE
        :: else
        fi
    fi
}

inline put_aside()
{
    came[m] = kind;
    aside[m] = n;
    held = held + n;
    if
    :: kind == OPEN ->
        held = held + size[m] - n; /* room for all of it */
        open = m
    :: else
    fi;
    assert(held <= ASIDE + 1); /* and one eager prefix */
#ifdef FAULT_credit_too_early
    if
    :: kind == EAGER -> whole_taken = whole_taken + size[m]
    :: else
    fi
#endif
}

inline read_line()
{
    lines?<kind,m,first,n>;
    assert(kind != OPEN || open == NONE || raised[open]);
    if
    :: kind == CHUNK && (!posted[m] || raised[m]) -> /* to the unexpected queue, or nowhere */
        assert(open == m);
        if
        :: posted[m] ->
            read_windows(got[m]);
            got[m] = got[m] + n
        :: else ->
            read_windows(aside[m]);
            aside[m] = aside[m] + n
        fi;
        give_back();
        if
        :: got[m] + aside[m] == size[m] ->
            open = NONE;
            if
            :: posted[m]
            :: else -> came[m] = EAGER
            fi
        :: else
        fi
    :: kind == CHUNK && posted[m] && !raised[m] ->
#ifdef FAULT_count_before_read
        give_back();
        read_windows(got[m]);
#else
        read_windows(got[m]);
        give_back();
#endif
        got[m] = got[m] + n
    :: kind != CHUNK && posted[m] ->
        read_windows(0);
        give_back();
        take(m, n)
    :: else ->
        read_windows(0);
        put_aside();
#ifndef FAULT_windows_kept
        give_back()
#endif
    fi;
    atomic {
        lines?_,_,_,_;
        kind = 0;
        m = 0;
        n = 0;
        first = 0
    }
}

inline post()
{
    atomic {
        m = order[asked];
        asked++;
        posted[m] = true;
        if
        :: came[m] != 0 ->
            kind = came[m];
            came[m] = 0;
            if
            :: kind == OPEN -> held = held - size[m]
            :: else -> held = held - aside[m]
            fi;
#ifdef FAULT_credit_too_early
            if
            :: kind == EAGER -> whole_taken = whole_taken - size[m] /* counted before */
            :: else
            fi;
#endif
            take(m, aside[m]);
            aside[m] = 0;
            kind = 0
        :: else
        fi;
        m = 0
    }
}

proctype Receiver()
{
    bool posted[MESSAGES], raised[MESSAGES];
    byte got[MESSAGES], aside[MESSAGES];
    mtype came[MESSAGES]; /* the kind of a header that was put aside */
    mtype kind;
    byte open = NONE; /* whose rest is to come, to be put aside or dropped */
    byte asked, held, at, m, first, n, i;
    do
    :: asked < MESSAGES && (at_once || !PENDING) -> post()
    :: PENDING && nempty(lines) -> read_line()
    :: asked == MESSAGES && !PENDING -> break
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
        :: order[0] = 0; order[1] = 1; order[2] = 2
        :: order[0] = 0; order[1] = 2; order[2] = 1
        :: order[0] = 1; order[1] = 0; order[2] = 2
        :: order[0] = 1; order[1] = 2; order[2] = 0
        :: order[0] = 2; order[1] = 0; order[2] = 1
        :: order[0] = 2; order[1] = 1; order[2] = 0
        fi;
        if
        :: order[1] == 1 -> at_once = true /* in two of the orders */
        :: at_once = false
        fi;
        if
        :: misfit = 1
        :: misfit = NONE
        fi;
        k = 0;
        run Sender();
        run Receiver()
    }
    _nr_pr == 1; /* both have ended */
    assert(bulk_read == lent || misfit != NONE) /* after a misfit a receiver with nothing pending reads no more */
}
