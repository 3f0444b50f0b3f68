/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The collectives. An algorithm computes with `plan`, moves bytes with `proto`, and combines them with
 * `kernel`. It sees bytes and one type-erased reduce function. It never sees a dtype, a device or an atomic.
 */

#include "shm/coll/task.h"

/* Runs the operation of task->call. SHC_OK: the output is complete. */
SHC_NODISCARD enum shc_status shc_coll_run(struct shc_task *task);
