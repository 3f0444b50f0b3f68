/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/* The core's kernels, for a test that includes the GPU's: both have arguments of the same name. */

#include "shm/shmcoll.h"

/* One destination; `factors` is for SHC_PREMUL_SUM. */
void core_reduce(enum shc_dtype dtype, enum shc_redop redop, const void *const *sources, int count,
                 void *out, size_t elements, const double *factors);
