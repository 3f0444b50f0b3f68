/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The queues of pending messages, how a message ends, and the words in which it is named.
 */
#include "shm/p2p/internal.h"

#include <stdio.h>

#define TAGS_LISTED 4

/* ---- words ---- */

/* A rank that may be remote. */
static struct shc_rank_name rank_name(const struct shc_p2p *p2p, int rank)
{
    struct shc_rank_name name;
    if (!shc_p2p_is_remote(p2p, rank))
        return shc_seat_rank_name(p2p->env.seat, rank);
    p2p->env.remote.name(p2p->env.remote.ctx, rank, name.text, sizeof name.text);
    return name;
}

/* "recv (float32[4])". The shape may be another process's. */
static void shape_text(const struct shc_p2p *p2p, enum shc_op_kind kind,
                       const struct shc_shape *shape, char *text, size_t capacity)
{
    const struct shc_call call = {
        .kind = kind,
        .dtype = shape->dtype,
        .elem_bytes = shape->elem_bytes,
        .dtype_tag = shape->dtype_tag,
        .count = shape->bytes / (shape->elem_bytes ? shape->elem_bytes : 1),
    };
    shc_call_text(p2p->env.seat, &call, 0, text, capacity);
}

void shc_p2p_text(const struct shc_p2p *p2p, const struct shc_message *m, char *text,
                  size_t capacity)
{
    const int rank = shc_message_rank(m);
    char call[128], message[320];
    shape_text(p2p, m->kind, &m->shape, call, sizeof call);
    snprintf(message, sizeof message, "%s %s %s, tag %d", call, m->kind == SHC_SEND ? "to" : "from",
             rank < 0 ? "any rank" : rank_name(p2p, rank).text, (int)m->tag);
    shc_seat_doing_text(p2p->env.seat, message, text, capacity);
}

/* ", which has sent messages that no recv here takes, with tags 3, 4": this is how a wrong tag
 * shows. */
static void unexpected_text(const struct shc_p2p_peer *peer, char *text, size_t capacity)
{
    size_t used = 0;
    int listed = 0;
    text[0] = '\0';
    for (const struct shc_unexpected *message = peer->unexpected; message && used < capacity;
         message = message->next) {
        if (listed++ == TAGS_LISTED) {
            used += (size_t)snprintf(text + used, capacity - used, ", ...");
            break;
        }
        used += (size_t)snprintf(text + used, capacity - used, "%s%d",
                                 listed == 1 ? ", which has sent messages that no recv here takes, "
                                               "with tags "
                                             : ", ",
                                 (int)message->line.tag);
    }
}

/* "the rest (63 %) " of a message that moves: so one that is slow differs from one that stands still. */
static void rest_text(const struct shc_message *m, char *text, size_t capacity)
{
    const uint64_t rest = m->shape.bytes - m->moved;
    const double percent = rest > 0 ? 100.0 * (double)rest / (double)m->shape.bytes : 0;
    text[0] = '\0';
    if (m->state != SHC_MESSAGE_STREAMING && m->state != SHC_MESSAGE_FILLING)
        return;
    if (percent >= 1)
        snprintf(text, capacity, "the rest (%.0f %%) ", percent);
    else
        snprintf(text, capacity, "the last bytes ");
}

void shc_p2p_whom_text(struct shc_p2p *p2p, const struct shc_message *m, char *text,
                       size_t capacity)
{
    static const char *const what[] = {
        [SHC_MESSAGE_NONE] = "nobody",
        [SHC_MESSAGE_QUEUED] = "earlier messages to be received by",
        [SHC_MESSAGE_ANNOUNCED] = "the matching recv of",
        [SHC_MESSAGE_STREAMING] = "to be received by",
        [SHC_MESSAGE_POSTED] = "the matching send of",
        [SHC_MESSAGE_GRANT_DUE] = "room for a word to",
        [SHC_MESSAGE_REFUSE_DUE] = "room for a word to",
        [SHC_MESSAGE_FILLING] = "from",
    };
    const int peer = shc_message_rank(m);
    char rest[32], member[256] = "any rank", unexpected[160] = "";
    rest_text(m, rest, sizeof rest);
    if (peer >= 0) {
        if (shc_p2p_is_remote(p2p, peer))
            snprintf(member, sizeof member, "%s", rank_name(p2p, peer).text);
        else
            shc_member_text(p2p->env.seat, peer, member, sizeof member);
        if (m->state == SHC_MESSAGE_POSTED)
            unexpected_text(&p2p->peers[peer], unexpected, sizeof unexpected);
    }
    snprintf(text, capacity, "%s%s %s%s", rest, what[m->state], member, unexpected);
}

/* ---- queues ---- */

struct shc_message *shc_queue_find(const struct shc_queue *queue, uint32_t number)
{
    struct shc_message *m = queue->first;
    while (m && m->number != number)
        m = m->next;
    return m;
}

int shc_p2p_queue_count(const struct shc_p2p *p2p)
{
    return SHC_PEER_QUEUES * shc_p2p_rank_count(p2p) + 1;
}

struct shc_queue *shc_p2p_queue(struct shc_p2p *p2p, int index)
{
    const int rank = index / SHC_PEER_QUEUES;
    if (rank == shc_p2p_rank_count(p2p))
        return &p2p->posted_any;
    struct shc_p2p_peer *peer = &p2p->peers[rank];
    struct shc_queue *const queues[SHC_PEER_QUEUES] = {
        &peer->posted, &peer->due, &peer->incoming, &peer->streams, &peer->announced, &peer->sends,
    };
    return queues[index % SHC_PEER_QUEUES];
}

static struct shc_queue *queue_of(struct shc_p2p *p2p, const struct shc_message *m)
{
    switch (m->state) {
    case SHC_MESSAGE_QUEUED:
        return &p2p->peers[m->peer].sends;
    case SHC_MESSAGE_ANNOUNCED:
        return &p2p->peers[m->peer].announced;
    case SHC_MESSAGE_STREAMING:
        return &p2p->peers[m->peer].streams;
    case SHC_MESSAGE_POSTED:
        return m->peer == SHC_ANY_SOURCE ? &p2p->posted_any : &p2p->peers[m->peer].posted;
    case SHC_MESSAGE_FILLING:
        return &p2p->peers[m->source].incoming;
    default:
        return &p2p->peers[m->source].due;
    }
}

void shc_p2p_enter(struct shc_p2p *p2p, struct shc_message *m, enum shc_message_state state)
{
    m->state = state;
    m->next = NULL;
    struct shc_queue *queue = queue_of(p2p, m);
    if (queue->last)
        queue->last->next = m;
    else
        queue->first = m;
    queue->last = m;
}

void shc_p2p_withdraw(struct shc_p2p *p2p, struct shc_message *m)
{
    struct shc_queue *queue = queue_of(p2p, m);
    struct shc_message *before = NULL;
    for (struct shc_message *at = queue->first; at != m; at = at->next)
        before = at;
    if (before)
        before->next = m->next;
    else
        queue->first = m->next;
    if (queue->last == m)
        queue->last = before;
    m->next = NULL;
}

void shc_p2p_keep(const struct shc_p2p *p2p, const struct shc_message *m, enum shc_status status)
{
    const struct shc_board_message message = {
        .kind = m->kind,
        .dtype = m->shape.dtype,
        .status = status,
        .count = m->shape.bytes / m->shape.elem_bytes,
        .bytes = m->shape.bytes,
        .peer = shc_message_rank(m),
        .tag = m->tag,
        .pair = m->number,
        .begun_ticks = m->begun_ticks,
    };
    shc_board_keep(&p2p->env.seat->board, &message);
}

/* ---- the board ---- */

static void count_pending(struct shc_board_pending *pending, const struct shc_queue *queue)
{
    for (const struct shc_message *m = queue->first; m; m = m->next) {
        pending->sends += m->kind == SHC_SEND;
        pending->receives += m->kind == SHC_RECV;
        if (pending->since_ns != 0 && pending->since_ns <= m->lateness.begun_ns)
            continue;
        pending->kind = m->kind;
        pending->peer = shc_message_rank(m);
        pending->tag = m->tag;
        pending->bytes = m->shape.bytes;
        pending->since_ns = m->lateness.begun_ns;
    }
}

void shc_p2p_show(struct shc_p2p *p2p)
{
    struct shc_board_pending pending = {
        .kind = SHC_SEND, .peer = -1, .waiters = shc_p2p_waiters(p2p)};
    for (int i = 0; shc_p2p_pending(p2p) > 0 && i < shc_p2p_queue_count(p2p); i++)
        count_pending(&pending, shc_p2p_queue(p2p, i));
    p2p->shown = shc_p2p_pending(p2p) > 0;
    shc_board_messages(&p2p->env.seat->board, &pending);
}

void shc_p2p_finish(struct shc_p2p *p2p, struct shc_message *m, enum shc_status status,
                    const char *error)
{
    shc_p2p_add(&p2p->pending, -1);
    shc_board_pend(&p2p->env.seat->board, m->kind, -1);
    if (p2p->shown && shc_p2p_pending(p2p) == 0)
        shc_p2p_show(p2p);
    if (status == SHC_OK)
        shc_p2p_count(p2p, m->kind, shc_message_rank(m), m->tag, m->shape.bytes);
    if (m->begun_ticks != 0)
        shc_p2p_keep(p2p, m, status);
    p2p->finished = true;
    /* relaxed: as shc_message_is_over(). */
    shc_a32_store_relaxed(&m->over, 1);
    p2p->env.done(m, status, error);
}

void shc_p2p_finish_ok(struct shc_p2p *p2p, struct shc_message *m)
{
    shc_p2p_withdraw(p2p, m);
    shc_p2p_finish(p2p, m, SHC_OK, "");
}

void shc_p2p_finish_alone(struct shc_p2p *p2p, struct shc_message *m, enum shc_status status,
                          const char *reason)
{
    char what[256], error[SHC_ERROR_TEXT_BYTES];
    shc_p2p_text(p2p, m, what, sizeof what);
    snprintf(error, sizeof error, "%s failed: %.700s", what, reason);
    shc_p2p_withdraw(p2p, m);
    shc_p2p_finish(p2p, m, status, error);
}

void shc_p2p_finish_queue(struct shc_p2p *p2p, struct shc_queue *queue, enum shc_status status,
                          const char *reason)
{
    while (queue->first)
        shc_p2p_finish_alone(p2p, queue->first, status, reason);
}

void shc_p2p_finish_all(struct shc_p2p *p2p, enum shc_status status, const char *reason)
{
    for (int i = 0; i < shc_p2p_queue_count(p2p); i++)
        shc_p2p_finish_queue(p2p, shc_p2p_queue(p2p, i), status, reason);
}

void shc_p2p_break(struct shc_p2p *p2p, enum shc_status status, const char *reason,
                   const struct shc_member_end *end)
{
    status = shc_group_fail(p2p->env.seat, status, reason, end);
    shc_p2p_finish_all(p2p, status, reason);
}

void shc_p2p_finish_misfit(struct shc_p2p *p2p, struct shc_message *m)
{
    char what[256], other[128], error[SHC_ERROR_TEXT_BYTES];
    const enum shc_op_kind side = m->kind == SHC_SEND ? SHC_RECV : SHC_SEND;
    shc_p2p_text(p2p, m, what, sizeof what);
    shape_text(p2p, side, &m->other, other, sizeof other);
    snprintf(error, sizeof error,
             "%s failed: the %s of %s that matches it is of another "
             "type or size: %s; the message is dropped",
             what, shc_op_kind_name(side), rank_name(p2p, shc_message_rank(m)).text, other);
    shc_p2p_finish(p2p, m, SHC_ERR_MISMATCH, error);
}
