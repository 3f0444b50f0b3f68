/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * What the files of point-to-point share. The lock is held, unless said otherwise.
 */

#include "shm/p2p/p2p.h"

SHC_INLINE uint32_t shc_p2p_pending(const struct shc_p2p *p2p)
{
    /* relaxed: the lock has the edges; without it a hint. */
    return shc_a32_load_relaxed(&p2p->pending);
}

SHC_INLINE uint32_t shc_p2p_waiters(const struct shc_p2p *p2p)
{
    /* relaxed: as above. */
    return shc_a32_load_relaxed(&p2p->waiters);
}

/* One more, or one less. The lock is held. */
SHC_INLINE void shc_p2p_add(shc_a32 *count, int32_t change)
{
    /* relaxed: under the lock. */
    const uint32_t before = shc_a32_load_relaxed(count);
    /* relaxed: as above. */
    shc_a32_store_relaxed(count, before + (uint32_t)change);
}

/* A call that moves a message at once has the lock, and not by a bias: is it worth one? */
void shc_p2p_count_call(struct shc_p2p *p2p);

/* Moves what can move. pre: the lock is held, the group is not closed. `waiter`: the calling thread
 * counts among the waiters. */
void shc_p2p_pass(struct shc_p2p *p2p, bool waiter);

/* ---- agent.c ---- */

/* Makes the agent if there is none and it can be made. The lock is held. */
void shc_agent_start(struct shc_p2p *p2p);

/* Something is pending: the agent looks after it if nobody else does. */
void shc_agent_call(struct shc_p2p *p2p);

/* ---- deadline.c ---- */

/* What was known of the members before the lines were read for the last time. */
struct shc_sight {
    uint64_t now_ns;
    bool due;
    uint8_t states[SHC_MAX_WORLD]; /* enum shc_member_state */
};

/* Looks at the clock, and when it is time at the members. */
void shc_p2p_look(struct shc_p2p *p2p, struct shc_sight *sight);

/* Behind the pass: ends the messages whose peer is gone or whose time is over, says who is late. */
void shc_p2p_judge(struct shc_p2p *p2p, const struct shc_sight *sight);

/* ---- receive.c ---- */

/* Takes what the peer has put into its lines. */
void shc_p2p_read_lines(struct shc_p2p *p2p, int peer);

/* Gives the receive a stray that it takes, or lets it wait for a message. */
void shc_p2p_post_receive(struct shc_p2p *p2p, struct shc_message *m);

/* ---- stray.c ---- */

/* Keeps a header that no receive takes, with its bytes, `data` if they are in the line. False when there is no
 * memory: it stays in its line. */
bool shc_stray_keep(struct shc_p2p *p2p, int peer, const struct shc_line_head *line,
                    const uint8_t *data);

/* The one that came first among those the receive takes, out of its peer's list; or NULL. It is the caller's. */
struct shc_stray *shc_stray_take(struct shc_p2p *p2p, const struct shc_message *m, int *from);

/* With what was put aside of it; or NULL. */
void shc_stray_free(struct shc_stray *stray);

/* What comes behind the header of an open message is for the stray; NULL: it is dropped. */
void shc_open_begin(struct shc_open *open, const struct shc_line_head *line,
                    struct shc_stray *stray);

/* The next bytes of it. False: they are of no such message. */
bool shc_open_take_chunk(struct shc_p2p *p2p, int peer, const struct shc_line_head *line,
                         const uint8_t *data);

/* ---- send.c ---- */

/* Sends the message at once, if there is room for all of it and nothing is in front of it. The lock is
 * held. False: it must be submitted, or refused. */
bool shc_p2p_place(struct shc_p2p *p2p, struct shc_message *m);

/* The receiver's words to the peer on what it has announced. False: no line is free. A receive that is
 * of another type or size is over after it. */
bool shc_p2p_answer(struct shc_p2p *p2p, int peer);

/* A chunk of `in` has come by ferry: brings it to where it belongs and, in the same pass over the ferry's
 * lines, the next chunk that is to go to the peer into them, which goes out. False, and nothing is done:
 * there is none, or no line for it, or it was no ferry, or tensors are in pieces. */
bool shc_p2p_trade(struct shc_p2p *p2p, int peer, const struct shc_line_head *came,
                   struct shc_message *in);

/* Puts into the lines to the peer what there is room for. */
void shc_p2p_write_lines(struct shc_p2p *p2p, int peer);

/* ---- shared by the files of point-to-point; the lock is held ---- */

/* The message is not the kept one: the second half of the next. Lets go of the lock, and takes it again
 * if all is well. */
SHC_NODISCARD SHC_COLD enum shc_status shc_p2p_lock_other_message(struct shc_p2p *p2p,
                                                                  struct shc_kept_message *kept,
                                                                  const struct shc_op *op,
                                                                  struct shc_message **message);

/* The kept message, made ready for the operation. Takes the lock, and holds it if all is well. */
SHC_NODISCARD SHC_INLINE enum shc_status shc_p2p_lock_message(struct shc_p2p *p2p,
                                                              struct shc_kept_message *kept,
                                                              const struct shc_op *op,
                                                              struct shc_message **message)
{
    shc_p2p_lock(p2p);
    if (!p2p->lock.by_bias)
        shc_p2p_count_call(p2p);
    *message = shc_message_repeat(kept, p2p->pairs.seat->world_size, op);
    return SHC_LIKELY(*message) ? SHC_OK : shc_p2p_lock_other_message(p2p, kept, op, message);
}

/* The bytes that came with a line: `data`, behind its header, or what it names. */
SHC_INLINE const char *shc_p2p_piece(const struct shc_p2p *p2p, int peer,
                                     const struct shc_line_head *line, const uint8_t *data)
{
    return line->window == SHC_NO_WINDOW || shc_window_spares(line->window, line->piece)
               ? (const char *)data
               : shc_window(&p2p->pairs, peer, p2p->pairs.seat->rank, line->window);
}

SHC_INLINE bool shc_line_is_in_bulk(const struct shc_line_head *line)
{
    return line->window != SHC_NO_WINDOW && line->window >= SHC_BULK_NAME;
}

/* All queues of pending messages, in no order that matters. */
int shc_p2p_queue_count(const struct shc_p2p *p2p);
struct shc_queue *shc_p2p_queue(struct shc_p2p *p2p, int index);

void shc_queue_append(struct shc_queue *queue, struct shc_message *m);

/* Takes the message out of the queue it is in. */
void shc_p2p_withdraw(struct shc_p2p *p2p, struct shc_message *m);

/* The withdrawn message is over; finish_ok withdraws it itself. */
void shc_p2p_finish(struct shc_p2p *p2p, struct shc_message *m, enum shc_status status,
                    const char *error);

void shc_p2p_finish_ok(struct shc_p2p *p2p, struct shc_message *m);

/* The withdrawn message has met a message, or a receive, of this other type or size. */
void shc_p2p_finish_misfit(struct shc_p2p *p2p, struct shc_message *m,
                           const struct shc_shape *theirs);

/* Every pending message is over, each with its name in front of the reason. */
void shc_p2p_finish_all(struct shc_p2p *p2p, enum shc_status status, const char *reason);

/* Fails the group, and with it all that is pending here. */
void shc_p2p_break(struct shc_p2p *p2p, enum shc_status status, const char *reason);
