/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The relay: collectives through host memory, without a kernel (docs/CUDA.md, "The relay"). Contexts
 * that share a GPU take turns at kernels, 0.18 ms each; copies to and from host memory, and words in
 * it, need none. A rank's stream copies its bytes into the host arena, says so, and waits; a thread of
 * the group reduces or moves all ranks' bytes there, and lets the stream copy back.
 *
 * Nothing of a user's tensor changes when an operation fails: what the stream copies back then is what
 * the tensor held before. So the thread never needs the driver, and no wait needs to be poisoned.
 */

#include "cuda_ipc/hostarena.h"
#include "cuda_ipc/rounds.h"
#include "cuda_ipc/sys.h"

#include <pthread.h>

struct shc_cuda_comm;
struct shc_work;

enum shc_relay_state {
    SHC_RELAY_ENQUEUING = 0,
    SHC_RELAY_ENQUEUED, /* to the last copy, or at least to the wait in front of them */
    SHC_RELAY_BROKEN,   /* nothing will be copied back */
};

/* An operation that was handed to the thread. */
struct shc_relayed {
    uint64_t sequence;
    uint64_t round; /* its first; a sum in two has the next one as well */
    uint64_t call[SHC_RECORD_CALL_WORDS];
    enum shc_dtype dtype;
    enum shc_redop redop;
    uint32_t elem_bytes;
    bool two, in_place;
    uint64_t out_bytes;
    size_t fetches,
        move_count; /* of a sum in two the second round's moves; and behind them the first's */
    struct shc_move *moves;
    shc_a32 state; /* enum shc_relay_state: written by who enqueues */
};

struct shc_relay {
    /* Constant once it is made. */
    size_t limit; /* operations of at most so many bytes; 0: there is no relay */
    size_t cell_bytes;
    bool busy_waits; /* a thread of each rank has a CPU of its own */
    char reason[96]; /* why there is none, or "" */
    /* Guarded by order_lock. */
    uint64_t round;
    /* Written by who holds order_lock. */
    shc_a64 pushed; /* so many operations in all */
    struct shc_relayed ring[SHC_RECORDS];
    struct shc_move *moves;
    /* Guarded by state_lock. */
    pthread_cond_t stir;
    bool asleep;
    /* Written by the thread. */
    shc_a64 served; /* so many operations in all */
    shc_a32 stopping;
    struct shc_sys_thread thread;
    bool started;
};

/* What a group's relay takes, where the caller leaves it open: bytes. 0: these ranks are faster by
 * kernels. All ranks know the same. */
size_t shc_relay_limit(const struct shc_cuda_comm *comm);

/* What a rank keeps in the host arena for operations of that size. */
size_t shc_relay_cell_bytes(size_t limit, int world);

/* *works: does a CPU's store end a stream's wait, as what is in the stream is let go? pre: the host arena
 * is registered; this rank's `released` word is not in use yet. */
SHC_NODISCARD enum shc_status shc_relay_look(struct shc_cuda_comm *comm, bool *works);

/* Makes the thread. pre: limit and cell_bytes are set, and not 0; the host arena is there. */
SHC_NODISCARD enum shc_status shc_relay_start(struct shc_cuda_comm *comm);

/* pre: this rank's streams are past all operations, or nobody counts on them. */
void shc_relay_stop(struct shc_cuda_comm *comm);

/* Does this operation go by the relay? Then the rounds are the relay's: its cells are their halves. All
 * ranks that make the same call get the same answer. pre: `largest` is known. */
bool shc_relay_takes(const struct shc_cuda_comm *comm, struct shc_rounds *rounds);

/* Enqueues the operation that comm->demand holds, all of it. pre: order_lock is held, the GPU entered;
 * its record is published. */
SHC_NODISCARD enum shc_status shc_relay_enqueue(struct shc_work *work);

/* The relay's round at which a rank's stream, or its thread, has arrived last. */
uint64_t shc_relay_arrival(const struct shc_cuda_comm *comm, int rank);
