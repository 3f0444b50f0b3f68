/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/* System calls of groups over several hosts. */

#include "shm/base/attrs.h"

/* A thread of our own: it blocks all signals, and is not joined. Returns an errno. */
SHC_NODISCARD int shc_hosts_start_thread(const char *name, void *(*entry)(void *), void *arg);
