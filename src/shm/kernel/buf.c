/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/kernel/buf.h"

#include "shm/kernel/alias.h"
#include "shm/kernel/copy.h"
#include "shm/kernel/view.h"

#include <string.h>

/* ---- measuring ---- */

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
        if (shc_mul_overflows(total, (uint64_t)size, &total) || total > SHC_BUF_MAX_BYTES)
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
    return shc_tensor_elements(&buf->list[index]) * buf->elem_bytes;
}

size_t shc_buf_offset_of(const struct shc_buf *buf, uint32_t index)
{
    size_t offset = 0;
    for (uint32_t i = 0; i < index; i++)
        offset += shc_buf_tensor_bytes(buf, i);
    return offset;
}

/* Any tensor; dense: its elements follow one another in memory. A function of its own, because a
 * view is large. */
static SHC_NOINLINE enum shc_status measure(const struct shc_tensor *tensor, uint32_t index,
                                            uint32_t elem_bytes, bool writable, uint64_t *bytes,
                                            bool *dense)
{
    struct shc_view view;
    *dense = true;
    SHC_TRY(check_tensor(tensor, index, elem_bytes, writable, bytes));
    if (*bytes == 0)
        return SHC_OK;
    shc_view_of(&view, tensor, elem_bytes);
    if (writable && shc_view_meets_itself(&view, elem_bytes))
        return shc_fail(SHC_ERR_INVALID,
                        "tensor %u overlaps itself (rows of its dimensions share elements) and "
                        "cannot be written",
                        index);
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
        if (__builtin_add_overflow(total, bytes, &total) || total > SHC_BUF_MAX_BYTES)
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
    struct shc_walk walk;
    shc_walk_from(&walk, buf, offset / elem);
    for (size_t done = 0; done < bytes;) {
        const struct shc_piece piece = shc_walk_take(&walk, (bytes - done) / elem);
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
    struct shc_walk walk;
    shc_walk_from(&walk, buf, offset / elem);
    for (size_t done = 0; done < bytes;) {
        const struct shc_piece piece = shc_walk_take(&walk, (bytes - done) / elem);
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
    struct shc_walk walk;
    shc_walk_from(&walk, buf, offset / elem);
    struct shc_piece piece = shc_walk_take(&walk, bytes / elem);
    char *const first = piece.base;
    for (size_t done = 0;;) {
        const bool dense = piece.step == (ptrdiff_t)elem || piece.count == 1;
        if (!dense || piece.base != first + done)
            return NULL;
        done += piece.count * elem;
        if (done == bytes)
            return first;
        piece = shc_walk_take(&walk, (bytes - done) / elem);
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
