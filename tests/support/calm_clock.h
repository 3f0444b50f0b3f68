// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// For limits on how long a call may take, on a machine that also does other things.

extern "C" {
#include "shm/base/clock.h"
}

#include <cstdio>

namespace shmcoll::test
{

// A clock that stands still while threads of this machine wait for a CPU or a disk: what a call would have
// taken without the others. All processes share it. Without the kernel's count it is a plain clock.
inline uint64_t calm_clock_ns()
{
    uint64_t waited_us = 0;
    for (const char *name : {"/proc/pressure/cpu", "/proc/pressure/io"})
        if (FILE *file = fopen(name, "r")) {
            unsigned long long some_us = 0;
            if (fscanf(file, "some avg10=%*f avg60=%*f avg300=%*f total=%llu", &some_us) == 1)
                waited_us += some_us;
            fclose(file);
        }
    return shc_clock_ns() - waited_us * SHC_NS_PER_US;
}

// Since such a time; the two counts may go back a little.
inline uint64_t calm_ns_since(uint64_t begun_ns)
{
    const uint64_t now_ns = calm_clock_ns();
    return now_ns > begun_ns ? now_ns - begun_ns : 0;
}

} // namespace shmcoll::test
