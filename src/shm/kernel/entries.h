/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Entries of a sparse tensor: a position (the index in all indexed dimensions, as one number) and
 * where the value lies. Sorts them, and combines all values of one position. Pure functions on
 * memory: no state, no waiting, any thread.
 */

#include "shm/kernel/kernel.h"

struct shc_entries {
    size_t count;
    uint64_t *position;
    const void **value;
};

/* Sorts by position; entries of one position keep their order. `spare` has room for as many
 * entries. Afterwards the two may have exchanged their memory. One pass if the entries are in
 * order. */
void shc_entries_sort(struct shc_entries *entries, struct shc_entries *spare);

/* The number of different positions. pre: sorted. */
size_t shc_entries_distinct(const struct shc_entries *entries);

/* How the values of one position are combined. */
struct shc_combine {
    shc_reduce_fn reduce;
    size_t elements, bytes; /* of one value */
    /* If a position has fewer values than this, the missing ones are `zero`: each of them if the
     * count matters (an average), otherwise one stands for all. */
    int full;
    bool average;
    const void *zero;
};

/* Stores each position, ascending, and its value. Both have room for shc_entries_distinct(). pre:
 * sorted, at most INT_MAX entries. */
void shc_entries_combine(const struct shc_entries *entries, const struct shc_combine *how,
                         uint64_t *positions, char *values);
