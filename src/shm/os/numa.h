/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * libnuma, opened by dlopen() when it is first needed: a library that is linked with it would not load
 * on a machine without it. Any thread.
 */

struct shc_numa {
    int (*numa_available)(void);
    long (*mbind)(void *memory, unsigned long bytes, int mode, const unsigned long *nodes,
                  unsigned long max_node, unsigned flags);
};

/* NULL: built without it, not installed, or refused by the kernel. */
const struct shc_numa *shc_numa(void);
