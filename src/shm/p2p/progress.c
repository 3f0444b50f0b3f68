/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/p2p/internal.h"

#include "shm/base/clock.h"
#include "shm/base/num.h"
#include "shm/proto/member.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- the pass ---- */

void shc_p2p_pass(struct shc_p2p *p2p, bool waiter)
{
    const int world = p2p->env.seat->world_size;
    struct shc_snapshot snapshot;
    shc_p2p_look(p2p, &snapshot);
    if (waiter && shc_p2p_pending(p2p) > 0) {
        /* relaxed: as shc_p2p_waiters(). */
        shc_a64_store_relaxed(&p2p->waited_ns, snapshot.now_ns);
    }
    const bool works = !shc_group_failed(p2p->env.seat);
    for (int i = 0, peer = p2p->first_peer; i < world; i++) {
        /* Also once after a failure: messages that are there in full arrive. */
        shc_p2p_read_lines(p2p, peer);
        if (works && (p2p->peers[peer].incoming.first || p2p->peers[peer].sends.first))
            shc_p2p_write_lines(p2p, peer);
        peer = peer + 1 < world ? peer + 1 : 0;
    }
    p2p->first_peer = p2p->first_peer + 1 < world ? p2p->first_peer + 1 : 0;
    shc_p2p_check(p2p, &snapshot);
    /* P2P-48: a thread whose message ended in this pass may sleep on this rank's own doorbell. */
    if (p2p->finished && shc_p2p_waiters(p2p) > (waiter ? 1 : 0))
        shc_bell_ring(shc_seat_mail_bell(p2p->env.seat, p2p->env.seat->rank), true);
    p2p->finished = false;
    shc_pairs_ring(&p2p->pairs);
}

/* ---- submitting ---- */

static SHC_COLD enum shc_status refuse_submit(struct shc_p2p *p2p, const struct shc_message *m)
{
    char what[256];
    shc_p2p_text(p2p, m, what, sizeof what);
    if (shc_p2p_is_closed(p2p))
        return shc_fail(SHC_ERR_CLOSED, "%s failed: this rank has closed the group", what);
    if (shc_group_failed(p2p->env.seat))
        return shc_group_reason(p2p->env.seat, what);
    return shc_fail(SHC_ERR_PEER_LEFT, "%s failed: %s has left the group", what,
                    shc_p2p_rank_name(p2p, m->peer).text);
}

static enum shc_status check_submit(struct shc_p2p *p2p, const struct shc_message *m)
{
    struct shc_seat *seat = p2p->env.seat;
    const int peer = m->peer;
    /* After the close the segment may be unmapped. */
    bool gone = !shc_p2p_is_closed(p2p) && m->kind == SHC_SEND && peer != seat->rank &&
                !shc_p2p_is_remote(p2p, peer) && shc_member_look(seat, peer) == SHC_MEMBER_LEFT;
    if (SHC_UNLIKELY(shc_p2p_is_closed(p2p) || shc_group_failed(seat) || gone))
        return refuse_submit(p2p, m);
    shc_progress_thread_start(p2p);
    return SHC_OK;
}

static void begin_clock(struct shc_p2p *p2p, struct shc_message *m)
{
    const uint64_t now_ns = shc_clock_ns();
    shc_lateness_begin(&m->lateness, now_ns, m->timeout_ns, p2p->env.seat->late_ns);
    m->begun_ticks = shc_board_begin_message(&p2p->env.seat->board);
    if (shc_p2p_pending(p2p) == 0) {
        p2p->asked_ns = now_ns; /* nothing was pending, so no thread had to look */
        p2p->watch = (struct shc_clock_watch){.looked_ns = now_ns};
    }
}

/* P2P-51: a thread that submits a message counts as a waiting thread while it copies bytes.
 * Otherwise the progress thread would want the lock for a pass of its own, which would end the
 * lock's bias. Returns when a waiting thread has last made a pass. end_turn() stores that again:
 * a waiting thread that was held up before the submission is still held up after it. */
static uint64_t begin_turn(struct shc_p2p *p2p, uint64_t now_ns)
{
    /* relaxed: as shc_p2p_waiters(). */
    const uint64_t waited_ns = shc_a64_load_relaxed(&p2p->waited_ns);
    shc_p2p_add(&p2p->waiters, 1);
    /* relaxed: as shc_p2p_waiters(). */
    shc_a64_store_relaxed(&p2p->waited_ns, now_ns);
    return waited_ns;
}

static void end_turn(struct shc_p2p *p2p, uint64_t waited_ns)
{
    shc_p2p_add(&p2p->waiters, -1);
    /* relaxed: as shc_p2p_waiters(). */
    shc_a64_store_relaxed(&p2p->waited_ns, waited_ns);
}

enum shc_status shc_p2p_submit(struct shc_p2p *p2p, struct shc_message *m, bool *over)
{
    shc_p2p_lock(p2p);
    /* Where something is pending, the submission's pass moves that, too. */
    *over = shc_p2p_pending(p2p) == 0 && m->kind == SHC_SEND && shc_p2p_place(p2p, m);
    if (*over) {
        shc_p2p_unlock(p2p);
        return SHC_OK;
    }
    enum shc_status st = check_submit(p2p, m);
    if (st == SHC_OK) {
        begin_clock(p2p, m);
        m->post = p2p->posts++;
        const uint64_t waited_ns = begin_turn(p2p, m->lateness.begun_ns);
        shc_p2p_add(&p2p->pending, 1);
        shc_board_pend(&p2p->env.seat->board, m->kind, 1);
        if (m->kind == SHC_RECV) {
            shc_p2p_post_receive(p2p, m);
        } else {
            m->state = SHC_MESSAGE_QUEUED;
            shc_queue_append(&p2p->peers[m->peer].sends, m);
            if (shc_p2p_is_remote(p2p, m->peer))
                shc_remote_stir(p2p, m->peer);
        }
        shc_p2p_pass(p2p, true);
        end_turn(p2p, waited_ns);
        /* WAIT-18: this message may be due before those that a thread sleeps for. */
        if (shc_p2p_pending(p2p) > 0 && (shc_p2p_has_parked(p2p) || p2p->progress_thread_parked))
            shc_bell_ring(shc_seat_mail_bell(p2p->env.seat, p2p->env.seat->rank), true);
    }
    /* P2P-50: a thread that waits now may leave before this message is over. */
    bool call = st == SHC_OK && shc_p2p_pending(p2p) > 0;
    shc_p2p_unlock(p2p);
    if (call)
        shc_progress_thread_call(p2p);
    return st;
}

void shc_p2p_cancel(struct shc_p2p *p2p, struct shc_message *m, bool for_good)
{
    shc_p2p_lock(p2p);
    if (shc_message_is_over(m)) {
        /* it ended in the meantime */
    } else if (m->state == SHC_MESSAGE_POSTED || m->state == SHC_MESSAGE_QUEUED) {
        shc_p2p_withdraw(p2p, m);
        shc_p2p_finish(p2p, m, SHC_ERR_INTERRUPTED, "interrupted before it began");
    } else if (for_good) {
        char what[256], reason[320];
        shc_p2p_text(p2p, m, what, sizeof what);
        snprintf(reason, sizeof reason, "%s was interrupted", what);
        shc_p2p_break(p2p, SHC_ERR_INTERRUPTED, reason, NULL);
    }
    p2p->finished = false;
    shc_p2p_unlock(p2p);
}

/* ---- making one ---- */

static void free_peers(struct shc_p2p *p2p)
{
    free(p2p->trials);
    free(p2p->peers);
    free(p2p->remotes);
    p2p->trials = NULL;
    p2p->peers = NULL;
    p2p->remotes = NULL;
}

enum shc_status shc_p2p_init(struct shc_p2p *p2p, const struct shc_p2p_env *env)
{
    const size_t world = (size_t)env->seat->world_size;
    p2p->env = *env;
    p2p->peers = calloc(world, sizeof *p2p->peers);
    p2p->trials = calloc(world, sizeof *p2p->trials);
    if (!p2p->peers || !p2p->trials) {
        free_peers(p2p);
        return shc_fail(SHC_ERR_NOMEM, "no memory for %zu peers", world);
    }
    for (size_t peer = 0; peer < world; peer++)
        shc_copy_trials_init(p2p->trials[peer], SHC_COPY_MODES, SHC_COPY_LINES);
    shc_biased_lock_init(&p2p->lock, SHC_BIAS_FIRST_PAY);
    enum shc_status st = shc_pairs_init(&p2p->pairs, env->seat);
    if (st != SHC_OK)
        free_peers(p2p);
    return st;
}

void shc_p2p_fini(struct shc_p2p *p2p)
{
    for (int peer = 0; peer < shc_p2p_rank_count(p2p); peer++) {
        struct shc_unexpected *message = p2p->peers[peer].unexpected, *next;
        for (; message; message = next) {
            next = message->next;
            free(message);
        }
    }
    shc_pairs_fini(&p2p->pairs);
    free_peers(p2p);
}
