/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The leaders tell each other that the store is gone, and a host that died with it is not taken for one that lives.
 *
 * Mirrors shc_hosts_tell_gone() and fail_without_store() of src/hosts/hosts_record.c, and put_reason() of dead.c;
 * docs/internals/protocol/hosts.md, HOST-34 to HOST-36. Three hosts make two calls. In each they give a record, and go on
 * when they have all. The store goes at any time, and a host may die with it; or host 0 alone loses its connection to it.
 * A leader may know that when it begins a call, and not before. Then its record says so. Every leader that finds such a
 * record gives an answer, and fails when it has all answers. Unless a host died all fail in one call and none waits for a
 * limit; all answers come from hosts that live; and if the store is there, its reason is put. Left out: the
 * monitors, which name a host within the limit, and the second after which a call fails that waits for a record.
 *
 * FAULT_no_record       a leader that knows it fails, and gives no record
 * FAULT_tellers_alone   only leaders whose records say it give an answer
 * FAULT_records_suffice the records are taken for answers
 * FAULT_no_limit        a leader waits for answers without a limit
 * FAULT_believes        a leader that was told so by a record puts no reason
 */

#define HOSTS 3
#define CALLS 2

#define NONE 0
#define GOOD 1
#define GONE 2

byte record[HOSTS * (CALLS + 1)];
bool answer[HOSTS * (CALLS + 1)];
bool killed[HOSTS];
bool gone;   /* the store is */
bool cut;    /* the connection of host 0 to it */
bool reason; /* <g>/dead */
byte failed[HOSTS];
byte decided, ended;

#define LOST          (killed[0] || killed[1] || killed[2])
#define KNOWS(host)   (gone || (cut && host == 0))
#define ALL(of, call) (of[3 * call] && of[3 * call + 1] && of[3 * call + 2])
#define TOLD(call) \
    (record[3 * call] == GONE || record[3 * call + 1] == GONE || record[3 * call + 2] == GONE)

#ifdef FAULT_no_limit
#define LIMIT false
#else
#define LIMIT LOST
#endif

proctype Leader(byte me)
{
    byte call;
    {
        for (call : 1 .. CALLS) {
            if
            :: KNOWS(me) ->
#ifdef FAULT_no_record
                goto fails;
#endif
                record[3 * call + me] = GONE
            :: record[3 * call + me] = GOOD
            fi;
            if
            :: ALL(record, call)
            :: LOST -> goto fails /* the engine's error, or a second */
            fi;
            if
            :: TOLD(call) ->
#ifdef FAULT_records_suffice
                assert(!LOST);
                goto fails;
#endif
#ifdef FAULT_tellers_alone
                if
                :: record[3 * call + me] == GONE -> answer[3 * call + me] = true
                :: else
                fi;
#else
                answer[3 * call + me] = true;
#endif
                if
                :: ALL(answer, call) -> assert(!LOST)
                :: LIMIT
                fi;
                goto fails
            :: else
            fi
        }
        goto over;
fails:
        failed[me] = call;
#ifndef FAULT_believes
        if
        :: !KNOWS(me) -> reason = true
        :: else
        fi;
#endif
over:
        ended++
    } unless { killed[me] -> ended++ }
}

active proctype Store()
{
    if
    :: gone = true
    :: atomic { gone = true; killed[0] = true }
    :: atomic { gone = true; killed[1] = true }
    :: atomic { gone = true; killed[2] = true }
    :: cut = true
    fi;
    decided++
}

active proctype Check()
{
    ended == HOSTS && decided == 1;
    if
    :: !LOST ->
        assert(failed[0] == failed[1] && failed[1] == failed[2]);
        assert(!(cut && failed[0]) || reason)
    :: else
    fi
}

init
{
    atomic {
        run Leader(0);
        run Leader(1);
        run Leader(2)
    }
}
