// SPDX-License-Identifier: BSD-3-Clause

// Call lines: what is kept when a call repeats, and what a reader
// sees.
extern "C" {
#include "shm/proto/call.h"
#include "shm/proto/wait.h"
}

#include <algorithm>
#include <cstdlib>
#include <gtest/gtest.h>
#include <memory>
#include <string>

namespace
{

const int kWorld = 2;

struct Memory {
    void operator()(char *memory) const { std::free(memory); }
};

// The seats of two ranks over memory that was never used.
class Lines : public testing::Test
{
  protected:
    Lines() : memory_(static_cast<char *>(std::aligned_alloc(SHC_PAGE_BYTES, kBytes)))
    {
        std::fill_n(memory_.get(), kBytes, '\0');
        for (int rank = 0; rank < kWorld; rank++) {
            seats_[rank] = {};
            seats_[rank].segment.base = memory_.get();
            seats_[rank].rank = rank;
            seats_[rank].world_size = kWorld;
        }
    }

    void publish(int rank, uint64_t epoch, shc_call call)
    {
        shc_call_settle(&call);
        shc_call_publish(&seats_[rank], epoch, &call);
    }

    // What shc_call_meet() compares.
    bool same(uint64_t epoch) const
    {
        return shc_seat_call(&seats_[0], 1, epoch)->hash ==
               shc_seat_call(&seats_[0], 0, epoch)->hash;
    }

    // The newest call of rank 0 in words, as rank 1 reads it.
    std::string latest() const
    {
        char text[160];
        shc_call_latest_text(&seats_[1], 0, text, sizeof text);
        return text;
    }

    std::string last_clause() const
    {
        char text[160];
        shc_call_last_clause(&seats_[1], 0, text, sizeof text);
        return text;
    }

    // With no mailboxes: the hand-off slots lie after the blocks.
    static const size_t kBytes =
        SHC_BLOCKS_OFFSET + kWorld * SHC_BLOCK_BYTES + SHC_HAND_OFF_SLOTS * SHC_HAND_OFF_SLOT_BYTES;
    std::unique_ptr<char, Memory> memory_;
    shc_seat seats_[kWorld];
};

shc_call call_of(shc_op_kind kind, uint64_t count)
{
    shc_call call = {};
    call.kind = kind;
    call.dtype = SHC_FLOAT32;
    call.elem_bytes = 4;
    call.count = count;
    return call;
}

// All of a barrier's words are zero, and so are those of a line that has not been used.
TEST_F(Lines, ABarrierOnAnUnusedLineIsReadable)
{
    const shc_call barrier = {};
    EXPECT_EQ(latest(), "no call");
    EXPECT_EQ(last_clause(), "it had made no call yet");
    publish(0, 1, barrier);
    publish(1, 1, barrier);
    EXPECT_TRUE(same(1));
    EXPECT_EQ(latest(), "barrier #1");
    EXPECT_EQ(last_clause(), "its last call was barrier #1");
}

TEST_F(Lines, ACallThatRepeatsIsComparedAndRead)
{
    const shc_call a = call_of(SHC_ALL_REDUCE, 5), b = call_of(SHC_ALL_REDUCE, 6);
    const shc_call calls[] = {a, b, a, b, a, a, b, b, a};
    uint64_t epoch = UINT64_MAX - 3; // epochs may wrap; 0 only says that a line is unused
    for (const shc_call &call : calls) {
        epoch = epoch + 1 == 0 ? 1 : epoch + 1;
        publish(0, epoch, call);
        publish(1, epoch, a);
        EXPECT_EQ(same(epoch), call.count == a.count) << epoch;
        const std::string count = "[" + std::to_string(call.count) + "]";
        EXPECT_NE(latest().find("#" + std::to_string(epoch) + " "), std::string::npos) << latest();
        EXPECT_NE(latest().find(count), std::string::npos) << latest();
    }
}

// A group over hosts makes its calls of several operations of its island.
TEST_F(Lines, PartsOfAUsersCallSayThatCallAndAreComparedAsWhatTheyAre)
{
    shc_call users = call_of(SHC_BROADCAST, 9), part = call_of(SHC_ALL_GATHER, 128);
    users.number = 3;
    users.root = 7; // of more ranks than this group has
    part.said = &users;
    publish(0, 11, part);
    part.said = nullptr;
    publish(1, 11, part);
    EXPECT_TRUE(same(11));
    EXPECT_EQ(latest(), "broadcast #3 (float32[9], root 7)");
    EXPECT_EQ(last_clause(), "its last call was broadcast #3 (float32[9], root 7)");
    users.number = 4; // the same call again
    part.said = &users;
    publish(0, 12, part);
    EXPECT_EQ(latest(), "broadcast #4 (float32[9], root 7)");
    publish(0, 13, call_of(SHC_ALL_GATHER, 128));
    EXPECT_EQ(latest(), "all_gather #13 (float32[128])");
    shc_call read;
    EXPECT_EQ(shc_call_latest(&seats_[1], 0, &read), 13u); // epochs are compared as before
}

// Their sizes are compared after the meeting, in words that say more.
TEST_F(Lines, CountsOfUnevenListsAreReadButNotCompared)
{
    uint64_t epoch = 0;
    for (shc_op_kind kind : {SHC_ALL_GATHER_UNEVEN, SHC_REDUCE_SCATTER_UNEVEN}) {
        for (int round = 0; round < 5; round++) {
            epoch++;
            publish(0, epoch, call_of(kind, epoch));
            publish(1, epoch, call_of(kind, 100));
            EXPECT_TRUE(same(epoch)) << epoch;
            EXPECT_NE(latest().find("[" + std::to_string(epoch) + " in all]"), std::string::npos)
                << latest();
        }
    }
}

// A line whose words are being rewritten belongs to no call.
TEST_F(Lines, AnEpochWithoutItsSealIsNoCall)
{
    publish(0, 2, call_of(SHC_ALL_REDUCE, 5));
    shc_call_record_shm *record = shc_seat_call_record(&seats_[0], 0, 2);
    // relaxed: this thread alone.
    shc_a64_store_relaxed(&record->words[1], 6);
    EXPECT_EQ(latest(), "no call");
}

// With two ranks, the reader of a line is its next writer, in the same parity. With more ranks nothing
// changes hands.
TEST_F(Lines, OfTwoRanksChangeHands)
{
    for (uint64_t epoch : {uint64_t(0), uint64_t(1), uint64_t(2), UINT64_MAX - 2, UINT64_MAX})
        for (int rank = 0; rank < kWorld; rank++) {
            shc_seat &seat = seats_[rank];
            EXPECT_EQ(shc_seat_call(&seat, rank, epoch + 2), shc_seat_call(&seat, 1 - rank, epoch));
            EXPECT_EQ(shc_seat_small_slot(&seat, rank, epoch + 2),
                      shc_seat_small_slot(&seat, 1 - rank, epoch));
            EXPECT_NE(shc_seat_call(&seat, rank, epoch), shc_seat_call(&seat, rank, epoch + 1));
            EXPECT_NE(shc_seat_call(&seat, rank, epoch), shc_seat_call(&seat, 1 - rank, epoch));
        }
    shc_seat of_three = seats_[0];
    of_three.world_size = 3;
    for (uint64_t epoch = 0; epoch < 5; epoch++)
        for (int rank = 0; rank < of_three.world_size; rank++)
            EXPECT_EQ(shc_seat_host(&of_three, rank, epoch), rank);
}

// A rank's last call stays readable when its line is the other rank's.
TEST_F(Lines, TheLatestCallIsKnownWhoeverHasTheLine)
{
    const shc_call a = call_of(SHC_ALL_REDUCE, 5), b = call_of(SHC_ALL_REDUCE, 6);
    publish(0, 1, a);
    publish(1, 1, a);
    publish(0, 2, b);
    publish(1, 2, b);
    publish(1, 3, a); // to rank 0's line of operation 1
    EXPECT_NE(latest().find("#2 "), std::string::npos) << latest();
    EXPECT_NE(latest().find("[6]"), std::string::npos) << latest();
}

// A rank prefetches what it alone has filled after the next meeting, and no sooner: its readers have it
// until then.
TEST_F(Lines, ASlotIsTakenBackBehindTheNextMeeting)
{
    shc_call call = call_of(SHC_BROADCAST, 100);
    shc_call_settle(&call);
    shc_wait wait;
    shc_wait_init(&wait, &seats_[0], SHC_NO_DEADLINE);
    wait.call = &call;
    const auto meet = [&](uint64_t epoch) {
        for (int rank = 0; rank < kWorld; rank++)
            publish(rank, epoch, call);
        wait.epoch = epoch;
        return shc_call_meet(&wait);
    };
    const auto give = [&](uint64_t epoch, uint32_t bytes) {
        for (shc_seat &seat : seats_)
            shc_hand_off_slot_pass(&seat, 0, epoch);
        seats_[0].lent[epoch & 1] = bytes;
    };
    give(1, 400);
    ASSERT_EQ(meet(1), SHC_OK);
    EXPECT_EQ(seats_[0].lent[1], 400u);
    give(2, 100);
    ASSERT_EQ(meet(2), SHC_OK);
    EXPECT_EQ(seats_[0].lent[1], 0u);
    EXPECT_EQ(seats_[0].lent[0], 100u);
    ASSERT_EQ(meet(3), SHC_OK);
    EXPECT_EQ(seats_[0].lent[0], 0u);
}

// Which rank gave, when, and to which slot; both ranks count alike.
TEST_F(Lines, ARelaySlotIsPassedOnByWhoHasReadIt)
{
    struct {
        int giver;
        uint64_t epoch;
        bool other; // slot than the time before
    } const turns[] = {
        {0, 7, false},  {1, 8, false},  {0, 9, false}, // roots in turn: always the same slot
        {0, 10, true},  {0, 11, true},  {0, 12, true}, // the same root: both slots
        {0, 15, false}, {0, 17, false},                // they have met since
        {1, 20, false}, {1, 21, true},  {0, 22, false}, {0, 23, true}, {1, 30, false},
    };
    int last = 0;
    for (const auto &turn : turns) {
        for (shc_seat &seat : seats_)
            shc_hand_off_slot_pass(&seat, turn.giver, turn.epoch);
        EXPECT_EQ(seats_[0].hand_off_slot.slot, seats_[1].hand_off_slot.slot);
        EXPECT_EQ(seats_[0].hand_off_slot.slot != last, turn.other) << turn.epoch;
        last = seats_[0].hand_off_slot.slot;
    }
}

// Its lines are prefetched if this rank stores to it next, but not if the other rank stores to it now.
TEST_F(Lines, ARelaySlotIsTakenBackIfTheOtherDoesNotStoreToIt)
{
    shc_seat &seat = seats_[0];
    shc_hand_off_slot_pass(&seat, 0, 7);
    const char *slot = shc_seat_hand_off_slot(&seat, seat.hand_off_slot.slot);
    EXPECT_EQ(shc_call_lent_slot(&seat, 7), slot) << "after a barrier";
    shc_hand_off_slot_pass(&seat, 0, 8);
    EXPECT_EQ(shc_call_lent_slot(&seat, 7), slot) << "it gives in the other one";
    EXPECT_NE(shc_call_lent_slot(&seat, 8), slot);
    shc_hand_off_slot_pass(&seat, 1, 9);
    EXPECT_EQ(shc_call_lent_slot(&seat, 8), nullptr) << "the other rank gives there";
    seat.world_size = 3;
    EXPECT_EQ(shc_call_lent_slot(&seat, 8), shc_seat_slot_in(&seat, 0, 8));
}

} // namespace
