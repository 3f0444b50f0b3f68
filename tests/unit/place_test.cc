// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/exec/place.h"
#include "shm/exec/topo.h"
}

#include <cstring>
#include <gtest/gtest.h>
#include <string>

namespace
{

shc_os_cpus cpus_of(const std::string &list)
{
    shc_os_cpus cpus = {};
    EXPECT_TRUE(shc_topo_parse_cpus(list.c_str(), &cpus)) << list;
    return cpus;
}

// Nodes of four CPUs each: 0 and 1 lie on one socket, 3 on another one.
shc_numa machine(bool nodes)
{
    shc_numa numa = {};
    memset(numa.node_of, -1, sizeof numa.node_of);
    const int ids[] = {0, 3, 1};
    for (int cpu = 0; nodes && cpu < 12; cpu++)
        numa.node_of[cpu] = static_cast<int8_t>(ids[cpu / 4]);
    for (int a : ids)
        for (int b : ids)
            numa.distance[a][b] = a == b ? 10 : a == 3 || b == 3 ? 32 : 12;
    return numa;
}

// Those to choose from, or "none".
std::string chosen(const std::string &allowed, int here, const std::string &taken,
                   const shc_numa &numa = machine(true))
{
    const shc_os_cpus may = cpus_of(allowed), others = cpus_of(taken);
    shc_os_cpus free;
    if (!shc_place_choose(&numa, &may, here, &others, &free))
        return "none";
    std::string list;
    for (int cpu = 0; cpu < SHC_OS_MAX_CPUS; cpu++)
        if (shc_os_cpus_have(&free, cpu))
            list += (list.empty() ? "" : ",") + std::to_string(cpu);
    return list;
}

TEST(Choose, NeitherTheCpuWhereItIsNorTheOthersRanks)
{
    EXPECT_EQ(chosen("0-3", 0, "0,2"), "1,3");
    EXPECT_EQ(chosen("0-3", 1, "1"), "0,2,3");
}

TEST(Choose, OnlyWhatTheThreadMayUse)
{
    EXPECT_EQ(chosen("1-2", 1, "1"), "2");
    EXPECT_EQ(chosen("1", 1, "1"), "none");
}

TEST(Choose, NothingWhereAllAreTaken)
{
    EXPECT_EQ(chosen("0-3", 0, "0-3"), "none");
}

TEST(Choose, TheOwnNodeBeforeAnother)
{
    EXPECT_EQ(chosen("0-7", 5, "5"), "4,6,7");
    EXPECT_EQ(chosen("0-7", 5, "4-6"), "7");
    EXPECT_EQ(chosen("0-7", 5, "4-7"), "0,1,2,3");
}

TEST(Choose, OfOtherNodesTheNearest)
{
    EXPECT_EQ(chosen("0-11", 1, "0-3"), "8,9,10,11");
    EXPECT_EQ(chosen("0-11", 8, "8-11,2"), "0,1,3");
    EXPECT_EQ(chosen("0-11", 1, "0-3,8-11"), "4,5,6,7");
    EXPECT_EQ(chosen("0-13", 5, "4-7"), "0,1,2,3,8,9,10,11"); // 12 and 13 are of no node
    shc_numa untold = machine(true);
    memset(untold.distance, 0, sizeof untold.distance);
    EXPECT_EQ(chosen("0-11", 1, "0-3,9", untold), "4,5,6,7,8,10,11");
    EXPECT_EQ(chosen("0-11", 1, "0-2", untold), "3");
}

TEST(Choose, WhereNodesAreNotKnownAnyCpu)
{
    EXPECT_EQ(chosen("0-7", 5, "5-7", machine(false)), "0,1,2,3,4");
    EXPECT_EQ(chosen("0-1", -1, "0", machine(false)), "1");
}

TEST(Nodes, OfASetOfCpus)
{
    const shc_numa numa = machine(true);
    const auto node_of = [&](const std::string &list) {
        const shc_os_cpus cpus = cpus_of(list);
        return shc_numa_node_of(&numa, &cpus);
    };
    EXPECT_EQ(node_of("1-3"), 0);
    EXPECT_EQ(node_of("4-7"), 3);
    for (const char *none : {"", "3-4", "12", "11-12"})
        EXPECT_EQ(node_of(none), -1) << none;
}

shc_os_cpus only(int cpu)
{
    shc_os_cpus one = {};
    shc_os_cpus_add(&one, cpu);
    return one;
}

TEST(Move, PutsTheThreadOnAnotherCpuWithAllItMayUse)
{
    shc_os_cpus before, after;
    ASSERT_EQ(shc_os_cpus_allowed(&before), 0);
    if (!shc_place_has_choice())
        GTEST_SKIP() << "needs two CPUs";
    int left = 0;
    for (int again = 0; again < 50; again++) {
        const int here = shc_os_cpu_current();
        const shc_os_cpus one = only(here), none = {};
        ASSERT_EQ(shc_os_thread_pin(&one), 0); // else the scheduler might move it meanwhile
        EXPECT_FALSE(shc_place_has_choice());
        EXPECT_FALSE(shc_place_move(here, &none)) << "it may use no other";
        ASSERT_EQ(shc_os_thread_pin(&before), 0);
        EXPECT_TRUE(shc_place_move(here, &one));
        left += shc_os_cpu_current() != here; // the scheduler may have brought it back
        ASSERT_EQ(shc_os_cpus_allowed(&after), 0);
        for (size_t i = 0; i < SHC_OS_MAX_CPUS / 64; i++)
            ASSERT_EQ(after.bits[i], before.bits[i]);
    }
    EXPECT_GT(left, 25);
    EXPECT_FALSE(shc_place_move(shc_os_cpu_current(), &before)) << "all are taken";
}

} // namespace
