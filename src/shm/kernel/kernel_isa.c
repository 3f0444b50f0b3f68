/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * All kernels for one instruction set. Compiled once per set, with SHC_KERNEL_SET the name of the
 * table to define. Everything else here is static: a shared inline function would let the linker
 * keep the copy that needs the newest CPU.
 */
#include "shm/kernel/kernel_isa.h"
#include "shm/base/num.h"
#include "shm/kernel/fpenv.h"
#include "shm/kernel/ops.h"
#include "shm/kernel/short_x86.h"
#include "shm/kernel/vec_x86.h"

#ifdef __FAST_MATH__
#error "the results must not depend on how they are computed"
#endif

#ifdef __SSE2__
#include <immintrin.h>
#endif

/* Before a loop: its iterations do not depend on one another through memory. */
#ifdef __clang__
#define SHC_NO_CARRY _Pragma("clang loop vectorize(assume_safety)")
#else
#define SHC_NO_CARRY _Pragma("GCC ivdep")
#endif

/* ---- integers ---- */

#define NAME(x) u8_##x
#define ACC     uint8_t
#include "shm/kernel/ops_int_tmpl.h"
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) u16_##x
#define ACC     uint16_t
#include "shm/kernel/ops_int_tmpl.h"
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) u32_##x
#define ACC     uint32_t
#include "shm/kernel/ops_int_tmpl.h"
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) u64_##x
#define ACC     uint64_t
#include "shm/kernel/ops_int_tmpl.h"
#include "shm/kernel/reduce_tmpl.h"

/* Signed types share everything with the unsigned ones except the order of their values ... */
#define NAME(x) i8_##x
#define ACC     int8_t
#include "shm/kernel/ops_int_tmpl.h"
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) i16_##x
#define ACC     int16_t
#include "shm/kernel/ops_int_tmpl.h"
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) i32_##x
#define ACC     int32_t
#include "shm/kernel/ops_int_tmpl.h"
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) i64_##x
#define ACC     int64_t
#include "shm/kernel/ops_int_tmpl.h"
#include "shm/kernel/reduce_tmpl.h"

/* ... and the average. The average of two needs no other type. Of more sources, types narrower than
 * 64 bits are summed and divided in floats that hold all sums exactly (ops.h). */
#define NAME(x) u8_avg_##x
#define MEM     uint8_t
#define ACC     float
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) u16_avg_##x
#define MEM     uint16_t
#define ACC     float
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) u32_avg_##x
#define MEM     uint32_t
#define ACC     double
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) u64_avg_##x
#define ACC     uint64_t
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) i8_avg_##x
#define MEM     int8_t
#define ACC     float
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) i16_avg_##x
#define MEM     int16_t
#define ACC     float
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) i32_avg_##x
#define MEM     int32_t
#define ACC     double
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) i64_avg_##x
#define MEM     int64_t
#define ACC     uint64_t
#include "shm/kernel/reduce_tmpl.h"

/* For the product of bytes compilers find nothing better than words, unpacked and packed again.
 * They find no average of two signed bytes at all. */
#ifdef __F16C__
#define NAME(x) u8s_##x
#define ACC     shc_v16
#define ELEMS   SHC_VEC_BYTES
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) i8s_##x
#define ACC     shc_v8s
#define ELEMS   SHC_VEC_BYTES
#include "shm/kernel/reduce_tmpl.h"
#endif

#define KERNEL(type, redop, pre, op, post)                           \
    static void type##_k_##redop(const struct shc_reduce_args *args) \
    {                                                                \
        type##_run(args, pre, op, post);                             \
    }

#define WRAPPING_KERNELS(type)                                \
    KERNEL(type, sum, type##_keep, type##_sum, type##_keep)   \
    KERNEL(type, band, type##_keep, type##_band, type##_keep) \
    KERNEL(type, bor, type##_keep, type##_bor, type##_keep)   \
    KERNEL(type, bxor, type##_keep, type##_bxor, type##_keep)

#define PRODUCT_KERNEL(type) KERNEL(type, product, type##_keep, type##_product, type##_keep)

#define ORDER_KERNELS(type)                                 \
    KERNEL(type, min, type##_keep, type##_min, type##_keep) \
    KERNEL(type, max, type##_keep, type##_max, type##_keep)

/* Two sources by `pair`, more in floats, in the default mode, in which they do not trap. */
#define AVERAGE_KERNEL(type, pair, mean, acc)                                       \
    static void type##_avg_k_avg(const struct shc_reduce_args *args)                \
    {                                                                               \
        if (args->src_count == 2) {                                                 \
            pair##_run(args, pair##_keep, mean, pair##_keep);                       \
            return;                                                                 \
        }                                                                           \
        const shc_fpenv mode = shc_fpenv_enter();                                   \
        type##_avg_run(args, type##_avg_keep, shc_##acc##_sum, shc_##acc##_divide); \
        shc_fpenv_leave(mode);                                                      \
    }

WRAPPING_KERNELS(u8)
WRAPPING_KERNELS(u16)
WRAPPING_KERNELS(u32)
WRAPPING_KERNELS(u64)
#ifdef __F16C__
static void u8_k_product(const struct shc_reduce_args *args)
{
    u8s_run(args, u8s_keep, shc_vec_u8_product, u8s_keep);
}
#else
PRODUCT_KERNEL(u8)
#endif
PRODUCT_KERNEL(u16)
PRODUCT_KERNEL(u32)
PRODUCT_KERNEL(u64)
ORDER_KERNELS(u8)
ORDER_KERNELS(u16)
ORDER_KERNELS(u32)
ORDER_KERNELS(u64)
ORDER_KERNELS(i8)
ORDER_KERNELS(i16)
ORDER_KERNELS(i32)
ORDER_KERNELS(i64)
AVERAGE_KERNEL(u8, u8, u8_mean, f32)
AVERAGE_KERNEL(u16, u16, u16_mean, f32)
AVERAGE_KERNEL(u32, u32, u32_mean, f64)
#ifdef __F16C__
AVERAGE_KERNEL(i8, i8s, shc_vec_i8_mean, f32)
#else
AVERAGE_KERNEL(i8, i8, i8_mean, f32)
#endif
AVERAGE_KERNEL(i16, i16, i16_mean, f32)
AVERAGE_KERNEL(i32, i32, i32_mean, f64)
KERNEL(u64_avg, avg, u64_avg_keep, shc_wide_sum, shc_wide_divide)
KERNEL(i64_avg, avg, i64_avg_keep, shc_wide_sum, shc_wide_divide_signed)

/* ---- bool ---- */

SHC_INLINE void bool_load(uint8_t *v, uint8_t byte)
{
    v[0] = byte != 0;
}

SHC_INLINE uint8_t bool_store(const uint8_t *v)
{
    return v[0];
}

#define NAME(x) bool_##x
#define ACC     uint8_t
#define LANES   1
#include "shm/kernel/reduce_tmpl.h"

KERNEL(bool, or, bool_keep, shc_bool_or, bool_keep)
KERNEL(bool, and, bool_keep, shc_bool_and, bool_keep)
KERNEL(bool, xor, bool_keep, shc_bool_xor, bool_keep)

/* ---- floats ---- */

#define NAME(x) f32_##x
#define ACC     float
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) f64_##x
#define ACC     double
#include "shm/kernel/reduce_tmpl.h"

#define FLOAT_KERNEL(type, redop, pre, op, post)                     \
    static void type##_k_##redop(const struct shc_reduce_args *args) \
    {                                                                \
        const shc_fpenv mode = shc_fpenv_enter();                    \
        type##_run(args, pre, op, post);                             \
        shc_fpenv_leave(mode);                                       \
    }

#define FLOAT_AVG_KERNEL(type, acc)                                             \
    static void type##_k_avg(const struct shc_reduce_args *args)                \
    {                                                                           \
        const shc_fpenv mode = shc_fpenv_enter();                               \
        if ((args->src_count & (args->src_count - 1)) == 0)                     \
            type##_run(args, type##_keep, shc_##acc##_sum, shc_##acc##_part);   \
        else                                                                    \
            type##_run(args, type##_keep, shc_##acc##_sum, shc_##acc##_divide); \
        shc_fpenv_leave(mode);                                                  \
    }

#define FLOAT_SUM_KERNELS(type, acc)                                           \
    FLOAT_KERNEL(type, sum, type##_keep, shc_##acc##_sum, type##_keep)         \
    FLOAT_AVG_KERNEL(type, acc)                                                \
    FLOAT_KERNEL(type, product, type##_keep, shc_##acc##_product, type##_keep) \
    FLOAT_KERNEL(type, premul, shc_##acc##_scale, shc_##acc##_sum, type##_keep)

#define FLOAT_KERNELS(type, acc)                                       \
    FLOAT_SUM_KERNELS(type, acc)                                       \
    FLOAT_KERNEL(type, min, type##_keep, shc_##acc##_min, type##_keep) \
    FLOAT_KERNEL(type, max, type##_keep, shc_##acc##_max, type##_keep)

FLOAT_KERNELS(f32, f32)
FLOAT_KERNELS(f64, f64)

/* Comes before those: see short_x86.h. */
#ifdef __AVX512VL__
#define SHORT_KERNEL(type, elem, redop, half)                                 \
    static void type##_k_short_##redop(const struct shc_reduce_args *args)    \
    {                                                                         \
        if (!shc_short_sum(args, sizeof(elem), half, shc_##type##_short_sum)) \
            type##_k_##redop(args);                                           \
    }

SHORT_KERNEL(f32, float, sum, false)
SHORT_KERNEL(f32, float, avg, true)
SHORT_KERNEL(f64, double, sum, false)
SHORT_KERNEL(f64, double, avg, true)
#else
#define f32_k_short_sum f32_k_sum
#define f32_k_short_avg f32_k_avg
#define f64_k_short_sum f64_k_sum
#define f64_k_short_avg f64_k_avg
#endif

#include "shm/kernel/kernel_narrow_tmpl.h"

/* ---- complex ---- */

#ifdef __F16C__
#define NAME(x) c64_##x
#define ACC     shc_vf
#define ELEMS   (SHC_VEC_BYTES / 8)
#include "shm/kernel/reduce_tmpl.h"

FLOAT_KERNEL(c64, product, c64_keep, shc_vec_c64_product, c64_keep)

#define NAME(x) c128_##x
#define ACC     shc_vd
#define ELEMS   (SHC_VEC_BYTES / 16)
#include "shm/kernel/reduce_tmpl.h"

FLOAT_KERNEL(c128, product, c128_keep, shc_vec_c128_product, c128_keep)

#else

typedef float c64_word __attribute__((vector_size(8)));

SHC_INLINE void c64_load(struct shc_c64 *v, c64_word word)
{
    v[0] = (struct shc_c64){word[0], word[1]};
}

SHC_INLINE c64_word c64_store(const struct shc_c64 *v)
{
    return (c64_word){v[0].re, v[0].im};
}

#define NAME(x) c64_##x
#define MEM     c64_word
#define ACC     struct shc_c64
#define LANES   1
#include "shm/kernel/reduce_tmpl.h"

FLOAT_KERNEL(c64, product, c64_keep, shc_c64_product, c64_keep)

typedef double c128_word __attribute__((vector_size(16)));

SHC_INLINE void c128_load(struct shc_c128 *v, c128_word word)
{
    v[0] = (struct shc_c128){word[0], word[1]};
}

SHC_INLINE c128_word c128_store(const struct shc_c128 *v)
{
    return (c128_word){v[0].re, v[0].im};
}

#define NAME(x) c128_##x
#define MEM     c128_word
#define ACC     struct shc_c128
#define LANES   1
#include "shm/kernel/reduce_tmpl.h"

FLOAT_KERNEL(c128, product, c128_keep, shc_c128_product, c128_keep)
#endif

/* A sum of complex numbers is one of twice as many parts. */
SHC_INLINE void parts(const struct shc_reduce_args *args, shc_reduce_fn reduce)
{
    struct shc_reduce_args twice = *args;
    twice.count *= 2;
    reduce(&twice);
}

#define PARTS_KERNEL(type, part, redop)                              \
    static void type##_k_##redop(const struct shc_reduce_args *args) \
    {                                                                \
        parts(args, part##_k_##redop);                               \
    }

PARTS_KERNEL(c64, f32, sum)
PARTS_KERNEL(c64, f32, avg)
PARTS_KERNEL(c64, f32, premul)
PARTS_KERNEL(c128, f64, sum)
PARTS_KERNEL(c128, f64, avg)
PARTS_KERNEL(c128, f64, premul)

/* ---- the hand-over copy (copy.h) ---- */

typedef uint64_t word64 __attribute__((aligned(1), may_alias));

static void exchange(void *out, void *cell, const void *next, size_t bytes)
{
    const size_t words = bytes / sizeof(word64);
    word64 *o = out, *c = cell;
    const word64 *n = next;
    SHC_NO_CARRY
    for (size_t i = 0; i < words; i++) {
        const uint64_t theirs = c[i];
        c[i] = n[i];
        o[i] = theirs;
    }
    for (size_t i = words * sizeof(word64); i < bytes; i++) {
        const char theirs = ((char *)cell)[i];
        ((char *)cell)[i] = ((const char *)next)[i];
        ((char *)out)[i] = theirs;
    }
}

/* ---- the copy by streaming stores (copy.h) ---- */

#ifdef __has_feature
#define UNDER_TSAN __has_feature(thread_sanitizer)
#elif defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#else
#define UNDER_TSAN 0
#endif

/* The thread sanitizer does not see these stores. */
#if defined(__SSE2__) && !UNDER_TSAN
#define STREAM_BYTES 64 /* a whole cache line at a time, so that no line is fetched first */

SHC_INLINE void stream_line(char *to, const char *from)
{
#if defined(__AVX512F__)
    _mm512_stream_si512((__m512i *)(void *)to, _mm512_loadu_si512(from));
#elif defined(__AVX2__)
    for (int i = 0; i < 2; i++)
        _mm256_stream_si256((__m256i *)(void *)to + i,
                            _mm256_loadu_si256((const __m256i_u *)(const void *)from + i));
#else
    for (int i = 0; i < 4; i++)
        _mm_stream_si128((__m128i *)(void *)to + i,
                         _mm_loadu_si128((const __m128i_u *)(const void *)from + i));
#endif
}

SHC_INLINE void pass_line(char *out, char *cell, const char *next)
{
    char theirs[STREAM_BYTES];
    memcpy(theirs, cell, sizeof theirs);
    memcpy(cell, next, STREAM_BYTES);
    stream_line(out, theirs);
}

static void exchange_past(void *out, void *cell, const void *next, size_t bytes)
{
    char *o = out, *c = cell;
    const char *n = next;
    const size_t head = shc_min_size(-(uintptr_t)o % STREAM_BYTES, bytes);
    exchange(o, c, n, head);
    size_t done = head;
    for (; bytes - done >= STREAM_BYTES; done += STREAM_BYTES)
        pass_line(o + done, c + done, n + done);
    exchange(o + done, c + done, n + done, bytes - done);
    _mm_sfence();
}

static void stream(void *dst, const void *src, size_t bytes)
{
    char *to = dst;
    const char *from = src;
    if (bytes == 0) /* an empty tensor has no address */
        return;
    const size_t head = shc_min_size(-(uintptr_t)to % STREAM_BYTES, bytes);
    memcpy(to, from, head);
    size_t done = head;
    for (; bytes - done >= STREAM_BYTES; done += STREAM_BYTES)
        stream_line(to + done, from + done);
    memcpy(to + done, from + done, bytes - done);
    _mm_sfence();
}
#else
static void stream(void *dst, const void *src, size_t bytes)
{
    if (bytes > 0) /* an empty tensor has no address */
        memcpy(dst, src, bytes);
}

static void exchange_past(void *out, void *cell, const void *next, size_t bytes)
{
    exchange(out, cell, next, bytes);
}
#endif

/* Each load and store is a whole vector. The compiler alone would call memcpy. */
static void lines(void *dst, const void *src, size_t bytes)
{
    char *to = dst;
    const char *from = src;
    size_t done = 0;
#if defined(__AVX512F__)
    for (; bytes - done >= sizeof(__m512i); done += sizeof(__m512i))
        _mm512_storeu_si512(to + done, _mm512_loadu_si512(from + done));
#elif defined(__AVX2__)
    for (; bytes - done >= sizeof(__m256i); done += sizeof(__m256i))
        _mm256_storeu_si256((__m256i_u *)(void *)(to + done),
                            _mm256_loadu_si256((const __m256i_u *)(const void *)(from + done)));
#endif
    if (done < bytes) /* an empty tensor has no address */
        memcpy(to + done, from + done, bytes - done);
}

/* ---- the table ---- */

#define INT_ROW(u, t)                                                                    \
    {                                                                                    \
        [SHC_SUM] = u##_k_sum, [SHC_AVG] = t##_avg_k_avg, [SHC_PRODUCT] = u##_k_product, \
        [SHC_MIN] = t##_k_min, [SHC_MAX] = t##_k_max, [SHC_BAND] = u##_k_band,           \
        [SHC_BOR] = u##_k_bor, [SHC_BXOR] = u##_k_bxor,                                  \
    }

#define FLOAT_ROW_OF(t, sum, avg)                                                      \
    {                                                                                  \
        [SHC_SUM] = (sum), [SHC_AVG] = (avg), [SHC_PRODUCT] = t##_k_product,           \
        [SHC_MIN] = t##_k_min, [SHC_MAX] = t##_k_max, [SHC_PREMUL_SUM] = t##_k_premul, \
    }

#define FLOAT_ROW(t)       FLOAT_ROW_OF(t, t##_k_sum, t##_k_avg)
#define SHORT_FLOAT_ROW(t) FLOAT_ROW_OF(t, t##_k_short_sum, t##_k_short_avg)

#define COMPLEX_ROW(t)                                                               \
    {                                                                                \
        [SHC_SUM] = t##_k_sum, [SHC_AVG] = t##_k_avg, [SHC_PRODUCT] = t##_k_product, \
        [SHC_PREMUL_SUM] = t##_k_premul,                                             \
    }

const struct shc_kernel_set SHC_KERNEL_SET = {
    .reduce =
        {
            [SHC_INT8] = INT_ROW(u8, i8),
            [SHC_INT16] = INT_ROW(u16, i16),
            [SHC_INT32] = INT_ROW(u32, i32),
            [SHC_INT64] = INT_ROW(u64, i64),
            [SHC_UINT8] = INT_ROW(u8, u8),
            [SHC_UINT16] = INT_ROW(u16, u16),
            [SHC_UINT32] = INT_ROW(u32, u32),
            [SHC_UINT64] = INT_ROW(u64, u64),
            [SHC_BOOL] = {[SHC_SUM] = bool_k_or,
                          [SHC_PRODUCT] = bool_k_and,
                          [SHC_MIN] = bool_k_and,
                          [SHC_MAX] = bool_k_or,
                          [SHC_BAND] = bool_k_and,
                          [SHC_BOR] = bool_k_or,
                          [SHC_BXOR] = bool_k_xor},
            [SHC_FLOAT16] = FLOAT_ROW(fp16),
            [SHC_BFLOAT16] = FLOAT_ROW(bf16),
            [SHC_FLOAT8_E4M3FN] = FLOAT_ROW(e4m3fn),
            [SHC_FLOAT8_E5M2] = FLOAT_ROW(e5m2),
            [SHC_FLOAT8_E4M3FNUZ] = FLOAT_ROW(e4m3fnuz),
            [SHC_FLOAT8_E5M2FNUZ] = FLOAT_ROW(e5m2fnuz),
            [SHC_FLOAT32] = SHORT_FLOAT_ROW(f32),
            [SHC_FLOAT64] = SHORT_FLOAT_ROW(f64),
            [SHC_COMPLEX64] = COMPLEX_ROW(c64),
            [SHC_COMPLEX128] = COMPLEX_ROW(c128),
        },
    .exchange = exchange,
    .exchange_past = exchange_past,
    .stream = stream,
    .lines = lines,
};
