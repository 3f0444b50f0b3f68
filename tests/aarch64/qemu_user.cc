// SPDX-License-Identifier: BSD-3-Clause
// Linked into every test that qemu's user mode runs, with --wrap=open. qemu (7.2) answers an open of
// a process's own /proc/<pid>/stat itself, with a start time of its own, where other processes read
// the kernel's: every rank would look dead to its peers. It does not know the file as
// /proc/./<pid>/stat.
#include <cstdarg>
#include <cstring>
#include <fcntl.h>
#include <string>

extern "C" int __real_open(const char *path, int flags, ...);
extern "C" int __wrap_open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = va_arg(rest, mode_t); // whatever is there, if none was passed
    va_end(rest);
    if (strncmp(path, "/proc/", 6) != 0)
        return __real_open(path, flags, mode);
    return __real_open((std::string("/proc/./") + (path + 6)).c_str(), flags, mode);
}
