/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * How to copy what another CPU reads next: past the caches or into them, and those by which
 * instructions? Which is fastest depends on the processor and on whether the CPUs of writer and reader
 * share a cache, which a virtual machine does not tell and may change, and by a factor of two either
 * way. So whoever stores tries all ways, one behind the other, stays with the fastest one, and tries
 * another one again now and then: the more seldom the more often that was in vain. Every rank chooses
 * for itself, and who reads is told how, where that matters to it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum shc_way {
    SHC_WAY_PLAIN, /* shc_copy(): the C library's, often the processor's string instructions */
    SHC_WAY_PAST,  /* shc_copy_stream() */
    SHC_WAY_LINES, /* shc_copy_lines() */
    SHC_WAYS
};

struct shc_pace {
    enum shc_way way;      /* that is taken */
    unsigned ways;         /* so many there are, the first ones */
    unsigned retry;        /* which one is tried again next */
    unsigned notes;        /* messages and rounds, since `way` was taken */
    uint64_t bytes;        /* of these */
    enum shc_way settled;  /* the way that stayed last */
    unsigned stays;        /* so often in a row */
    uint64_t looked;       /* as many of them as there were when one was timed, and not slow */
    uint64_t worse;        /* and of these the last ones, in a row slower than another way */
    double least;          /* nanoseconds a byte of what went fastest */
    double best;           /* the same in its trial, behind the first round */
    double took[SHC_WAYS]; /* `best` of each way when it was taken last; 0: not known */
};

/* A round goes at least once through all memory that is stored to (bulk windows, preset shout slots). */
#define SHC_PACE_ROUND ((uint64_t)1536 << 10)

/* Sizes up to four times as large share one: what a byte takes, and which way is fastest, depends on
 * how much of a message is waiting, and on what fits into which cache. */
#define SHC_PACES 6

/* The first `ways` of them are there, at least two; that one is tried first. */
void shc_paces_init(struct shc_pace paces[SHC_PACES], unsigned ways, enum shc_way way);

static inline struct shc_pace *shc_pace_for(struct shc_pace paces[SHC_PACES], size_t bytes)
{
    int i = 0;
    while (i < SHC_PACES - 1 && bytes >= (size_t)128 << 10 << (2 * i))
        i++;
    return &paces[i];
}

/* Is it trying this way, or looking whether it has become slow, as those that nobody times do not tell? Then a
 * message is timed until its readers have read it: what is faster for the writer alone may be slower for them. */
bool shc_pace_tries(const struct shc_pace *pace);

/* So many bytes, a message or a round of one, were stored in that way, waits for readers included. */
void shc_pace_note(struct shc_pace *pace, uint64_t bytes, uint64_t ns);

/* So many more, of which nobody knows how long they took. pre: not while it tries. */
void shc_pace_count(struct shc_pace *pace, uint64_t bytes);
