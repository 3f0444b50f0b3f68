/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A death that no longer matters: an operation goes on without a rank that has done its part of it, and
 * every wait ends if something that is owed is missing.
 *
 * Mirrors check_members() and check_group() of src/shm/proto/wait.c and fail_group() of
 * src/shm/proto/member.c; docs/internals/protocol.md, LIFE-13 to LIFE-15, WAIT-7 and WAIT-8. Four
 * ranks make two operations. In the first one, after the meeting, they are a chain: rank 1
 * publishes a step, rank 2 waits for that and publishes its own, and rank 3 waits for rank 2's. Rank 0
 * owes nothing, and goes on to the second one, which is a meeting alone. One rank may die, or leave,
 * before any store. A rank may stay away from an operation for ever, but only from one that the dead
 * rank will never enter: then the others must end nevertheless. Left out: what other groups tell
 * (members.pml). A state and the abort word are one step here.
 *
 * FAULT_any_death         a wait ends because of any dead rank
 * FAULT_abort_ends_all    the abort word ends operations before the one whose failure it tells
 * FAULT_first_reason      only the reason of the rank that set the abort word is looked at
 * FAULT_second_in_silence a rank that finds the group failed already tells no reason
 * FAULT_peer_alone        no rank looks for a dead rank, other than its peer, that has not finished
 * FAULT_finished_first    whether a rank has finished is looked at before its state
 * FAULT_data_first        the data is looked at before its writer's state
 */

#define RANKS 4

/* What a rank publishes, in this order: 1 the first call line, 2 its step, 3 the second call line. */

byte newest[RANKS];
bool dead[RANKS];
byte reason[RANKS]; /* the first operation that fails; 0: the rank has none */
byte finder;        /* 1 + the rank */
byte victim;
byte done; /* progress.finished of the victim */
bool left; /* the victim leaves instead of dying: wherever it is, as after a close by another thread */

#define LINE(op)   ((op) == 1 -> 1 : 3)
#define OWES(rank) ((rank) == 1 || (rank) == 2 -> 2 : 1) /* in the first operation */
/* What counts for a rank that is gone and not waited for: owes() of wait.c. */
#define PASSED(op) (left -> newest[victim] >= LINE(op) : done >= (op))
/* No rank loses an operation for which all is there, or will be. */
#define MAY_FAIL(op) ((op) == 2 || (left -> newest[victim] < OWES(victim) : done < (op)))

#define COVERS(rank, op) (reason[rank] != 0 && reason[rank] <= (op))
#if defined(FAULT_abort_ends_all)
#define FAILED(op) (finder != 0)
#elif defined(FAULT_first_reason)
#define FAILED(op) (finder != 0 && COVERS(finder - 1, op))
#else
#define FAILED(op) (finder != 0 && (COVERS(0, op) || COVERS(1, op) || COVERS(2, op) || COVERS(3, op)))
#endif

inline give_up()
{
    atomic {
        assert(MAY_FAIL(op));
        if
#ifdef FAULT_second_in_silence
        :: finder == 0 ->
#else
        :: !FAILED(op) ->
#endif
            reason[me] = op;
            finder = (finder == 0 -> 1 + me : finder)
        :: else
        fi;
        goto over
    }
}

inline told()
{
    assert(MAY_FAIL(op));
    goto over
}

/* For a wait until `peer` has published `want`. NEWS: the next look would find something. */
#define MISSING (newest[peer] < want)
#ifdef FAULT_any_death
#define MATTERS true
#elif defined(FAULT_peer_alone)
#define MATTERS false
#else
#define MATTERS (!finished) /* the death of a rank other than the peer */
#endif
#ifdef FAULT_peer_alone
#define NEWS (!MISSING || FAILED(op) || (dead[victim] && peer == victim))
#else
#define NEWS (!MISSING || FAILED(op) || (dead[victim] && (peer == victim || !(PASSED(op)))))
#endif

/* Until `peer` has published `want`. */
inline wait_for_peer()
{
    do
    :: !MISSING -> break
    :: MISSING && peer == victim ->
#ifdef FAULT_data_first
        true;
#else
        gone = dead[victim]; /* shc_member_look() */
        if
        :: !MISSING -> break
        :: else
        fi;
#endif
        atomic {
            if
            :: FAILED(op) -> told()
            :: else
            fi;
#ifdef FAULT_data_first
            gone = dead[victim];
#endif
            if
            :: gone -> give_up()
            :: else
            fi
        };
        NEWS /* the ends of slices without it are left out */
    :: MISSING && peer != victim ->
        atomic {
            if
            :: FAILED(op) -> told()
            :: else
            fi;
#ifdef FAULT_finished_first
            finished = (PASSED(op))
        };
        gone = dead[victim];
#else
            gone = dead[victim]
        };
        finished = (PASSED(op));
#endif
        if
        :: gone && MATTERS -> give_up()
        :: else
        fi;
        NEWS
    od;
    atomic { peer = 0; want = 0; gone = false; finished = false }
}

inline may_die()
{
    if
    :: me == victim -> dead[me] = true; goto over
    :: true
    fi
}

inline publish(what)
{
    may_die();
    newest[me] = what
}

proctype Rank(byte me)
{
    byte at, op, turn, peer, want;
    bool gone, finished;
    for (at : 1 .. 3) {
        op = (at == 3 -> 2 : 1);
        if
        :: at == 3 && finder != 0 -> goto over /* check_begin() */
        :: at != 2 && me != victim && dead[victim] && newest[victim] < at -> goto over /* it stays away */
        :: true
        fi;
        if
        :: at != 2 -> publish(at)
        :: else
        fi;
        for (turn : 1 .. RANKS - 1) {
            if
            :: at != 2 || (me >= 2 && (me + turn) % RANKS == me - 1) ->
                peer = (me + turn) % RANKS;
                want = at;
                wait_for_peer()
            :: else
            fi
        }
        turn = 0;
        if
        :: at == 2 && (me == 1 || me == 2) -> publish(2)
        :: else
        fi;
        if
        :: me == victim && at != 1 -> may_die(); done = op
        :: else
        fi
    }
over:
    atomic { at = 0; op = 0; turn = 0; peer = 0; want = 0; gone = false; finished = false }
}

init
{
    byte rank;
    atomic {
        select(rank : 0 .. 2); /* the last one owes as little as the first */
        victim = rank;
        rank = 0;
        if
        :: true
        :: victim == 1 -> left = true /* a rank waits for it, and others for that rank */
        fi;
        run Rank(0);
        run Rank(1);
        run Rank(2);
        run Rank(3)
    }
}
