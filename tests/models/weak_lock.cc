// SPDX-License-Identifier: BSD-3-Clause
//
// A lock under weak memory: there is one holder at a time, which sees what the one before did, and no
// thread sleeps on while the lock is free.
//
// Runs the real src/shm/os/lock.h; edge lock/word of docs/internals/protocol/edges.md. Three
// threads take the lock some times, one of them by trying, and count in plain memory. A lost
// wake-up is a deadlock.
//
// FAULT_take_relaxed     the lock is taken by a relaxed compare-and-set
// FAULT_await_relaxed    the lock is taken after a sleep by a relaxed exchange
// FAULT_drop_relaxed     the lock is released by a relaxed exchange
// FAULT_sleep_unsaid     a thread sleeps without marking the lock as awaited

#define SHC_ATOMIC_MODEL "tests/models/relacy/model_atomic.h"
#include "shm/os/lock.h"

namespace
{

const uint64_t kThreads = 3, kTurns = 2;

struct Lock : rl::test_suite<Lock, kThreads> {
    shc_lock lock;
    shc_word count;

    void before()
    {
        lock.word.v_.store(SHC_LOCK_FREE, rl::mo_relaxed, $);
        shc_word_put(&count, 0);
    }

    void take(bool tries)
    {
        if (!tries && !WITH(FAULT_sleep_unsaid))
            return shc_lock_take(&lock);
        while (!shc_lock_try(&lock)) {
            if (tries)
                rl::yield(1, $);
            else
                shc_os_futex_wait(&lock.word, SHC_LOCK_HELD, 0, false);
        }
    }

    void thread(unsigned index)
    {
        for (uint64_t turn = 0; turn < kTurns; turn++) {
            take(index == 2);
            shc_word_put(&count, shc_word_get(&count) + 1);
            shc_lock_drop(&lock);
        }
    }

    void after() { RL_ASSERT(shc_word_get(&count) == kThreads * kTurns); }
};

} // namespace

ModelOrder model_order(const void *, ModelOrder order, uint64_t stores)
{
    const bool weak = (WITH(FAULT_take_relaxed) && stores == SHC_LOCK_HELD) ||
                      (WITH(FAULT_await_relaxed) && stores == SHC_LOCK_AWAITED) ||
                      (WITH(FAULT_drop_relaxed) && stores == SHC_LOCK_FREE);
    return weak ? rl::mo_relaxed : order;
}

int main(int argc, char **argv)
{
    return model_main<Lock>(argc, argv, 200000);
}
