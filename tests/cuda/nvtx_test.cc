// SPDX-License-Identifier: BSD-3-Clause
// NVTX ranges, as a tool that listens hears them.
extern "C" {
#include "cuda_ipc/nvtx.h"
}

#include "tests/cuda/living.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace shmcoll::test
{
namespace
{

// What one process told the tool.
struct Told {
    std::map<std::string, std::string> groups;      // by category
    std::vector<std::array<std::string, 3>> ranges; // category, bytes, name
    int open = 0;
};

class Nvtx : public testing::Test
{
  protected:
    void SetUp() override
    {
        setenv("NVTX_INJECTION64_PATH", NVTX_TOOL, 1);
        setenv("NVTX_TOOL_FILE", (folder_.path + "/told").c_str(), 1);
    }
    void TearDown() override
    {
        unsetenv("NVTX_INJECTION64_PATH");
        unsetenv("NVTX_TOOL_FILE");
    }

    std::vector<Told> told() const
    {
        std::vector<Told> all;
        for (auto &entry : std::filesystem::directory_iterator(folder_.path)) {
            Told told;
            std::ifstream in(entry.path());
            for (std::string line; std::getline(in, line);) {
                std::istringstream words(line);
                std::string what, category, bytes, name;
                words >> what >> category;
                told.open += what == "push" ? 1 : what == "pop" ? -1 : 0;
                if (what == "push" && words >> bytes >> name)
                    told.ranges.push_back({category, bytes, name});
                if (what == "category" && words >> name)
                    told.groups[category] = name;
            }
            all.push_back(told);
        }
        return all;
    }

    Folder folder_;
};

int count_of(const Told &told, const std::string &name)
{
    return static_cast<int>(std::count_if(told.ranges.begin(), told.ranges.end(),
                                          [&](auto &range) { return range[2] == name; }));
}

TEST_F(Nvtx, HasARangeForEachCallOfAGroup)
{
    auto reports = run(2, "scenario=many operations=5");
    expect_key(reports, "nvtx", "yes");
    const std::vector<Told> all = told();
    ASSERT_EQ(all.size(), 2U);
    for (const Told &one : all) {
        EXPECT_EQ(one.open, 0);
        EXPECT_EQ(count_of(one, "all_reduce"), 5);
        ASSERT_EQ(one.groups.size(), 1U);
        EXPECT_EQ(one.groups.begin()->second, "test");
        for (auto &range : one.ranges)
            EXPECT_EQ(range[0], one.groups.begin()->first);
    }
    EXPECT_EQ(all[0].groups, all[1].groups);
}

TEST_F(Nvtx, HasOneRangeForABatch)
{
    auto reports = run(2, "scenario=batch_refuse");
    expect_key(reports, "goes_on", "yes");
    for (const Told &one : told()) {
        EXPECT_EQ(one.open, 0) << "also where a call is refused";
        EXPECT_GT(count_of(one, "batch"), 0);
    }
}

// One process, whose tool is loaded with its first group.
TEST_F(Nvtx, TellsTheBytesOfTheLongerSide)
{
    const int64_t three = 3, twelve = 12;
    float memory[12] = {};
    const shc_tensor small = {memory, 1, &three, nullptr}, large = {memory, 1, &twelve, nullptr};
    shc_op gather = {}, scatter = {}, barrier = {};
    gather.kind = SHC_ALL_GATHER;
    scatter.kind = SHC_REDUCE_SCATTER;
    gather.dtype = scatter.dtype = SHC_FLOAT32;
    gather.input = scatter.output = {&small, 1};
    gather.output = scatter.input = {&large, 1};
    barrier.kind = SHC_BARRIER;

    const uint32_t category = shc_nvtx_category("dp");
    ASSERT_NE(category, 0U);
    for (const shc_op &op : {gather, scatter, barrier}) {
        shc_nvtx_begin(category, &op, 1);
        shc_nvtx_end(category);
    }
    const std::string number = std::to_string(category);
    const std::vector<Told> all = told();
    ASSERT_EQ(all.size(), 1U);
    using Range = std::array<std::string, 3>;
    EXPECT_EQ(all[0].ranges, (std::vector<Range>{{number, "48", "all_gather"},
                                                 {number, "48", "reduce_scatter"},
                                                 {number, "0", "barrier"}}));
    EXPECT_EQ(all[0].groups.at(number), "dp");
}

} // namespace
} // namespace shmcoll::test
