/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/kernel/entries.h"

#include "shm/base/num.h"

#include <string.h>

/* The end of the ascending run that begins at `first`. */
static size_t run_end(const struct shc_entries *entries, size_t first)
{
    size_t end = first + 1;
    while (end < entries->count && entries->position[end - 1] <= entries->position[end])
        end++;
    return shc_min_size(end, entries->count);
}

static void copy_entries(struct shc_entries *to, size_t at, const struct shc_entries *from,
                         size_t first, size_t count)
{
    if (count == 0)
        return;
    memcpy(to->position + at, from->position + first, count * sizeof *to->position);
    memcpy(to->value + at, from->value + first, count * sizeof *to->value);
}

/* Merges the runs [first, middle) and [middle, end), in place. */
static void merge(struct shc_entries *to, const struct shc_entries *from, size_t first,
                  size_t middle, size_t end)
{
    size_t a = first, b = middle, at = first;
    while (a < middle && b < end) {
        size_t next = from->position[a] <= from->position[b] ? a++ : b++;
        to->position[at] = from->position[next];
        to->value[at++] = from->value[next];
    }
    copy_entries(to, at, from, a, middle - a);
    copy_entries(to, at + (middle - a), from, b, end - b);
}

void shc_entries_sort(struct shc_entries *entries, struct shc_entries *spare)
{
    while (run_end(entries, 0) < entries->count) {
        for (size_t first = 0; first < entries->count;) {
            size_t middle = run_end(entries, first);
            size_t end = middle < entries->count ? run_end(entries, middle) : middle;
            merge(spare, entries, first, middle, end);
            first = end;
        }
        struct shc_entries sorted = {entries->count, spare->position, spare->value};
        spare->position = entries->position;
        spare->value = entries->value;
        *entries = sorted;
    }
}

/* The end of the entries that share the position of entry `first`. */
static size_t same_end(const struct shc_entries *entries, size_t first)
{
    size_t end = first + 1;
    while (end < entries->count && entries->position[end] == entries->position[first])
        end++;
    return end;
}

size_t shc_entries_distinct(const struct shc_entries *entries)
{
    size_t distinct = 0;
    for (size_t first = 0; first < entries->count; first = same_end(entries, first))
        distinct++;
    return distinct;
}

static void combine_one(const struct shc_combine *how, const void *const *values, int count,
                        char *out)
{
    const void *padded[SHC_MAX_WORLD];
    void *dst[1] = {out};
    struct shc_reduce_args args = {
        .src = values,
        .dst = dst,
        .src_count = count,
        .dst_count = 1,
        .count = how->elements,
    };
    if (count < how->full) {
        args.src_count = how->average ? how->full : count + 1;
        for (int i = 0; i < args.src_count; i++)
            padded[i] = i < count ? values[i] : how->zero;
        args.src = padded;
    }
    how->reduce(&args);
}

void shc_entries_combine(const struct shc_entries *entries, const struct shc_combine *how,
                         uint64_t *positions, char *values)
{
    size_t at = 0;
    for (size_t first = 0; first < entries->count; at++) {
        size_t end = same_end(entries, first);
        positions[at] = entries->position[first];
        combine_one(how, entries->value + first, (int)(end - first), values + at * how->bytes);
        first = end;
    }
}
