/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The communicator: a seat in the segment, the arena, and the engine that runs operations. The public
 * functions of shmcoll.h are here and in request.c.
 *
 * Access: shared memory and everything marked (runner) belong to the thread that holds the engine's runner;
 * the other fields state their own rule. close() takes the runner for good before it unmaps, so no thread
 * can be inside.
 */

#include "shm/coll/coll.h"
#include "shm/coll/tuning.h"
#include "shm/comm/engine.h"
#include "shm/comm/op.h"
#include "shm/comm/process.h"
#include "shm/comm/thread_budget.h"
#include "shm/p2p/p2p.h"
#include "shm/proto/peer_heaps.h"

/* For tests; all zero in a program. */
struct shc_knobs {
    struct shc_mapping_cache *cache; /* ranks are threads that share one mapping */
    uint64_t first_epoch;            /* counters start here instead of 0 */
    size_t arena_limit;              /* bytes; 0: the configuration's */
    bool no_arena;                   /* small slots only */
    bool lines_only;                 /* messages go through the pair lines only */
    int threads; /* reduction threads, or SHC_THREADS_AUTO; 0: the configuration's */
    bool no_cma;
    bool roomy;        /* features for a CPU per rank; the same on all ranks */
    uint32_t bias_pay; /* calls of one thread in a row before a bias; 0: the default */
};

struct shc_comm {
    struct shc_seat seat;
    struct shc_arena arena;      /* (runner) */
    struct shc_peer_heaps heaps; /* (runner) */
    uint64_t epoch;              /* (runner) the newest operation */
    char *scratch;               /* (runner) */
    struct shc_kept kept;        /* (runner) */
    const struct shc_call
        *said; /* (runner) of a user, of which all operations are parts; NULL: there is none */
    struct shc_copy_trial trials[SHC_OP_KIND_COUNT][SHC_COPY_TRIALS]; /* (runner) */
    bool cma; /* the kernel may copy blocks out of this rank's memory, or others' */
    struct shc_thread_budget budget;
    struct shc_engine engine;
    struct shc_p2p p2p; /* its own lock */
    struct shc_liveness *liveness;
    struct shc_process_mark mark;
    shc_a64 timeout_ns;          /* any thread */
    shc_a64 ran;                 /* stored to by the runner: operations of shc_run() */
    shc_a64 submitted;           /* any thread: operations of shc_submit() */
    pthread_mutex_t mapped_lock; /* guards `mapped` for those without the runner */
    bool mapped;
    bool traces;            /* SHMCOLL_LOG=trace: each call is logged */
    enum shc_status broken; /* (runner) this rank cannot go on, although the group has not failed */
    char broken_text[SHC_ERROR_TEXT_BYTES];
    char name[SHC_GROUP_NAME_BYTES];
    int32_t *global_ranks; /* or NULL: unknown */
    struct shc_tuning tuning;
    struct shc_comm *next; /* the process's list */
};

SHC_NODISCARD enum shc_status shc_comm_create_with(const struct shc_comm_config *config,
                                                   const struct shc_knobs *knobs,
                                                   struct shc_comm **comm);

/* Marks this rank LEAVING, after an operation that is just beginning if the runner is free within that
 * time. pre: the process is leaving, so that no further operation begins. */
void shc_comm_begin_to_leave(struct shc_comm *comm, uint64_t patience_ns);

/* Why this process may not use the group now. */
SHC_NODISCARD SHC_COLD enum shc_status shc_comm_fail_unusable(const struct shc_comm *comm);

/* The group's failure, as an operation of that kind reports it; SHC_OK if it has not failed. Any thread. */
SHC_NODISCARD enum shc_status shc_comm_check_failed(struct shc_comm *comm, enum shc_op_kind kind);

/* May it? Takes no lock. */
SHC_NODISCARD SHC_INLINE enum shc_status shc_comm_usable(const struct shc_comm *comm)
{
    /* acquire seat/closed <- acq_rel in close_comm(): no other data. */
    if (SHC_LIKELY(shc_process_is(&comm->mark) && !shc_a32_load_acquire(&comm->seat.closed) &&
                   !shc_process_leaving()))
        return SHC_OK;
    return shc_comm_fail_unusable(comm);
}

/* (bootstrap.c) Comes to share a segment with ranks of which it knows only a key-value store: all ranks fail
 * or none. docs/internals/protocol/rendezvous.md. post: comm->seat is taken, the others are there, the
 * members' life words are linked. */
SHC_NODISCARD enum shc_status shc_bootstrap(struct shc_comm *comm,
                                            const struct shc_comm_config *config,
                                            const struct shc_knobs *knobs);

/* The same for a rank that cannot even begin (no memory, no descriptor, ...): tells the others why, so that
 * they do not wait for it. Returns `status` with the text that is recorded now. */
SHC_NODISCARD enum shc_status shc_bootstrap_refuse(struct shc_comm *comm,
                                                   const struct shc_comm_config *config,
                                                   enum shc_status status);

/* (patience.c) CPUs that the group's ranks may use together; and how long its waits spin and yield before
 * they sleep. pre: the ranks have met. */
int shc_usable_cpus(const struct shc_seat *seat);
void shc_patience_set(struct shc_seat *seat);

/* Logs, at level info, what the group is, and which path each operation and size takes. */
void shc_comm_log_facts(const struct shc_comm *comm);

/* Runs one prepared operation: its turn in the epochs, its sticky failure. pre: runner is held. */
SHC_NODISCARD enum shc_status shc_comm_execute(struct shc_comm *comm, struct shc_task *task);
