/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Hosts in a ring: the leader of each host monitors its connection to the leader of the next one that has not left. So
 * a host that is lost is found while no call runs, too, and a process that was alone on its host. The monitor is a call
 * of the engine that ends when the connection does. A host that leaves says so in the store first.
 */
#include "hosts/dead.h"
#include "hosts/group.h"
#include "hosts/hosts_p2p.h"

#include <stdio.h>

#define LOOKS       4
#define IDLE_SLICES 100 /* a second */

/* What is known of the host whose connection has ended. */
struct lost {
    int host;        /* -1: the engine began no call */
    char error[256]; /* of the engine */
};

static void monitor(struct shc_hosts *hosts, int host);

/* In the group: another host takes the place of one that has left. */
static void move_on(struct shc_oob *oob, int left)
{
    struct shc_hosts *hosts = shc_oob_enter(oob);
    if (!hosts)
        return;
    shc_oob_lock(oob);
    hosts->dead.is_lost = false;
    shc_oob_unlock(oob);
    monitor(hosts, (left + 1) % hosts->plan.hosts);
    shc_oob_leave(oob);
}

/* False: the group is gone. */
static bool make_reason(struct shc_oob *oob, const struct lost *lost,
                        struct shc_hosts_reason *reason)
{
    char text[512], ranks[96];
    struct shc_hosts *hosts = shc_oob_enter(oob);
    if (!hosts)
        return false;
    const struct shc_hosts_plan *plan = &hosts->plan;
    shc_hosts_plan_text(plan, lost->host, ranks, sizeof ranks);
    snprintf(text, sizeof text,
             "host %d (%s): rank %d has died, or its connection to rank %d has broken: %s",
             lost->host, ranks, (int)plan->name_of[plan->rank_at[plan->first[lost->host]]],
             (int)plan->name_of[hosts->rank], lost->error);
    shc_oob_lock(oob);
    const uint64_t first = hosts->dead.call ? hosts->dead.number : hosts->dead.number + 1;
    shc_oob_unlock(oob);
    *reason = shc_reason_make(hosts, SHC_ERR_PEER_DEAD, first, NULL, text);
    shc_oob_leave(oob);
    return true;
}

/* A job that ends takes its store with it, one process after the other. False: the group is gone. */
static bool wait_while_idle(struct shc_oob *oob)
{
    for (int slice = 0; slice < IDLE_SLICES; slice++) {
        struct shc_hosts *hosts = shc_oob_enter(oob);
        if (!hosts)
            return false;
        shc_oob_lock(oob);
        const bool has_call = hosts->dead.call;
        shc_oob_unlock(oob);
        const bool has_messages = hosts->p2p && shc_hosts_p2p_waits(hosts->p2p);
        shc_oob_leave(oob);
        if (has_call || has_messages)
            break;
        shc_gate_pause(SHC_DEAD_LOOK_NS);
    }
    return true;
}

/* A connection has ended: its host has left, or is lost; or others know better, and tell. */
static void find_out(struct shc_work_item *item)
{
    const struct lost *lost = (const struct lost *)(const void *)item->memory;
    struct shc_oob *oob = item->oob;
    struct shc_hosts_reason reason;
    if (!wait_while_idle(oob) || shc_oob_refuses(oob))
        return;
    for (int look = 0; look < LOOKS; look++) {
        if (shc_dead_stands(oob))
            return;
        if (shc_leaving_is_left(oob, lost->host)) {
            move_on(oob, lost->host);
            return;
        }
        shc_gate_pause(SHC_DEAD_LOOK_NS);
    }
    if (make_reason(oob, lost, &reason))
        shc_dead_put(oob, &reason);
}

/* Any thread of the engine. */
static void has_ended(void *arg, const char *error)
{
    struct shc_work_item *item = arg;
    struct lost *lost = (struct lost *)(void *)item->memory;
    struct shc_hosts *hosts = lost->host >= 0 ? shc_oob_enter(item->oob) : NULL;
    if (hosts) { /* else this rank has ended it */
        snprintf(lost->error, sizeof lost->error, "%s", error);
        shc_oob_lock(item->oob);
        hosts->dead.is_lost = true;
        hosts->dead.lost = lost->host;
        shc_oob_unlock(item->oob);
        shc_oob_leave(item->oob);
        shc_work_item_start(item, false);
    }
    shc_work_item_drop(item);
}

static void monitor(struct shc_hosts *hosts, int host)
{
    const struct shc_fabric *line = &hosts->line;
    if (host == hosts->host)
        return; /* all others have left */
    struct shc_work_item *item =
        shc_work_item_create(hosts->dead.oob, find_out, sizeof(struct lost));
    if (!item)
        return;
    struct lost *lost = (struct lost *)(void *)item->memory;
    lost->host = host;
    struct shc_ticket *ticket = shc_gate_callback(hosts->gate, has_ended, item);
    if (!ticket) {
        shc_work_item_drop(item);
    } else if (line->monitor(line->ctx, host, ticket) != 0) {
        lost->host = -1;
        shc_ticket_done(ticket, "");
    }
}

void shc_monitor_start(struct shc_hosts *hosts)
{
    if (hosts->dead.oob && shc_hosts_leads(hosts) && hosts->line.monitor)
        monitor(hosts, (hosts->host + 1) % hosts->plan.hosts);
}

void shc_monitor_stop(struct shc_hosts *hosts)
{
    if (hosts->line.stop)
        hosts->line.stop(hosts->line.ctx);
}
