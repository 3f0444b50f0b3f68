/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * One line per message on stderr, written in one piece:
 *   [shmcoll 12:34:56.789 pid 4711] warn: rank 0 of "default_pg" waits ...
 * Any thread. The level is SHMCOLL_LOG.
 */

#include "shm/base/attrs.h"
#include "shm/base/config.h"

void shc_log(enum shc_log_level level, const char *format, ...) SHC_PRINTF(2, 3);
