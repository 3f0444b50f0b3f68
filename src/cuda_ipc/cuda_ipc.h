/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The public header of libshmcoll_cuda, for C11 and C++17 callers. The library loads on every
 * machine; whether there is a GPU is asked, not assumed. The rules of shmcoll.h hold.
 */

#include "shm/shmcoll.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/*
 * Lines of `key=value`: the driver's version and each GPU this process sees, with its UUID and what
 * memory it can share; `usable=no` and the reason where CUDA cannot be used: that is no failure.
 * Makes no context on a GPU. SHC_ERR_INVALID when the text does not fit. Any thread; may take a
 * second where a driver has to start.
 */
enum shc_status shc_cuda_info(char *text, size_t capacity);

/* ---- groups of ranks with GPUs ---- */

/* Where ranks read one another's data. */
enum shc_cuda_route {
    SHC_CUDA_ROUTE_AUTO = 0, /* slabs where all ranks can map all others', else host memory */
    SHC_CUDA_ROUTE_SLABS,    /* or no group */
    SHC_CUDA_ROUTE_HOST,
};

#define SHC_CUDA_RELAY_OFF UINT64_MAX

struct shc_cuda_config {
    int device;       /* the ordinal of this rank's GPU in this process; ranks may share one */
    const char *name; /* shows in every message about the group; may be NULL */
    /* Of making the group, and of every operation from the moment it is enqueued, also while its
     * stream has other work; of a replay, of each round. 0: 30 minutes. */
    uint64_t timeout_ns;
    /* How much of a message one round takes. 0: 4 MiB, and where ranks share a GPU up to 32 MiB, as
     * far as 1/100 of what is free there suffices. A rank keeps six times as much on its GPU, and
     * without slabs 2 * world_size times more. Whole lines of 128 bytes, at least one per rank. This and
     * the route must be the same on all ranks. */
    uint64_t half_bytes;
    enum shc_cuda_route route;
    /* Gets each line the group says (an operation that is late, and the ranks that it waits for). Any thread;
     * must not call this library. NULL: they go to the log of libshmcoll, and one rank says for all that an operation
     * is late. */
    void (*say)(void *ctx, const char *line);
    void *say_ctx;
    /* Collectives of at most so many bytes (of those with a block for each rank: the largest block, times
     * the ranks), and messages of at most 64 KiB of them, go through host memory and the CPU instead of
     * kernels (docs/internals/cuda/relay.md). 0: where ranks share a GPU, up to a size that was measured;
     * SHC_CUDA_RELAY_OFF: none. Must be the same on all ranks. A rank keeps five times as much in host
     * memory, and up to 4 MiB for messages. */
    uint64_t relay_bytes;
};

struct shc_cuda_comm;

/*
 * Makes a group over a CPU group of the same ranks, which stays the caller's, usable, and open until
 * this one is freed. Collective: fails on all ranks or on none, with the first bad rank's reason.
 * Nothing else may run on the CPU group meanwhile.
 */
enum shc_status shc_cuda_comm_create(struct shc_comm *comm, const struct shc_cuda_config *config,
                                     struct shc_cuda_comm **cuda);

/*
 * Enqueues the operation on a stream (a CUstream) of the GPU and returns. Operations of a group run
 * in the order of these calls, also on different streams. The tensors are contiguous memory of the
 * group's GPU, valid until the stream is past the operation; the descriptor is copied. Which fields
 * an operation uses is said at shc_op; sparse tensors are not offered.
 * SEND and RECV have an order for each pair of ranks and each direction: there the n-th SEND goes to
 * the n-th RECV, and number of elements, dtype and tag must be the same, else the group fails. They
 * pass the collectives and one another where their streams let them; a SEND that its receiver has not
 * called for holds its stream, except for the little that finds room. RECV names its sender.
 * The CPU waits only when it is 64 operations ahead of the slowest GPU (64 messages, of its peer),
 * and in all_to_all until all ranks have come to the call.
 * While the stream is captured the operation becomes part of the graph, and runs with every replay;
 * all ranks must capture the same ones and replay the same graphs, in the same order, and one after
 * another on each rank (docs/internals/cuda/captured.md). When that fails the graph is of no use, the group
 * is as it was. SEND, RECV, SHC_PREMUL_SUM, and an all_to_all of different counts, cannot be
 * captured.
 * A stream cannot fail. When the group fails, its operations end and write nothing new; until a stream is
 * past them, they may write to an output what it held before. Ask shc_cuda_comm_error after
 * synchronizing.
 */
enum shc_status shc_cuda_comm_enqueue(struct shc_cuda_comm *cuda, const struct shc_op *op,
                                      void *stream);

/*
 * Enqueues messages (SEND and RECV alone) on one stream, so that they do not wait for one another's
 * turn: piece by piece, in each round first one of every channel that this rank sends through, then
 * one of every channel that it receives from. shc_cuda_comm_enqueue says what each of them is. All ranks may send
 * to all and receive from all in one batch each, whatever the order; several messages of a channel
 * keep theirs. A message of a batch goes to one of a batch, or to a single call on a stream of its own;
 * batches that meet must meet whole, and in the same order on all ranks (docs/internals/cuda/messages.md).
 * Errors in a descriptor, or of the stream, are found before anything is enqueued. The CPU waits
 * as in shc_cuda_comm_enqueue; of more than 64 messages of a channel, until the first ones are over.
 */
enum shc_status shc_cuda_comm_enqueue_batch(struct shc_cuda_comm *cuda, const struct shc_op *ops,
                                            int count, void *stream);

/* *capturing: does the stream take part in a capture? `cuda` may be NULL: false where there is no
 * driver. SHC_ERR_INVALID: in one that is already broken. Any thread. */
enum shc_status shc_cuda_capturing(struct shc_cuda_comm *cuda, void *stream, bool *capturing);

/* SHC_OK: all operations that this rank's streams are past have given their results. Else why the
 * group has failed. Any thread. */
enum shc_status shc_cuda_comm_error(struct shc_cuda_comm *cuda);

/* Fails the group, and the CPU group, for all ranks. Any thread. */
void shc_cuda_comm_abort(struct shc_cuda_comm *cuda, const char *reason);

/* The time-out of the operations that are enqueued from now on, and of replays' rounds; of this rank.
 * 0: 30 minutes. Any thread. */
void shc_cuda_comm_set_timeout(struct shc_cuda_comm *cuda, uint64_t timeout_ns);

/* Lines of `key=value`: route, why it is that one, how many GPUs the ranks are on and which ranks share one
 * ("0-1; 2-3"), sizes, counters. */
enum shc_status shc_cuda_comm_info(struct shc_cuda_comm *cuda, char *text, size_t capacity);

/* *pending: does a stream of this rank's still work on what was enqueued, or on a replay? A close
 * while it does not loses nothing; each operation's deadline makes sure that this comes. SHC_OK:
 * all that the streams are past has given its results. Else why the group has failed, or
 * SHC_ERR_CLOSED. Does not wait. Any thread. */
enum shc_status shc_cuda_comm_pending(struct shc_cuda_comm *cuda, bool *pending);

/*
 * Leaves the group. Gives what this rank's streams still have to do two seconds; if that is not
 * enough the group fails (shc_cuda_comm_pending tells whether it is). Needs no peer. A second call
 * does nothing.
 */
void shc_cuda_comm_close(struct shc_cuda_comm *cuda);

/* Closes if that was not done, and frees. Memory that a stream may still touch stays. */
void shc_cuda_comm_free(struct shc_cuda_comm *cuda);

/* The calling thread's last failure in this library: one paragraph, no newline at its end. */
const char *shc_cuda_error_text(void);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
