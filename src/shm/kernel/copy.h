/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Copies between user memory and staging cells. Any thread, no state.
 */

#include "shm/base/attrs.h"

#include <stdbool.h>
#include <string.h>

/*
 * By the widest vectors, in order: for lines that another CPU has stored or reads next. There memcpy,
 * which leaves large copies to the processor's string instructions, can be half as fast. dst and src do
 * not overlap, here and below.
 */
void shc_copy_lines(void *dst, const void *src, size_t bytes);

/* Until here memcpy uses vectors everywhere. */
#define SHC_COPY_SHORT_BYTES 2048

/* Beyond, glibc leaves it to the processor's string instructions, by which some processors move 2 GB/s
 * instead of 60 where the destination is a few bytes ahead of the source, modulo the page (Zen 3: 1 to
 * 31). Staging memory begins with a page, and large blocks of malloc's 16 bytes behind one. */
SHC_INLINE bool shc_copy_may_crawl(const void *dst, const void *src)
{
    const size_t ahead = ((uintptr_t)dst - (uintptr_t)src) % SHC_PAGE_BYTES;
    return ahead > 0 && ahead < SHC_CPU_LINE_BYTES;
}

/* By memcpy, unless that may crawl. */
SHC_INLINE void shc_copy(void *dst, const void *src, size_t bytes)
{
    if (SHC_UNLIKELY(bytes > SHC_COPY_SHORT_BYTES && shc_copy_may_crawl(dst, src)))
        shc_copy_lines(dst, src, bytes);
    else if (bytes > 0) /* an empty tensor has no address */
        memcpy(dst, src, bytes);
}

/*
 * The same with stores that go past the caches, where the CPU has them: for lines that another CPU
 * has in its cache and reads next. An ordinary store would fetch each of them from there first. Ends
 * with its own fence, so that a release store behind it publishes it like any other copy.
 */
void shc_copy_stream(void *dst, const void *src, size_t bytes);

/*
 * The hand-over of a staging cell in one pass: block by block, what the peer left in `cell` goes to
 * `out`, and `next` goes into the lines just read, while they are ours. The three do not overlap.
 */
void shc_copy_exchange(void *out, void *cell, const void *next, size_t bytes);

/* The same, with stores to `out` that go past the caches: an ordinary one would fetch the line from memory
 * first. For an output that the caches do not hold. Ends with its own fence. */
void shc_copy_exchange_past(void *out, void *cell, const void *next, size_t bytes);
