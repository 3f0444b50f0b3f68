// SPDX-License-Identifier: BSD-3-Clause
//
// Call lines under weak memory: a rank that meets reads what was published, and a thread that writes an
// error message reads words that belong together, or none.
//
// Written by hand after shc_call_publish(), read_record() of src/shm/proto/call.c and shc_call_meet()
// of wait.c: hash and payload are plain fields there, whose accesses relacy cannot see.
// docs/internals/protocol.md, CALL-1 to CALL-3 and CALL-8 to CALL-10, and edge call/publish. Three
// ranks make as many operations as it takes to use a line again. A fourth thread reads one rank's call
// record, for a message, at any time. Words that are there already are not stored again. For two ranks:
// weak_hands.cc. Hash and payload are plain memory here too: relacy reports a race where the two-lines
// argument does not order a rank's next store after the others' last read.
//
// FAULT_publish_relaxed   the epoch is stored relaxed
// FAULT_meet_relaxed      the epoch is read relaxed
// FAULT_one_line          one line per rank instead of two
// FAULT_no_meeting        a rank waits for the rank after it alone
// FAULT_no_seal           the words of a message are believed because the epoch is there
// FAULT_words_kept        a call that differs keeps the words of the one before
// FAULT_said_late         a line is published before its call record

#define SHC_ATOMIC_MODEL "tests/models/relacy/model_atomic.h"
#include "shm/base/atomic.h"

namespace
{

const unsigned kRanks = 3, kWords = 3;
const uint64_t kEpochs = 5;
const unsigned kLines = 2;

unsigned lines_used()
{
    return WITH(FAULT_one_line) ? 1 : kLines;
}

struct Line {
    shc_a64 epoch;
    shc_word hash, payload;
};

struct Said {
    shc_a64 epoch;
    shc_a64 words[kWords]; // the call, the seal, and the call's hash, which its writer compares
};

// Epochs 1 and 3 make the same call, 5 another one.
uint64_t call_of(unsigned rank, uint64_t epoch)
{
    return (epoch == 3 ? 1 : epoch) * 16 + rank;
}

uint64_t hash_of(uint64_t word)
{
    return word * 1000;
}

struct Calls {
    Line lines[kRanks][kLines];
    Said saids[kRanks][kLines];

    void clear()
    {
        for (unsigned rank = 0; rank < kRanks; rank++)
            for (unsigned parity = 0; parity < kLines; parity++) {
                lines[rank][parity].epoch.v_.store(0, rl::mo_relaxed, $);
                saids[rank][parity].epoch.v_.store(0, rl::mo_relaxed, $);
                for (shc_a64 &word : saids[rank][parity].words)
                    word.v_.store(0, rl::mo_relaxed, $);
            }
    }

    Line &line(unsigned rank, uint64_t epoch) { return lines[rank][epoch % lines_used()]; }
    Said &said(unsigned rank, uint64_t epoch) { return saids[rank][epoch % kLines]; }

    void say(unsigned rank, uint64_t epoch)
    {
        Said &mine = said(rank, epoch);
        const bool other = shc_a64_load_relaxed(&mine.words[2]) != hash_of(call_of(rank, epoch));
        if (other && (!WITH(FAULT_words_kept) || epoch <= kLines)) {
            shc_a64_store_relaxed(&mine.words[0], call_of(rank, epoch));
            shc_a64_store_relaxed(&mine.words[2], hash_of(call_of(rank, epoch)));
        }
        shc_a64_store_relaxed(&mine.words[1], hash_of(call_of(rank, epoch)) + epoch);
        shc_a64_store_release(&mine.epoch, epoch);
    }

    void publish(unsigned rank, uint64_t epoch)
    {
        Line &mine = line(rank, epoch);
        shc_word_put(&mine.payload, call_of(rank, epoch));
        if (!WITH(FAULT_said_late))
            say(rank, epoch);
        shc_word_put(&mine.hash, hash_of(call_of(rank, epoch)));
        shc_a64_store_release(&mine.epoch, epoch);
        if (WITH(FAULT_said_late))
            say(rank, epoch);
    }

    void meet(unsigned rank, uint64_t epoch)
    {
        for (unsigned turn = 1; turn < kRanks; turn++) {
            Line &theirs = line((rank + turn) % kRanks, epoch);
            while (shc_a64_load_acquire(&theirs.epoch) < epoch)
                rl::yield(1, $);
            unsigned peer = (rank + turn) % kRanks;
            RL_ASSERT(shc_word_get(&theirs.hash) == hash_of(call_of(peer, epoch)));
            RL_ASSERT(read_record(peer, epoch)); // shc_call_latest() finds it
            if (WITH(FAULT_no_meeting))
                return;
        }
        for (unsigned turn = 1; turn < kRanks; turn++) {
            unsigned peer = (rank + turn) % kRanks;
            RL_ASSERT(shc_word_get(&line(peer, epoch).payload) == call_of(peer, epoch));
        }
    }

    // Is there a call of this parity? Then it is the one of its epoch.
    bool read_record(unsigned rank, uint64_t parity)
    {
        Said &theirs = said(rank, parity);
        uint64_t epoch = shc_a64_load_acquire(&theirs.epoch);
        uint64_t word = shc_a64_load_relaxed(&theirs.words[0]);
        uint64_t seal = shc_a64_load_relaxed(&theirs.words[1]);
        if (WITH(FAULT_no_seal))
            seal = hash_of(word) + epoch;
        if (epoch == 0 || seal != hash_of(word) + epoch)
            return false;
        RL_ASSERT(word == call_of(rank, epoch));
        return true;
    }

    bool is_over(unsigned rank)
    {
        return shc_a64_load_acquire(&line(rank, kEpochs).epoch) == kEpochs;
    }
};

struct Meeting : rl::test_suite<Meeting, kRanks + 1> {
    Calls calls;

    void before() { calls.clear(); }

    void thread(unsigned index)
    {
        while (index == kRanks) {
            calls.read_record(0, 1);
            if (calls.is_over(0))
                return;
            rl::yield(1, $);
        }
        for (uint64_t epoch = 1; epoch <= kEpochs; epoch++) {
            calls.publish(index, epoch);
            calls.meet(index, epoch);
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
    return model_main<Meeting>(argc, argv, 100000);
}
