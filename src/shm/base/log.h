/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * One line per message, written in one piece:
 *   [shmcoll 2026-11-28 12:34:56.789 rank 5 pid 4711] warn: rank 5 (rank 1 of group "tp") ...
 * to stderr or to the file of SHMCOLL_LOG_FILE. Any thread. The level is SHMCOLL_LOG.
 */

#include "shm/base/attrs.h"
#include "shm/base/config.h"

#include <stdbool.h>
#include <stddef.h>

void shc_log(enum shc_log_level level, const char *format, ...) SHC_PRINTF(2, 3);

/* Do lines of that level go anywhere? */
bool shc_log_goes(enum shc_log_level level);

/* A line about a late wait: a warning if `speaks`, and in any case to the pipe of shc_late_pipe(). */
void shc_log_late(bool speaks, const char *format, ...) SHC_PRINTF(2, 3);

/* Lines go to this function from now on, and no longer to stdio's stderr. Once per process. */
void shc_log_set_output(void (*write)(const char *line, size_t length));

/* Texts about late waits, with a newline, go to this function too from now on. */
void shc_log_set_late(void (*write)(const char *line, size_t length));

/* The rank of shc_log_set_rank() as text; "": not known, or several. */
void shc_log_rank_text(char *text, size_t capacity);

void shc_log_pid_text(char *text, size_t capacity);

/* Which rank of the job this process is. Several: it is several ranks, and lines name none. */
void shc_log_set_rank(int rank);
