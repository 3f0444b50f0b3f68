// SPDX-License-Identifier: BSD-3-Clause
//
// The ring under weak memory: what is popped is what was pushed, whole and in order.
//
// Runs the real src/shm/proto/ring.h; edges ring/publish and ring/retire. A ring of two slots of two
// words, whose counters begin just below their wrap, is filled and emptied beyond its size by one
// producer and one consumer. The slots' words are plain memory: relacy reports a race where no edge
// orders two accesses.
//
// FAULT_publish_relaxed   the producer's store of tail is relaxed
// FAULT_retire_relaxed    the consumer's store of head is relaxed
// FAULT_seen_relaxed      the consumer's load of tail is relaxed
// FAULT_room_relaxed      the producer's load of head is relaxed

#define SHC_ATOMIC_MODEL "tests/models/relacy/model_atomic.h"
#include "shm/proto/ring.h"

namespace
{

const uint32_t kSlots = 2, kWords = 2;
const uint64_t kMessages = 5, kFirst = UINT64_MAX - 1;

struct Memory {
    shc_ring_shm counters;
    shc_word words[kSlots * kWords];
};

const Memory *memory_now;

struct Ring : rl::test_suite<Ring, 2> {
    Memory memory;

    void before()
    {
        memory_now = &memory;
        memory.counters.tail.v_.store(kFirst, rl::mo_relaxed, $);
        memory.counters.head.v_.store(kFirst, rl::mo_relaxed, $);
    }

    void thread(unsigned index)
    {
        shc_ring ring = shc_ring_view(&memory, kSlots, kWords);
        for (uint64_t message = 0; message < kMessages;) {
            uint64_t words[kWords] = {message, ~message};
            bool moved = index == 0 ? shc_ring_push(&ring, words) : shc_ring_pop(&ring, words);
            RL_ASSERT(!moved || (words[0] == message && words[1] == ~message));
            message += moved;
            if (!moved)
                rl::yield(1, $);
        }
    }
};

} // namespace

ModelOrder model_order(const void *word, ModelOrder order, uint64_t)
{
    bool tail = word == &memory_now->counters.tail, release = order == rl::mo_release;
    bool weak = (WITH(FAULT_publish_relaxed) && tail && release) ||
                (WITH(FAULT_retire_relaxed) && !tail && release) ||
                (WITH(FAULT_seen_relaxed) && tail && !release) ||
                (WITH(FAULT_room_relaxed) && !tail && !release);
    return weak ? rl::mo_relaxed : order;
}

int main(int argc, char **argv)
{
    return model_main<Ring>(argc, argv, 100000);
}
