/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The rounding and denormal mode belongs to the thread, and a collective may run in the caller's
 * thread (torch.set_flush_denormal, fesetround). Ranks with different modes would get different
 * bits. So a floating-point kernel runs in the default mode, and restores the thread's own.
 */

#include "shm/base/attrs.h"
#include <stdbool.h>

#if defined(__x86_64__)

/* MXCSR: the control bits, and their default: round to nearest, no flush, exceptions masked. */
#define SHC_FPENV_CONTROL 0xffc0u
#define SHC_FPENV_DEFAULT 0x1f80u
typedef uint32_t shc_fpenv;

SHC_INLINE shc_fpenv shc_fpenv_read(void)
{
    shc_fpenv mode;
    __asm__ __volatile__("stmxcsr %0" : "=m"(mode));
    return mode;
}

SHC_INLINE void shc_fpenv_write(shc_fpenv mode)
{
    __asm__ __volatile__("ldmxcsr %0" ::"m"(mode) : "memory");
}

#elif defined(__aarch64__)

/* FPCR: everything that changes a result or traps. */
#define SHC_FPENV_CONTROL 0x07ffff07u
#define SHC_FPENV_DEFAULT 0u
typedef uint64_t shc_fpenv;

SHC_INLINE shc_fpenv shc_fpenv_read(void)
{
    shc_fpenv mode;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(mode));
    return mode;
}

SHC_INLINE void shc_fpenv_write(shc_fpenv mode)
{
    __asm__ __volatile__("msr fpcr, %0" ::"r"(mode) : "memory");
}

#else

#define SHC_FPENV_CONTROL 0u
#define SHC_FPENV_DEFAULT 0u
typedef uint32_t shc_fpenv;

SHC_INLINE shc_fpenv shc_fpenv_read(void)
{
    return 0;
}

SHC_INLINE void shc_fpenv_write(shc_fpenv mode)
{
    (void)mode;
}

#endif

SHC_INLINE bool shc_fpenv_is_default(shc_fpenv mode)
{
    return (mode & SHC_FPENV_CONTROL) == SHC_FPENV_DEFAULT;
}

/* Returns what shc_fpenv_leave needs. The operands are in memory and both writes clobber memory,
 * so no arithmetic crosses them. */
SHC_INLINE shc_fpenv shc_fpenv_enter(void)
{
    shc_fpenv mode = shc_fpenv_read();
    if (SHC_UNLIKELY(!shc_fpenv_is_default(mode)))
        shc_fpenv_write(SHC_FPENV_DEFAULT);
    return mode;
}

SHC_INLINE void shc_fpenv_leave(shc_fpenv mode)
{
    if (SHC_UNLIKELY(!shc_fpenv_is_default(mode)))
        shc_fpenv_write(mode);
}
