// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of groups over several hosts: properties, for random maps.
extern "C" {
#include "hosts/hosts_plan.h"
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

} // namespace
