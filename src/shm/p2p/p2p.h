/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Point-to-point messages of one group on one rank: matching (match.c), and the movement of messages
 * through lines and staging memory. The rules are in docs/internals/protocol/messages.md. Messages are
 * separate from collectives: they never take the runner, and no collective waits for them.
 *
 * A send that can go at once, and a synchronous receive of a whole message that is there, are carried
 * out at once (at_once.c; P2P-53, P2P-54). The rest is done by one function, shc_p2p_pass(). A pass
 * (P2P-45) moves all that can move (receive.c, send.c), ends messages that cannot go on (deadline.c),
 * and never waits. P2P-46 says which threads make passes.
 *
 * The states of a message:
 *
 *   send   QUEUED -> its header goes out in a line. With all the bytes (EAGER): done
 *                    else (FIRST), perhaps with a prefix: ANNOUNCED -> CTS comes: STREAMING
 *                    or, where the rest may follow unasked: STREAMING at once
 *                    -> all bytes have left in MORE frames: done
 *   recv   POSTED -> a header matches. All the bytes are there: done
 *                    else GRANT_DUE (CTS is to be sent) -> FILLING -> all bytes are here: done
 *                    or, if the header has another type or size, REFUSE_DUE: both sides raise
 *                    (of a message whose rest follows unasked it is FILLING at once; if that is
 *                    refused, its sender raises, too, unless all bytes have left)
 */

#include "shm/coll/select.h"
#include "shm/exec/copymode.h"
#include "shm/os/biased_lock.h"
#include "shm/p2p/message.h"
#include "shm/p2p/remote.h"
#include "shm/proto/pair.h"
#include "shm/proto/wait.h"

/* What messages need of the group that they belong to, and what they tell it. */
struct shc_p2p_env {
    struct shc_seat *seat;
    const struct shc_tuning *tuning;
    const shc_a64 *timeout_ns; /* for messages without one of their own; any thread may change it */
    /* Called when a submitted message has ended: under the lock, once per message. The message's
     * memory may be gone afterwards. */
    void (*done)(struct shc_message *message, enum shc_status status, const char *error);
    /* Collectives that are queued, and that no thread runs: a hint that there are some, the exact
     * answer, and the function by which a thread that waits for a message runs them. */
    const shc_a32 *queue_unattended;
    bool (*is_queue_unattended)(void *queue);
    enum shc_status (*run_queue)(void *queue);
    void *queue;
    struct shc_remote remote; /* its count 0: there are no remote ranks */
};

/* A list of messages, linked by their `next`. */
struct shc_queue {
    struct shc_message *first;
    struct shc_message *last;
};

/* P2P-43: an unexpected message: a header that no receive has taken yet. */
struct shc_unexpected {
    struct shc_unexpected *next;
    uint64_t arrival;          /* its place in the order of those of all peers */
    struct shc_line_head line; /* piece: the bytes that are here by now */
    bool aside;                /* P2P-19: it came in the pool */
    uint8_t *data; /* after this struct: its bytes, unless a buffer of the peer has them */
};

/* P2P-25: a message of a peer whose rest follows unasked, and that no receive fills itself with.
 * There is at most one per peer. */
struct shc_coming {
    bool comes;
    struct shc_line_head line;   /* its header; piece: the bytes that are here by now */
    struct shc_unexpected *kept; /* NULL: dropped, as the receive has another type or size */
};

struct shc_p2p_peer {
    /* P2P-64: a pass walks `due`, `streams` and `sends` only. */
    struct shc_queue posted;    /* receives from the peer that have no message yet */
    struct shc_queue due;       /* receives whose CTS or NACK is to be sent */
    struct shc_queue incoming;  /* receives whose message is on its way: FILLING */
    struct shc_queue streams;   /* sends that are STREAMING */
    struct shc_queue announced; /* sends that wait for CTS */
    struct shc_queue sends;     /* QUEUED ones; headers go out in this order */
    struct shc_unexpected *unexpected;
    struct shc_unexpected *last_unexpected;
    struct shc_coming coming;
    uint32_t messages;    /* headers sent to the peer */
    uint32_t unasked_end; /* one more than the number of the last message that went unasked */
    /* Receives that looked for an answer under the lock; and how many of the timed ones, in a row,
     * found that a line takes long to come. */
    uint32_t answers, distant;
};

/* REM-4: eager messages to and from a remote rank; counters wrap. */
struct shc_remote_peer {
    uint32_t sent, credited; /* to it: in all, and those that it says it has taken */
    uint32_t taken, told;    /* from it: taken by receives, and as it was told last */
};

/* P2P-62. CLOSING: the thread that closes could not have the lock, so the next thread with the lock
 * closes. */
enum shc_p2p_end { SHC_P2P_OPEN, SHC_P2P_CLOSING, SHC_P2P_CLOSED };

struct shc_p2p {
    struct shc_p2p_env env;
    struct shc_biased_lock lock; /* guards what follows, and this rank's mailbox */
    struct shc_pairs pairs;
    struct shc_p2p_peer *peers;      /* [world_size, and remote ranks] */
    struct shc_remote_peer *remotes; /* [remote ranks]; NULL: there are none */
    /* [world_size]: for messages through eager or pool buffers to that rank, except short ones. */
    struct shc_copy_trial (*trials)[SHC_COPY_TRIALS];
    struct shc_queue posted_any;
    struct shc_kept_message sent, received; /* for messages that go at once */
    uint64_t posts, arrivals; /* counters that order receives, and unexpected messages */
    int first_peer;           /* the peer whose lines are read first in the next pass */
    int crowded;              /* that many receives do not look for a line under the lock */
    bool finished;            /* a message has ended in this pass */
    bool shown;               /* the board shows that some are pending */
    struct shc_clock_watch watch;
    uint64_t asked_ns;
    bool look_now; /* the next pass looks at members and deadlines whenever the last look was */
    int look_at; /* and that rank's liveness thread, if it looks at those; -1: none in particular */
    /* P2P-52: the progress thread looks at these without the lock, so that its naps end no bias. */
    shc_a32 pending; /* messages that are not over */
    shc_a32 waiters; /* threads inside shc_p2p_wait(), submitting, or looking for a line at once */
    shc_a32 closed;  /* enum shc_p2p_end */
    shc_a64 waited_ns; /* the last pass of a waiting thread; while one submits, that time */
    shc_a32 parked;    /* waiters that sleep until something happens (WAIT-17) */

    /* The progress thread (progress.c). */
    struct shc_os_thread progress_thread;
    bool progress_thread_started;
    bool progress_thread_parked;
    shc_a32 unattended; /* the progress thread could not be made */
    /* It sleeps on this bell while nothing is pending, or a waiter is parked. */
    struct shc_bell_shm progress_bell;
};

SHC_NODISCARD enum shc_status shc_p2p_init(struct shc_p2p *p2p, const struct shc_p2p_env *env);

/* pre: closed. */
void shc_p2p_fini(struct shc_p2p *p2p);

SHC_INLINE void shc_p2p_lock(struct shc_p2p *p2p)
{
    shc_biased_lock_take(&p2p->lock, shc_thread_number());
}

/* Returns what shc_lock_drop() would return. */
SHC_INLINE bool shc_p2p_unlock(struct shc_p2p *p2p)
{
    return shc_biased_lock_drop(&p2p->lock, shc_thread_number());
}

SHC_INLINE bool shc_p2p_is_closed(const struct shc_p2p *p2p)
{
    /* relaxed: the lock has the edges; without it a hint. */
    return shc_a32_load_relaxed(&p2p->closed) != SHC_P2P_OPEN;
}

/* Takes the message, and may have moved all of it when it returns. *over: all of it has moved, and
 * `done` is not called. On SHC_ERR_CLOSED, SHC_ERR_PEER_LEFT or the group's failure the message is
 * not taken. */
SHC_NODISCARD enum shc_status shc_p2p_submit(struct shc_p2p *p2p, struct shc_message *m,
                                             bool *over);

/* Takes the message back, unless the peer already knows of it. In that case it goes on; but if the
 * caller's memory is about to go (`for_good`), the group fails. post: with `for_good`, the message
 * is done. */
void shc_p2p_cancel(struct shc_p2p *p2p, struct shc_message *m, bool for_good);

/* Waits until the message is done. Fails only with SHC_ERR_TIMEOUT (of this wait) and
 * SHC_ERR_INTERRUPTED; the message then stays in flight. */
SHC_NODISCARD enum shc_status shc_p2p_wait(struct shc_p2p *p2p, struct shc_message *m,
                                           uint64_t timeout_ns);

/* P2P-47: makes a pass in the calling thread, if the progress thread could not be made. True: that is
 * so, and something is still pending. */
bool shc_p2p_attend(struct shc_p2p *p2p);

/* P2P-61: ends what is pending with SHC_ERR_CLOSED, and publishes nothing from then on. False: the
 * lock could not be had in time. */
bool shc_p2p_silence(struct shc_p2p *p2p, uint64_t patience_ns);

/* Waits for the threads that are inside. False: one is still there, so the memory must stay. pre:
 * silenced. */
bool shc_p2p_close(struct shc_p2p *p2p, uint64_t patience_ns);

/* P2P-53: sends the operation's message at once, if nothing of its pair is before it and there is
 * room for all of it. *over false: the message must be submitted. */
SHC_NODISCARD enum shc_status shc_p2p_send_now(struct shc_p2p *p2p, const struct shc_op *op,
                                               bool *over);

/* P2P-54, P2P-55: receives the message in the peer's oldest line at once, if no other receive or
 * message comes first and it is the one wanted. Waits some microseconds for a line. *over false:
 * the receive must be submitted. */
SHC_NODISCARD enum shc_status shc_p2p_receive_now(struct shc_p2p *p2p, const struct shc_op *op,
                                                  bool *over);

/* "rank 0: recv (float32[4], tag 7) from rank 1 on group "default_pg"" */
void shc_p2p_text(const struct shc_p2p *p2p, const struct shc_message *m, char *text,
                  size_t capacity);

/* What the message waits for, and which rank. */
void shc_p2p_whom_text(struct shc_p2p *p2p, const struct shc_message *m, char *text,
                       size_t capacity);
