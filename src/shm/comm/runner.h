/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Which thread runs a group's operations: one at a time. Private to the process.
 *
 * The word is HELD | QUEUED. Its holder runs:
 *   - a synchronous caller, if no thread runs and nothing is queued:    0 -> HELD
 *   - an engine thread, or a waiter, if something is queued:    QUEUED -> QUEUED | HELD
 *
 * After many calls of one thread in a row the runner is biased towards it (os/bias.h). Then that thread
 * runs without the word, if the word is 0, so that its call does not overtake what is queued.
 *
 * No call gets here from inside another one of its thread, between the begin of a take and the end of a
 * release: the engine ensures that (struct shc_inside).
 */

#include "shm/os/bias.h"

#define SHC_RUNNER_HELD   1u
#define SHC_RUNNER_QUEUED 2u

struct shc_runner {
    shc_a32 word;
    struct shc_bias bias; /* HELD is its word */
};

/* Takes the word from `from` (0 or QUEUED). `me`: a number that no other living thread has. False: its
 * state is another, or a biased thread is inside. */
SHC_INLINE bool shc_runner_take(struct shc_runner *runner, uint32_t from, uint64_t me)
{
    /* acq_rel runner/word: what the holder before us left: epochs, arena, the ring's read side. */
    if (!shc_a32_cas_acq_rel(&runner->word, from, from | SHC_RUNNER_HELD) ||
        !shc_bias_took(&runner->bias, me))
        return false;
    if (from != 0)
        runner->bias.last = 0;
    return true;
}

/* True: something is queued, and the thread that would run it may sleep. */
SHC_INLINE bool shc_runner_drop(struct shc_runner *runner)
{
    /* acq_rel runner/word: to the next holder; and QUEUED as the submitter left it. (The bit is set:
     * subtracting it is one instruction, clearing it is a loop.) */
    return (shc_a32_add_acq_rel(&runner->word, -SHC_RUNNER_HELD) & SHC_RUNNER_QUEUED) != 0;
}

/* For a thread that has entered by its bias. Returns as shc_runner_drop() does. */
SHC_INLINE bool shc_runner_leave_biased(struct shc_runner *runner, uint64_t me)
{
    return SHC_UNLIKELY(shc_bias_leave(&runner->bias, me)) && shc_runner_drop(runner);
}

/* Enters by the bias, if there is one. False: look at the word; *ring is what shc_runner_drop() returns. */
SHC_INLINE bool shc_runner_enter_biased(struct shc_runner *runner, uint64_t me, bool *ring)
{
    bool left = false;
    if (SHC_LIKELY(shc_bias_enter(&runner->bias, &runner->word, me, &left)))
        return true;
    *ring = SHC_UNLIKELY(left) && shc_runner_drop(runner);
    return false;
}

/* Enters by the word, for a synchronous call. *paid: it has earned a bias. */
SHC_INLINE bool shc_runner_enter(struct shc_runner *runner, uint64_t me, bool *paid)
{
    if (!shc_runner_take(runner, 0, me))
        return false;
    *paid = shc_bias_count(&runner->bias, me);
    return true;
}

/* A request is in the ring. Under the ring's lock. */
SHC_INLINE void shc_runner_note_queued(struct shc_runner *runner)
{
    /* acq_rel runner/word: the request in the ring, before a taker of QUEUED looks. */
    shc_a32_or_acq_rel(&runner->word, SHC_RUNNER_QUEUED);
}

/* The ring is empty. pre: held by the word. Under the ring's lock. */
SHC_INLINE void shc_runner_note_empty(struct shc_runner *runner)
{
    /* acq_rel runner/word: under the lock of the threads that set it. */
    shc_a32_and_acq_rel(&runner->word, ~SHC_RUNNER_QUEUED);
}

/* Is something queued that no thread runs? */
SHC_INLINE bool shc_runner_is_queued(const struct shc_runner *runner)
{
    /* acquire runner/word <- acq_rel in shc_runner_note_queued(): a request is in the ring. */
    return shc_a32_load_acquire(&runner->word) == SHC_RUNNER_QUEUED;
}
