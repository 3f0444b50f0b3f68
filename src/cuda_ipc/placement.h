/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Is every tensor of a call memory of the group's GPU? A kernel that finds another address there
 * ends the context, and with it everything this process has on the GPU.
 */

#include "cuda_ipc/demand.h"

/* SHC_ERR_INVALID: this tensor is not. pre: the GPU is entered. Any thread. */
SHC_NODISCARD enum shc_status shc_placement_check(const struct shc_gpu *gpu,
                                                  const struct shc_demand *demand);
