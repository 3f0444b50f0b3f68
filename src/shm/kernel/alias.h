/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Which tensors of one call share memory. Exact for any sizes and strides: interleaved views whose
 * ranges cross but that have no byte in common count as separate. Reads no element. Any thread; no
 * state.
 */

#include "shm/kernel/view.h"

/* Do two elements of the view share a byte? */
bool shc_view_meets_itself(const struct shc_view *view, uint32_t elem_bytes);

/* What an input may have in common with the output. Any other shared byte is an error. */
enum shc_in_place {
    SHC_IN_PLACE_ALL,    /* input element i is output element i */
    SHC_IN_PLACE_INPUT,  /* the input is, element by element, the output from `offset` on */
    SHC_IN_PLACE_OUTPUT, /* the output is the input from `offset` on */
    SHC_IN_PLACE_KEPT,  /* the same; nothing is changed, so other inputs may use that memory, too */
    SHC_IN_PLACE_BLOCK, /* the output is one of the input's blocks, all of its size */
    SHC_IN_PLACE_LIST,  /* tensor i of the input is tensor i of the output */
};

struct shc_sides {
    const struct shc_buf *in, *out; /* of 0 bytes if the rank has none */
    enum shc_in_place may;
    size_t offset; /* bytes of the longer vector */
};

/*
 * SHC_ERR_INVALID: two tensors of the output share a byte, or one of the output and one of the
 * input share one in a way that `may` does not allow. Inputs may share memory with one another.
 * pre: shc_buf_init() has accepted both. O(n) if the tensors follow one another, otherwise a sort,
 * and an exact test for each pair whose ranges cross.
 */
SHC_NODISCARD enum shc_status shc_sides_check(const struct shc_sides *sides);

/* The same for an output without an input. */
SHC_NODISCARD enum shc_status shc_buf_check_output(const struct shc_buf *out);

/* The first look, two comparisons: each side is one piece of memory, or empty, and they do not
 * overlap. */
SHC_INLINE bool shc_bufs_are_apart(const struct shc_buf *in, const struct shc_buf *out)
{
    if (SHC_UNLIKELY((!in->flat && in->bytes > 0) || (!out->flat && out->bytes > 0)))
        return false;
    const uintptr_t a = (uintptr_t)in->flat, b = (uintptr_t)out->flat;
    return a + in->bytes <= b || b + out->bytes <= a;
}
