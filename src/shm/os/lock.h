/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A lock between threads of one process, for where a message of a few bytes feels what
 * pthread_mutex_lock() does besides (docs/notebook/messages.md): a free one is taken, and let
 * go, by one instruction on its word. Not recursive, in no order; who waits sleeps at once. A lock
 * of zeros is free.
 *
 *   take                                     let go
 *   FREE -> HELD                             exchange(word, FREE)
 *     no: exchange(word, AWAITED) until        was AWAITED: wake all
 *         that was FREE, and in between
 *         futex wait while AWAITED
 *
 * Whoever has slept takes it as AWAITED, since it cannot know who sleeps on: one wake-up too many,
 * none too few.
 */

#include "shm/base/clock.h"
#include "shm/os/os.h"

enum { SHC_LOCK_FREE, SHC_LOCK_HELD, SHC_LOCK_AWAITED };

struct shc_lock {
    shc_a32 word;
};

SHC_INLINE bool shc_lock_try(struct shc_lock *lock)
{
    /* acq_rel lock/word: what the one before did under the lock. */
    return shc_a32_cas_acq_rel(&lock->word, SHC_LOCK_FREE, SHC_LOCK_HELD);
}

SHC_INLINE void shc_lock_take(struct shc_lock *lock)
{
    if (SHC_LIKELY(shc_lock_try(lock)))
        return;
    /* acq_rel lock/word: as above, and whoever lets go of it sees that somebody sleeps. */
    while (shc_a32_exchange_acq_rel(&lock->word, SHC_LOCK_AWAITED) != SHC_LOCK_FREE)
        shc_os_futex_wait(&lock->word, SHC_LOCK_AWAITED, SHC_NS_PER_S, false);
}

/* The same for so long at most. False: it could not be had. */
static inline bool shc_lock_take_within(struct shc_lock *lock, uint64_t patience_ns)
{
    if (SHC_LIKELY(shc_lock_try(lock)))
        return true;
    const uint64_t end_ns = shc_deadline_after(shc_clock_ns(), patience_ns);
    /* acq_rel lock/word: as above. Who gives up leaves it AWAITED: one wake-up too many. */
    while (shc_a32_exchange_acq_rel(&lock->word, SHC_LOCK_AWAITED) != SHC_LOCK_FREE) {
        const uint64_t now_ns = shc_clock_ns();
        if (now_ns >= end_ns)
            return false;
        shc_os_futex_wait(&lock->word, SHC_LOCK_AWAITED, end_ns - now_ns, false);
    }
    return true;
}

/* Does somebody wait for the lock, which is held? A hint. */
SHC_INLINE bool shc_lock_is_awaited(const struct shc_lock *lock)
{
    /* relaxed: nothing follows from it but when the lock is let go of. */
    return shc_a32_load_relaxed(&lock->word) == SHC_LOCK_AWAITED;
}

/* True: somebody may have slept for it. Who takes it again and again should yield then, as whoever has
 * slept is not yet there. */
SHC_INLINE bool shc_lock_drop(struct shc_lock *lock)
{
    /* acq_rel lock/word: what was done under the lock. */
    if (SHC_LIKELY(shc_a32_exchange_acq_rel(&lock->word, SHC_LOCK_FREE) != SHC_LOCK_AWAITED))
        return false;
    shc_os_futex_wake_all(&lock->word, false);
    return true;
}
