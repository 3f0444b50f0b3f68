/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Copies between user memory and staging cells. Any thread, no state.
 */

#include "shm/base/attrs.h"

#include <stdbool.h>
#include <string.h>

/*
 * Copies by the widest vectors, in order: for lines that another CPU has stored or reads next.
 * There memcpy, which uses the processor's string instructions for large copies, can be half as
 * fast. dst and src do not overlap, here and below.
 */
void shc_copy_lines(void *dst, const void *src, size_t bytes);

/* Up to this length memcpy uses vectors on all processors. */
#define SHC_COPY_SHORT_BYTES 2048

/* Above it glibc uses the processor's string instructions. Some processors then move 2 GB/s instead
 * of 60 if the destination is a few bytes after the source, modulo the page (Zen 3: 1 to 31).
 * Staging memory begins with a page, and malloc places large blocks 16 bytes after the beginning of
 * one. */
SHC_INLINE bool shc_copy_may_crawl(const void *dst, const void *src)
{
    const size_t ahead = ((uintptr_t)dst - (uintptr_t)src) % SHC_PAGE_BYTES;
    return ahead > 0 && ahead < SHC_CPU_LINE_BYTES;
}

/* By memcpy, unless it may be slow at this alignment. */
SHC_INLINE void shc_copy(void *dst, const void *src, size_t bytes)
{
    if (SHC_UNLIKELY(bytes > SHC_COPY_SHORT_BYTES && shc_copy_may_crawl(dst, src)))
        shc_copy_lines(dst, src, bytes);
    else if (bytes > 0) /* an empty tensor has no address */
        memcpy(dst, src, bytes);
}

/*
 * The same with streaming stores, which bypass the caches, if the CPU has them: for lines that
 * another CPU has in its cache and reads next. An ordinary store would first fetch each of them
 * from there. Ends with its own fence, so that a later release store publishes it like any other
 * copy.
 */
void shc_copy_stream(void *dst, const void *src, size_t bytes);

/*
 * Hands a staging cell over in one pass. Block by block, the peer's data in `cell` goes to `out`,
 * and `next` goes into the lines just read, while this CPU owns them. The three do not overlap.
 */
void shc_copy_exchange(void *out, void *cell, const void *next, size_t bytes);

/* The same, with streaming stores to `out`: an ordinary store would first fetch the line from
 * memory. For an output that the caches do not hold. Ends with its own fence. */
void shc_copy_exchange_past(void *out, void *cell, const void *next, size_t bytes);
