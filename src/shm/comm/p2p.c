/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/comm/p2p.h"

#include "shm/base/clock.h"
#include "shm/base/num.h"
#include "shm/comm/comm.h"
#include "shm/comm/request.h"
#include "shm/proto/member.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- queues ---- */

void shc_queue_append(struct shc_queue *queue, struct shc_request *request)
{
    request->next = NULL;
    if (queue->last)
        queue->last->next = request;
    else
        queue->first = request;
    queue->last = request;
}

static void remove_from(struct shc_queue *queue, struct shc_request *request)
{
    struct shc_request *before = NULL;
    for (struct shc_request *at = queue->first; at != request; at = at->next)
        before = at;
    if (before)
        before->next = request->next;
    else
        queue->first = request->next;
    if (queue->last == request)
        queue->last = before;
    request->next = NULL;
}

int shc_p2p_queue_count(const struct shc_p2p *p2p)
{
    return 3 * p2p->comm->seat.world_size + 1;
}

struct shc_queue *shc_p2p_queue(struct shc_p2p *p2p, int index)
{
    const int peer = index / 3;
    if (peer == p2p->comm->seat.world_size)
        return &p2p->posted_any;
    if (index % 3 == 0)
        return &p2p->peers[peer].posted;
    return index % 3 == 1 ? &p2p->peers[peer].incoming : &p2p->peers[peer].sends;
}

static struct shc_queue *queue_of(struct shc_p2p *p2p, const struct shc_request *request)
{
    const struct shc_message *m = &request->message;
    switch (m->state) {
    case SHC_MESSAGE_QUEUED:
    case SHC_MESSAGE_ANNOUNCED:
    case SHC_MESSAGE_STREAMING:
        return &p2p->peers[m->peer].sends;
    case SHC_MESSAGE_POSTED:
        return m->peer == SHC_ANY_SOURCE ? &p2p->posted_any : &p2p->peers[m->peer].posted;
    default:
        return &p2p->peers[m->source].incoming;
    }
}

void shc_p2p_withdraw(struct shc_p2p *p2p, struct shc_request *request)
{
    remove_from(queue_of(p2p, request), request);
}

void shc_p2p_finish(struct shc_p2p *p2p, struct shc_request *request, enum shc_status status,
                    const char *error)
{
    shc_p2p_add(&p2p->pending, -1);
    p2p->finished = true;
    shc_request_finish(request, status, error);
}

void shc_p2p_finish_ok(struct shc_p2p *p2p, struct shc_request *request)
{
    shc_p2p_withdraw(p2p, request);
    shc_p2p_finish(p2p, request, SHC_OK, "");
}

static void finish_queue(struct shc_p2p *p2p, struct shc_queue *queue, enum shc_status status,
                         const char *reason)
{
    while (queue->first) {
        struct shc_request *request = queue->first;
        char what[256], error[SHC_ERROR_TEXT_BYTES];
        shc_p2p_text(request, what, sizeof what);
        snprintf(error, sizeof error, "%s failed: %.700s", what, reason);
        remove_from(queue, request);
        shc_p2p_finish(p2p, request, status, error);
    }
}

void shc_p2p_finish_all(struct shc_p2p *p2p, enum shc_status status, const char *reason)
{
    for (int i = 0; i < shc_p2p_queue_count(p2p); i++)
        finish_queue(p2p, shc_p2p_queue(p2p, i), status, reason);
}

void shc_p2p_break(struct shc_p2p *p2p, enum shc_status status, const char *reason)
{
    status = shc_group_fail(&p2p->comm->seat, status, reason);
    shc_p2p_finish_all(p2p, status, reason);
}

static void shape_text(enum shc_op_kind kind, const struct shc_shape *shape, char *text,
                       size_t capacity)
{
    struct shc_call call = {.kind = kind,
                            .dtype = shape->dtype,
                            .elem_bytes = shape->elem_bytes,
                            .dtype_tag = shape->dtype_tag};
    call.count = shape->bytes / (shape->elem_bytes ? shape->elem_bytes : 1);
    shc_call_text(&call, 0, text, capacity);
}

void shc_p2p_finish_misfit(struct shc_p2p *p2p, struct shc_request *request,
                           const struct shc_shape *theirs)
{
    char what[256], other[128], error[SHC_ERROR_TEXT_BYTES];
    const bool sends = request->op.kind == SHC_SEND;
    const int rank = sends ? request->message.peer : request->message.source;
    const enum shc_op_kind side = sends ? SHC_RECV : SHC_SEND;
    shc_p2p_text(request, what, sizeof what);
    shape_text(side, theirs, other, sizeof other);
    snprintf(error, sizeof error,
             "%s failed: the %s of rank %d that matches it is of another "
             "type or size: %s; the message is dropped",
             what, shc_op_kind_name(side), rank, other);
    shc_p2p_finish(p2p, request, SHC_ERR_MISMATCH, error);
}

/* ---- the pass ---- */

void shc_p2p_pass(struct shc_p2p *p2p, bool waiter)
{
    const int world = p2p->comm->seat.world_size;
    struct shc_sight sight;
    shc_p2p_look(p2p, &sight);
    if (waiter && shc_p2p_pending(p2p) > 0) {
        /* relaxed: as shc_p2p_waiters(). */
        shc_a64_store_relaxed(&p2p->waited_ns, sight.now_ns);
    }
    const bool works = !shc_group_failed(&p2p->comm->seat);
    for (int i = 0, peer = p2p->first_peer; i < world; i++) {
        shc_p2p_read_lines(p2p, peer); /* once more after a failure: what is all there arrives */
        if (works && (p2p->peers[peer].incoming.first || p2p->peers[peer].sends.first))
            shc_p2p_write_lines(p2p, peer);
        peer = peer + 1 < world ? peer + 1 : 0;
    }
    p2p->first_peer = p2p->first_peer + 1 < world ? p2p->first_peer + 1 : 0;
    shc_p2p_judge(p2p, &sight);
    /* Whose message ended here may sleep on this rank's own bell. */
    if (p2p->finished && shc_p2p_waiters(p2p) > (waiter ? 1 : 0))
        shc_bell_ring(shc_seat_mail_bell(&p2p->comm->seat, p2p->comm->seat.rank), true);
    p2p->finished = false;
    shc_pairs_ring(&p2p->pairs);
}

/* ---- the lock ---- */

void shc_p2p_count_call(struct shc_p2p *p2p)
{
    struct shc_bias *bias = &p2p->lock.bias;
    const uint64_t me = shc_thread_number();
    if (SHC_UNLIKELY(shc_bias_count(bias, me)) && shc_process_may_bias())
        shc_bias_give(bias, me);
}

/* ---- submitting ---- */

enum shc_status shc_p2p_lock_other_message(struct shc_p2p *p2p, struct shc_kept_message *kept,
                                           const struct shc_op *op, struct shc_message **message)
{
    shc_p2p_unlock(p2p); /* a long list of tensors takes its time */
    struct shc_message fresh;
    SHC_TRY(shc_message_prepare(&fresh, p2p->comm, op));
    shc_p2p_lock(p2p);
    *kept = (struct shc_kept_message){.message = fresh, .op = *op, .valid = true};
    *message = &kept->message;
    return SHC_OK;
}

static SHC_COLD enum shc_status refuse_submit(struct shc_p2p *p2p,
                                              const struct shc_request *request)
{
    char what[256];
    shc_p2p_text(request, what, sizeof what);
    if (shc_p2p_is_closed(p2p))
        return shc_fail(SHC_ERR_CLOSED, "%s failed: this rank has closed the group", what);
    if (shc_group_failed(&p2p->comm->seat))
        return shc_group_reason(&p2p->comm->seat, what);
    return shc_fail(SHC_ERR_PEER_LEFT, "%s failed: rank %d has left the group", what,
                    request->message.peer);
}

static enum shc_status check_submit(struct shc_p2p *p2p, const struct shc_request *request)
{
    struct shc_seat *seat = &p2p->comm->seat;
    const int peer = request->message.peer;
    /* Behind the close the segment may be unmapped. */
    bool gone = !shc_p2p_is_closed(p2p) && request->op.kind == SHC_SEND && peer != seat->rank &&
                shc_member_look(seat, peer) == SHC_MEMBER_LEFT;
    if (SHC_UNLIKELY(shc_p2p_is_closed(p2p) || shc_group_failed(seat) || gone))
        return refuse_submit(p2p, request);
    shc_agent_start(p2p);
    return SHC_OK;
}

static void begin_clock(struct shc_p2p *p2p, struct shc_message *m)
{
    m->begun_ns = shc_clock_ns();
    m->deadline_ns = shc_deadline_after(m->begun_ns, m->timeout_ns);
    m->late_step_ns = p2p->comm->seat.late_ns;
    m->late_ns = m->begun_ns + m->late_step_ns;
    if (shc_p2p_pending(p2p) == 0) {
        p2p->judged_ns = p2p->asked_ns = m->begun_ns; /* nobody has looked, and nobody needed to */
        p2p->forgiven = 0;
    }
}

/* A submission copies what is there already. As long as that takes it counts as one who waits, or the agent would
 * want the lock for a pass of its own, and end its bias. Returns when somebody waited last, for end_turn(): a waiter
 * who is held up is so as long as before. */
static uint64_t begin_turn(struct shc_p2p *p2p, uint64_t now_ns)
{
    /* relaxed: as shc_p2p_waiters(). */
    const uint64_t waited_ns = shc_a64_load_relaxed(&p2p->waited_ns);
    shc_p2p_add(&p2p->waiters, 1);
    /* relaxed: as above. */
    shc_a64_store_relaxed(&p2p->waited_ns, now_ns);
    return waited_ns;
}

static void end_turn(struct shc_p2p *p2p, uint64_t waited_ns)
{
    shc_p2p_add(&p2p->waiters, -1);
    /* relaxed: as above. */
    shc_a64_store_relaxed(&p2p->waited_ns, waited_ns);
}

enum shc_status shc_p2p_submit(struct shc_p2p *p2p, struct shc_request *request)
{
    struct shc_message *m = &request->message;
    shc_p2p_lock(p2p);
    /* Where something pends, the pass of this submission moves that on, too. */
    if (shc_p2p_pending(p2p) == 0 && request->op.kind == SHC_SEND && shc_p2p_place(p2p, m)) {
        shc_p2p_unlock(p2p);
        shc_request_born_done(request);
        return SHC_OK;
    }
    enum shc_status st = check_submit(p2p, request);
    if (st == SHC_OK) {
        begin_clock(p2p, m);
        m->post = p2p->posts++;
        const uint64_t waited_ns = begin_turn(p2p, m->begun_ns);
        shc_p2p_add(&p2p->pending, 1);
        if (request->op.kind == SHC_RECV) {
            shc_p2p_post_receive(p2p, request);
        } else {
            m->state = SHC_MESSAGE_QUEUED;
            shc_queue_append(&p2p->peers[m->peer].sends, request);
        }
        shc_p2p_pass(p2p, true);
        end_turn(p2p, waited_ns);
    }
    bool call =
        st == SHC_OK && shc_p2p_pending(p2p) > 0; /* who waits now may leave before this is over */
    shc_p2p_unlock(p2p);
    if (call)
        shc_agent_call(p2p);
    return st;
}

void shc_p2p_cancel(struct shc_p2p *p2p, struct shc_request *request, bool for_good)
{
    shc_p2p_lock(p2p);
    const struct shc_message *m = &request->message;
    if (shc_request_has_ended(request)) {
        /* it ended meanwhile */
    } else if (m->state == SHC_MESSAGE_POSTED || m->state == SHC_MESSAGE_QUEUED) {
        shc_p2p_withdraw(p2p, request);
        shc_p2p_finish(p2p, request, SHC_ERR_INTERRUPTED, "interrupted before it began");
    } else if (for_good) {
        char what[256], reason[320];
        shc_p2p_text(request, what, sizeof what);
        snprintf(reason, sizeof reason, "%s was interrupted", what);
        shc_p2p_break(p2p, SHC_ERR_INTERRUPTED, reason);
    }
    p2p->finished = false;
    shc_p2p_unlock(p2p);
}

/* ---- making one ---- */

static void free_peers(struct shc_p2p *p2p)
{
    free(p2p->paces);
    free(p2p->peers);
    p2p->paces = NULL;
    p2p->peers = NULL;
}

enum shc_status shc_p2p_init(struct shc_p2p *p2p, struct shc_comm *comm)
{
    const size_t world = (size_t)comm->seat.world_size;
    p2p->comm = comm;
    p2p->peers = calloc(world, sizeof *p2p->peers);
    p2p->paces = calloc(world, sizeof *p2p->paces);
    if (!p2p->peers || !p2p->paces) {
        free_peers(p2p);
        return shc_fail(SHC_ERR_NOMEM, "no memory for %zu peers", world);
    }
    for (size_t peer = 0; peer < world; peer++)
        shc_paces_init(p2p->paces[peer], SHC_WAYS, SHC_WAY_LINES);
    shc_biased_lock_init(&p2p->lock, SHC_BIAS_FIRST_PAY);
    enum shc_status st = shc_pairs_init(&p2p->pairs, &comm->seat);
    if (st != SHC_OK)
        free_peers(p2p);
    return st;
}

void shc_p2p_fini(struct shc_p2p *p2p)
{
    for (int peer = 0; peer < p2p->comm->seat.world_size; peer++) {
        struct shc_stray *stray = p2p->peers[peer].strays, *next;
        for (; stray; stray = next) {
            next = stray->next;
            shc_stray_free(stray);
        }
    }
    shc_pairs_fini(&p2p->pairs);
    free_peers(p2p);
}
