// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Counts what a process has open, to see that nothing leaks.

#include <dirent.h>
#include <string>
#include <unistd.h>

namespace shmcoll::test
{

// The process's board stays open for as long as the process lives (BOARD-1).
inline bool is_board(int folder, const char *name)
{
    char link[64];
    const ssize_t bytes = readlinkat(folder, name, link, sizeof link);
    return bytes > 0 &&
           std::string(link, static_cast<size_t>(bytes)).find("shmcoll:board") != std::string::npos;
}

inline int open_descriptors()
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    while (const dirent *entry = readdir(dir))
        count += is_board(dirfd(dir), entry->d_name) ? 0 : 1;
    closedir(dir);
    return count;
}

} // namespace shmcoll::test
