/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reductions of a narrow float whose conversion costs more than the operation: fp8, and fp16 where
 * the CPU has no instruction for it. A block of each source is spread into floats, combined by a
 * float kernel, and put together again. One loop per direction instead of several per operation
 * keeps this small. Included once per format with
 *   NAME(x)  x with the format's prefix
 *   FORMAT   its struct shc_narrow
 *   LANES    elements in a 32-bit word
 * All are undefined again at the end.
 */

#define WORD_BYTES   sizeof(uint32_t)
#define BLOCK_FLOATS (SHC_KERNEL_BLOCK_BYTES / WORD_BYTES * LANES)
#define LANE_BITS    (32 / LANES)
#define LANE_MASK    (2 * (FORMAT).sign - 1)

typedef uint32_t NAME(mem) __attribute__((aligned(1), may_alias));

/* The operation on floats. */
struct NAME(op) {
    shc_reduce_fn combine; /* two sources in place */
    bool scaled;           /* each source by its factor */
    bool averaged;
};

/* Lane k of word i becomes float k * words + i: lanes need not be neighbours, so nothing is ever
 * shuffled. */
static void NAME(spread)(float *v, const NAME(mem) * x, size_t words)
{
    SHC_NO_CARRY
    for (size_t i = 0; i < words; i++)
        for (size_t k = 0; k < LANES; k++)
            v[k * words + i] = shc_narrow_up((x[i] >> (LANE_BITS * k)) & LANE_MASK, FORMAT);
}

static void NAME(gather)(NAME(mem) * d, const float *v, size_t words)
{
    SHC_NO_CARRY
    for (size_t i = 0; i < words; i++) {
        uint32_t word = 0;
        for (size_t k = 0; k < LANES; k++)
            word |= shc_narrow_down(v[k * words + i], FORMAT) << (LANE_BITS * k);
        d[i] = word;
    }
}

/* Source s of a block. A block is whole words, or less than one. */
static void NAME(take)(float *v, const struct shc_reduce_args *args, int s, size_t offset,
                       size_t bytes, bool scaled)
{
    const size_t words = shc_div_ceil(bytes, WORD_BYTES);
    const void *x = (const char *)args->src[s] + offset;
    uint32_t word = 0;
    if (bytes < WORD_BYTES)
        x = memcpy(&word, x, bytes);
    NAME(spread)(v, x, words);
    if (!scaled)
        return;
    for (size_t i = 0; i < words * LANES; i++)
        v[i] = shc_f32_scale(v[i], args->factors[s]);
}

static void NAME(give)(const float *v, void *dst, size_t bytes)
{
    if (bytes >= WORD_BYTES) {
        NAME(gather)(dst, v, bytes / WORD_BYTES);
        return;
    }
    uint32_t word;
    NAME(gather)(&word, v, 1);
    memcpy(dst, &word, bytes);
}

static void NAME(block)(const struct shc_reduce_args *args, size_t offset, size_t bytes,
                        const struct NAME(op) * op)
{
    float acc[BLOCK_FLOATS] __attribute__((aligned(64)));
    float next[BLOCK_FLOATS] __attribute__((aligned(64)));
    const struct shc_reduce_args step = {
        .src = (const void *const[]){acc, next},
        .dst = (void *const[]){acc},
        .src_count = 2,
        .dst_count = 1,
        .count = shc_div_ceil(bytes, WORD_BYTES) * LANES,
    };
    NAME(take)(acc, args, 0, offset, bytes, op->scaled);
    for (int s = 1; s < args->src_count; s++) {
        NAME(take)(next, args, s, offset, bytes, op->scaled);
        op->combine(&step);
    }
    for (size_t i = 0; op->averaged && i < step.count; i++)
        acc[i] = shc_f32_divide(acc[i], args->src_count);
    char *dst = (char *)args->dst[0] + offset;
    NAME(give)(acc, dst, bytes);
    for (int k = 1; k < args->dst_count; k++)
        memcpy((char *)args->dst[k] + offset, dst, bytes);
}

static void NAME(run)(const struct shc_reduce_args *args, struct NAME(op) op)
{
    const size_t bytes = args->count * WORD_BYTES / LANES, whole = bytes - bytes % WORD_BYTES;
    const shc_fpenv mode = shc_fpenv_enter();
    for (size_t offset = 0; offset < whole; offset += SHC_KERNEL_BLOCK_BYTES)
        NAME(block)(args, offset, shc_min_size(whole - offset, SHC_KERNEL_BLOCK_BYTES), &op);
    if (bytes > whole)
        NAME(block)(args, whole, bytes - whole, &op);
    shc_fpenv_leave(mode);
}

#undef NAME
#undef FORMAT
#undef LANES
#undef WORD_BYTES
#undef BLOCK_FLOATS
#undef LANE_BITS
#undef LANE_MASK
