/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * From the caller's descriptor to a task: checks everything that can be wrong on this rank alone,
 * before anything is published.
 */

#include "shm/coll/coll.h"

struct shc_comm;

/* Fills the call, the buffers, the kernel. The tensors' arrays must outlive the task.
 * SHC_ERR_INVALID, SHC_ERR_UNSUPPORTED. */
SHC_NODISCARD enum shc_status shc_task_prepare(struct shc_task *task, struct shc_comm *comm,
                                               const struct shc_op *op);
