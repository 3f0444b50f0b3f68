/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Functions that the files of src/shm/p2p share. The lock is held, unless a comment says otherwise.
 */

#include "shm/base/num.h"
#include "shm/kernel/copy.h"
#include "shm/p2p/p2p.h"
#include "shm/proto/board.h"
#include "shm/proto/member.h"

SHC_INLINE uint32_t shc_p2p_pending(const struct shc_p2p *p2p)
{
    /* relaxed: the lock has the edges; without it a hint. */
    return shc_a32_load_relaxed(&p2p->pending);
}

SHC_INLINE uint32_t shc_p2p_waiters(const struct shc_p2p *p2p)
{
    /* relaxed: the lock has the edges; without it a hint. */
    return shc_a32_load_relaxed(&p2p->waiters);
}

/* Does a thread that waits for messages sleep until something happens? */
SHC_INLINE bool shc_p2p_has_parked(const struct shc_p2p *p2p)
{
    /* relaxed: the lock has the edges; without it a hint. */
    return shc_a32_load_relaxed(&p2p->parked) > 0;
}

/* Changes the count by one up or down. */
SHC_INLINE void shc_p2p_add(shc_a32 *count, int32_t change)
{
    /* relaxed: under the lock. */
    const uint32_t before = shc_a32_load_relaxed(count);
    /* relaxed: under the lock. */
    shc_a32_store_relaxed(count, before + (uint32_t)change);
}

SHC_INLINE bool shc_p2p_is_remote(const struct shc_p2p *p2p, int rank)
{
    return rank >= p2p->env.seat->world_size;
}

/* Members and remote ranks. */
SHC_INLINE int shc_p2p_rank_count(const struct shc_p2p *p2p)
{
    return p2p->env.seat->world_size + p2p->env.remote.count;
}

/* ---- remote.c ---- */

/* Something pends that the rank may have a part in; -1: any rank. */
void shc_remote_stir(const struct shc_p2p *p2p, int rank);

/* Gives the withdrawn receive the header of a remote rank, and the bytes of an eager message. */
void shc_remote_give(struct shc_p2p *p2p, struct shc_message *m, int rank,
                     const struct shc_line_head *line, const char *bytes);

/* ---- end.c ---- */

/* Tells the board what is pending. */
SHC_COLD void shc_p2p_show(struct shc_p2p *p2p);

/* All queues of pending messages, in no particular order: first so many of each rank. */
#define SHC_PEER_QUEUES 6
int shc_p2p_queue_count(const struct shc_p2p *p2p);
struct shc_queue *shc_p2p_queue(struct shc_p2p *p2p, int index);

/* The message with that number in the pair, or NULL. */
struct shc_message *shc_queue_find(const struct shc_queue *queue, uint32_t number);

/* Removes the message from its queue. */
void shc_p2p_withdraw(struct shc_p2p *p2p, struct shc_message *m);

/* Puts a message that is in no queue into that state, and at the end of its queue. */
void shc_p2p_enter(struct shc_p2p *p2p, struct shc_message *m, enum shc_message_state state);

/* Ends a withdrawn message; shc_p2p_finish_ok() withdraws it itself. */
void shc_p2p_finish(struct shc_p2p *p2p, struct shc_message *m, enum shc_status status,
                    const char *error);

void shc_p2p_finish_ok(struct shc_p2p *p2p, struct shc_message *m);

/* Ends a withdrawn message whose other side has another shape. */
void shc_p2p_finish_misfit(struct shc_p2p *p2p, struct shc_message *m);

/* Withdraws and ends a message that cannot go on, or all of a queue, or all that are pending here.
 * Nothing else is affected. The error text is the message's name and then the reason. */
void shc_p2p_finish_alone(struct shc_p2p *p2p, struct shc_message *m, enum shc_status status,
                          const char *reason);
void shc_p2p_finish_queue(struct shc_p2p *p2p, struct shc_queue *queue, enum shc_status status,
                          const char *reason);
void shc_p2p_finish_all(struct shc_p2p *p2p, enum shc_status status, const char *reason);

/* Fails the group, and with it all messages that are pending here. `end`: whose end is the reason, or NULL. */
void shc_p2p_break(struct shc_p2p *p2p, enum shc_status status, const char *reason,
                   const struct shc_member_end *end);

/* ---- progress.c ---- */

/* P2P-45: a pass. pre: the group is not closed. `waiter`: the calling thread counts among the
 * waiters. */
void shc_p2p_pass(struct shc_p2p *p2p, bool waiter);

/* Starts the progress thread, if it does not exist and can be made. */
void shc_progress_thread_start(struct shc_p2p *p2p);

/* P2P-50: something is pending. The progress thread looks after it if no other thread does. */
void shc_progress_thread_call(struct shc_p2p *p2p);

/* ---- deadline.c ---- */

/* Membership snapshot: the members' states as they were before the lines were read. */
struct shc_snapshot {
    uint64_t now_ns;
    bool due;
    uint8_t states[SHC_MAX_WORLD]; /* enum shc_member_state */
};

/* Reads the clock, and, each time it is due, the members' states. */
void shc_p2p_look(struct shc_p2p *p2p, struct shc_snapshot *snapshot);

/* WAIT-17: when the first deadline of a pending message, or a line that says that it is late, is due. */
uint64_t shc_p2p_due_ns(struct shc_p2p *p2p);

/* P2P-60: ends the messages whose peer is gone or whose time is over, and logs the ones that are
 * late. Runs after the lines were read. */
void shc_p2p_check(struct shc_p2p *p2p, const struct shc_snapshot *snapshot);

/* ---- receive.c ---- */

/* Takes the new lines of the peer. */
void shc_p2p_read_lines(struct shc_p2p *p2p, int peer);

/* Gives the receive the unexpected message that it takes; if there is none, posts the receive. */
void shc_p2p_post_receive(struct shc_p2p *p2p, struct shc_message *m);

/* A private copy of a line's header: the sender is another process, so each field is read once, and
 * what was checked is what is used. False: it leads outside the memory that it may use. */
bool shc_p2p_read_head(const struct shc_p2p *p2p, int peer, struct shc_pair_found found,
                       struct shc_line_head *head);

/* Copies the piece on with the copy mode that the sender used, unless the message is too long for
 * the caches. */
void shc_p2p_write_piece(const struct shc_p2p *p2p, struct shc_message *m,
                         const struct shc_line_head *line, const char *piece, size_t bytes);

SHC_INLINE struct shc_shape shc_line_shape(const struct shc_line_head *line)
{
    return (struct shc_shape){
        .dtype = (enum shc_dtype)line->dtype,
        .elem_bytes = line->elem_bytes,
        .dtype_tag = line->dtype_tag,
        .bytes = line->bytes,
    };
}

/* ---- match.c ---- */

/* P2P-42: the receive that was posted first among those that take such a header; or NULL. */
struct shc_message *shc_match_header(struct shc_p2p *p2p, int peer, int32_t tag);

/* The withdrawn receive takes that header, and enters a queue if bytes are still to come. Returns: has
 * the message the receive's type and size? */
bool shc_p2p_meet(struct shc_p2p *p2p, struct shc_message *m, int peer,
                  const struct shc_line_head *line);

/* P2P-43: keeps the header that no receive takes, with its bytes. `data`: those of the line, or all of
 * a remote rank's. False: no memory, so it must stay in its line. */
bool shc_unexpected_keep(struct shc_p2p *p2p, int peer, const struct shc_line_head *line,
                         const void *data);

/* Removes and returns the unexpected message that the receive takes: the oldest with its tag from
 * its peer, or from any. NULL: there is none. The caller frees it by free(). */
struct shc_unexpected *shc_unexpected_take(struct shc_p2p *p2p, const struct shc_message *m,
                                           int *from);

/* Adds the next bytes of the message that comes unasked, or drops them. False: they belong to no
 * such message. */
bool shc_unexpected_add(struct shc_p2p *p2p, int peer, const struct shc_line_head *more);

/* ---- send.c ---- */

/* P2P-53: sends and counts the message at once, if there is room for all of it and no other message
 * is before it. False: it must be submitted, or refused. */
bool shc_p2p_place(struct shc_p2p *p2p, struct shc_message *m);

/* The rank without which the message does not end; -1: any. */
SHC_INLINE int shc_message_rank(const struct shc_message *m)
{
    return m->kind == SHC_SEND ? m->peer : m->source;
}

/* What the board says of a thread that waits for the message. */
SHC_INLINE struct shc_board_awaited shc_message_awaited(const struct shc_message *m)
{
    return (struct shc_board_awaited){.kind = m->kind, .peer = shc_message_rank(m), .tag = m->tag};
}

/* Counts a message that has ended well. */
SHC_INLINE void shc_p2p_count(const struct shc_p2p *p2p, enum shc_op_kind kind, int peer,
                              int32_t tag, uint64_t bytes)
{
    shc_board_count(&p2p->env.seat->board, kind, bytes);
    if (kind == SHC_SEND)
        shc_usdt_sent(p2p->env.seat, peer, tag, bytes);
    else
        shc_usdt_received(p2p->env.seat, peer, tag, bytes);
}

/* BOARD-17: the board keeps messages of so many bytes, and all that have waited. */
#define SHC_KEPT_BYTES ((size_t)64 << 10)

/* The moment at which such a message begins; 0: it is not kept if it goes at once. */
SHC_INLINE uint64_t shc_p2p_begin_large(const struct shc_p2p *p2p, uint64_t bytes)
{
    return SHC_UNLIKELY(bytes >= SHC_KEPT_BYTES) ? shc_board_begin_message(&p2p->env.seat->board)
                                                 : 0;
}

/* Tells the board of a message that has ended. pre: its begun_ticks is not 0. */
SHC_COLD void shc_p2p_keep(const struct shc_p2p *p2p, const struct shc_message *m,
                           enum shc_status status);

/* Sends the CTS and NACK frames that are due to the peer. False: no line is free. A receive of
 * another type or size ends with its NACK. */
bool shc_p2p_answer(struct shc_p2p *p2p, int peer);

/* Fills the lines to the peer with all that there is room for. */
void shc_p2p_write_lines(struct shc_p2p *p2p, int peer);

/* P2P-32: a chunk of `in` has come in a long hand-off buffer. Copies it to its receive, stores the
 * next chunk for the peer into the same cache lines in one pass over them, and posts that chunk: a
 * cache line moves once between the CPUs for two chunks. False, with nothing done: the chunk is
 * elsewhere, there is nothing to send, no line is free, or a tensor is in pieces. */
bool shc_p2p_trade(struct shc_p2p *p2p, int peer, const struct shc_line_head *came,
                   struct shc_message *in);

/* ---- shared by these files ---- */

/* A message whose rest follows unasked. */
SHC_INLINE bool shc_line_is_unasked(const struct shc_line_head *line)
{
    return line->kind == SHC_FRAME_FIRST && !line->asks;
}

/* P2P-25: the rest of such a message comes where its first bytes came: in the same long hand-off
 * buffer, or in the pool. */
SHC_INLINE bool shc_line_continues(struct shc_place first, const struct shc_line_head *more)
{
    if (first.memory == SHC_IN_LONG_HAND_OFF)
        return more->place.memory == first.memory && more->place.index == first.index;
    return more->place.memory == SHC_IN_POOL;
}

/* The bytes that came with a line: `data`, after its header, or in the place that it names. */
SHC_INLINE const char *shc_p2p_piece(const struct shc_p2p *p2p, int peer,
                                     const struct shc_line_head *line, const uint8_t *data)
{
    return line->place.memory == SHC_IN_LINE || shc_hand_off_spares(line->place, line->piece)
               ? (const char *)data
               : shc_place_at(&p2p->pairs, peer, p2p->pairs.seat->rank, line->place);
}
