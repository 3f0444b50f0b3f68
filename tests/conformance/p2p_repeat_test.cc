// SPDX-License-Identifier: BSD-3-Clause

// Synchronous messages that are like the one before, or differ from
// it in a single point: what a rank keeps of its last message must never pass for the next one.
#include "tests/support/ranks.h"

#include <gtest/gtest.h>
#include <random>
#include <thread>
#include <vector>

using namespace shmcoll::test;

namespace
{

const int kTurns = 600;

// What both sides of a message agree on.
struct Wish {
    shc_dtype dtype;
    int64_t count;
    int tag;
    bool strided; // each second element of the memory
    bool in_two;  // a list of two adjacent tensors
    unsigned char first;
};

struct Message {
    Wish wish;
    std::vector<unsigned char> memory;
    int64_t size, stride;
    shc_tensor tensors[2];
    shc_op op = {};

    Message(const Wish &what, shc_op_kind kind, int peer)
        : wish(what), memory(static_cast<size_t>(2 * what.count) * elem() + 8, 0xee),
          size(what.in_two ? what.count / 2 : what.count), stride(what.strided ? 2 : 1)
    {
        tensors[0] = {memory.data(), 1, &size, what.strided ? &stride : nullptr};
        tensors[1] = tensors[0];
        tensors[1].data = memory.data() + static_cast<size_t>(size) * elem();
        op.kind = kind;
        op.dtype = what.dtype;
        op.peer = peer;
        op.tag = what.tag;
        op.input = op.output = {tensors, what.in_two ? 2u : 1u};
        for (size_t i = 0; kind == SHC_SEND && i < bytes(); i++)
            memory[place(i)] = value(i);
    }
    size_t elem() const { return shc_dtype_bytes(wish.dtype); }
    size_t bytes() const { return static_cast<size_t>(wish.count) * elem(); }
    size_t place(size_t i) const { return wish.strided ? i / elem() * elem() * 2 + i % elem() : i; }
    unsigned char value(size_t i) const { return static_cast<unsigned char>(wish.first + 3 * i); }

    void run(Rank &rank) { ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text(); }
    void check() const
    {
        for (size_t i = 0; i < bytes(); i++)
            ASSERT_EQ(memory[place(i)], value(i)) << "byte " << i << " of " << bytes();
    }
};

// The next request is the last one except for one point, or is the same.
void change(Wish &wish, std::mt19937 &random)
{
    wish.first++;
    switch (random() % 8) {
    case 0:
        wish.dtype = wish.dtype == SHC_UINT8 ? SHC_FLOAT32 : SHC_UINT8;
        break;
    case 1:
        wish.count = static_cast<int64_t>(random() % 5) * 2;
        break;
    case 2:
        wish.count = static_cast<int64_t>(random() % 3000) * 2;
        break;
    case 3:
        wish.tag++;
        break;
    case 4:
        wish.strided = !wish.strided && !wish.in_two;
        break;
    case 5:
        wish.in_two = !wish.in_two && !wish.strided;
        break;
    default:
        break;
    }
}

TEST(RepeatedMessages, DifferInWhateverPoint)
{
    for (Mode mode : modes())
        run_ranks(mode, 3, [](Rank &rank) {
            std::mt19937 random(7);
            Wish wish = {SHC_FLOAT32, 2, 0, false, false, 0};
            for (int turn = 0; turn < kTurns && !testing::Test::HasFatalFailure(); turn++) {
                change(wish, random);
                const int sender = static_cast<int>(random() % 3);
                const int receiver = (sender + 1 + static_cast<int>(random() % 2)) % 3;
                if (rank.rank == sender)
                    Message(wish, SHC_SEND, receiver).run(rank);
                if (rank.rank != receiver)
                    continue;
                Message in(wish, SHC_RECV, sender);
                in.run(rank);
                in.check();
            }
        });
}

// After a good message of its kind, each is refused or fails as it does alone.
TEST(RepeatedMessages, ThatAreWrongAreRefused)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        const int peer = 1 - rank.rank;
        const Wish wish = {SHC_FLOAT32, 2, 0, false, false, 1};
        Message there(wish, SHC_SEND, peer), back(wish, SHC_RECV, peer);
        for (Message *message : {rank.rank ? &back : &there, rank.rank ? &there : &back})
            message->run(rank);
        for (Message *message : {&there, &back}) {
            for (int wrong : {2, -7}) {
                message->op.peer = wrong;
                EXPECT_EQ(shc_run(rank.comm, &message->op), SHC_ERR_INVALID);
            }
            message->op.peer = peer;
            message->op.dtype = SHC_DTYPE_COUNT;
            EXPECT_EQ(shc_run(rank.comm, &message->op), SHC_ERR_INVALID);
            message->op.dtype = SHC_FLOAT32;
            message->tensors[0].data = nullptr;
            EXPECT_EQ(shc_run(rank.comm, &message->op), SHC_ERR_INVALID);
        }
        Message short_one({SHC_FLOAT32, 1, 0, false, false, 1}, SHC_SEND, peer);
        Message again(wish, SHC_RECV, peer);
        if (rank.rank == 0)
            short_one.run(rank);
        else
            EXPECT_EQ(shc_run(rank.comm, &again.op), SHC_ERR_MISMATCH) << error_text();
    });
}

// Two threads of a rank send and receive at once, each messages of its own size.
TEST(RepeatedMessages, OfTwoThreadsAreTheirOwn)
{
    for (Mode mode : modes())
        run_ranks(mode, 2, [](Rank &rank) {
            auto talk = [&rank](int tag) {
                for (int turn = 0; turn < kTurns; turn++) {
                    const Wish wish = {SHC_UINT8, tag == 1 ? 8 : 200,
                                       tag,       false,
                                       false,     static_cast<unsigned char>(turn)};
                    Message out(wish, SHC_SEND, 1 - rank.rank), in(wish, SHC_RECV, 1 - rank.rank);
                    if (rank.rank == 0)
                        out.run(rank);
                    in.run(rank);
                    in.check();
                    if (rank.rank == 1)
                        out.run(rank);
                    if (testing::Test::HasFatalFailure())
                        return;
                }
            };
            std::thread other([&] { talk(1); });
            talk(2);
            other.join();
        });
}

} // namespace
