/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The paths of collectives by size, in words. They are what select.h answers, for people and for a test that
 * pins the answers.
 */

#include "shm/coll/select.h"

/* The path of an operation whose ranks each have a tensor of `bytes` bytes: the input; of a scatter
 * the output; of an all_to_all each block. `copies`: the kernel may copy blocks out of other ranks'
 * memory. NULL: the operation has no such choice. pre: two ranks or more, and staging memory. */
const char *shc_coll_path(const struct shc_tuning *tuning, enum shc_op_kind kind, size_t bytes,
                          int world_size, bool copies);
