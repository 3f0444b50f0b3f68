/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Point-to-point of one group on one rank: matching, and the movement of messages through pair
 * lines and windows. Apart from the collectives: it never takes the runner, and no collective
 * waits for it.
 *
 * A send that can go at once, and a synchronous receive of what is there, is moved at once. All else is
 * one function, shc_p2p_pass(), that moves whatever can move and never waits (receive.c, send.c), and
 * ends what cannot (deadline.c). Who calls it, under the lock: every other submission, once; every thread
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

#include "shm/coll/select.h"
#include "shm/exec/copymode.h"
#include "shm/os/biased_lock.h"
#include "shm/p2p/message.h"
#include "shm/proto/pair.h"
#include "shm/proto/wait.h"

/* What point-to-point needs of the group that it belongs to, and tells it. */
struct shc_p2p_env {
    struct shc_seat *seat;
    const struct shc_tuning *tuning;
    const shc_a64
        *timeout_ns; /* of messages that have none of their own; any thread may change it */
    /* A submitted message has ended. Called under the lock, once for each; then its memory may be gone. */
    void (*done)(struct shc_message *message, enum shc_status status, const char *error);
    /* Collectives that are queued, and no thread runs: a hint, an answer, and what a thread that waits for a
     * message does about it. */
    const shc_a32 *queue_unattended;
    bool (*is_queue_unattended)(void *queue);
    enum shc_status (*run_queue)(void *queue);
    void *queue;
};

/* Messages in a row, linked by their `next`. */
struct shc_queue {
    struct shc_message *first;
    struct shc_message *last;
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
    struct shc_p2p_env env;
    struct shc_biased_lock lock; /* guards what follows, and this rank's mailbox */
    struct shc_pairs pairs;
    struct shc_p2p_peer *peers; /* [world_size] */
    /* [world_size]: of what goes through windows to that rank, but for short messages. */
    struct shc_copy_trial (*trials)[SHC_COPY_TRIALS];
    struct shc_queue posted_any;
    struct shc_kept_message sent, received; /* at once */
    uint64_t posts, arrivals;               /* counters that order receives, and strays */
    struct shc_ahead ahead; /* of the other one of two ranks: more have no ferries */
    int first_peer;         /* whose lines are read first in the next pass */
    int crowded;            /* so many receives at once do not look for their line under the lock */
    bool finished;          /* in this pass something ended */
    struct shc_clock_watch watch;
    uint64_t asked_ns;
    /* The agent looks at these without the lock, too, or its naps would end a bias. */
    shc_a32 pending; /* messages that are not over */
    shc_a32 waiters; /* threads inside shc_p2p_wait(), submitting, or looking for a line at once */
    shc_a32 closed;  /* enum shc_p2p_end */
    shc_a64 waited_ns; /* the newest pass of a thread that waits; while one submits, that */

    /* The agent (agent.c). */
    struct shc_os_thread agent;
    bool agent_started;
    shc_a32 unattended;             /* the agent could not be made */
    struct shc_bell_shm agent_bell; /* it sleeps here while nothing is pending */
};

SHC_NODISCARD enum shc_status shc_p2p_init(struct shc_p2p *p2p, const struct shc_p2p_env *env);

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

SHC_INLINE bool shc_p2p_is_closed(const struct shc_p2p *p2p)
{
    /* relaxed: the lock has the edges; without it a hint. */
    return shc_a32_load_relaxed(&p2p->closed) != SHC_P2P_OPEN;
}

/* Takes the message, and may have moved all of it when it returns. *over: it has, and `done` is not called.
 * SHC_ERR_CLOSED, SHC_ERR_PEER_LEFT, the group's failure: the message is not taken. */
SHC_NODISCARD enum shc_status shc_p2p_submit(struct shc_p2p *p2p, struct shc_message *m,
                                             bool *over);

/* Takes the message back, unless the peer knows of it already: then it goes on, or, where the caller's memory is
 * about to go (`for_good`), the group fails. post: for good, the message is done. */
void shc_p2p_cancel(struct shc_p2p *p2p, struct shc_message *m, bool for_good);

/* Until the message is done. Only SHC_ERR_TIMEOUT (of this wait) and SHC_ERR_INTERRUPTED; then the
 * message stays in flight. */
SHC_NODISCARD enum shc_status shc_p2p_wait(struct shc_p2p *p2p, struct shc_message *m,
                                           uint64_t timeout_ns);

/* Where the agent could not be made: a pass by the calling thread. True: something pends still. */
bool shc_p2p_attend_now(struct shc_p2p *p2p);

SHC_INLINE bool shc_p2p_attend(struct shc_p2p *p2p)
{
    /* relaxed: a hint; it is looked at again under the lock. */
    return SHC_UNLIKELY(shc_a32_load_relaxed(&p2p->unattended) != 0) && shc_p2p_attend_now(p2p);
}

/* Ends what is pending with SHC_ERR_CLOSED and publishes nothing from then on. False when the lock
 * could not be had in time. */
bool shc_p2p_silence(struct shc_p2p *p2p, uint64_t patience_ns);

/* Waits for the threads that are inside. False when one is still there: the memory must stay. pre: silenced. */
bool shc_p2p_close(struct shc_p2p *p2p, uint64_t patience_ns);

/* Sends the operation's message at once, if there is room for all of it and nothing is before it. *over false: it must
 * be submitted. */
SHC_NODISCARD enum shc_status shc_p2p_send_now(struct shc_p2p *p2p, const struct shc_op *op,
                                               bool *over);

/* Receives at once what lies in the oldest line of the peer, if nothing is in front of the receive
 * and it is what it wants; waits for a line for some microseconds. *over false: it must be submitted. */
SHC_NODISCARD enum shc_status shc_p2p_receive_now(struct shc_p2p *p2p, const struct shc_op *op,
                                                  bool *over);

/* "rank 0: recv (float32[4], tag 7) from rank 1 on group "default_pg"" */
void shc_p2p_text(const struct shc_p2p *p2p, const struct shc_message *m, char *text,
                  size_t capacity);

/* Whom the message waits for, and for what. */
void shc_p2p_whom_text(struct shc_p2p *p2p, const struct shc_message *m, char *text,
                       size_t capacity);
