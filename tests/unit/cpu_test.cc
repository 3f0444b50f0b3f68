// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/base/config.h"
#include "shm/kernel/cpu.h"
}

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <string>

namespace
{

constexpr unsigned kBase = 1u << SHC_ISA_BASE;
constexpr unsigned kAvx2 = 1u << SHC_ISA_AVX2;
constexpr unsigned kAvx512 = 1u << SHC_ISA_AVX512;

TEST(Cpu, EveryMachineHasTheBaseline)
{
    EXPECT_TRUE(shc_cpu_isas() & kBase);
    EXPECT_TRUE(shc_isa_usable(SHC_ISA_BASE));
}

TEST(Cpu, Avx512ComesWithAvx2)
{
    EXPECT_TRUE(!(shc_cpu_isas() & kAvx512) || (shc_cpu_isas() & kAvx2));
}

// As the kernel names it.
TEST(Cpu, AnAmdHasAFamily)
{
    std::ifstream info("/proc/cpuinfo");
    std::string line, vendor;
    unsigned family = 0;
    while (std::getline(info, line) && !line.empty()) { // of the first CPU
        const std::string value = line.substr(std::min(line.size(), line.find(':') + 2));
        if (line.rfind("vendor_id", 0) == 0)
            vendor = value;
        if (line.rfind("cpu family", 0) == 0)
            family = static_cast<unsigned>(std::stoul(value));
    }
    EXPECT_EQ(shc_cpu_amd_family(), vendor == "AuthenticAMD" ? family : 0u);
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

// Registered once per value of SHMCOLL_CPU.
TEST(Cpu, TheBestAllowedInstructionSetIsChosen)
{
    unsigned allowed = shc_cpu_allow(shc_cpu_isas(), shc_config_get()->cpu);
    shc_isa best = SHC_ISA_BASE;
    for (int isa = 0; isa < SHC_ISA_COUNT; isa++) {
        EXPECT_EQ(shc_isa_usable(static_cast<shc_isa>(isa)), (allowed & 1u << isa) != 0);
        if (allowed & 1u << isa)
            best = static_cast<shc_isa>(isa);
    }
    EXPECT_EQ(shc_isa_chosen(), best);
    EXPECT_EQ(shc_kernel_reduce(SHC_FLOAT32, SHC_SUM),
              shc_kernel_reduce_isa(best, SHC_FLOAT32, SHC_SUM));
    const char *variable = getenv("SHMCOLL_CPU");
    const std::string asked = variable ? variable : "";
    EXPECT_TRUE(asked != "base" || best == SHC_ISA_BASE);
    EXPECT_TRUE(asked != "avx2" || best <= SHC_ISA_AVX2);
}

TEST(Cpu, EveryInstructionSetHasAName)
{
    EXPECT_STREQ(shc_isa_name(SHC_ISA_BASE), "base");
    EXPECT_STREQ(shc_isa_name(SHC_ISA_AVX2), "avx2");
    EXPECT_STREQ(shc_isa_name(SHC_ISA_AVX512), "avx512");
    EXPECT_STREQ(shc_isa_name(static_cast<shc_isa>(-3)), "unknown");
    EXPECT_FALSE(shc_isa_usable(static_cast<shc_isa>(-3)));
}

} // namespace
