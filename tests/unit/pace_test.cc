// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/coll/pace.h"
}

#include <gtest/gtest.h>
#include <random>
#include <vector>

namespace
{

const uint64_t kChunk = 64 << 10, kChunks = 16384; // a GiB

// What the machine takes for a chunk stored past the caches, and into them.
struct Machine {
    uint64_t past_ns, into_ns;
};

// As a collective has it, or messages, which have a third way.
shc_pace pace_of(enum shc_way way, unsigned ways = 2)
{
    shc_pace paces[SHC_PACES];
    shc_paces_init(paces, ways, way);
    return paces[0];
}

bool goes_into(const shc_pace &pace)
{
    return pace.way != SHC_WAY_PAST;
}

// Of a GiB stored at that pace, the part that went into the caches.
double into_caches(shc_pace &pace, Machine machine)
{
    uint64_t into = 0;
    for (uint64_t k = 0; k < kChunks; k++) {
        into += goes_into(pace);
        shc_pace_note(&pace, kChunk, goes_into(pace) ? machine.into_ns : machine.past_ns);
    }
    return static_cast<double>(into) / kChunks;
}

TEST(Pace, StaysWithTheFasterWay)
{
    for (enum shc_way begin : {SHC_WAY_PLAIN, SHC_WAY_PAST}) {
        shc_pace pace = pace_of(begin);
        EXPECT_GT(into_caches(pace, {6000, 4000}), 0.95);
        pace = pace_of(begin);
        EXPECT_LT(into_caches(pace, {6000, 15000}), 0.05);
    }
}

TEST(Pace, TriesTheOtherWayNowAndThen)
{
    shc_pace pace = pace_of(SHC_WAY_PAST);
    EXPECT_GT(into_caches(pace, {6000, 15000}), 0.01);
}

// Without a shared cache one way is five times as slow: that shows soon.
TEST(Pace, DoesNotTryForLongWhatIsMuchSlower)
{
    shc_pace pace = pace_of(SHC_WAY_PAST);
    EXPECT_LT(into_caches(pace, {6000, 30000}), 0.012) << "0.023 when it tries to the end";
}

// Nor, where messages are long, for more than one round what was so the last time.
TEST(Pace, TriesForOneRoundWhatWasMuchSlowerBefore)
{
    shc_pace pace = pace_of(SHC_WAY_PAST);
    const uint64_t bytes = 1 << 20;
    std::vector<int> trials;
    for (int k = 0, run = 0; k < 2000; k++) {
        const bool into = goes_into(pace);
        run += into;
        if (!into && run > 0) {
            trials.push_back(run);
            run = 0;
        }
        shc_pace_note(&pace, bytes, into ? bytes : bytes / 5);
    }
    ASSERT_GT(trials.size(), 3u);
    EXPECT_EQ(trials[0], 4);
    for (size_t i = 1; i < trials.size(); i++)
        EXPECT_EQ(trials[i], 2) << i;
}

// With more ranks than CPUs a reader often has none: such messages take eight times as long.
TEST(Pace, IsNotMisledByManyLateReaders)
{
    for (unsigned late_of_16 : {2, 5, 8})
        for (enum shc_way begin : {SHC_WAY_PLAIN, SHC_WAY_PAST}) {
            shc_pace pace = pace_of(begin);
            std::mt19937 random(late_of_16);
            uint64_t into = 0;
            const uint64_t bytes = 256 << 10, messages = 20000;
            for (uint64_t k = 0; k < messages; k++) {
                into += goes_into(pace);
                const uint64_t ns = goes_into(pace) ? 10000 : 20000;
                shc_pace_note(&pace, bytes, random() % 16 < late_of_16 ? 8 * ns : ns);
            }
            EXPECT_GT(into, messages * 9 / 10) << late_of_16 << " " << begin;
        }
}

TEST(Pace, DoesNotTryTheOtherWayWithEveryLargeMessage)
{
    shc_pace pace = pace_of(SHC_WAY_PAST);
    unsigned into = 0;
    for (int k = 0; k < 1000; k++) {
        into += goes_into(pace);
        const uint64_t bytes = 256 << 20;
        shc_pace_note(&pace, bytes, goes_into(pace) ? bytes / 10 : bytes / 20);
    }
    EXPECT_LT(into, 50u);
}

// A virtual machine's CPUs move: what was the faster way is not for ever.
TEST(Pace, LeavesAWayThatHasBecomeTheSlowerOne)
{
    shc_pace pace = pace_of(SHC_WAY_PAST);
    into_caches(pace, {6000, 4000});
    ASSERT_TRUE(goes_into(pace));
    EXPECT_LT(into_caches(pace, {6000, 15000}), 0.05);
    EXPECT_FALSE(goes_into(pace));
    for (int gib = 0; gib < 3 && !goes_into(pace); gib++)
        into_caches(pace, {6000, 4000}); // until the next trial
    EXPECT_GT(into_caches(pace, {6000, 4000}), 0.95);
}

// What was tried in vain is tried half as often the next time, but never less often than once in 3 GiB; and as
// often as in the beginning where the machine has changed meanwhile.
TEST(Pace, TriesMoreAndMoreSeldomWhatIsSlower)
{
    const uint64_t bytes = 1 << 20;
    std::vector<int> stays;
    shc_pace pace = pace_of(SHC_WAY_PAST);
    const auto run = [&](Machine machine, int messages) {
        stays.clear();
        for (int k = 0, stay = 0; k < messages; k++) {
            if (goes_into(pace) && stay > 0)
                stays.push_back(stay);
            stay = goes_into(pace) ? 0 : stay + 1;
            shc_pace_note(&pace, bytes, goes_into(pace) ? machine.into_ns : machine.past_ns);
        }
    };
    run({60000, 300000}, 20000);
    ASSERT_GT(stays.size(), 7u);
    EXPECT_LT(stays[1], 200);
    for (size_t i = 2; i < stays.size(); i++)
        EXPECT_NEAR(stays[i] / (192.0 * (1 << std::min<size_t>(i - 1, 4))), 1, 0.01) << i;
    run({900000, 300000}, 100); // it leaves a way that has become slow
    ASSERT_TRUE(goes_into(pace));
    run({60000, 900000}, 600);
    ASSERT_GT(stays.size(), 0u);
    EXPECT_LT(stays[0], 200);
}

// One chunk in a hundred takes a time slice: the reader had no CPU.
TEST(Pace, IsNotMisledByWaits)
{
    shc_pace pace = pace_of(SHC_WAY_PAST);
    uint64_t into = 0;
    for (uint64_t k = 0; k < kChunks; k++) {
        into += goes_into(pace);
        shc_pace_note(&pace, kChunk, k % 100 == 99 ? 4000000 : goes_into(pace) ? 4000 : 6000);
    }
    EXPECT_GT(into, kChunks * 8 / 10);
}

// A large message is noted as one: its receiver may have been late.
TEST(Pace, IsNotMisledByOneSlowMessage)
{
    shc_pace pace = pace_of(SHC_WAY_PAST);
    const uint64_t bytes = 16 << 20;
    uint64_t into = 0;
    for (int k = 0; k < 1000; k++) {
        const uint64_t ns = goes_into(pace) ? bytes / 12 : bytes / 18;
        into += goes_into(pace);
        shc_pace_note(&pace, bytes, k % 10 == 9 ? 4 * ns : ns);
    }
    EXPECT_LT(into, 200u) << "364 when one message may turn the way";
}

// Short messages are timed while ways are tried, and one now and then: a way that has become slow is left although
// it has stayed for long.
TEST(Pace, LeavesAWayThatHasBecomeSlowWhereNobodyTimesIt)
{
    const uint64_t bytes = 64 << 10;
    shc_pace pace = pace_of(SHC_WAY_PAST);
    uint64_t timed = 0;
    const auto send = [&](Machine machine, int messages, bool stops_when_left) {
        for (int k = 0; k < messages && !(stops_when_left && goes_into(pace)); k++) {
            const bool tries = shc_pace_tries(&pace);
            timed += tries;
            if (tries)
                shc_pace_note(&pace, bytes, goes_into(pace) ? machine.into_ns : machine.past_ns);
            else
                shc_pace_count(&pace, bytes);
        }
    };
    send({3000, 6000}, 200000, false); // 12 GiB: it has stayed again and again
    ASSERT_GT(pace.stays, 3u);
    EXPECT_LT(timed, 200000u / 100);
    while (pace.way != SHC_WAY_PAST || pace.bytes != uint64_t{64} << 20)
        send({3000, 6000}, 1, false); // it has just begun to stay for 3 GiB
    timed = 0;
    send({3000, 6000}, 31 << 10, false);
    ASSERT_EQ(pace.way, SHC_WAY_PAST);
    EXPECT_EQ(timed, 10u) << "one in 192 MiB";
    send({12000, 6000}, 200 << 4, true); // 200 MiB
    ASSERT_TRUE(goes_into(pace));
    EXPECT_EQ(pace.stays, 0u) << "it was left, not tried beside another one";
}

// Messages have a third way.
TEST(Pace, FindsTheFastestOfThreeWays)
{
    const uint64_t bytes = 64 << 10, messages = 40000;
    for (unsigned fastest = 0; fastest < SHC_WAYS; fastest++)
        for (unsigned begin = 0; begin < SHC_WAYS; begin++) {
            shc_pace pace = pace_of(static_cast<enum shc_way>(begin), SHC_WAYS);
            uint64_t by[SHC_WAYS] = {};
            for (uint64_t k = 0; k < messages; k++) {
                by[pace.way] += 1;
                shc_pace_note(&pace, bytes, pace.way == fastest ? 4000 : 5000 + 1000 * pace.way);
            }
            EXPECT_GT(by[fastest], messages * 9 / 10) << fastest << " " << begin;
            for (uint64_t tried : by)
                EXPECT_GT(tried, 72u) << fastest << " " << begin << ": more than one trial";
        }
}

// The one that was second is the first one to take its place.
TEST(Pace, TurnsToTheNextBestOfThreeWays)
{
    shc_pace pace = pace_of(SHC_WAY_PLAIN, SHC_WAYS);
    uint64_t ns[SHC_WAYS] = {4000, 9000, 5000};
    for (int k = 0; k < 2000; k++)
        shc_pace_note(&pace, kChunk, ns[pace.way]);
    ASSERT_EQ(pace.way, SHC_WAY_PLAIN);
    ns[SHC_WAY_PLAIN] = 12000;
    for (int k = 0; k < 400 && pace.way == SHC_WAY_PLAIN; k++)
        shc_pace_note(&pace, kChunk, ns[pace.way]);
    EXPECT_EQ(pace.way, SHC_WAY_LINES);
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
