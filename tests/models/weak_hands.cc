// SPDX-License-Identifier: BSD-3-Clause
//
// Call lines and small slots that change hands between two ranks, under weak memory: no look, no
// wait, and yet nobody stores to what somebody still reads.
//
// Written by hand after shc_seat_host(), shc_call_publish() and shc_call_meet(), with the places of
// src/shm/coll/: docs/PROTOCOL.md, section 2, and edge call/publish. Two ranks make as many operations
// as it takes to have each line back twice. A slot is rank 0's own in some of them (a broadcast). All
// that is not an epoch is plain memory: relacy reports a race where the argument leaves a gap. A rank
// reads its own line and slot, too, until the operation ends.
//
// FAULT_publish_relaxed   the epoch is stored relaxed
// FAULT_meet_relaxed      the epoch is read relaxed
// FAULT_one_pair          one line of each rank instead of two, which changes hands in each operation
// FAULT_no_meeting        a root returns without having met
// FAULT_turns_alone       one rank's lines change hands an operation later than the other's

#define SHC_ATOMIC_MODEL "tests/models/relacy/model_atomic.h"
#include "shm/base/atomic.h"

namespace
{

const unsigned kRanks = 2, kLines = 2;
const uint64_t kEpochs = 9;

struct Line {
    shc_a64 epoch;
    shc_word payload;
};

bool is_broadcast(uint64_t epoch)
{
    return epoch % 3 == 2;
}

uint64_t said_by(unsigned rank, uint64_t epoch)
{
    return epoch * 16 + rank;
}

struct Hands : rl::test_suite<Hands, kRanks> {
    Line lines[kRanks][kLines];
    shc_word slots[kRanks][kLines];

    void before()
    {
        for (auto &block : lines)
            for (Line &line : block)
                line.epoch.v_.store(0, rl::mo_relaxed, $);
    }

    static unsigned parity(uint64_t epoch) { return WITH(FAULT_one_pair) ? 0 : epoch & 1; }

    static unsigned host(unsigned rank, uint64_t epoch)
    {
        if (WITH(FAULT_one_pair))
            return rank ^ (epoch & 1);
        const uint64_t turn = WITH(FAULT_turns_alone) && rank == 1 ? epoch + 1 : epoch;
        return rank ^ (turn >> 1 & 1);
    }

    Line &line(unsigned rank, uint64_t epoch) { return lines[host(rank, epoch)][parity(epoch)]; }

    shc_word &slot(unsigned rank, uint64_t epoch)
    {
        return slots[is_broadcast(epoch) ? rank : host(rank, epoch)][parity(epoch)];
    }

    void publish(unsigned rank, uint64_t epoch)
    {
        if (!is_broadcast(epoch) || rank == 0)
            shc_word_put(&slot(rank, epoch), said_by(rank, epoch));
        shc_word_put(&line(rank, epoch).payload, said_by(rank, epoch));
        shc_a64_store_release(&line(rank, epoch).epoch, epoch);
    }

    void meet(unsigned rank, uint64_t epoch)
    {
        if (WITH(FAULT_no_meeting) && is_broadcast(epoch) && rank == 0)
            return;
        while (shc_a64_load_acquire(&line(1 - rank, epoch).epoch) < epoch)
            rl::yield(1, $);
    }

    void read(unsigned rank, uint64_t epoch)
    {
        for (unsigned of = 0; of < kRanks; of++) {
            if (WITH(FAULT_no_meeting) && is_broadcast(epoch) && rank == 0)
                return;
            RL_ASSERT(shc_word_get(&line(of, epoch).payload) == said_by(of, epoch));
            if (!is_broadcast(epoch) || of == 0)
                RL_ASSERT(shc_word_get(&slot(of, epoch)) == said_by(of, epoch));
        }
    }

    void thread(unsigned rank)
    {
        for (uint64_t epoch = 1; epoch <= kEpochs; epoch++) {
            publish(rank, epoch);
            meet(rank, epoch);
            read(rank, epoch);
        }
    }
};

} // namespace

ModelOrder model_order(const void *, ModelOrder order, uint64_t)
{
    const bool weak = (WITH(FAULT_publish_relaxed) && order == rl::mo_release) ||
                      (WITH(FAULT_meet_relaxed) && order == rl::mo_acquire);
    return weak ? rl::mo_relaxed : order;
}

int main(int argc, char **argv)
{
    return model_main<Hands>(argc, argv, 100000);
}
