// SPDX-License-Identifier: BSD-3-Clause
//
// A biased runner under weak memory: one thread is inside at a time, and sees what the one before did.
//
// Runs the real src/shm/comm/runner.h, os/bias.h and bias.c; docs/internals/protocol.md, RUN-7 to
// RUN-10, edges runner/word and bias/inside. One thread earns a bias with each call by the word;
// another one calls some times. Both count in plain memory. bias.pml covers what is queued, and which
// threads sleep.
//
// FAULT_no_light_fence     the biased thread looks before its store
// FAULT_no_heavy_fence     a revoking thread looks before its store
// FAULT_leave_relaxed      the biased thread leaves by a relaxed store
// FAULT_look_relaxed       a revoking thread sees by a relaxed load that the biased thread has left
// FAULT_take_relaxed       the word is taken by a relaxed compare-and-set
// FAULT_drop_relaxed       the word is dropped by a relaxed subtraction

#define SHC_ATOMIC_MODEL "tests/models/relacy/model_atomic.h"
#include "shm/comm/runner.h"
#include "tests/models/relacy/model_bias.h"

namespace
{

const uint64_t kHome = 8, kOther = 16, kHomeTurns = 3, kOtherTurns = 2;
const shc_runner *the_runner;

struct Bias : rl::test_suite<Bias, 2> {
    shc_runner runner;
    shc_word count;

    void before()
    {
        the_runner = &runner;
        runner.word.v_.store(0, rl::mo_relaxed, $);
        model_no_bias(&runner.bias);
        shc_word_put(&count, 0);
    }

    void call(uint64_t me)
    {
        bool paid = false, biased, ring;
        while (!(biased = shc_runner_enter_biased(&runner, me, &ring)) &&
               !shc_runner_enter(&runner, me, &paid))
            rl::yield(1, $);
        shc_word_put(&count, shc_word_get(&count) + 1);
        if (paid && me == kHome)
            shc_bias_give(&runner.bias, me);
        if (biased)
            shc_runner_leave_biased(&runner, me);
        else
            shc_runner_drop(&runner);
    }

    void thread(unsigned index)
    {
        for (uint64_t turn = 0; turn < (index == 0 ? kHomeTurns : kOtherTurns); turn++)
            call(index == 0 ? kHome : kOther);
    }

    void after()
    {
        RL_ASSERT(shc_word_get(&count) == kHomeTurns + kOtherTurns);
        RL_ASSERT(runner.word.v_.load(rl::mo_relaxed, $) == 0 && !runner.bias.left);
    }
};

} // namespace

ModelOrder model_order(const void *word, ModelOrder order, uint64_t stores)
{
    const bool inside = word == &the_runner->bias.inside, of_word = word == &the_runner->word;
    const bool weak = (WITH(FAULT_leave_relaxed) && inside && order == rl::mo_release) ||
                      (WITH(FAULT_look_relaxed) && inside && order == rl::mo_acquire) ||
                      (WITH(FAULT_take_relaxed) && of_word && stores == SHC_RUNNER_HELD) ||
                      (WITH(FAULT_drop_relaxed) && of_word && stores == (uint32_t)-SHC_RUNNER_HELD);
    return weak ? rl::mo_relaxed : order;
}

bool model_fence(bool heavy)
{
    return heavy ? !WITH(FAULT_no_heavy_fence) : !WITH(FAULT_no_light_fence);
}

int main(int argc, char **argv)
{
    return model_main<Bias>(argc, argv, 200000);
}
