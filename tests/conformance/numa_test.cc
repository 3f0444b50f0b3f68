// SPDX-License-Identifier: BSD-3-Clause
// Two ranks on a machine of two NUMA nodes, which a stand-in for libnuma (support/two_nodes.c) makes of this one.
extern "C" {
#include "shm/exec/topo.h"
#include "shm/shmcoll.h"
}
#include "tests/conformance/world.h"
#include "tests/support/ranks.h"

#include <cstring>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>

using namespace shmcoll::test;

namespace
{

// A library that is loaded is the one that dlopen() finds by its name.
void *const stand_in = dlopen(SHMCOLL_TWO_NODES, RTLD_NOW | RTLD_GLOBAL);

struct Note {
    const char *memory;
    unsigned long bytes;
    int mode;
    unsigned long nodes;
};

std::vector<Note> notes()
{
    const auto *first = static_cast<Note *>(dlsym(stand_in, "two_nodes_notes"));
    return {first, first + *static_cast<int *>(dlsym(stand_in, "two_nodes_count"))};
}

// A CPU of that node that this program may use, or -1.
int cpu_of(int node)
{
    shc_os_cpus allowed;
    EXPECT_EQ(shc_os_cpus_allowed(&allowed), 0);
    for (int cpu = 0; cpu < SHC_OS_MAX_CPUS; cpu++)
        if (shc_os_cpus_have(&allowed, cpu) && shc_numa_get()->node_of[cpu] == node)
            return cpu;
    return -1;
}

void pin(int cpu)
{
    shc_os_cpus one = {};
    shc_os_cpus_add(&one, cpu);
    ASSERT_EQ(shc_os_thread_pin(&one), 0);
}

// How many bytes of memory have that policy.
size_t bytes_of(const std::vector<Note> &all, const char *from, size_t bytes, int mode,
                unsigned long nodes)
{
    size_t sum = 0;
    for (const Note &note : all)
        if (note.memory >= from && note.memory < from + bytes && note.mode == mode &&
            note.nodes == nodes)
            sum += note.bytes;
    return sum;
}

void sum_of(Rank &rank, std::vector<float> &values)
{
    int64_t size;
    shc_tensor tensor = vector_of(values, &size);
    shc_op op = op_of(SHC_ALL_REDUCE);
    op.input = op.output = {&tensor, 1};
    ASSERT_EQ(shc_run(rank.comm, &op), SHC_OK) << error_text();
}

TEST(TwoNodes, LibnumaSaysWhichNodesAndHowFarApart)
{
    ASSERT_NE(stand_in, nullptr) << dlerror();
    ASSERT_TRUE(shc_os_has_numa());
    EXPECT_NE(strstr(shc_build_info(), "\nnuma_use=nodes of CPUs, distances, memory\n"), nullptr);
    for (int cpu = 0; cpu < SHC_OS_MAX_CPUS; cpu++)
        ASSERT_EQ(shc_numa_get()->node_of[cpu], cpu < 512 ? cpu % 2 : -1) << cpu;
    EXPECT_EQ(shc_numa_get()->distance[0][0], 10);
    EXPECT_EQ(shc_numa_get()->distance[0][1], 21);
    EXPECT_EQ(shc_numa_get()->distance[1][2], 0);
}

TEST(TwoNodes, MemoryOfSlotsIsFromTheNodesOfTheRanksThatReadThem)
{
    ASSERT_NE(stand_in, nullptr) << dlerror();
    const int cpus[] = {cpu_of(0), cpu_of(1)};
    Options options;
    options.before = [&](int rank) {
        if (cpus[1] >= 0)
            pin(cpus[rank]);
    };
    const auto body = [&](Rank &rank) {
        const bool apart = cpus[1] >= 0; // else the machine has one CPU
        std::vector<float> values(1 << 20, 1);
        sum_of(rank, values);
        ASSERT_EQ(values[12345], 2);
        const std::vector<Note> all = notes();
        const int node = apart ? rank.rank : 0, other = apart ? 1 - node : 0;
        const shc_segment &segment = rank.comm->seat.segment, &arena = rank.comm->arena.segment;
        // In this mapping only this rank has reserved memory.
        EXPECT_GE(bytes_of(all, segment.base, segment.bytes, MPOL_PREFERRED, 1UL << node),
                  size_t{SHC_BLOCK_BYTES});
        EXPECT_EQ(bytes_of(all, segment.base, segment.bytes, MPOL_PREFERRED, 1UL << (1 - node)),
                  0u);
        ASSERT_TRUE(rank.comm->arena.made);
        const shc_arena_geometry &g = rank.comm->arena.geometry;
        const size_t cells = rank.rank == 0 ? g.depth * 2 * g.cell_bytes : 0;
        const size_t extent = shc_arena_extent_of(&g, 2, rank.rank).bytes;
        EXPECT_EQ(bytes_of(all, arena.base, arena.bytes, MPOL_INTERLEAVE, 3), apart ? cells : 0);
        EXPECT_EQ(bytes_of(all, arena.base, arena.bytes, MPOL_PREFERRED, 1UL << other),
                  apart ? extent - cells : extent);
        shc_os_cpus near;
        EXPECT_TRUE(shc_topo_near_cpus(&near) || !apart);
    };
    run_ranks(Mode::kOwnMapping, 2, body, options);
}

} // namespace
