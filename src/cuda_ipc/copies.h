/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Copies by a kernel on their way into a stream: collected, because one launch takes many. They store nothing
 * where the gate in `args` is shut.
 */

#include "cuda_ipc/demand.h"
#include "cuda_ipc/kernel/kernels.h"

struct shc_copies {
    const struct shc_kernels *kernels;
    struct shc_cu_stream *stream;
    struct shc_copy_args args;
};

SHC_NODISCARD enum shc_status shc_copies_add(struct shc_copies *copies, void *to, const void *from,
                                             uint64_t bytes);

/* Between bytes of a vector, from `at` on, and memory in a row; `out`: from the vector. */
SHC_NODISCARD enum shc_status shc_copies_add_flat(struct shc_copies *copies, struct shc_flat *flat,
                                                  uint64_t at, shc_cu_address memory,
                                                  uint64_t bytes, bool out);

/* Launches what was collected. */
SHC_NODISCARD enum shc_status shc_copies_flush(struct shc_copies *copies);
