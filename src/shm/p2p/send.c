/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Messages that go out: headers, the bytes that follow them, and CTS and REFUSE to the senders of
 * messages that come in. The protocols are those of docs/internals/protocol/messages.md.
 */
#include "shm/base/clock.h"
#include "shm/base/num.h"
#include "shm/coll/select.h"
#include "shm/kernel/copy.h"
#include "shm/p2p/internal.h"
#include "shm/p2p/protocols.h"
#include "shm/proto/member.h"

static void put_shape(struct shc_line_head *line, const struct shc_shape *shape)
{
    line->dtype = (uint8_t)shape->dtype;
    line->elem_bytes = (uint8_t)shape->elem_bytes;
    line->dtype_tag = shape->dtype_tag;
    line->bytes = shape->bytes;
}

/* All fields except those that name_piece() fills. */
static inline void fill_line(struct shc_line_shm *line, enum shc_line_kind kind,
                             const struct shc_message *m)
{
    line->head.kind = (uint8_t)kind;
    line->head.tag = m->tag;
    line->head.message = m->number;
    put_shape(&line->head, &m->shape);
}

static bool is_ferry(int window)
{
    return window >= 0 && shc_window_is_ferry((uint32_t)window);
}

/* Names the bytes that come with the line: in that window, or after the header if it is -1. */
static inline void name_piece(struct shc_line_shm *line, int window, size_t bytes,
                              enum shc_copy_mode mode)
{
    line->head.window = window >= 0 ? (uint8_t)window : SHC_NO_WINDOW;
    line->head.piece = (uint32_t)bytes;
    line->head.mode = (uint32_t)mode;
}

/* Copies the message's next bytes into the line or the window, where they fit. A ferry (a long
 * hand-off buffer) is filled by whole cache lines: this rank has just read them. */
static inline void put_piece(struct shc_p2p *p2p, struct shc_line_shm *line, struct shc_message *m,
                             int window, size_t bytes)
{
    const int me = p2p->pairs.seat->rank;
    char *to = window < 0 || shc_window_spares((uint32_t)window, bytes)
                   ? (char *)line->data
                   : shc_window(&p2p->pairs, me, m->peer, (uint32_t)window);
    const enum shc_copy_mode mode = is_ferry(window) ? SHC_COPY_LINES : m->mode;
    name_piece(line, window, bytes, mode);
    if (window >= 0 && mode == SHC_COPY_NON_TEMPORAL)
        shc_buf_stream(&m->buf, m->moved, to, bytes);
    else if (window >= 0 && mode == SHC_COPY_LINES)
        shc_buf_read_lines(&m->buf, m->moved, to, bytes);
    else if (bytes > 0)
        shc_buf_read(&m->buf, m->moved, to, bytes);
    m->moved += bytes;
}

/* P2P-35: the next bytes of a message that goes whole by ferry, after those that are already
 * there. */
static void put_by_ferry(struct shc_p2p *p2p, struct shc_line_shm *line, struct shc_message *m,
                         int window, size_t bytes)
{
    char *const ferry = shc_window(&p2p->pairs, p2p->pairs.seat->rank, m->peer, (uint32_t)window);
    shc_buf_read_lines(&m->buf, m->moved, ferry + m->moved, bytes);
    m->moved += bytes;
    name_piece(line, window, m->moved, SHC_COPY_LINES);
}

/* The size of the next piece: whole elements, as many as there is room for. */
static size_t next_piece(const struct shc_message *m, size_t room)
{
    return shc_min_size(room - room % m->shape.elem_bytes, m->shape.bytes - m->moved);
}

/* The longest chunk of the message that fits there. */
static size_t chunk_room(const struct shc_message *m, int window)
{
    if (window < 0)
        return SHC_LINE_DATA_BYTES;
    if (is_ferry(window))
        return SHC_HEAD_BYTES; /* the reader's own next chunk is then still in its cache */
    return window >= SHC_BULK_NAME ? m->chunk_bytes : SHC_WINDOW_BYTES;
}

/* Messages shorter than stream_bytes are not timed: they follow the mode of the shortest timed
 * ones. */
static void choose_mode(struct shc_p2p *p2p, struct shc_message *m)
{
    const bool streams = shc_select_streams(p2p->env.tuning, m->shape.bytes);
    struct shc_copy_trial *trial = shc_copy_trial_for(p2p->trials[m->peer], m->shape.bytes);
    m->trial = streams ? trial : NULL;
    m->mode = !streams && trial->mode == SHC_COPY_NON_TEMPORAL ? SHC_COPY_LINES : trial->mode;
}

static bool fits(const struct shc_p2p *p2p, enum shc_protocol protocol, size_t bytes)
{
    return shc_protocol_fits(&p2p->pairs.seat->mail, protocol, bytes);
}

/* P2P-22: does the peer still read bulk windows (the eager pool) that it was lent before? Then it
 * does not wait while more are filled. */
static bool is_reading(struct shc_p2p *p2p, int peer)
{
    return !shc_window_bulk_was_read(&p2p->pairs, peer, shc_window_bulk_lent(&p2p->pairs, peer));
}

/* P2P-35: an AHEAD line goes out each time so many bytes are in the ferry; of a longer message
 * more, to keep the number of lines small. */
#define AHEAD_BYTES      ((size_t)8 << 10)
#define LONG_AHEAD_BYTES ((size_t)16 << 10)
#define LONG_BYTES       ((size_t)64 << 10)

/* Does another thread of this rank want the lock, or to close the group? */
static bool is_pressed(const struct shc_p2p *p2p)
{
    return shc_biased_lock_is_awaited(&p2p->lock) || shc_p2p_is_closed(p2p);
}

/* P2P-40, P2P-41: is the message read while it is stored? Not where messages pass one another, as
 * both ranks store at the same time. */
static bool goes_ahead(const struct shc_p2p *p2p, const struct shc_message *m)
{
    return m->buf.flat && !p2p->pairs.pairs[m->peer].crosses;
}

/* A ferry or bulk windows for all of the message; -1: neither. P2P-30: a message of more than 128
 * KiB goes so only if it is read while it is stored. No bulk windows while copy modes are being
 * tried, as the time until the message has been read would not be known. */
static SHC_NOINLINE int lend_for_all(struct shc_p2p *p2p, struct shc_message *m)
{
    const size_t bytes = m->shape.bytes;
    const bool pooled = fits(p2p, SHC_PROTOCOL_EAGER_POOL, bytes);
    const bool may = pooled || (goes_ahead(p2p, m) && !is_pressed(p2p));
    const int ferry = may ? shc_ferry_lend(&p2p->pairs, m->peer) : -1;
    if (ferry >= 0 || !pooled)
        return ferry;
    choose_mode(p2p, m);
    if ((m->trial && shc_copy_trial_tries(m->trial)) ||
        !shc_window_has_bulk(&p2p->pairs, m->peer) ||
        !shc_window_may_send_whole(&p2p->pairs, m->peer, bytes) ||
        (bytes > SHC_HEAD_BYTES && !is_reading(p2p, m->peer)))
        return -1;
    size_t room = bytes;
    const int window = shc_window_lend_run(&p2p->pairs, m->peer, bytes, &room);
    if (window < 0)
        return -1;
    shc_window_note_whole(&p2p->pairs, m->peer, bytes);
    if (m->trial)
        shc_copy_trial_count(m->trial, bytes);
    return window;
}

/* Posts the message's header, with its first bytes in that window or after the header (-1). */
static inline void post_header(struct shc_p2p *p2p, enum shc_line_kind kind, struct shc_message *m,
                               int window, size_t bytes)
{
    struct shc_line_shm *line = shc_pair_line_for(&p2p->pairs, m->peer, window);
    m->number = p2p->peers[m->peer].messages++;
    fill_line(line, kind, m);
    put_piece(p2p, line, m, window, bytes);
    shc_pair_note_message(&p2p->pairs, m->peer);
    shc_pair_post(&p2p->pairs, m->peer, line, window);
}

/* P2P-35: AHEAD lines, which say how much of the message is in the ferry so far. Only its speed
 * depends on them. Half of the lines stay free for its EAGER line, and for what this rank sends
 * after it while the receiver reads nothing. */
static void post_ahead(struct shc_p2p *p2p, struct shc_message *m, int window)
{
    struct shc_pairs *pairs = &p2p->pairs;
    const size_t step = m->shape.bytes > LONG_BYTES ? LONG_AHEAD_BYTES : AHEAD_BYTES;
    while (m->shape.bytes - m->moved > step && shc_pair_has_half(pairs, m->peer)) {
        struct shc_line_shm *line = shc_pair_line_for(pairs, m->peer, window);
        fill_line(line, SHC_LINE_AHEAD, m);
        put_by_ferry(p2p, line, m, window, next_piece(m, step));
        shc_pair_post(pairs, m->peer, line, window);
        shc_ferry_name_again(pairs, m->peer);
    }
}

/* Posts the message by ferry: AHEAD lines, and the EAGER line with all the bytes. */
static SHC_NOINLINE void post_by_ferry(struct shc_p2p *p2p, struct shc_message *m, int window)
{
    struct shc_pairs *pairs = &p2p->pairs;
    m->number = p2p->peers[m->peer].messages++;
    if (goes_ahead(p2p, m))
        post_ahead(p2p, m, window);
    struct shc_line_shm *line = shc_pair_line_for(pairs, m->peer, window);
    fill_line(line, SHC_LINE_EAGER, m);
    put_by_ferry(p2p, line, m, window, m->shape.bytes - m->moved);
    shc_pair_note_message(pairs, m->peer);
    shc_pair_post(pairs, m->peer, line, window);
}

enum sending { SENT, NO_LINE, NO_ROOM };

/* send_whole() for a message that is longer than a window. */
static SHC_NOINLINE enum sending send_whole_long(struct shc_p2p *p2p, struct shc_message *m)
{
    m->mode = SHC_COPY_PLAIN;
    if (!shc_pair_draft(&p2p->pairs, m->peer))
        return NO_LINE;
    const bool may = fits(p2p, SHC_PROTOCOL_LONG_HAND_OFF, m->shape.bytes);
    const int window = may ? lend_for_all(p2p, m) : -1;
    if (window < 0)
        return NO_ROOM;
    if (is_ferry(window))
        post_by_ferry(p2p, m, window);
    else
        post_header(p2p, SHC_LINE_EAGER, m, window, m->shape.bytes);
    return SENT;
}

/* Sends the header with all the bytes: in a shuttle (a hand-off buffer), or else with the next line
 * in turn, if that is free and there is room for the bytes now. */
static SHC_NOINLINE enum sending send_whole(struct shc_p2p *p2p, struct shc_message *m)
{
    struct shc_pairs *pairs = &p2p->pairs;
    const size_t bytes = m->shape.bytes;
    if (bytes > SHC_WINDOW_BYTES)
        return send_whole_long(p2p, m);
    int window = shc_shuttle_lend(pairs, m->peer, bytes);
    m->mode = SHC_COPY_PLAIN;
    if (window < 0) {
        if (!shc_pair_draft(pairs, m->peer))
            return NO_LINE;
        if (bytes > SHC_LINE_DATA_BYTES)
            window = shc_window_lend(pairs, m->peer, true);
        if (window < 0 && bytes > SHC_LINE_DATA_BYTES)
            return NO_ROOM;
    }
    post_header(p2p, SHC_LINE_EAGER, m, window, bytes);
    return SENT;
}

/* P2P-21: at most one announced message has its prefix in bulk windows, as its receiver may have to
 * put it aside. None while copy modes are being tried. */
static bool may_send_long_head(struct shc_p2p *p2p, const struct shc_message *m)
{
    if (!m->trial || shc_copy_trial_tries(m->trial) || m->shape.bytes <= SHC_BULK_BYTES ||
        !shc_window_has_bulk(&p2p->pairs, m->peer))
        return false;
    const struct shc_message *before = p2p->peers[m->peer].sends.first;
    for (; before && before->state != SHC_MESSAGE_QUEUED; before = before->next)
        if (before->state == SHC_MESSAGE_ANNOUNCED)
            return false; /* after the first QUEUED message all are */
    return is_reading(p2p, m->peer);
}

/* P2P-23, P2P-24: may all of the message follow its header unasked? Of one message at a time, so
 * that the receiver knows which message a chunk belongs to; of none while copy modes are being
 * tried. */
static bool may_open(struct shc_p2p *p2p, const struct shc_message *m)
{
    if (!fits(p2p, SHC_PROTOCOL_FRAGMENTS, m->shape.bytes) ||
        (m->trial && shc_copy_trial_tries(m->trial)) ||
        !shc_window_has_bulk(&p2p->pairs, m->peer) ||
        !shc_window_may_send_whole(&p2p->pairs, m->peer, m->shape.bytes))
        return false;
    const struct shc_p2p_peer *to = &p2p->peers[m->peer];
    if (to->incoming.first || to->posted.first)
        return false; /* messages that pass one another go by ferry, if announced */
    const struct shc_message *before = to->sends.first;
    for (; before && before->state != SHC_MESSAGE_QUEUED; before = before->next)
        if (before->open && before->state == SHC_MESSAGE_STREAMING)
            return false;
    return shc_pair_may_open(&p2p->pairs, m->peer);
}

/* The chunks of an OPEN message are not timed, as its receiver may leave them unread. */
static void begin_open(struct shc_p2p *p2p, struct shc_message *m)
{
    m->open = true;
    m->chunk_bytes = SHC_BULK_BYTES;
    m->waits_for_reader = false;
    shc_window_note_whole(&p2p->pairs, m->peer, m->shape.bytes);
    if (m->trial)
        shc_copy_trial_count(m->trial, m->shape.bytes);
    m->trial = NULL;
}

/* A window for the first bytes of a message that is sent with RTS or OPEN, if there is room: the
 * bytes are then on their way while the receiver is still busy. -1: none. */
static int lend_for_head(struct shc_p2p *p2p, struct shc_message *m, size_t *room)
{
    *room = SHC_HEAD_BYTES;
    if (m->shape.bytes <= SHC_WINDOW_BYTES)
        return -1;
    choose_mode(p2p, m);
    int window = shc_ferry_lend(&p2p->pairs, m->peer);
    if (window >= 0)
        return window;
    if (may_open(p2p, m)) {
        begin_open(p2p, m);
        *room = SHC_BULK_BYTES;
        return shc_window_lend_run(&p2p->pairs, m->peer, 1, room);
    }
    *room = SHC_BULK_BYTES; /* with more, the reader would wait longer for the line */
    if (may_send_long_head(p2p, m))
        return shc_window_lend_run(&p2p->pairs, m->peer, 1, room);
    m->mode = SHC_COPY_PLAIN; /* as for each message in a window */
    *room = SHC_WINDOW_BYTES;
    window = shc_shuttle_lend(&p2p->pairs, m->peer, SHC_WINDOW_BYTES);
    return window >= 0 ? window : shc_window_lend_for_head(&p2p->pairs, m->peer);
}

_Static_assert((uint64_t)SHC_BULK_WINDOWS *SHC_BULK_BYTES <= SHC_COPY_ROUND,
               "a round goes through all bulk windows");

/* A message that passes one of the peer's, and cannot go by ferry, is not timed: it takes as long
 * as this rank reads that one. */
static void time_no_passing(struct shc_p2p *p2p, struct shc_message *m)
{
    const struct shc_p2p_peer *to = &p2p->peers[m->peer];
    if (!m->trial || (!to->incoming.first && !to->posted.first) ||
        shc_window_has_bulk(&p2p->pairs, m->peer))
        return;
    if (shc_copy_trial_tries(m->trial))
        m->mode = SHC_COPY_LINES;
    m->trial = NULL;
}

static void begin_stream(struct shc_p2p *p2p, struct shc_message *m)
{
    choose_mode(p2p, m);
    time_no_passing(p2p, m);
    m->waits_for_reader = m->trial && shc_copy_trial_tries(m->trial);
    m->head_bytes = m->moved;
    m->chunk_bytes = shc_select_piece(p2p->env.tuning, m->shape.bytes - m->moved, SHC_BULK_BYTES,
                                      p2p->env.seat->world_size);
    /* Set here, too, as all bytes of the message may go in lines. */
    m->bulk_lent = shc_window_bulk_lent(&p2p->pairs, m->peer);
    m->chunks_lent = p2p->pairs.chunks;
    m->streams_ns = shc_clock_ns();
}

/* The bytes of the message have left. False: it is timed until they have been read, and they are
 * not yet. */
static bool end_stream(struct shc_p2p *p2p, struct shc_message *m)
{
    if (m->waits_for_reader &&
        !shc_window_chunks_were_read(&p2p->pairs, m->peer, m->bulk_lent, m->chunks_lent))
        return false;
    if (m->trial &&
        m->trial->mode == m->mode) /* the end of an earlier message may have changed it */
        shc_copy_trial_note(m->trial, m->shape.bytes - m->head_bytes,
                            shc_clock_ns() - m->streams_ns);
    return true;
}

/* P2P-31: is the peer to send more of a message that this rank has asked for, so that a ferry could
 * bring it and take the next chunk of `m` back? Valid after shc_p2p_answer(): receives that remain
 * are FILLING. */
static bool is_owed(const struct shc_p2p *p2p, const struct shc_message *m)
{
    const struct shc_message *in = p2p->peers[m->peer].incoming.first;
    return m->buf.flat && !m->open && in && in->buf.flat && !in->open;
}

/* A chunk goes by ferry, so the message's time does not measure a copy mode for bulk windows.
 * (Between ranks whose messages all pass one another no mode is ever chosen, so messages too long
 * for a ferry are always announced.) */
static void note_ferry(struct shc_message *m)
{
    m->trial = NULL;
    m->waits_for_reader = false;
}

/* P2P-32: the first message to the peer with chunks to send, if these may go into the lines of a
 * ferry as those are read. NULL: there is none. */
static struct shc_message *first_to_trade(const struct shc_p2p *p2p, int peer)
{
    struct shc_message *m = p2p->peers[peer].sends.first;
    for (; m; m = m->next) {
        if (m->state == SHC_MESSAGE_STREAMING && m->moved < m->shape.bytes)
            return m->buf.flat && !m->open ? m : NULL;
    }
    return NULL;
}

bool shc_p2p_trade(struct shc_p2p *p2p, int peer, const struct shc_line_head *came,
                   struct shc_message *in)
{
    struct shc_message *m =
        shc_window_is_ferry(came->window) && in->buf.flat ? first_to_trade(p2p, peer) : NULL;
    struct shc_line_shm *line = m ? shc_pair_draft(&p2p->pairs, peer) : NULL;
    if (!line)
        return false;
    if (m->streams_ns == 0)
        begin_stream(p2p, m);
    char *const ferry = shc_window(&p2p->pairs, peer, p2p->pairs.seat->rank, came->window);
    char *const out = in->buf.flat + in->moved;
    const char *const next = m->buf.flat + m->moved;
    const size_t taken = came->piece, given = next_piece(m, SHC_HEAD_BYTES);
    const size_t both = shc_min_size(taken, given);
    fill_line(line, SHC_LINE_CHUNK, m);
    line->head.bytes = m->moved;
    name_piece(line, shc_ferry_turn(&p2p->pairs, peer, came->window), given, SHC_COPY_LINES);
    if (shc_select_streams_out(p2p->env.tuning, in->shape.bytes, true))
        shc_copy_exchange_past(out, ferry, next, both);
    else
        shc_copy_exchange(out, ferry, next, both);
    shc_copy_lines(out + both, ferry + both, taken - both);
    shc_copy_lines(ferry + both, next + both, given - both);
    in->moved += taken;
    m->moved += given;
    note_ferry(m);
    shc_pair_post(&p2p->pairs, peer, line, came->window);
    if (m->moved == m->shape.bytes)
        shc_p2p_finish_ok(p2p, m);
    return true;
}

/* P2P-45: the most that one pass sends of a message. The receiver may take bytes as fast as they
 * come, and meanwhile this thread looks at nothing else. */
#define PASS_BYTES ((size_t)1 << 20)

/* P2P-45: at least one chunk, and no more if another thread of this rank wants the lock, or to
 * close the group. */
static bool has_sent_enough(const struct shc_p2p *p2p, size_t bytes)
{
    return bytes >= PASS_BYTES || (bytes > 0 && is_pressed(p2p));
}

/* Sends chunks while there are lines and windows. P2P-31: by ferry while the peer owes this rank a
 * message; P2P-33: but none while the peer has still to read a ferry, which may bring more of that
 * message. P2P-7: if no window is free, and none is on its way back from this peer, the bytes go in
 * the lines: slow, but never stuck because another rank keeps a window. False: no line is free. */
static bool stream(struct shc_p2p *p2p, struct shc_message *m)
{
    if (m->streams_ns == 0 && !m->open)
        begin_stream(p2p, m);
    const size_t begun = m->moved;
    while (m->moved < m->shape.bytes) {
        if (has_sent_enough(p2p, m->moved - begun))
            return true;
        struct shc_line_shm *line = shc_pair_draft(&p2p->pairs, m->peer);
        if (!line)
            return false;
        const bool owed = is_owed(p2p, m);
        if (owed && shc_ferry_is_out(&p2p->pairs, m->peer))
            return true;
        int window = owed ? shc_ferry_lend(&p2p->pairs, m->peer) : -1;
        if (window >= 0)
            note_ferry(m);
        else
            window = shc_window_lend(&p2p->pairs, m->peer, false);
        if (window < 0 && shc_window_awaited(&p2p->pairs, m->peer))
            return true;
        fill_line(line, SHC_LINE_CHUNK, m);
        line->head.bytes = m->moved;
        put_piece(p2p, line, m, window, next_piece(m, chunk_room(m, window)));
        shc_pair_post(&p2p->pairs, m->peer, line, window);
        m->bulk_lent = shc_window_bulk_lent(&p2p->pairs, m->peer);
        m->chunks_lent = p2p->pairs.chunks;
        /* P2P-34: a line has come, perhaps the header of a message that passes this one: then the
         * rest can go by ferry. The next pass reads the line. */
        if (!owed && !m->open && m->moved < m->shape.bytes &&
            shc_pair_peek(&p2p->pairs, m->peer).line && shc_window_has_bulk(&p2p->pairs, m->peer))
            return true;
    }
    if (end_stream(p2p, m))
        shc_p2p_finish_ok(p2p, m);
    return true;
}

/* Sends the header, with all the bytes if there is room for them now. False: no line is free. */
static bool announce(struct shc_p2p *p2p, struct shc_message *m)
{
    /* One look decides: an empty message is never announced, as no chunk would follow. */
    const enum sending sending = send_whole(p2p, m);
    if (sending == SENT)
        shc_p2p_finish_ok(p2p, m);
    if (sending != NO_ROOM)
        return sending == SENT;
    size_t room;
    const int window = lend_for_head(p2p, m, &room);
    post_header(p2p, m->open ? SHC_LINE_OPEN : SHC_LINE_RTS, m, window,
                window < 0 ? 0 : next_piece(m, room));
    if (!m->open) {
        m->state = SHC_MESSAGE_ANNOUNCED;
        return true;
    }
    p2p->peers[m->peer].open_end = m->number + 1;
    m->state = SHC_MESSAGE_STREAMING;
    return stream(p2p, m);
}

/* Does the sender need this word? P2P-28: not a REFUSE of an OPEN message of which no rest is to
 * come: the sender may have ended it, and may read no more lines. */
static bool is_word_due(const struct shc_p2p *p2p, int peer, const struct shc_message *m)
{
    const struct shc_open *open = &p2p->peers[peer].open;
    return !m->open || (open->comes && open->number == m->number);
}

/* False: no line is free. */
static bool post_word(struct shc_p2p *p2p, int peer, enum shc_line_kind kind,
                      const struct shc_message *m)
{
    struct shc_line_shm *line = shc_pair_draft(&p2p->pairs, peer);
    if (!line)
        return false;
    fill_line(line, kind, m);
    name_piece(line, -1, 0, SHC_COPY_PLAIN);
    shc_pair_post(&p2p->pairs, peer, line, -1);
    return true;
}

bool shc_p2p_answer(struct shc_p2p *p2p, int peer)
{
    struct shc_message *m = p2p->peers[peer].incoming.first, *next;
    for (; m; m = next) {
        next = m->next;
        if (m->state == SHC_MESSAGE_FILLING)
            continue;
        const bool grant = m->state == SHC_MESSAGE_GRANT_DUE;
        if (is_word_due(p2p, peer, m) &&
            !post_word(p2p, peer, grant ? SHC_LINE_CTS : SHC_LINE_REFUSE, m))
            return false;
        if (grant) {
            m->state = SHC_MESSAGE_FILLING;
        } else {
            shc_p2p_withdraw(p2p, m);
            shc_p2p_finish_misfit(p2p, m, &m->other);
        }
    }
    return true;
}

bool shc_p2p_place(struct shc_p2p *p2p, struct shc_message *m)
{
    const struct shc_seat *seat = p2p->env.seat;
    if (shc_p2p_is_closed(p2p) || shc_group_failed(seat) || p2p->peers[m->peer].sends.first ||
        (m->peer != seat->rank && shc_member_look(seat, m->peer) != SHC_MEMBER_ALIVE))
        return false;
    if (send_whole(p2p, m) != SENT)
        return false;
    shc_pair_ring(&p2p->pairs, m->peer);
    return true;
}

enum shc_status shc_p2p_send_now(struct shc_p2p *p2p, const struct shc_op *op, bool *over)
{
    struct shc_message *m;
    *over = false;
    SHC_TRY(shc_p2p_lock_message(p2p, &p2p->sent, op, &m));
    *over = shc_p2p_place(p2p, m);
    shc_p2p_unlock(p2p);
    return SHC_OK;
}

/* Ends messages that only wait until they have been read; they need no line. */
static void end_streams(struct shc_p2p *p2p, int peer)
{
    struct shc_message *m = p2p->peers[peer].sends.first, *next;
    for (; m && m->state != SHC_MESSAGE_QUEUED; m = next) {
        next = m->next;
        if (m->state == SHC_MESSAGE_STREAMING && m->streams_ns != 0 && m->moved == m->shape.bytes &&
            end_stream(p2p, m))
            shc_p2p_finish_ok(p2p, m);
    }
}

void shc_p2p_write_lines(struct shc_p2p *p2p, int peer)
{
    end_streams(p2p, peer);
    if (!shc_p2p_answer(p2p, peer))
        return;
    struct shc_message *m = p2p->peers[peer].sends.first, *next;
    for (; m; m = next) {
        enum shc_message_state state = m->state;
        next = m->next;
        if (state == SHC_MESSAGE_QUEUED && !announce(p2p, m))
            return;
        if (state == SHC_MESSAGE_STREAMING && !stream(p2p, m))
            return;
    }
}
