/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A lock between threads of one process, for code where the other work of pthread_mutex_lock() is a
 * large part of a message of a few bytes (docs/notebook/messages.md). A free lock is taken by one
 * instruction on its word, and released by one. It is not recursive and not fair; a waiting thread
 * sleeps at once. A lock of zeros is free.
 *
 *   take                                     release
 *   FREE -> HELD                             exchange(word, FREE)
 *     no: exchange(word, AWAITED) until        was AWAITED: wake all
 *         that was FREE, and in between
 *         futex wait while AWAITED
 *
 * A thread that has slept takes it as AWAITED, since it cannot know whether others still sleep.
 * That may cause one wake-up too many, never one too few.
 */

#include "shm/base/clock.h"
#include "shm/os/os.h"

enum { SHC_LOCK_FREE, SHC_LOCK_HELD, SHC_LOCK_AWAITED };

struct shc_lock {
    shc_a32 word;
};

SHC_INLINE bool shc_lock_try(struct shc_lock *lock)
{
    /* acq_rel lock/word: what the previous holder did under the lock. */
    return shc_a32_cas_acq_rel(&lock->word, SHC_LOCK_FREE, SHC_LOCK_HELD);
}

SHC_INLINE void shc_lock_take(struct shc_lock *lock)
{
    if (SHC_LIKELY(shc_lock_try(lock)))
        return;
    /* acq_rel lock/word: what the previous holder did under the lock; and the thread that releases
     * it sees that a thread sleeps. */
    while (shc_a32_exchange_acq_rel(&lock->word, SHC_LOCK_AWAITED) != SHC_LOCK_FREE)
        shc_os_futex_wait(&lock->word, SHC_LOCK_AWAITED, SHC_NS_PER_S, false);
}

/* The same for at most that long. False: the lock was not taken. */
static inline bool shc_lock_take_within(struct shc_lock *lock, uint64_t patience_ns)
{
    if (SHC_LIKELY(shc_lock_try(lock)))
        return true;
    const uint64_t end_ns = shc_deadline_after(shc_clock_ns(), patience_ns);
    /* acq_rel lock/word: what the previous holder did under the lock. A thread that gives up leaves
     * it AWAITED: one wake-up too many. */
    while (shc_a32_exchange_acq_rel(&lock->word, SHC_LOCK_AWAITED) != SHC_LOCK_FREE) {
        const uint64_t now_ns = shc_clock_ns();
        if (now_ns >= end_ns)
            return false;
        shc_os_futex_wait(&lock->word, SHC_LOCK_AWAITED, end_ns - now_ns, false);
    }
    return true;
}

/* Does a thread wait for the lock, which is held? A hint. */
SHC_INLINE bool shc_lock_is_awaited(const struct shc_lock *lock)
{
    /* relaxed: nothing follows from it except when the lock is released. */
    return shc_a32_load_relaxed(&lock->word) == SHC_LOCK_AWAITED;
}

/* True: a thread may have slept for it. A thread that takes the lock again and again should yield
 * then, because the woken thread is not yet there. */
SHC_INLINE bool shc_lock_drop(struct shc_lock *lock)
{
    /* acq_rel lock/word: what was done under the lock. */
    if (SHC_LIKELY(shc_a32_exchange_acq_rel(&lock->word, SHC_LOCK_FREE) != SHC_LOCK_AWAITED))
        return false;
    shc_os_futex_wake_all(&lock->word, false);
    return true;
}
