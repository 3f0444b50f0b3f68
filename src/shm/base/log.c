/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/base/log.h"

#include "shm/base/atomic.h"
#include "shm/shmcoll.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 2048
#define MANY_RANKS UINT32_MAX

static const char *const level_names[] = {"off", "warn", "info", "trace"};

static shc_a32 rank_word;      /* 0: not known; MANY_RANKS; or 1 + the rank */
static shc_a32 late_pipe_word; /* 0: none; or 1 + the descriptor */

void shc_log_set_rank(int rank)
{
    const uint32_t word = (uint32_t)rank + 1;
    /* acq_rel log/rank: one value; no other data. */
    if (shc_a32_cas_acq_rel(&rank_word, 0, word))
        return;
    /* relaxed: one value. */
    if (shc_a32_load_relaxed(&rank_word) != word) {
        /* relaxed: one value. */
        shc_a32_store_relaxed(&rank_word, MANY_RANKS);
    }
}

/* The rank as text, or "". */
static void rank_text(char *text, size_t capacity)
{
    /* relaxed: one value. */
    const uint32_t word = shc_a32_load_relaxed(&rank_word);
    text[0] = '\0';
    if (word != 0 && word != MANY_RANKS)
        snprintf(text, capacity, "%u", word - 1);
}

/* SHMCOLL_LOG_FILE with %h, %r and %p replaced by the host's name, the rank and the pid. */
static void expand(const char *pattern, char *path, size_t capacity)
{
    size_t used = 0;
    for (const char *at = pattern; *at && used + 1 < capacity; at++) {
        char word[128] = {*at};
        if (*at == '%' && at[1] && strchr("hrp%", at[1])) {
            at++;
            struct utsname machine;
            if (*at == 'h')
                snprintf(word, sizeof word, "%s", uname(&machine) == 0 ? machine.nodename : "");
            else if (*at == 'r')
                rank_text(word, sizeof word);
            else if (*at == 'p')
                snprintf(word, sizeof word, "%d", (int)getpid());
            if (word[0] == '\0')
                snprintf(word, sizeof word, "x"); /* not known */
        }
        used += (size_t)snprintf(path + used, capacity - used, "%s", word);
    }
    path[used < capacity ? used : capacity - 1] = '\0';
}

/* Opened anew for each line: lines are rare, and neither a fork nor a rotated file needs any care. */
static FILE *open_file(void)
{
    static shc_a32 said;
    char path[1024];
    if (!shc_config_get()->log_file)
        return NULL;
    expand(shc_config_get()->log_file, path, sizeof path);
    FILE *file = fopen(path, "ae");
    const int error = errno;
    /* acq_rel log/said: only the first thread says it; no other data. */
    if (!file && shc_a32_exchange_acq_rel(&said, 1) == 0)
        fprintf(stderr, "shmcoll: SHMCOLL_LOG_FILE: cannot open %s (%s); lines go to stderr\n",
                path, strerror(error));
    return file;
}

static void write_line(enum shc_log_level level, const char *format, va_list args)
{
    char line[LINE_BYTES], rank[16], named[24] = "";
    struct timespec now;
    struct tm local;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    rank_text(rank, sizeof rank);
    if (rank[0])
        snprintf(named, sizeof named, "rank %s ", rank);
    int used =
        snprintf(line, sizeof line, "[shmcoll %04d-%02d-%02d %02d:%02d:%02d.%03ld %spid %d] %s: ",
                 local.tm_year + 1900, local.tm_mon + 1, local.tm_mday, local.tm_hour, local.tm_min,
                 local.tm_sec, now.tv_nsec / 1000000, named, (int)getpid(), level_names[level]);
    vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    const size_t length = strlen(line);
    line[length] = '\n';
    FILE *file = open_file();
    fwrite(line, 1, length + 1, file ? file : stderr);
    if (file)
        fclose(file);
}

bool shc_log_goes(enum shc_log_level level)
{
    return (int)level <= shc_config_get()->log_level;
}

void shc_log(enum shc_log_level level, const char *format, ...)
{
    if (!shc_log_goes(level))
        return;
    va_list args;
    va_start(args, format);
    write_line(level, format, args);
    va_end(args);
}

void shc_log_late(bool speaks, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (speaks && shc_log_goes(SHC_LOG_WARN)) {
        va_list copy;
        va_copy(copy, args);
        write_line(SHC_LOG_WARN, format, copy);
        va_end(copy);
    }
    /* relaxed: one value. */
    const uint32_t word = shc_a32_load_relaxed(&late_pipe_word);
    if (word != 0) {
        char line[LINE_BYTES];
        vsnprintf(line, sizeof line - 1, format, args); /* room for the newline */
        const size_t length = strlen(line);
        line[length] = '\n';
        line[length + 1] = '\0';
        dprintf((int)word - 1, "%s", line); /* a full pipe loses it */
    }
    va_end(args);
}

void shc_late_pipe(int fd)
{
    /* relaxed: one value. */
    shc_a32_store_relaxed(&late_pipe_word, (uint32_t)(fd + 1));
}
