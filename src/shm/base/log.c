/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const level_names[] = {"off", "warn", "info", "trace"};

void shc_log(enum shc_log_level level, const char *format, ...)
{
    if ((int)level > shc_config_get()->log_level)
        return;
    char line[2048];
    struct timespec now;
    struct tm local;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    int used = snprintf(line, sizeof line,
                        "[shmcoll %02d:%02d:%02d.%03ld pid %d] %s: ", local.tm_hour, local.tm_min,
                        local.tm_sec, now.tv_nsec / 1000000, (int)getpid(), level_names[level]);
    va_list args;
    va_start(args, format);
    vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    size_t length = strlen(line);
    line[length] = '\n';
    fwrite(line, 1, length + 1, stderr);
}
