// SPDX-License-Identifier: BSD-3-Clause
// Shuttles, which two ranks fill in turn, and bulk windows, which go round: whoever sends next, and
// whatever is put aside or given up meanwhile, each message has its own bytes. Ranks as threads and as processes.
#include "tests/support/ranks.h"

#include <gtest/gtest.h>
#include <memory>
#include <random>
#include <vector>

extern "C" {
#include "shm/comm/comm.h"
}

using namespace shmcoll::test;

namespace
{

// One send or receive of bytes that say whose and which message they are.
struct Message {
    std::vector<unsigned char> bytes, wanted;
    int64_t size;
    shc_tensor tensor;
    shc_op op = {};
    shc_request *request = nullptr;

    Message(shc_op_kind kind, int sender, int peer, int number, size_t count)
        : bytes(count, 0xee), wanted(count),
          size(static_cast<int64_t>(count)), tensor{bytes.data(), 1, &size, nullptr}
    {
        for (size_t i = 0; i < count; i++)
            wanted[i] = static_cast<unsigned char>(i / 32768 * 13 + i / 64 + i * 7 +
                                                   static_cast<size_t>(number) * 31 +
                                                   static_cast<size_t>(sender) * 101);
        if (kind == SHC_SEND)
            bytes = wanted;
        tensor.data = bytes.data();
        op.kind = kind;
        op.dtype = SHC_UINT8;
        op.peer = peer;
        op.tag = number;
        op.input = op.output = {&tensor, 1};
    }
    Message(const Message &) = delete;
    ~Message()
    {
        if (request)
            shc_request_release(request);
    }

    void run(Rank &rank)
    {
        ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
        check();
    }
    void start(Rank &rank)
    {
        ASSERT_EQ(shc_submit(rank.comm, &op, nullptr, &request), SHC_OK) << error_text();
    }
    void end()
    {
        ASSERT_EQ(shc_request_wait(request, 0), SHC_OK) << error_text();
        check();
    }
    void check() const
    {
        EXPECT_TRUE(bytes == wanted) << "message " << op.tag << " of " << size << " bytes";
    }
};

const int kTurns = 400;

size_t some_bytes(std::mt19937 &random)
{
    static const size_t counts[] = {0, 8, 88, 89, 100, 1000, 5000, 16383, 16384, 16385, 40000};
    return counts[random() % (sizeof counts / sizeof counts[0])];
}

void back_and_forth(Rank &rank, int peer, int number, size_t bytes)
{
    Message there(SHC_SEND, rank.rank, peer, number, bytes);
    Message back(SHC_RECV, peer, peer, number, bytes);
    if (rank.rank < peer) {
        there.run(rank);
        back.run(rank);
    } else {
        back.run(rank);
        there.run(rank);
    }
}

// Messages in a row, which are then received in the opposite order: each shuttle and window lies with
// a message that was put aside.
void burst(Rank &rank, int peer, bool sends, int number, int count, size_t bytes)
{
    std::vector<std::unique_ptr<Message>> messages;
    for (int i = 0; i < count; i++) {
        const int which = sends ? i : count - 1 - i;
        const int sender = sends ? rank.rank : peer;
        messages.push_back(std::make_unique<Message>(sends ? SHC_SEND : SHC_RECV, sender, peer,
                                                     number * 16 + which, bytes));
        messages.back()->start(rank);
    }
    for (auto &message : messages)
        message->end();
}

// Both send before they receive: shuttles cross on their way.
void swap(Rank &rank, int peer, int number, size_t bytes)
{
    Message there(SHC_SEND, rank.rank, peer, number, bytes);
    there.start(rank);
    Message(SHC_RECV, peer, peer, number, bytes).run(rank);
    there.end();
}

void talk(Rank &rank, int peer, unsigned seed)
{
    std::mt19937 random(seed);
    for (int turn = 0; turn < kTurns && !testing::Test::HasFatalFailure(); turn++) {
        const size_t bytes = some_bytes(random);
        const unsigned what = random() % 4;
        const bool lower_sends = random() % 2 == 0;
        if (what == 0)
            burst(rank, peer, lower_sends == (rank.rank < peer), turn,
                  1 + static_cast<int>(random() % 8), bytes);
        else if (what == 1)
            swap(rank, peer, turn, bytes);
        else
            back_and_forth(rank, peer, turn, bytes);
    }
}

TEST(Shuttles, GoBackAndForthUnderAnyTraffic)
{
    for (Mode mode : all_modes())
        run_ranks(mode, 2, [](Rank &rank) { talk(rank, 1 - rank.rank, 1); });
}

TEST(Shuttles, OfEachPairAreItsOwn)
{
    for (Mode mode : all_modes())
        run_ranks(mode, 3, [](Rank &rank) {
            for (int low = 0; low < 3; low++) // each pair in turn
                for (int high = low + 1; high < 3; high++)
                    if (rank.rank == low || rank.rank == high)
                        talk(rank, rank.rank == low ? high : low,
                             static_cast<unsigned>(low + high));
        });
}

TEST(Shuttles, AreNotMissedWhereThereAreNone)
{
    for (int world : {SHC_SHUTTLE_RANKS, SHC_SHUTTLE_RANKS + 1})
        run_ranks(Mode::kOwnMapping, world, [&](Rank &rank) {
            EXPECT_EQ(static_cast<int>(rank.comm->seat.mail.shuttles),
                      world > SHC_SHUTTLE_RANKS ? 0 : world);
            const int peer = rank.rank ^ 1;
            for (int turn = 0; turn < 20 && peer < world; turn++)
                back_and_forth(rank, peer, turn, turn % 2 ? 89 : 16384);
        });
}

// The reply lies in the memory that the message came in: that is what a shuttle is for.
TEST(Shuttles, CarryTheReplyInTheLinesOfTheMessage)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        const shc_pair *pair = &rank.comm->p2p.pairs.pairs[1 - rank.rank];
        for (int turn = 0; turn < 4; turn++) {
            back_and_forth(rank, 1 - rank.rank, turn, 4096);
            // Rank 0's went back and forth; rank 1 has kept its own for a message of its own accord.
            EXPECT_EQ(pair->holds[0], true) << "its own, rank " << rank.rank;
            EXPECT_EQ(pair->holds[1], false) << "the other's, rank " << rank.rank;
        }
    });
}

const size_t kRound = size_t{SHC_BULK_WINDOWS} * SHC_BULK_BYTES;
const int kAnnounced = 99; // tag of an empty message behind a large one

// Lets a message begin and reads nothing for a while; the windows of its chunks stay with this rank.
void begin_and_stop(Rank &rank, Message &message)
{
    message.start(rank); // it has been announced
    shc_lock_take(&rank.comm->p2p.lock);
    shc_os_sleep_ns(20 * SHC_NS_PER_MS);
    shc_lock_drop(&rank.comm->p2p.lock);
}

// Several rounds of the windows, whose receiver stops in the middle; both ways at once.
TEST(BulkWindows, GoRoundWhileTheirReceiverStops)
{
    for (Mode mode : all_modes())
        run_ranks(mode, 2, [](Rank &rank) {
            const int peer = 1 - rank.rank;
            for (int turn = 0; turn < 3; turn++) {
                const size_t bytes = 3 * kRound + 4099 * static_cast<size_t>(turn);
                Message out(SHC_SEND, rank.rank, peer, turn, bytes);
                Message in(SHC_RECV, peer, peer, turn, bytes);
                out.start(rank);
                Message(SHC_SEND, rank.rank, peer, kAnnounced, 0).run(rank);
                Message(SHC_RECV, peer, peer, kAnnounced, 0).run(rank);
                if (rank.rank == turn % 2)
                    begin_and_stop(rank, in);
                else
                    in.start(rank);
                in.end();
                out.end();
            }
        });
}

// Messages of two windows behind one of a single window: at the end one is left empty in each round.
TEST(BulkWindows, LeaveThoseAtTheEndEmptyThatAreTooFew)
{
    for (Mode mode : all_modes())
        run_ranks(mode, 2, [](Rank &rank) {
            shc_p2p &p2p = rank.comm->p2p;
            for (shc_pace &pace : p2p.paces) { // as if all ways had been tried
                pace.bytes = 3 * SHC_PACE_ROUND;
                pace.best = 1;
                for (double &took : pace.took)
                    took = 2;
            }
            const int messages = 120;
            for (int number = 0; number < messages; number++) {
                const size_t bytes = number == 0 ? SHC_BULK_BYTES : 2 * SHC_BULK_BYTES;
                Message(rank.rank == 0 ? SHC_SEND : SHC_RECV, 0, 1 - rank.rank, number, bytes)
                    .run(rank);
            }
            Message(rank.rank == 0 ? SHC_RECV : SHC_SEND, 1, 1 - rank.rank, kAnnounced, 0)
                .run(rank);
            const shc_pair &pair = p2p.pairs.pairs[1 - rank.rank];
            if (rank.rank == 0) {
                EXPECT_GT(pair.whole_sent, 100u) << "most of them went through the lines";
                EXPECT_TRUE(shc_window_bulk_was_read(&p2p.pairs, 1, pair.bulk_lent));
                EXPECT_GT(pair.bulk_lent, pair.whole_sent);
            }
        });
}

// They go round for one reader: a rank's messages to itself take others.
TEST(BulkWindows, AreNotForMessagesToOneself)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        for (int turn = 0; turn < 2; turn++) {
            const int peer = turn == 0 ? rank.rank : 1 - rank.rank;
            Message in(SHC_RECV, peer, peer, turn, kRound);
            in.start(rank);
            Message(SHC_SEND, rank.rank, peer, turn, kRound).run(rank);
            in.end();
        }
        EXPECT_EQ(rank.comm->p2p.pairs.pairs[rank.rank].bulk_lent, 0u);
        EXPECT_EQ(rank.comm->p2p.pairs.pairs[1 - rank.rank].bulk_lent, SHC_BULK_WINDOWS);
    });
}

} // namespace
