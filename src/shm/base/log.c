/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/base/log.h"

#include "shm/base/atomic.h"
#include "shm/shmcoll.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 2048
#define MANY_RANKS UINT32_MAX

static const char *const level_names[] = {"off", "warn", "info", "trace"};

static shc_a32 rank_word; /* 0: not known; MANY_RANKS; or 1 + the rank */

static shc_a32 has_output;
static void (*write_output)(const char *line, size_t length);

static shc_a32 has_late;
static void (*write_late)(const char *line, size_t length);

void shc_log_set_output(void (*write)(const char *line, size_t length))
{
    write_output = write;
    /* release log/output -> acquire in write_line(): the function. */
    shc_a32_store_release(&has_output, 1);
}

void shc_log_set_late(void (*write)(const char *line, size_t length))
{
    write_late = write;
    /* release log/late -> acquire in shc_log_late(): the function. */
    shc_a32_store_release(&has_late, 1);
}

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

void shc_log_pid_text(char *text, size_t capacity)
{
    snprintf(text, capacity, "%d", (int)getpid());
}

void shc_log_rank_text(char *text, size_t capacity)
{
    /* relaxed: one value. */
    const uint32_t word = shc_a32_load_relaxed(&rank_word);
    text[0] = '\0';
    if (word != 0 && word != MANY_RANKS)
        snprintf(text, capacity, "%u", word - 1);
}

/* A path or another word of a user's makes no second line, and steers no terminal. */
static void make_plain(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == '\x7f')
            *text = '?';
}

static void write_line(enum shc_log_level level, const char *format, va_list args)
{
    char line[LINE_BYTES], rank[16], named[24] = "";
    struct timespec now;
    struct tm local;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    shc_log_rank_text(rank, sizeof rank);
    if (rank[0])
        snprintf(named, sizeof named, "rank %s ", rank);
    int used =
        snprintf(line, sizeof line, "[shmcoll %04d-%02d-%02d %02d:%02d:%02d.%03ld %spid %d] %s: ",
                 local.tm_year + 1900, local.tm_mon + 1, local.tm_mday, local.tm_hour, local.tm_min,
                 local.tm_sec, now.tv_nsec / 1000000, named, (int)getpid(), level_names[level]);
    vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    make_plain(line);
    const size_t length = strlen(line);
    line[length] = '\n';
    /* acquire log/output <- release in shc_log_set_output(): the function. */
    if (shc_a32_load_acquire(&has_output))
        write_output(line, length + 1);
    else
        fwrite(line, 1, length + 1, stderr);
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
    /* acquire log/late <- release in shc_log_set_late(): the function. */
    if (shc_a32_load_acquire(&has_late)) {
        char line[LINE_BYTES];
        vsnprintf(line, sizeof line - 1, format, args); /* room for the newline */
        make_plain(line);
        const size_t length = strlen(line);
        line[length] = '\n';
        write_late(line, length + 1);
    }
    va_end(args);
}

void shc_log_warning(const char *text)
{
    shc_log(SHC_LOG_WARN, "%s", text);
}
