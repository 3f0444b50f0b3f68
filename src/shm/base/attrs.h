/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Compiler attributes, and the sizes to which everything shared is aligned. Header-only, usable
 * from C11, C++17 and CUDA.
 */

#include <stddef.h>
#include <stdint.h>

#define SHC_NODISCARD       __attribute__((warn_unused_result))
#define SHC_PRINTF(fmt, va) __attribute__((format(printf, fmt, va)))
#define SHC_LIKELY(x)       __builtin_expect(!!(x), 1)
#define SHC_UNLIKELY(x)     __builtin_expect(!!(x), 0)
#define SHC_NOINLINE        __attribute__((noinline))
#ifdef __CUDACC__ /* the GPU uses the arithmetic of shm/kernel as well */
#define SHC_INLINE static inline __attribute__((always_inline)) __host__ __device__
#else
#define SHC_INLINE static inline __attribute__((always_inline))
#endif
#define SHC_COLD __attribute__((cold, noinline))

/* For calls after which nothing has to be undone: returns a failure (enum shc_status) to the
 * caller. */
#define SHC_TRY(call)                            \
    do {                                         \
        enum shc_status shc_try_st_ = (call);    \
        if (SHC_UNLIKELY(shc_try_st_ != SHC_OK)) \
            return shc_try_st_;                  \
    } while (0)

/* Fields of different writers are this far apart: two 64-byte lines, because the adjacent-line
 * prefetcher pulls lines in pairs. */
#define SHC_LINE_BYTES 128

#define SHC_PAGE_BYTES 4096

/* What a CPU fetches at once, at least. */
#define SHC_CPU_LINE_BYTES 64

#ifndef __CUDACC__ /* nothing spins there */
/* One polite turn of a spin loop. */
SHC_INLINE void shc_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#else
    __asm__ __volatile__("" ::: "memory");
#endif
}

/* No later load is fetched before this point. A processor speculates, and a look that comes too
 * early takes the line away from the CPU that is about to store to it. The language sees no
 * ordering here. */
SHC_INLINE void shc_cpu_hold_loads(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __asm__ __volatile__("lfence" ::: "memory");
#endif
}

/* Used instead of a pause. It takes about as long as a short pause (24 ns on a Zen 5), but no look
 * runs ahead of it. The compiler must not unroll the loop: two processes that answer each other
 * fall into step, and with these instructions in a row every other pair falls into a step in which
 * the answer just misses a look (docs/notebook/messages.md). */
SHC_INLINE void shc_cpu_relax_in_order(void)
{
#if defined(__x86_64__) || defined(__i386__)
    for (int i = 0; i < 7; i++) {
        shc_cpu_hold_loads();
        __asm__ __volatile__("" : "+r"(i));
    }
#else
    shc_cpu_relax();
#endif
}

/* Prefetches a line that will be stored to. (gcc's own hint does not ask for writing unless gcc may
 * assume a newer processor. An old processor skips the instruction.) */
SHC_INLINE void shc_cpu_will_store(const char *memory, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += SHC_CPU_LINE_BYTES) {
#if defined(__x86_64__)
        __asm__ __volatile__("prefetchw %0" ::"m"(memory[at]));
#else
        __builtin_prefetch(memory + at, 1);
#endif
    }
}
#endif
