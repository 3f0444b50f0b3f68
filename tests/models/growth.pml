/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * An arena that has become too short: in the middle of their work all ranks replace it by another one.
 *
 * Mirrors shc_arena_outgrow() and shc_arena_make() of src/shm/proto/arena.c, called one operation
 * after the other; docs/internals/protocol.md, STAGE-47, STAGE-48 and STAGE-51 to STAGE-55. There are
 * three ranks and two operations. Each operation makes an arena in up to two attempts, and any rank may
 * fail in any attempt. In each operation every rank stores into its range and reads the others'. Then:
 * what is read is what was stored in this operation, also by a rank that is late and reads while others
 * are in the next one; all ranks have the same arena or none. Left out: deaths, and verdicts in all
 * orders (arena.pml).
 *
 * FAULT_numbers_begin_anew    the second arena's attempts have the numbers of the first one's
 * FAULT_offer_not_awaited     a rank opens what the offer names without rank 0's verdict on this attempt
 * FAULT_outgrown_too_late     a rank lets go of the short arena only after the meeting, and has stored before
 */

#define RANKS 3
#define FILES 5 /* by the attempt that made it; 0: none */

#define RESERVED(a) ((a) * 4 + 1) /* enum outcome */
#define FAILED(a)   ((a) * 4 + 2)

byte name;                 /* in rank 0's offer */
byte verdict[RANKS];       /* attempt * 4 + outcome, growing */
byte call[RANKS];          /* the newest operation that the rank has entered */
byte step[RANKS];          /* the newest operation in which the rank has stored */
byte mark[FILES * RANKS];  /* in each file, in each range: the operation that has stored there */
byte had[3];               /* in each operation: 1 + the file of the ranks that have come so far */

/* attempt_once(), publish_verdict(), read_verdict() */
inline attempt_once()
{
    good = true;
    if
    :: me == 0 ->
        if
        :: name = attempt
        :: good = false
        fi
    :: else ->
#ifndef FAULT_offer_not_awaited
        verdict[0] >= RESERVED(attempt);
        good = verdict[0] == RESERVED(attempt);
#endif
        if
        :: good && name > 0 -> file = name
        :: else -> good = false
        fi;
        if
        :: true
        :: good = false /* cannot open it, or not reserve */
        fi
    fi;
    if
    :: me == 0 -> file = attempt
    :: else
    fi;
    verdict[me] = (good -> RESERVED(attempt) : FAILED(attempt));
    for (r : 0 .. RANKS - 1) {
        if
        :: r == me
        :: else ->
            verdict[r] >= RESERVED(attempt);
            good = good && verdict[r] == RESERVED(attempt)
        fi
    }
}

/* shc_arena_make() */
inline make()
{
#ifdef FAULT_numbers_begin_anew
    attempt = 0;
#endif
    attempt++;
    attempt_once();
    if
    :: !good -> attempt++; attempt_once()
    :: else
    fi;
    attempt = attempt + attempt % 2;
    if
    :: !good -> file = 0
    :: else
    fi;
    r = 0
}

inline store()
{
    if
    :: file > 0 -> mark[file * RANKS + me] = op
    :: else
    fi
}

proctype Rank(byte me)
{
    byte attempt, file, op, r;
    bool good, begun;
    for (op : 1 .. 2) {
#ifdef FAULT_outgrown_too_late
        begun = file > 0;
        store(); /* chunk 0, which the call line announces */
#else
        file = 0; /* shc_arena_outgrow() */
#endif
        call[me] = op;
        for (r : 0 .. RANKS - 1) { call[r] >= op }
        make();
        atomic {
            assert(had[op] == 0 || had[op] == 1 + file);
            had[op] = 1 + file
        }
        if
        :: !begun -> store()
        :: else
        fi;
        step[me] = op;
        for (r : 0 .. RANKS - 1) {
            step[r] >= op;
            if
            :: file > 0 -> assert(mark[file * RANKS + r] == op)
            :: else
            fi
        }
        r = 0
    }
}

init
{
    atomic {
        run Rank(0);
        run Rank(1);
        run Rank(2)
    }
}
