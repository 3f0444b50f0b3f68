/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/* What the core's board shows of a group; in C, because headers of the core and of the CUDA part have equal names. */

#include <stddef.h>

struct shc_comm;

/* The call on the GPU, whom it waits for, and these ranks as bits: "all_reduce #1 (...) waits for rank 2: 4"; "" while
 * it does not wait. */
void core_board_device(const struct shc_comm *comm, char *text, size_t capacity);
