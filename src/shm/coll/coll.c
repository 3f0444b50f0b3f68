/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/coll/coll.h"

#include "shm/coll/runs.h"

enum shc_status shc_coll_run(struct shc_task *task)
{
    switch (task->call.kind) {
    case SHC_BARRIER:
        return shc_barrier_run(task);
    case SHC_BROADCAST:
        return shc_broadcast_run(task);
    case SHC_ALL_REDUCE:
        return shc_allreduce_run(task);
    case SHC_REDUCE:
        return shc_reduce_run(task);
    case SHC_ALL_GATHER:
    case SHC_GATHER:
        return shc_gather_run(task);
    case SHC_SCATTER:
        return shc_scatter_run(task);
    case SHC_REDUCE_SCATTER:
        return shc_reduce_scatter_run(task);
    case SHC_ALL_TO_ALL:
        return shc_alltoall_run(task);
    case SHC_ALL_REDUCE_SPARSE:
        return shc_allreduce_sparse_run(task);
    case SHC_ALL_GATHER_UNEVEN:
        return shc_gather_uneven_run(task);
    case SHC_REDUCE_SCATTER_UNEVEN:
        return shc_reduce_scatter_uneven_run(task);
    case SHC_CALL:
        return shc_function_run(task);
    default:
        return shc_fail(SHC_ERR_UNSUPPORTED, "operation %d is not offered", (int)task->call.kind);
    }
}
