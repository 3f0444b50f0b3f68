/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Statuses and the per-thread error record. The function that first decides what the error is
 * records it with shc_fail(); its callers only pass the status on. Any thread.
 */

#include "shm/base/attrs.h"
#include "shm/shmcoll.h"

#define SHC_ERROR_TEXT_BYTES 1024
#define SHC_STRERROR_BYTES   64 /* room for strerror_r() */

/* Records the text for the calling thread and returns `status`. A newer record replaces it. */
SHC_NODISCARD enum shc_status shc_fail(enum shc_status status, const char *format, ...)
    SHC_PRINTF(2, 3);

/* The same, with ": <strerror(error)>" after the text. */
SHC_NODISCARD enum shc_status shc_fail_errno(enum shc_status status, int error, const char *format,
                                             ...) SHC_PRINTF(3, 4);
