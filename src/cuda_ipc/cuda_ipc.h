/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The public header of libshmcoll_cuda, for C11 and C++17 callers. The library loads on every
 * machine; whether there is a GPU is asked, not assumed. The rules of shmcoll.h hold.
 */

#include "shm/shmcoll.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/*
 * Lines of `key=value`: the driver's version and each GPU this process sees, with its UUID and what
 * memory it can share; `usable=no` and the reason where CUDA cannot be used: that is no failure.
 * Makes no context on a GPU. SHC_ERR_INVALID when the text does not fit. Any thread; may take a
 * second where a driver has to start.
 */
enum shc_status shc_cuda_info(char *text, size_t capacity);

/* The calling thread's last failure in this library: one paragraph, no newline at its end. */
const char *shc_cuda_error_text(void);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
