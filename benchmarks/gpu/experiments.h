/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/* The experiments. Each runs its groups of processes, writes its lines, and returns 0, or 1 when
 * something failed (a "no" is a result, not a failure). */

#include "processes.h"

int experiment_info(const struct options *options);
int experiment_share(const struct options *options);
int experiment_release(const struct options *options);
int experiment_handoff(const struct options *options);
int experiment_copies(const struct options *options);
int experiment_relay(const struct options *options);
int experiment_register(const struct options *options);
int experiment_kill(const struct options *options);
int experiment_graph(const struct options *options);
