/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Entries of a sparse tensor: a position (the index in all indexed dimensions, as one number) and
 * where the value lies. Sorting them, and making one value of all that share a position. Pure
 * functions on memory: no state, no waiting, any thread.
 */

#include "shm/kernel/kernel.h"

struct shc_entries {
    size_t count;
    uint64_t *position;
    const void **value;
};

/* By position; entries of one position keep their order. `spare` has room for as many entries; the
 * two may have exchanged their memory afterwards. Takes one pass when they are in order. */
void shc_entries_sort(struct shc_entries *entries, struct shc_entries *spare);

/* How many positions there are. pre: sorted. */
size_t shc_entries_distinct(const struct shc_entries *entries);

/* How the values of one position become one. */
struct shc_combine {
    shc_reduce_fn reduce;
    size_t elements, bytes; /* of one value */
    /* Of a position with fewer values than this, the missing ones are `zero`: every one of them
     * where the count matters (an average), else the first stands for all. */
    int full;
    bool average;
    const void *zero;
};

/* Stores each position, ascending, and its value: room for shc_entries_distinct() of both. pre:
 * sorted, no more than INT_MAX entries. */
void shc_entries_combine(const struct shc_entries *entries, const struct shc_combine *how,
                         uint64_t *positions, char *values);
