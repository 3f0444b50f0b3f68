/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Stores past the caches, or into them? Which is faster depends on whether the CPUs of writer and
 * reader share a cache, which a virtual machine does not tell and may change, and by a factor of two
 * either way. So whoever stores tries both, one behind the other, stays with the faster one, and tries
 * the other again now and then. Every rank chooses for itself: nobody else sees how it stores.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shc_pace {
    bool into_caches; /* the way that is taken; its owner says with which to begin */
    unsigned notes;   /* messages and rounds, since it was taken */
    uint64_t bytes;   /* of these */
    uint64_t worse;   /* and of these the last ones, in a row slower than the other way */
    double least;     /* nanoseconds a byte of what went fastest */
    double best;      /* the same in its trial, behind the first round */
    double other;     /* `best` of the other way; 0: not known */
};

/* A round goes at least once through all memory that is stored to (bulk windows, preset shout slots). */
#define SHC_PACE_ROUND ((uint64_t)1536 << 10)

/* Sizes up to four times as large share one: what a byte takes, and which way is faster, depends on
 * how much of a message is waiting, and on what fits into which cache. */
#define SHC_PACES 6

static inline struct shc_pace *shc_pace_for(struct shc_pace paces[SHC_PACES], size_t bytes)
{
    int i = 0;
    while (i < SHC_PACES - 1 && bytes >= (size_t)128 << 10 << (2 * i))
        i++;
    return &paces[i];
}

/* Is it trying this way? Then a collective's message is timed until its readers have read it: the way of
 * storing that is faster for the writer alone may be slower for them. */
bool shc_pace_tries(const struct shc_pace *pace);

/* So many bytes, a message or a round of one, were stored in that way, waits for readers included. */
void shc_pace_note(struct shc_pace *pace, uint64_t bytes, uint64_t ns);
