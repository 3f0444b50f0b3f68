/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The file of SHMCOLL_LOG_FILE. In its name %h, %r, %p and %% stand for the host, the rank of the job, the pid and
 * a percent sign. And the pipe of shc_late_pipe().
 */
#include "shm/base/atomic.h"
#include "shm/base/config.h"
#include "shm/base/log.h"
#include "shm/base/status.h"
#include "shm/comm/process.h"
#include "shm/os/os.h"

#include <stdio.h>
#include <string.h>

/* What stands for %h, %r or %p. */
static void word_for(char letter, char *word, size_t capacity)
{
    word[0] = '\0';
    if (letter == 'h')
        shc_os_host_name(word, capacity);
    else if (letter == 'r')
        shc_log_rank_text(word, capacity);
    else
        shc_log_pid_text(word, capacity);
    if (word[0] == '\0')
        snprintf(word, capacity, "x"); /* not known */
}

static void expand(const char *pattern, char *path, size_t capacity)
{
    size_t used = 0;
    for (const char *at = pattern; *at && used + 1 < capacity; at++) {
        char word[128] = {*at};
        if (*at == '%' && at[1] == '%')
            at++;
        else if (*at == '%' && at[1] && strchr("hrp", at[1]))
            word_for(*++at, word, sizeof word);
        used += (size_t)snprintf(path + used, capacity - used, "%s", word);
    }
    path[used < capacity ? used : capacity - 1] = '\0';
}

/* The file is opened anew for each line: lines are rare, and neither a fork nor a file that was moved needs any
 * care. */
static bool write_to_file(const char *line, size_t length)
{
    static shc_a32 said;
    char path[1024], why[SHC_STRERROR_BYTES];
    expand(shc_config_get()->log_file, path, sizeof path);
    const int error = shc_os_append(path, line, length);
    /* acq_rel log/said: only the first thread says it; no other data. */
    if (error != 0 && shc_a32_exchange_acq_rel(&said, 1) == 0)
        shc_log(SHC_LOG_WARN, "SHMCOLL_LOG_FILE: cannot open %s (%s); lines go to stderr", path,
                strerror_r(error, why, sizeof why));
    return error == 0;
}

static void write_line(const char *line, size_t length)
{
    if (!shc_config_get()->log_file || !write_to_file(line, length))
        shc_os_tell_stderr(line, length);
}

static struct {
    shc_a32 word; /* 0: none; or 1 + the descriptor */
    shc_a64 device, inode;
} late_pipe;

/* A full pipe loses it, and so does a pipe that changes meanwhile. */
static void write_late(const char *line, size_t length)
{
    /* relaxed: compared with the file. */
    const uint32_t word = shc_a32_load_relaxed(&late_pipe.word);
    const struct shc_os_file_id file = {
        /* relaxed: compared with the file. */
        .device = shc_a64_load_relaxed(&late_pipe.device),
        /* relaxed: compared with the file. */
        .inode = shc_a64_load_relaxed(&late_pipe.inode),
    };
    if (word != 0)
        shc_os_file_tell_own((int)word - 1, &file, line, length);
}

void shc_late_pipe(int fd)
{
    struct shc_os_file_id file = {0};
    size_t bytes;
    const bool there = fd >= 0 && shc_os_file_stat(fd, &file, &bytes) == 0;
    /* relaxed: compared with the file. */
    shc_a64_store_relaxed(&late_pipe.device, file.device);
    /* relaxed: compared with the file. */
    shc_a64_store_relaxed(&late_pipe.inode, file.inode);
    /* relaxed: compared with the file. */
    shc_a32_store_relaxed(&late_pipe.word, there ? (uint32_t)fd + 1 : 0);
}

void shc_log_file_use(void)
{
    shc_log_set_output(write_line);
    shc_log_set_late(write_late);
}
