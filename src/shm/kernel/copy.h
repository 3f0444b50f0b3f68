/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Copies between user memory and staging cells. Any thread, no state.
 */

#include "shm/base/attrs.h"

/* dst and src do not overlap. */
void shc_copy(void *dst, const void *src, size_t bytes);

/*
 * The same by the widest vectors, in order: for lines that another CPU has stored or reads next. There
 * memcpy, which leaves large copies to the processor's string instructions, is half as fast.
 */
void shc_copy_lines(void *dst, const void *src, size_t bytes);

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
