// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Counts what a process has open, to see that nothing leaks.

#include <dirent.h>

namespace shmcoll::test
{

inline int open_descriptors()
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(dir) != nullptr)
        count++;
    closedir(dir);
    return count;
}

} // namespace shmcoll::test
