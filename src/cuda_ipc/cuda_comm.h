/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A group of ranks with GPUs: what setup.c makes, enqueue.c and mail.c use, and watch.c looks at.
 */

#include "cuda_ipc/copies.h"
#include "cuda_ipc/cuda_error.h"
#include "cuda_ipc/cuda_ipc.h"
#include "cuda_ipc/demand.h"
#include "cuda_ipc/flight.h"
#include "cuda_ipc/kernel/kernels.h"
#include "cuda_ipc/lane.h"
#include "cuda_ipc/mail.h"
#include "cuda_ipc/probe.h"
#include "cuda_ipc/relay.h"
#include "cuda_ipc/share.h"
#include "cuda_ipc/timeline.h"
#include "shm/base/lateness.h"

#include <pthread.h>

#define SHC_CUDA_NAME_BYTES   64
#define SHC_CUDA_REASON_BYTES (2 * SHC_SHARE_REASON_BYTES + 64)
#define SHC_GATE_BYTES        256 /* the gate has its own piece of the GPU's memory */
#define SHC_GRAPH_GATE        128 /* where in it that of captured operations is */

/* An operation that was captured: the value of its first arrival, and its call. */
struct shc_captured {
    uint64_t tag;
    uint64_t call[SHC_RECORD_CALL_WORDS];
};

/* State of captured operations (capture.c). */
struct shc_captures {
    struct shc_lane lane;   /* `tail` and `stream`: of the newest operation of `capture` */
    shc_cu_address scratch; /* constant once it is made */
    uint64_t capture;       /* the newest that there was an operation in; guarded by order_lock */
    /* Guarded by state_lock; written only while order_lock is held as well. */
    struct shc_captured *list; /* number 1 to the lane's sequence */
    uint64_t room;
    /* The watcher's: how long nothing has moved; begun_ns is 0 while nothing is to move. */
    uint64_t passed;
    struct shc_lateness lateness;
};

struct shc_cuda_comm {
    /* Constant once it is made. */
    struct shc_comm *core;
    char name[SHC_CUDA_NAME_BYTES];
    int rank, world;
    size_t half_bytes;
    bool by_slabs; /* else by host memory */
    char reason[SHC_CUDA_REASON_BYTES];
    void (*say)(void *ctx, const char *line);
    void *say_ctx;
    uint32_t nvtx; /* the category of its ranges; 0: none */
    struct shc_driver driver;
    struct shc_gpu gpu;
    int gpu_count, gpu_of[SHC_MAX_WORLD]; /* by rank; GPUs are numbered by their lowest rank */
    int sharing;                          /* so many ranks, at most, are on one GPU */
    bool by_mps; /* all of them by an MPS server: their contexts take no turns */
    struct shc_kernels kernels;
    struct shc_prober prober; /* after the making: memory that it has left */
    struct shc_share share;
    struct shc_host host;
    struct shc_timeline timeline;
    shc_cu_address gates;   /* of collectives, of captured operations, of each end of a channel */
    shc_cu_address scratch; /* without slabs: a half of each rank, and one for captured rounds */

    shc_a64 timeout_ns; /* any thread */

    pthread_mutex_t order_lock; /* guards what follows; held while an operation is enqueued */
    uint64_t round, meetings;
    struct shc_lane lane; /* of collectives */
    struct shc_demand demand;
    struct shc_move moves[SHC_ROUND_MOVES];

    pthread_mutex_t state_lock; /* guards what follows; held for a few instructions */
    pthread_cond_t stir;        /* the watcher has something to look at */
    struct shc_flight flights[SHC_RECORDS];
    enum shc_status failed; /* set once, after `failure` */
    char failure[SHC_CUDA_ERROR_BYTES];
    bool closing, closed, stopping;
    bool stuck; /* the driver no longer does what ends waits */

    struct shc_sys_thread watcher;
    bool watched;
    struct shc_clock_watch clock; /* the watcher's */

    struct shc_captures captures;
    struct shc_mail mail;
    struct shc_relay relay;
};

/* As shc_cuda_comm_create, over this library in the place of the machine's driver. */
SHC_NODISCARD enum shc_status shc_cuda_comm_create_over(const char *library, struct shc_comm *comm,
                                                        const struct shc_cuda_config *config,
                                                        struct shc_cuda_comm **cuda);

/* Of what begins now and names none of its own. */
SHC_INLINE uint64_t shc_cuda_timeout_ns(const struct shc_cuda_comm *comm)
{
    /* relaxed: concerns the operations that start after its change. */
    return shc_a64_load_relaxed(&comm->timeout_ns);
}

/* ---- setup.c ---- */

/* Makes all but locks and watcher. pre: core, rank, world, name, say are set, the rest is zero.
 * Collective; on failure what was made is there for shc_setup_undo. */
SHC_NODISCARD enum shc_status shc_setup_make(struct shc_cuda_comm *comm, const char *library,
                                             const struct shc_cuda_config *config);

/* pre: this rank's streams are past all operations. */
void shc_setup_undo(struct shc_cuda_comm *comm);

/* ---- failure.c: how a group fails; calls nothing that looks for failures ---- */

/* Fails the group, unless it has failed before; returns the reason that stands, recorded. Makes no call of the
 * driver, which may keep this thread while another one waits there for this rank's streams: their waits are
 * ended by the CPU's stores, and by a stream's writes from the watcher. */
SHC_NODISCARD SHC_COLD enum shc_status shc_failure_set(struct shc_cuda_comm *comm,
                                                       enum shc_status status, const char *text);

/* Fails the group because a gate of this rank was shut for it. */
SHC_NODISCARD SHC_COLD enum shc_status shc_failure_set_aborted(struct shc_cuda_comm *comm);

/* Fails the group because these two ranks made different calls as their operation of that number. */
SHC_NODISCARD SHC_COLD enum shc_status shc_failure_set_mismatch(struct shc_cuda_comm *comm,
                                                                uint64_t sequence, int a, int b);

/* SHC_OK, or the reason, recorded, for which this rank knows the group to have failed. */
SHC_NODISCARD enum shc_status shc_failure_look(struct shc_cuda_comm *comm);

/* Has a rank failed the group? */
bool shc_failure_is_set(const struct shc_cuda_comm *comm);

/* Has a rank failed the group? Asked after everything that this thread has read before. */
bool shc_failure_was_set(const struct shc_cuda_comm *comm);

/* Says a line about the group. */
void shc_say(struct shc_cuda_comm *comm, const char *line);

/* A call that waits. */
struct shc_waiting {
    uint64_t waited_ns;
    const char *call, *whom;
    const char *more; /* at the end of the line, or NULL */
    /* For shc_comm_log_late(): */
    uint64_t number;
    uint32_t missing;
};

/* Says that it is late, or fails the group because its time is over. */
void shc_tell_late(struct shc_cuda_comm *comm, enum shc_lateness_state state,
                   const struct shc_waiting *waiting);

/* SHC_ERR_CLOSED: this rank has closed the group, or begun to. Any thread. */
SHC_NODISCARD enum shc_status shc_check_open(struct shc_cuda_comm *comm);

/* 1 + the last operation of a rank that has left, and all that the rank published; else 0. Also 0 while its
 * process is still ending: no wait ends because of that rank before. */
uint64_t shc_departure(struct shc_cuda_comm *comm, int rank);

/* ---- work.c: the rounds of an operation ---- */

/* One operation on its way into a stream, eager or captured. Copies are collected, because one
 * launch takes many. */
struct shc_work {
    enum shc_status (*meet)(
        struct shc_work *work); /* of a round: arrivals, and the gate after them */
    struct shc_cuda_comm *comm;
    struct shc_lane *lane;
    struct shc_cu_stream *stream;
    uint64_t sequence; /* captured: its number */
    uint64_t round;   /* the group's number of the current one; captured: the operation's, from 0 */
    bool first;       /* is that its first one? */
    uint64_t tag;     /* captured: the value of its first arrival; else 0 */
    uint64_t last;    /* captured: its last round, an odd one */
    size_t halves_at; /* where in a rank's halves the two that it uses begin */
    shc_cu_address scratch;
    struct shc_copies copies;
};

/* Makes the lane of collectives. pre: the host arena is registered. */
void shc_work_init(struct shc_cuda_comm *comm);

/* Sets comm->demand to the rounds of the call. pre: order_lock is held and the GPU entered, as
 * below. */
SHC_NODISCARD enum shc_status shc_work_demand(struct shc_cuda_comm *comm, const struct shc_op *op);

/* The `meet` of what is not captured. */
SHC_NODISCARD enum shc_status shc_work_meet(struct shc_work *work);

/* Enqueues round k of what is demanded. One after the last moves nothing, and meets. */
SHC_NODISCARD enum shc_status shc_work_round(struct shc_work *work, uint64_t k);

/* ---- watch.c ---- */

SHC_NODISCARD enum shc_status shc_watch_start(struct shc_cuda_comm *comm);
void shc_watch_stop(struct shc_cuda_comm *comm);

/* Looks at what this rank's gates have found, and at the abort word. SHC_OK, or the reason. Any
 * thread. */
SHC_NODISCARD enum shc_status shc_watch_verdicts(struct shc_cuda_comm *comm);

/* Looks at everything that may have failed the group. SHC_OK, or the reason. Any thread. */
SHC_NODISCARD enum shc_status shc_watch_look(struct shc_cuda_comm *comm);

/* Are this rank's streams past all operations? */
bool shc_watch_idle(struct shc_cuda_comm *comm);
