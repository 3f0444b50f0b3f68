/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Which thread runs a group's operations: one at a time. Private to the process.
 *
 * The word is HELD | QUEUED. Whoever holds it runs:
 *   - a synchronous caller, if nobody runs and nothing is queued:    0 -> HELD
 *   - an engine thread, or a waiter, if something is queued:    QUEUED -> QUEUED | HELD
 *
 * Bias. In most programs one thread makes all calls, and the two locked instructions to take the word and
 * to drop it are a seventh of a small operation. So behind many calls in a row of one thread the runner is
 * biased towards it: it enters and leaves by plain stores to `inside`, and the word stays as it is.
 * Whoever else takes the word finds the bias behind that, and revokes it:
 *
 *   the biased thread                       who revokes, and holds HELD, under the lock
 *   inside = 1                              bias = 0
 *   light fence                             heavy fence: a full one in every thread of the process
 *   bias is me and the word 0?  it runs     inside is 0?  it has the runner
 *     else as one that leaves                 else the biased thread has HELD from now on
 *   ...
 *   inside = 0
 *   light fence
 *   bias is me?  it is gone
 *     else, under the lock: was HELD left to it?  then it drops that, and rings as everybody
 *
 * The heavy fence lies between the biased thread's store and its look, or behind both, or in front of
 * both: so either that thread sees that its bias is gone, or who revokes sees it inside. Nobody sleeps because of
 * a biased holder, whom the word does not show: who takes it from there leaves HELD to that one, and sleeps
 * because of HELD. Without the look at the word a synchronous call would overtake what is queued.
 *
 * Only the first thread that has earned a bias ever gets one: any other one's stores to `inside` could be
 * mixed with those of a thread that looked at its bias long ago, and has not found out yet.
 *
 * Each revocation takes some 10 us, and so many calls in a row must come before the next bias as pay for it;
 * twice as many each time.
 *
 * No call gets here from inside another one of its thread, between the begin of a take and the end of a drop:
 * the engine sees to that (struct shc_inside).
 */

#include "shm/os/lock.h"

#define SHC_RUNNER_HELD   1u
#define SHC_RUNNER_QUEUED 2u

#define SHC_RUNNER_FIRST_PAY 1024u
#define SHC_RUNNER_LAST_PAY  (1u << 20)

struct shc_runner {
    shc_a32 word;
    shc_a32 inside; /* stored to by the biased thread: it runs, and has not got HELD */
    shc_a64 bias;   /* the number of the thread that it is biased towards; who holds HELD stores */
    uint64_t home;  /* (HELD) the only thread that may have a bias */
    uint64_t last;  /* (HELD) the thread whose synchronous calls these are, */
    uint32_t in_a_row;    /* (HELD) so many, */
    uint32_t pay;         /* (HELD) and so many are worth a bias */
    struct shc_lock lock; /* guards what follows */
    bool left;            /* HELD was left to the biased thread */
};

/* `pay`: calls of one thread in a row that are worth a bias. pre: it is all zero, and only the calling
 * thread knows it. */
SHC_INLINE void shc_runner_init(struct shc_runner *runner, uint32_t pay)
{
    runner->pay = pay;
}

/* Ends a bias. False: the biased thread is inside, and has HELD. pre: HELD is held. */
bool shc_runner_revoke(struct shc_runner *runner, uint64_t me);

/* The biased thread leaves, and its bias has ended. As shc_runner_drop(). */
bool shc_runner_leave_late(struct shc_runner *runner);

/* Takes the word from `from` (0 or QUEUED). `me`: a number that no other living thread has. False: it is
 * not so, or a biased thread is inside. */
SHC_INLINE bool shc_runner_take(struct shc_runner *runner, uint32_t from, uint64_t me)
{
    /* acq_rel runner/word: what the holder before us left: epochs, arena, the ring's read side. */
    if (!shc_a32_cas_acq_rel(&runner->word, from, from | SHC_RUNNER_HELD))
        return false;
    /* relaxed: the word's edge covers it. Behind that, or it could begin in between. */
    if (SHC_UNLIKELY(shc_a64_load_relaxed(&runner->bias) != 0) && !shc_runner_revoke(runner, me))
        return false;
    if (from != 0)
        runner->last = 0;
    return true;
}

/* True: something is queued, and who would run it may sleep. */
SHC_INLINE bool shc_runner_drop(struct shc_runner *runner)
{
    /* acq_rel runner/word: to the next holder; and QUEUED as the submitter left it. (The bit is set:
     * to subtract it is one instruction where to clear it is a loop.) */
    return (shc_a32_add_acq_rel(&runner->word, -SHC_RUNNER_HELD) & SHC_RUNNER_QUEUED) != 0;
}

/* Of who has entered by its bias. As shc_runner_drop(). */
SHC_INLINE bool shc_runner_leave_biased(struct shc_runner *runner, uint64_t me)
{
    /* release runner/inside -> acquire in shc_runner_revoke(): what was done inside. */
    shc_a32_store_release(&runner->inside, 0);
    shc_fence_light();
    /* relaxed: who has revoked looks behind a heavy fence. */
    const bool biased = shc_a64_load_relaxed(&runner->bias) == me;
    return SHC_LIKELY(biased) ? false : shc_runner_leave_late(runner);
}

/* By its bias, if it has one. False: look at the word; *ring: as shc_runner_drop(). */
SHC_INLINE bool shc_runner_enter_biased(struct shc_runner *runner, uint64_t me, bool *ring)
{
    /* relaxed: who does not find its own number looks no further. */
    if (shc_a64_load_relaxed(&runner->bias) != me)
        return false;
    /* relaxed: who revokes looks behind a heavy fence. */
    shc_a32_store_relaxed(&runner->inside, 1);
    shc_fence_light();
    /* relaxed: as in shc_runner_leave_biased(). */
    const bool biased = shc_a64_load_relaxed(&runner->bias) == me;
    /* relaxed: what is queued by this thread it sees, and with others' there is no order. */
    if (SHC_LIKELY(biased && shc_a32_load_relaxed(&runner->word) == 0))
        return true;
    *ring = shc_runner_leave_biased(runner, me);
    return false;
}

/* By the word, for a synchronous call. *paid: it is worth a bias. */
SHC_INLINE bool shc_runner_enter(struct shc_runner *runner, uint64_t me, bool *paid)
{
    if (!shc_runner_take(runner, 0, me))
        return false;
    runner->in_a_row = runner->last == me ? runner->in_a_row + 1 : 1;
    runner->last = me;
    *paid = runner->in_a_row >= runner->pay;
    return true;
}

/* From the next call on, if this is the thread for it. pre: held by the word, and there are heavy fences here. */
SHC_INLINE void shc_runner_bias(struct shc_runner *runner, uint64_t me)
{
    if (runner->home == 0)
        runner->home = me;
    if (runner->home == me) {
        /* relaxed: the word's edge covers it. */
        shc_a64_store_relaxed(&runner->bias, me);
    }
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
    /* acq_rel runner/word: under the lock of those who set it. */
    shc_a32_and_acq_rel(&runner->word, ~SHC_RUNNER_QUEUED);
}

/* Is something queued that nobody runs? */
SHC_INLINE bool shc_runner_is_queued(const struct shc_runner *runner)
{
    /* acquire runner/word <- acq_rel in shc_runner_note_queued(): a request is in the ring. */
    return shc_a32_load_acquire(&runner->word) == SHC_RUNNER_QUEUED;
}
