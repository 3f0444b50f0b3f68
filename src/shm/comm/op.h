/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * From the caller's descriptor to a task: checks everything that can be wrong on this rank alone,
 * before anything is published.
 */

#include "shm/coll/coll.h"

struct shc_comm;

/* Fills the call, the buffers, the kernel. The tensors' arrays must outlive the task.
 * SHC_ERR_INVALID, SHC_ERR_UNSUPPORTED. pre: not a point-to-point operation. */
SHC_NODISCARD enum shc_status shc_task_prepare(struct shc_task *task, struct shc_comm *comm,
                                               const struct shc_op *op);

/* The last call of shc_run(). The next one is often the same except for where its data lies, and then only
 * that is checked. */
struct shc_kept {
    struct shc_task task;
    struct shc_op op; /* its tensors are gone; `task` has only the number of their bytes */
    bool valid;
};

/* Makes kept->task ready for the operation. Returns as shc_task_prepare() does. */
SHC_NODISCARD enum shc_status shc_task_prepare_kept(struct shc_kept *kept, struct shc_comm *comm,
                                                    const struct shc_op *op);

SHC_INLINE bool shc_is_message(enum shc_op_kind kind)
{
    return kind == SHC_SEND || kind == SHC_RECV;
}
