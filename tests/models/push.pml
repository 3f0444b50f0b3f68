/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Push: an all_reduce in which each rank stores its slice of the result into the blocks of all ranks.
 *
 * docs/internals/protocol/heap.md, HEAP-7 to HEAP-14. Two or three ranks make one operation on a tensor with a
 * slice for each rank. Each rank may or may not have a place in its heap, may or may not reach the others', and
 * works in place or not. In any wait a rank may give up: its deadline, a close, an interrupt. What its caller does
 * with the memory after the call, in both cases: it stores to input and output, and expects to find that again. A
 * rank that is stopped in the middle of its slice is one that the scheduler leaves alone.
 *
 * `heap` is the memory that all have mapped, `own` what the rank's caller sees of its output: the heap, or after a
 * divorce private pages. Left out: the staged way, in which a rank stores to its own output alone.
 *
 * FAULT_no_divorce     a rank that gives up leaves its output in the heap
 * FAULT_divorce_late   a rank that gives up before it has met does so, where others may have met
 * FAULT_early_return   a rank returns when its own slice is done
 * FAULT_own_line       a rank chooses the way by its own line
 * FAULT_block_reused   the range of a divorced block is given to another tensor
 * FAULT_no_last_look   a rank that has seen all steps does not look whether a rank has given up
 * FAULT_abort_word     it looks whether the group has failed, which a rank that closes it does not say
 * FAULT_before_meeting a rank begins with its slice when its own line is out
 */

#define RANKS 3

#define IN   1 /* what the ranks give */
#define SUM  2 /* the right result */
#define BAD  3 /* of an input that was no longer given */
#define USER 4 /* what the caller stores after the call */
#define NEW  5 /* another tensor in the same range */

byte ranks = RANKS;
bool published[RANKS], place[RANKS], reaches[RANKS], step1[RANKS], in_place[RANKS];
bool failed;           /* the abort word */
bool withdrawn[RANKS]; /* has given up in this operation */
byte input[RANKS * RANKS];
byte heap[RANKS * RANKS]; /* outputs; of a rank in place its input, too */
byte own[RANKS * RANKS];  /* after a divorce */
bool divorced[RANKS], reused[RANKS];
byte push_ranks, staged_ranks; /* for the assertion alone */

#define AT(rank, slice) ((rank) * RANKS + (slice))
#define ALL(what) (what[0] && what[1] && (ranks == 2 || what[2]))
#define SEES(rank, slice) (divorced[rank] -> own[AT(rank, slice)] : heap[AT(rank, slice)])
#define GIVEN(rank, slice) (in_place[rank] -> heap[AT(rank, slice)] : input[AT(rank, slice)])

/* The caller has its memory back, and uses it. */
inline caller_stores(value)
{
    d_step {
        for (i : 0 .. ranks - 1) {
            input[AT(me, i)] = value;
            if
            :: divorced[me] -> own[AT(me, i)] = value
            :: else -> heap[AT(me, i)] = value
            fi
        }
        i = 0
    }
}

inline divorce()
{
#ifdef FAULT_no_divorce
    skip
#else
    d_step {
        for (i : 0 .. ranks - 1) {
            own[AT(me, i)] = heap[AT(me, i)]
        }
        i = 0;
        divorced[me] = true
    }
#endif
}

inline give_up()
{
    if
    :: failed = true
    :: skip /* it has closed the group */
    fi;
#ifdef FAULT_divorce_late
    if
    :: push -> divorce()
    :: else
    fi;
#else
    if
    :: place[me] && reaches[me] -> divorce()
    :: else
    fi;
#endif
    withdrawn[me] = true;
    goto over
}

proctype Rank(byte me)
{
    byte i, result;
    bool push, good;
    published[me] = true;
#ifndef FAULT_before_meeting
    do
    :: ALL(published) -> break
    :: give_up()
    od;
#endif
    skip;
    d_step {
#if defined(FAULT_own_line) || defined(FAULT_before_meeting)
        push = place[me] && reaches[me];
#else
        push = ALL(place) && ALL(reaches);
#endif
        if
        :: push -> push_ranks++
        :: else -> staged_ranks++
        fi;
        assert(push_ranks == 0 || staged_ranks == 0)
    }
    if
    :: !push -> goto ended
    :: else
    fi;
    result = SUM;
    for (i : 0 .. ranks - 1) {
        assert(published[i]);
        if
        :: GIVEN(i, me) != IN -> result = BAD
        :: else
        fi
    }
    for (i : 0 .. ranks - 1) {
        heap[AT(i, me)] = result
    }
    i = 0;
    result = 0;
    step1[me] = true;
#ifndef FAULT_early_return
    do
    :: ALL(step1) -> break
    :: give_up()
    od;
#endif
#ifndef FAULT_no_last_look
    if
#ifdef FAULT_abort_word
    :: failed -> give_up()
#else
    :: withdrawn[0] || withdrawn[1] || withdrawn[2] -> give_up()
#endif
    :: else
    fi;
#endif
    good = true;
over:
    skip;
    d_step {
        do
        :: i < ranks && good ->
            assert(SEES(me, i) == SUM); /* a call that succeeds has the whole sum */
            i++
        :: else -> break
        od;
        i = 0
    }
    caller_stores(USER);
#ifdef FAULT_block_reused
    if
    :: divorced[me] ->
        d_step {
            for (i : 0 .. ranks - 1) {
                heap[AT(me, i)] = NEW
            }
            i = 0;
            reused[me] = true
        }
    :: else
    fi;
#endif
    do
    :: atomic { i < ranks ->
        assert(SEES(me, i) == USER); /* no other rank stores to it any more */
        assert(!reused[me] || heap[AT(me, i)] == NEW);
        i++ }
    :: i == ranks -> break
    od;
ended:
    skip
}

init
{
    byte i;
    atomic {
        select(ranks : 2 .. RANKS);
        for (i : 0 .. ranks - 1) {
            if
            :: place[i] = true
            :: place[i] = false
            fi;
            if
            :: reaches[i] = true
            :: reaches[i] = false
            fi;
            if
            :: in_place[i] = true
            :: in_place[i] = false
            fi
        }
        for (i : 0 .. RANKS * RANKS - 1) {
            input[i] = IN;
            heap[i] = IN
        }
        i = 0;
        run Rank(0);
        run Rank(1);
        if
        :: ranks == RANKS -> run Rank(2)
        :: else
        fi
    }
}
