/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Messages that come in: reading the lines of the peers, giving headers to receives (P2P-42), and
 * bringing the bytes to the user's memory.
 */
#include "shm/p2p/internal.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- checking a line ---- */

/* Does the line name memory that may hold its bytes? P2P-13: the line of a hand-off buffer names
 * that buffer, and no other line names one. */
static bool is_there(const struct shc_p2p *p2p, int peer, struct shc_place found,
                     const struct shc_line_head *line)
{
    if (found.memory == SHC_IN_HAND_OFF)
        return line->place.memory == found.memory && line->place.index == found.index;
    return shc_place_exists(&p2p->pairs, peer, line->place);
}

/* May a header come with only a part of its message? It has fewer bytes than the message, and
 * whole elements. P2P-25: each sender sends one message at a time unasked. An exception is a
 * message that is dropped here, as its sender may have stopped sending it. */
static bool is_sound_first(const struct shc_p2p *p2p, int peer, const struct shc_line_head *line)
{
    const struct shc_coming *coming = &p2p->peers[peer].coming;
    if (line->piece >= line->bytes || line->elem_bytes == 0 || line->piece % line->elem_bytes != 0)
        return false;
    if (line->asks)
        return line->place.memory != SHC_IN_POOL; /* nothing there may be kept */
    if (coming->comes && coming->kept)
        return false;
    return line->place.memory == SHC_IN_POOL ? line->bytes <= SHC_UNASKED_BYTES
                                             : line->place.memory == SHC_IN_LONG_HAND_OFF &&
                                                   line->bytes <= SHC_LONG_HAND_OFF_BYTES;
}

bool shc_p2p_read_head(const struct shc_p2p *p2p, int peer, struct shc_pair_found found,
                       struct shc_line_head *line)
{
    shc_copy_once(line, &found.line->head, sizeof *line);
    return is_there(p2p, peer, found.place, line) &&
           line->piece <= shc_place_bytes(&p2p->pairs, line->place) &&
           (line->kind != SHC_FRAME_EAGER || line->piece == line->bytes) &&
           (line->kind != SHC_FRAME_FIRST || is_sound_first(p2p, peer, line));
}

/* ---- headers ---- */

void shc_p2p_write_piece(const struct shc_p2p *p2p, struct shc_message *m,
                         const struct shc_line_head *line, const char *piece, size_t bytes)
{
    if (m->buf.flat && shc_select_streams_out(p2p->env.tuning, m->shape.bytes, false))
        shc_copy_stream(m->buf.flat + m->moved, piece, bytes);
    else if (line->mode == SHC_COPY_PLAIN)
        shc_buf_write(&m->buf, m->moved, piece, bytes);
    else
        shc_buf_write_lines(&m->buf, m->moved, piece, bytes);
    m->moved += bytes;
}

/* Gives the withdrawn receive this header, and the bytes that came with it. `first`: where the first
 * ones came. */
static void take_message(struct shc_p2p *p2p, struct shc_message *m, int peer,
                         const struct shc_line_head *line, struct shc_place first,
                         const char *piece)
{
    struct shc_coming *coming = &p2p->peers[peer].coming;
    const bool whole = line->kind == SHC_FRAME_EAGER, unasked = shc_line_is_unasked(line);
    const bool fits = shc_p2p_meet(p2p, m, peer, line);
    if (unasked) { /* P2P-27: the rest comes to this receive, or is dropped as it comes */
        *coming = (struct shc_coming){.comes = !fits, .line = *line};
        coming->line.place = m->place = first;
    } else if (!whole) {
        shc_p2p_answer(p2p, peer); /* P2P-57: the sender goes on during the copy */
    }
    /* A receive of another type or size may have ended above. */
    if (fits)
        shc_p2p_write_piece(p2p, m, line, piece, line->piece);
    if (!unasked || line->place.memory == SHC_IN_POOL)
        shc_place_return(&p2p->pairs, peer, line->place);
    if (!whole)
        return;
    if (fits)
        shc_p2p_finish(p2p, m, SHC_OK, "");
    else
        shc_p2p_finish_misfit(p2p, m);
}

static bool take_header(struct shc_p2p *p2p, int peer, const struct shc_line_head *line,
                        const uint8_t *data)
{
    struct shc_message *m = shc_match_header(p2p, peer, line->tag);
    if (!m)
        return shc_unexpected_keep(p2p, peer, line, data);
    shc_p2p_withdraw(p2p, m);
    if (line->place.memory == SHC_IN_POOL) /* P2P-20 */
        shc_credit_return(&p2p->pairs, peer, line->bytes);
    take_message(p2p, m, peer, line, line->place, shc_p2p_piece(p2p, peer, line, data));
    return true;
}

void shc_p2p_post_receive(struct shc_p2p *p2p, struct shc_message *m)
{
    int from = -1;
    struct shc_unexpected *kept = shc_unexpected_take(p2p, m, &from);
    if (!kept) {
        shc_p2p_enter(p2p, m, SHC_MESSAGE_POSTED);
        shc_remote_stir(p2p, m->peer);
        return;
    }
    const struct shc_line_head *line = &kept->line;
    if (kept->aside)
        shc_credit_return(&p2p->pairs, from, line->bytes);
    if (shc_p2p_is_remote(p2p, from))
        shc_remote_give(p2p, m, from, line, (const char *)kept->data);
    else
        take_message(p2p, m, from, line, p2p->peers[from].coming.line.place,
                     shc_p2p_piece(p2p, from, line, kept->data));
    free(kept);
}

/* ---- the other frames ---- */

/* Takes CTS or NACK, the receiver's answer to an announced message. NACK may also be for a message
 * whose rest follows unasked, even if all of it has left (P2P-27). */
static bool take_answer(struct shc_p2p *p2p, int peer, const struct shc_line_head *line)
{
    const struct shc_p2p_peer *to = &p2p->peers[peer];
    const bool refused = line->kind == SHC_FRAME_NACK;
    struct shc_message *m = shc_queue_find(&to->announced, line->message);
    if (!m && refused)
        m = shc_queue_find(&to->streams, line->message);
    if (!m)
        return refused && (int32_t)(to->unasked_end - line->message) > 0;
    if (m->state == SHC_MESSAGE_STREAMING && !m->unasked)
        return false;
    shc_p2p_withdraw(p2p, m);
    if (!refused) {
        shc_p2p_enter(p2p, m, SHC_MESSAGE_STREAMING);
        return true;
    }
    m->other = shc_line_shape(line);
    shc_p2p_finish_misfit(p2p, m);
    return true;
}

static bool take_more(struct shc_p2p *p2p, int peer, const struct shc_line_head *line,
                      const uint8_t *data)
{
    struct shc_message *m = shc_queue_find(&p2p->peers[peer].incoming, line->message);
    if (!m)
        return shc_unexpected_add(p2p, peer, line);
    if (line->bytes != m->moved || line->piece > m->shape.bytes - m->moved ||
        line->piece % m->shape.elem_bytes != 0 ||
        (m->unasked && !shc_line_continues(m->place, line)))
        return false;
    if (!shc_p2p_trade(p2p, peer, line, m)) {
        const bool in_long = m->unasked && line->place.memory == SHC_IN_LONG_HAND_OFF;
        const char *piece = shc_p2p_piece(p2p, peer, line, data) + (in_long ? m->moved : 0);
        shc_p2p_write_piece(p2p, m, line, piece, line->piece);
        if (!in_long || m->moved == m->shape.bytes)
            shc_place_return(&p2p->pairs, peer, line->place);
    }
    if (m->moved == m->shape.bytes)
        shc_p2p_finish_ok(p2p, m);
    return true;
}

/* False: the line does not fit anything that goes on here. */
static bool take_line(struct shc_p2p *p2p, int peer, struct shc_pair_found found, bool *kept)
{
    const uint8_t *data = found.line->data;
    struct shc_line_head line;
    *kept = true;
    if (!shc_p2p_read_head(p2p, peer, found, &line))
        return false;
    switch (line.kind) {
    case SHC_FRAME_EAGER:
    case SHC_FRAME_FIRST:
        *kept = take_header(p2p, peer, &line, data);
        if (*kept)
            shc_pair_note_header(&p2p->pairs, peer, line.place);
        return true;
    case SHC_FRAME_MORE:
        return take_more(p2p, peer, &line, data);
    case SHC_FRAME_CTS:
    case SHC_FRAME_NACK:
        return take_answer(p2p, peer, &line);
    default:
        return false;
    }
}

/* P2P-45: reads at most as many lines as a pair can hold. Then it is the next peer's turn. A
 * peer that has LEFT has sent no more lines than these, so one pass finds them all (deadline.c). */
void shc_p2p_read_lines(struct shc_p2p *p2p, int peer)
{
    for (uint32_t i = 0; i < shc_pair_capacity(&p2p->pairs); i++) {
        const struct shc_pair_found found = shc_pair_peek(&p2p->pairs, peer);
        bool kept;
        /* P2P-44: while no message is pending, the line stays where it is: the next receive may
         * want just this one. */
        if (!found.line || shc_p2p_pending(p2p) == 0)
            return;
        if (!take_line(p2p, peer, found, &kept)) {
            const struct shc_seat *seat = p2p->env.seat;
            char reason[400];
            snprintf(reason, sizeof reason,
                     "%s found a line of %s that no message explains (kind %u): the shared memory "
                     "is damaged",
                     shc_seat_rank_name(seat, seat->rank).text, shc_seat_rank_name(seat, peer).text,
                     SHC_READ_ONCE(found.line->head.kind));
            shc_p2p_break(p2p, SHC_ERR_ABORTED, reason, NULL);
            return;
        }
        if (!kept)
            return;
        shc_pair_take(&p2p->pairs, peer, found);
    }
}
