/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two ranks send each other large messages at the same time. Each rank reads a chunk from a long
 * hand-off buffer and stores its own next chunk there, in one pass over the cache lines (P2P-31 to
 * P2P-33). So a cache line moves once between the CPUs for two chunks.
 */
#include "shm/coll/select.h"
#include "shm/p2p/internal.h"

bool shc_p2p_is_owed(const struct shc_p2p *p2p, const struct shc_message *m)
{
    const struct shc_message *in = p2p->peers[m->peer].incoming.first;
    return m->buf.flat && !m->unasked && in && in->buf.flat && !in->unasked;
}

void shc_p2p_note_exchange(struct shc_message *m)
{
    m->meter.trial = NULL;
    m->waits_for_reader = false;
}

/* The first message to the peer that has chunks to send. NULL: there is none, or its chunks may
 * not be stored into the lines of a buffer while that is read. */
static struct shc_message *first_to_trade(const struct shc_p2p *p2p, int peer)
{
    struct shc_message *m = p2p->peers[peer].sends.first;
    for (; m; m = m->next) {
        if (m->state == SHC_MESSAGE_STREAMING && m->moved < m->shape.bytes)
            return m->buf.flat && !m->unasked ? m : NULL;
    }
    return NULL;
}

bool shc_p2p_trade(struct shc_p2p *p2p, int peer, const struct shc_line_head *came,
                   struct shc_message *in)
{
    const bool may = came->place.memory == SHC_IN_LONG_HAND_OFF && in->buf.flat && !in->unasked;
    struct shc_message *m = may ? first_to_trade(p2p, peer) : NULL;
    struct shc_line_shm *line = m ? shc_pair_draft(&p2p->pairs, peer) : NULL;
    if (!line)
        return false;
    if (m->chunk_bytes == 0)
        shc_p2p_begin_stream(p2p, m);
    char *const buffer = shc_place_at(&p2p->pairs, peer, p2p->pairs.seat->rank, came->place);
    char *const out = in->buf.flat + in->moved;
    const char *const next = m->buf.flat + m->moved;
    const size_t taken = came->piece, given = shc_message_next_piece(m, SHC_PREFIX_BYTES);
    const size_t both = shc_min_size(taken, given);
    const struct shc_place back = {SHC_IN_LONG_HAND_OFF,
                                   (uint8_t)shc_hand_off_mirror(came->place.index)};
    shc_line_put_head(line, SHC_FRAME_MORE, m);
    shc_line_put_place(line, back, given, SHC_COPY_LINES);
    if (shc_select_streams_out(p2p->env.tuning, in->shape.bytes, true))
        shc_copy_exchange_past(out, buffer, next, both);
    else
        shc_copy_exchange(out, buffer, next, both);
    shc_copy_lines(out + both, buffer + both, taken - both);
    shc_copy_lines(buffer + both, next + both, given - both);
    in->moved += taken;
    m->moved += given;
    shc_p2p_note_exchange(m);
    shc_pair_post(&p2p->pairs, peer, line, back);
    if (m->moved == m->shape.bytes)
        shc_p2p_finish_ok(p2p, m);
    return true;
}
