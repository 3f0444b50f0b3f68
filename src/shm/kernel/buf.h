/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * User memory as one logical vector of bytes: a list of tensors with sizes and strides, element by
 * element in row-major order. Collectives address it by byte offset and never see a stride.
 * A buf only refers to the tensors it was made from. Any thread; no state.
 */

#include "shm/base/status.h"
#include "shm/kernel/copy.h"
#include "shm/shmcoll.h"

#include <string.h>

struct shc_buf {
    char *flat;                    /* the memory itself when all of it is one contiguous piece */
    const struct shc_tensor *list; /* the tensors; NULL when there are none */
    uint32_t list_count;
    uint32_t elem_bytes;
    size_t bytes; /* of the whole vector */
};

/*
 * Checks and measures the list. SHC_ERR_INVALID: negative size, ndim out of 0..SHC_BUF_MAX_DIMS, a
 * size that overflows or more than SHC_BUF_MAX_BYTES, no data for a non-empty tensor; with `writable`, a tensor
 * that overlaps itself (expanded, or windows that share elements). Two tensors of the list may
 * still overlap: shc_sides_check() checks that. Tensors that follow one another in memory without a
 * gap count as one contiguous piece.
 */
#define SHC_BUF_MAX_DIMS 64
/* No memory has as many. An expanded tensor may say that it has, and what all ranks of a host say must fit 64 bits. */
#define SHC_BUF_MAX_BYTES ((uint64_t)1 << 55)
SHC_NODISCARD enum shc_status shc_buf_init(struct shc_buf *buf, const struct shc_tensors *tensors,
                                           uint32_t elem_bytes, bool writable);

/* A contiguous tensor that is not empty; nearly all tensors are. False: look closer. */
SHC_INLINE bool shc_buf_is_plain(const struct shc_tensor *tensor, uint32_t elem_bytes,
                                 uint64_t *bytes)
{
    const int64_t *const sizes = tensor->sizes, *const strides = tensor->strides;
    int64_t elements = 1, total;
    if (!tensor->data || (uint32_t)tensor->ndim > SHC_BUF_MAX_DIMS || (!sizes && tensor->ndim > 0))
        return false;
    for (int d = tensor->ndim; d-- > 0;)
        if (sizes[d] <= 0 || (strides && sizes[d] != 1 && strides[d] != elements) ||
            __builtin_mul_overflow(elements, sizes[d], &elements))
            return false;
    if (__builtin_mul_overflow(elements, (int64_t)elem_bytes, &total))
        return false;
    *bytes = (uint64_t)total;
    return true;
}

/* shc_buf_repeat() for several tensors, as many as before. */
bool shc_buf_repeat_list(struct shc_buf *buf, const struct shc_tensor *list);

/* For new tensors that are as many as those of the buf, contiguous, and of as many bytes in all; a
 * few instructions. False: they are not, and nothing is changed. A buf that was never initialised
 * is not in use, and stays all zero. */
SHC_INLINE bool shc_buf_repeat(struct shc_buf *buf, const struct shc_tensors *tensors)
{
    const struct shc_tensor *list = tensors->list;
    uint64_t bytes;
    if (buf->elem_bytes == 0)
        return true;
    if (SHC_UNLIKELY(tensors->count != buf->list_count || !list))
        return false;
    if (SHC_UNLIKELY(tensors->count != 1))
        return shc_buf_repeat_list(buf, list);
    if (!shc_buf_is_plain(list, buf->elem_bytes, &bytes) || bytes != buf->bytes)
        return false;
    buf->flat = (char *)list->data;
    buf->list = list;
    return true;
}

/* Bytes of tensor number `index` of the buf's list. */
size_t shc_buf_tensor_bytes(const struct shc_buf *buf, uint32_t index);

/* Where it begins in the vector, in bytes. */
size_t shc_buf_offset_of(const struct shc_buf *buf, uint32_t index);

/* A buf over plain memory. */
struct shc_buf shc_buf_of(void *data, size_t bytes);

/* For the functions below: memory that is not one contiguous piece. */
void shc_buf_read_pieces(const struct shc_buf *buf, size_t offset, void *out, size_t bytes);
void shc_buf_write_pieces(const struct shc_buf *buf, size_t offset, const void *in, size_t bytes);
void *shc_buf_direct_piece(const struct shc_buf *buf, size_t offset, size_t bytes);

/* Copies bytes [offset, offset + bytes) of the vector out of, or into, the tensors.
 * Offsets and sizes are whole elements. */
SHC_INLINE void shc_buf_read(const struct shc_buf *buf, size_t offset, void *out, size_t bytes)
{
    if (SHC_UNLIKELY(!buf->flat))
        shc_buf_read_pieces(buf, offset, out, bytes);
    else
        shc_copy(out, buf->flat + offset, bytes);
}

SHC_INLINE void shc_buf_write(const struct shc_buf *buf, size_t offset, const void *in,
                              size_t bytes)
{
    if (SHC_UNLIKELY(!buf->flat))
        shc_buf_write_pieces(buf, offset, in, bytes);
    else
        shc_copy(buf->flat + offset, in, bytes);
}

/* shc_buf_read() with streaming stores (shc_copy_stream) if the tensors are one contiguous piece. */
void shc_buf_stream(const struct shc_buf *buf, size_t offset, void *out, size_t bytes);

/* shc_buf_read() and shc_buf_write() by shc_copy_lines if the tensors are one contiguous piece. */
void shc_buf_read_lines(const struct shc_buf *buf, size_t offset, void *out, size_t bytes);
void shc_buf_write_lines(const struct shc_buf *buf, size_t offset, const void *in, size_t bytes);

/* The piece as contiguous memory: the tensors' own memory if it is contiguous, otherwise `scratch`
 * filled by shc_buf_read. */
const void *shc_buf_peek(const struct shc_buf *buf, size_t offset, size_t bytes, void *scratch);

/* Where the piece can be written directly, or NULL: then write elsewhere, and call shc_buf_write. */
SHC_INLINE void *shc_buf_direct(const struct shc_buf *buf, size_t offset, size_t bytes)
{
    return SHC_LIKELY(buf->flat) ? buf->flat + offset : shc_buf_direct_piece(buf, offset, bytes);
}
