/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/* System calls of groups over several hosts. */

#include "shm/base/attrs.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* A condition whose waits are timed by the clock of shc_clock_ns(). */
void shc_hosts_cond_init(pthread_cond_t *cond);

/* pre: the lock. False: that time has come. */
bool shc_hosts_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns);

/* Does nobody listen at that TCP port? Asks for 0.2 s at most for each address of the host; false if that does not
 * tell. */
bool shc_hosts_refuses(const char *host, int port);

/* A number that most likely no other group has. */
uint64_t shc_hosts_random(void);

/* A thread of our own: it blocks all signals, and is not joined. Returns an errno. */
SHC_NODISCARD int shc_hosts_start_thread(const char *name, void *(*entry)(void *), void *arg);
