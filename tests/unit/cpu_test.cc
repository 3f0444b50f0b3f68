// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" // a struct and a function of one name, which C++ minds
#include "shm/base/config.h"
#pragma GCC diagnostic pop
#include "shm/kernel/cpu.h"
}

#include <gtest/gtest.h>

namespace
{

constexpr unsigned kBase = 1u << SHC_ISA_BASE;
constexpr unsigned kAvx2 = 1u << SHC_ISA_AVX2;
constexpr unsigned kAvx512 = 1u << SHC_ISA_AVX512;

TEST(Cpu, EveryMachineHasTheBaseline)
{
    EXPECT_TRUE(shc_cpu_isas() & kBase);
}

TEST(Cpu, Avx512ComesWithAvx2)
{
    EXPECT_TRUE(!(shc_cpu_isas() & kAvx512) || (shc_cpu_isas() & kAvx2));
}

TEST(Cpu, TheVariableOnlyEverTakesAway)
{
    const unsigned all = kBase | kAvx2 | kAvx512;
    EXPECT_EQ(shc_cpu_allow(all, SHC_CPU_AUTO), all);
    EXPECT_EQ(shc_cpu_allow(all, SHC_CPU_AVX512), all);
    EXPECT_EQ(shc_cpu_allow(all, SHC_CPU_AVX2), kBase | kAvx2);
    EXPECT_EQ(shc_cpu_allow(all, SHC_CPU_BASE), kBase);
    EXPECT_EQ(shc_cpu_allow(kBase, SHC_CPU_AVX512), kBase);
    EXPECT_EQ(shc_cpu_allow(kBase | kAvx2, SHC_CPU_AVX512), kBase | kAvx2);
}

} // namespace
