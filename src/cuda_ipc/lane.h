/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A lane: operations of this rank that follow one another (docs/internals/cuda.md, "Lanes"). A group has one for
 * collectives, one for captured operations, and one for each end of a channel of messages. Each has a gate,
 * words and records of its own, so operations of different lanes can overtake one another.
 *
 * The CPU publishes the record of an operation, then enqueues these steps in its stream: follow (the lane's
 * operation before it, on whichever stream that was); for each round or piece tell, await and gate, in the order
 * that the protocol of the lane has; finish.
 */

#include "cuda_ipc/flight.h"
#include "cuda_ipc/hostarena.h"

struct shc_cuda_comm;

struct shc_lane {
    /* Constant once it is made. */
    struct shc_lane_shm *shm;  /* NULL: captured operations, which have no records */
    shc_a64 *verdict;          /* the first failure that this rank's gate found */
    shc_a64 *done;             /* the word that its stream writes last of an operation */
    shc_cu_address gate;       /* in the memory of this rank's GPU */
    struct shc_gate_args args; /* common to all gates; `records`: the beginning of the rings */
    const char *where;         /* for errors: "", or " in a capture" */
    /* Guarded by the lock that is held while an operation of the lane is enqueued. */
    struct shc_cu_event *tail;    /* after the newest operation ... */
    struct shc_cu_stream *stream; /* ... which is in this stream */
    bool any;                     /* operation yet */
    /* Guarded by the group's state_lock; written only while the other lock is held as well. */
    uint64_t sequence;          /* the newest operation */
    struct shc_flight *flights; /* a ring of SHC_RECORDS; NULL: captured operations */
    /* The watcher's: the newest operation that the board has the end of. */
    uint64_t shown;
};

/* Completes a lane. pre: the host arena is registered; lane->args has the words that its gates read and the ranks
 * that take part; for captured operations shm is NULL, and verdict and done are set. */
void shc_lane_init(const struct shc_cuda_comm *comm, struct shc_lane_shm *shm, shc_cu_address gate,
                   struct shc_lane *lane);

/* ---- the CPU's steps ---- */

/* Writes an operation's record. pre: no rank still reads the record SHC_RECORDS before it. */
void shc_lane_publish(const struct shc_lane *lane, uint64_t number,
                      const uint64_t call[SHC_RECORD_CALL_WORDS], double factor);

/* This operation is now the newest, and watched. */
void shc_lane_begin(struct shc_cuda_comm *comm, struct shc_lane *lane,
                    const struct shc_flight *flight);

/* The newest operation takes rounds up to this one; `relayed`: of the relay's; `sliced`: in two of them. */
void shc_lane_extend(struct shc_cuda_comm *comm, const struct shc_lane *lane, uint64_t last_round,
                     bool relayed, bool sliced);

/* The operation of this number, as it was begun. False: it is not known (any more). */
bool shc_lane_flight(struct shc_cuda_comm *comm, const struct shc_lane *lane, uint64_t number,
                     struct shc_flight *flight);

/* How late is the oldest operation that is in flight? Then its number, and a copy of it. `lost_ns` up to now do not
 * count. SHC_IN_TIME also where nothing is in flight. */
enum shc_lateness_state shc_lane_look_at_time(struct shc_cuda_comm *comm, struct shc_lane *lane,
                                              uint64_t now_ns, uint64_t lost_ns, uint64_t *number,
                                              struct shc_flight *oldest);

/* Have all ranks published their record of this collective? */
bool shc_lane_all_published(const struct shc_cuda_comm *comm, uint64_t sequence);

/* Tells the board of the operations that have ended since the look before. `peer`: of the messages of an end, -1:
 * they are collectives; `kind`: SHC_SEND or SHC_RECV, of messages. The watcher. */
void shc_lane_show_ended(struct shc_cuda_comm *comm, struct shc_lane *lane, int peer,
                         enum shc_op_kind kind);

/* ---- steps in a stream; pre of all: the lane's lock is held, the GPU entered ---- */

SHC_NODISCARD enum shc_status shc_lane_follow(const struct shc_cuda_comm *comm,
                                              const struct shc_lane *lane,
                                              struct shc_cu_stream *stream);

/* Writes a word that other ranks' streams wait for, or a word for CPUs. */
SHC_NODISCARD enum shc_status shc_lane_tell(const struct shc_cuda_comm *comm,
                                            struct shc_cu_stream *stream, const void *word,
                                            uint64_t value);

/* Waits for a word of this rank's. */
SHC_NODISCARD enum shc_status shc_lane_await(struct shc_cuda_comm *comm,
                                             struct shc_cu_stream *stream,
                                             const struct shc_lone_shm *word, uint64_t value);

/* Tells all other ranks, then waits for all of them, by the words of this row. */
SHC_NODISCARD enum shc_status shc_lane_meet(struct shc_cuda_comm *comm,
                                            struct shc_cu_stream *stream, int row, uint64_t told,
                                            uint64_t awaited);

/* `round`: the value that the words of the gate must have reached; `first`: it compares records. */
SHC_NODISCARD enum shc_status shc_lane_gate(const struct shc_cuda_comm *comm,
                                            const struct shc_lane *lane,
                                            struct shc_cu_stream *stream, uint64_t number,
                                            uint64_t round, bool first);

/* Writes `done` after all of an operation that was enqueued, also when that was cut short: the watcher poisons
 * until it reads this. */
SHC_NODISCARD enum shc_status shc_lane_finish(const struct shc_cuda_comm *comm,
                                              struct shc_lane *lane, struct shc_cu_stream *stream,
                                              uint64_t done);

/* ---- what others read ---- */

/* The newest operation of a lane, of this rank's or of another one's, that is over there; and the newest whose
 * record is there. */
SHC_INLINE uint64_t shc_lane_done(const struct shc_lane_shm *shm)
{
    /* acquire cuda/done <- release in the device: the operation is over there, and has read the records. */
    return shc_a64_load_acquire(&shm->done.word);
}

SHC_INLINE uint64_t shc_lane_published(const struct shc_lane_shm *shm)
{
    /* acquire cuda/published <- release in shc_lane_publish(): the record; of an all_to_all its counts, too. */
    return shc_a64_load_acquire(&shm->published.word);
}

/* SHC_VERDICT of the first failure that this rank's gate found, or 0. */
SHC_INLINE uint64_t shc_lane_verdict(const struct shc_lane *lane)
{
    /* acquire cuda/verdict <- release in the device: the gate is shut. */
    return shc_a64_load_acquire(lane->verdict);
}
