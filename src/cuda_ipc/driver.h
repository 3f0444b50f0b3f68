/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The NVIDIA driver as one table of functions. Nothing links against it: the library is opened
 * on request, so one build serves machines with and without a GPU. This is the only way
 * to CUDA: no runtime API, no other handle to the library.
 *
 * Opening is for one thread; the opened table is constant and any thread's. It is never closed:
 * the driver has threads of its own.
 */

#include "cuda_ipc/cuda_abi.h"
#include "shm/base/attrs.h"
#include "shm/shmcoll.h"

/* The library that production opens; tests hand over the path of their stand-in. No variable changes it. */
#define SHC_DRIVER_LIBRARY "libcuda.so.1"

/* The oldest driver we accept, as cuDriverGetVersion tells it: stream write and wait values are
 * there for everybody from here on. */
#define SHC_DRIVER_OLDEST 12000

struct shc_driver {
#define SHC_DRIVER_MEMBER(name, version, need, parameters) int(*name) parameters;
    SHC_DRIVER_CALLS(SHC_DRIVER_MEMBER)
#undef SHC_DRIVER_MEMBER
    int version;
    int device_count;
};

/*
 * Opens the driver, fills the table, initializes CUDA. SHC_ERR_UNSUPPORTED, with the reason in the
 * text: no driver, too old a driver, a function that is missing, no GPU, a driver that does not
 * start.
 */
SHC_NODISCARD enum shc_status shc_driver_open(const char *library, struct shc_driver *driver);

/* All functions for memory that is exported as a file descriptor / by a legacy handle? */
bool shc_driver_has_fd_memory(const struct shc_driver *driver);
bool shc_driver_has_legacy_ipc(const struct shc_driver *driver);

/* Records that a call of the driver failed: the text, then the result's name and meaning. Out of
 * memory is SHC_ERR_NOMEM, all else SHC_ERR_SYSTEM. */
SHC_NODISCARD SHC_COLD enum shc_status shc_driver_fail(const struct shc_driver *driver, int result,
                                                       const char *format, ...) SHC_PRINTF(3, 4);
