/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The two kernels of the experiments: one stores a word for the whole system to see, one keeps the
 * GPU busy for a time that it measures itself, so that it ends whatever happens. They are PTX in
 * this program, for the driver's own compiler; --image gives another form (`experiments ptx` prints
 * the text, ptxas makes an image for one GPU of it).
 */

#include "cuda_ipc/gpu.h"

struct kernels {
    struct shc_cu_module *module;
    struct shc_cu_function *store, *busy;
    char why_not[200]; /* "" when they are there */
};

const char *kernels_ptx(void);

/* Leaves `why_not` where they cannot be had: that is a result. pre: the GPU is entered. */
void kernels_load(const struct shc_gpu *gpu, const char *image, struct kernels *kernels);
void kernels_unload(const struct shc_gpu *gpu, struct kernels *kernels);

/* Both return the driver's result. pre: no why_not. */
int kernels_store(const struct shc_gpu *gpu, const struct kernels *kernels,
                  struct shc_cu_stream *stream, shc_cu_address word, uint64_t value);
int kernels_busy(const struct shc_gpu *gpu, const struct kernels *kernels,
                 struct shc_cu_stream *stream, uint64_t ns);
