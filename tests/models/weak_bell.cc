// SPDX-License-Identifier: BSD-3-Clause
//
// Flag and doorbell under weak memory: no thread sleeps on after what it waits for has come.
//
// Runs the real src/shm/proto/bell.h; docs/internals/protocol.md, WAIT-1, and edges bell/flag,
// bell/count. There is one publisher of two words and a payload, and a sleeper for each word, as in
// bell.pml. A lost wake-up is a deadlock.
//
// FAULT_ring_relaxed     hinge (a), the publisher's exchange, is relaxed
// FAULT_listen_relaxed   hinge (b), the sleeper's exchange, is relaxed
// FAULT_data_relaxed     the data is stored relaxed
// FAULT_no_second_look   the sleeper does not look at the data after (b)

#define SHC_ATOMIC_MODEL "tests/models/relacy/model_atomic.h"
#include "shm/proto/bell.h"

namespace
{

const uint64_t kRounds = 2;

struct Shared {
    shc_bell_shm bell;
    shc_a64 data[2]; // the call line's epoch, the progress
    shc_word payload[2];
};

const Shared *shared_now;

struct Bell : rl::test_suite<Bell, 3> {
    Shared shared;

    void before()
    {
        shared_now = &shared;
        shared.bell.flag.v_.store(0, rl::mo_relaxed, $);
        shared.bell.count.v_.store(0, rl::mo_relaxed, $);
        for (shc_a64 &data : shared.data)
            data.v_.store(0, rl::mo_relaxed, $);
    }

    void publish()
    {
        for (int word = 0; word < 2; word++) {
            shc_word_put(&shared.payload[word], 7);
            for (uint64_t round = 1; round <= kRounds; round++) {
                shc_a64_store_release(&shared.data[word], round);
                shc_bell_ring(&shared.bell, true);
            }
        }
    }

    bool ready(int word, uint64_t want) { return shc_a64_load_acquire(&shared.data[word]) >= want; }

    void wait_for(int word, uint64_t want)
    {
        while (!ready(word, want)) {
            uint32_t heard = shc_bell_listen(&shared.bell);
            if (!WITH(FAULT_no_second_look) && ready(word, want))
                break;
            shc_bell_sleep(&shared.bell, heard, 0, true);
        }
    }

    void thread(unsigned index)
    {
        if (index == 2)
            return publish();
        for (uint64_t round = 1; round <= kRounds; round++)
            wait_for(static_cast<int>(index), round);
        RL_ASSERT(shc_word_get(&shared.payload[index]) == 7);
    }
};

} // namespace

ModelOrder model_order(const void *word, ModelOrder order, uint64_t stores)
{
    const bool flag = word == &shared_now->bell.flag;
    const bool weak = (WITH(FAULT_ring_relaxed) && flag && stores == 0) ||
                      (WITH(FAULT_listen_relaxed) && flag && stores == 1) ||
                      (WITH(FAULT_data_relaxed) && !flag && order == rl::mo_release);
    return weak ? rl::mo_relaxed : order;
}

int main(int argc, char **argv)
{
    return model_main<Bell>(argc, argv, 200000);
}
