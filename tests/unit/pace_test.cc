// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/coll/pace.h"
}

#include <gtest/gtest.h>
#include <random>

namespace
{

const uint64_t kChunk = 64 << 10, kChunks = 16384; // a GiB

// What the machine takes for a chunk stored past the caches, and into them.
struct Machine {
    uint64_t past_ns, into_ns;
};

// Of a GiB stored at that pace, the part that went into the caches.
double into_caches(shc_pace &pace, Machine machine)
{
    uint64_t into = 0;
    for (uint64_t k = 0; k < kChunks; k++) {
        into += pace.into_caches;
        shc_pace_note(&pace, kChunk, pace.into_caches ? machine.into_ns : machine.past_ns);
    }
    return static_cast<double>(into) / kChunks;
}

TEST(Pace, StaysWithTheFasterWay)
{
    for (bool begins_into : {false, true}) {
        shc_pace pace = {};
        pace.into_caches = begins_into;
        EXPECT_GT(into_caches(pace, {6000, 4000}), 0.95);
        pace = {};
        pace.into_caches = begins_into;
        EXPECT_LT(into_caches(pace, {6000, 15000}), 0.05);
    }
}

TEST(Pace, TriesTheOtherWayNowAndThen)
{
    shc_pace pace = {};
    EXPECT_GT(into_caches(pace, {6000, 15000}), 0.01);
}

// Without a shared cache one way is five times as slow: that shows soon.
TEST(Pace, DoesNotTryForLongWhatIsMuchSlower)
{
    shc_pace pace = {};
    EXPECT_LT(into_caches(pace, {6000, 30000}), 0.012) << "0.023 when it tries to the end";
}

// With more ranks than CPUs a reader often has none: such messages take eight times as long.
TEST(Pace, IsNotMisledByManyLateReaders)
{
    for (unsigned late_of_16 : {2, 5, 8})
        for (bool begins_into : {false, true}) {
            shc_pace pace = {};
            pace.into_caches = begins_into;
            std::mt19937 random(late_of_16);
            uint64_t into = 0;
            const uint64_t bytes = 256 << 10, messages = 20000;
            for (uint64_t k = 0; k < messages; k++) {
                into += pace.into_caches;
                const uint64_t ns = pace.into_caches ? 10000 : 20000;
                shc_pace_note(&pace, bytes, random() % 16 < late_of_16 ? 8 * ns : ns);
            }
            EXPECT_GT(into, messages * 9 / 10) << late_of_16 << begins_into;
        }
}

TEST(Pace, DoesNotTryTheOtherWayWithEveryLargeMessage)
{
    shc_pace pace = {};
    unsigned into = 0;
    for (int k = 0; k < 1000; k++) {
        into += pace.into_caches;
        const uint64_t bytes = 256 << 20;
        shc_pace_note(&pace, bytes, pace.into_caches ? bytes / 10 : bytes / 20);
    }
    EXPECT_LT(into, 50u);
}

// A virtual machine's CPUs move: what was the faster way is not for ever.
TEST(Pace, LeavesAWayThatHasBecomeTheSlowerOne)
{
    shc_pace pace = {};
    into_caches(pace, {6000, 4000});
    ASSERT_TRUE(pace.into_caches);
    EXPECT_LT(into_caches(pace, {6000, 15000}), 0.05);
    EXPECT_FALSE(pace.into_caches);
    EXPECT_GT(into_caches(pace, {6000, 4000}), 0.75) << "waits for the next trial";
}

// One chunk in a hundred takes a time slice: the reader had no CPU.
TEST(Pace, IsNotMisledByWaits)
{
    shc_pace pace = {};
    uint64_t into = 0;
    for (uint64_t k = 0; k < kChunks; k++) {
        into += pace.into_caches;
        shc_pace_note(&pace, kChunk, k % 100 == 99 ? 4000000 : pace.into_caches ? 4000 : 6000);
    }
    EXPECT_GT(into, kChunks * 8 / 10);
}

// A large message is noted as one: its receiver may have been late.
TEST(Pace, IsNotMisledByOneSlowMessage)
{
    shc_pace pace = {};
    const uint64_t bytes = 16 << 20;
    uint64_t into = 0;
    for (int k = 0; k < 1000; k++) {
        const uint64_t ns = pace.into_caches ? bytes / 12 : bytes / 18;
        into += pace.into_caches;
        shc_pace_note(&pace, bytes, k % 10 == 9 ? 4 * ns : ns);
    }
    EXPECT_LT(into, 200u) << "364 when one message may turn the way";
}

TEST(Pace, IsOfASize)
{
    shc_pace paces[SHC_PACES] = {};
    EXPECT_EQ(shc_pace_for(paces, 1), &paces[0]);
    EXPECT_EQ(shc_pace_for(paces, (128 << 10) - 1), &paces[0]);
    EXPECT_EQ(shc_pace_for(paces, 128 << 10), &paces[1]);
    EXPECT_EQ(shc_pace_for(paces, 256 << 10), &paces[1]);
    EXPECT_EQ(shc_pace_for(paces, 512 << 10), &paces[2]);
    EXPECT_EQ(shc_pace_for(paces, 16 << 20), &paces[4]);
    EXPECT_EQ(shc_pace_for(paces, 32 << 20), &paces[5]);
    EXPECT_EQ(shc_pace_for(paces, SIZE_MAX), &paces[5]);
}

} // namespace
