/* SPDX-License-Identifier: BSD-3-Clause */
/* A driver from before CUDA 11.3: it has no call that finds functions by version. */

int cuInit(unsigned flags);

int cuInit(unsigned flags)
{
    (void)flags;
    return 0;
}
