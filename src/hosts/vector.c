/* SPDX-License-Identifier: BSD-3-Clause */
#include "hosts/group.h"

#include <string.h>

#define MAX_DIMS 64

uint64_t shc_vector_elements(const struct shc_tensor *tensor)
{
    uint64_t elements = 1;
    for (int d = 0; d < tensor->ndim; d++)
        elements *= (uint64_t)tensor->sizes[d];
    return elements;
}

static bool is_contiguous(const struct shc_tensor *tensor)
{
    int64_t elements = 1;
    for (int d = tensor->ndim; d-- > 0;) {
        if (tensor->strides && tensor->sizes[d] != 1 && tensor->strides[d] != elements)
            return false;
        elements *= tensor->sizes[d];
    }
    return true;
}

char *shc_vector_at(const struct shc_tensors *tensors, uint32_t elem_bytes, uint64_t first)
{
    if (tensors->count != 1 || !is_contiguous(tensors->list))
        return NULL;
    return (char *)tensors->list->data + first * elem_bytes;
}

/* Element by element, like an odometer. `flat` is only read unless `reads`. */
static void walk(const struct shc_tensor *tensor, uint32_t elem_bytes, struct shc_slice part,
                 char *flat, bool reads)
{
    int64_t index[MAX_DIMS], strides[MAX_DIMS], each = 1, offset = 0;
    uint64_t rest = part.first;
    if (is_contiguous(tensor)) {
        char *at = (char *)tensor->data + part.first * elem_bytes;
        memcpy(reads ? flat : at, reads ? at : flat, part.count * elem_bytes);
        return;
    }
    for (int d = tensor->ndim; d-- > 0;) {
        strides[d] = tensor->strides ? tensor->strides[d] : each;
        each *= tensor->sizes[d];
        index[d] = (int64_t)(rest % (uint64_t)tensor->sizes[d]);
        rest /= (uint64_t)tensor->sizes[d];
        offset += index[d] * strides[d];
    }
    for (uint64_t i = 0; i < part.count; i++, flat += elem_bytes) {
        char *element = (char *)tensor->data + offset * (int64_t)elem_bytes;
        if (reads)
            memcpy(flat, element, elem_bytes);
        else
            memcpy(element, flat, elem_bytes);
        for (int d = tensor->ndim; d-- > 0;) {
            offset += strides[d];
            if (++index[d] < tensor->sizes[d])
                break;
            offset -= index[d] * strides[d];
            index[d] = 0;
        }
    }
}

static void copy(const struct shc_tensors *tensors, uint32_t elem_bytes, struct shc_slice part,
                 char *flat, bool reads)
{
    for (uint32_t i = 0; i < tensors->count && part.count > 0; i++) {
        const uint64_t elements = shc_vector_elements(&tensors->list[i]);
        if (part.first >= elements) {
            part.first -= elements;
            continue;
        }
        const uint64_t room = elements - part.first;
        const uint64_t now = part.count < room ? part.count : room;
        walk(&tensors->list[i], elem_bytes, (struct shc_slice){part.first, now}, flat, reads);
        flat += now * elem_bytes;
        part.first = 0;
        part.count -= now;
    }
}

void shc_vector_read(const struct shc_tensors *tensors, uint32_t elem_bytes, struct shc_slice part,
                     void *to)
{
    copy(tensors, elem_bytes, part, to, true);
}

void shc_vector_write(const struct shc_tensors *tensors, uint32_t elem_bytes, struct shc_slice part,
                      const void *from)
{
    copy(tensors, elem_bytes, part, (char *)(uintptr_t)from, false);
}
