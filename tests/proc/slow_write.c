/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Preloaded. Once the program has set slow_write_armed, a write of a thread "shc-hosts" to the file of $SLOW_WRITE
 * lasts until the program sets slow_write_go_on, and a second more.
 */
#define _GNU_SOURCE
#include "shm/base/atomic.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

shc_a32 slow_write_armed, slow_write_begun, slow_write_go_on; /* 0 or 1 */

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static int is_slow(int fd)
{
    char name[16] = "", link[64], path[512] = "";
    prctl(PR_GET_NAME, name);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (strcmp(name, "shc-hosts") != 0 || readlink(link, path, sizeof path - 1) < 0)
        return 0;
    return strcmp(path, getenv("SLOW_WRITE")) == 0;
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    ssize_t (*const next)(int, const void *, size_t) =
        (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    const ssize_t written = next(fd, data, bytes);
    if (!shc_a32_load_acquire(&slow_write_armed) || !is_slow(fd) ||
        shc_a32_exchange_acq_rel(&slow_write_begun, 1))
        return written;
    while (!shc_a32_load_acquire(&slow_write_go_on))
        sleep_ms(1);
    sleep_ms(1000);
    (void)!next(STDOUT_FILENO, "the write goes on\n", 18);
    return written;
}
