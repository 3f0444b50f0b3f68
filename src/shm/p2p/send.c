/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Messages that go out: headers, the bytes that follow them, and CTS and NACK to the senders of
 * messages that come in. The protocols are those of docs/internals/protocol/messages.md.
 */
#include "shm/p2p/internal.h"
#include "shm/p2p/protocols.h"

static bool fits(const struct shc_p2p *p2p, enum shc_protocol protocol, size_t bytes)
{
    return shc_protocol_fits(&p2p->pairs.seat->mail, protocol, bytes);
}

/* ---- pieces ---- */

/* The size of the message's next piece: whole elements, as many as there is room for. */
static size_t next_piece(const struct shc_message *m, size_t room)
{
    return shc_min_size(room - room % m->shape.elem_bytes, m->shape.bytes - m->moved);
}

/* Fills in the header of a line with so many bytes of the message in that place. */
SHC_INLINE void put_head(struct shc_line_shm *line, enum shc_frame kind,
                         const struct shc_message *m, struct shc_place place, size_t bytes,
                         enum shc_copy_mode mode)
{
    line->head.kind = (uint8_t)kind;
    line->head.dtype = (uint8_t)m->shape.dtype;
    line->head.elem_bytes = (uint8_t)m->shape.elem_bytes;
    line->head.asks = kind == SHC_FRAME_FIRST && !m->unasked;
    line->head.place = place;
    line->head.mode = (uint8_t)mode;
    line->head.piece = (uint32_t)bytes;
    line->head.tag = m->tag;
    line->head.dtype_tag = m->shape.dtype_tag;
    line->head.message = m->number;
    line->head.bytes = kind == SHC_FRAME_MORE ? m->moved : m->shape.bytes;
}

/* Posts a line with the message's next bytes in that place. A long hand-off buffer is filled by whole
 * cache lines, as this rank has just read them; a message that goes unasked fills it from front to
 * back (P2P-35). */
static inline void post_piece(struct shc_p2p *p2p, enum shc_frame kind, struct shc_message *m,
                              struct shc_place place, size_t bytes)
{
    struct shc_line_shm *line = shc_pair_line_for(&p2p->pairs, m->peer, place);
    const bool is_long = place.memory == SHC_IN_LONG_HAND_OFF;
    const enum shc_copy_mode mode = is_long ? SHC_COPY_LINES : m->mode;
    put_head(line, kind, m, place, bytes, mode);
    if (place.memory == SHC_IN_LINE || shc_hand_off_spares(place, bytes)) {
        if (bytes > 0)
            shc_buf_read(&m->buf, m->moved, line->data, bytes);
    } else {
        char *to = shc_place_at(&p2p->pairs, p2p->pairs.seat->rank, m->peer, place);
        to += is_long && m->unasked ? m->moved : 0;
        if (mode == SHC_COPY_NON_TEMPORAL)
            shc_buf_stream(&m->buf, m->moved, to, bytes);
        else if (mode == SHC_COPY_LINES)
            shc_buf_read_lines(&m->buf, m->moved, to, bytes);
        else
            shc_buf_read(&m->buf, m->moved, to, bytes);
    }
    m->moved += bytes;
    shc_pair_post(&p2p->pairs, m->peer, line, place);
}

/* Posts the message's header, with its first bytes in that place. */
static inline void post_header(struct shc_p2p *p2p, enum shc_frame kind, struct shc_message *m,
                               struct shc_place place, size_t bytes)
{
    m->number = p2p->peers[m->peer].messages++;
    shc_pair_note_message(&p2p->pairs, m->peer);
    post_piece(p2p, kind, m, place, bytes);
}

static void post_more(struct shc_p2p *p2p, struct shc_message *m, struct shc_place place,
                      size_t room)
{
    post_piece(p2p, SHC_FRAME_MORE, m, place, next_piece(m, room));
}

/* Messages that fit in an eager buffer are not timed, since a trial would have them wait for CTS: they follow the
 * mode of the shortest timed ones. */
static void choose_mode(struct shc_p2p *p2p, struct shc_message *m)
{
    const bool streams = shc_select_streams(p2p->env.tuning, m->shape.bytes);
    const bool timed = streams && m->shape.bytes > SHC_EAGER_BYTES;
    struct shc_copy_trial *trial = shc_copy_trial_for(p2p->trials[m->peer], m->shape.bytes);
    m->meter = (struct shc_copy_meter){.trial = timed ? trial : NULL};
    m->mode = timed ? trial->mode : shc_copy_trial_untimed(trial, streams);
}

static bool is_tried(const struct shc_message *m)
{
    return m->meter.trial && shc_copy_trial_tries(m->meter.trial);
}

/* ---- messages longer than an eager buffer, unasked ---- */

enum sending { SENT, BEGUN, NO_LINE, NO_ROOM };

/* P2P-35: a fragment is posted each time this many bytes have been stored into the long hand-off
 * buffer. Longer messages have longer fragments, so that they need fewer lines. */
#define FRAGMENT_BYTES      ((size_t)8 << 10)
#define LONG_FRAGMENT_BYTES ((size_t)16 << 10)
#define LONG_BYTES          ((size_t)64 << 10)

/* Up to this size a message goes unasked also where messages pass one another. */
#define PASSING_BYTES ((size_t)64 << 10)

/* Does another thread of this rank want the lock, or to close the group? */
static bool is_pressed(const struct shc_p2p *p2p)
{
    return shc_biased_lock_is_awaited(&p2p->lock) || shc_p2p_is_closed(p2p);
}

/* P2P-24: is a message on its way whose rest follows unasked? Only one at a time may be, because
 * the receiver must know which message a piece belongs to. */
static bool is_one_unasked(const struct shc_p2p *p2p, int peer)
{
    const struct shc_message *m = p2p->peers[peer].streams.first;
    while (m && !m->unasked)
        m = m->next;
    return m;
}

/* Lends a long hand-off buffer for all of the message. P2P-40: the receiver reads it
 * while it is stored, except in two cases: messages pass one another, so that both ranks store
 * at the same time; or a tensor is in pieces. P2P-30: a message of more than 128 KiB goes this
 * way only if it is read while it is stored. */
static struct shc_place lend_long(struct shc_p2p *p2p, struct shc_message *m)
{
    const size_t bytes = m->shape.bytes;
    m->unasked = m->buf.flat && !p2p->pairs.pairs[m->peer].crosses && bytes > FRAGMENT_BYTES &&
                 !is_one_unasked(p2p, m->peer);
    if (!fits(p2p, SHC_PROTOCOL_LONG_HAND_OFF, bytes) ||
        (bytes > SHC_WHOLE_BYTES && (!m->unasked || is_pressed(p2p))))
        return (struct shc_place){SHC_IN_LINE, 0};
    return shc_long_lend(&p2p->pairs, m->peer);
}

/* P2P-35: posts all of the message. Half of the lines stay free: for its last fragment, and for
 * what this rank sends afterwards while the receiver reads nothing. */
static void post_by_long(struct shc_p2p *p2p, struct shc_message *m, struct shc_place place)
{
    struct shc_pairs *pairs = &p2p->pairs;
    const size_t step = m->shape.bytes > LONG_BYTES ? LONG_FRAGMENT_BYTES : FRAGMENT_BYTES;
    const uint32_t spare = pairs->seat->mail.lines / 2;
    m->unasked =
        m->unasked && m->shape.bytes > step && shc_pair_has_lines(pairs, m->peer, spare + 1);
    if (!m->unasked) {
        post_header(p2p, SHC_FRAME_EAGER, m, place, m->shape.bytes);
        return;
    }
    post_header(p2p, SHC_FRAME_FIRST, m, place, next_piece(m, step));
    p2p->peers[m->peer].unasked_end = m->number + 1;
    while (m->moved < m->shape.bytes) {
        const bool last =
            m->shape.bytes - m->moved <= step || !shc_pair_has_lines(pairs, m->peer, spare + 1);
        post_more(p2p, m, place, last ? SHC_LONG_HAND_OFF_BYTES : step);
    }
}

/* P2P-23: may all of the message go through the pool unasked? No, while copy modes are being
 * tried: the trial needs the time until the receiver has read the message, which is not known
 * here. at_once: only if there is room for all of it now. */
static bool may_use_pool(struct shc_p2p *p2p, const struct shc_message *m, bool at_once)
{
    struct shc_pairs *pairs = &p2p->pairs;
    const struct shc_p2p_peer *to = &p2p->peers[m->peer];
    const size_t bytes = m->shape.bytes;
    if (!fits(p2p, SHC_PROTOCOL_POOL, bytes))
        return false;
    const size_t piece = next_piece(m, SHC_POOL_BYTES);
    const uint32_t pieces = at_once ? (uint32_t)((bytes - 1) / piece + 1) : 1;
    if (is_tried(m) || !shc_pair_has_pool(pairs, m->peer) ||
        !shc_pool_has(pairs, m->peer, pieces) || !shc_pair_has_lines(pairs, m->peer, pieces) ||
        !shc_credit_left(pairs, m->peer, bytes) || (piece < bytes && is_one_unasked(p2p, m->peer)))
        return false;
    if (bytes > PASSING_BYTES && (to->incoming.first || to->posted.first))
        return false; /* messages that pass one another go by long hand-off buffer, if announced */
    if (bytes <= SHC_WHOLE_BYTES)
        return true;
    return !shc_hand_off_holds(&pairs->pairs[m->peer].long_hand_offs) &&
           shc_pair_may_go_unasked(pairs, m->peer, !at_once);
}

/* pre: the copy mode is chosen. */
static enum sending send_by_pool(struct shc_p2p *p2p, struct shc_message *m, bool at_once)
{
    struct shc_pairs *pairs = &p2p->pairs;
    const size_t bytes = m->shape.bytes;
    if (!may_use_pool(p2p, m, at_once))
        return NO_ROOM;
    shc_credit_spend(pairs, m->peer, bytes);
    if (m->meter.trial)
        shc_copy_trial_count(m->meter.trial, bytes);
    m->meter.trial = NULL; /* not timed: its receiver may leave it unread */
    m->waits_for_reader = false;
    m->chunk_bytes = SHC_POOL_BYTES;
    const size_t piece = next_piece(m, SHC_POOL_BYTES);
    m->unasked = piece < bytes;
    post_header(p2p, m->unasked ? SHC_FRAME_FIRST : SHC_FRAME_EAGER, m,
                shc_pool_lend(pairs, m->peer), piece);
    if (m->unasked)
        p2p->peers[m->peer].unasked_end = m->number + 1;
    while (at_once && m->moved < bytes)
        post_more(p2p, m, shc_pool_lend(pairs, m->peer), SHC_POOL_BYTES);
    return m->moved < bytes ? BEGUN : SENT;
}

static SHC_NOINLINE enum sending send_long(struct shc_p2p *p2p, struct shc_message *m, bool at_once)
{
    if (!shc_pair_draft(&p2p->pairs, m->peer))
        return NO_LINE;
    const struct shc_place place = lend_long(p2p, m);
    if (place.memory == SHC_IN_LINE) {
        m->unasked = false;
        choose_mode(p2p, m);
        return send_by_pool(p2p, m, at_once);
    }
    post_by_long(p2p, m, place);
    return SENT;
}

/* Sends all bytes of a message that fits an eager buffer: in the pool, or in an eager buffer. The same rank stores to
 * these each time, so copy modes count. */
static enum sending send_by_buffer(struct shc_p2p *p2p, struct shc_message *m, bool at_once)
{
    if (shc_select_streams(p2p->env.tuning, m->shape.bytes))
        choose_mode(p2p, m);
    const enum sending sent = send_by_pool(p2p, m, at_once);
    if (sent != NO_ROOM)
        return sent;
    const struct shc_place place = shc_eager_lend(&p2p->pairs, m->peer, SHC_EAGER_WHOLE);
    if (place.memory == SHC_IN_LINE)
        return NO_ROOM;
    post_header(p2p, SHC_FRAME_EAGER, m, place, m->shape.bytes);
    return SENT;
}

/* Sends the header with all the bytes: in a hand-off buffer, or else with the next line in turn, if
 * that is free and there is room for the bytes now. at_once: without a request. */
static inline enum sending send_all(struct shc_p2p *p2p, struct shc_message *m, bool at_once)
{
    struct shc_pairs *pairs = &p2p->pairs;
    const size_t bytes = m->shape.bytes;
    if (bytes > SHC_EAGER_BYTES)
        return send_long(p2p, m, at_once);
    struct shc_place place = shc_hand_off_lend(pairs, m->peer, bytes);
    m->mode = SHC_COPY_PLAIN;
    if (place.memory == SHC_IN_LINE) {
        if (!shc_pair_draft(pairs, m->peer))
            return NO_LINE;
        if (bytes > SHC_LINE_DATA_BYTES)
            return send_by_buffer(p2p, m, at_once);
    }
    post_header(p2p, SHC_FRAME_EAGER, m, place, bytes);
    return SENT;
}

/* ---- after CTS ---- */

/* A place for the first bytes of a message that waits for CTS: they are then on their way while the
 * receiver is still busy. */
static struct shc_place lend_for_prefix(struct shc_p2p *p2p, struct shc_message *m, size_t *room)
{
    struct shc_pairs *pairs = &p2p->pairs;
    struct shc_place place = {SHC_IN_LINE, 0};
    *room = 0;
    m->mode = SHC_COPY_PLAIN;
    if (m->shape.bytes <= SHC_EAGER_BYTES)
        return place;
    *room = SHC_PREFIX_BYTES;
    if (fits(p2p, SHC_PROTOCOL_HAND_OFF_PREFIX, m->shape.bytes))
        place = shc_long_lend(pairs, m->peer);
    if (place.memory != SHC_IN_LINE)
        return place;
    place = shc_hand_off_lend(pairs, m->peer, SHC_EAGER_BYTES);
    if (place.memory == SHC_IN_LINE)
        place = shc_eager_lend(pairs, m->peer, SHC_EAGER_PREFIX);
    *room = place.memory == SHC_IN_LINE ? 0 : SHC_EAGER_BYTES;
    return place;
}

_Static_assert((uint64_t)SHC_POOL_BUFFERS *SHC_POOL_BYTES <= SHC_COPY_ROUND,
               "a round goes through the whole pool");

/* A message that passes one of the peer's is not timed, unless it can go by long hand-off
 * buffer: its time would depend on how fast this rank reads the other message. */
static void time_no_passing(struct shc_p2p *p2p, struct shc_message *m)
{
    const struct shc_p2p_peer *to = &p2p->peers[m->peer];
    if ((!to->incoming.first && !to->posted.first) || shc_pair_has_pool(&p2p->pairs, m->peer))
        return;
    if (is_tried(m))
        m->mode = SHC_COPY_LINES;
    m->meter.trial = NULL;
}

/* Set here, too, as all bytes of the message may go in lines. */
static void note_chunks(const struct shc_p2p *p2p, struct shc_message *m)
{
    m->pool_lent = p2p->pairs.pairs[m->peer].pool_lent;
    m->chunks_lent = p2p->pairs.chunks;
}

/* Before the first chunk of a message that goes after CTS. */
static void begin_stream(struct shc_p2p *p2p, struct shc_message *m)
{
    const size_t rest = m->shape.bytes - m->moved;
    choose_mode(p2p, m);
    time_no_passing(p2p, m);
    m->waits_for_reader = is_tried(m);
    m->chunk_bytes =
        shc_select_piece(p2p->env.tuning, rest, SHC_POOL_BYTES, p2p->env.seat->world_size);
    note_chunks(p2p, m);
    m->meter.bytes = rest;
    shc_copy_meter_begin(&m->meter);
}

/* ---- while messages pass one another ---- */

/* P2P-31: has this rank asked the peer for a message whose bytes have not all come? Then a long
 * hand-off buffer can bring its next chunk and take a chunk of `m` back. */
static bool is_owed(const struct shc_p2p *p2p, const struct shc_message *m)
{
    const struct shc_message *in = p2p->peers[m->peer].incoming.first;
    return m->buf.flat && !m->unasked && in && in->buf.flat && !in->unasked;
}

/* A chunk goes by long hand-off buffer: the message's time is no measure of a copy mode for other
 * buffers. (If all messages of two ranks pass one another, no copy mode is ever chosen, and messages
 * that are too long for such a buffer are always announced.) */
static void note_exchange(struct shc_message *m)
{
    m->meter.trial = NULL;
    m->waits_for_reader = false;
}

/* The first message to the peer that has chunks to send. NULL: there is none, or its chunks may
 * not be stored into the lines of a buffer while that is read. */
static struct shc_message *first_to_trade(const struct shc_p2p *p2p, int peer)
{
    struct shc_message *m = p2p->peers[peer].streams.first;
    while (m && m->moved == m->shape.bytes)
        m = m->next;
    return m && m->buf.flat && !m->unasked ? m : NULL;
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
        begin_stream(p2p, m);
    char *const buffer = shc_place_at(&p2p->pairs, peer, p2p->pairs.seat->rank, came->place);
    char *const out = in->buf.flat + in->moved;
    const char *const next = m->buf.flat + m->moved;
    const size_t taken = came->piece, given = next_piece(m, SHC_PREFIX_BYTES);
    const size_t both = shc_min_size(taken, given);
    const struct shc_place back = {SHC_IN_LONG_HAND_OFF,
                                   (uint8_t)shc_hand_off_mirror(came->place.index)};
    put_head(line, SHC_FRAME_MORE, m, back, given, SHC_COPY_LINES);
    if (shc_select_streams_out(p2p->env.tuning, in->shape.bytes, true))
        shc_copy_exchange_past(out, buffer, next, both);
    else
        shc_copy_exchange(out, buffer, next, both);
    shc_copy_lines(out + both, buffer + both, taken - both);
    shc_copy_lines(buffer + both, next + both, given - both);
    in->moved += taken;
    m->moved += given;
    note_exchange(m);
    shc_pair_post(&p2p->pairs, peer, line, back);
    if (m->moved == m->shape.bytes)
        shc_p2p_finish_ok(p2p, m);
    return true;
}

/* ---- chunks ---- */

/* The bytes of the message have left. False: it is timed until they have been read, and they are
 * not yet. */
static bool end_stream(struct shc_p2p *p2p, struct shc_message *m)
{
    if (m->waits_for_reader &&
        !shc_chunks_were_read(&p2p->pairs, m->peer, m->pool_lent, m->chunks_lent))
        return false;
    if (m->meter.trial &&
        m->meter.trial->mode == m->mode) /* the end of an earlier message may have changed it */
        shc_copy_meter_note(&m->meter);
    return true;
}

/* The longest chunk of the message that fits there. */
static size_t chunk_room(const struct shc_p2p *p2p, const struct shc_message *m,
                         struct shc_place place)
{
    if (place.memory == SHC_IN_LONG_HAND_OFF)
        return SHC_PREFIX_BYTES; /* the reader's own next chunk is then still in its cache */
    return place.memory == SHC_IN_POOL ? m->chunk_bytes : shc_place_bytes(&p2p->pairs, place);
}

/* P2P-45: the most that one pass sends of a message. The receiver may take bytes as fast as they
 * come, and meanwhile this thread looks at nothing else. */
#define PASS_BYTES ((size_t)1 << 20)

/* P2P-45: a pass sends at least one chunk of a message. It sends no more of it if another thread
 * of this rank wants the lock, or to close the group. */
static bool has_sent_enough(const struct shc_p2p *p2p, size_t bytes)
{
    return bytes >= PASS_BYTES || (bytes > 0 && is_pressed(p2p));
}

/* Sends chunks while there are lines and buffers. P2P-31: in a long hand-off buffer, while the
 * peer owes this rank a message. P2P-33: the message pauses while the peer has such a buffer
 * still to read, because that one may come back with more of the owed message. P2P-7: the bytes
 * go in the lines if no buffer is free and none is on its way back from this peer. That is slow,
 * but never stuck because another rank keeps a buffer. False: no line is free. */
static bool stream(struct shc_p2p *p2p, struct shc_message *m)
{
    struct shc_pairs *pairs = &p2p->pairs;
    if (m->chunk_bytes == 0)
        begin_stream(p2p, m);
    const size_t begun = m->moved;
    while (m->moved < m->shape.bytes) {
        if (has_sent_enough(p2p, m->moved - begun))
            return true;
        if (!shc_pair_draft(pairs, m->peer))
            return false;
        const bool owed = is_owed(p2p, m);
        if (owed && shc_long_is_out(pairs, m->peer))
            return true;
        struct shc_place place = {SHC_IN_LINE, 0};
        if (owed)
            place = shc_long_lend(pairs, m->peer);
        if (place.memory == SHC_IN_LINE)
            place = shc_chunk_lend(pairs, m->peer);
        else
            note_exchange(m);
        if (place.memory == SHC_IN_LINE && (m->unasked || shc_chunk_awaited(pairs, m->peer)))
            return true; /* P2P-25: what comes unasked never changes to lines */
        post_more(p2p, m, place, chunk_room(p2p, m, place));
        note_chunks(p2p, m);
        /* P2P-34: a line has come. It may be the header of a message that passes this one; the
         * rest can then go by long hand-off buffer. The next pass reads the line. */
        if (!owed && !m->unasked && m->moved < m->shape.bytes &&
            shc_pair_peek(pairs, m->peer).line && shc_pair_has_pool(pairs, m->peer))
            return true;
    }
    if (end_stream(p2p, m))
        shc_p2p_finish_ok(p2p, m);
    return true;
}

/* Sends the header, with all the bytes if there is room for them now. False: no line is free. */
static bool announce(struct shc_p2p *p2p, struct shc_message *m)
{
    /* One look decides: an empty message is never announced, as nothing would follow. */
    const enum sending sending = send_all(p2p, m, false);
    switch (sending) {
    case SENT:
        shc_p2p_finish_ok(p2p, m);
        return true;
    case NO_LINE:
        return false;
    case BEGUN:
        shc_p2p_withdraw(p2p, m);
        shc_p2p_enter(p2p, m, SHC_MESSAGE_STREAMING);
        return stream(p2p, m);
    default:
        break;
    }
    size_t room;
    const struct shc_place place = lend_for_prefix(p2p, m, &room);
    post_header(p2p, SHC_FRAME_FIRST, m, place, next_piece(m, room));
    shc_p2p_withdraw(p2p, m);
    shc_p2p_enter(p2p, m, SHC_MESSAGE_ANNOUNCED);
    return true;
}

/* ---- CTS and NACK ---- */

/* Does the sender need the answer? P2P-28: it needs no NACK of a message whose rest came
 * unasked, once all of that has left: the sender may have ended the message, and may read no
 * more lines. */
static bool is_answer_due(const struct shc_p2p *p2p, int peer, const struct shc_message *m)
{
    const struct shc_coming *coming = &p2p->peers[peer].coming;
    return !m->unasked ||
           (coming->comes && coming->line.message == m->number && m->place.memory == SHC_IN_POOL);
}

/* False: no line is free. */
static bool post_answer(struct shc_p2p *p2p, int peer, enum shc_frame kind,
                        const struct shc_message *m)
{
    const struct shc_place in_line = {SHC_IN_LINE, 0};
    struct shc_line_shm *line = shc_pair_draft(&p2p->pairs, peer);
    if (!line)
        return false;
    put_head(line, kind, m, in_line, 0, SHC_COPY_PLAIN);
    shc_pair_post(&p2p->pairs, peer, line, in_line);
    return true;
}

bool shc_p2p_answer(struct shc_p2p *p2p, int peer)
{
    struct shc_message *m;
    while ((m = p2p->peers[peer].due.first)) {
        const bool grant = m->state == SHC_MESSAGE_GRANT_DUE;
        if (is_answer_due(p2p, peer, m) &&
            !post_answer(p2p, peer, grant ? SHC_FRAME_CTS : SHC_FRAME_NACK, m))
            return false;
        shc_p2p_withdraw(p2p, m);
        if (grant)
            shc_p2p_enter(p2p, m, SHC_MESSAGE_FILLING);
        else
            shc_p2p_finish_misfit(p2p, m);
    }
    return true;
}

/* ---- the two ways in: at once, and in a pass ---- */

/* Does a send to the peer pend? Not inlined: mostly nothing does. */
static SHC_NOINLINE bool is_send_before(const struct shc_p2p *p2p, int peer)
{
    const struct shc_p2p_peer *to = &p2p->peers[peer];
    return to->streams.first || to->announced.first || to->sends.first;
}

bool shc_p2p_place(struct shc_p2p *p2p, struct shc_message *m)
{
    const struct shc_seat *seat = p2p->env.seat;
    const uint64_t begun_ticks = shc_p2p_begin_large(p2p, m->shape.bytes);
    if (shc_p2p_is_closed(p2p) || shc_group_failed(seat) ||
        (shc_p2p_pending(p2p) > 0 && is_send_before(p2p, m->peer)) ||
        shc_p2p_is_remote(p2p, m->peer) ||
        (m->peer != seat->rank && shc_member_look(seat, m->peer) != SHC_MEMBER_ALIVE))
        return false;
    if (send_all(p2p, m, true) != SENT)
        return false;
    shc_pair_ring(&p2p->pairs, m->peer);
    shc_p2p_count(p2p, SHC_SEND, m->peer, m->tag, m->shape.bytes);
    if (SHC_UNLIKELY(begun_ticks != 0)) {
        m->begun_ticks = begun_ticks;
        shc_p2p_keep(p2p, m, SHC_OK);
    }
    return true;
}

/* Ends messages that only wait until they have been read; they need no line. Streams begin in order. */
static void end_streams(struct shc_p2p *p2p, int peer)
{
    struct shc_message *m = p2p->peers[peer].streams.first, *next;
    for (; m && m->chunk_bytes != 0; m = next) {
        next = m->next;
        if (m->moved == m->shape.bytes && end_stream(p2p, m))
            shc_p2p_finish_ok(p2p, m);
    }
}

void shc_p2p_write_lines(struct shc_p2p *p2p, int peer)
{
    end_streams(p2p, peer);
    if (!shc_p2p_answer(p2p, peer))
        return;
    struct shc_message *m = p2p->peers[peer].streams.first, *next;
    for (; m; m = next) {
        next = m->next;
        if (!stream(p2p, m))
            return;
    }
    while ((m = p2p->peers[peer].sends.first))
        if (!announce(p2p, m))
            return;
}
