// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/exec/copymode.h"
}

#include <gtest/gtest.h>
#include <random>
#include <set>
#include <vector>

namespace
{

const uint64_t kChunk = 64 << 10, kChunks = 16384; // a GiB

// The machine's time for a chunk stored past the caches, and into them.
struct Machine {
    uint64_t past_ns, into_ns;
};

// For a collective, or for messages, which have a third mode.
shc_copy_trial pace_of(enum shc_copy_mode way, unsigned ways = 2)
{
    shc_copy_trial trials[SHC_COPY_TRIALS];
    shc_copy_trials_init(trials, ways, way);
    return trials[0];
}

bool goes_into(const shc_copy_trial &trial)
{
    return trial.mode != SHC_COPY_NON_TEMPORAL;
}

// Of a GiB stored at that trial, the part that went into the caches.
double into_caches(shc_copy_trial &trial, Machine machine)
{
    uint64_t into = 0;
    for (uint64_t k = 0; k < kChunks; k++) {
        into += goes_into(trial);
        shc_copy_trial_note(&trial, kChunk, goes_into(trial) ? machine.into_ns : machine.past_ns);
    }
    return static_cast<double>(into) / kChunks;
}

TEST(CopyTrial, StaysWithTheFasterMode)
{
    for (enum shc_copy_mode begin : {SHC_COPY_PLAIN, SHC_COPY_NON_TEMPORAL}) {
        shc_copy_trial trial = pace_of(begin);
        EXPECT_GT(into_caches(trial, {6000, 4000}), 0.95);
        trial = pace_of(begin);
        EXPECT_LT(into_caches(trial, {6000, 15000}), 0.05);
    }
}

TEST(CopyTrial, TriesTheOtherModeNowAndThen)
{
    shc_copy_trial trial = pace_of(SHC_COPY_NON_TEMPORAL);
    EXPECT_GT(into_caches(trial, {6000, 15000}), 0.01);
}

// Without a shared cache one mode is slower by 5x, which shows soon.
TEST(CopyTrial, DoesNotTryForLongWhatIsMuchSlower)
{
    shc_copy_trial trial = pace_of(SHC_COPY_NON_TEMPORAL);
    EXPECT_LT(into_caches(trial, {6000, 30000}), 0.012) << "0.023 when it tries to the end";
}

// The same for long messages: at most one round in the mode that was slow the last time.
TEST(CopyTrial, TriesForOneRoundWhatWasMuchSlowerBefore)
{
    shc_copy_trial trial = pace_of(SHC_COPY_NON_TEMPORAL);
    const uint64_t bytes = 1 << 20;
    std::vector<int> trials;
    for (int k = 0, run = 0; k < 2000; k++) {
        const bool into = goes_into(trial);
        run += into;
        if (!into && run > 0) {
            trials.push_back(run);
            run = 0;
        }
        shc_copy_trial_note(&trial, bytes, into ? bytes : bytes / 5);
    }
    ASSERT_GT(trials.size(), 3u);
    EXPECT_EQ(trials[0], 4);
    for (size_t i = 1; i < trials.size(); i++)
        EXPECT_EQ(trials[i], 2) << i;
}

// With more ranks than CPUs a reader often has no CPU: such messages take eight times as long.
TEST(CopyTrial, IsNotMisledByManyLateReaders)
{
    for (unsigned late_of_16 : {2, 5, 8})
        for (enum shc_copy_mode begin : {SHC_COPY_PLAIN, SHC_COPY_NON_TEMPORAL}) {
            shc_copy_trial trial = pace_of(begin);
            std::mt19937 random(late_of_16);
            uint64_t into = 0;
            const uint64_t bytes = 256 << 10, messages = 20000;
            for (uint64_t k = 0; k < messages; k++) {
                into += goes_into(trial);
                const uint64_t ns = goes_into(trial) ? 10000 : 20000;
                shc_copy_trial_note(&trial, bytes, random() % 16 < late_of_16 ? 8 * ns : ns);
            }
            EXPECT_GT(into, messages * 9 / 10) << late_of_16 << " " << begin;
        }
}

TEST(CopyTrial, DoesNotTryTheOtherModeWithEveryLargeMessage)
{
    shc_copy_trial trial = pace_of(SHC_COPY_NON_TEMPORAL);
    unsigned into = 0;
    for (int k = 0; k < 1000; k++) {
        into += goes_into(trial);
        const uint64_t bytes = 256 << 20;
        shc_copy_trial_note(&trial, bytes, goes_into(trial) ? bytes / 10 : bytes / 20);
    }
    EXPECT_LT(into, 50u);
}

// A virtual machine's CPUs move: the mode that was faster may not stay so.
TEST(CopyTrial, LeavesAModeThatHasBecomeTheSlowerOne)
{
    shc_copy_trial trial = pace_of(SHC_COPY_NON_TEMPORAL);
    into_caches(trial, {6000, 4000});
    ASSERT_TRUE(goes_into(trial));
    EXPECT_LT(into_caches(trial, {6000, 15000}), 0.05);
    EXPECT_FALSE(goes_into(trial));
    for (int gib = 0; gib < 3 && !goes_into(trial); gib++)
        into_caches(trial, {6000, 4000}); // until the next trial
    EXPECT_GT(into_caches(trial, {6000, 4000}), 0.95);
}

// A mode that was tried in vain is tried half as often the next time, but at least once in 3 GiB. It is
// tried as often as in the beginning if the machine has changed meanwhile.
TEST(CopyTrial, TriesMoreAndMoreSeldomWhatIsSlower)
{
    const uint64_t bytes = 1 << 20;
    std::vector<int> stays;
    shc_copy_trial trial = pace_of(SHC_COPY_NON_TEMPORAL);
    const auto run = [&](Machine machine, int messages) {
        stays.clear();
        for (int k = 0, stay = 0; k < messages; k++) {
            if (goes_into(trial) && stay > 0)
                stays.push_back(stay);
            stay = goes_into(trial) ? 0 : stay + 1;
            shc_copy_trial_note(&trial, bytes,
                                goes_into(trial) ? machine.into_ns : machine.past_ns);
        }
    };
    run({60000, 300000}, 20000);
    ASSERT_GT(stays.size(), 7u);
    EXPECT_LT(stays[1], 200);
    for (size_t i = 2; i < stays.size(); i++)
        EXPECT_NEAR(stays[i] / (192.0 * (1 << std::min<size_t>(i - 1, 4))), 1, 0.01) << i;
    run({900000, 300000}, 100); // it leaves a mode that has become slow
    ASSERT_TRUE(goes_into(trial));
    run({60000, 900000}, 600);
    ASSERT_GT(stays.size(), 0u);
    EXPECT_LT(stays[0], 200);
}

// One chunk in a hundred takes a time slice because the reader had no CPU.
TEST(CopyTrial, IsNotMisledByWaits)
{
    shc_copy_trial trial = pace_of(SHC_COPY_NON_TEMPORAL);
    uint64_t into = 0;
    for (uint64_t k = 0; k < kChunks; k++) {
        into += goes_into(trial);
        shc_copy_trial_note(&trial, kChunk,
                            k % 100 == 99      ? 4000000
                            : goes_into(trial) ? 4000
                                               : 6000);
    }
    EXPECT_GT(into, kChunks * 8 / 10);
}

// A large message is counted as one: its receiver may have been late.
TEST(CopyTrial, IsNotMisledByOneSlowMessage)
{
    shc_copy_trial trial = pace_of(SHC_COPY_NON_TEMPORAL);
    const uint64_t bytes = 16 << 20;
    uint64_t into = 0;
    for (int k = 0; k < 1000; k++) {
        const uint64_t ns = goes_into(trial) ? bytes / 12 : bytes / 18;
        into += goes_into(trial);
        shc_copy_trial_note(&trial, bytes, k % 10 == 9 ? 4 * ns : ns);
    }
    EXPECT_LT(into, 200u) << "364 when one message may turn the way";
}

// Short messages are timed during trials, and one now and then. A mode that has become slow is left
// although it has been in use for long.
TEST(CopyTrial, LeavesAModeThatHasBecomeSlowWhereNobodyTimesIt)
{
    const uint64_t bytes = 64 << 10;
    shc_copy_trial trial = pace_of(SHC_COPY_NON_TEMPORAL);
    uint64_t timed = 0;
    const auto send = [&](Machine machine, int messages, bool stops_when_left) {
        for (int k = 0; k < messages && !(stops_when_left && goes_into(trial)); k++) {
            const bool tries = shc_copy_trial_tries(&trial);
            timed += tries;
            if (tries)
                shc_copy_trial_note(&trial, bytes,
                                    goes_into(trial) ? machine.into_ns : machine.past_ns);
            else
                shc_copy_trial_count(&trial, bytes);
        }
    };
    send({3000, 6000}, 200000, false); // 12 GiB: the mode has been kept again and again
    ASSERT_GT(trial.stays, 3u);
    EXPECT_LT(timed, 200000u / 100);
    while (trial.mode != SHC_COPY_NON_TEMPORAL || trial.bytes != uint64_t{64} << 20)
        send({3000, 6000}, 1, false); // it has just begun to keep it for 3 GiB
    timed = 0;
    send({3000, 6000}, 31 << 10, false);
    ASSERT_EQ(trial.mode, SHC_COPY_NON_TEMPORAL);
    EXPECT_EQ(timed, 10u) << "one in 192 MiB";
    send({12000, 6000}, 200 << 4, true); // 200 MiB
    ASSERT_TRUE(goes_into(trial));
    EXPECT_EQ(trial.stays, 0u) << "it was left, not tried together with another one";
}

// Messages have a third mode.
TEST(CopyTrial, FindsTheFastestOfThreeWays)
{
    const uint64_t bytes = 64 << 10, messages = 40000;
    for (unsigned fastest = 0; fastest < SHC_COPY_MODES; fastest++)
        for (unsigned begin = 0; begin < SHC_COPY_MODES; begin++) {
            shc_copy_trial trial = pace_of(static_cast<enum shc_copy_mode>(begin), SHC_COPY_MODES);
            uint64_t by[SHC_COPY_MODES] = {};
            for (uint64_t k = 0; k < messages; k++) {
                by[trial.mode] += 1;
                shc_copy_trial_note(&trial, bytes,
                                    trial.mode == fastest ? 4000 : 5000 + 1000 * trial.mode);
            }
            EXPECT_GT(by[fastest], messages * 9 / 10) << fastest << " " << begin;
            for (uint64_t tried : by)
                EXPECT_GT(tried, 72u) << fastest << " " << begin << ": more than one trial";
        }
}

// The second-best mode is the first one to take its place.
TEST(CopyTrial, TurnsToTheNextBestOfThreeWays)
{
    shc_copy_trial trial = pace_of(SHC_COPY_PLAIN, SHC_COPY_MODES);
    uint64_t ns[SHC_COPY_MODES] = {4000, 9000, 5000};
    for (int k = 0; k < 2000; k++)
        shc_copy_trial_note(&trial, kChunk, ns[trial.mode]);
    ASSERT_EQ(trial.mode, SHC_COPY_PLAIN);
    ns[SHC_COPY_PLAIN] = 12000;
    for (int k = 0; k < 400 && trial.mode == SHC_COPY_PLAIN; k++)
        shc_copy_trial_note(&trial, kChunk, ns[trial.mode]);
    EXPECT_EQ(trial.mode, SHC_COPY_LINES);
}

TEST(CopyTrial, IsOfASize)
{
    shc_copy_trial trials[SHC_COPY_TRIALS] = {};
    EXPECT_EQ(shc_copy_trial_for(trials, 1), &trials[0]);
    EXPECT_EQ(shc_copy_trial_for(trials, (32 << 10) - 1), &trials[0]);
    EXPECT_EQ(shc_copy_trial_for(trials, 32 << 10), &trials[1]);
    EXPECT_EQ(shc_copy_trial_for(trials, (128 << 10) - 1), &trials[1]);
    EXPECT_EQ(shc_copy_trial_for(trials, 128 << 10), &trials[2]);
    EXPECT_EQ(shc_copy_trial_for(trials, 256 << 10), &trials[2]);
    EXPECT_EQ(shc_copy_trial_for(trials, 512 << 10), &trials[3]);
    EXPECT_EQ(shc_copy_trial_for(trials, 16 << 20), &trials[5]);
    EXPECT_EQ(shc_copy_trial_for(trials, 32 << 20), &trials[6]);
    EXPECT_EQ(shc_copy_trial_for(trials, SIZE_MAX), &trials[6]);
}

// What is not timed follows what is; until then it bypasses the caches.
TEST(CopyTrial, HasAModeForMessagesThatAreNotTimed)
{
    shc_copy_trial trials[SHC_COPY_TRIALS];
    shc_copy_trials_init(trials, SHC_COPY_MODES, SHC_COPY_LINES);
    shc_copy_trial &trial = trials[0];
    EXPECT_EQ(shc_copy_trial_untimed(&trial, true), SHC_COPY_NON_TEMPORAL);
    EXPECT_EQ(shc_copy_trial_untimed(&trial, false), SHC_COPY_LINES);
    std::set<shc_copy_mode> seen;
    for (int i = 0; i < 100; i++) {
        shc_copy_trial_note(&trial, SHC_COPY_ROUND, SHC_COPY_ROUND);
        EXPECT_EQ(shc_copy_trial_untimed(&trial, true), trial.mode) << i;
        EXPECT_EQ(shc_copy_trial_untimed(&trial, false),
                  trial.mode == SHC_COPY_NON_TEMPORAL ? SHC_COPY_LINES : trial.mode);
        seen.insert(trial.mode);
    }
    EXPECT_EQ(seen.size(), size_t{SHC_COPY_MODES});
}

} // namespace
