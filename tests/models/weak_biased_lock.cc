// SPDX-License-Identifier: BSD-3-Clause
//
// A biased lock under weak memory: there is one holder at a time, which sees what the one before did, and
// no thread sleeps on while the lock is free.
//
// Runs the real src/shm/os/biased_lock.h, bias.h, bias.c and lock.h; docs/internals/protocol.md,
// RUN-11, edges lock/word and bias/inside. One thread earns a bias each time that it has the word.
// Another one takes the lock, and then only tries to. A third one says that it waits, and gives up. All
// count in plain memory. A lost wake-up is a deadlock.
//
// FAULT_no_light_fence     the biased thread looks before its store
// FAULT_no_heavy_fence     a revoking thread looks before its store
// FAULT_leave_relaxed      the biased thread leaves by a relaxed store
// FAULT_look_relaxed       a revoking thread sees by a relaxed load that the biased thread has left
// FAULT_late_unlooked      the biased thread leaves without a look at its bias
// FAULT_word_ignored       a thread that has the word does not look at the bias

#define SHC_ATOMIC_MODEL "tests/models/relacy/model_atomic.h"
#include "shm/os/biased_lock.h"
#include "tests/models/relacy/model_bias.h"

namespace
{

const uint64_t kHome = 8, kOther = 16, kThird = 24, kHomeTurns = 3;
const shc_biased_lock *the_lock;

struct BiasedLock : rl::test_suite<BiasedLock, 3> {
    shc_biased_lock lock;
    shc_word count;
    uint64_t turns;

    void before()
    {
        the_lock = &lock;
        lock.lock.word.v_.store(SHC_LOCK_FREE, rl::mo_relaxed, $);
        model_no_bias(&lock.bias);
        lock.by_bias = false;
        shc_word_put(&count, 0);
        turns = 0;
    }

    enum How { kWaits, kTries, kGivesUp };

    bool take(uint64_t me, How how)
    {
        if (WITH(FAULT_word_ignored) && how == kWaits && me == kOther) {
            shc_lock_take(&lock.lock);
            return true;
        }
        if (how == kWaits) {
            shc_biased_lock_take(&lock, me);
            return true;
        }
        const bool had =
            how == kTries
                ? shc_lock_try(&lock.lock)
                : shc_a32_exchange_acq_rel(&lock.lock.word, SHC_LOCK_AWAITED) == SHC_LOCK_FREE;
        return had && shc_biased_lock_took(&lock, me);
    }

    void drop(uint64_t me)
    {
        if (WITH(FAULT_late_unlooked) && lock.by_bias) {
            lock.by_bias = false;
            shc_a32_store_release(&lock.bias.inside, 0);
            return;
        }
        shc_biased_lock_drop(&lock, me);
    }

    void turn(uint64_t me, How how)
    {
        if (!take(me, how))
            return;
        shc_word_put(&count, shc_word_get(&count) + 1);
        turns++;
        if (me == kHome && !lock.by_bias && shc_bias_count(&lock.bias, me))
            shc_bias_give(&lock.bias, me);
        drop(me);
    }

    void thread(unsigned index)
    {
        for (uint64_t i = 0; index == 0 && i < kHomeTurns; i++)
            turn(kHome, kWaits);
        if (index == 1) {
            turn(kOther, kWaits);
            turn(kOther, kTries);
        }
        if (index == 2)
            turn(kThird, kGivesUp);
    }

    void after()
    {
        RL_ASSERT(shc_word_get(&count) == turns);
        RL_ASSERT(turns >= kHomeTurns + 1);
        RL_ASSERT(lock.lock.word.v_.load(rl::mo_relaxed, $) == SHC_LOCK_FREE && !lock.bias.left);
    }
};

} // namespace

ModelOrder model_order(const void *word, ModelOrder order, uint64_t)
{
    const bool inside = word == &the_lock->bias.inside;
    const bool weak = (WITH(FAULT_leave_relaxed) && inside && order == rl::mo_release) ||
                      (WITH(FAULT_look_relaxed) && inside && order == rl::mo_acquire);
    return weak ? rl::mo_relaxed : order;
}

bool model_fence(bool heavy)
{
    return heavy ? !WITH(FAULT_no_heavy_fence) : !WITH(FAULT_no_light_fence);
}

int main(int argc, char **argv)
{
    return model_main<BiasedLock>(argc, argv, 200000);
}
