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
    uint64_t bytes;   /* stored in this way, since it was taken */
    uint64_t worse; /* of these, the last in a row that the other way would have been faster with */
    double best;    /* nanoseconds a byte of what went fastest, behind the first round */
    double other;   /* the same of the other way; 0: not known */
};

/* A round goes at least once through all memory that is stored to (bulk windows, preset shout slots). */
#define SHC_PACE_ROUND ((uint64_t)1536 << 10)

/* What fits into the nearest caches, what fits into the last, and what does not may differ. */
#define SHC_PACES 3

static inline struct shc_pace *shc_pace_for(struct shc_pace paces[SHC_PACES], size_t bytes)
{
    return &paces[bytes <= (512u << 10) ? 0 : bytes <= (8u << 20) ? 1 : 2];
}

/* So many bytes, a message or a round of one, were stored in that way, waits for readers included. */
void shc_pace_note(struct shc_pace *pace, uint64_t bytes, uint64_t ns);
