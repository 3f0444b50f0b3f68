// SPDX-License-Identifier: BSD-3-Clause
//
// Call lines and small slots that change hands between two ranks, under weak memory: without a look or a
// wait, no rank stores to what another rank still reads.
//
// Written by hand after shc_seat_host(), shc_hand_off_slot_pass(), shc_call_publish() and shc_call_meet(),
// with the places of src/shm/coll/: docs/internals/protocol.md, CALL-3 to CALL-5 and STAGE-26 to
// STAGE-29, and edge call/publish. Two ranks make as many operations as it takes to have each line
// back twice. In some of them one rank alone gives, in a hand-off slot (hand-off slot). Everything except
// the epochs is plain memory: relacy reports a race where the argument leaves a gap. A rank also reads
// its own line and small slot until the operation ends.
//
// FAULT_publish_relaxed   the epoch is stored relaxed
// FAULT_meet_relaxed      the epoch is read relaxed
// FAULT_one_pair          one line of each rank instead of two, which changes hands in each operation
// FAULT_no_meeting        a root returns without having met
// FAULT_turns_alone       one rank's lines change hands an operation later than the other's
// FAULT_relay_stays       a rank that gives again at once stores to the hand-off slot that it gave in

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

/* The rank that gives in each operation, from the first one on; -1: both. */
const int kGivers[kEpochs] = {-1, 0, 0, 1, 1, -1, 1, 0, 1};

int giver_of(uint64_t epoch)
{
    return kGivers[epoch - 1];
}

bool gives(unsigned rank, uint64_t epoch)
{
    return giver_of(epoch) == static_cast<int>(rank);
}

uint64_t said_by(unsigned rank, uint64_t epoch)
{
    return epoch * 16 + rank;
}

struct Hands : rl::test_suite<Hands, kRanks> {
    Line lines[kRanks][kLines];
    shc_word slots[kRanks][kLines];
    shc_word relays[2];

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
        return slots[host(rank, epoch)][parity(epoch)];
    }

    // Both ranks count in the same way.
    shc_word &relay(uint64_t epoch)
    {
        unsigned slot = 0;
        int giver = -1;
        uint64_t last = 0;
        for (uint64_t e = 1; e <= epoch; e++) {
            if (giver_of(e) < 0)
                continue;
            if (!WITH(FAULT_relay_stays) && giver == giver_of(e) && last + 1 == e)
                slot ^= 1;
            giver = giver_of(e);
            last = e;
        }
        return relays[slot];
    }

    void publish(unsigned rank, uint64_t epoch)
    {
        if (giver_of(epoch) < 0)
            shc_word_put(&slot(rank, epoch), said_by(rank, epoch));
        else if (gives(rank, epoch))
            shc_word_put(&relay(epoch), said_by(rank, epoch));
        shc_word_put(&line(rank, epoch).payload, said_by(rank, epoch));
        shc_a64_store_release(&line(rank, epoch).epoch, epoch);
    }

    void meet(unsigned rank, uint64_t epoch)
    {
        if (WITH(FAULT_no_meeting) && gives(rank, epoch))
            return;
        while (shc_a64_load_acquire(&line(1 - rank, epoch).epoch) < epoch)
            rl::yield(1, $);
    }

    void read(unsigned rank, uint64_t epoch)
    {
        for (unsigned of = 0; of < kRanks; of++) {
            if (WITH(FAULT_no_meeting) && gives(rank, epoch))
                return;
            RL_ASSERT(shc_word_get(&line(of, epoch).payload) == said_by(of, epoch));
            if (giver_of(epoch) < 0)
                RL_ASSERT(shc_word_get(&slot(of, epoch)) == said_by(of, epoch));
            else if (of != rank && gives(of, epoch))
                RL_ASSERT(shc_word_get(&relay(epoch)) == said_by(of, epoch));
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
