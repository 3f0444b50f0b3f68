// SPDX-License-Identifier: BSD-3-Clause

// Which deaths and failures end a wait: those by which something that
// is owed is missing. The seats of four ranks over one piece of memory, without processes.
extern "C" {
#include "shm/base/status.h"
#include "shm/proto/call.h"
#include "shm/proto/member.h"
#include "shm/proto/pair.h"
#include "shm/proto/wait.h"
}

#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

namespace
{

const int kWorld = 4;
const int kLooks = 6; // of a sleeper, 10 ms apart: after each all ranks are checked

class Owed : public ::testing::TestWithParam<uint64_t>
{
  protected:
    const uint64_t epoch = GetParam();
    std::vector<std::unique_ptr<shc_seat>> seats;

    void SetUp() override
    {
        const shc_mail_geometry mail = shc_mail_plan(kWorld);
        bytes_ = SHC_BLOCKS_OFFSET + kWorld * (SHC_BLOCK_BYTES + mail.total_bytes);
        memory_.reset(static_cast<char *>(aligned_alloc(SHC_PAGE_BYTES, bytes_)));
        memset(memory_.get(), 0, bytes_);
        for (int rank = 0; rank < kWorld; rank++) {
            auto seat = std::make_unique<shc_seat>();
            seat->segment.base = memory_.get();
            seat->rank = rank;
            seat->world_size = kWorld;
            seat->mail = mail;
            seat->name = "owed";
            seat->late_ns = 60 * SHC_NS_PER_S;
            seats.push_back(std::move(seat));
            set_state(rank, SHC_MEMBER_ALIVE);
            enter(rank, epoch);
        }
    }

    void set_state(int rank, shc_member_state state)
    {
        shc_a32_store_release(&shc_seat_member(seats[0].get(), rank)->state, state);
    }

    // The rank's newest call is that one.
    void enter(int rank, uint64_t its_epoch)
    {
        shc_call call = {};
        call.kind = SHC_BARRIER;
        shc_call_settle(&call);
        for (uint64_t other = 0; other < 2; other++)
            shc_a64_store_release(&shc_seat_call(seats[0].get(), rank, other)->epoch,
                                  its_epoch - (other != (its_epoch & 1)));
        shc_call_publish(seats[static_cast<size_t>(rank)].get(), its_epoch, &call);
        finish(rank, its_epoch - 1);
    }

    void finish(int rank, uint64_t its_epoch)
    {
        shc_member_finish(seats[static_cast<size_t>(rank)].get(), its_epoch);
    }

    // Rank 1 waits in that operation for rank 2, whose data comes after some looks, or not.
    shc_status wait(uint64_t its_epoch, bool comes)
    {
        struct Looks {
            int left;
            bool comes;
        } looks = {kLooks, comes};
        shc_wait wait;
        shc_wait_init(&wait, seats[1].get(), 20 * SHC_NS_PER_S);
        wait.epoch = its_epoch;
        wait.published = wait.entered = true;
        const shc_target target = {
            .ready =
                [](void *arg) {
                    auto *it = static_cast<Looks *>(arg);
                    return --it->left <= 0 && it->comes;
                },
            .arg = &looks,
            .bell = shc_seat_bell(seats[1].get(), 2),
            .peer = 2,
            .shared = true,
            .parker = nullptr,
            .whom = nullptr,
            .message = nullptr,
            .moves = nullptr,
        };
        return shc_wait_for(&wait, &target);
    }

    bool tells(const std::string &what) const
    {
        return std::string(shc_error_text()).find(what) != std::string::npos;
    }

  private:
    struct Free {
        void operator()(char *memory) const { free(memory); }
    };
    size_t bytes_ = 0;
    std::unique_ptr<char, Free> memory_;
};

TEST_P(Owed, NothingByARankThatDiedAfterThisOperation)
{
    finish(3, epoch);
    set_state(3, SHC_MEMBER_DEAD);
    EXPECT_EQ(wait(epoch, true), SHC_OK) << shc_error_text();
    EXPECT_FALSE(shc_group_failed(seats[0].get()));
}

// The rank that misses its data may be stopped: no other rank waits for it to tell.
TEST_P(Owed, SomethingByARankThatDiedInIt)
{
    set_state(3, SHC_MEMBER_DEAD);
    EXPECT_EQ(wait(epoch, false), SHC_ERR_PEER_DEAD);
    EXPECT_TRUE(tells("rank 3 (pid 0) died")) << shc_error_text();
}

TEST_P(Owed, NothingByARankThatLeftAfterItsCall)
{
    set_state(3, SHC_MEMBER_LEFT);
    EXPECT_EQ(wait(epoch, true), SHC_OK) << shc_error_text();
}

TEST_P(Owed, TheCallOfARankThatDiedBeforeIt)
{
    enter(3, epoch - 1);
    set_state(3, SHC_MEMBER_DEAD);
    EXPECT_EQ(wait(epoch, false), SHC_ERR_PEER_DEAD);
    EXPECT_TRUE(tells("rank 3 (pid 0) died")) << shc_error_text();
    EXPECT_TRUE(shc_group_failed_at(seats[0].get(), epoch));
    EXPECT_FALSE(shc_group_failed_at(seats[0].get(), epoch - 1));
}

TEST_P(Owed, TheDataOfThePeerThatDied)
{
    finish(3, epoch);
    set_state(3, SHC_MEMBER_DEAD); // it is not this one
    set_state(2, SHC_MEMBER_DEAD);
    EXPECT_EQ(wait(epoch, false), SHC_ERR_PEER_DEAD);
    EXPECT_TRUE(tells("rank 2 (pid 0) died")) << shc_error_text();
}

TEST_P(Owed, NothingByALaterOperationThatHasFailed)
{
    shc_group_fail_from(seats[0].get(), epoch + 1, SHC_ERR_PEER_DEAD, "the next one has failed",
                        nullptr);
    EXPECT_EQ(wait(epoch, true), SHC_OK) << shc_error_text();
    EXPECT_EQ(wait(epoch + 1, false), SHC_ERR_PEER_DEAD);
    EXPECT_TRUE(tells("the next one has failed (found by rank 0)")) << shc_error_text();
}

// A rank that is still in an operation finds the reason why that operation has failed, although the abort
// word names the finder of a later one's reason.
TEST_P(Owed, ItsOwnReasonToWhoIsInAnEarlierOperation)
{
    shc_group_fail_from(seats[0].get(), epoch + 1, SHC_ERR_PEER_DEAD, "the next one has failed",
                        nullptr);
    shc_group_fail_from(seats[3].get(), epoch, SHC_ERR_TIMEOUT, "this one has failed", nullptr);
    EXPECT_EQ(wait(epoch, false), SHC_ERR_TIMEOUT);
    EXPECT_TRUE(tells("this one has failed (found by rank 3)")) << shc_error_text();
    EXPECT_EQ(wait(epoch + 1, false), SHC_ERR_PEER_DEAD);
    EXPECT_TRUE(tells("the next one has failed (found by rank 0)")) << shc_error_text();
}

TEST_P(Owed, NothingOnceTheWholeGroupHasFailed)
{
    shc_group_fail(seats[3].get(), SHC_ERR_ABORTED, "all of it", nullptr);
    EXPECT_EQ(wait(epoch - 1, true), SHC_ERR_ABORTED);
    EXPECT_TRUE(tells("all of it (found by rank 3)")) << shc_error_text();
}

// Counters wrap.
INSTANTIATE_TEST_SUITE_P(Epochs, Owed, ::testing::Values(7, 8, UINT64_MAX - 2, UINT64_MAX));

} // namespace
