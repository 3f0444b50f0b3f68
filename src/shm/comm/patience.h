/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/* How long the waits of a group spin and yield before they sleep. */

#include "shm/proto/seat.h"

/* CPUs the group's ranks may use together. */
int shc_usable_cpus(const struct shc_seat *seat);

/* pre: the ranks have met. */
void shc_patience_set(struct shc_seat *seat);
