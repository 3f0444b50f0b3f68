/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Pure arithmetic of the collectives: chunks, slices, step numbers. No memory, no I/O, no state.
 *
 * A message is cut into chunks of whole elements. A chunk that is reduced is cut into one slice per rank. A
 * slice begins a whole number of lines after the chunk's beginning, and the size of every type that can be
 * reduced divides a line. The last slices of a short chunk may be empty. The cut never changes a result:
 * elements are reduced one by one in rank order.
 */

#include "shm/base/num.h"

struct shc_span {
    size_t offset, bytes; /* in the message */
};

/* The k-th chunk of the message. It has no bytes after the message's end. */
SHC_INLINE struct shc_span shc_plan_chunk(size_t total_bytes, size_t chunk_bytes, uint64_t k)
{
    size_t offset = shc_min_size((size_t)k * chunk_bytes, total_bytes);
    return (struct shc_span){offset, shc_min_size(chunk_bytes, total_bytes - offset)};
}

SHC_INLINE uint64_t shc_plan_chunk_count(size_t total_bytes, size_t chunk_bytes)
{
    return shc_div_ceil(total_bytes, chunk_bytes);
}

/* Rank r's slice of a chunk. */
SHC_INLINE struct shc_span shc_plan_slice(struct shc_span chunk, int world_size, int rank)
{
    size_t each = shc_align_up(shc_div_ceil(chunk.bytes, (size_t)world_size), SHC_LINE_BYTES);
    size_t begin = shc_min_size(each * (size_t)rank, chunk.bytes);
    size_t end = shc_min_size(begin + each, chunk.bytes);
    return (struct shc_span){chunk.offset + begin, end - begin};
}

/* What two spans have in common. It has no bytes if that is nothing. */
SHC_INLINE struct shc_span shc_plan_overlap(struct shc_span a, struct shc_span b)
{
    size_t begin = a.offset > b.offset ? a.offset : b.offset;
    size_t end = shc_min_size(a.offset + a.bytes, b.offset + b.bytes);
    return (struct shc_span){begin, end > begin ? end - begin : 0};
}

/* `chunk_count` chunks go into `depth` places, one place each and one after the other. How many of
 * the bytes wanted fit into the places that no chunk has come round to? */
SHC_INLINE size_t shc_plan_free_bytes(uint64_t chunk_count, uint32_t depth, size_t place_bytes,
                                      size_t wanted)
{
    return chunk_count < depth ? shc_min_size((size_t)(depth - chunk_count) * place_bytes, wanted)
                               : 0;
}

/*
 * Step numbers of a pipeline. A rank first hands chunk k out. One chunk later it works on what the other ranks
 * have handed out: out(0), out(1), work(0), out(2), work(1), ...
 * The numbers are the same on all ranks, and grow in program order (CALL-12). Step 0 is the call line.
 */
SHC_INLINE uint64_t shc_plan_step_out(uint64_t k)
{
    return k == 0 ? 1 : 2 * k;
}

SHC_INLINE uint64_t shc_plan_step_work(uint64_t k)
{
    return 2 * k + 3;
}

/* Step numbers without a pipeline (STAGE-8). Each chunk is worked on before the next one is handed
 * out: out(0), work(0), out(1), ... */
SHC_INLINE uint64_t shc_plan_unpipelined_out(uint64_t k)
{
    return 2 * k + 1;
}

SHC_INLINE uint64_t shc_plan_unpipelined_work(uint64_t k)
{
    return 2 * k + 2;
}

/* The largest number of chunks whose steps fit the progress word. */
#define SHC_PLAN_MAX_CHUNKS ((1ULL << 23) - 4)
