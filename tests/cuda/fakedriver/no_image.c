/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Replaces the kernels where no nvcc made them: an image without content, in which the
 * stand-in finds the twins. It is linked before the library, so the program uses this one.
 */
#include "cuda_ipc/kernel/image.h"

#include <stdint.h>

static const uint32_t empty[4] = {0xba55ed50u, 0x00100001u};

const void *const shc_kernel_image = empty;
