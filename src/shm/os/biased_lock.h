/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A lock (os/lock.h) that may be biased towards the thread that takes it all the time (os/bias.h): for where a
 * message of a few bytes feels its two locked instructions. Not recursive: who takes it again, in a signal
 * handler, waits for itself, as for any lock. (And who earns a bias in a handler there, by thousands of calls, may
 * do so without the lock.)
 */

#include "shm/os/bias.h"

struct shc_biased_lock {
    struct shc_lock lock;
    bool by_bias; /* (held) its holder has not got the word */
    struct shc_bias bias;
};

/* `pay`: as shc_bias_init(), which see for what is to be so; and for `me`. */
SHC_INLINE void shc_biased_lock_init(struct shc_biased_lock *lock, uint32_t pay)
{
    shc_bias_init(&lock->bias, pay);
}

/* By the thread's bias. Not from inside, where it is a handler's call. */
SHC_INLINE bool shc_biased_lock_enter(struct shc_biased_lock *lock, uint64_t me)
{
    bool left = false;
    /* relaxed: 1 to a biased thread that it has stored itself; to another one it does not matter. */
    if (SHC_LIKELY(shc_a32_load_relaxed(&lock->bias.inside) == 0) &&
        shc_bias_enter(&lock->bias, &lock->lock.word, me, &left)) {
        lock->by_bias = true;
        return true;
    }
    if (SHC_UNLIKELY(left))
        shc_lock_drop(&lock->lock);
    return false;
}

/* The word has been taken. False: it is another thread's. */
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

/* The same for so long at most. False: it could not be had. */
static inline bool shc_biased_lock_take_within(struct shc_biased_lock *lock, uint64_t me,
                                               uint64_t patience_ns)
{
    const uint64_t end_ns = shc_deadline_after(shc_clock_ns(), patience_ns);
    if (shc_biased_lock_enter(lock, me))
        return true;
    uint64_t least_ns = 0; /* to end a bias may have taken all the time */
    for (;;) {
        const uint64_t now_ns = shc_clock_ns(), left_ns = now_ns < end_ns ? end_ns - now_ns : 0;
        if (!shc_lock_take_within(&lock->lock, left_ns > least_ns ? left_ns : least_ns))
            return false;
        if (shc_biased_lock_took(lock, me))
            return true;
        least_ns = SHC_NS_PER_MS;
    }
}

/* As shc_lock_is_awaited(). The lock is held. */
SHC_INLINE bool shc_biased_lock_is_awaited(const struct shc_biased_lock *lock)
{
    /* relaxed: as there. */
    return lock->by_bias ? shc_a32_load_relaxed(&lock->lock.word) != SHC_LOCK_FREE
                         : shc_lock_is_awaited(&lock->lock);
}

/* As shc_lock_drop(). */
SHC_INLINE bool shc_biased_lock_drop(struct shc_biased_lock *lock, uint64_t me)
{
    if (lock->by_bias) {
        lock->by_bias = false;
        if (SHC_LIKELY(!shc_bias_leave(&lock->bias, me)))
            return false;
    }
    return shc_lock_drop(&lock->lock);
}
