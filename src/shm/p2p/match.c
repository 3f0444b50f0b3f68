/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Matching (P2P-42): the posted receives that headers take, and the unexpected messages that
 * receives take. Both in the order in which they came.
 */
#include "shm/p2p/internal.h"

#include <stdlib.h>

/* ---- posted receives ---- */

static struct shc_message *first_with_tag(const struct shc_queue *queue, int32_t tag)
{
    struct shc_message *m = queue->first;
    while (m && m->tag != tag)
        m = m->next;
    return m;
}

struct shc_message *shc_match_header(struct shc_p2p *p2p, int peer, int32_t tag)
{
    struct shc_message *named = first_with_tag(&p2p->peers[peer].posted, tag);
    struct shc_message *any = first_with_tag(&p2p->posted_any, tag);
    if (!named || (any && any->post < named->post))
        return any;
    return named;
}

static bool shape_equals(const struct shc_shape *a, const struct shc_shape *b)
{
    return a->dtype == b->dtype && a->elem_bytes == b->elem_bytes && a->dtype_tag == b->dtype_tag &&
           a->bytes == b->bytes;
}

bool shc_p2p_meet(struct shc_p2p *p2p, struct shc_message *m, int peer,
                  const struct shc_line_head *line)
{
    m->source = peer;
    m->number = line->message;
    m->unasked = shc_line_is_unasked(line);
    m->moved = 0;
    m->other = shc_line_shape(line);
    const bool fits = shape_equals(&m->other, &m->shape);
    if (line->kind == SHC_FRAME_EAGER)
        return fits;
    const enum shc_message_state next = m->unasked ? SHC_MESSAGE_FILLING : SHC_MESSAGE_GRANT_DUE;
    shc_p2p_enter(p2p, m, fits ? next : SHC_MESSAGE_REFUSE_DUE);
    return fits;
}

/* ---- unexpected messages ---- */

static void append(struct shc_p2p *p2p, struct shc_p2p_peer *from, struct shc_unexpected *message)
{
    message->arrival = p2p->arrivals++;
    if (from->last_unexpected)
        from->last_unexpected->next = message;
    else
        from->unexpected = message;
    from->last_unexpected = message;
}

/* P2P-19: pool buffers are read in the order of the lines, so bytes there are copied to memory of
 * this rank, with room for those that will follow unasked. A short message in a hand-off buffer lies
 * in the buffer's line, and is copied with it: so that buffer is this rank's to fill again. */
bool shc_unexpected_keep(struct shc_p2p *p2p, int peer, const struct shc_line_head *line,
                         const void *data)
{
    struct shc_p2p_peer *from = &p2p->peers[peer];
    const bool pooled = line->place.memory == SHC_IN_POOL;
    const bool returns = pooled || shc_hand_off_spares(line->place, line->piece);
    const bool copies = returns || line->place.memory == SHC_IN_LINE;
    const size_t room = pooled ? line->bytes : copies ? line->piece : 0;
    struct shc_unexpected *message = malloc(sizeof *message + room);
    if (!message)
        return false;
    *message = (struct shc_unexpected){.line = *line, .aside = pooled};
    message->data = (uint8_t *)(message + 1);
    if (copies)
        shc_copy(message->data, shc_p2p_piece(p2p, peer, line, data), line->piece);
    if (returns) {
        shc_place_return(&p2p->pairs, peer, line->place);
        message->line.place.memory = SHC_IN_LINE;
    }
    if (pooled && line->bytes > SHC_WHOLE_BYTES)
        shc_pair_tell_aside(&p2p->pairs, peer);
    if (shc_line_is_unasked(line))
        from->coming = (struct shc_coming){.comes = true, .line = *line, .kept = message};
    append(p2p, from, message);
    return true;
}

struct shc_unexpected *shc_unexpected_take(struct shc_p2p *p2p, const struct shc_message *m,
                                           int *from)
{
    const int count = shc_p2p_rank_count(p2p);
    const bool any = m->peer == SHC_ANY_SOURCE;
    struct shc_unexpected *best = NULL, *best_before = NULL;
    for (int peer = any ? 0 : m->peer; peer < (any ? count : m->peer + 1); peer++) {
        struct shc_unexpected *before = NULL, *message = p2p->peers[peer].unexpected;
        for (; message && message->line.tag != m->tag; message = message->next)
            before = message;
        if (!message || (best && best->arrival < message->arrival))
            continue;
        best = message;
        best_before = before;
        *from = peer;
    }
    if (!best)
        return NULL;
    struct shc_p2p_peer *peer = &p2p->peers[*from];
    if (best_before)
        best_before->next = best->next;
    else
        peer->unexpected = best->next;
    if (peer->last_unexpected == best)
        peer->last_unexpected = best_before;
    return best;
}

bool shc_unexpected_add(struct shc_p2p *p2p, int peer, const struct shc_line_head *more)
{
    struct shc_coming *coming = &p2p->peers[peer].coming;
    struct shc_line_head *line = &coming->line;
    if (!coming->comes || line->message != more->message || line->piece != more->bytes ||
        more->piece > line->bytes - line->piece || more->piece % line->elem_bytes != 0 ||
        !shc_line_continues(line->place, more))
        return false;
    struct shc_unexpected *kept = coming->kept;
    const bool in_pool = more->place.memory == SHC_IN_POOL;
    if (kept && in_pool)
        shc_copy(kept->data + line->piece, shc_p2p_piece(p2p, peer, more, NULL), more->piece);
    line->piece += more->piece;
    const bool whole = line->piece == line->bytes;
    if (in_pool || (whole && !kept)) /* a long hand-off buffer stays with what it brought */
        shc_place_return(&p2p->pairs, peer, more->place);
    if (kept) {
        kept->line.piece = line->piece;
        if (whole)
            kept->line.kind = SHC_FRAME_EAGER; /* from now on it looks like one */
    }
    coming->comes = !whole;
    return true;
}
