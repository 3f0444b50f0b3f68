/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * One reason for all hosts: it names the first call that fails, and no host waits for ever in an earlier one.
 *
 * Mirrors shc_hosts_turn() of src/hosts/group.c, and told, take and settle of dead.c; docs/internals/protocol/hosts.md,
 * HOST-1, HOST-3, HOST-9 and HOST-32. Four hosts make two calls. In each, host 0 gives a part to hosts 1 and 2, and
 * host 2 gives one to host 3; host 1 gives one to host 0. Host 0 may be killed at any step. A host that fails gives no
 * more parts, and stays: nobody can count on the end of its connections. Then no host waits for ever; if nobody is
 * killed, all calls end well. Left out: the ranks of a host, and the records, which make calls that differ more seldom.
 *
 * FAULT_no_reason       a host that fails tells nobody
 * FAULT_waits_for_ever  a host goes on without a limit in a call before that of the reason
 * FAULT_limit_without_reason  the limit holds without a reason, too
 */

#define CALLS 2

bool given_1[CALLS + 1], given_2[CALLS + 1], given_3[CALLS + 1], given_0[CALLS + 1];
bool killed;
byte reason; /* <g>/dead: the number of the first call that fails; 0: none */
byte ended;
byte failed;

/* put_first */
inline settle()
{
    atomic {
#ifndef FAULT_no_reason
        if
        :: reason == 0 -> reason = call
        :: else
        fi;
#endif
        failed++
    }
}

#ifdef FAULT_waits_for_ever
#define LIMIT false
#elif defined(FAULT_limit_without_reason)
#define LIMIT true
#else
#define LIMIT (reason != 0)
#endif

/* A wait for a part. `lost`: the connection to the one that gives it has ended. */
inline await(part, lost)
{
    if
    :: part
    :: !part && lost -> goto fails
    :: !part && reason != 0 && reason <= call -> goto fails
    :: !part && LIMIT -> goto fails /* some time after it was told */
    fi
}

proctype First()
{
    byte call;
    {
        for (call : 1 .. CALLS) {
            if
            :: given_1[call] = true; given_2[call] = true
            :: given_2[call] = true; given_1[call] = true
            fi;
            await(given_0[call], false)
        }
        goto over;
fails:
        settle();
over:
        ended++
    } unless { killed -> ended++ }
}

proctype Second()
{
    byte call;
    for (call : 1 .. CALLS) {
        await(given_1[call], killed);
        given_0[call] = true
    }
    goto over;
fails:
    settle();
over:
    ended++
}

proctype Third()
{
    byte call;
    for (call : 1 .. CALLS) {
        await(given_2[call], killed);
        given_3[call] = true
    }
    goto over;
fails:
    settle();
over:
    ended++
}

proctype Fourth()
{
    byte call;
    for (call : 1 .. CALLS) {
        await(given_3[call], false)
    }
    goto over;
fails:
    settle();
over:
    ended++
}

active proctype Killer()
{
    if
    :: killed = true
    :: true
    fi
}

active proctype Check()
{
    ended == 4;
    assert(killed || (failed == 0 && reason == 0))
}

init
{
    atomic {
        run First();
        run Second();
        run Third();
        run Fourth()
    }
}
