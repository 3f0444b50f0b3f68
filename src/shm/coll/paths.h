/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The paths of collectives by size, in words: what select.h answers, for people and for a test that pins it.
 */

#include "shm/coll/select.h"

/* How an operation goes whose ranks each have a tensor of so many bytes: the input; of a scatter the output, of an
 * all_to_all each block. `copies`: the kernel may copy blocks out of other ranks' memory. NULL: the operation has
 * no such choice. pre: two ranks or more, and staging memory. */
const char *shc_coll_path(const struct shc_tuning *tuning, enum shc_op_kind kind, size_t bytes,
                          int world_size, bool copies);

/* The same for an all_to_all of equal blocks (alltoall.c); and whether a scatter lets every rank copy its block out of
 * the root's memory, where it can (scatter.c). `others_bytes`: of all blocks but the root's. */
const char *shc_alltoall_path(const struct shc_tuning *tuning, size_t bytes, int world_size);
bool shc_scatter_pulls(const struct shc_tuning *tuning, size_t others_bytes, int world_size);
