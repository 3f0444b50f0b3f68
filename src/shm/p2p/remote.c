/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Messages with remote ranks (remote.h). They have the same states as messages in shared memory; frames move
 * them, instead of lines.
 */
#include "shm/p2p/remote.h"

#include "shm/p2p/internal.h"

#include <stdlib.h>

/* REM-4: how many eager messages may be on their way to one rank that no receive has taken; and
 * after how many taken ones the sender is told. */
#define EAGER_MOST  32
#define CREDIT_STEP 8

/* ---- shared with the other files ---- */

void shc_remote_stir(const struct shc_p2p *p2p, int rank)
{
    if (p2p->env.remote.count > 0 && (rank < 0 || shc_p2p_is_remote(p2p, rank)))
        p2p->env.remote.stir(p2p->env.remote.ctx);
}

static struct shc_remote_peer *counts_of(struct shc_p2p *p2p, int rank)
{
    return &p2p->remotes[rank - p2p->env.seat->world_size];
}

void shc_remote_give(struct shc_p2p *p2p, struct shc_message *m, int rank,
                     const struct shc_line_head *line, const char *bytes)
{
    const bool fits = shc_p2p_meet(p2p, m, rank, line);
    if (line->kind != SHC_FRAME_EAGER) {
        shc_remote_stir(p2p, rank);
        return;
    }
    if (++counts_of(p2p, rank)->taken - counts_of(p2p, rank)->told >= CREDIT_STEP)
        shc_remote_stir(p2p, rank);
    if (!fits) {
        shc_p2p_finish_misfit(p2p, m);
        return;
    }
    if (m->shape.bytes > 0)
        shc_buf_write(&m->buf, 0, bytes, m->shape.bytes);
    m->moved = m->shape.bytes;
    shc_p2p_finish(p2p, m, SHC_OK, "");
}

/* ---- the caller's side ---- */

enum shc_status shc_remote_attach(struct shc_p2p *p2p, const struct shc_remote *remote)
{
    const size_t world = (size_t)p2p->env.seat->world_size, count = (size_t)remote->count;
    struct shc_p2p_peer *peers = calloc(world + count, sizeof *peers);
    struct shc_remote_peer *remotes = calloc(count ? count : 1, sizeof *remotes);
    if (!peers || !remotes) {
        free(peers);
        free(remotes);
        return shc_fail(SHC_ERR_NOMEM, "no memory for messages with %zu ranks of other hosts",
                        count);
    }
    shc_p2p_lock(p2p);
    free(p2p->peers); /* there has been no message */
    p2p->peers = peers;
    p2p->remotes = remotes;
    p2p->env.remote = *remote;
    shc_p2p_unlock(p2p);
    return SHC_OK;
}

/* Takes the lock. False: without it, as the group is of no use. */
static bool begin(struct shc_p2p *p2p)
{
    shc_p2p_lock(p2p);
    if (!shc_p2p_is_closed(p2p) && !shc_group_failed(p2p->env.seat))
        return true;
    shc_p2p_unlock(p2p);
    return false;
}

/* Drops the lock. A thread whose message has ended may sleep on this rank's own doorbell. */
static void end(struct shc_p2p *p2p)
{
    if (p2p->finished && shc_p2p_waiters(p2p) > 0)
        shc_bell_ring(shc_seat_mail_bell(p2p->env.seat, p2p->env.seat->rank), true);
    p2p->finished = false;
    shc_p2p_unlock(p2p);
}

static struct shc_remote_frame frame_of(enum shc_remote_kind kind, const struct shc_message *m)
{
    return (struct shc_remote_frame){
        .kind = kind,
        .number = m->number,
        .tag = m->tag,
        .dtype = m->shape.dtype,
        .elem_bytes = m->shape.elem_bytes,
        .dtype_tag = m->shape.dtype_tag,
        .bytes = m->shape.bytes,
    };
}

static bool next_answer(struct shc_p2p *p2p, int rank, struct shc_remote_frame *frame,
                        struct shc_remote_flow *flow)
{
    struct shc_message *m = p2p->peers[rank].due.first;
    if (!m)
        return false;
    const bool grant = m->state == SHC_MESSAGE_GRANT_DUE;
    *frame = frame_of(grant ? SHC_REMOTE_CTS : SHC_REMOTE_NACK, m);
    shc_p2p_withdraw(p2p, m);
    if (grant) {
        shc_p2p_enter(p2p, m, SHC_MESSAGE_FILLING);
        *flow = (struct shc_remote_flow){m->number, m->shape.bytes};
        return true;
    }
    shc_p2p_finish_misfit(p2p, m);
    return true;
}

static bool next_credit(struct shc_p2p *p2p, int rank, struct shc_remote_frame *frame)
{
    struct shc_remote_peer *counts = counts_of(p2p, rank);
    if (counts->taken - counts->told < CREDIT_STEP)
        return false;
    counts->told = counts->taken;
    *frame = (struct shc_remote_frame){.kind = SHC_REMOTE_CREDIT, .number = counts->taken};
    return true;
}

static bool next_header(struct shc_p2p *p2p, int rank, struct shc_remote_frame *frame,
                        void *payload)
{
    struct shc_p2p_peer *to = &p2p->peers[rank];
    struct shc_remote_peer *counts = counts_of(p2p, rank);
    struct shc_message *m = to->sends.first;
    if (!m)
        return false;
    const size_t bytes = m->shape.bytes;
    const bool has_credit = counts->sent - counts->credited < EAGER_MOST;
    const bool eager = bytes == 0 || (bytes <= SHC_REMOTE_EAGER_BYTES && has_credit);
    m->number = to->messages++;
    shc_p2p_withdraw(p2p, m);
    shc_p2p_enter(p2p, m, eager ? SHC_MESSAGE_STREAMING : SHC_MESSAGE_ANNOUNCED);
    *frame = frame_of(eager ? SHC_REMOTE_EAGER : SHC_REMOTE_FIRST, m);
    if (!eager)
        return true;
    counts->sent++;
    if (bytes > 0)
        shc_buf_read(&m->buf, 0, payload, bytes);
    m->moved = bytes;
    return true;
}

bool shc_remote_next(struct shc_p2p *p2p, int rank, struct shc_remote_frame *frame, void *payload,
                     struct shc_remote_flow *flow)
{
    *flow = (struct shc_remote_flow){0, 0};
    if (!begin(p2p))
        return false;
    const bool there = next_answer(p2p, rank, frame, flow) || next_credit(p2p, rank, frame) ||
                       next_header(p2p, rank, frame, payload);
    end(p2p);
    return there;
}

void shc_remote_end(struct shc_p2p *p2p, int rank, uint32_t number)
{
    if (!begin(p2p))
        return;
    struct shc_message *m = shc_queue_find(&p2p->peers[rank].streams, number);
    if (m && m->moved == m->shape.bytes)
        shc_p2p_finish_ok(p2p, m);
    end(p2p);
}

/* REM-7: could a rank have sent that header? */
static bool is_sound(const struct shc_remote_frame *frame)
{
    const bool plain = frame->dtype < SHC_OPAQUE;
    if (frame->dtype >= SHC_DTYPE_COUNT || frame->elem_bytes == 0 || frame->elem_bytes > UINT8_MAX)
        return false;
    if (plain && frame->elem_bytes != shc_dtype_bytes((enum shc_dtype)frame->dtype))
        return false;
    if (frame->bytes % frame->elem_bytes != 0)
        return false;
    return frame->kind == SHC_REMOTE_FIRST ? frame->bytes > 0
                                           : frame->bytes <= SHC_REMOTE_EAGER_BYTES;
}

static struct shc_line_head line_of(const struct shc_remote_frame *frame)
{
    const bool eager = frame->kind == SHC_REMOTE_EAGER;
    return (struct shc_line_head){
        .kind = eager ? SHC_FRAME_EAGER : SHC_FRAME_FIRST,
        .dtype = (uint8_t)frame->dtype,
        .elem_bytes = (uint8_t)frame->elem_bytes,
        .asks = 1,
        .tag = frame->tag,
        .dtype_tag = frame->dtype_tag,
        .message = frame->number,
        .bytes = frame->bytes,
        .piece = eager ? (uint32_t)frame->bytes : 0,
        .place = {SHC_IN_LINE, 0},
    };
}

static enum shc_status take_header(struct shc_p2p *p2p, int rank,
                                   const struct shc_remote_frame *frame, const char *payload)
{
    if (!is_sound(frame))
        return SHC_ERR_INVALID;
    const struct shc_line_head line = line_of(frame);
    struct shc_message *m = shc_match_header(p2p, rank, frame->tag);
    if (!m)
        return shc_unexpected_keep(p2p, rank, &line, payload) ? SHC_OK : SHC_ERR_NOMEM;
    shc_p2p_withdraw(p2p, m);
    shc_remote_give(p2p, m, rank, &line, payload);
    return SHC_OK;
}

static bool take_answer(struct shc_p2p *p2p, int rank, const struct shc_remote_frame *frame,
                        struct shc_remote_flow *flow)
{
    struct shc_message *m = shc_queue_find(&p2p->peers[rank].announced, frame->number);
    if (!m)
        return false;
    shc_p2p_withdraw(p2p, m);
    if (frame->kind == SHC_REMOTE_CTS) {
        shc_p2p_enter(p2p, m, SHC_MESSAGE_STREAMING);
        *flow = (struct shc_remote_flow){m->number, m->shape.bytes};
        return true;
    }
    const struct shc_line_head line = line_of(frame);
    m->other = shc_line_shape(&line);
    shc_p2p_finish_misfit(p2p, m);
    return true;
}

static bool take_credit(struct shc_p2p *p2p, int rank, uint32_t taken)
{
    struct shc_remote_peer *counts = counts_of(p2p, rank);
    if (taken - counts->credited > counts->sent - counts->credited)
        return false;
    counts->credited = taken;
    return true;
}

enum shc_status shc_remote_take(struct shc_p2p *p2p, int rank, const struct shc_remote_frame *frame,
                                const void *payload, struct shc_remote_flow *flow)
{
    enum shc_status st = SHC_ERR_INVALID;
    *flow = (struct shc_remote_flow){0, 0};
    if (!begin(p2p))
        return SHC_OK; /* what comes now is of no use */
    switch (frame->kind) {
    case SHC_REMOTE_EAGER:
    case SHC_REMOTE_FIRST:
        st = take_header(p2p, rank, frame, payload);
        break;
    case SHC_REMOTE_CTS:
    case SHC_REMOTE_NACK:
        st = take_answer(p2p, rank, frame, flow) ? SHC_OK : SHC_ERR_INVALID;
        break;
    case SHC_REMOTE_CREDIT:
        st = take_credit(p2p, rank, frame->number) ? SHC_OK : SHC_ERR_INVALID;
        break;
    default:
        break;
    }
    end(p2p);
    return st;
}

bool shc_remote_read(struct shc_p2p *p2p, int rank, uint32_t number, void *out, size_t bytes)
{
    if (!begin(p2p))
        return false;
    struct shc_message *m = shc_queue_find(&p2p->peers[rank].streams, number);
    const bool there = m && bytes <= m->shape.bytes - m->moved;
    if (there) {
        shc_buf_read(&m->buf, m->moved, out, bytes);
        m->moved += bytes;
    }
    end(p2p);
    return there;
}

bool shc_remote_write(struct shc_p2p *p2p, int rank, uint32_t number, uint64_t offset,
                      const void *in, size_t bytes)
{
    if (!begin(p2p))
        return false;
    struct shc_message *m = shc_queue_find(&p2p->peers[rank].incoming, number);
    const bool there = m && bytes <= m->shape.bytes - m->moved && offset <= m->shape.bytes - bytes;
    if (there) {
        shc_buf_write(&m->buf, offset, in, bytes);
        m->moved += bytes;
        if (m->moved == m->shape.bytes)
            shc_p2p_finish_ok(p2p, m);
    }
    end(p2p);
    return there;
}

void shc_remote_gone(struct shc_p2p *p2p, int rank, const char *reason)
{
    if (!begin(p2p))
        return;
    for (int i = 0; i < SHC_PEER_QUEUES; i++)
        shc_p2p_finish_queue(p2p, shc_p2p_queue(p2p, SHC_PEER_QUEUES * rank + i), SHC_ERR_PEER_LEFT,
                             reason);
    end(p2p);
}

bool shc_remote_waits(struct shc_p2p *p2p, int rank)
{
    if (!begin(p2p))
        return false;
    bool waits = false;
    for (int i = 0; i < SHC_PEER_QUEUES; i++)
        waits = waits || shc_p2p_queue(p2p, SHC_PEER_QUEUES * rank + i)->first;
    end(p2p);
    return waits;
}

bool shc_remote_pends(const struct shc_p2p *p2p)
{
    return shc_p2p_pending(p2p) > 0;
}
