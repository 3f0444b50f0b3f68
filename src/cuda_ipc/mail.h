/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Messages: SEND and RECV of CUDA tensors (docs/internals/cuda/messages.md). A channel is all messages from
 * one rank to one rank, which may be the same. Each of its two ends is a lane, so messages of different
 * channels, of both directions, and the collectives can overtake one another.
 *
 * mail.c enqueues; mailwatch.c is the part of watch.c for ends of channels.
 */

#include "cuda_ipc/lane.h"
#include "cuda_ipc/relay.h"

#include <pthread.h>

struct shc_cuda_comm;

/* This rank's end of a channel; made when it is first used. */
struct shc_end {
    int peer;
    bool sends;
    struct shc_lane lane;
    const struct shc_lane_shm *other; /* the shared part of the peer's end */
    const struct shc_lone_shm *word; /* that this end waits for: what the peer has taken, or sent */

    /* Guarded by the mail's lock. */
    uint64_t piece;                     /* the newest that is enqueued; they count up without end */
    uint64_t next_number, next_piece;   /* the newest of a batch that is laid out */
    struct shc_relay_receives *relayed; /* of one that receives by the relay */

    struct shc_flight flights[SHC_RECORDS]; /* guarded by the group's state_lock */
};

struct shc_mail {
    pthread_mutex_t lock; /* held while a message is enqueued, never while a CPU waits */
    struct shc_end *to[SHC_MAX_WORLD]; /* guarded by it, as is the next; NULL: not used yet */
    struct shc_end *from[SHC_MAX_WORLD];
    struct shc_end *used[2 * SHC_MAX_WORLD]; /* guarded by state_lock; grows only */
    int count;
};

/* Of the gates after the group's own. */
SHC_INLINE size_t shc_mail_gates_bytes(int world)
{
    return 2 * (size_t)world * SHC_LINE_BYTES;
}

/* ---- mail.c ---- */

/* One message, or several as a batch. pre: each is SHC_SEND or SHC_RECV, and there is one; the group
 * is this process's. */
SHC_NODISCARD enum shc_status shc_mail_enqueue(struct shc_cuda_comm *comm, const struct shc_op *ops,
                                               int count, void *stream);

/* Has every piece been taken that this rank has sent? pre: the mail's lock. */
bool shc_mail_is_taken(const struct shc_cuda_comm *comm);

/* pre: this rank's streams are past all messages; the GPU is entered. */
void shc_mail_undo(struct shc_cuda_comm *comm);

/* ---- mailwatch.c ---- */

/* pre of these three: state_lock. How many messages there were; how many of them are over; all? */
uint64_t shc_mail_count(const struct shc_cuda_comm *comm);
uint64_t shc_mail_done(const struct shc_cuda_comm *comm);
bool shc_mail_idle(const struct shc_cuda_comm *comm);

/* The value of the word that this end waits for: the newest piece that the peer has taken, or sent. */
uint64_t shc_end_reached(const struct shc_end *end);

/* Fails the group, because the ends of this message differ. */
SHC_NODISCARD SHC_COLD enum shc_status
shc_mail_mismatch(struct shc_cuda_comm *comm, const struct shc_end *end, uint64_t number);

/* SHC_OK, or the group has failed and why: for a gate of this end, or of any. */
SHC_NODISCARD enum shc_status shc_end_look_at_verdict(struct shc_cuda_comm *comm,
                                                      const struct shc_end *end);
SHC_NODISCARD enum shc_status shc_mail_look_at_verdicts(struct shc_cuda_comm *comm);
SHC_NODISCARD enum shc_status shc_mail_look_at_leavers(struct shc_cuda_comm *comm);
/* Deadlines, and messages that are late. */
void shc_mail_look_at_time(struct shc_cuda_comm *comm, uint64_t now_ns, uint64_t lost_ns);
/* Tells the board which messages have ended, and of the oldest one that has not. */
void shc_mail_show(struct shc_cuda_comm *comm, uint64_t now_ns);
