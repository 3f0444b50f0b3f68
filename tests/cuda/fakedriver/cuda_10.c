/* SPDX-License-Identifier: BSD-3-Clause */
/* A driver from before CUDA 11.3: nothing finds functions by version. */

int cuInit(unsigned flags);

int cuInit(unsigned flags)
{
    (void)flags;
    return 0;
}
