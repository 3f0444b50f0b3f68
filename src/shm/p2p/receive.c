/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Messages that come in: reading the lines of the peers, matching headers with receives (P2P-42),
 * and bringing the bytes to the user's memory.
 */
#include "shm/base/clock.h"
#include "shm/base/num.h"
#include "shm/p2p/internal.h"
#include "shm/proto/member.h"

#include <stdio.h>
#include <string.h>

static struct shc_shape shape_of(const struct shc_line_head *line)
{
    return (struct shc_shape){
        .dtype = (enum shc_dtype)line->dtype,
        .elem_bytes = line->elem_bytes,
        .dtype_tag = line->dtype_tag,
        .bytes = line->bytes,
    };
}

static bool same_shape(const struct shc_shape *a, const struct shc_shape *b)
{
    return a->dtype == b->dtype && a->elem_bytes == b->elem_bytes && a->dtype_tag == b->dtype_tag &&
           a->bytes == b->bytes;
}

/* A private copy of the header: the sender is another process, so each field is read once, and what
 * was checked is what is used. The bytes after the header stay where they are. */
static inline struct shc_line_head look_at_head(const struct shc_line_shm *line)
{
    struct shc_line_head head;
    shc_copy_once(&head, &line->head, sizeof head);
    return head;
}

/* Does the line name memory that may hold its bytes? P2P-13: a shuttle's line (that of a hand-off
 * buffer) names that shuttle, and no other line names a shuttle. */
static inline bool is_there(const struct shc_p2p *p2p, int peer, uint32_t shuttle,
                            const struct shc_line_head *line)
{
    if (shuttle != SHC_NO_WINDOW)
        return line->window == shuttle;
    return line->window == SHC_NO_WINDOW || shc_window_exists(&p2p->pairs, peer, line->window);
}

/* A beginning: fewer bytes than the message has, and whole elements. */
static inline bool is_beginning(const struct shc_line_head *line)
{
    return line->piece < line->bytes && line->elem_bytes > 0 && line->piece % line->elem_bytes == 0;
}

/* P2P-25: of each sender one OPEN message at a time. But the sender of one that is dropped may have
 * sent no more of it. Its first bytes, if any, are in bulk windows (the eager pool). */
static inline bool may_be_open(const struct shc_p2p *p2p, int peer,
                               const struct shc_line_head *line)
{
    const struct shc_open *open = &p2p->peers[peer].open;
    return (!open->comes || !open->stray) && line->bytes <= SHC_OPEN_BYTES &&
           (line->window == SHC_NO_WINDOW || shc_line_is_in_bulk(line));
}

/* A line comes from another process: nothing in it may lead outside the memory it may use. */
static inline bool is_sound(const struct shc_p2p *p2p, int peer, uint32_t shuttle,
                            const struct shc_line_head *line)
{
    const size_t room = line->window == SHC_NO_WINDOW ? SHC_LINE_DATA_BYTES
                                                      : shc_window_bytes(&p2p->pairs, line->window);
    return is_there(p2p, peer, shuttle, line) && line->piece <= room &&
           (line->kind != SHC_LINE_EAGER || line->piece == line->bytes) &&
           (line->kind != SHC_LINE_RTS || is_beginning(line)) &&
           (line->kind != SHC_LINE_AHEAD ||
            (is_beginning(line) && shc_window_is_ferry(line->window))) &&
           (line->kind != SHC_LINE_OPEN || (is_beginning(line) && may_be_open(p2p, peer, line)));
}

/* Gives the buffer back: a receive has taken the bytes in it. */
static void return_window(struct shc_p2p *p2p, int peer, const struct shc_line_head *line)
{
    if (line->kind == SHC_LINE_EAGER && shc_line_is_in_bulk(line))
        shc_window_take_whole(&p2p->pairs, peer, line->piece);
    shc_window_return(&p2p->pairs, peer, line->window, line->piece);
}

/* Copies the bytes on with the copy mode that the sender used, unless the message is too long for
 * the caches. */
static void write_piece(const struct shc_p2p *p2p, struct shc_message *m,
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

/* The first bytes of the message are all there: writes those of them that this rank has not copied
 * yet. */
static void write_rest(const struct shc_p2p *p2p, struct shc_message *m,
                       const struct shc_line_head *line, const char *whole)
{
    if (line->piece > m->moved)
        write_piece(p2p, m, line, whole + m->moved, line->piece - m->moved);
}

/* P2P-38: how many bytes of that message are already in the receive's memory. Messages by ferry (a
 * long hand-off buffer) alone are asked: only the peer's messages go by ferry, and this rank
 * numbers messages to itself, too. */
static size_t copied_ahead(const struct shc_p2p *p2p, const struct shc_message *m,
                           const struct shc_line_head *line)
{
    const struct shc_ahead *ahead = &p2p->ahead;
    return shc_window_is_ferry(line->window) && ahead->post == m->post &&
                   ahead->number == line->message
               ? ahead->bytes
               : 0;
}

/* A receive takes an OPEN message: its chunks come to that receive, or are dropped as they come
 * (P2P-27). */
static void take_open(struct shc_p2p *p2p, int peer, const struct shc_line_head *line, bool fits)
{
    struct shc_open *open = &p2p->peers[peer].open;
    if (fits)
        *open = (struct shc_open){.comes = false};
    else
        shc_open_begin(open, line, NULL);
    shc_window_take_whole(&p2p->pairs, peer, line->bytes);
}

/* Gives the withdrawn receive this header, and the bytes that came with it. */
static void take_message(struct shc_p2p *p2p, struct shc_message *m, int peer,
                         const struct shc_line_head *line, const uint8_t *data)
{
    const struct shc_shape theirs = shape_of(line);
    const bool fits = same_shape(&theirs, &m->shape), open = line->kind == SHC_LINE_OPEN;
    m->source = peer;
    m->number = line->message;
    if (open)
        take_open(p2p, peer, line, fits);
    if (line->kind != SHC_LINE_EAGER) {
        const enum shc_message_state wanted = open ? SHC_MESSAGE_FILLING : SHC_MESSAGE_GRANT_DUE;
        m->state = fits ? wanted : SHC_MESSAGE_REFUSE_DUE;
        m->other = theirs;
        m->open = open;
        m->moved = 0;
        shc_queue_append(&p2p->peers[peer].incoming, m);
        if (!open)
            shc_p2p_answer(p2p, peer); /* P2P-57: the sender goes on during the copy */
    }
    /* A receive of another type or size may have ended above. */
    if (fits) {
        if (line->kind == SHC_LINE_EAGER)
            m->moved = copied_ahead(p2p, m, line);
        write_rest(p2p, m, line, shc_p2p_piece(p2p, peer, line, data));
    }
    return_window(p2p, peer, line);
    if (line->kind != SHC_LINE_EAGER)
        return;
    if (fits)
        shc_p2p_finish(p2p, m, SHC_OK, "");
    else
        shc_p2p_finish_misfit(p2p, m, &theirs);
}

static struct shc_message *first_with_tag(const struct shc_queue *queue, int32_t tag)
{
    struct shc_message *m = queue->first;
    while (m && m->tag != tag)
        m = m->next;
    return m;
}

/* P2P-42: the receive that was posted first among those that this header matches. */
static struct shc_message *match(struct shc_p2p *p2p, int peer, int32_t tag)
{
    struct shc_message *named = first_with_tag(&p2p->peers[peer].posted, tag);
    struct shc_message *any = first_with_tag(&p2p->posted_any, tag);
    if (!named || (any && any->post < named->post))
        return any;
    return named;
}

/* A header has been taken, or kept as an unexpected message. */
static inline void note_message(struct shc_p2p *p2p, int peer, uint32_t window)
{
    shc_pair_note_answer(&p2p->pairs, peer);
    if (shc_window_is_ferry(window))
        shc_ferry_note_message(&p2p->pairs, peer, window);
}

static bool take_header(struct shc_p2p *p2p, int peer, const struct shc_line_head *line,
                        const uint8_t *data)
{
    struct shc_message *m = match(p2p, peer, line->tag);
    if (!m)
        return shc_stray_keep(p2p, peer, line, data);
    shc_p2p_withdraw(p2p, m);
    take_message(p2p, m, peer, line, data);
    return true;
}

/* P2P-37: a message by ferry is on its way, and so many of its bytes are there. The receive that
 * would take it now copies them already. The EAGER line alone takes the message, for the receive
 * that comes first then. */
static void take_ahead(struct shc_p2p *p2p, int peer, const struct shc_line_head *line)
{
    struct shc_message *m = match(p2p, peer, line->tag);
    const struct shc_shape theirs = shape_of(line);
    if (!m || !same_shape(&theirs, &m->shape))
        return;
    m->moved = copied_ahead(p2p, m, line);
    write_rest(p2p, m, line, shc_p2p_piece(p2p, peer, line, NULL));
    p2p->ahead =
        (struct shc_ahead){.post = m->post, .number = line->message, .bytes = (uint32_t)m->moved};
}

static struct shc_message *find_number(const struct shc_queue *queue, uint32_t number,
                                       enum shc_message_state state)
{
    struct shc_message *m = queue->first;
    while (m && (m->number != number || m->state != state))
        m = m->next;
    return m;
}

/* Takes CTS or REFUSE, the receiver's word on an announced message. REFUSE may also be for an OPEN
 * message, even for one whose bytes have all left (P2P-27). */
static bool take_word(struct shc_p2p *p2p, int peer, const struct shc_line_head *line)
{
    const struct shc_p2p_peer *to = &p2p->peers[peer];
    const bool refused = line->kind == SHC_LINE_REFUSE;
    struct shc_message *m = find_number(&to->sends, line->message, SHC_MESSAGE_ANNOUNCED);
    if (!m && refused)
        m = find_number(&to->sends, line->message, SHC_MESSAGE_STREAMING);
    if (!m)
        return refused && (int32_t)(to->open_end - line->message) > 0;
    if (m->state == SHC_MESSAGE_STREAMING && !m->open)
        return false;
    if (line->kind == SHC_LINE_CTS) {
        m->state = SHC_MESSAGE_STREAMING;
        return true;
    }
    const struct shc_shape theirs = shape_of(line);
    shc_p2p_withdraw(p2p, m);
    shc_p2p_finish_misfit(p2p, m, &theirs);
    return true;
}

static bool take_chunk(struct shc_p2p *p2p, int peer, const struct shc_line_head *line,
                       const uint8_t *data)
{
    struct shc_message *m =
        find_number(&p2p->peers[peer].incoming, line->message, SHC_MESSAGE_FILLING);
    if (!m)
        return shc_open_take_chunk(p2p, peer, line, data);
    if (line->bytes != m->moved || line->piece > m->shape.bytes - m->moved ||
        line->piece % m->shape.elem_bytes != 0)
        return false;
    if (!shc_p2p_trade(p2p, peer, line, m)) {
        write_piece(p2p, m, line, shc_p2p_piece(p2p, peer, line, data), line->piece);
        return_window(p2p, peer, line);
    }
    if (m->moved == m->shape.bytes)
        shc_p2p_finish_ok(p2p, m);
    return true;
}

/* False: the line does not fit anything that goes on here. */
static bool take_line(struct shc_p2p *p2p, int peer, struct shc_pair_found found, bool *kept)
{
    const uint8_t *data = found.line->data;
    const struct shc_line_head line = look_at_head(found.line);
    *kept = true;
    if (!is_sound(p2p, peer, found.shuttle, &line))
        return false;
    switch (line.kind) {
    case SHC_LINE_EAGER:
    case SHC_LINE_RTS:
    case SHC_LINE_OPEN:
        *kept = take_header(p2p, peer, &line, data);
        if (*kept)
            note_message(p2p, peer, line.window);
        return true;
    case SHC_LINE_AHEAD:
        take_ahead(p2p, peer, &line);
        return true;
    case SHC_LINE_CTS:
    case SHC_LINE_REFUSE:
        return take_word(p2p, peer, &line);
    case SHC_LINE_CHUNK:
        return take_chunk(p2p, peer, &line, data);
    default:
        return false;
    }
}

/* P2P-45: reads at most as many lines as a pair has; then it is the next peer's turn. A peer that
 * has LEFT has no more than these, so one pass finds all that it has sent (deadline.c). */
void shc_p2p_read_lines(struct shc_p2p *p2p, int peer)
{
    for (uint32_t i = 0; i < shc_pair_capacity(&p2p->pairs); i++) {
        const struct shc_pair_found found = shc_pair_peek(&p2p->pairs, peer);
        bool kept;
        /* P2P-44: while nothing pends, the next receive may want just this line, so it is not put
         * aside. */
        if (!found.line || shc_p2p_pending(p2p) == 0)
            return;
        if (!take_line(p2p, peer, found, &kept)) {
            char reason[160];
            snprintf(reason, sizeof reason,
                     "rank %d found a line of rank %d that no message explains (kind %u): the "
                     "shared memory is damaged",
                     p2p->env.seat->rank, peer, SHC_READ_ONCE(found.line->head.kind));
            shc_p2p_break(p2p, SHC_ERR_ABORTED, reason);
            return;
        }
        if (!kept)
            return;
        shc_pair_take(&p2p->pairs, peer, found.shuttle);
    }
}

void shc_p2p_post_receive(struct shc_p2p *p2p, struct shc_message *m)
{
    int from = -1;
    struct shc_stray *stray = shc_stray_take(p2p, m, &from);
    m->state = SHC_MESSAGE_POSTED;
    if (stray && stray->piece && stray->line.kind == SHC_LINE_EAGER)
        shc_window_take_whole(&p2p->pairs, from, stray->line.piece);
    if (stray)
        take_message(p2p, m, from, &stray->line, stray->piece ? stray->piece : stray->data);
    else
        shc_queue_append(m->peer == SHC_ANY_SOURCE ? &p2p->posted_any : &p2p->peers[m->peer].posted,
                         m);
    shc_stray_free(stray);
}

/* ---- receives that are carried out at once ---- */

/* P2P-55: looks for a line. Meanwhile no thread looks at deadlines, members or the close, so the
 * looks must end soon, however long ranks are set to spin: after tens of microseconds at most. The
 * first looks are under the lock: then no instruction between a line's coming and the reading of
 * its bytes waits for the line, so a processor that predicts its coming asks for both at once. */
#define AT_ONCE_SPINS 1000
#define LOCKED_SPINS  100

/* A thread that wants the lock during these looks gets it, and so many receives after that look
 * only without the lock. */
#define CROWDED_RECEIVES 1000

/* One of so many looks is timed. A line that takes longer than DISTANT_NS is not in a cache that
 * both CPUs share. */
#define TIMED_ANSWERS 256
#define DISTANT_NS    150

/* Is the line a whole message, and one that the receive matches? */
static inline bool is_whole(const struct shc_line_head *line, const struct shc_message *m)
{
    return line->kind == SHC_LINE_EAGER && line->tag == m->tag &&
           line->dtype == (uint8_t)m->shape.dtype && line->elem_bytes == m->shape.elem_bytes &&
           line->dtype_tag == m->shape.dtype_tag && line->bytes == m->shape.bytes;
}

/* Does no other receive and no unexpected message come before this receive? */
static inline bool is_first(const struct shc_p2p *p2p, int peer)
{
    const struct shc_p2p_peer *from = &p2p->peers[peer];
    return !shc_p2p_is_closed(p2p) && !shc_group_failed(p2p->env.seat) && !from->posted.first &&
           !from->strays && !p2p->posted_any.first;
}

/* Is the line the whole message that the receive wants, with its bytes in the line or in the
 * shuttle whose line it is? Each field is read once, and equals what this rank knows by itself. */
static inline bool is_plain(const struct shc_p2p *p2p, struct shc_pair_found found,
                            const struct shc_message *m)
{
    const size_t room =
        found.shuttle == SHC_NO_WINDOW ? SHC_LINE_DATA_BYTES : p2p->env.seat->mail.shuttle_bytes;
    const struct shc_line_head *line = &found.line->head;
    return SHC_READ_ONCE(line->kind) == SHC_LINE_EAGER && SHC_READ_ONCE(line->tag) == m->tag &&
           SHC_READ_ONCE(line->dtype) == (uint8_t)m->shape.dtype &&
           SHC_READ_ONCE(line->elem_bytes) == m->shape.elem_bytes &&
           SHC_READ_ONCE(line->dtype_tag) == m->shape.dtype_tag &&
           SHC_READ_ONCE(line->bytes) == m->shape.bytes &&
           SHC_READ_ONCE(line->window) == found.shuttle &&
           SHC_READ_ONCE(line->piece) == m->shape.bytes && m->shape.bytes <= room;
}

/* The address of its bytes: a processor need not wait for the line to know it. */
static inline const char *plain_piece(const struct shc_p2p *p2p, struct shc_pair_found found,
                                      const struct shc_message *m)
{
    if (found.shuttle == SHC_NO_WINDOW || shc_window_spares(found.shuttle, m->shape.bytes))
        return (const char *)found.line->data;
    return shc_window(&p2p->pairs, m->peer, p2p->env.seat->rank, found.shuttle);
}

/* How many looks at the peer's next line are worth making. */
static inline uint32_t spins_of(const struct shc_p2p *p2p, uint32_t most)
{
    const uint32_t spins = p2p->env.seat->patience_p2p.spins;
    return spins < most ? spins : most;
}

/* P2P-39: copies what is there of a message by ferry, piece by piece, as long as the next line
 * comes soon, since its sender is storing the bytes that this line will name. Returns the line
 * after these, or none. */
static struct shc_pair_found receive_ahead(struct shc_p2p *p2p, struct shc_message *m,
                                           struct shc_pair_found found, struct shc_line_head *line)
{
    const uint32_t message = line->message;
    while (line->kind == SHC_LINE_AHEAD && line->message == message && line->tag == m->tag &&
           line->piece > m->moved && is_sound(p2p, m->peer, found.shuttle, line)) {
        const struct shc_shape theirs = shape_of(line);
        if (!same_shape(&theirs, &m->shape))
            break;
        write_rest(p2p, m, line, shc_p2p_piece(p2p, m->peer, line, NULL));
        shc_pair_take(&p2p->pairs, m->peer, found.shuttle);
        const struct shc_pair_watch watch = shc_pair_next(&p2p->pairs, m->peer);
        found = shc_pair_look(&watch);
        uint32_t spins = spins_of(p2p, LOCKED_SPINS);
        for (; !found.line && spins > 0 && !shc_biased_lock_is_awaited(&p2p->lock); spins--) {
            shc_cpu_relax_in_order();
            found = shc_pair_look(&watch);
        }
        if (!found.line)
            return found;
        *line = look_at_head(found.line);
    }
    if (line->message != message)
        m->moved = 0;
    return found;
}

/* Takes the message from the buffer that the line names; if the line is AHEAD, from the line
 * after the AHEAD lines. False: it is not the message that the receive wants, or not all of it
 * is here. */
static SHC_NOINLINE bool receive_window(struct shc_p2p *p2p, struct shc_message *m,
                                        struct shc_pair_found *found)
{
    struct shc_line_head line = look_at_head(found->line);
    if (line.kind == SHC_LINE_AHEAD)
        *found = receive_ahead(p2p, m, *found, &line);
    if (!found->line || !is_whole(&line, m) || !is_sound(p2p, m->peer, found->shuttle, &line))
        return false;
    if (shc_window_is_ferry(line.window))
        shc_ferry_note_message(&p2p->pairs, m->peer, line.window);
    else
        m->moved = 0; /* bytes that came ahead do not count */
    write_rest(p2p, m, &line, shc_p2p_piece(p2p, m->peer, &line, found->line->data));
    return_window(p2p, m->peer, &line);
    return true;
}

/* Takes the peer's oldest line for the receive, if it is the message that it wants. pre:
 * is_first(). */
static inline bool receive_line(struct shc_p2p *p2p, struct shc_message *m,
                                struct shc_pair_found found)
{
    if (SHC_LIKELY(is_plain(p2p, found, m))) {
        shc_buf_write(&m->buf, 0, plain_piece(p2p, found, m), m->shape.bytes);
        if (found.shuttle != SHC_NO_WINDOW)
            shc_shuttle_keep(&p2p->pairs, m->peer, found.shuttle);
    } else if (!receive_window(p2p, m, &found)) {
        return false;
    }
    shc_pair_note_answer(&p2p->pairs, m->peer);
    shc_pair_take(&p2p->pairs, m->peer, found.shuttle);
    shc_pair_ring(&p2p->pairs, m->peer);
    return true;
}

/* Looks at the peer's next line; if it was there, notes whether the look took long. */
static SHC_NOINLINE struct shc_pair_found look_timed(const struct shc_pair_watch *watch,
                                                     struct shc_p2p_peer *from)
{
    const uint64_t early_ns = shc_clock_ns(), begun_ns = shc_clock_ns();
    const struct shc_pair_found found = shc_pair_look(watch);
    const uint64_t ended_ns = shc_clock_ns(), clock_ns = begun_ns - early_ns;
    if (found.line)
        from->distant = ended_ns - begun_ns > clock_ns + DISTANT_NS ? from->distant + 1 : 0;
    return found;
}

/* P2P-55: looks for the peer's next line under the lock for some microseconds, as long as no other
 * thread wants the lock. A look between the peer's reading of a line and its answer there takes the
 * line away from the peer: so no look may run ahead of its turn. Where a line takes long to come
 * only the first look is held back: later ones that run ahead also ask for the bytes, which is
 * worth more. */
static inline struct shc_pair_found await_locked(struct shc_p2p *p2p, int peer,
                                                 const struct shc_pair_watch *watch)
{
    struct shc_p2p_peer *from = &p2p->peers[peer];
    const bool timed = from->answers++ % TIMED_ANSWERS == 0, distant = from->distant > 1;
    if (distant)
        shc_cpu_relax();
    shc_cpu_hold_loads();
    struct shc_pair_found found =
        SHC_UNLIKELY(timed) ? look_timed(watch, from) : shc_pair_look(watch);
    for (uint32_t spins = spins_of(p2p, LOCKED_SPINS); !found.line && spins > 0; spins--) {
        if (shc_biased_lock_is_awaited(&p2p->lock)) {
            p2p->crowded = CROWDED_RECEIVES;
            break;
        }
        if (distant)
            shc_cpu_relax();
        else
            shc_cpu_relax_in_order();
        found = SHC_UNLIKELY(timed) ? look_timed(watch, from) : shc_pair_look(watch);
    }
    return found;
}

/* Looks for longer, without the lock. The lock is held at entry and at return. */
static SHC_NOINLINE void await_unlocked(struct shc_p2p *p2p, const struct shc_pair_watch *watch)
{
    shc_p2p_add(&p2p->waiters, 1); /* keeps the segment mapped */
    shc_p2p_unlock(p2p);
    uint32_t spins = spins_of(p2p, AT_ONCE_SPINS);
    for (; spins > 0 && !shc_pair_look(watch).line; spins--)
        shc_cpu_relax();
    shc_p2p_lock(p2p);
    shc_p2p_add(&p2p->waiters, -1);
}

/* P2P-55: is the peer's next line an answer, and does no other thread want the lock? A rank that
 * receives one message after the other should not look at the next line while it is being
 * filled. */
static inline bool may_await_locked(struct shc_p2p *p2p, int peer)
{
    if (p2p->crowded > 0) {
        p2p->crowded--;
        return false;
    }
    return shc_pair_awaits_answer(&p2p->pairs, peer);
}

/* Receives the peer's oldest line, if it is just what the receive wants and nothing comes before
 * the receive. False: the receive must be submitted. */
static bool receive_oldest(struct shc_p2p *p2p, struct shc_message *kept)
{
    if (!is_first(p2p, kept->peer))
        return false;
    const struct shc_pair_watch watch = shc_pair_next(&p2p->pairs, kept->peer);
    const bool alone = shc_p2p_pending(p2p) == 0; /* if not, passes of this thread are needed */
    struct shc_pair_found found = alone && may_await_locked(p2p, kept->peer)
                                      ? await_locked(p2p, kept->peer, &watch)
                                      : shc_pair_look(&watch);
    if (found.line)
        return receive_line(p2p, kept, found);
    if (!alone)
        return false;
    struct shc_message m = *kept; /* another thread may use `kept` meanwhile */
    await_unlocked(p2p, &watch);
    if (!is_first(p2p, m.peer))
        return false;
    found = shc_pair_peek(&p2p->pairs, m.peer);
    return found.line && receive_line(p2p, &m, found);
}

enum shc_status shc_p2p_receive_now(struct shc_p2p *p2p, const struct shc_op *op, bool *over)
{
    struct shc_message *kept;
    *over = false;
    if (op->peer == SHC_ANY_SOURCE)
        return SHC_OK; /* it will be submitted, and checked there */
    SHC_TRY(shc_p2p_lock_message(p2p, &p2p->received, op, &kept));
    *over = receive_oldest(p2p, kept);
    shc_p2p_unlock(p2p);
    return SHC_OK;
}
