/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Where a thread moves that found another rank on its CPU. The scheduler would separate the two as
 * well, but only after milliseconds, in which each waits for the other's time slices. Any thread;
 * no state.
 */

#include "shm/os/numa.h"
#include "shm/proto/seat.h"

/* The CPUs to choose from: those that the thread may use, except its own and those that are taken; of them those of
 * the nearest node. False: there is none. */
bool shc_place_choose(const struct shc_numa *numa, const struct shc_os_cpus *allowed, int here,
                      const struct shc_os_cpus *taken, struct shc_os_cpus *free);

/* May the calling thread run on more than one CPU? */
bool shc_place_has_choice(void);

/* Moves the calling thread to one of the CPUs of shc_place_choose(). Afterwards it may use the same
 * CPUs as before. False: there is none, or the system does not allow it. */
bool shc_place_move(int here, const struct shc_os_cpus *taken);

/* shc_cpu_sharing's hook (proto/cpu_sharing.h): moves the calling thread if another rank of the group is on its CPU.
 * False: it has not moved. */
bool shc_place_migrate(const struct shc_seat *seat);
