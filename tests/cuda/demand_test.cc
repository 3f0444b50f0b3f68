// SPDX-License-Identifier: BSD-3-Clause
// What a call demands: what is refused, flat memory, the words that ranks compare.
extern "C" {
#include "cuda_ipc/cuda_error.h"
#include "cuda_ipc/demand.h"
}

#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

namespace shmcoll::test
{
namespace
{

// Tensors of these sizes, one after the other; their content is never read.
struct List {
    List(std::initializer_list<std::vector<int64_t>> of) : sizes(of)
    {
        for (auto &one : sizes) {
            int64_t count = 1;
            for (int64_t size : one)
                if (__builtin_mul_overflow(count, size, &count))
                    count = 0; // more than there is memory
            tensors.push_back(
                {memory.data() + used, static_cast<int32_t>(one.size()), one.data(), nullptr});
            used += static_cast<size_t>(count > 0 ? count : 0) * 4;
        }
    }
    List(const List &) = delete;
    List &operator=(const List &) = delete;
    shc_tensors view() const { return {tensors.data(), static_cast<uint32_t>(tensors.size())}; }

    std::vector<char> memory = std::vector<char>(4096);
    size_t used = 0;
    std::vector<std::vector<int64_t>> sizes;
    std::vector<shc_tensor> tensors;
};

shc_op op_of(shc_op_kind kind, const List &in, const List &out)
{
    shc_op op = {};
    op.kind = kind;
    op.dtype = SHC_FLOAT32;
    op.input = in.view();
    op.output = out.view();
    return op;
}

struct Made {
    explicit Made(const shc_op &op, int rank = 0, int world = 2)
        : st(shc_demand_make(&op, rank, world, demand.get()))
    {
    }
    std::string text(uint64_t sequence = 7) const
    {
        char text[200];
        shc_call_words_text(demand->call, sequence, text, sizeof text);
        return text;
    }
    std::unique_ptr<shc_demand> demand = std::make_unique<shc_demand>();
    shc_status st;
};

TEST(Demand, AFlatVectorGoesFromTensorToTensorOverEmptyOnes)
{
    List list{{0}, {2, 3}, {5, 0, 2}, {}, {4}};
    Made made(op_of(SHC_ALL_REDUCE, list, list));
    ASSERT_EQ(made.st, SHC_OK) << shc_cuda_failure();
    shc_flat &flat = made.demand->in;
    ASSERT_EQ(flat.bytes, (6u + 1 + 4) * 4);
    for (uint64_t at : {0, 4, 23, 24, 27, 28, 43, 3, 24, 0}) { // forwards, and back again
        uint64_t run;
        EXPECT_EQ(shc_flat_at(&flat, at, &run), list.memory.data() + at) << at;
        EXPECT_EQ(run, at < 24 ? 24 - at : at < 28 ? 28 - at : 44 - at) << at;
    }
}

TEST(Demand, AContiguousTensorMayHaveAnyStrideWhereThereIsOneElement)
{
    List list{{1, 4, 1, 2}};
    const int64_t dense[] = {77, 2, 99, 1}, gaps[] = {8, 4, 2, 1};
    list.tensors[0].strides = dense;
    EXPECT_EQ(Made(op_of(SHC_ALL_REDUCE, list, list)).st, SHC_OK);
    list.tensors[0].strides = gaps;
    EXPECT_EQ(Made(op_of(SHC_ALL_REDUCE, list, list)).st, SHC_ERR_UNSUPPORTED);
}

TEST(Demand, WhatIsWrongIsRefused)
{
    const List one{{4}}, two{{8}}, pair{{4}, {4}}, negative{{-1}}, huge{{1LL << 62, 4}};
    EXPECT_EQ(Made(op_of(SHC_ALL_REDUCE, one, two)).st, SHC_ERR_INVALID);
    EXPECT_EQ(Made(op_of(SHC_ALL_GATHER, one, two)).st, SHC_OK);
    EXPECT_EQ(Made(op_of(SHC_ALL_GATHER, one, two), 0, 3).st, SHC_ERR_INVALID);
    EXPECT_EQ(Made(op_of(SHC_REDUCE_SCATTER, two, one)).st, SHC_OK);
    EXPECT_EQ(Made(op_of(SHC_REDUCE_SCATTER, one, two)).st, SHC_ERR_INVALID);
    EXPECT_EQ(Made(op_of(SHC_ALL_TO_ALL, pair, pair)).st, SHC_OK);
    EXPECT_EQ(Made(op_of(SHC_ALL_TO_ALL, one, pair)).st, SHC_ERR_INVALID);
    EXPECT_EQ(Made(op_of(SHC_ALL_GATHER_UNEVEN, one, pair)).st, SHC_OK);
    EXPECT_EQ(Made(op_of(SHC_ALL_GATHER_UNEVEN, two, pair)).st, SHC_ERR_INVALID);
    EXPECT_EQ(Made(op_of(SHC_ALL_REDUCE, negative, negative)).st, SHC_ERR_INVALID);
    EXPECT_EQ(Made(op_of(SHC_ALL_REDUCE, huge, huge)).st, SHC_ERR_INVALID);
    EXPECT_EQ(Made(op_of(static_cast<shc_op_kind>(99), one, one)).st, SHC_ERR_INVALID);
    shc_op op = op_of(SHC_BROADCAST, one, one);
    op.root = 2;
    EXPECT_EQ(Made(op).st, SHC_ERR_INVALID);
    op = op_of(SHC_ALL_REDUCE, one, one);
    op.dtype = SHC_DTYPE_COUNT;
    EXPECT_EQ(Made(op).st, SHC_ERR_INVALID);
    op.dtype = SHC_OPAQUE;
    EXPECT_EQ(Made(op).st, SHC_ERR_INVALID); // of no bytes
}

TEST(Demand, AMessageNamesItsPeer)
{
    const List one{{4}};
    shc_op op = op_of(SHC_SEND, one, one);
    for (int peer : {-2, SHC_ANY_SOURCE, 2}) {
        op.peer = peer;
        op.kind = SHC_SEND;
        EXPECT_EQ(Made(op).st, SHC_ERR_INVALID) << peer;
        op.kind = SHC_RECV;
        EXPECT_EQ(Made(op).st, peer == SHC_ANY_SOURCE ? SHC_ERR_UNSUPPORTED : SHC_ERR_INVALID)
            << peer;
    }
    op.peer = 1;
    EXPECT_EQ(Made(op).st, SHC_OK) << shc_cuda_failure();
}

// What the receiver compares: both ends have the same words if their calls are the same.
TEST(Demand, BothEndsOfAMessageHaveTheSameWords)
{
    const List one{{4}}, two{{8}};
    shc_op send = op_of(SHC_SEND, one, one), receive = op_of(SHC_RECV, one, one);
    send.output = receive.input = {nullptr, 17}; // the other side may be anything
    send.peer = 1;
    send.tag = receive.tag = -5;
    auto differ = [](const Made &a, const Made &b) {
        return memcmp(a.demand->call, b.demand->call, sizeof a.demand->call) != 0;
    };
    EXPECT_FALSE(differ(Made(send, 0), Made(receive, 1)));
    receive.tag = 5;
    EXPECT_TRUE(differ(Made(send, 0), Made(receive, 1)));
    receive = op_of(SHC_RECV, two, two);
    receive.tag = -5;
    EXPECT_TRUE(differ(Made(send, 0), Made(receive, 1)));
    char text[200];
    const Made made(send, 0);
    shc_message_words_text(made.demand->call, true, "rank 1", 7, text, sizeof text);
    EXPECT_STREQ(text, "send #7 to rank 1 (float32[4], tag -5)");
    shc_message_words_text(made.demand->call, false, "rank 0", 7, text, sizeof text);
    EXPECT_STREQ(text, "recv #7 from rank 0 (float32[4], tag -5)");
}

// A rank looks only at the side that it has.
TEST(Demand, TheOtherSideMayBeAnything)
{
    const List one{{4}};
    shc_op op = op_of(SHC_BROADCAST, one, one);
    op.output = {nullptr, 17};
    EXPECT_EQ(Made(op, 0).st, SHC_OK);
    EXPECT_EQ(Made(op, 1).st, SHC_ERR_INVALID);
}

TEST(Demand, WordsAreTheSameOnAllRanksAndSayTheCall)
{
    const List one{{4}}, two{{8}}, three{{3}}, pair{{3}, {4}}, other_pair{{4}, {3}};
    shc_op op = op_of(SHC_SCATTER, two, one);
    op.root = 1;
    for (int rank : {0, 1})
        EXPECT_EQ(Made(op, rank).text(), "scatter #7 (float32[4], root 1)");
    EXPECT_EQ(Made(op_of(SHC_ALL_REDUCE, one, one)).text(), "all_reduce #7 (float32[4], sum)");
    EXPECT_EQ(Made(op_of(SHC_BARRIER, one, one)).text(), "barrier #7");
    const Made uneven(op_of(SHC_ALL_GATHER_UNEVEN, three, pair), 0);
    const Made other(op_of(SHC_ALL_GATHER_UNEVEN, one, other_pair), 0);
    ASSERT_EQ(uneven.st, SHC_OK) << shc_cuda_failure();
    ASSERT_EQ(other.st, SHC_OK) << shc_cuda_failure();
    EXPECT_NE(memcmp(uneven.demand->call, other.demand->call, sizeof other.demand->call), 0);
}

// The words come from another process.
TEST(Demand, WildWordsHaveATextToo)
{
    uint64_t words[SHC_RECORD_CALL_WORDS];
    for (auto &word : words)
        word = UINT64_MAX;
    char text[200];
    shc_message_words_text(words, true, "rank 0", 1, text, sizeof text);
    EXPECT_NE(std::string(text).find("(unknown["), std::string::npos) << text;
    shc_call_words_text(words, 1, text, sizeof text);
    EXPECT_NE(std::string(text).find("an unknown call #1 (unknown["), std::string::npos) << text;
}

} // namespace
} // namespace shmcoll::test
