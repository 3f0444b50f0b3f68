/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Sends and receives that are carried out at once, without a request or a pass (P2P-53 to P2P-55):
 * nothing of the pair is before them, and all of the message is there or has room.
 */
#include "shm/base/clock.h"
#include "shm/p2p/internal.h"

#include <stddef.h>
#include <string.h>

/* ---- the kept message ---- */

/* Counts a call that moves a message at once and got the lock without a bias. Gives its thread the
 * bias once that pays. */
static SHC_NOINLINE void count_call(struct shc_p2p *p2p)
{
    struct shc_bias *bias = &p2p->lock.bias;
    const uint64_t me = shc_thread_number();
    if (SHC_UNLIKELY(shc_bias_count(bias, me)) && shc_bias_is_possible())
        shc_bias_give(bias, me);
}

/* The kept message made ready for the operation, if that differs only in its peer, its tag and the
 * address of its one contiguous tensor; NULL if not. */
SHC_INLINE struct shc_message *repeat(struct shc_kept_message *kept, int world_size,
                                      const struct shc_op *op)
{
    const struct shc_tensors *tensors = op->kind == SHC_SEND ? &op->input : &op->output;
    struct shc_message *message = &kept->message;
    if (!kept->valid || memcmp(&kept->op, op, offsetof(struct shc_op, redop)) != 0 ||
        (unsigned)op->peer >= (unsigned)world_size || tensors->count != 1 ||
        !shc_buf_repeat(&message->buf, tensors))
        return NULL;
    message->peer = op->peer;
    message->tag = op->tag;
    message->moved = 0;
    message->unasked = false;
    return message;
}

/* The message is not like the kept one. Drops the lock, and holds it again if it succeeds. */
SHC_NODISCARD static SHC_COLD enum shc_status prepare_other(struct shc_p2p *p2p,
                                                            struct shc_kept_message *kept,
                                                            const struct shc_op *op,
                                                            struct shc_message **message)
{
    shc_p2p_unlock(p2p); /* checking a long list of tensors takes time */
    struct shc_message fresh;
    SHC_TRY(shc_message_prepare(&fresh, &p2p->env, op));
    shc_p2p_lock(p2p);
    *kept = (struct shc_kept_message){.message = fresh, .op = *op, .valid = true};
    *message = &kept->message;
    return SHC_OK;
}

/* Makes the kept message ready for the operation. Takes the lock, and holds it on success. */
SHC_NODISCARD static inline enum shc_status lock_message(struct shc_p2p *p2p,
                                                         struct shc_kept_message *kept,
                                                         const struct shc_op *op,
                                                         struct shc_message **message)
{
    shc_p2p_lock(p2p);
    if (!p2p->lock.by_bias)
        count_call(p2p);
    *message = repeat(kept, p2p->pairs.seat->world_size, op);
    return SHC_LIKELY(*message) ? SHC_OK : prepare_other(p2p, kept, op, message);
}

/* ---- receives ---- */

/* P2P-55: how often a receive looks for its line. Meanwhile no thread looks at deadlines,
 * members or the close. So the looks end after tens of microseconds at most, however long ranks
 * are set to spin. The first looks are under the lock. There the bytes are read by the
 * instructions right after the look. A processor that predicts that the line has come asks for
 * the line and for the bytes at the same time. */
#define AT_ONCE_SPINS 1000
#define LOCKED_SPINS  100

/* If another thread wants the lock during these looks, it gets the lock, and the next receives,
 * as many as this, look only without it. */
#define CROWDED_RECEIVES 1000

/* One of this many looks is timed. If it takes longer than DISTANT_NS, the two CPUs share no
 * cache. */
#define TIMED_ANSWERS 256
#define DISTANT_NS    150

/* Is the line a whole message, and one that the receive matches? Each field is read once, and equals
 * what this rank knows by itself. */
SHC_INLINE bool is_wanted(const struct shc_line_head *line, const struct shc_message *m)
{
    return SHC_READ_ONCE(line->kind) == SHC_FRAME_EAGER && SHC_READ_ONCE(line->tag) == m->tag &&
           SHC_READ_ONCE(line->dtype) == (uint8_t)m->shape.dtype &&
           SHC_READ_ONCE(line->elem_bytes) == m->shape.elem_bytes &&
           SHC_READ_ONCE(line->dtype_tag) == m->shape.dtype_tag &&
           SHC_READ_ONCE(line->bytes) == m->shape.bytes;
}

/* Does no other receive and no unexpected message come before this receive? */
static inline bool is_first(const struct shc_p2p *p2p, int peer)
{
    const struct shc_p2p_peer *from = &p2p->peers[peer];
    return !shc_p2p_is_closed(p2p) && !shc_group_failed(p2p->env.seat) && !from->posted.first &&
           !from->unexpected && !p2p->posted_any.first;
}

/* Is it wanted, with its bytes in the line or in the hand-off buffer whose line it is? */
static inline bool is_plain(const struct shc_p2p *p2p, struct shc_pair_found found,
                            const struct shc_message *m)
{
    const size_t room = found.place.memory == SHC_IN_LINE ? SHC_LINE_DATA_BYTES
                                                          : p2p->env.seat->mail.hand_off_bytes;
    const struct shc_line_head *line = &found.line->head;
    return is_wanted(line, m) && SHC_READ_ONCE(line->place.memory) == found.place.memory &&
           SHC_READ_ONCE(line->place.index) == found.place.index &&
           SHC_READ_ONCE(line->piece) == m->shape.bytes && m->shape.bytes <= room;
}

/* The address of its bytes: a processor need not wait for the line to know it. */
static inline const char *plain_piece(const struct shc_p2p *p2p, struct shc_pair_found found,
                                      const struct shc_message *m)
{
    if (found.place.memory == SHC_IN_LINE || shc_hand_off_spares(found.place, m->shape.bytes))
        return (const char *)found.line->data;
    return shc_hand_off_at(&p2p->pairs, m->peer, p2p->env.seat->rank, found.place.index);
}

/* How many looks at the peer's next line are worth making. */
static inline uint32_t spins_of(const struct shc_p2p *p2p, uint32_t most)
{
    const uint32_t spins = p2p->env.seat->patience_p2p.spins;
    return spins < most ? spins : most;
}

/* Takes the message from the place that the line names. False: it is not the message that the
 * receive wants, or not all of it is in this line. */
static SHC_NOINLINE bool receive_elsewhere(struct shc_p2p *p2p, struct shc_message *m,
                                           struct shc_pair_found found)
{
    struct shc_line_head line;
    if (!shc_p2p_read_head(p2p, m->peer, found, &line) || !is_wanted(&line, m))
        return false;
    m->moved = 0;
    m->number = line.message;
    shc_p2p_write_piece(p2p, m, &line, shc_p2p_piece(p2p, m->peer, &line, found.line->data),
                        line.piece);
    if (line.place.memory == SHC_IN_POOL)
        shc_credit_return(&p2p->pairs, m->peer, line.bytes);
    shc_place_return(&p2p->pairs, m->peer, line.place);
    shc_pair_note_header(&p2p->pairs, m->peer, line.place);
    return true;
}

/* Takes the peer's oldest line for the receive, if it is the message that it wants. pre:
 * is_first(). */
static inline bool receive_line(struct shc_p2p *p2p, struct shc_message *m,
                                struct shc_pair_found found)
{
    if (SHC_LIKELY(is_plain(p2p, found, m))) {
        shc_buf_write(&m->buf, 0, plain_piece(p2p, found, m), m->shape.bytes);
        if (found.place.memory == SHC_IN_HAND_OFF)
            shc_place_return(&p2p->pairs, m->peer, found.place);
        shc_pair_note_answer(&p2p->pairs, m->peer);
    } else if (!receive_elsewhere(p2p, m, found)) {
        return false;
    }
    shc_pair_take(&p2p->pairs, m->peer, found);
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

/* P2P-55: looks for the peer's next line under the lock for some microseconds, as long as no
 * other thread wants the lock. Each look fetches the line. If the processor executes a look
 * early, before the peer has stored its answer, the peer has to fetch the line back. So looks
 * are kept in program order. Between CPUs that share no cache only the first look is: an early
 * look then also asks for the bytes, which gains more than it costs. */
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

/* P2P-55: may this receive look under the lock? Only if the peer's next line is an answer to a
 * message of this rank, and if no other thread has wanted the lock of late. A rank that only
 * receives would look at the next line while the peer fills it. */
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
    if (!found.line || !receive_line(p2p, &m, found))
        return false;
    kept->number = m.number; /* its other fields may be another thread's */
    return true;
}

_Static_assert(SHC_EAGER_BYTES < SHC_KEPT_BYTES,
               "a kept message is no plain line, so its number is known");

enum shc_status shc_p2p_receive_now(struct shc_p2p *p2p, const struct shc_op *op, bool *over)
{
    struct shc_message *kept;
    *over = false;
    if ((unsigned)op->peer >= (unsigned)p2p->env.seat->world_size)
        return SHC_OK; /* it will be submitted, and checked there */
    SHC_TRY(lock_message(p2p, &p2p->received, op, &kept));
    const uint64_t bytes = kept->shape.bytes; /* another thread may use `kept` meanwhile */
    const uint64_t begun_ticks = shc_p2p_begin_large(p2p, bytes);
    struct shc_message large;
    if (SHC_UNLIKELY(begun_ticks != 0)) {
        large = *kept;
        large.source = op->peer;
        large.begun_ticks = begun_ticks;
        kept = &large;
    }
    *over = receive_oldest(p2p, kept);
    if (*over)
        shc_p2p_count(p2p, SHC_RECV, op->peer, op->tag, bytes);
    if (*over && begun_ticks != 0)
        shc_p2p_keep(p2p, &large, SHC_OK);
    shc_p2p_unlock(p2p);
    return SHC_OK;
}

/* ---- sends ---- */

enum shc_status shc_p2p_send_now(struct shc_p2p *p2p, const struct shc_op *op, bool *over)
{
    struct shc_message *m;
    *over = false;
    SHC_TRY(lock_message(p2p, &p2p->sent, op, &m));
    *over = shc_p2p_place(p2p, m);
    shc_p2p_unlock(p2p);
    return SHC_OK;
}
