// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/kernel/entries.h"
}

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <vector>

namespace
{

struct Lists {
    std::vector<uint64_t> positions, spare_positions;
    std::vector<const void *> values, spare_values;
    shc_entries entries, spare;

    Lists(std::vector<uint64_t> at, const std::vector<float> &numbers)
        : positions(std::move(at)), spare_positions(positions.size()),
          spare_values(positions.size())
    {
        for (const float &number : numbers)
            values.push_back(&number);
        entries = {positions.size(), positions.data(), values.data()};
        spare = {positions.size(), spare_positions.data(), spare_values.data()};
    }
};

// Values are numbers of entries, so the order among equals can be seen.
std::vector<float> numbers(size_t count)
{
    std::vector<float> all(count);
    for (size_t i = 0; i < count; i++)
        all[i] = static_cast<float>(i);
    return all;
}

TEST(Entries, SortByPositionAndKeepTheOrderOfEquals)
{
    std::mt19937 random(7);
    for (size_t count : {0u, 1u, 2u, 3u, 10u, 1000u, 4097u}) {
        for (uint64_t limit : {uint64_t{1}, uint64_t{5}, uint64_t{1} << 60}) {
            std::vector<uint64_t> at(count);
            for (uint64_t &position : at)
                position = (uint64_t{random()} << 32 | random()) % limit;
            std::vector<float> number = numbers(count);
            std::vector<std::pair<uint64_t, float>> want;
            for (size_t i = 0; i < count; i++)
                want.emplace_back(at[i], number[i]);
            std::stable_sort(want.begin(), want.end(),
                             [](auto &a, auto &b) { return a.first < b.first; });
            Lists lists(at, number);
            shc_entries_sort(&lists.entries, &lists.spare);
            ASSERT_EQ(lists.entries.count, count);
            for (size_t i = 0; i < count; i++) {
                ASSERT_EQ(lists.entries.position[i], want[i].first);
                ASSERT_EQ(*static_cast<const float *>(lists.entries.value[i]), want[i].second);
            }
        }
    }
}

TEST(Entries, InOrderAreLeftWhereTheyAre)
{
    std::vector<float> number = numbers(5);
    Lists lists({1, 2, 2, 7, 9}, number);
    shc_entries_sort(&lists.entries, &lists.spare);
    EXPECT_EQ(lists.entries.position, lists.positions.data());
    EXPECT_EQ(shc_entries_distinct(&lists.entries), 4u);
}

std::vector<float> combined(const std::vector<uint64_t> &at, const std::vector<float> &number,
                            shc_redop redop, int full, std::vector<uint64_t> *positions)
{
    const float zero = 0;
    Lists lists(at, number);
    shc_combine how = {};
    how.reduce = shc_kernel_reduce(SHC_FLOAT32, redop);
    how.elements = 1;
    how.bytes = sizeof(float);
    how.full = full;
    how.average = redop == SHC_AVG;
    how.zero = &zero;
    std::vector<float> values(shc_entries_distinct(&lists.entries));
    positions->resize(values.size());
    shc_entries_combine(&lists.entries, &how, positions->data(),
                        reinterpret_cast<char *>(values.data()));
    return values;
}

TEST(Entries, OfOnePositionBecomeOneValue)
{
    std::vector<uint64_t> at;
    EXPECT_EQ(combined({2, 2, 2, 5, 8, 8}, {1, 2, 4, 7, 3, 9}, SHC_SUM, 0, &at),
              (std::vector<float>{7, 7, 12}));
    EXPECT_EQ(at, (std::vector<uint64_t>{2, 5, 8}));
    EXPECT_EQ(combined({2, 2, 2, 5, 8, 8}, {1, 2, 4, 7, 3, 9}, SHC_AVG, 4, &at),
              (std::vector<float>{1.75f, 1.75f, 3}));
    EXPECT_TRUE(combined({}, {}, SHC_SUM, 4, &at).empty());
}

// Like a dense sum: -0 + 0 is 0 if a rank has nothing, and -0 if all have -0.
TEST(Entries, MissingOnesCountAsZero)
{
    std::vector<uint64_t> at;
    std::vector<float> sum = combined({1, 2, 2}, {-0.f, -0.f, -0.f}, SHC_SUM, 2, &at);
    EXPECT_FALSE(std::signbit(sum[0]));
    EXPECT_TRUE(std::signbit(sum[1]));
    EXPECT_TRUE(std::signbit(combined({1}, {-0.f}, SHC_SUM, 0, &at)[0]));
}

} // namespace
