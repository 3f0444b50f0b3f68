// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of groups over several hosts: properties, for random maps.
extern "C" {
#include "hosts/hosts_plan.h"
#include "hosts/hosts_rate.h"
}

#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace
{

using Labels = std::vector<int32_t>;

struct Plan {
    explicit Plan(const Labels &labels, int rails = 0, const Labels &names = {})
    {
        const char *why = "";
        status = shc_hosts_plan_init(&plan, static_cast<int>(labels.size()), labels.data(),
                                     names.empty() ? nullptr : names.data(), rails, &why);
        text = why;
    }
    ~Plan() { shc_hosts_plan_fini(&plan); }
    Plan(const Plan &) = delete;
    std::string ranks(int host, size_t capacity = 200) const
    {
        std::vector<char> out(capacity);
        shc_hosts_plan_text(&plan, host, out.data(), capacity);
        return out.data();
    }
    shc_hosts_plan plan = {};
    shc_status status;
    std::string text;
};

std::mt19937 &rng()
{
    static std::mt19937 generator(20261128);
    return generator;
}

int below(int n)
{
    return std::uniform_int_distribution<int>(0, n - 1)(rng());
}

Labels random_labels()
{
    Labels labels(static_cast<size_t>(1 + below(60)));
    const int hosts = 1 + below(12);
    for (int32_t &label : labels)
        label = 1000 - 7 * below(hosts);
    if (below(3) == 0)
        std::sort(labels.begin(), labels.end());
    return labels;
}

TEST(HostsPlan, EveryRankHasOnePlaceAndHostsAreInTheOrderOfTheirSmallestRanks)
{
    for (int round = 0; round < 2000; round++) {
        const Labels labels = random_labels();
        const Plan p(labels);
        ASSERT_EQ(p.status, SHC_OK);
        const shc_hosts_plan &plan = p.plan;
        ASSERT_EQ(plan.first[0], 0);
        ASSERT_EQ(plan.first[plan.hosts], plan.world);
        int least = plan.world;
        for (int host = 0; host < plan.hosts; host++) {
            const int32_t *ranks = plan.rank_at + plan.first[host];
            const int size = shc_hosts_plan_size(&plan, host);
            ASSERT_GT(size, 0);
            ASSERT_TRUE(std::is_sorted(ranks, ranks + size));
            least = std::min(least, size);
            const int before = host > 0 ? plan.rank_at[plan.first[host - 1]] : -1;
            ASSERT_LT(before, ranks[0]);
        }
        for (int a = 0; a < plan.world; a++) {
            ASSERT_EQ(plan.rank_at[plan.first[plan.host_of[a]] + plan.local_of[a]], a);
            for (int b = 0; b < a; b++)
                ASSERT_EQ(plan.host_of[a] == plan.host_of[b],
                          labels[static_cast<size_t>(a)] == labels[static_cast<size_t>(b)]);
        }
        ASSERT_EQ(plan.rails, std::min(least, SHC_HOSTS_MAX_RAILS));
    }
}

TEST(HostsPlan, FewerRailsCanBeWantedAndNotMore)
{
    const Labels labels = {0, 0, 0, 1, 1, 1, 1};
    EXPECT_EQ(Plan(labels).plan.rails, 3);
    EXPECT_EQ(Plan(labels, 2).plan.rails, 2);
    EXPECT_EQ(Plan(labels, 9).plan.rails, 3);
}

TEST(HostsPlan, SaysWhatIsTooLarge)
{
    EXPECT_EQ(Plan(Labels(256, 5)).status, SHC_OK);
    const Plan large(Labels(257, 5));
    EXPECT_EQ(large.status, SHC_ERR_INVALID);
    EXPECT_EQ(large.text, "at most 256 of its ranks can share a host");
    EXPECT_EQ(Plan({}).status, SHC_ERR_INVALID);
    EXPECT_EQ(Plan({1, 2}, -1).status, SHC_ERR_INVALID);
    Labels most(SHC_HOSTS_MAX_WORLD + 1);
    for (size_t i = 0; i < most.size(); i++)
        most[i] = static_cast<int32_t>(i / 64);
    const Plan over(most);
    EXPECT_EQ(over.status, SHC_ERR_INVALID);
    EXPECT_EQ(over.text, "1 to 65536 ranks are possible");
    most.pop_back();
    EXPECT_EQ(Plan(most).plan.hosts, SHC_HOSTS_MAX_WORLD / 64);
}

TEST(HostsPlan, NamesTheRanksOfAHost)
{
    const Plan p({0, 0, 0, 1, 0, 2, 2, 0});
    EXPECT_EQ(p.ranks(0), "ranks 0-2, 4, 7");
    EXPECT_EQ(p.ranks(1), "rank 3");
    EXPECT_EQ(p.ranks(2), "ranks 5-6");
    EXPECT_EQ(p.ranks(0, 17), "ranks 0-2, ...");
    for (size_t capacity = 1; capacity < 30; capacity++)
        EXPECT_LT(p.ranks(0, capacity).size(), capacity);
    const Plan named({4, 4, 4, 9}, 0, {7, 8, 2, 3}); // as the job numbers them
    EXPECT_EQ(named.ranks(0), "ranks 7-8, 2");
    EXPECT_EQ(named.ranks(1), "rank 3");
}

TEST(HostsPlan, SlicesFollowOneAnotherAndDifferByOne)
{
    for (int round = 0; round < 5000; round++) {
        const uint64_t count = round % 2 ? static_cast<uint64_t>(below(50))
                                         : (1ull << 62) + static_cast<uint64_t>(below(1000));
        const int parts = 1 + below(40);
        uint64_t next = 0;
        for (int i = 0; i < parts; i++) {
            const shc_slice slice = shc_hosts_slice(count, parts, i);
            ASSERT_EQ(slice.first, next);
            ASSERT_LE(slice.count - count / static_cast<uint64_t>(parts), 1u);
            next += slice.count;
        }
        ASSERT_EQ(next, count);
    }
}

TEST(HostsPlan, RecordsStayShortAndChunksBounded)
{
    EXPECT_EQ(shc_hosts_payload_bytes(2), 4096u);
    EXPECT_EQ(shc_hosts_payload_bytes(64), 256u);
    EXPECT_EQ(shc_hosts_payload_bytes(SHC_HOSTS_MAX_WORLD), 64u);
    for (int hosts = 1; hosts < 2000; hosts += 7) {
        const size_t bytes = shc_hosts_payload_bytes(hosts);
        EXPECT_EQ(bytes % 64, 0u);
        EXPECT_TRUE(bytes == 64 || bytes * static_cast<size_t>(hosts) <= 16384) << hosts;
    }
    for (int ranks : {1, 2, 8})
        for (int hosts : {2, 3, 16, 1000}) {
            Labels labels(static_cast<size_t>(ranks * hosts));
            for (size_t i = 0; i < labels.size(); i++)
                labels[i] = static_cast<int32_t>(i) / ranks;
            const Plan p(labels);
            const uint64_t bytes = shc_hosts_chunk_elements(&p.plan, 1);
            EXPECT_GE(bytes, 1u << 20);
            EXPECT_LE(bytes, 8u << 20);
            EXPECT_EQ(shc_hosts_chunk_elements(&p.plan, 8), bytes / 8);
            if (ranks * hosts <= 128) { // a rail's piece for one host
                EXPECT_GE(bytes / static_cast<uint64_t>(ranks * hosts), 64u << 10);
            }
        }
}

Labels equal_hosts(int hosts, int ranks)
{
    Labels labels(static_cast<size_t>(ranks * hosts));
    for (size_t i = 0; i < labels.size(); i++)
        labels[i] = static_cast<int32_t>(i) / ranks;
    return labels;
}

const uint64_t kKiB = 1u << 10, kMiB = 1u << 20;
const uint64_t kSlow = 120000000, kFast = 360000000; // links of 1 and 3 Gbit/s

TEST(HostsRate, ChunksAreAnEighthOfTheVectorWhereTheLinkIsSlow)
{
    const Plan p(equal_hosts(2, 2));
    const auto bytes = [&p](uint64_t vector, uint64_t rate) {
        return shc_hosts_chunk_by_rate(&p.plan, 4, vector / 4, rate) * 4;
    };
    EXPECT_EQ(bytes(8 * kKiB, kSlow), 256 * kKiB);
    EXPECT_EQ(bytes(kMiB, kSlow), 256 * kKiB);
    EXPECT_EQ(bytes(4 * kMiB, kSlow), 512 * kKiB);
    EXPECT_EQ(bytes(8 * kMiB, kSlow), kMiB);
    EXPECT_EQ(bytes(64 * kMiB, kSlow), kMiB);
    for (const uint64_t rate : {uint64_t{0}, kFast, UINT64_MAX})
        EXPECT_EQ(bytes(4 * kMiB, rate), kMiB) << rate;
    EXPECT_EQ(bytes(4 * kMiB, 1), 512 * kKiB);
    const Plan large(equal_hosts(16, 8)); // whose chunk has 8 MiB
    EXPECT_EQ(shc_hosts_chunk_by_rate(&large.plan, 1, 16 * kMiB, kSlow), 2 * kMiB);
    EXPECT_EQ(shc_hosts_chunk_by_rate(&large.plan, 1, 64 * kMiB, kSlow), 8 * kMiB);
    const Plan many(equal_hosts(256, 8)); // to each of which 1 KiB goes
    EXPECT_EQ(shc_hosts_chunk_by_rate(&many.plan, 1, kMiB, kSlow), 2 * kMiB);
}

TEST(HostsRate, AnyRateGivesAChunkThatFitsTheStagingMemory)
{
    for (int round = 0; round < 3000; round++) {
        const Plan p(random_labels());
        const uint32_t elem_bytes = 1u + static_cast<uint32_t>(below(48));
        const uint64_t most = shc_hosts_chunk_elements(&p.plan, elem_bytes);
        const uint64_t rates[] = {0, 1, kSlow, kFast, UINT64_MAX, rng()()};
        const uint64_t counts[] = {1, most / 2, 5 * most, UINT64_MAX, rng()()};
        for (const uint64_t rate : rates)
            for (const uint64_t count : counts) {
                const uint64_t each = shc_hosts_chunk_by_rate(&p.plan, elem_bytes, count, rate);
                ASSERT_GE(each, 1u);
                ASSERT_LE(each, most);
                for (const uint64_t width : counts) {
                    const uint64_t column = shc_hosts_column_by_rate(&p.plan, width, count, rate);
                    ASSERT_GE(column, std::min(width, uint64_t{1}));
                    ASSERT_LE(column, width);
                }
            }
    }
}

// Of elements of 4 bytes: a rail has a chunk's half, two of them for each of the width.
TEST(HostsRate, ColumnsAreAnEighthOfTheBlocksWhereTheLinkIsSlow)
{
    const Plan p(equal_hosts(2, 2));
    const uint64_t width = 64 * kKiB; // a chunk of 1 MiB
    EXPECT_EQ(shc_hosts_column_by_rate(&p.plan, width, width, kSlow), width / 4);
    EXPECT_EQ(shc_hosts_column_by_rate(&p.plan, width, 4 * width, kSlow), width / 2);
    EXPECT_EQ(shc_hosts_column_by_rate(&p.plan, width, 16 * width, kSlow), width);
    EXPECT_EQ(shc_hosts_column_by_rate(&p.plan, width, width, kFast), width);
    EXPECT_EQ(shc_hosts_column_by_rate(&p.plan, width, width, 0), width);
    EXPECT_EQ(shc_hosts_column_by_rate(&p.plan, 200, 100, kSlow), 64u); // whole cache lines
    EXPECT_EQ(shc_hosts_column_by_rate(&p.plan, 3, 100, kSlow), 3u);
}

const uint64_t kMs = 1000000;

TEST(HostsRate, IsUnknownUntilEnoughBytesHaveCome)
{
    shc_hosts_rate rate = {};
    EXPECT_EQ(shc_hosts_rate_known(&rate), 0u);
    for (uint64_t i = 0; i < 1000; i++) { // too short, however many
        shc_hosts_rate_begin(&rate, 64 * kKiB, i * kMs);
        shc_hosts_rate_end(&rate, true, i * kMs + 1);
    }
    EXPECT_EQ(shc_hosts_rate_known(&rate), 0u);
    for (uint64_t i = 0; i < 8; i++) { // pauses do not count
        EXPECT_EQ(shc_hosts_rate_known(&rate), 0u);
        shc_hosts_rate_begin(&rate, kMiB, i * 1000 * kMs);
        shc_hosts_rate_end(&rate, true, i * 1000 * kMs + 10 * kMs);
    }
    EXPECT_EQ(shc_hosts_rate_known(&rate), 100 * kMiB);
}

// Two calls share the link: each of them alone would look half or twice as fast.
TEST(HostsRate, CallsInFlightAtOnceAreOnePeriod)
{
    shc_hosts_rate rate = {};
    shc_hosts_rate_begin(&rate, 4 * kMiB, 0);
    shc_hosts_rate_begin(&rate, 4 * kMiB, 1 * kMs);
    shc_hosts_rate_end(&rate, true, 79 * kMs);
    EXPECT_EQ(shc_hosts_rate_known(&rate), 0u);
    shc_hosts_rate_end(&rate, true, 80 * kMs);
    EXPECT_EQ(shc_hosts_rate_known(&rate), 100 * kMiB);
}

void one_call(shc_hosts_rate *rate, uint64_t ms, bool good = true)
{
    shc_hosts_rate_begin(rate, 8 * kMiB, 1000 * kMs);
    shc_hosts_rate_end(rate, good, (1000 + ms) * kMs);
}

// A burst and a late peer are few among the last samples.
TEST(HostsRate, IsTheMedianOfTheLastSamples)
{
    shc_hosts_rate rate = {};
    one_call(&rate, 80);
    EXPECT_EQ(shc_hosts_rate_known(&rate), 100 * kMiB);
    for (int i = 0; i < SHC_HOSTS_SAMPLES; i++)
        one_call(&rate, 80);
    for (const uint64_t ms : {1u, 8000u, 2u}) {
        one_call(&rate, ms);
        EXPECT_EQ(shc_hosts_rate_known(&rate), 100 * kMiB) << ms;
    }
    for (int i = 0; i < SHC_HOSTS_SAMPLES; i++)
        one_call(&rate, 20);
    EXPECT_EQ(shc_hosts_rate_known(&rate), 400 * kMiB);
}

TEST(HostsRate, AFailureIsNoMeasure)
{
    shc_hosts_rate rate = {};
    one_call(&rate, 1, false);
    EXPECT_EQ(shc_hosts_rate_known(&rate), 0u);
    shc_hosts_rate_begin(&rate, 8 * kMiB, 0); // nor is what was in flight with it
    one_call(&rate, 1, false);
    shc_hosts_rate_end(&rate, true, 2000 * kMs);
    EXPECT_EQ(shc_hosts_rate_known(&rate), 0u);
    shc_hosts_rate_begin(&rate, 8 * kMiB, 5 * kMs); // a clock that does not move
    shc_hosts_rate_end(&rate, true, 5 * kMs);
    EXPECT_GT(shc_hosts_rate_known(&rate), uint64_t{1} << 40);
}

} // namespace
