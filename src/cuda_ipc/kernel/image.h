/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The kernels as the driver takes them: a fat binary. An object of its own, so that a test can put
 * another one in its place.
 */

/* NULL: there was no nvcc when this was built. */
extern const void *const shc_kernel_image;
