/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * A strided tensor as few dimensions, and a walk over a list of tensors row by row: how buf.c and
 * alias.c look at memory that is not one contiguous piece. No state.
 */

#include "shm/base/num.h"
#include "shm/kernel/buf.h"

/*
 * A tensor with the dimensions that matter, the innermost first: none of size 1, and neighbours
 * merged if the outer one continues the inner one. There is always one: a scalar is a row of one
 * element.
 */
struct shc_view {
    char *base;
    int ndim;
    size_t sizes[SHC_BUF_MAX_DIMS];
    ptrdiff_t strides[SHC_BUF_MAX_DIMS]; /* in bytes */
};

/* A walk over the vector, row by row; a row is the innermost dimension of a view. */
struct shc_walk {
    const struct shc_buf *buf;
    uint32_t next; /* the tensor after the one in `view` */
    bool in_view;  /* false: `next` comes first */
    struct shc_view view;
    char *row;                      /* where the current row begins */
    size_t index[SHC_BUF_MAX_DIMS]; /* the next element to take */
};

/* A piece of a row: `count` elements, `step` bytes apart. */
struct shc_piece {
    char *base;
    ptrdiff_t step;
    size_t count;
};

/* The elements of a tensor that shc_buf_init() has accepted. */
SHC_INLINE size_t shc_tensor_elements(const struct shc_tensor *tensor)
{
    size_t count = 1;
    for (int d = 0; d < tensor->ndim; d++) {
        if (tensor->sizes[d] == 0)
            return 0;
        count *= (size_t)tensor->sizes[d]; /* wraps only on the way to a 0 */
    }
    return count;
}

/* pre: the tensor is not empty. */
SHC_INLINE void shc_view_of(struct shc_view *view, const struct shc_tensor *tensor,
                            uint32_t elem_bytes)
{
    const ptrdiff_t elem = (ptrdiff_t)elem_bytes;
    ptrdiff_t dense = elem; /* the stride of a contiguous tensor */
    view->base = (char *)tensor->data;
    view->ndim = 0;
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        const size_t size = (size_t)tensor->sizes[d];
        if (size == 1)
            continue;
        const ptrdiff_t stride = tensor->strides ? (ptrdiff_t)tensor->strides[d] * elem : dense;
        const int inner = view->ndim - 1;
        dense *= (ptrdiff_t)size;
        if (inner >= 0 && stride == view->strides[inner] * (ptrdiff_t)view->sizes[inner]) {
            view->sizes[inner] *= size;
            continue;
        }
        view->sizes[view->ndim] = size;
        view->strides[view->ndim] = stride;
        view->ndim++;
    }
    if (view->ndim == 0) {
        view->sizes[0] = 1;
        view->strides[0] = elem;
        view->ndim = 1;
    }
}

/* Opens the tensor that contains element `element`, counted from the beginning of tensor `next`. */
SHC_INLINE void shc_walk_to(struct shc_walk *walk, size_t element)
{
    const struct shc_tensor *tensor = &walk->buf->list[walk->next++];
    for (size_t count = shc_tensor_elements(tensor); element >= count;
         count = shc_tensor_elements(tensor)) {
        element -= count;
        tensor = &walk->buf->list[walk->next++];
    }
    const struct shc_view *view = &walk->view;
    shc_view_of(&walk->view, tensor, walk->buf->elem_bytes);
    walk->in_view = true;
    walk->row = view->base;
    for (int d = 0; d < view->ndim; d++) {
        walk->index[d] = element % view->sizes[d];
        element /= view->sizes[d];
        if (d > 0)
            walk->row += (ptrdiff_t)walk->index[d] * view->strides[d];
    }
}

/* pre: the vector has more than `element` elements. */
SHC_INLINE void shc_walk_from(struct shc_walk *walk, const struct shc_buf *buf, size_t element)
{
    walk->buf = buf;
    walk->next = 0;
    shc_walk_to(walk, element);
}

/* Goes to the next row, like an odometer. */
SHC_INLINE void shc_walk_turn(struct shc_walk *walk)
{
    const struct shc_view *view = &walk->view;
    walk->index[0] = 0;
    for (int d = 1; d < view->ndim; d++) {
        walk->row += view->strides[d];
        if (++walk->index[d] < view->sizes[d])
            return;
        walk->row -= (ptrdiff_t)view->sizes[d] * view->strides[d];
        walk->index[d] = 0;
    }
    walk->in_view = false;
}

/* Takes at most `most` elements of the current row. pre: there are some left. */
SHC_INLINE struct shc_piece shc_walk_take(struct shc_walk *walk, size_t most)
{
    if (!walk->in_view)
        shc_walk_to(walk, 0);
    const struct shc_view *view = &walk->view;
    const struct shc_piece piece = {
        .base = walk->row + (ptrdiff_t)walk->index[0] * view->strides[0],
        .step = view->strides[0],
        .count = shc_min_size(most, view->sizes[0] - walk->index[0]),
    };
    walk->index[0] += piece.count;
    if (walk->index[0] == view->sizes[0])
        shc_walk_turn(walk);
    return piece;
}
