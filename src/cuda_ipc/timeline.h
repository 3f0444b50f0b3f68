/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Words that streams of different processes wait on. One rank writes a word, one waits for it; it
 * counts up, or the rank that waited sets it back (captured rounds). The rules that keep every stream
 * releasable:
 *
 *   - A rank waits only on words in its own memory, or in host memory that it has registered. So
 *     it can always write them itself, even if all others are dead.
 *   - Values stay at or below SHC_TIMELINE_LAST. SHC_TIMELINE_POISON is above all of them in the
 *     cyclic order of the GPU's comparison: it ends every wait.
 *   - A wait is enqueued while the timeline is not poisoned, or not at all.
 *   - A word that a live rank overwrites is not poisoned any more. So poison is written again and
 *     again, until every stream that may hold a wait is idle.
 *
 * Each release is a stream write, or a CPU store into registered host memory; poison is both,
 * because it is not known which of them ends a pending wait on a GPU.
 *
 * Any thread, several at once; init and fini: one, alone.
 */

#include "cuda_ipc/gpu.h"
#include "shm/base/atomic.h"

#define SHC_TIMELINE_LAST   ((uint64_t)1 << 62)
#define SHC_TIMELINE_POISON ((uint64_t)INT64_MAX)

struct shc_timeline {
    const struct shc_gpu *gpu;
    shc_cu_address words; /* as the GPU sees them */
    shc_a64 *host;        /* as the CPU sees them; NULL: in the GPU's memory */
    uint32_t count;
    uint32_t stride;              /* in words */
    struct shc_cu_stream *rescue; /* never waits: poison goes through it */
    shc_a32 state;                /* bit 31: poisoned; below: threads that are enqueuing a wait */
};

/* `count` words, each `stride` words after the one before. pre: they are this rank's, zero or
 * already counting, and outlive the timeline. */
SHC_NODISCARD enum shc_status shc_timeline_init(const struct shc_gpu *gpu, shc_cu_address words,
                                                shc_a64 *host, uint32_t count, uint32_t stride,
                                                struct shc_timeline *timeline);

/* False: poison is still on its way after a second, and what it is written to must stay. pre: drained,
 * or no wait was ever enqueued that is not over. */
bool shc_timeline_fini(struct shc_timeline *timeline);

/* Work enqueued after it starts when the word has reached the value. SHC_ERR_ABORTED: poisoned;
 * nothing was enqueued. pre: the GPU is entered. */
SHC_NODISCARD enum shc_status shc_timeline_wait(struct shc_timeline *timeline,
                                                struct shc_cu_stream *stream, uint32_t word,
                                                uint64_t value);

/* The word at this address, another rank's, becomes this value when the work before is done. pre: the
 * GPU is entered. */
SHC_NODISCARD enum shc_status shc_timeline_signal(const struct shc_gpu *gpu,
                                                  struct shc_cu_stream *stream, shc_cu_address word,
                                                  uint64_t value);

/* No further wait is enqueued, and those that are end. After a wait that ended so, streams work on
 * what is there: the group must be known as failed before. Does not wait. */
SHC_NODISCARD enum shc_status shc_timeline_poison(struct shc_timeline *timeline);

/* The same without a driver call: a thread that may block in one poisons again. */
void shc_timeline_poison_by_cpu(struct shc_timeline *timeline);

/* pre: poisoned. Once more, unless the last poison is still on its way. */
SHC_NODISCARD enum shc_status shc_timeline_poison_again(struct shc_timeline *timeline);

bool shc_timeline_poisoned(const struct shc_timeline *timeline);

/*
 * Poisons until all these streams are idle, whatever live ranks write meanwhile. They are all those
 * that may hold a wait on this timeline. SHC_ERR_TIMEOUT: one still works at the deadline.
 */
SHC_NODISCARD enum shc_status shc_timeline_drain(struct shc_timeline *timeline,
                                                 struct shc_cu_stream *const *streams, size_t count,
                                                 uint64_t deadline_ns);
