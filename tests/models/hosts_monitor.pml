/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Hosts in a ring: the leader of each host monitors its connection to the next one that has not left.
 *
 * Mirrors src/hosts/hosts_monitor.c and shc_dead_close(); docs/internals/protocol/hosts.md, HOST-29 to HOST-31. There
 * are three hosts. Each may leave, be killed, or stay, at any time. A host that leaves says so in the store, and then
 * its connections end; those of a host that is killed end without a word. If a host was killed and another one
 * stays, the reason is put; and no reason is put of a host that has left. Left out: the time that a close waits
 * for the store, other reasons, and the number of the reason.
 *
 * FAULT_left_is_lost        a connection that has ended is a host that is lost
 * FAULT_end_before_word     a host that leaves ends its connections, and then says so
 * FAULT_stays_with_left     a monitor ends with the host that has left
 * FAULT_begins_too_late     a monitor that begins after the end of its connection does not end
 */

#define HOSTS 3

bool said[HOSTS];  /* <g>/left/<host> */
bool dead;         /* <g>/dead */
byte cause;        /* the host that it is about */
bool ended[HOSTS]; /* the connections of the host */
bool out[HOSTS];   /* the host's own monitor is over: the host has left, or is gone */
bool killed[HOSTS];
byte decided;

proctype Host(byte me)
{
    if
    :: true -> decided++ /* it stays */
    :: atomic { killed[me] = true; out[me] = true }; ended[me] = true; decided++
    :: true -> /* shc_dead_close() */
        out[me] = true;
#ifdef FAULT_end_before_word
        ended[me] = true;
        said[me] = true;
#else
        said[me] = true;
        ended[me] = true;
#endif
        decided++
    fi
}

#ifdef FAULT_begins_too_late
#define BEGAN !moved
#else
#define BEGAN true
#endif

proctype Monitor(byte me)
{
    byte next = (me + 1) % HOSTS;
    bool moved;
end:
    do
    :: out[me] -> break
    :: dead -> break
    :: next == me -> break /* all others have left */
    :: next != me && ended[next] && BEGAN ->
        if
        :: dead -> break
#ifndef FAULT_left_is_lost
        :: !dead && said[next] ->
#ifdef FAULT_stays_with_left
            break
#endif
            atomic { next = (next + 1) % HOSTS; moved = true }
        :: !dead && !said[next] ->
#else
        :: else ->
#endif
            if
            :: out[me] -> break
            :: else
            fi;
            atomic { /* put_first */
                if
                :: !dead -> dead = true; cause = next
                :: else
                fi
            };
            break
        fi
    od
}

#define STAYS(host) (!out[host])
#define LOST        (killed[0] || killed[1] || killed[2])

active proctype Check()
{
    decided == HOSTS;
    if
    :: !LOST || dead
    :: !(STAYS(0) || STAYS(1) || STAYS(2))
    fi;
    assert(!dead || killed[cause])
}

init
{
    byte host;
    atomic {
        for (host : 0 .. HOSTS - 1) {
            run Host(host);
            run Monitor(host)
        }
    }
}
