// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/exec/topo.h"
}

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <vector>

namespace
{

namespace fs = std::filesystem;

// A sysfs of the test's own, as another machine would show it.
class Machine
{
  public:
    Machine()
    {
        char pattern[] = "/tmp/shmcoll-sys-XXXXXX";
        root_ = mkdtemp(pattern);
    }
    ~Machine() { fs::remove_all(root_); }
    const std::string &root() const { return root_; }
    void siblings(int cpu, const std::string &cpus) const
    {
        std::string folder = root_ + "/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology";
        fs::create_directories(folder);
        std::ofstream(folder + "/thread_siblings_list") << cpus << "\n";
    }

  private:
    std::string root_;
};

// Eight nodes of twelve cores of two threads: CPUs c and c + 96 are one core.
void build_large(const Machine &machine)
{
    for (int core = 0; core < 96; core++)
        for (int cpu : {core, core + 96})
            machine.siblings(cpu, std::to_string(core) + "," + std::to_string(core + 96));
}

shc_os_cpus cpus_of(const std::string &list)
{
    shc_os_cpus cpus;
    EXPECT_TRUE(shc_topo_parse_cpus(list.c_str(), &cpus)) << list;
    return cpus;
}

int count(const shc_os_cpus &cpus)
{
    int all = 0;
    for (uint64_t word : cpus.bits)
        all += __builtin_popcountll(word);
    return all;
}

// The reduction threads of each rank, by the CPUs that it may use.
std::vector<int> threads_of(const Machine &machine, const std::vector<std::string> &allowed)
{
    std::vector<shc_os_cpus> cores(allowed.size());
    shc_topo_crowd crowd = {};
    for (size_t rank = 0; rank < allowed.size(); rank++) {
        const shc_os_cpus cpus = cpus_of(allowed[rank]);
        shc_topo_cores(machine.root().c_str(), &cpus, &cores[rank]);
        shc_topo_crowd_add(&crowd, &cores[rank]);
    }
    std::vector<int> threads;
    for (const shc_os_cpus &its : cores)
        threads.push_back(shc_topo_spare(shc_topo_share(&crowd, &its)));
    return threads;
}

// The CPUs of a node, with both threads of each core.
std::string node_list(int node)
{
    const int first = node * 12;
    return std::to_string(first) + "-" + std::to_string(first + 11) + "," +
           std::to_string(first + 96) + "-" + std::to_string(first + 107);
}

// A rank on each node has eleven of its twelve cores to spare.
TEST(Spare, ARankForEachNode)
{
    Machine machine;
    build_large(machine);
    std::vector<std::string> allowed;
    for (int node = 0; node < 8; node++)
        allowed.push_back(node_list(node));
    EXPECT_EQ(threads_of(machine, allowed), std::vector<int>(8, 11));
}

TEST(Spare, RanksThatShareANodeShareWhatIsLeft)
{
    Machine machine;
    build_large(machine);
    const std::vector<std::string> allowed = {node_list(0), node_list(0), node_list(0),
                                              node_list(5)};
    EXPECT_EQ(threads_of(machine, allowed), (std::vector<int>{3, 3, 3, 11}));
    EXPECT_EQ(threads_of(machine, std::vector<std::string>(12, node_list(3))),
              std::vector<int>(12, 0)); // a core each
    EXPECT_EQ(threads_of(machine, std::vector<std::string>(5, node_list(3))),
              std::vector<int>(5, 1)); // 2.4 cores each
}

TEST(Spare, RanksThatMayRunAnywhereShareTheMachine)
{
    Machine machine;
    build_large(machine);
    EXPECT_EQ(threads_of(machine, {"0-191"}), std::vector<int>{95});
    EXPECT_EQ(threads_of(machine, std::vector<std::string>(8, "0-191")), std::vector<int>(8, 11));
    // More ranks than cores, and as many ranks as cores: no whole core is left.
    EXPECT_EQ(threads_of(machine, std::vector<std::string>(96, "0-191")), std::vector<int>(96, 0));
    EXPECT_EQ(threads_of(machine, std::vector<std::string>(200, "0-191")),
              std::vector<int>(200, 0));
}

// One is bound to half a node, the other may use it all.
TEST(Spare, RanksThatOverlap)
{
    Machine machine;
    build_large(machine);
    EXPECT_EQ(threads_of(machine, {"0-5", "0-11"}), (std::vector<int>{2, 8}));
    EXPECT_EQ(threads_of(machine, {"0", "0-11"}), (std::vector<int>{0, 10}));
}

// Threads of one core are one core, whichever of them a rank may use.
TEST(Spare, SiblingsAreOneCore)
{
    Machine machine;
    build_large(machine);
    EXPECT_EQ(threads_of(machine, {"0-3,96-99"}), std::vector<int>{3});
    EXPECT_EQ(threads_of(machine, {"96-99"}), std::vector<int>{3});
    EXPECT_EQ(threads_of(machine, {"0-3", "96-99"}), (std::vector<int>{1, 1}));
    EXPECT_EQ(threads_of(machine, {"7", "103"}), (std::vector<int>{0, 0}));
    shc_os_cpus cores, cpus = cpus_of("5,101-103");
    shc_topo_cores(machine.root().c_str(), &cpus, &cores);
    EXPECT_EQ(cores.bits[0], (1ULL << 5 | 1ULL << 6 | 1ULL << 7));
    EXPECT_EQ(count(cores), 3);
}

TEST(Spare, ACpuThatSysfsDoesNotTellOfIsACore)
{
    Machine machine;
    machine.siblings(1, "nonsense");
    machine.siblings(2, ""); // no siblings, not even itself
    EXPECT_EQ(threads_of(machine, {"0-3"}), std::vector<int>{3});
    EXPECT_EQ(threads_of(machine, {""}), std::vector<int>{0});
}

TEST(Spare, SharesThatAddUpToWholeCoresAreWhole)
{
    EXPECT_EQ(shc_topo_spare(0), 0);
    EXPECT_EQ(shc_topo_spare(1.99), 0);
    EXPECT_EQ(shc_topo_spare(2.0), 1);
    for (int ranks = 1; ranks <= 7; ranks++) {
        double share = 0;
        for (int core = 0; core < 4 * ranks; core++)
            share += 1.0 / ranks;
        EXPECT_EQ(shc_topo_spare(share), 3) << ranks;
    }
}

TEST(Topo, ListsOfCpusAreReadOrRefused)
{
    shc_os_cpus cpus;
    ASSERT_TRUE(shc_topo_parse_cpus("0-3,8\n", &cpus));
    EXPECT_EQ(cpus.bits[0], 0x10fu);
    ASSERT_TRUE(shc_topo_parse_cpus("63-64", &cpus));
    EXPECT_EQ(cpus.bits[0], 1ULL << 63);
    EXPECT_EQ(cpus.bits[1], 1u);
    ASSERT_TRUE(shc_topo_parse_cpus("", &cpus));
    for (const char *wrong : {"x", "3-1", "-1", "0-", "1;2", "0-1024", "99999999999"})
        EXPECT_FALSE(shc_topo_parse_cpus(wrong, &cpus)) << wrong;
}

} // namespace
