/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Point-to-point of one group on one rank: matching, and the movement of messages through pair
 * lines and windows. Apart from the collectives: it never takes the runner, and no collective
 * waits for it.
 *
 * A send that can go at once, and a synchronous receive of what is there, is moved at once. All else is
 * one function, shc_p2p_pass(), that moves whatever can move and never waits (receive.c, send.c), and
 * ends what cannot (judge.c). Who calls it, under the lock: every other submission, once; every thread
 * that waits for a message, until that is over; and, while messages are pending that nobody waits for,
 * the agent (agent.c).
 *
 * The life of a message:
 *   send   QUEUED -> its header is in a line: all bytes went with it: done
 *                    else ANNOUNCED, its head perhaps with it -> the receiver wants it -> STREAMING
 *                    or open: STREAMING at once, as the rest may follow unasked
 *                    -> all is placed: done
 *   recv   POSTED -> a header fits: its bytes were there: done
 *                    else GRANT_DUE -> FILLING -> all is here: done
 *                    or REFUSE_DUE: the header's type or size is another: both sides raise
 *                    (an open one is FILLING at once; if it is refused its sender raises, too, unless all has left)
 * A header matches the receive posted first among those from its sender, or from any, with its tag.
 * A header that matches nothing is a stray, kept in the order of arrival.
 */

#include "shm/coll/pace.h"
#include "shm/comm/engine.h"
#include "shm/comm/message.h"
#include "shm/os/biased_lock.h"
#include "shm/proto/pair.h"
#include "shm/proto/wait.h"

struct shc_comm;
struct shc_request;
struct shc_shape;

/* Requests in a row, linked by their `next`. */
struct shc_queue {
    struct shc_request *first;
    struct shc_request *last;
};

/* A header that no receive has taken yet. */
struct shc_stray {
    struct shc_stray *next;
    uint64_t arrival; /* among those of all peers */
    struct shc_line_head line;
    uint8_t data[SHC_LINE_DATA_BYTES]; /* what came in the line */
    /* Out of bulk windows, which are read in their order, with room for what follows; or NULL. */
    uint8_t *piece;
};

/* What a peer sends unasked and no receive has taken, while the rest of it is to come. One at a time. */
struct shc_open {
    bool comes;
    uint32_t number, elem_bytes;
    uint64_t bytes, moved;   /* it has, and are here */
    struct shc_stray *stray; /* has them; NULL: its receive is of another type, and it is dropped */
};

/* Bytes that a receive which is posted has of a message whose EAGER line is to come. That takes no other receive's
 * word for them, and no other message's. */
struct shc_ahead {
    uint64_t post;   /* the receive's */
    uint32_t number; /* the message's */
    uint32_t bytes;
};

struct shc_p2p_peer {
    struct shc_queue posted;   /* receives from it that have no message yet */
    struct shc_queue incoming; /* receives whose message is on its way */
    struct shc_queue sends;    /* to it; headers go out in this order */
    struct shc_stray *strays;
    struct shc_stray *last_stray;
    struct shc_open open;
    uint32_t messages; /* headers sent to it */
    uint32_t open_end; /* behind the number of the last open one among them */
    /* Receives that looked for an answer under the lock, and of those timed so many in a row found that a line
     * takes long to come. */
    uint32_t answers, distant;
};

/* Closing: who closes could not have the lock, and whoever has it next does the rest. */
enum shc_p2p_end { SHC_P2P_OPEN, SHC_P2P_CLOSING, SHC_P2P_CLOSED };

struct shc_p2p {
    struct shc_comm *comm;
    struct shc_biased_lock lock; /* guards what follows, and this rank's mailbox */
    struct shc_pairs pairs;
    struct shc_p2p_peer *peers; /* [world_size] */
    /* [world_size]: of what goes through windows to that rank, but for short messages. */
    struct shc_pace (*paces)[SHC_PACES];
    struct shc_queue posted_any;
    struct shc_kept_message sent, received; /* at once */
    uint64_t posts, arrivals;               /* counters that order receives, and strays */
    struct shc_ahead ahead; /* of the other one of two ranks: more have no ferries */
    int first_peer;         /* whose lines are read first in the next pass */
    int crowded;            /* so many receives at once do not look for their line under the lock */
    bool finished;          /* in this pass something ended */
    uint64_t judged_ns, asked_ns;
    uint32_t forgiven;
    /* The agent looks at these without the lock, too, or its naps would end a bias. */
    shc_a32 pending; /* requests that are not over */
    shc_a32 waiters; /* threads inside shc_p2p_wait(), submitting, or looking for a line at once */
    shc_a32 closed;  /* enum shc_p2p_end */
    shc_a64 waited_ns; /* the newest pass of a thread that waits; while one submits, that */

    /* The agent (agent.c). */
    struct shc_os_thread agent;
    bool agent_started;
    shc_a32 unattended;             /* the agent could not be made */
    struct shc_bell_shm agent_bell; /* it sleeps here while nothing is pending */
};

SHC_NODISCARD enum shc_status shc_p2p_init(struct shc_p2p *p2p, struct shc_comm *comm);

/* pre: closed. */
void shc_p2p_fini(struct shc_p2p *p2p);

SHC_INLINE void shc_p2p_lock(struct shc_p2p *p2p)
{
    shc_biased_lock_take(&p2p->lock, shc_thread_number());
}

/* As shc_lock_drop(). */
SHC_INLINE bool shc_p2p_unlock(struct shc_p2p *p2p)
{
    return shc_biased_lock_drop(&p2p->lock, shc_thread_number());
}

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

SHC_INLINE bool shc_p2p_is_closed(const struct shc_p2p *p2p)
{
    /* relaxed: as above. */
    return shc_a32_load_relaxed(&p2p->closed) != SHC_P2P_OPEN;
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

/* Takes the request; the sender's bytes may be gone when it returns, and a message that is here may
 * have been received. SHC_ERR_CLOSED, SHC_ERR_PEER_LEFT, the group's failure. */
SHC_NODISCARD enum shc_status shc_p2p_submit(struct shc_p2p *p2p, struct shc_request *request);

/* Takes the request back, unless the peer knows of it already: then it goes on, or, where the caller's memory is
 * about to go (`for_good`), the group fails. post: for good, the request is done. */
void shc_p2p_cancel(struct shc_p2p *p2p, struct shc_request *request, bool for_good);

/* ---- agent.c ---- */

/* Until the request is done. Only SHC_ERR_TIMEOUT (of this wait) and SHC_ERR_INTERRUPTED; then the
 * request stays in flight. */
SHC_NODISCARD enum shc_status shc_p2p_wait(struct shc_p2p *p2p, struct shc_request *request,
                                           uint64_t timeout_ns);

/* Makes the agent if there is none and it can be made. The lock is held. */
void shc_agent_start(struct shc_p2p *p2p);

/* Where it could not: a pass by the calling thread. True: something pends still. */
bool shc_p2p_attend_now(struct shc_p2p *p2p);

SHC_INLINE bool shc_p2p_attend(struct shc_p2p *p2p)
{
    /* relaxed: a hint; it is looked at again under the lock. */
    return SHC_UNLIKELY(shc_a32_load_relaxed(&p2p->unattended) != 0) && shc_p2p_attend_now(p2p);
}

/* Something is pending: the agent looks after it if nobody else does. */
void shc_agent_call(struct shc_p2p *p2p);

/* Ends what is pending with SHC_ERR_CLOSED and publishes nothing from then on. False when the lock
 * could not be had in time. */
bool shc_p2p_silence(struct shc_p2p *p2p, uint64_t patience_ns);

/* Waits for the threads that are inside. False when one is still there: the memory must stay. pre: silenced. */
bool shc_p2p_close(struct shc_p2p *p2p, uint64_t patience_ns);

/* ---- judge.c ---- */

/* What was known of the members before the lines were read for the last time. */
struct shc_sight {
    uint64_t now_ns;
    bool due;
    uint8_t states[SHC_MAX_WORLD]; /* enum shc_member_state */
};

/* Looks at the clock, and when it is time at the members. */
void shc_p2p_look(struct shc_p2p *p2p, struct shc_sight *sight);

/* Behind the pass: ends the requests whose peer is gone or whose time is over, says who is late. */
void shc_p2p_judge(struct shc_p2p *p2p, const struct shc_sight *sight);

/* "rank 0: recv (float32[4], tag 7) from rank 1 on group "default_pg"" */
void shc_p2p_text(const struct shc_request *request, char *text, size_t capacity);

/* Whom the request waits for, and for what. */
void shc_p2p_whom_text(struct shc_p2p *p2p, const struct shc_request *request, char *text,
                       size_t capacity);

/* ---- receive.c ---- */

/* Takes what the peer has put into its lines. */
void shc_p2p_read_lines(struct shc_p2p *p2p, int peer);

/* Receives at once what lies in the oldest line of the peer, if nothing is in front of the receive
 * and it is what it wants; waits for a line for some microseconds. *over false: it must be submitted. */
SHC_NODISCARD enum shc_status shc_p2p_receive_now(struct shc_p2p *p2p, const struct shc_op *op,
                                                  bool *over);

/* Gives the receive a stray that it takes, or lets it wait for a message. */
void shc_p2p_post_receive(struct shc_p2p *p2p, struct shc_request *request);

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

/* The same without a request. *over false: it must be submitted. */
SHC_NODISCARD enum shc_status shc_p2p_send_now(struct shc_p2p *p2p, const struct shc_op *op,
                                               bool *over);

/* The receiver's words to the peer on what it has announced. False: no line is free. A receive that is
 * of another type or size is over behind it. */
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

/* All queues of pending requests, in no order that matters. */
int shc_p2p_queue_count(const struct shc_p2p *p2p);
struct shc_queue *shc_p2p_queue(struct shc_p2p *p2p, int index);

void shc_queue_append(struct shc_queue *queue, struct shc_request *request);

/* Takes the request out of the queue it is in. */
void shc_p2p_withdraw(struct shc_p2p *p2p, struct shc_request *request);

/* The withdrawn request is over; finish_ok withdraws it itself. */
void shc_p2p_finish(struct shc_p2p *p2p, struct shc_request *request, enum shc_status status,
                    const char *error);

void shc_p2p_finish_ok(struct shc_p2p *p2p, struct shc_request *request);

/* The withdrawn request has met a message, or a receive, of this other type or size. */
void shc_p2p_finish_misfit(struct shc_p2p *p2p, struct shc_request *request,
                           const struct shc_shape *theirs);

/* Every pending request is over, each with its name in front of the reason. */
void shc_p2p_finish_all(struct shc_p2p *p2p, enum shc_status status, const char *reason);

/* Fails the group, and with it all that is pending here. */
void shc_p2p_break(struct shc_p2p *p2p, enum shc_status status, const char *reason);
