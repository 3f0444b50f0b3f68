/* SPDX-License-Identifier: BSD-3-Clause */
#include "tests/cuda/core_reduce.h"

#include "shm/kernel/kernel.h"

void core_reduce(enum shc_dtype dtype, enum shc_redop redop, const void *const *sources, int count,
                 void *out, size_t elements, const double *factors)
{
    void *destinations[1] = {out};
    const struct shc_reduce_args args = {
        .src = sources,
        .dst = destinations,
        .src_count = count,
        .dst_count = 1,
        .count = elements,
        .factors = redop == SHC_PREMUL_SUM ? factors : NULL,
    };
    shc_kernel_reduce(dtype, redop)(&args);
}
