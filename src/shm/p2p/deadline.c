/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What ends a message that cannot go on: death or departure of its peer, its deadline, the failure
 * of the group (P2P-60). Also what is logged about a late message. The rules are those of
 * proto/wait.c, applied to many messages at once.
 */
#include "shm/base/clock.h"
#include "shm/base/config.h"
#include "shm/base/log.h"
#include "shm/p2p/internal.h"
#include "shm/proto/deadlock.h"
#include "shm/proto/late.h"

#include <stdio.h>

#define ASK_NS (50 * SHC_NS_PER_MS)

/* ---- looking ---- */

static void add_lost(struct shc_p2p *p2p, uint64_t now_ns, uint64_t lost_ns)
{
    for (int i = 0; lost_ns != 0 && i < shc_p2p_queue_count(p2p); i++)
        for (struct shc_message *m = shc_p2p_queue(p2p, i)->first; m; m = m->next)
            shc_lateness_add_lost(&m->lateness, now_ns, lost_ns);
}

void shc_p2p_look(struct shc_p2p *p2p, struct shc_snapshot *snapshot)
{
    const struct shc_seat *seat = p2p->env.seat;
    snapshot->due = false;
    if (shc_p2p_pending(p2p) == 0)
        return;
    snapshot->now_ns = shc_clock_ns();
    snapshot->due = p2p->look_now || snapshot->now_ns - p2p->watch.looked_ns >= SHC_LOOK_NS;
    if (!snapshot->due)
        return;
    p2p->look_now = false;
    add_lost(p2p, snapshot->now_ns, shc_clock_watch_lost(&p2p->watch, snapshot->now_ns));
    if (snapshot->now_ns - p2p->asked_ns >= ASK_NS) {
        p2p->asked_ns = snapshot->now_ns;
        if (shc_p2p_has_parked(p2p) || p2p->progress_thread_parked)
            shc_member_look_at_threads(seat, p2p->look_at);
        else
            shc_member_look_at_processes(seat, p2p->first_peer, SHC_MEMBER_LOOKS);
    }
    for (int rank = 0; rank < seat->world_size; rank++)
        snapshot->states[rank] =
            (uint8_t)(rank == seat->rank ? SHC_MEMBER_ALIVE : shc_member_look(seat, rank));
}

uint64_t shc_p2p_due_ns(struct shc_p2p *p2p)
{
    uint64_t due_ns = SHC_NO_DEADLINE;
    for (int i = 0; i < shc_p2p_queue_count(p2p); i++) {
        for (const struct shc_message *m = shc_p2p_queue(p2p, i)->first; m; m = m->next) {
            due_ns = shc_min_u64(due_ns, m->lateness.deadline_ns);
            due_ns = shc_min_u64(due_ns, m->lateness.late_ns);
        }
    }
    return due_ns;
}

/* ---- checking ---- */

static void end_dead(struct shc_p2p *p2p, const struct shc_message *m, int rank)
{
    struct shc_seat *seat = p2p->env.seat;
    char what[320], call[128], last[176] = "it had made no collective call yet", how[160];
    char reason[SHC_REASON_BYTES];
    const struct shc_member_end end = shc_member_get_end(seat, rank);
    shc_p2p_text(p2p, m, what, sizeof what);
    if (shc_call_latest_text(seat, rank, call, sizeof call))
        snprintf(last, sizeof last, "its last collective call was %s", call);
    shc_member_end_text(seat, &end, how, sizeof how);
    snprintf(reason, sizeof reason, "%s died%s; %s; found in %s",
             shc_seat_process_name(seat, rank).text, how, last, what);
    shc_p2p_break(p2p, SHC_ERR_PEER_DEAD, reason, &end);
}

/* Looks for deaths before a departure is reported: a rank that has left may have learned of a death
 * by another group, and that death counts here, too. False: there is one, and it has ended the
 * message. */
static bool check_deaths(struct shc_p2p *p2p, const struct shc_message *m)
{
    const struct shc_seat *seat = p2p->env.seat;
    shc_member_look_at_processes(seat, 0, seat->world_size);
    const int dead = shc_member_find_dead(seat, -1);
    if (dead >= 0)
        end_dead(p2p, m, dead);
    return dead < 0;
}

/* False: the peer's state has ended the message. */
static bool check_named(struct shc_p2p *p2p, struct shc_message *m, int rank,
                        enum shc_member_state state)
{
    char how[160], reason[400];
    if (state == SHC_MEMBER_DEAD) {
        end_dead(p2p, m, rank);
        return false;
    }
    if (state != SHC_MEMBER_LEFT)
        return true;
    if (!check_deaths(p2p, m))
        return false;
    const char *sent = "";
    if (m->state == SHC_MESSAGE_FILLING)
        sent = ", and sent a part of this";
    else if (m->kind == SHC_RECV)
        sent = ", and sent nothing that this takes";
    const struct shc_member_end end = shc_member_get_end(p2p->env.seat, rank);
    shc_member_left_text(p2p->env.seat, &end, how, sizeof how);
    snprintf(reason, sizeof reason, "%s %s%s", shc_seat_process_name(p2p->env.seat, rank).text, how,
             sent);
    shc_p2p_finish_alone(p2p, m, SHC_ERR_PEER_LEFT, reason);
    return false;
}

/* A receive from any rank: it fails when one rank is dead, as that may have been the sender, or
 * when all other ranks have left. */
static bool check_any(struct shc_p2p *p2p, struct shc_message *m,
                      const struct shc_snapshot *snapshot)
{
    const struct shc_seat *seat = p2p->env.seat;
    int left = 0;
    for (int rank = 0; rank < seat->world_size; rank++) {
        if (snapshot->states[rank] == SHC_MEMBER_DEAD) {
            end_dead(p2p, m, rank);
            return false;
        }
        left += snapshot->states[rank] == SHC_MEMBER_LEFT;
    }
    if (left == 0 || left < seat->world_size - 1 || p2p->env.remote.count > 0)
        return true;
    if (!check_deaths(p2p, m))
        return false;
    shc_p2p_finish_alone(p2p, m, SHC_ERR_PEER_LEFT,
                         "all other ranks have left the group, and sent nothing that this takes");
    return false;
}

/* P2P-60: has more of a message come since its time was over? The rest of a message that comes
 * unasked is on its way, and to end it would fail the group. So it may take a little longer. */
static bool still_comes(struct shc_message *m)
{
    const bool comes = m->state == SHC_MESSAGE_FILLING && m->unasked && m->moved != m->late_moved;
    m->late_moved = m->moved;
    return comes;
}

/* Ends a message that is not over, for that reason. */
static void give_up(struct shc_p2p *p2p, struct shc_message *m, enum shc_status status,
                    const char *why)
{
    char what[256], reason[SHC_REASON_BYTES];
    /* Nothing of the message has gone out, so the other ranks need not know. */
    if (m->state == SHC_MESSAGE_POSTED || m->state == SHC_MESSAGE_QUEUED) {
        shc_p2p_finish_alone(p2p, m, status, why);
        return;
    }
    shc_p2p_text(p2p, m, what, sizeof what);
    snprintf(reason, sizeof reason, "%.500s; in %s", why, what);
    shc_p2p_break(p2p, status, reason, NULL);
}

static void end_late(struct shc_p2p *p2p, struct shc_message *m, uint64_t now_ns)
{
    char whom[512], reason[SHC_REASON_BYTES];
    shc_p2p_whom_text(p2p, m, whom, sizeof whom);
    snprintf(reason, sizeof reason, SHC_TIMED_OUT "%.3f s waiting for %s",
             shc_lateness_seconds(&m->lateness, now_ns), whom);
    give_up(p2p, m, SHC_ERR_TIMEOUT, reason);
}

/* WAIT-10: has another rank just said that a message of this kind waits for the same rank? */
static bool is_said(const struct shc_p2p *p2p, const struct shc_message *m, uint64_t now_ns)
{
    const int rank = shc_message_rank(m);
    const uint32_t which =
        shc_late_hash(shc_late_hash(SHC_LATE_HASH, 0x10000u + (uint32_t)m->kind), (uint32_t)rank);
    return rank >= 0 && p2p->env.seat->world_size > 2 && shc_log_goes(SHC_LOG_WARN) &&
           shc_late_was_said(p2p->env.seat, which, now_ns);
}

/* Counts the messages from that one on, which are late when it is said that `m` is. */
static unsigned count_late(struct shc_message *next, const struct shc_message *m)
{
    unsigned queued = 0;
    for (; next; next = next->next) {
        queued++;
        next->lateness.late_ns = m->lateness.late_ns;
    }
    return queued;
}

/* One log line for all messages of the queue, and for all sends to a rank: thousands of sends would
 * say the same. */
static void say_late(struct shc_p2p *p2p, struct shc_message *m, uint64_t now_ns)
{
    char what[256], whom[512], more[64] = "";
    unsigned queued = count_late(m->next, m);
    if (m->state == SHC_MESSAGE_STREAMING)
        queued += count_late(p2p->peers[m->peer].announced.first, m);
    if (m->state == SHC_MESSAGE_STREAMING || m->state == SHC_MESSAGE_ANNOUNCED)
        queued += count_late(p2p->peers[m->peer].sends.first, m);
    if (queued > 0)
        snprintf(more, sizeof more, "; queued after it: %u more", queued);
    shc_p2p_text(p2p, m, what, sizeof what);
    shc_p2p_whom_text(p2p, m, whom, sizeof whom);
    shc_log_late(!is_said(p2p, m, now_ns), "%s " SHC_HAS_WAITED " for %s%s", what,
                 shc_lateness_seconds(&m->lateness, now_ns), whom, more);
}

/* A message is late. Is it in a cycle of waits? */
static void check_cycle(struct shc_p2p *p2p, struct shc_message *m)
{
    char text[SHC_DEADLOCK_TEXT];
    const struct shc_board_awaited awaited = shc_message_awaited(m);
    if (!shc_deadlock_find(p2p->env.seat, &awaited, text, sizeof text))
        return;
    if (shc_config_get()->raises)
        give_up(p2p, m, SHC_ERR_DEADLOCK, text);
    else
        shc_log_late(true, "%s", text);
}

static void check_message(struct shc_p2p *p2p, struct shc_message *m,
                          const struct shc_snapshot *snapshot)
{
    const int rank = shc_message_rank(m);
    bool goes_on = true;
    if (rank < 0)
        goes_on = check_any(p2p, m, snapshot);
    else if (!shc_p2p_is_remote(p2p, rank))
        goes_on = check_named(p2p, m, rank, (enum shc_member_state)snapshot->states[rank]);
    if (!goes_on)
        return;
    const enum shc_lateness_state state = shc_lateness_look(&m->lateness, snapshot->now_ns);
    if (state == SHC_TIME_OVER && !still_comes(m)) {
        end_late(p2p, m, snapshot->now_ns);
        return;
    }
    if (state == SHC_LATE)
        say_late(p2p, m, snapshot->now_ns);
    if (!shc_p2p_is_remote(p2p, rank) &&
        (state == SHC_LATE || shc_deadlock_is_suspected(p2p->env.seat, true)))
        check_cycle(p2p, m);
}

static void check_queue(struct shc_p2p *p2p, const struct shc_queue *queue,
                        const struct shc_snapshot *snapshot)
{
    struct shc_message *m = queue->first;
    while (m) {
        struct shc_message *next = m->next;
        check_message(p2p, m, snapshot);
        /* A failure of the group has ended all messages, also `next`. The abort word may not be
         * set yet if another thread of this rank is about to set it. */
        if (shc_p2p_pending(p2p) == 0 || shc_group_failed(p2p->env.seat))
            return;
        m = next;
    }
}

static void check_group(struct shc_p2p *p2p)
{
    const struct shc_seat *seat = p2p->env.seat;
    if (shc_p2p_pending(p2p) == 0 || SHC_LIKELY(!shc_group_failed(seat)))
        return;
    char reason[SHC_REASON_BYTES + 32];
    enum shc_status status = shc_group_reason_text(seat, reason, sizeof reason);
    shc_p2p_finish_all(p2p, status, reason);
}

void shc_p2p_check(struct shc_p2p *p2p, const struct shc_snapshot *snapshot)
{
    if (shc_p2p_pending(p2p) == 0)
        return;
    /* P2P-60: the abort word is read after the members' states and before they are checked. A
     * rank that is gone may have ended because it was told of the failure. */
    check_group(p2p);
    for (int i = 0; snapshot->due && i < shc_p2p_queue_count(p2p); i++)
        check_queue(p2p, shc_p2p_queue(p2p, i), snapshot);
    check_group(p2p);
    if (snapshot->due && shc_p2p_pending(p2p) > 0)
        shc_p2p_show(p2p);
}
