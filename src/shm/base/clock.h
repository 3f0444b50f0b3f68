/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Monotonic nanoseconds and deadlines. CLOCK_MONOTONIC stands still while the machine is suspended,
 * so closing a laptop's lid does not end a wait with a time-out.
 */

#include "shm/base/attrs.h"
#include <time.h>

#define SHC_NS_PER_US   ((uint64_t)1000)
#define SHC_NS_PER_MS   ((uint64_t)1000000)
#define SHC_NS_PER_S    ((uint64_t)1000000000)
#define SHC_NO_DEADLINE UINT64_MAX

SHC_INLINE uint64_t shc_clock_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * SHC_NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* The time of day, since 1970. */
SHC_INLINE uint64_t shc_clock_unix_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * SHC_NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* The processor's counter. It counts time if shc_os_ticks_are_steady(), and costs a fifth of shc_clock_ns(). */
SHC_INLINE uint64_t shc_clock_ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ __volatile__("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return 0;
#endif
}

/* The deadline `timeout_ns` from now. SHC_NO_DEADLINE stays SHC_NO_DEADLINE. */
SHC_INLINE uint64_t shc_deadline_after(uint64_t now_ns, uint64_t timeout_ns)
{
    return timeout_ns > SHC_NO_DEADLINE - now_ns ? SHC_NO_DEADLINE : now_ns + timeout_ns;
}
