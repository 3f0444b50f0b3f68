/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Compiler attributes and the sizes that everything shared is aligned to.
 * Header-only, usable from C11, C++17 and CUDA.
 */

#include <stddef.h>
#include <stdint.h>

#define SHC_NODISCARD       __attribute__((warn_unused_result))
#define SHC_PRINTF(fmt, va) __attribute__((format(printf, fmt, va)))
#define SHC_LIKELY(x)       __builtin_expect(!!(x), 1)
#define SHC_UNLIKELY(x)     __builtin_expect(!!(x), 0)
#define SHC_NOINLINE        __attribute__((noinline))
#ifdef __CUDACC__ /* the arithmetic of shm/kernel is the GPU's as well */
#define SHC_INLINE static inline __attribute__((always_inline)) __host__ __device__
#else
#define SHC_INLINE static inline __attribute__((always_inline))
#endif
#define SHC_COLD __attribute__((cold, noinline))

/* Nothing to undo: passes a failure (enum shc_status) on. */
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

/* What a CPU fetches at once, or less. */
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

/* What is loaded behind it is not fetched before. A processor guesses ahead, and a look that comes too
 * early takes the line away from the CPU that is about to store to it. Orders nothing that the language
 * knows of. */
SHC_INLINE void shc_cpu_hold_loads(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __asm__ __volatile__("lfence" ::: "memory");
#endif
}

/* In the place of a pause, and about as long where that is short (24 ns on a Zen 5), but no look runs ahead of
 * it. A loop that the compiler must not unroll: two processes that answer each other fall into step, and with
 * these instructions in a row every other pair into one in which the answer just misses a look
 * (docs/notebook/messages.md). */
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

/* That memory will be stored to: asks for its lines now. (gcc's own hint says nothing of writing unless
 * gcc may assume a newer processor; an old one skips the instruction.) */
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
