// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/exec/place.h"
}

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

// Two nodes of four CPUs each; none: a machine without sysfs.
shc_topo machine(bool nodes)
{
    shc_topo topo = {};
    topo.node_count = nodes ? 2 : 1;
    if (nodes) {
        topo.node_ids[1] = 3;
        topo.node_cpus[0] = cpus_of("0-3");
        topo.node_cpus[1] = cpus_of("4-7");
    }
    return topo;
}

// Those to choose from, or "none".
std::string chosen(const std::string &allowed, int here, const std::string &taken,
                   bool nodes = true)
{
    const shc_topo topo = machine(nodes);
    const shc_os_cpus may = cpus_of(allowed), others = cpus_of(taken);
    shc_os_cpus free;
    if (!shc_place_choose(&topo, &may, here, &others, &free))
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

TEST(Choose, WhereNodesAreNotKnownAnyCpu)
{
    EXPECT_EQ(chosen("0-7", 5, "5-7", false), "0,1,2,3,4");
    EXPECT_EQ(chosen("0-1", -1, "0", false), "1");
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
