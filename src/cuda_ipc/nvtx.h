/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * NVTX ranges, for Nsight Systems and other tools that are loaded with the process: docs/operate/probes.md. A range
 * lasts while a call puts an operation into a stream, not while the GPU runs it. Its domain is "shmcoll", its
 * category the group, its message the operation, and its payload the operation's bytes on this rank. Where no tool
 * is loaded, or where the headers of NVTX were not there to build with, a range costs a comparison.
 */

#include "shm/base/attrs.h"
#include "shm/shmcoll.h"
#include <stdbool.h>

bool shc_nvtx_is_built(void);

/* The category of the group of that name; 0: no tool listens. */
uint32_t shc_nvtx_category(const char *group);

/* What follows do for a tool that listens. */
SHC_COLD void shc_nvtx_push(uint32_t category, const struct shc_op *ops, int count);
SHC_COLD void shc_nvtx_pop(void);

/* Begins a range of one operation, or of a batch of messages. */
SHC_INLINE void shc_nvtx_begin(uint32_t category, const struct shc_op *ops, int count)
{
    if (SHC_UNLIKELY(category != 0))
        shc_nvtx_push(category, ops, count);
}

/* Ends the range that this thread began last. */
SHC_INLINE void shc_nvtx_end(uint32_t category)
{
    if (SHC_UNLIKELY(category != 0))
        shc_nvtx_pop();
}
