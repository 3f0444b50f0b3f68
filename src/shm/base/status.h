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

/* A bug of the library, never bad input: says where, and aborts. Level 1 is always on. Levels 2 and
 * 3 cost time, and are on if the library is built with that SHC_DEBUG_LEVEL. */
#define SHC_ASSERT(cond) ((cond) ? (void)0 : shc_assert_failed(#cond, __FILE__, __LINE__))
#if defined(SHC_DEBUG_LEVEL) && SHC_DEBUG_LEVEL >= 2
#define SHC_ASSERT_2(cond) SHC_ASSERT(cond)
#else
#define SHC_ASSERT_2(cond) ((void)0)
#endif

SHC_COLD void shc_assert_failed(const char *condition, const char *file, int line)
    __attribute__((noreturn));
