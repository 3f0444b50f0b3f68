/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef SHC_HAVE_URING
#include <liburing.h>
#endif

int shc_os_cpus_allowed(struct shc_os_cpus *cpus)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return errno;
    *cpus = (struct shc_os_cpus){{0}};
    for (int cpu = 0; cpu < SHC_OS_MAX_CPUS && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &set))
            shc_os_cpus_add(cpus, cpu);
    return 0;
}

int shc_os_thread_pin(const struct shc_os_cpus *cpus)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int cpu = 0; cpu < SHC_OS_MAX_CPUS && cpu < CPU_SETSIZE; cpu++)
        if (shc_os_cpus_have(cpus, cpu))
            CPU_SET((size_t)cpu, &set);
    return sched_setaffinity(0, sizeof set, &set) == 0 ? 0 : errno;
}

int shc_os_cpu_current(void)
{
    return sched_getcpu();
}

bool shc_os_ticks_are_steady(void)
{
#if defined(__aarch64__)
    return true;
#else
    char source[32];
    const char *path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    return shc_os_read_text(path, source, sizeof source) == 0 && strcmp(source, "tsc\n") == 0;
#endif
}

/* Until the file ends, or `bytes` is full. *used: so many were read, also after an error. */
static int read_all(int fd, char *bytes, size_t capacity, size_t *used)
{
    *used = 0;
    while (*used < capacity) {
        ssize_t got = read(fd, bytes + *used, capacity - *used);
        if (got < 0 && errno != EINTR)
            return errno;
        if (got == 0)
            break;
        if (got > 0)
            *used += (size_t)got;
    }
    return 0;
}

int shc_os_read_text(const char *path, char *text, size_t capacity)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    size_t used;
    const int error = read_all(fd, text, capacity - 1, &used);
    close(fd);
    text[used] = '\0';
    return error == 0 && memchr(text, '\0', used) ? EILSEQ : error;
}

void shc_os_host_name(char *text, size_t capacity)
{
    if (gethostname(text, capacity) != 0)
        text[0] = '\0';
    text[capacity - 1] = '\0';
}

/* CPUs granted by one cgroup directory: "max 100000" or "150000 100000"; 0 for no limit. */
static int quota_of_directory(const char *directory)
{
    char path[PATH_MAX], text[64];
    if (snprintf(path, sizeof path, "%s/cpu.max", directory) >= (int)sizeof path)
        return 0;
    if (shc_os_read_text(path, text, sizeof text) != 0)
        return 0;
    long long quota, period;
    if (sscanf(text, "%lld %lld", &quota, &period) != 2 || quota <= 0 || period <= 0)
        return 0;
    return (int)((quota + period - 1) / period);
}

static int quota_of_version_1(void)
{
    char text[64];
    if (shc_os_read_text("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", text, sizeof text) != 0)
        return 0;
    long long quota = strtoll(text, NULL, 10);
    if (quota <= 0 ||
        shc_os_read_text("/sys/fs/cgroup/cpu/cpu.cfs_period_us", text, sizeof text) != 0)
        return 0;
    long long period = strtoll(text, NULL, 10);
    return period > 0 ? (int)((quota + period - 1) / period) : 0;
}

int shc_os_cpu_quota(void)
{
    char text[PATH_MAX], directory[PATH_MAX + 32];
    if (shc_os_read_text("/proc/self/cgroup", text, sizeof text) != 0)
        return 0;
    char *line = strstr(text, "0::");
    if (!line)
        return quota_of_version_1();
    line[strcspn(line, "\n")] = '\0';
    snprintf(directory, sizeof directory, "/sys/fs/cgroup%s", line + 3);
    int least = 0;
    /* Every directory up to the root may set a limit; the tightest holds. */
    while (strlen(directory) >= strlen("/sys/fs/cgroup")) {
        int quota = quota_of_directory(directory);
        if (quota > 0 && (least == 0 || quota < least))
            least = quota;
        *strrchr(directory, '/') = '\0';
    }
    return least;
}

size_t shc_os_shared_cache_bytes(void)
{
    char text[32];
    if (shc_os_read_text("/sys/devices/system/cpu/cpu0/cache/index3/size", text, sizeof text) != 0)
        return 0;
    char *end;
    const unsigned long size = strtoul(text, &end, 10);
    return *end == 'K' ? (size_t)size << 10 : *end == 'M' ? (size_t)size << 20 : 0;
}

int shc_os_random(void *bytes, size_t count)
{
    for (size_t done = 0; done < count;) {
        ssize_t got = getrandom((char *)bytes + done, count - done, 0);
        if (got < 0 && errno != EINTR)
            return errno;
        if (got > 0)
            done += (size_t)got;
    }
    return 0;
}

bool shc_os_has_uring(void)
{
#ifdef SHC_HAVE_URING
    struct io_uring ring;
    if (io_uring_queue_init(2, &ring, 0) != 0)
        return false;
    io_uring_queue_exit(&ring);
    return true;
#else
    return false;
#endif
}

int shc_os_directory_make(const char *path)
{
    return mkdir(path, S_IRWXU) == 0 || errno == EEXIST ? 0 : errno;
}

int shc_os_directory_check(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return errno;
    if (!S_ISDIR(st.st_mode))
        return ENOTDIR;
    return faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

int shc_os_file_get(const char *path, void *bytes, size_t capacity, size_t *count)
{
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno;
    struct stat st;
    int error = fstat(fd, &st) != 0 ? errno : 0;
    if (error == 0 && (size_t)st.st_size > capacity)
        error = EMSGSIZE;
    size_t used = 0;
    if (error == 0)
        error = read_all(fd, bytes, (size_t)st.st_size, &used);
    close(fd);
    if (error == 0)
        *count = used;
    return error;
}

int shc_os_lock(const char *path, int *lock)
{
    int fd = open(path, O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (fd < 0)
        return errno;
    while (flock(fd, LOCK_EX) != 0) {
        if (errno != EINTR) {
            int error = errno;
            close(fd);
            return error;
        }
    }
    *lock = fd;
    return 0;
}

void shc_os_unlock(int lock)
{
    close(lock);
}

int shc_os_at_exit(void (*function)(void))
{
    return atexit(function) == 0 ? 0 : ENOMEM;
}
