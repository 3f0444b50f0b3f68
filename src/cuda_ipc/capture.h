/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Operations that a CUDA graph captures (docs/internals/cuda/captured.md). Work that is enqueued then runs with
 * every replay, with the same values: so they have words, halves and a gate of their own, and the CPU
 * knows of a replay only what the stream tells it.
 */

#include "cuda_ipc/cuda_comm.h"

/* `busy` of a rank's part: which captured operation its stream is in. */
enum shc_busy_state {
    SHC_BUSY_WAITING = 1, /* it still needs arrivals */
    SHC_BUSY_WORKING,     /* its last gate has opened */
};
#define SHC_BUSY(number, state) ((number) << 2 | (uint64_t)(state))
#define SHC_BUSY_NUMBER(busy)   ((busy) >> 2)
#define SHC_BUSY_STATE(busy)    ((enum shc_busy_state)((busy)&3))

/* *capture: the number of the capture that the stream takes part in; 0: none. SHC_ERR_INVALID: one
 * that is already broken. pre: for a default stream, which is that of a context: the GPU is entered. */
SHC_NODISCARD enum shc_status shc_capture_of(const struct shc_driver *driver,
                                             struct shc_cu_stream *stream, uint64_t *capture);

/* Makes the lane of captured operations. pre: the host arena is registered. */
void shc_capture_init(struct shc_cuda_comm *comm);

/* Puts what comm->demand says into the stream's capture. Fails without failing the group. pre:
 * order_lock is held; the GPU is entered. */
SHC_NODISCARD enum shc_status shc_capture_enqueue(struct shc_cuda_comm *comm,
                                                  const struct shc_op *op,
                                                  struct shc_cu_stream *stream, uint64_t capture);

/* From here on a capture of any thread's forbids the calling thread nothing, or all it did before:
 * what to hand over to go back. */
int shc_capture_exchange(const struct shc_driver *driver, int mode);

/* ---- for the watcher ---- */

/* Is a replay under way in this rank? */
bool shc_capture_busy(const struct shc_cuda_comm *comm);

/* Is there something to look at? pre: state_lock is held. */
bool shc_capture_stirs(const struct shc_cuda_comm *comm);

/* SHC_OK, or the reason for which captured operations have failed the group. Any thread. */
SHC_NODISCARD enum shc_status shc_capture_look(struct shc_cuda_comm *comm);

/* Says which ranks a replay waits for, or fails the group when it has waited too long. `lost_ns` up to now do not count. */
void shc_capture_look_at_time(struct shc_cuda_comm *comm, uint64_t now_ns, uint64_t lost_ns);

/* Leaves words and gate so that a later replay ends and stores nothing. pre: this rank has left, and
 * the watcher is no more. */
void shc_capture_seal(struct shc_cuda_comm *comm);
