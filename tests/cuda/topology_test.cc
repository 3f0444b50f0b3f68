// SPDX-License-Identifier: BSD-3-Clause
// The decisions about GPUs, from tables: who is where, who leads, which way data goes.
extern "C" {
#include "cuda_ipc/topology.h"
}

#include <gtest/gtest.h>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace shmcoll::test
{
namespace
{

// A letter per rank: the GPU it is on. All pairs work.
struct Table {
    explicit Table(const std::string &gpus, uint64_t number = 0)
    {
        facts->world = static_cast<int>(gpus.size());
        facts->number = number;
        for (size_t r = 0; r < gpus.size(); r++)
            facts->uuids[r].bytes[15] = static_cast<unsigned char>(gpus[r]);
        for (auto &row : facts->probes)
            for (auto &probe : row)
                probe = SHC_PROBE_GOOD;
        decide();
    }
    void decide()
    {
        shc_topology_place(facts.get(), topology.get());
        shc_topology_route(facts.get(), topology.get());
    }
    void set(int from, int to, unsigned probe)
    {
        facts->probes[from][to] = static_cast<uint8_t>(probe);
        decide();
    }
    // "0-1:A 2:B": the blocks.
    std::string blocks() const
    {
        std::string text;
        for (int i = 0; i < topology->block_count; i++) {
            const shc_block &b = topology->blocks[i];
            text += (i ? " " : "") + std::to_string(b.first) + "+" + std::to_string(b.count) + ":" +
                    std::to_string(b.gpu);
        }
        return text;
    }
    std::string routes() const
    {
        std::string text;
        for (int i = 0; i < topology->gpu_count; i++)
            text += std::string(shc_route_name(topology->gpus[i].inside)) + ", ";
        return text + "between: " + shc_route_name(topology->between);
    }

    std::unique_ptr<shc_facts> facts = std::make_unique<shc_facts>();
    std::unique_ptr<shc_topology> topology = std::make_unique<shc_topology>();
};

TEST(Topology, OneRankIsAlone)
{
    Table t("A");
    EXPECT_EQ(t.routes(), "alone, between: alone");
    EXPECT_EQ(t.blocks(), "0+1:0");
    EXPECT_EQ(t.topology->gpus[0].leader, 0);
}

TEST(Topology, RanksOfOneGpuAreOneBlock)
{
    Table t("AAAA");
    EXPECT_EQ(t.routes(), "same GPU, between: alone");
    EXPECT_EQ(t.blocks(), "0+4:0");
}

TEST(Topology, AGpuEachArePeers)
{
    Table t("CAB");
    EXPECT_EQ(t.routes(), "alone, alone, alone, between: peers");
    EXPECT_EQ(t.blocks(), "0+1:0 1+1:1 2+1:2");
}

TEST(Topology, BlocksAreRunsOfNeighboursEvenOfOneGpu)
{
    Table t("AABABB");
    EXPECT_EQ(t.blocks(), "0+2:0 2+1:1 3+1:0 4+2:1");
    EXPECT_EQ(t.topology->gpus[0].count, 3);
    EXPECT_EQ(t.topology->gpus[1].count, 3);
    EXPECT_EQ(t.routes(), "same GPU, same GPU, between: peers");
}

TEST(Topology, WholeUuidsAreCompared)
{
    Table t("AA");
    for (size_t i = 0; i < sizeof t.facts->uuids[1].bytes; i++) {
        t.facts->uuids[1].bytes[i] ^= 0x80;
        t.decide();
        EXPECT_EQ(t.topology->gpu_count, 2) << "byte " << i;
        t.facts->uuids[1].bytes[i] ^= 0x80;
    }
}

// MIG instances of one card have UUIDs of their own, and do not reach one another.
TEST(Topology, InstancesThatRefuseOneAnotherUseTheHost)
{
    Table t("AAB");
    t.set(2, 0, SHC_PROBE_REFUSED);
    EXPECT_EQ(t.routes(), "same GPU, alone, between: host memory");
    EXPECT_STREQ(t.topology->between_reason, "rank 2 with rank 0's memory: it is refused");
    EXPECT_STREQ(t.topology->inside_reason, "");
}

TEST(Topology, LeadersRotateWithTheGroupsNumber)
{
    for (uint64_t number : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{3}, UINT64_MAX}) {
        Table t("ABABA", number);
        const int of_a[] = {0, 2, 4}, of_b[] = {1, 3};
        EXPECT_EQ(t.topology->gpus[0].leader, of_a[number % 3]) << number;
        EXPECT_EQ(t.topology->gpus[1].leader, of_b[number % 2]) << number;
    }
}

TEST(Topology, ProbesAreNeededInsideGpusAndBetweenLeaders)
{
    Table t("AABB", 1); // leaders 1 and 3
    std::set<std::pair<int, int>> needed;
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++)
            if (shc_topology_needs(t.topology.get(), from, to))
                needed.insert({from, to});
    const std::set<std::pair<int, int>> expected = {{0, 1}, {1, 0}, {2, 3}, {3, 2}, {1, 3}, {3, 1}};
    EXPECT_EQ(needed, expected);
}

TEST(Topology, EachBadProbeTakesOneWayAway)
{
    const unsigned wild = 200;
    for (unsigned bad : {unsigned{SHC_PROBE_NONE}, unsigned{SHC_PROBE_REFUSED},
                         unsigned{SHC_PROBE_WRONG}, unsigned{SHC_PROBE_LATE}, wild}) {
        Table inside("AABB");
        inside.set(3, 2, bad);
        EXPECT_EQ(inside.routes(), "same GPU, host memory, between: peers");
        EXPECT_EQ(inside.topology->inside_reason,
                  std::string("rank 3 with rank 2's memory: it ") + shc_probe_name(bad));
        Table between("AABB");
        between.set(0, 2, bad);
        EXPECT_EQ(between.routes(), "same GPU, same GPU, between: host memory");
        Table elsewhere("AABB");
        elsewhere.set(1, 3, bad); // neither leads
        EXPECT_EQ(elsewhere.routes(), "same GPU, same GPU, between: peers");
    }
}

TEST(Topology, TheFirstPairIsTheReason)
{
    Table t("AAA");
    t.set(2, 1, SHC_PROBE_LATE);
    t.set(0, 2, SHC_PROBE_WRONG);
    EXPECT_STREQ(t.topology->inside_reason, "rank 0 with rank 2's memory: it gives wrong data");
    t.set(0, 2, SHC_PROBE_GOOD);
    EXPECT_STREQ(t.topology->inside_reason, "rank 2 with rank 1's memory: it does not end");
    t.set(2, 1, SHC_PROBE_GOOD);
    EXPECT_STREQ(t.topology->inside_reason, "");
}

// What must hold of any placement, whatever the table.
TEST(Topology, AnyTableIsPartitioned)
{
    std::minstd_rand random(7);
    for (int repeat = 0; repeat < 300; repeat++) {
        std::string gpus(1 + random() % (repeat % 10 == 0 ? SHC_MAX_WORLD : 12), ' ');
        for (char &gpu : gpus)
            gpu = static_cast<char>('A' + random() % 5);
        Table t(gpus, random());
        const shc_topology &top = *t.topology;
        int next = 0, ranks = 0;
        for (int i = 0; i < top.block_count; i++) {
            EXPECT_EQ(top.blocks[i].first, next);
            EXPECT_TRUE(i == 0 || top.blocks[i].gpu != top.blocks[i - 1].gpu);
            for (int r = next; r < next + top.blocks[i].count; r++)
                EXPECT_EQ(top.gpu_of[r], top.blocks[i].gpu);
            next += top.blocks[i].count;
        }
        EXPECT_EQ(next, top.world);
        for (int gpu = 0; gpu < top.gpu_count; gpu++) {
            EXPECT_EQ(top.gpu_of[top.gpus[gpu].leader], gpu);
            ranks += top.gpus[gpu].count;
        }
        EXPECT_EQ(ranks, top.world);
        EXPECT_EQ(std::set<char>(gpus.begin(), gpus.end()).size(),
                  static_cast<size_t>(top.gpu_count));
    }
}

} // namespace
} // namespace shmcoll::test
