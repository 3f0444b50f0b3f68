/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Two strided views share a byte if and only if
 *
 *     sum of m[k] * step[k]  is in  [low, high]
 *
 * has a solution in whole numbers m[k] within bounds. The steps are the strides of both views.
 * Equal steps are one term, whose bounds add up. [low, high] is the distance of the first elements,
 * plus or minus an element. The steps are tried from the largest to the smallest. Each leaves a
 * remainder for the smaller ones. It must be within what these can add up to, and must contain a
 * multiple of their greatest common divisor. For views that come from slicing, that leaves one or
 * two candidates a level.
 */
#include "shm/kernel/alias.h"

#include <stdlib.h>

/* Addresses below this keep all sums below far from 2^63. */
#define MEMORY_END ((uintptr_t)1 << 60)
/* Candidates that are tried before two views count as sharing memory. */
#define MOST_TRIES 100000
/* Tensors that are sorted without allocating memory. */
#define FEW 64

/* ---- two views ---- */

/* One unknown: `step` times a whole number from `least` to `most`. */
struct term {
    int64_t step, least, most;
};

struct equation {
    int count, tries;
    struct term terms[2 * SHC_BUF_MAX_DIMS];
    /* What the terms from this one on can add up to, and the common divisor of their steps. */
    int64_t least[2 * SHC_BUF_MAX_DIMS + 1], most[2 * SHC_BUF_MAX_DIMS + 1];
    int64_t divisor[2 * SHC_BUF_MAX_DIMS + 1];
};

static int64_t divide_down(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && a < 0);
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return -divide_down(-a, b);
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Adds a term; the steps stay in descending order. */
static void add_term(struct equation *e, struct term term, bool merge)
{
    int at = e->count;
    for (int k = 0; merge && k < e->count; k++)
        if (e->terms[k].step == term.step) {
            e->terms[k].least += term.least;
            e->terms[k].most += term.most;
            return;
        }
    for (; at > 0 && e->terms[at - 1].step < term.step; at--)
        e->terms[at] = e->terms[at - 1];
    e->terms[at] = term;
    e->count++;
}

static void sum_up(struct equation *e)
{
    e->tries = MOST_TRIES;
    e->least[e->count] = e->most[e->count] = e->divisor[e->count] = 0;
    for (int k = e->count; k-- > 0;) {
        const struct term *term = &e->terms[k];
        e->least[k] = e->least[k + 1] + term->least * term->step;
        e->most[k] = e->most[k + 1] + term->most * term->step;
        e->divisor[k] = common_divisor(term->step, e->divisor[k + 1]);
    }
}

/* Can the terms from number k on add up to something from `low` to `high`? */
static bool is_solvable(struct equation *e, int k, int64_t low, int64_t high)
{
    if (high < e->least[k] || low > e->most[k])
        return false;
    if (k == e->count)
        return true;
    if (divide_up(low, e->divisor[k]) > divide_down(high, e->divisor[k]))
        return false;
    const struct term *term = &e->terms[k];
    int64_t m = divide_up(low - e->most[k + 1], term->step);
    int64_t last = divide_down(high - e->least[k + 1], term->step);
    m = m < term->least ? term->least : m;
    last = last > term->most ? term->most : last;
    for (; m <= last; m++)
        if (e->tries-- <= 0 || is_solvable(e, k + 1, low - m * term->step, high - m * term->step))
            return true;
    return false;
}

/* The lowest address of the view, and the address after its last byte. False: not an address of
 * memory. */
static bool range_of(const struct shc_view *view, uint32_t elem_bytes, uintptr_t *low,
                     uintptr_t *end)
{
    uintptr_t above = elem_bytes, below = 0;
    for (int d = 0; d < view->ndim; d++) {
        const ptrdiff_t stride = view->strides[d];
        *(stride < 0 ? &below : &above) +=
            (uintptr_t)(stride < 0 ? -stride : stride) * (view->sizes[d] - 1);
    }
    *low = (uintptr_t)view->base - below;
    *end = (uintptr_t)view->base + above;
    return (uintptr_t)view->base >= below && above < MEMORY_END && *end < MEMORY_END;
}

static void add_view(struct equation *e, const struct shc_view *view, bool minus)
{
    for (int d = 0; d < view->ndim; d++) {
        const int64_t stride = view->strides[d], reach = (int64_t)view->sizes[d] - 1;
        if (stride == 0 || reach == 0)
            continue;
        const int64_t step = stride < 0 ? -stride : stride;
        const bool up = (stride > 0) != minus;
        add_term(e, (struct term){step, up ? 0 : -reach, up ? reach : 0}, true);
    }
}

/* pre: both have a range in memory. */
static SHC_NOINLINE bool views_meet(const struct shc_view *a, const struct shc_view *b,
                                    uint32_t elem_bytes)
{
    struct equation e;
    e.count = 0;
    add_view(&e, a, false);
    add_view(&e, b, true);
    sum_up(&e);
    const int64_t apart = b->base - a->base, give = (int64_t)elem_bytes - 1;
    return is_solvable(&e, 0, apart - give, apart + give);
}

bool shc_view_meets_itself(const struct shc_view *view, uint32_t elem_bytes)
{
    struct equation e;
    uintptr_t low, end;
    const int64_t give = (int64_t)elem_bytes - 1;
    if (view->ndim == 1)
        return view->sizes[0] > 1 && view->strides[0] == 0;
    if (!range_of(view, elem_bytes, &low, &end))
        return true;
    e.count = 0;
    for (int d = 0; d < view->ndim; d++) {
        const int64_t stride = view->strides[d], reach = (int64_t)view->sizes[d] - 1;
        if (stride == 0)
            return true;
        add_term(&e, (struct term){stride < 0 ? -stride : stride, -reach, reach}, false);
    }
    sum_up(&e);
    /* Two elements differ first in term k; the second one is the one further on. */
    for (int k = 0; k < e.count; k++)
        for (int64_t m = 1; m <= e.terms[k].most; m++) {
            const int64_t far = m * e.terms[k].step;
            if (far - give > e.most[k + 1])
                break;
            if (e.tries-- <= 0 || is_solvable(&e, k + 1, -far - give, -far + give))
                return true;
        }
    return false;
}

/* ---- lists ---- */

/* A tensor that is not empty. */
struct range {
    uintptr_t low, end;
    size_t offset; /* offset of its first byte in the vector of its side */
    uint32_t index;
    bool is_output;
};

static bool tensor_range(const struct shc_tensor *tensor, uint32_t elem_bytes, size_t bytes,
                         struct range *range)
{
    uint64_t plain;
    if (shc_buf_is_plain(tensor, elem_bytes, &plain)) {
        range->low = (uintptr_t)tensor->data;
        range->end = range->low + bytes;
        return range->end >= range->low && range->end < MEMORY_END;
    }
    struct shc_view view;
    shc_view_of(&view, tensor, elem_bytes);
    return range_of(&view, elem_bytes, &range->low, &range->end);
}

/* Appends the tensors of a side. *ascending: each begins at or after the end of the one before. */
static enum shc_status collect(const struct shc_buf *buf, bool is_output, struct range *ranges,
                               uint32_t *count, bool *ascending)
{
    const uint32_t first = *count;
    size_t offset = 0;
    *ascending = true;
    for (uint32_t i = 0; i < buf->list_count && buf->bytes > 0; i++) {
        const size_t bytes = shc_buf_tensor_bytes(buf, i);
        if (bytes == 0)
            continue;
        struct range *range = &ranges[*count];
        *range = (struct range){.offset = offset, .index = i, .is_output = is_output};
        if (!tensor_range(&buf->list[i], buf->elem_bytes, bytes, range))
            return shc_fail(SHC_ERR_INVALID, "tensor %u reaches out of memory", i);
        if (*count > first && range[-1].end > range->low)
            *ascending = false;
        offset += bytes;
        (*count)++;
    }
    return SHC_OK;
}

static int compare_ranges(const void *a, const void *b)
{
    const uintptr_t x = ((const struct range *)a)->low, y = ((const struct range *)b)->low;
    return (x > y) - (x < y);
}

/* Are the `bytes` from these offsets on the same elements in the same order? */
static SHC_NOINLINE bool coincide(const struct shc_buf *a, size_t a_offset, const struct shc_buf *b,
                                  size_t b_offset, size_t bytes)
{
    const size_t elem = a->elem_bytes;
    struct shc_walk wa, wb;
    if (bytes > a->bytes - a_offset || b_offset > b->bytes || bytes > b->bytes - b_offset)
        return false;
    shc_walk_from(&wa, a, a_offset / elem);
    shc_walk_from(&wb, b, b_offset / elem);
    struct shc_piece pa = {.count = 0}, pb = {.count = 0};
    for (size_t left = bytes / elem; left > 0;) {
        if (pa.count == 0)
            pa = shc_walk_take(&wa, left);
        if (pb.count == 0)
            pb = shc_walk_take(&wb, left);
        const size_t count = shc_min_size(pa.count, pb.count);
        if (pa.base != pb.base || (count > 1 && pa.step != pb.step))
            return false;
        pa.base += (ptrdiff_t)count * pa.step;
        pb.base += (ptrdiff_t)count * pb.step;
        pa.count -= count;
        pb.count -= count;
        left -= count;
    }
    return true;
}

/* Is this output tensor the input from `from` on, where its block begins? */
static bool is_part_of_input(const struct shc_sides *sides, const struct range *in, size_t in_bytes,
                             const struct range *out, size_t from)
{
    const size_t bytes = shc_buf_tensor_bytes(sides->out, out->index);
    from += out->offset;
    return in->offset < from + bytes && from < in->offset + in_bytes &&
           coincide(sides->out, out->offset, sides->in, from, bytes);
}

/* Any block that this input tensor is part of. */
static bool is_block_of_input(const struct shc_sides *sides, const struct range *in,
                              size_t in_bytes, const struct range *out)
{
    const size_t block = sides->out->bytes, end = in->offset + in_bytes;
    struct shc_view view;
    shc_view_of(&view, &sides->in->list[in->index], sides->in->elem_bytes);
    if (in_bytes > block && shc_view_meets_itself(&view, sides->in->elem_bytes))
        return false;
    for (size_t from = in->offset / block * block; from < end; from += block)
        if (is_part_of_input(sides, in, in_bytes, out, from))
            return true;
    return false;
}

/* Does the operation allow what this input tensor and this output tensor share? */
static bool is_in_place(const struct shc_sides *sides, const struct range *in,
                        const struct range *out)
{
    const size_t bytes = shc_buf_tensor_bytes(sides->in, in->index);
    switch (sides->may) {
    case SHC_IN_PLACE_ALL:
        return coincide(sides->in, in->offset, sides->out, in->offset, bytes);
    case SHC_IN_PLACE_INPUT:
        return coincide(sides->in, in->offset, sides->out, sides->offset + in->offset, bytes);
    case SHC_IN_PLACE_OUTPUT:
        return is_part_of_input(sides, in, bytes, out, sides->offset);
    case SHC_IN_PLACE_KEPT:
        return coincide(sides->out, out->offset, sides->in, sides->offset + out->offset,
                        shc_buf_tensor_bytes(sides->out, out->index));
    case SHC_IN_PLACE_BLOCK:
        return is_block_of_input(sides, in, bytes, out);
    default:
        return in->index == out->index && bytes == shc_buf_tensor_bytes(sides->out, out->index) &&
               coincide(sides->in, in->offset, sides->out, out->offset, bytes);
    }
}

/* Do two tensors whose ranges cross share a byte? */
static bool tensors_meet(const struct shc_sides *sides, const struct range *a,
                         const struct range *b)
{
    const uint32_t elem_bytes = sides->out->elem_bytes;
    struct shc_view va, vb;
    shc_view_of(&va, &(a->is_output ? sides->out : sides->in)->list[a->index], elem_bytes);
    shc_view_of(&vb, &(b->is_output ? sides->out : sides->in)->list[b->index], elem_bytes);
    return views_meet(&va, &vb, elem_bytes);
}

/* Two tensors, not both of the input, whose ranges cross. */
static enum shc_status check_pair(const struct shc_sides *sides, const struct range *a,
                                  const struct range *b)
{
    if (!tensors_meet(sides, a, b))
        return SHC_OK;
    const struct range *out = a->is_output ? a : b, *other = a->is_output ? b : a;
    if (!other->is_output)
        return is_in_place(sides, other, out)
                   ? SHC_OK
                   : shc_fail(SHC_ERR_INVALID,
                              "input tensor %u and output tensor %u share memory, and not as this "
                              "operation allows it; use a copy of one",
                              other->index, out->index);
    return shc_fail(SHC_ERR_INVALID,
                    "output tensors %u and %u overlap: one would be written over the other",
                    out->index < other->index ? out->index : other->index,
                    out->index < other->index ? other->index : out->index);
}

static enum shc_status check_sorted(const struct shc_sides *sides, const struct range *ranges,
                                    uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = i + 1; j < count && ranges[j].low < ranges[i].end; j++)
            if (ranges[i].is_output || ranges[j].is_output)
                SHC_TRY(check_pair(sides, &ranges[i], &ranges[j]));
    return SHC_OK;
}

/* pre: the ranges are the input's and then the output's. */
static bool are_apart(const struct range *ranges, uint32_t in_count, uint32_t count)
{
    uintptr_t low = UINTPTR_MAX, end = 0; /* of the input */
    for (uint32_t i = 0; i < in_count; i++) {
        low = ranges[i].low < low ? ranges[i].low : low;
        end = ranges[i].end > end ? ranges[i].end : end;
    }
    return in_count == count || end <= ranges[in_count].low || ranges[count - 1].end <= low;
}

/* Of two pieces of memory: may they be used as they are? False: look at the tensors. */
static bool is_flat_in_place(const struct shc_sides *sides)
{
    const uintptr_t in = (uintptr_t)sides->in->flat, out = (uintptr_t)sides->out->flat;
    if (!sides->in->flat || !sides->out->flat)
        return false;
    switch (sides->may) {
    case SHC_IN_PLACE_ALL:
        return in == out;
    case SHC_IN_PLACE_INPUT:
        return in == out + sides->offset;
    case SHC_IN_PLACE_OUTPUT:
    case SHC_IN_PLACE_KEPT:
        return out == in + sides->offset;
    case SHC_IN_PLACE_BLOCK:
        return out >= in && out - in < sides->in->bytes && (out - in) % sides->out->bytes == 0;
    default:
        return false;
    }
}

static enum shc_status check_ranges(const struct shc_sides *sides, struct range *ranges)
{
    uint32_t in_count = 0;
    bool ascending;
    SHC_TRY(collect(sides->in, false, ranges, &in_count, &ascending));
    uint32_t count = in_count;
    SHC_TRY(collect(sides->out, true, ranges, &count, &ascending));
    if (ascending && are_apart(ranges, in_count, count))
        return SHC_OK;
    qsort(ranges, count, sizeof *ranges, compare_ranges);
    return check_sorted(sides, ranges, count);
}

enum shc_status shc_sides_check(const struct shc_sides *sides)
{
    struct range few[FEW];
    const size_t count = (size_t)sides->in->list_count + sides->out->list_count;
    if (sides->out->bytes == 0 || is_flat_in_place(sides))
        return SHC_OK;
    if (count <= FEW)
        return check_ranges(sides, few);
    struct range *many = malloc(count * sizeof *many);
    if (!many)
        return shc_fail(SHC_ERR_NOMEM, "no memory to compare %zu tensors", count);
    enum shc_status st = check_ranges(sides, many);
    free(many);
    return st;
}

enum shc_status shc_buf_check_output(const struct shc_buf *out)
{
    const struct shc_buf none = {.flat = NULL};
    const struct shc_sides sides = {.in = &none, .out = out, .may = SHC_IN_PLACE_ALL};
    return shc_sides_check(&sides);
}
