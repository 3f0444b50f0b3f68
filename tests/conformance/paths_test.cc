// SPDX-License-Identifier: BSD-3-Clause

// Which path each size takes: the tables, pinned, so that a change of
// policy is a change of this file; and that messages do take the path that the table names first.
#include "tests/support/messages.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

extern "C" {
#include "shm/coll/paths.h"
#include "shm/comm/comm.h"
#include "shm/p2p/protocols.h"
}

using namespace shmcoll::test;

namespace
{

const size_t kK = 1024, kM = kK * kK;
const size_t kSizes[] = {8, kK, 8 * kK, 32 * kK, 200 * kK, kM, 16 * kM};

// The paths of the sizes above.
std::string paths_of(shc_op_kind kind, int world)
{
    shc_tuning tuning = shc_tuning_default(0, 0);
    shc_select_settle(&tuning, world, 0, false);
    std::string paths;
    for (const size_t bytes : kSizes) {
        const char *path = shc_coll_path(&tuning, kind, bytes, world, true);
        paths += std::string(paths.empty() ? "" : " | ") + (path ? path : "-");
    }
    return paths;
}

std::string protocols_of(size_t bytes, int world)
{
    const shc_mail_geometry mail = shc_mail_plan(world);
    char text[128];
    shc_protocols_text(&mail, bytes, text, sizeof text);
    return text;
}

struct Pinned {
    shc_op_kind kind;
    int world;
    const char *paths;
};

const Pinned kPinned[] = {
    // clang-format off
    {SHC_BARRIER, 2, "- | - | - | - | - | - | -"},
    {SHC_BROADCAST, 2, "call line | hand-off | hand-off | pipelined | pipelined | pipelined | pipelined"},
    {SHC_GATHER, 2, "call line | hand-off | hand-off | pipelined | pipelined | pipelined | pipelined"},
    {SHC_SCATTER, 2, "call line | hand-off | hand-off | pipelined | pipelined | pipelined | pipelined"},
    {SHC_REDUCE, 2, "call line | hand-off | hand-off | pipelined | pipelined | pipelined | pipelined"},
    {SHC_ALL_GATHER, 2, "call line | small slot | pipelined | pipelined | pipelined | pipelined | pipelined"},
    {SHC_REDUCE_SCATTER, 2, "call line | small slot | pipelined | pipelined | pipelined | pipelined | pipelined"},
    {SHC_ALL_REDUCE, 2, "call line | small slot | direct exchange | direct exchange | pipelined; push if shared | pipelined; push if shared | unpipelined; push if shared"},
    {SHC_ALL_TO_ALL, 2, "call line | small slot | pipelined | pipelined | pipelined | pipelined | pipelined"},
    {SHC_BROADCAST, 4, "call line | small slot | small slot | pipelined | pipelined | pipelined | pipelined"},
    {SHC_GATHER, 4, "call line | small slot | small slot | pipelined | pipelined | pipelined | pipelined"},
    {SHC_SCATTER, 4, "call line | small slot | pipelined | pipelined | pipelined | pipelined | single-copy"},
    {SHC_REDUCE, 4, "call line | small slot | small slot | pipelined | reduce-scatter, gather | reduce-scatter, gather | reduce-scatter, gather"},
    {SHC_ALL_GATHER, 4, "call line | small slot | small slot | pipelined | pipelined | pipelined | pipelined"},
    {SHC_REDUCE_SCATTER, 4, "call line | small slot | small slot | pipelined | pipelined | pipelined | pipelined"},
    {SHC_ALL_REDUCE, 4, "call line | small slot | two-phase | pipelined | pipelined; push if shared | pipelined; push if shared | pipelined; push if shared"},
    {SHC_ALL_TO_ALL, 4, "small slot | small slot | pipelined | pipelined | pipelined | pipelined | pipelined"},
    {SHC_SCATTER, 16, "small slot | pipelined | pipelined | pipelined | single-copy | single-copy | single-copy"},
    {SHC_REDUCE, 16, "call line | small slot | two-phase | reduce-scatter, gather | reduce-scatter, gather | reduce-scatter, gather | reduce-scatter, gather"},
    {SHC_ALL_REDUCE, 16, "call line | two-phase | two-phase | pipelined | pipelined; push if shared | pipelined; push if shared | pipelined; push if shared"},
    {SHC_ALL_TO_ALL, 16, "small slot | pipelined | pipelined | pipelined | pipelined | pipelined | pipelined"},
    // clang-format on
};

// A short all_reduce has no pipeline, whatever the key says.
TEST(Paths, OfShortSumsAreNeverUnpipelined)
{
    shc_tuning tuning = shc_tuning_default(0, 0);
    tuning.unpipelined_bytes = 0;
    shc_select_settle(&tuning, 2, 0, false);
    EXPECT_STREQ(shc_coll_path(&tuning, SHC_ALL_REDUCE, 8, 2, true), "call line");
    EXPECT_STREQ(shc_coll_path(&tuning, SHC_ALL_REDUCE, 63 * kK, 2, true), "unpipelined");
    EXPECT_STREQ(shc_coll_path(&tuning, SHC_ALL_REDUCE, 64 * kK, 2, true),
                 "unpipelined; push if shared");
}

TEST(Paths, OfCollectivesArePinned)
{
    for (const Pinned &pinned : kPinned)
        EXPECT_EQ(paths_of(pinned.kind, pinned.world), pinned.paths)
            << shc_op_kind_name(pinned.kind) << " of " << pinned.world << " ranks";
}

TEST(Paths, OfMessagesArePinned)
{
    const struct {
        size_t bytes;
        const char *two, *sixteen, *sixty_four;
    } pinned[] = {
        {0, "hand-off, line", "hand-off, line", "line"},
        {88, "hand-off, line", "hand-off, line", "line"},
        {89, "hand-off, eager, rendezvous", "hand-off, eager, rendezvous", "eager, rendezvous"},
        {2 * kK, "hand-off, eager, rendezvous", "eager, rendezvous", "eager, rendezvous"},
        {8 * kK - 1, "hand-off, eager, rendezvous", "eager, rendezvous", "eager, rendezvous"},
        {8 * kK, "hand-off, eager pool, eager, rendezvous", "eager, rendezvous",
         "eager, rendezvous"},
        {16 * kK, "hand-off, eager pool, eager, rendezvous", "eager, rendezvous",
         "eager, rendezvous"},
        {16 * kK + 1, "long hand-off, eager pool, rendezvous", "rendezvous", "rendezvous"},
        {128 * kK, "long hand-off, eager pool, rendezvous", "rendezvous", "rendezvous"},
        {128 * kK + 1, "long hand-off, hand-off prefix, eager pool, rendezvous", "rendezvous",
         "rendezvous"},
        {512 * kK + 1, "hand-off prefix, eager pool, rendezvous", "rendezvous", "rendezvous"},
        {kM + 1, "hand-off prefix, rendezvous", "rendezvous", "rendezvous"},
    };
    for (const auto &row : pinned) {
        EXPECT_EQ(protocols_of(row.bytes, 2), row.two) << row.bytes;
        EXPECT_EQ(protocols_of(row.bytes, 16), row.sixteen) << row.bytes;
        EXPECT_EQ(protocols_of(row.bytes, 64), row.sixty_four) << row.bytes;
    }
}

// The protocol by which the oldest line from rank 0 came.
shc_protocol protocol_of_line(const shc_pairs &pairs)
{
    const shc_line_head &head = shc_pair_peek(&pairs, 0).line->head;
    if (head.kind == SHC_FRAME_FIRST && head.asks)
        return head.place.memory == SHC_IN_LONG_HAND_OFF ? SHC_PROTOCOL_HAND_OFF_PREFIX
                                                         : SHC_PROTOCOL_RENDEZVOUS;
    switch (head.place.memory) {
    case SHC_IN_HAND_OFF:
        return SHC_PROTOCOL_HAND_OFF;
    case SHC_IN_LINE:
        return SHC_PROTOCOL_LINE;
    case SHC_IN_EAGER:
        return SHC_PROTOCOL_EAGER;
    case SHC_IN_LONG_HAND_OFF:
        return SHC_PROTOCOL_LONG_HAND_OFF;
    default:
        return SHC_PROTOCOL_POOL;
    }
}

// The first one of the list of names; `away`: the first one that hands nothing over.
std::string first_of(const std::string &names, bool away)
{
    size_t begin = 0;
    for (;;) {
        const size_t end = names.find(", ", begin);
        const std::string name = names.substr(begin, end - begin);
        if (!away || name.find("hand-off") == std::string::npos || end == std::string::npos)
            return name;
        begin = end + 2;
    }
}

// The first message between two ranks; `away`: all hand-off buffers are with rank 1.
void expect_named_path(size_t bytes, int world, bool away)
{
    by_one_thread(
        [&](const Comms &comms) {
            shc_pair &pair = comms[0]->p2p.pairs.pairs[1];
            settle_trials(comms[0]->p2p);
            for (int which = 0; which < 2 && away; which++)
                pair.hand_offs.where[which] = pair.long_hand_offs.where[which] = SHC_AWAY;
            ByteMessage out(SHC_SEND, 1, 0, std::vector<unsigned char>(bytes, 1));
            out.start(comms[0]);
            ASSERT_NE(shc_pair_peek(&comms[1]->p2p.pairs, 0).line, nullptr);
            EXPECT_EQ(shc_protocols[protocol_of_line(comms[1]->p2p.pairs)].name,
                      first_of(protocols_of(bytes, world), away))
                << bytes << " bytes, " << world << " ranks" << (away ? ", away" : "");
            ByteMessage in(SHC_RECV, 0, 0, std::vector<unsigned char>(bytes, 0));
            in.start(comms[1]);
            pass_in_turns(comms, 80);
            EXPECT_TRUE(in.done() && out.done() && in.bytes == out.bytes) << bytes;
        },
        world);
}

TEST(Paths, OfMessagesAreTheNamedOnes)
{
    const size_t sizes[] = {1,       88,       89,           16 * kK, 16 * kK + 1,
                            64 * kK, 200 * kK, 512 * kK + 1, kM - kK, kM + 1};
    for (const size_t bytes : sizes) {
        expect_named_path(bytes, 2, false);
        expect_named_path(bytes, 2, true);
        expect_named_path(bytes, 4, false);
    }
}

TEST(Paths, StandInWhatAGroupSaysOfItself)
{
    run_ranks(Mode::kOwnMapping, 2, [](Rank &rank) {
        char text[8192];
        ASSERT_EQ(shc_comm_info(rank.comm, text, sizeof text), SHC_OK) << error_text();
        const std::string info = text;
        EXPECT_NE(info.find("\npath.send.200k=" + protocols_of(200 * kK, 2) + "\n"),
                  std::string::npos)
            << info;
        EXPECT_NE(info.find("\npath.all_reduce.8=call line\n"), std::string::npos) << info;
        EXPECT_EQ(info.find("\npath.barrier"), std::string::npos) << info;
    });
}

} // namespace
