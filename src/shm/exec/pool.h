/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Reduction threads: a pool per process, pinned to the CPUs of its NUMA node, shared by all groups.
 *
 * A task never waits for a rank, so a pool that is busy for one group cannot stop another. Only the
 * thread that runs the operation waits, and tasks get what has arrived. A caller uses the threads
 * that are free now, and itself. With a busy pool, or one of size 0, it does all the work. Results
 * do not depend on which thread does what.
 */

#include "shm/base/status.h"
#include "shm/os/os.h"

struct shc_pool;

#define SHC_POOL_MAX_THREADS 256

/* A pool lives as long as the process. threads: 0 .. SHC_POOL_MAX_THREADS; fewer start if the system
 * refuses more. `cpus` NULL: not pinned. Pinning that is refused is no error. */
SHC_NODISCARD enum shc_status shc_pool_create(struct shc_pool **pool, int threads,
                                              const struct shc_os_cpus *cpus);

int shc_pool_size(const struct shc_pool *pool);

/* The number of jobs that its threads have been given. */
uint64_t shc_pool_jobs(const struct shc_pool *pool);

/* Runs task(arg, i) once for each i below count, in any order and on any of the threads, and
 * returns when all are done. Any thread; several at once. `pool` may be NULL. */
void shc_pool_run(struct shc_pool *pool, void (*task)(void *arg, uint32_t index), void *arg,
                  uint32_t count);
