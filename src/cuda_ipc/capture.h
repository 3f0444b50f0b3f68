/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Operations that a CUDA graph captures (docs/CUDA.md, "Graphs").
 */

#include "cuda_ipc/cuda_comm.h"

/* *capture: the number of the capture that the stream takes part in; 0: none. SHC_ERR_INVALID: one
 * that is already broken. */
SHC_NODISCARD enum shc_status shc_capture_of(const struct shc_driver *driver,
                                             struct shc_cu_stream *stream, uint64_t *capture);
