/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/kernel/cpu.h"

#include "shm/base/config.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* CPUID.1:ECX */
#define CPUID_OSXSAVE (1u << 27)
#define CPUID_AVX     (1u << 28)
#define CPUID_F16C    (1u << 29)
/* CPUID.7.0:EBX */
#define CPUID_AVX2     (1u << 5)
#define CPUID_AVX512F  (1u << 16)
#define CPUID_AVX512DQ (1u << 17)
#define CPUID_AVX512BW (1u << 30)
#define CPUID_AVX512VL (1u << 31)
/* XCR0: what the operating system saves. */
#define XCR0_YMM 0x06u
#define XCR0_ZMM 0xe6u

static uint32_t xcr0(void)
{
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool has_all(uint32_t word, uint32_t bits)
{
    return (word & bits) == bits;
}

unsigned shc_cpu_isas(void)
{
    const uint32_t avx2_1 = CPUID_OSXSAVE | CPUID_AVX | CPUID_F16C;
    const uint32_t avx512_7 = CPUID_AVX512F | CPUID_AVX512DQ | CPUID_AVX512BW | CPUID_AVX512VL;
    unsigned isas = 1u << SHC_ISA_BASE;
    uint32_t a, b7, b, c1, c, d;
    if (!__get_cpuid(1, &a, &b, &c1, &d) || !has_all(c1, avx2_1) ||
        !__get_cpuid_count(7, 0, &a, &b7, &c, &d))
        return isas;
    if (!has_all(b7, CPUID_AVX2) || !has_all(xcr0(), XCR0_YMM))
        return isas;
    isas |= 1u << SHC_ISA_AVX2;
    if (has_all(b7, avx512_7) && has_all(xcr0(), XCR0_ZMM))
        isas |= 1u << SHC_ISA_AVX512;
    return isas;
}

unsigned shc_cpu_amd_family(void)
{
    uint32_t most, a, b, c, d;
    if (!__get_cpuid(0, &most, &b, &c, &d) || b != signature_AMD_ebx || c != signature_AMD_ecx ||
        d != signature_AMD_edx || !__get_cpuid(1, &a, &b, &c, &d))
        return 0;
    const uint32_t base = a >> 8 & 0xf, extended = a >> 20 & 0xff;
    return base == 0xf ? base + extended : base;
}

#else

unsigned shc_cpu_isas(void)
{
    return 1u << SHC_ISA_BASE;
}

unsigned shc_cpu_amd_family(void)
{
    return 0;
}

#endif

unsigned shc_cpu_allow(unsigned isas, int choice)
{
    switch (choice) {
    case SHC_CPU_BASE:
        return isas & (1u << SHC_ISA_BASE);
    case SHC_CPU_AVX2:
        return isas & (1u << SHC_ISA_BASE | 1u << SHC_ISA_AVX2);
    default:
        return isas;
    }
}
