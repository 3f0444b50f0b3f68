/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/kernel/buf.h"

#include "shm/base/num.h"
#include "shm/kernel/copy.h"

#include <string.h>

/*
 * A tensor with the dimensions that matter, the innermost first: none of size 1, and neighbours
 * merged where the outer one continues the inner one. There is always one: a scalar is a row of
 * one element.
 */
struct view {
    char *base;
    int ndim;
    size_t sizes[SHC_BUF_MAX_DIMS];
    ptrdiff_t strides[SHC_BUF_MAX_DIMS]; /* in bytes */
};

/* A walk over the vector, row by row; a row is the innermost dimension of a view. */
struct walk {
    const struct shc_buf *buf;
    uint32_t next; /* the tensor after the one in `view` */
    bool in_view;  /* false: `next` comes first */
    struct view view;
    char *row;                      /* where the current row begins */
    size_t index[SHC_BUF_MAX_DIMS]; /* the next element to take */
};

/* A piece of a row: `count` elements, `step` bytes apart. */
struct piece {
    char *base;
    ptrdiff_t step;
    size_t count;
};

/* ---- measuring ---- */

/* The elements of a tensor that check_tensor has passed. */
static size_t elements_of(const struct shc_tensor *tensor)
{
    size_t count = 1;
    for (int d = 0; d < tensor->ndim; d++) {
        if (tensor->sizes[d] == 0)
            return 0;
        count *= (size_t)tensor->sizes[d]; /* wraps only on the way to a 0 */
    }
    return count;
}

/* The tensor is not empty. */
static void view_of(struct view *view, const struct shc_tensor *tensor, uint32_t elem_bytes)
{
    const ptrdiff_t elem = (ptrdiff_t)elem_bytes;
    ptrdiff_t dense = elem; /* what a contiguous tensor has for a stride here */
    view->base = tensor->data;
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

/* Adds |stride| * (size - 1) elements to how far the tensor reaches from its data. */
static bool reach_overflows(uint64_t *reach, int64_t size, int64_t stride, uint32_t elem_bytes)
{
    const uint64_t step = stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
    uint64_t span;
    return shc_mul_overflows(step, (uint64_t)size - 1, &span) ||
           shc_mul_overflows(span, elem_bytes, &span) ||
           __builtin_add_overflow(*reach, span, reach) || *reach > PTRDIFF_MAX;
}

/* The bytes of tensor number `index` of a list. */
static enum shc_status check_tensor(const struct shc_tensor *tensor, uint32_t index,
                                    uint32_t elem_bytes, bool writable, uint64_t *bytes)
{
    if (tensor->ndim < 0 || tensor->ndim > SHC_BUF_MAX_DIMS)
        return shc_fail(SHC_ERR_INVALID, "tensor %u has %d dimensions; 0 to %d are possible", index,
                        (int)tensor->ndim, SHC_BUF_MAX_DIMS);
    if (tensor->ndim > 0 && !tensor->sizes)
        return shc_fail(SHC_ERR_INVALID, "tensor %u has no sizes", index);
    bool empty = false;
    for (int d = 0; d < tensor->ndim; d++) {
        if (tensor->sizes[d] < 0)
            return shc_fail(SHC_ERR_INVALID, "tensor %u has size %lld in dimension %d", index,
                            (long long)tensor->sizes[d], d);
        empty = empty || tensor->sizes[d] == 0;
    }
    *bytes = 0;
    if (empty)
        return SHC_OK;
    if (!tensor->data)
        return shc_fail(SHC_ERR_INVALID, "tensor %u has elements but no data", index);
    uint64_t total = elem_bytes, reach = 0;
    for (int d = 0; d < tensor->ndim; d++) {
        const int64_t size = tensor->sizes[d];
        if (shc_mul_overflows(total, (uint64_t)size, &total) || total > PTRDIFF_MAX)
            return shc_fail(SHC_ERR_INVALID, "tensor %u is larger than memory", index);
        if (!tensor->strides || size == 1)
            continue;
        if (reach_overflows(&reach, size, tensor->strides[d], elem_bytes))
            return shc_fail(SHC_ERR_INVALID, "tensor %u reaches out of memory", index);
        if (writable && tensor->strides[d] == 0)
            return shc_fail(SHC_ERR_INVALID,
                            "tensor %u is expanded in dimension %d: it overlaps itself and cannot "
                            "be written",
                            index, d);
    }
    *bytes = total;
    return SHC_OK;
}

size_t shc_buf_tensor_bytes(const struct shc_buf *buf, uint32_t index)
{
    size_t bytes = buf->elem_bytes;
    const struct shc_tensor *tensor = &buf->list[index];
    for (int d = 0; d < tensor->ndim; d++)
        bytes *= (size_t)tensor->sizes[d];
    return bytes;
}

/* Any tensor; dense: its elements follow one another in memory. Apart, because a view is large. */
static SHC_NOINLINE enum shc_status measure(const struct shc_tensor *tensor, uint32_t index,
                                            uint32_t elem_bytes, bool writable, uint64_t *bytes,
                                            bool *dense)
{
    struct view view;
    *dense = true;
    SHC_TRY(check_tensor(tensor, index, elem_bytes, writable, bytes));
    if (*bytes == 0)
        return SHC_OK;
    view_of(&view, tensor, elem_bytes);
    *dense = view.ndim == 1 && view.strides[0] == (ptrdiff_t)elem_bytes;
    return SHC_OK;
}

/* Any list. */
static SHC_NOINLINE enum shc_status init_list(struct shc_buf *buf,
                                              const struct shc_tensors *tensors,
                                              uint32_t elem_bytes, bool writable)
{
    if (elem_bytes == 0)
        return shc_fail(SHC_ERR_INVALID, "elements have no bytes");
    if (tensors->count > 0 && !tensors->list)
        return shc_fail(SHC_ERR_INVALID, "%u tensors, but no list of them", tensors->count);
    uint64_t total = 0;
    char *flat = NULL;
    bool gap = false;
    for (uint32_t i = 0; i < tensors->count; i++) {
        const struct shc_tensor *tensor = &tensors->list[i];
        uint64_t bytes = 0;
        bool dense = true;
        if (SHC_UNLIKELY(!shc_buf_is_plain(tensor, elem_bytes, &bytes)))
            SHC_TRY(measure(tensor, i, elem_bytes, writable, &bytes, &dense));
        if (bytes == 0)
            continue;
        gap = gap || !dense || (flat && (char *)tensor->data != flat + total);
        flat = flat ? flat : tensor->data;
        if (__builtin_add_overflow(total, bytes, &total) || total > PTRDIFF_MAX)
            return shc_fail(SHC_ERR_INVALID, "the tensors are larger than memory");
    }
    *buf = (struct shc_buf){
        .flat = gap ? NULL : flat,
        .list = tensors->count > 0 ? tensors->list : NULL,
        .list_count = tensors->count,
        .elem_bytes = elem_bytes,
        .bytes = total,
    };
    return SHC_OK;
}

enum shc_status shc_buf_init(struct shc_buf *buf, const struct shc_tensors *tensors,
                             uint32_t elem_bytes, bool writable)
{
    const struct shc_tensor *tensor = tensors->list;
    uint64_t bytes;
    if (SHC_UNLIKELY(tensors->count != 1 || !tensor || elem_bytes == 0 ||
                     !shc_buf_is_plain(tensor, elem_bytes, &bytes)))
        return init_list(buf, tensors, elem_bytes, writable);
    buf->flat = tensor->data;
    buf->list = tensor;
    buf->list_count = 1;
    buf->elem_bytes = elem_bytes;
    buf->bytes = bytes;
    return SHC_OK;
}

bool shc_buf_repeat_list(struct shc_buf *buf, const struct shc_tensor *list)
{
    uint64_t total = 0, bytes;
    bool gap = false;
    for (uint32_t i = 0; i < buf->list_count; i++) {
        if (!shc_buf_is_plain(&list[i], buf->elem_bytes, &bytes))
            return false;
        gap = gap || (char *)list[i].data != (char *)list[0].data + total;
        if (__builtin_add_overflow(total, bytes, &total))
            return false;
    }
    if (total != buf->bytes)
        return false;
    buf->flat = gap ? NULL : list[0].data;
    buf->list = list;
    return true;
}

struct shc_buf shc_buf_of(void *data, size_t bytes)
{
    return (struct shc_buf){.flat = data, .elem_bytes = 1, .bytes = bytes};
}

/* ---- walking ---- */

/* Opens the tensor that holds element `element`, counted from the beginning of tensor `next`. */
static void walk_to(struct walk *walk, size_t element)
{
    const struct shc_tensor *tensor = &walk->buf->list[walk->next++];
    for (size_t count = elements_of(tensor); element >= count; count = elements_of(tensor)) {
        element -= count;
        tensor = &walk->buf->list[walk->next++];
    }
    const struct view *view = &walk->view;
    view_of(&walk->view, tensor, walk->buf->elem_bytes);
    walk->in_view = true;
    walk->row = view->base;
    for (int d = 0; d < view->ndim; d++) {
        walk->index[d] = element % view->sizes[d];
        element /= view->sizes[d];
        if (d > 0)
            walk->row += (ptrdiff_t)walk->index[d] * view->strides[d];
    }
}

/* The vector has more than `element` elements. */
static void walk_from(struct walk *walk, const struct shc_buf *buf, size_t element)
{
    walk->buf = buf;
    walk->next = 0;
    walk_to(walk, element);
}

/* Goes to the next row, like an odometer. */
static void walk_turn(struct walk *walk)
{
    const struct view *view = &walk->view;
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

/* Takes at most `most` elements of the current row. There are some left. */
static struct piece walk_take(struct walk *walk, size_t most)
{
    if (!walk->in_view)
        walk_to(walk, 0);
    const struct view *view = &walk->view;
    const struct piece piece = {
        .base = walk->row + (ptrdiff_t)walk->index[0] * view->strides[0],
        .step = view->strides[0],
        .count = shc_min_size(most, view->sizes[0] - walk->index[0]),
    };
    walk->index[0] += piece.count;
    if (walk->index[0] == view->sizes[0])
        walk_turn(walk);
    return piece;
}

/* ---- moving ---- */

SHC_INLINE void move_elements(char *dst, ptrdiff_t dst_step, const char *src, ptrdiff_t src_step,
                              size_t count, const size_t bytes)
{
    for (size_t i = 0; i < count; i++)
        memcpy(dst + (ptrdiff_t)i * dst_step, src + (ptrdiff_t)i * src_step, bytes);
}

static void move(char *dst, ptrdiff_t dst_step, const char *src, ptrdiff_t src_step, size_t count,
                 size_t bytes)
{
    if (dst_step == src_step && dst_step == (ptrdiff_t)bytes) {
        shc_copy(dst, src, count * bytes);
        return;
    }
    switch (bytes) {
    case 1:
        move_elements(dst, dst_step, src, src_step, count, 1);
        break;
    case 2:
        move_elements(dst, dst_step, src, src_step, count, 2);
        break;
    case 4:
        move_elements(dst, dst_step, src, src_step, count, 4);
        break;
    case 8:
        move_elements(dst, dst_step, src, src_step, count, 8);
        break;
    case 16:
        move_elements(dst, dst_step, src, src_step, count, 16);
        break;
    default:
        move_elements(dst, dst_step, src, src_step, count, bytes);
    }
}

void shc_buf_read_pieces(const struct shc_buf *buf, size_t offset, void *out, size_t bytes)
{
    if (bytes == 0)
        return;
    const size_t elem = buf->elem_bytes;
    struct walk walk;
    walk_from(&walk, buf, offset / elem);
    for (size_t done = 0; done < bytes;) {
        const struct piece piece = walk_take(&walk, (bytes - done) / elem);
        move((char *)out + done, (ptrdiff_t)elem, piece.base, piece.step, piece.count, elem);
        done += piece.count * elem;
    }
}

void shc_buf_stream(const struct shc_buf *buf, size_t offset, void *out, size_t bytes)
{
    if (buf->flat)
        shc_copy_stream(out, buf->flat + offset, bytes);
    else
        shc_buf_read(buf, offset, out, bytes);
}

void shc_buf_write_pieces(const struct shc_buf *buf, size_t offset, const void *in, size_t bytes)
{
    if (bytes == 0)
        return;
    const size_t elem = buf->elem_bytes;
    struct walk walk;
    walk_from(&walk, buf, offset / elem);
    for (size_t done = 0; done < bytes;) {
        const struct piece piece = walk_take(&walk, (bytes - done) / elem);
        move(piece.base, piece.step, (const char *)in + done, (ptrdiff_t)elem, piece.count, elem);
        done += piece.count * elem;
    }
}

void shc_buf_read_lines(const struct shc_buf *buf, size_t offset, void *out, size_t bytes)
{
    if (buf->flat)
        shc_copy_lines(out, buf->flat + offset, bytes);
    else
        shc_buf_read(buf, offset, out, bytes);
}

void shc_buf_write_lines(const struct shc_buf *buf, size_t offset, const void *in, size_t bytes)
{
    if (buf->flat)
        shc_copy_lines(buf->flat + offset, in, bytes);
    else
        shc_buf_write(buf, offset, in, bytes);
}

void *shc_buf_direct_piece(const struct shc_buf *buf, size_t offset, size_t bytes)
{
    if (bytes == 0)
        return NULL;
    const size_t elem = buf->elem_bytes;
    struct walk walk;
    walk_from(&walk, buf, offset / elem);
    struct piece piece = walk_take(&walk, bytes / elem);
    char *const first = piece.base;
    for (size_t done = 0;;) {
        const bool dense = piece.step == (ptrdiff_t)elem || piece.count == 1;
        if (!dense || piece.base != first + done)
            return NULL;
        done += piece.count * elem;
        if (done == bytes)
            return first;
        piece = walk_take(&walk, (bytes - done) / elem);
    }
}

const void *shc_buf_peek(const struct shc_buf *buf, size_t offset, size_t bytes, void *scratch)
{
    const void *direct = shc_buf_direct(buf, offset, bytes);
    if (direct)
        return direct;
    shc_buf_read(buf, offset, scratch, bytes);
    return scratch;
}
