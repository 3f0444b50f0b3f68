// SPDX-License-Identifier: BSD-3-Clause
// Cycles of waits on the board of this process, which stands for all ranks: each of them has parts of its own there.
extern "C" {
#include "shm/proto/deadlock.h"
#include "shm/shmcoll.h"
}

#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

namespace
{

constexpr uint64_t kMain = 100, kWorker = 50; // threads: rank r's are kMain + r and kWorker + r

class Deadlock : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        ASSERT_EQ(shc_os_process_self(&self_), 0);
        shc_board_process_make(&process_, &self_);
        ASSERT_NE(process_.header, nullptr);
    }

    void TearDown() override
    {
        shc_os_unmap(process_.header,
                     SHC_PAGE_BYTES + SHC_BOARD_GROUPS * sizeof(shc_board_group_shm), 0);
        close(process_.fd);
    }

    // The part of a rank (its number in the job) in the group of that name and those members; made when it is asked
    // for first.
    shc_board part(const std::string &name, const std::vector<int> &members, int rank)
    {
        shc_board &board = boards_[name + std::to_string(rank)];
        if (board.shm)
            return board;
        const std::vector<int32_t> global(members.begin(), members.end());
        int at = 0;
        while (members[at] != rank)
            at++;
        const shc_board_facts facts = {
            name.c_str(), name.c_str(), at, static_cast<int>(members.size()), global.data(), 0};
        shc_board_begin(&board, &process_, &facts);
        memcpy(board.shm->nonce, name.c_str(), std::min(name.size(), sizeof board.shm->nonce));
        for (size_t i = 0; i < members.size(); i++)
            board.shm->pids[i] = self_.pid;
        shc_a32_store_release(&board.shm->state, SHC_BOARD_MADE);
        shc_board_use(&board, kMain + rank);
        return board;
    }

    // The rank has entered call `epoch` of its group at that time, and its main thread sleeps there.
    void enter(const shc_board &board, int peer, uint64_t since, uint64_t epoch = 1)
    {
        shc_call call = {};
        call.kind = SHC_ALL_REDUCE;
        call.dtype = SHC_FLOAT32;
        call.count = 4;
        call.elem_bytes = 4;
        shc_board_enter(&board, epoch, &call);
        shc_board_wait(&board, epoch, peer, since, since);
        shc_board_block(&board, shc_a64_load_relaxed(&board.shm->user), nullptr, since);
    }

    // Its main thread sleeps in a message.
    void await(const shc_board &board, shc_op_kind kind, int peer, uint64_t since)
    {
        const shc_board_awaited message = {kind, peer, 7};
        shc_board_block(&board, shc_a64_load_relaxed(&board.shm->user), &message, since);
    }

    // What the rank with that part finds.
    std::string find(const shc_board &board, const shc_board_awaited *message = nullptr)
    {
        char text[SHC_DEADLOCK_TEXT] = "";
        shc_seat seat = {};
        seat.board = board;
        seat.self = self_;
        seat.rank = board.shm->rank;
        memcpy(seat.segment.name.nonce, board.shm->nonce, sizeof board.shm->nonce);
        EXPECT_FALSE(shc_deadlock_find(&seat, message, text, sizeof text)) << "seen once";
        if (!shc_deadlock_is_suspected(&seat, message != nullptr))
            return "";
        EXPECT_FALSE(shc_deadlock_find(&seat, message, text, sizeof text))
            << "no thread has looked again";
        for (const auto &[key, each] : boards_)
            shc_board_look(&each, shc_clock_ns());
        const bool found = shc_deadlock_find(&seat, message, text, sizeof text);
        EXPECT_EQ(found, text[0] != '\0');
        char again[SHC_DEADLOCK_TEXT];
        EXPECT_FALSE(shc_deadlock_find(&seat, message, again, sizeof again)) << "said twice";
        return text;
    }

    // Rank 0 waits in "a" for rank 1, and rank 1, later, in "b" for rank 0.
    void plant()
    {
        a0_ = part("a", {0, 1}, 0);
        a1_ = part("a", {0, 1}, 1);
        b0_ = part("b", {1, 0}, 0);
        b1_ = part("b", {1, 0}, 1);
        enter(a0_, 1, 1000);
        enter(b1_, 1, 2000);
    }

    std::string pid() const { return std::to_string(self_.pid); }

    shc_os_process self_ = {};
    shc_board_process process_ = {};
    std::map<std::string, shc_board> boards_;
    shc_board a0_, a1_, b0_, b1_;
};

TEST_F(Deadlock, TheLastOneToWaitNamesEveryWait)
{
    plant();
    EXPECT_EQ(find(a0_), "") << "the other one is late last";
    EXPECT_EQ(find(b1_), "DEADLOCK: rank 1 (pid " + pid() +
                             ") waits in all_reduce #1 (float32[4], sum) on group \"b\" for rank "
                             "0; rank 0 (pid " +
                             pid() +
                             ") waits in all_reduce #1 (float32[4], sum) on group \"a\" for rank "
                             "1");
}

TEST_F(Deadlock, ARankThatGoesOnIsNoPartOfOne)
{
    plant();
    shc_board_unblock(&a0_); // its library thread waits there, and its main thread computes
    EXPECT_EQ(find(b1_), "");
    shc_board_block(&a0_, kWorker, nullptr, 1000); // another thread waits; the main thread may call
    EXPECT_EQ(find(b1_), "");
}

TEST_F(Deadlock, ARankThatHasEnteredIsNotWaitedFor)
{
    plant();
    shc_call call = {};
    shc_board_enter(&b0_, 1, &call);
    EXPECT_EQ(find(b1_), "");
}

TEST_F(Deadlock, WhatIsQueuedMayComeBeforeTheThreadGoesOn)
{
    plant();
    shc_board_submit(&b0_);
    EXPECT_EQ(find(b1_), "");
    shc_board_end_queued(&b0_);
    EXPECT_NE(find(b1_), "");
}

TEST_F(Deadlock, AGroupThatHasFailedIsNoPartOfOne)
{
    plant();
    const shc_board_end nobodys = {0, -1, 0, false, {SHC_OS_END_UNKNOWN, 0}, 0, nullptr};
    shc_board_fail(&a0_, SHC_ERR_TIMEOUT, "its time is over", &nobodys);
    EXPECT_EQ(find(b1_), "");
}

// Rank 1's library thread is in an earlier call of "a", and waits there for rank 2.
TEST_F(Deadlock, AnEarlierCallOfTheSameGroupIsAStepOfTheCycle)
{
    const std::vector<int> all = {0, 1, 2};
    const shc_board a0 = part("a", all, 0), a1 = part("a", all, 1), b2 = part("b", {0, 2}, 2);
    part("a", all, 2);
    part("b", {0, 2}, 0);
    enter(a1, 2, 1000, 1);
    shc_board_unblock(&a1);
    enter(a0, 1, 2000, 2);
    EXPECT_EQ(find(a0), "") << "rank 2 computes";
    enter(b2, 0, 3000);
    const std::string text = find(b2);
    EXPECT_NE(text.find("rank 2 (pid " + pid() + ") waits in all_reduce #1"), std::string::npos);
    EXPECT_NE(text.find("all_reduce #2 (float32[4], sum) on group \"a\" for rank 2"),
              std::string::npos)
        << text;
}

TEST_F(Deadlock, MessagesAndCallsTogether)
{
    const std::vector<int> all = {0, 1};
    const shc_board a0 = part("a", all, 0), a1 = part("a", all, 1);
    enter(a0, 1, 1000);
    await(a1, SHC_RECV, 0, 2000);
    shc_board_pend(&a1, SHC_RECV, 1);
    const shc_board_awaited late = {SHC_RECV, 0, 7}, other = {SHC_RECV, 0, 8};
    EXPECT_EQ(find(a1, &other), "") << "nobody waits for that message";
    EXPECT_EQ(find(a1, &late), "DEADLOCK: rank 1 (pid " + pid() +
                                   ") waits in recv (tag 7) on group \"a\" for rank 0; rank 0 "
                                   "(pid " +
                                   pid() +
                                   ") waits in all_reduce #1 (float32[4], sum) on group \"a\" for "
                                   "rank 1");
}

TEST_F(Deadlock, TwoSendsToOneAnother)
{
    const std::vector<int> all = {0, 1};
    const shc_board a0 = part("a", all, 0), a1 = part("a", all, 1);
    await(a0, SHC_SEND, 1, 1000);
    shc_board_pend(&a0, SHC_SEND, 1);
    await(a1, SHC_SEND, 0, 2000);
    shc_board_pend(&a1, SHC_SEND, 1);
    const shc_board_awaited late = {SHC_SEND, 0, 7};
    EXPECT_NE(find(a1, &late), "");
}

TEST_F(Deadlock, AMessageOfAnyRankIsNoPartOfOne)
{
    const std::vector<int> all = {0, 1};
    const shc_board a0 = part("a", all, 0), a1 = part("a", all, 1);
    await(a0, SHC_RECV, -1, 1000);
    await(a1, SHC_SEND, 0, 2000);
    const shc_board_awaited late = {SHC_SEND, 0, 7}, any = {SHC_RECV, -1, 7};
    EXPECT_EQ(find(a1, &late), "");
    EXPECT_EQ(find(a0, &any), "");
}

TEST_F(Deadlock, AMessageThatIsUnderWayIsNoPartOfOne)
{
    const std::vector<int> all = {0, 1};
    const shc_board a0 = part("a", all, 0), a1 = part("a", all, 1);
    const shc_board_awaited late = {SHC_SEND, 0, 7};
    await(a0, SHC_RECV, 1, 1000);
    shc_board_pend(&a0, SHC_RECV, 1);
    await(a1, SHC_SEND, 0, 2000);
    shc_board_pend(&a1, SHC_SEND, 1);
    EXPECT_EQ(find(a1, &late), "") << "they match";
    shc_board_unblock(&a0);
    enter(a0, 1, 1500);
    EXPECT_EQ(find(a1, &late), "") << "rank 0 has posted a receive, and waits in a call";
    shc_board_pend(&a0, SHC_RECV, -1);
    EXPECT_NE(find(a1, &late), "");
}

// Ranks 0 and 1 call "a", ranks 2 and 3 call "b": four cycles, and one line.
TEST_F(Deadlock, OneOfManyRanksSpeaks)
{
    const std::vector<int> all = {0, 1, 2, 3};
    std::string said;
    for (int rank = 0; rank < 4; rank++) {
        part(rank < 2 ? "b" : "a", all, rank);
        enter(part(rank < 2 ? "a" : "b", all, rank), 3 - rank, 1000 * (1 + rank * 3 % 4));
    }
    int lines = 0;
    for (int rank = 0; rank < 4; rank++)
        lines += !find(part(rank < 2 ? "a" : "b", all, rank)).empty();
    EXPECT_EQ(lines, 1);
}

// Another program may have written to the file before it was sealed, or this one may have a fault.
TEST_F(Deadlock, DamagedBoardsDoNoHarm)
{
    std::mt19937 random(7);
    plant();
    shc_board parts[] = {a0_, a1_, b0_, b1_};
    for (int turn = 0; turn < 3000; turn++) {
        for (int i = 0; i < 3; i++) {
            auto *group = parts[random() % 4].shm;
            const size_t place = random() % 3 ? random() % 1024 : random() % (SHC_PAGE_BYTES + 64);
            reinterpret_cast<unsigned char *>(group)[place] = random() % 2 ? 0xff : random() % 4;
        }
        char text[SHC_DEADLOCK_TEXT];
        shc_seat seat = {};
        seat.board = b1_;
        seat.self = self_;
        seat.rank = 0;
        memcpy(seat.segment.name.nonce, "b", 1);
        (void)shc_deadlock_find(&seat, nullptr, text, sizeof text);
        if (turn % 4 == 3) { // from time to time a sound one, with one wrong value
            boards_.clear();
            for (auto &each : parts)
                shc_board_free(&each);
            plant();
            parts[0] = a0_;
            parts[1] = a1_;
            parts[2] = b0_;
            parts[3] = b1_;
        }
    }
}

} // namespace
