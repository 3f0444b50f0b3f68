/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The pass, and the threads that make passes: those that submit a message, those that wait for one, and the progress
 * thread. There is one progress thread per group, made for the first message that does not go at once. It moves
 * messages when no other thread does.
 *
 * P2P-46: while a thread waits for a message, that thread makes the passes. If each message woke the
 * progress thread, it would take the CPU from the thread that wants the message. The progress thread has four states:
 *
 *   NAP    the waiting thread is awake. A nap is short after one that found something to do, and grows
 *          with each that did not. So a message that no thread waits for begins to move within
 *          NAP_MAX_NS.
 *   WATCH  the waiting thread is parked (WAIT-17). The progress thread sleeps until it is called (P2P-50), and
 *          looks every WATCH_NS whether the thread is held up (P2P-51).
 *   DRIVE  messages are pending, and no thread waits, or it is held up. The progress thread makes the passes, and
 *          parks on the mail doorbell.
 *   IDLE   nothing has been pending for a while. The progress thread sleeps until it is called.
 */
#include "shm/base/clock.h"
#include "shm/p2p/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define NAP_MIN_NS (50 * SHC_NS_PER_US)
#define NAP_MAX_NS (2 * SHC_NS_PER_MS)
#define HELD_UP_NS (30 * SHC_NS_PER_MS)
#define QUEUE_NS   (100 * SHC_NS_PER_MS)
#define IDLE_NAPS  16 /* naps with nothing pending, before it sleeps until it is called */
#define IDLE_NS    (10 * SHC_NS_PER_S)
#define WATCH_NS   (2 * SHC_NS_PER_S)

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
        const struct shc_p2p_peer *to = &p2p->peers[peer];
        if (works && (to->due.first || to->streams.first || to->sends.first))
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

/* ---- what both kinds of thread that make passes do while they sleep ---- */

/* A thread that makes passes: one that waits for a message, or the progress thread. */
struct waiting {
    struct shc_p2p *p2p;
    struct shc_message *m; /* NULL: the progress thread */
    int rank;              /* that it waits for; -1: any */
    uint64_t moves;        /* of any message, in the passes of this wait */
    uint64_t look_ns;      /* when to look for queued collectives that no thread runs; 0: not yet */
};

/* WAIT-17. The parked thread wakes up in time for every message of this rank, because its passes
 * move all of them. */
static void park(void *arg, bool parked)
{
    const struct waiting *waiting = arg;
    struct shc_p2p *p2p = waiting->p2p;
    shc_p2p_lock(p2p);
    if (waiting->m)
        shc_p2p_add(&p2p->parked, parked ? 1 : -1);
    else
        p2p->progress_thread_parked = parked;
    if (parked) {
        p2p->look_now = true;
        p2p->look_at = shc_p2p_is_remote(p2p, waiting->rank) ? -1 : waiting->rank;
    }
    shc_p2p_unlock(p2p);
}

static uint64_t due_ns(void *arg)
{
    const struct waiting *waiting = arg;
    shc_p2p_lock(waiting->p2p);
    const uint64_t messages_ns = shc_p2p_due_ns(waiting->p2p);
    shc_p2p_unlock(waiting->p2p);
    return waiting->look_ns ? shc_min_u64(messages_ns, waiting->look_ns) : messages_ns;
}

void shc_progress_thread_call(struct shc_p2p *p2p)
{
    shc_bell_ring(&p2p->progress_bell, false);
}

static void slept(void *arg, uint64_t asked_ns, bool signalled)
{
    const struct waiting *waiting = arg;
    shc_p2p_lock(waiting->p2p);
    shc_clock_watch_slept(&waiting->p2p->watch, asked_ns);
    shc_p2p_unlock(waiting->p2p);
    if (signalled) /* never the progress thread, which blocks all signals */
        shc_progress_thread_call(waiting->p2p); /* P2P-51: it may be held up from now on */
}

static const struct shc_parker parker = {park, due_ns, slept};

/* ---- the progress thread ---- */

/* Is there a waiting thread that makes the passes? P2P-51: a thread that is held up does not count,
 * as in the interrupt callback when another thread keeps the interpreter's lock. */
static bool somebody_waits(const struct shc_p2p *p2p)
{
    /* relaxed: as shc_p2p_waiters(). */
    const uint64_t waited_ns = shc_a64_load_relaxed(&p2p->waited_ns);
    return shc_p2p_waiters(p2p) > 0 &&
           (shc_p2p_has_parked(p2p) || shc_clock_ns() - waited_ns < HELD_UP_NS);
}

/* P2P-61: after this nothing is placed, and pending messages fail. The lock is held. */
static void shut(struct shc_p2p *p2p)
{
    /* relaxed: as shc_p2p_is_closed(). */
    if (shc_a32_load_relaxed(&p2p->closed) == SHC_P2P_CLOSED)
        return;
    /* relaxed: as shc_p2p_is_closed(). */
    shc_a32_store_relaxed(&p2p->closed, SHC_P2P_CLOSED);
    shc_p2p_finish_all(p2p, SHC_ERR_CLOSED, "this rank has closed the group");
    shc_bell_ring(shc_seat_mail_bell(p2p->env.seat, p2p->env.seat->rank), true);
}

/* Must the progress thread make the passes? */
static bool has_turn(const struct shc_p2p *p2p)
{
    return !shc_p2p_is_closed(p2p) && shc_p2p_pending(p2p) > 0 && !somebody_waits(p2p);
}

/* Need the progress thread make no more passes? Makes one to find out. */
static bool progress_thread_relieved(void *arg)
{
    struct shc_p2p *p2p = ((const struct waiting *)arg)->p2p;
    /* P2P-52: looks first without the lock. A thread that wants the lock ends its bias, perhaps
     * for a message that is already over. */
    if (!has_turn(p2p))
        return true;
    shc_p2p_lock(p2p);
    bool relieved = !has_turn(p2p);
    if (!relieved) {
        shc_p2p_pass(p2p, false);
        relieved = shc_p2p_pending(p2p) == 0;
    }
    shc_p2p_unlock(p2p);
    return relieved;
}

static void drive(struct shc_p2p *p2p)
{
    struct shc_seat *seat = p2p->env.seat;
    struct waiting waiting = {.p2p = p2p, .rank = -1};
    struct shc_wait wait = {.seat = seat, .timeout_ns = SHC_NO_DEADLINE};
    const struct shc_target target = {
        .ready = progress_thread_relieved,
        .arg = &waiting,
        .bell = shc_seat_mail_bell(seat, seat->rank),
        .peer = -1,
        .shared = true,
        .parker = &parker,
    };
    while (shc_wait_for(&wait, &target) != SHC_OK)
        continue; /* it has neither a deadline nor an interrupt */
}

/* P2P-50: IDLE or WATCH, until the progress thread is called. A caller stores its reason before
 * it calls. False: for a long time nobody has called. */
static bool sleep_until_called(struct shc_p2p *p2p)
{
    const uint32_t heard = shc_bell_listen(&p2p->progress_bell);
    const bool pending = shc_p2p_pending(p2p) > 0;
    const bool watches = shc_p2p_waiters(p2p) > 0 && shc_p2p_has_parked(p2p);
    if (shc_p2p_is_closed(p2p) || (pending && !watches))
        return true;
    return shc_bell_sleep(&p2p->progress_bell, heard, pending ? WATCH_NS : IDLE_NS, false) !=
           ETIMEDOUT;
}

static void progress_thread_main(void *arg)
{
    struct shc_p2p *p2p = arg;
    uint64_t nap_ns = NAP_MIN_NS;
    int idle = 0;
    for (;;) {
        const bool pending = shc_p2p_pending(p2p) > 0;
        if (shc_p2p_is_closed(p2p)) {
            shc_p2p_lock(p2p);
            shut(p2p);
            shc_p2p_unlock(p2p);
            return;
        }
        idle = pending ? 0 : idle + 1;
        if (has_turn(p2p)) {
            drive(p2p);
            nap_ns = NAP_MIN_NS;
        } else if (idle > IDLE_NAPS ||
                   (pending && nap_ns == NAP_MAX_NS && shc_p2p_has_parked(p2p))) {
            idle = IDLE_NAPS;
            if (!sleep_until_called(p2p))
                continue;
            shc_os_sleep_ns(NAP_MIN_NS); /* the caller may be about to wait itself */
            nap_ns = NAP_MIN_NS;
            idle = 0;
        } else {
            shc_os_sleep_ns(nap_ns);
            nap_ns = 2 * nap_ns < NAP_MAX_NS ? 2 * nap_ns : NAP_MAX_NS;
        }
    }
}

void shc_progress_thread_start(struct shc_p2p *p2p)
{
    if (SHC_LIKELY(p2p->progress_thread_started))
        return;
    const int error =
        shc_os_thread_start(&p2p->progress_thread, "shc-progress", progress_thread_main, p2p);
    p2p->progress_thread_started = error == 0;
    /* relaxed: as in shc_p2p_attend(). */
    shc_a32_store_relaxed(&p2p->unattended, error != 0);
    if (error != 0)
        shc_seat_lacks_thread(p2p->env.seat, error);
}

bool shc_p2p_attend(struct shc_p2p *p2p)
{
    /* relaxed: a hint; it is looked at again under the lock. */
    if (SHC_LIKELY(shc_a32_load_relaxed(&p2p->unattended) == 0) || shc_p2p_pending(p2p) == 0)
        return false;
    shc_p2p_lock(p2p);
    if (!shc_p2p_is_closed(p2p) && !p2p->progress_thread_started)
        shc_p2p_pass(p2p, false);
    const bool pends = !shc_p2p_is_closed(p2p) && shc_p2p_pending(p2p) > 0;
    shc_p2p_unlock(p2p);
    return pends;
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
    char how[160];
    const struct shc_member_end end = shc_member_get_end(p2p->env.seat, m->peer);
    shc_member_left_text(p2p->env.seat, &end, how, sizeof how);
    return shc_fail(SHC_ERR_PEER_LEFT, "%s failed: %s %s", what,
                    shc_seat_process_name(p2p->env.seat, m->peer).text, how);
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
            shc_p2p_enter(p2p, m, SHC_MESSAGE_QUEUED);
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

/* ---- waiting ---- */

/* If the message does not come, the thread that waits for it runs the queued collectives that no
 * other thread runs: the sender may be waiting for those. It lets some time pass first, as the
 * message may need what this thread does after the wait. */
static bool must_run_queue(struct waiting *waiting)
{
    const struct shc_p2p_env *env = &waiting->p2p->env;
    /* relaxed: a hint; the answer is read before use. */
    if (SHC_LIKELY(!shc_a32_load_relaxed(env->queue_unattended)))
        return false;
    const uint64_t now_ns = shc_clock_ns();
    if (waiting->look_ns == 0)
        waiting->look_ns = now_ns + QUEUE_NS;
    if (now_ns < waiting->look_ns)
        return false;
    waiting->look_ns = now_ns + QUEUE_NS;
    return env->is_queue_unattended(env->queue);
}

/* Is the message over? Makes a pass to find out. */
static bool message_done(void *arg)
{
    struct waiting *waiting = arg;
    struct shc_p2p *p2p = waiting->p2p;
    if (shc_message_is_over(waiting->m))
        return true;
    shc_p2p_lock(p2p);
    const uint64_t before = p2p->pairs.moves;
    if (shc_p2p_is_closed(p2p))
        shut(p2p);
    else
        shc_p2p_pass(p2p, true);
    waiting->moves += p2p->pairs.moves - before;
    if (shc_p2p_unlock(p2p))
        shc_os_thread_yield(); /* another thread of this rank waits for a message, too */
    return shc_message_is_over(waiting->m) || must_run_queue(waiting);
}

/* P2P-50: the thread waits no longer, and is not awake for other messages. */
static void leave(struct shc_p2p *p2p)
{
    shc_p2p_lock(p2p);
    if (shc_p2p_waiters(p2p) == 1 && shc_p2p_pending(p2p) > 0)
        shc_progress_thread_call(p2p); /* it takes the lock after this thread */
    shc_p2p_add(&p2p->waiters, -1);    /* from then on the group may go */
    shc_p2p_unlock(p2p);
}

enum shc_status shc_p2p_wait(struct shc_p2p *p2p, struct shc_message *m, uint64_t timeout_ns)
{
    struct shc_seat *seat = p2p->env.seat;
    struct waiting waiting = {.p2p = p2p, .m = m};
    struct shc_wait wait = {
        .seat = seat,
        .timeout_ns = timeout_ns ? timeout_ns : SHC_NO_DEADLINE,
        .patience = seat->patience_p2p,
        .interruptible = true,
    };
    shc_p2p_lock(p2p);
    bool closed = shc_p2p_is_closed(p2p);
    const struct shc_board_awaited awaited = shc_message_awaited(m);
    waiting.rank = awaited.peer;
    /* The board speaks of members alone. */
    const bool shows = !shc_p2p_is_remote(p2p, awaited.peer);
    if (closed)
        shut(p2p);
    else
        shc_p2p_add(&p2p->waiters, 1); /* keeps the segment mapped */
    shc_p2p_unlock(p2p);
    if (closed)
        return SHC_OK;
    const struct shc_target target = {
        .ready = message_done,
        .arg = &waiting,
        .bell = shc_seat_mail_bell(seat, seat->rank),
        .peer = -1,
        .shared = true,
        .parker = &parker,
        .moves = &waiting.moves,
        .message = shows ? &awaited : NULL,
    };
    enum shc_status st;
    do {
        st = shc_wait_for(&wait, &target);
        if (st == SHC_OK && !shc_message_is_over(m)) {
            shc_progress_thread_call(p2p); /* P2P-51 */
            st = p2p->env.run_queue(p2p->env.queue);
        }
    } while (st == SHC_OK && !shc_message_is_over(m));
    leave(p2p);
    return st;
}

/* ---- leaving ---- */

bool shc_p2p_silence(struct shc_p2p *p2p, uint64_t patience_ns)
{
    const bool taken = shc_biased_lock_take_within(&p2p->lock, shc_thread_number(), patience_ns);
    if (taken) {
        shut(p2p);
        shc_p2p_unlock(p2p);
    } else {
        /* acq_rel p2p/closed: only from open; it publishes nothing. */
        shc_a32_cas_acq_rel(&p2p->closed, SHC_P2P_OPEN, SHC_P2P_CLOSING);
        shc_bell_ring(shc_seat_mail_bell(p2p->env.seat, p2p->env.seat->rank), true);
    }
    shc_progress_thread_call(p2p);
    return taken;
}

static bool nobody_inside(struct shc_p2p *p2p)
{
    shc_p2p_lock(p2p);
    bool nobody = shc_p2p_waiters(p2p) == 0;
    shc_p2p_unlock(p2p);
    return nobody;
}

bool shc_p2p_close(struct shc_p2p *p2p, uint64_t patience_ns)
{
    const uint64_t deadline_ns = shc_clock_ns() + patience_ns;
    bool alone = nobody_inside(p2p);
    for (; !alone && shc_clock_ns() <= deadline_ns; alone = nobody_inside(p2p))
        shc_os_sleep_ns(50 * SHC_NS_PER_US);
    if (!p2p->progress_thread_started)
        return alone;
    p2p->progress_thread_started = false;
    if (alone && shc_os_thread_join(&p2p->progress_thread, patience_ns) == 0)
        return true;
    shc_os_thread_detach(&p2p->progress_thread);
    return false;
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
