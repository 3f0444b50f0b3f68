/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * One GPU as this process uses it: which it is, what it can, and its primary context (the one torch
 * uses; we never make another). Opening is for one thread; the rest is any thread's.
 */

#include "cuda_ipc/driver.h"

#define SHC_GPU_NAME_BYTES 96

struct shc_gpu {
    const struct shc_driver *driver;
    struct shc_cu_context *context;
    struct shc_cu_uuid uuid; /* of the MIG instance, where there are such */
    char name[SHC_GPU_NAME_BYTES];
    int device;     /* the driver's number for it: the ordinal under CUDA_VISIBLE_DEVICES */
    int capability; /* 10 * major + minor */
    bool exports_fd;
    /* Processes share one context, by an MPS server; false also where the driver is too old. */
    bool by_mps;
};

/* Which GPU the ordinal-th is and what it can; makes no context. SHC_ERR_INVALID: there is no such
 * one. */
SHC_NODISCARD enum shc_status shc_gpu_describe(const struct shc_driver *driver, int ordinal,
                                               struct shc_gpu *gpu);

/* The same, and holds its primary context. SHC_ERR_UNSUPPORTED: it is in a compute mode that keeps
 * this process out, or its streams know no words. */
SHC_NODISCARD enum shc_status shc_gpu_open(const struct shc_driver *driver, int ordinal,
                                           struct shc_gpu *gpu);
void shc_gpu_close(struct shc_gpu *gpu);

/* Between enter and leave the calling thread's CUDA calls go to this GPU. */
SHC_NODISCARD enum shc_status shc_gpu_enter(const struct shc_gpu *gpu);
void shc_gpu_leave(const struct shc_gpu *gpu);
