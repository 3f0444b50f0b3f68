/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A lock (os/lock.h) that may be biased towards the thread that takes it all the time (os/bias.h).
 * It is for code where two locked instructions are a large part of a message of a few bytes. Not
 * recursive: a thread that takes it again, in a signal handler, waits for itself, as with any lock.
 * (A thread that earns a bias inside a handler, by thousands of calls there, may enter without the
 * lock.)
 */

#include "shm/os/bias.h"

struct shc_biased_lock {
    struct shc_lock lock;
    bool by_bias; /* (held) its holder does not have the word */
    struct shc_bias bias;
};

/* `pay` and `me`, and what must hold: see shc_bias_init(). */
SHC_INLINE void shc_biased_lock_init(struct shc_biased_lock *lock, uint32_t pay)
{
    shc_bias_init(&lock->bias, pay);
}

/* Enters by the thread's bias. Fails if the thread is inside already: then this is a handler's
 * call. */
SHC_INLINE bool shc_biased_lock_enter(struct shc_biased_lock *lock, uint64_t me)
{
    bool left = false;
    /* relaxed: a biased thread sees the 1 that it stored itself; for another thread it does not
     * matter. */
    if (SHC_LIKELY(shc_a32_load_relaxed(&lock->bias.inside) == 0) &&
        shc_bias_enter(&lock->bias, &lock->lock.word, me, &left)) {
        lock->by_bias = true;
        return true;
    }
    if (SHC_UNLIKELY(left))
        shc_lock_drop(&lock->lock);
    return false;
}

/* The word has been taken. False: it belongs to another thread. */
SHC_INLINE bool shc_biased_lock_took(struct shc_biased_lock *lock, uint64_t me)
{
    if (!shc_bias_took(&lock->bias, me))
        return false;
    if (lock->bias.last != me)
        lock->bias.last = 0;
    return true;
}

SHC_INLINE void shc_biased_lock_take(struct shc_biased_lock *lock, uint64_t me)
{
    if (shc_biased_lock_enter(lock, me))
        return;
    do
        shc_lock_take(&lock->lock);
    while (!shc_biased_lock_took(lock, me));
}

/* The same for at most that long. False: the lock was not taken. */
static inline bool shc_biased_lock_take_within(struct shc_biased_lock *lock, uint64_t me,
                                               uint64_t patience_ns)
{
    const uint64_t end_ns = shc_deadline_after(shc_clock_ns(), patience_ns);
    if (shc_biased_lock_enter(lock, me))
        return true;
    uint64_t least_ns = 0; /* ending a bias may have used up all the time */
    for (;;) {
        const uint64_t now_ns = shc_clock_ns(), left_ns = now_ns < end_ns ? end_ns - now_ns : 0;
        if (!shc_lock_take_within(&lock->lock, left_ns > least_ns ? left_ns : least_ns))
            return false;
        if (shc_biased_lock_took(lock, me))
            return true;
        least_ns = SHC_NS_PER_MS;
    }
}

/* See shc_lock_is_awaited(). The lock is held. */
SHC_INLINE bool shc_biased_lock_is_awaited(const struct shc_biased_lock *lock)
{
    /* relaxed: nothing follows from it except when the lock is released. */
    return lock->by_bias ? shc_a32_load_relaxed(&lock->lock.word) != SHC_LOCK_FREE
                         : shc_lock_is_awaited(&lock->lock);
}

/* See shc_lock_drop(). */
SHC_INLINE bool shc_biased_lock_drop(struct shc_biased_lock *lock, uint64_t me)
{
    if (lock->by_bias) {
        lock->by_bias = false;
        if (SHC_LIKELY(!shc_bias_leave(&lock->bias, me)))
            return false;
    }
    return shc_lock_drop(&lock->lock);
}
