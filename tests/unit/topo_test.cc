// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/exec/topo.h"
}

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>

namespace
{

namespace fs = std::filesystem;

// A sysfs of our own: what another machine would show.
class Machine
{
  public:
    Machine()
    {
        char pattern[] = "/tmp/shmcoll-sys-XXXXXX";
        root_ = mkdtemp(pattern);
        fs::create_directories(root_ + "/devices/system/node");
    }
    ~Machine() { fs::remove_all(root_); }
    void online(const std::string &list) const { write("online", list); }
    void node(int id, const std::string &cpus) const
    {
        std::string folder = "node" + std::to_string(id);
        fs::create_directories(root_ + "/devices/system/node/" + folder);
        write(folder + "/cpulist", cpus);
    }
    shc_topo read() const
    {
        shc_topo topo;
        shc_topo_read(&topo, root_.c_str());
        return topo;
    }

  private:
    void write(const std::string &name, const std::string &text) const
    {
        std::ofstream(root_ + "/devices/system/node/" + name) << text << "\n";
    }
    std::string root_;
};

TEST(Topo, TwoSocketsOfFourNodes)
{
    Machine machine;
    machine.online("0-7");
    for (int node = 0; node < 8; node++)
        machine.node(node, std::to_string(node * 12) + "-" + std::to_string(node * 12 + 11) + "," +
                               std::to_string(96 + node * 12) + "-" +
                               std::to_string(96 + node * 12 + 11));
    shc_topo topo = machine.read();
    EXPECT_EQ(topo.node_count, 8);
    EXPECT_EQ(shc_topo_node_of(&topo, 0), 0);
    EXPECT_EQ(shc_topo_node_of(&topo, 13), 1);
    EXPECT_EQ(shc_topo_node_of(&topo, 95), 7);
    EXPECT_EQ(shc_topo_node_of(&topo, 96), 0);
    EXPECT_EQ(shc_topo_node_of(&topo, 192), -1);
}

TEST(Topo, NodesWithHolesAndWithoutCpus)
{
    Machine machine;
    machine.online("0,2,255");
    machine.node(0, "0-1");
    machine.node(2, "2-3");
    machine.node(255, ""); // memory only
    shc_topo topo = machine.read();
    EXPECT_EQ(topo.node_count, 3);
    EXPECT_EQ(shc_topo_node_of(&topo, 3), 2);
}

TEST(Topo, AMachineWithoutSysfsIsOneNode)
{
    shc_topo topo;
    shc_topo_read(&topo, "/nowhere");
    EXPECT_EQ(topo.node_count, 1);
    EXPECT_EQ(shc_topo_node_of(&topo, 0), -1);
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
