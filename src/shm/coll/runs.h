/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The algorithms: each runs a whole operation. Only shc_coll_run() calls a collective's, except that an operation
 * without bytes is a barrier.
 */

#include "shm/coll/task.h"

/* One collective per file. */
SHC_NODISCARD enum shc_status shc_barrier_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_broadcast_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_allreduce_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_allreduce_sparse_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_reduce_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_gather_run(struct shc_task *task); /* also all_gather */
SHC_NODISCARD enum shc_status shc_scatter_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_reduce_scatter_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_reduce_scatter_uneven_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_alltoall_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_gather_uneven_run(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_function_run(struct shc_task *task);

/* An all_reduce or a reduce of more than two ranks in two phases over the small slots (STAGE-24). */
SHC_NODISCARD enum shc_status shc_two_phase_run(struct shc_task *task);

/* An all_reduce that is pushed if all ranks have their tensors in heaps (HEAP-8), and otherwise goes on by `staged`,
 * once its call line is out. */
typedef enum shc_status (*shc_staged_fn)(struct shc_task *task);
SHC_NODISCARD enum shc_status shc_push_run(struct shc_task *task, shc_staged_fn staged);

/* How an all_to_all of equal blocks goes, in words. */
const char *shc_alltoall_path(const struct shc_tuning *tuning, size_t bytes, int world_size);
