/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The reduction loops for one element type. Ordinary code, included once per type with
 *   NAME(x)  x with the type's prefix
 *   ACC      what is combined: an element, or a vector of them
 *   MEM      what one load takes from memory: an element, or a word of several narrow ones. Undefined: an ACC
 *   LANES    ACCs per MEM. Undefined: one, and a cast between MEM and ACC is all there is;
 *            else the includer defines NAME(load) and NAME(store).
 *   ELEMS    elements per MEM. Undefined: LANES, an ACC is an element.
 * All are undefined again at the end.
 *
 * A kernel is NAME(run) with three functions, all inlined: `pre` for every source with its factor,
 * `op` for the next source, `post` for the result with the count of sources. A lane is an element:
 * lanes never meet, so the width of a vector or of MEM cannot be seen in the result.
 *
 * Every loop reads index i of all its sources before it writes index i of a destination, and
 * nothing else connects the indices: that is what SHC_NO_CARRY says to the compiler, since a
 * destination may be a source.
 */

#ifndef MEM
#define MEM ACC
#endif

typedef MEM NAME(mem) __attribute__((aligned(1), may_alias));
typedef ACC (*NAME(unary_fn))(ACC x, double number);
typedef ACC (*NAME(binary_fn))(ACC a, ACC b);

#ifndef LANES
#define LANES 1

SHC_INLINE void NAME(load)(ACC *v, MEM word)
{
    v[0] = (ACC)word;
}

SHC_INLINE MEM NAME(store)(const ACC *v)
{
    return (MEM)v[0];
}
#endif

/* Accumulators of a block in memory. The lanes of a word lie a block apart, so that neighbours of a
 * vector are neighbours in memory. If they are vectors themselves, they lie side by side. */
#ifdef ELEMS
#define ACC_AT(i, k) ((i)*LANES + (k))
#define AHEAD_WORDS  (1536 / sizeof(MEM))
#else
#define ELEMS        LANES
#define ACC_AT(i, k) ((k)*BLOCK_WORDS + (i))
#define AHEAD_WORDS  0
#endif

#define ELEM_BYTES  (sizeof(MEM) / ELEMS)
#define LINE_WORDS  (SHC_CPU_LINE_BYTES / sizeof(MEM))
#define BLOCK_WORDS (SHC_KERNEL_BLOCK_BYTES / sizeof(MEM))

struct NAME(acc) {
    ACC v[LANES];
};

SHC_INLINE ACC NAME(keep)(ACC x, double number)
{
    (void)number;
    return x;
}

SHC_INLINE double NAME(factor)(const struct shc_reduce_args *args, int source)
{
    return args->factors ? args->factors[source] : 1;
}

SHC_INLINE const NAME(mem) * NAME(source)(const struct shc_reduce_args *args, int s, size_t first)
{
    return (const NAME(mem) *)args->src[s] + first;
}

SHC_INLINE struct NAME(acc) NAME(take)(MEM word, double factor, NAME(unary_fn) pre)
{
    struct NAME(acc) r;
    NAME(load)(r.v, word);
    for (int k = 0; k < LANES; k++)
        r.v[k] = pre(r.v[k], factor);
    return r;
}

SHC_INLINE struct NAME(acc) NAME(join)(struct NAME(acc) a, struct NAME(acc) b, NAME(binary_fn) op)
{
    for (int k = 0; k < LANES; k++)
        a.v[k] = op(a.v[k], b.v[k]);
    return a;
}

SHC_INLINE MEM NAME(give)(struct NAME(acc) a, double count, NAME(unary_fn) post)
{
    for (int k = 0; k < LANES; k++)
        a.v[k] = post(a.v[k], count);
    return NAME(store)(a.v);
}

SHC_INLINE struct NAME(acc) NAME(get)(const ACC *acc, size_t i)
{
    struct NAME(acc) r;
    for (size_t k = 0; k < LANES; k++)
        r.v[k] = acc[ACC_AT(i, k)];
    return r;
}

SHC_INLINE void NAME(put)(ACC *acc, size_t i, struct NAME(acc) a)
{
    for (size_t k = 0; k < LANES; k++)
        acc[ACC_AT(i, k)] = a.v[k];
}

/*
 * Prefetches word i of `words` plus AHEAD_WORDS. The lines of other ranks come from their caches,
 * and a CPU holds only so many instructions that wait for them. If a line takes a dozen
 * instructions, as with words that are vectors, that is only a few lines. Loops that the compiler
 * vectorises do not prefetch: they would have to in bursts, by which float32 gained nothing. No
 * word after the last one is prefetched: another rank may be about to store there.
 */
SHC_INLINE void NAME(ask)(const NAME(mem) * x, size_t i, size_t words)
{
    __builtin_prefetch(x + shc_min_size(i + AHEAD_WORDS, words - 1));
}

/* `step` for each i below `words`. Loops that prefetch do so before each whole line, by `asks`. A
 * test in each step whether a line begins there takes as long as the step (float16 with AVX2). */
#define EACH_WORD(words, asks, step)                                \
    do {                                                            \
        size_t i = 0;                                               \
        while (AHEAD_WORDS > 0 && (words)-i >= LINE_WORDS) {        \
            asks;                                                   \
            for (const size_t line = i + LINE_WORDS; i < line; i++) \
                step;                                               \
        }                                                           \
        SHC_NO_CARRY                                                \
        for (; i < (words); i++)                                    \
            step;                                                   \
    } while (0)

/* Two sources, one destination: straight through. */
SHC_INLINE void NAME(pair)(const struct shc_reduce_args *args, size_t first, size_t words,
                           NAME(unary_fn) pre, NAME(binary_fn) op, NAME(unary_fn) post)
{
    NAME(mem) *d = (NAME(mem) *)args->dst[0] + first;
    const NAME(mem) *x = NAME(source)(args, 0, first), *y = NAME(source)(args, 1, first);
    const double fx = NAME(factor)(args, 0), fy = NAME(factor)(args, 1);
    const size_t left = args->count / ELEMS - first;
    EACH_WORD(words, (NAME(ask)(x, i, left), NAME(ask)(y, i, left)),
              d[i] = NAME(give)(
                  NAME(join)(NAME(take)(x[i], fx, pre), NAME(take)(y[i], fy, pre), op), 2, post));
}

/* Two sources, two destinations: two ranks, whose result goes to the user and to the staging cell
 * that was just read. */
SHC_INLINE void NAME(pair_twice)(const struct shc_reduce_args *args, size_t words,
                                 NAME(unary_fn) pre, NAME(binary_fn) op, NAME(unary_fn) post)
{
    NAME(mem) *d = args->dst[0], *e = args->dst[1];
    const NAME(mem) *x = NAME(source)(args, 0, 0), *y = NAME(source)(args, 1, 0);
    const double fx = NAME(factor)(args, 0), fy = NAME(factor)(args, 1);
    EACH_WORD(words, (NAME(ask)(x, i, words), NAME(ask)(y, i, words)),
              d[i] = e[i] = NAME(give)(
                  NAME(join)(NAME(take)(x[i], fx, pre), NAME(take)(y[i], fy, pre), op), 2, post));
}

SHC_INLINE void NAME(single)(const struct shc_reduce_args *args, size_t first, size_t words,
                             NAME(unary_fn) pre, NAME(unary_fn) post)
{
    NAME(mem) *d = (NAME(mem) *)args->dst[0] + first;
    const NAME(mem) *x = NAME(source)(args, 0, first);
    const double f = NAME(factor)(args, 0);
    SHC_NO_CARRY
    for (size_t i = 0; i < words; i++)
        d[i] = NAME(give)(NAME(take)(x[i], f, pre), 1, post);
}

/* Three sources or more, up to BLOCK_WORDS words from `first` on: the accumulators stay in the
 * first-level cache while one source after another goes over them. */
SHC_INLINE void NAME(block)(const struct shc_reduce_args *args, size_t first, size_t words,
                            NAME(unary_fn) pre, NAME(binary_fn) op, NAME(unary_fn) post)
{
    ACC acc[BLOCK_WORDS * LANES] __attribute__((aligned(64)));
    const int last = args->src_count - 1;
    const size_t left = args->count / ELEMS - first;
    const NAME(mem) *x = NAME(source)(args, 0, first), *y = NAME(source)(args, 1, first);
    double fx = NAME(factor)(args, 0), fy = NAME(factor)(args, 1);
    EACH_WORD(
        words, (NAME(ask)(x, i, left), NAME(ask)(y, i, left)),
        NAME(put)(acc, i, NAME(join)(NAME(take)(x[i], fx, pre), NAME(take)(y[i], fy, pre), op)));
    for (int s = 2; s < last; s++) {
        x = NAME(source)(args, s, first);
        fx = NAME(factor)(args, s);
        EACH_WORD(words, NAME(ask)(x, i, left),
                  NAME(put)(acc, i, NAME(join)(NAME(get)(acc, i), NAME(take)(x[i], fx, pre), op)));
    }
    NAME(mem) *d = (NAME(mem) *)args->dst[0] + first;
    x = NAME(source)(args, last, first);
    fx = NAME(factor)(args, last);
    EACH_WORD(words, NAME(ask)(x, i, left),
              d[i] = NAME(give)(NAME(join)(NAME(get)(acc, i), NAME(take)(x[i], fx, pre), op),
                                last + 1, post));
}

SHC_INLINE void NAME(blocks)(const struct shc_reduce_args *args, size_t words, NAME(unary_fn) pre,
                             NAME(binary_fn) op, NAME(unary_fn) post)
{
    for (size_t first = 0; first < words; first += BLOCK_WORDS) {
        const size_t now = shc_min_size(words - first, BLOCK_WORDS);
        if (args->src_count == 1)
            NAME(single)(args, first, now, pre, post);
        else if (args->src_count == 2)
            NAME(pair)(args, first, now, pre, op, post);
        else
            NAME(block)(args, first, now, pre, op, post);
        const char *done = (const char *)args->dst[0] + first * sizeof(MEM);
        for (int k = 1; k < args->dst_count; k++)
            memcpy((char *)args->dst[k] + first * sizeof(MEM), done, now * sizeof(MEM));
    }
}

/* The last elements, fewer than a word. */
SHC_INLINE void NAME(tail)(const struct shc_reduce_args *args, NAME(unary_fn) pre,
                           NAME(binary_fn) op, NAME(unary_fn) post)
{
    const size_t bytes = args->count % ELEMS * ELEM_BYTES;
    const size_t offset = args->count * ELEM_BYTES - bytes;
    struct NAME(acc) acc;
    memset(&acc, 0, sizeof acc);
    for (int s = 0; s < args->src_count; s++) {
        MEM word = {0};
        memcpy(&word, (const char *)args->src[s] + offset, bytes);
        const struct NAME(acc) next = NAME(take)(word, NAME(factor)(args, s), pre);
        acc = s == 0 ? next : NAME(join)(acc, next, op);
    }
    const MEM word = NAME(give)(acc, args->src_count, post);
    for (int k = 0; k < args->dst_count; k++)
        memcpy((char *)args->dst[k] + offset, &word, bytes);
}

SHC_INLINE void NAME(run)(const struct shc_reduce_args *args, NAME(unary_fn) pre,
                          NAME(binary_fn) op, NAME(unary_fn) post)
{
    const size_t words = args->count / ELEMS;
    if (args->count == 0) /* an empty tensor has no address to add to */
        return;
    if (args->src_count == 2 && args->dst_count == 1)
        NAME(pair)(args, 0, words, pre, op, post);
    else if (args->src_count == 2 && args->dst_count == 2)
        NAME(pair_twice)(args, words, pre, op, post);
    else
        NAME(blocks)(args, words, pre, op, post);
    if (args->count % ELEMS != 0)
        NAME(tail)(args, pre, op, post);
}

#undef NAME
#undef MEM
#undef ACC
#undef LANES
#undef ELEMS
#undef ELEM_BYTES
#undef BLOCK_WORDS
#undef ACC_AT
#undef AHEAD_WORDS
#undef EACH_WORD
#undef LINE_WORDS
