/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Reductions and conversions of arrays of this process alone, for the parts around the core: the bits are
 * those of the collectives.
 */
#include "shm/base/num.h"
#include "shm/base/status.h"
#include "shm/kernel/fpenv.h"
#include "shm/kernel/kernel.h"
#include "shm/kernel/ops.h"

#include <string.h>

#define BLOCK 512 /* elements that are widened at once */

/* ---- conversions ---- */

/* Pointers need no alignment. */
typedef void (*convert_fn)(void *out, const void *in, size_t elements);

#define EACH(from, to, expression)                                 \
    do {                                                           \
        for (size_t i = 0; i < elements; i++) {                    \
            from x;                                                \
            memcpy(&x, (const char *)in + i * sizeof x, sizeof x); \
            const to y = (to)(expression);                         \
            memcpy((char *)out + i * sizeof y, &y, sizeof y);      \
        }                                                          \
    } while (0)

#define CONVERSION(name, from, to, expression)                   \
    static void name(void *out, const void *in, size_t elements) \
    {                                                            \
        EACH(from, to, expression);                              \
    }

#define FLOAT_CONVERSIONS(name, type, up, down) \
    CONVERSION(name##_up, type, float, up)      \
    CONVERSION(name##_down, float, type, down)

#define INTEGER_CONVERSIONS(name, type)     \
    CONVERSION(name##_up, type, int64_t, x) \
    CONVERSION(name##_down, int64_t, type, x)

FLOAT_CONVERSIONS(bf16, uint16_t, shc_bf16_up(x), shc_bf16_down(x))
FLOAT_CONVERSIONS(fp16, uint16_t, shc_narrow_up(x, SHC_FP16), shc_narrow_down(x, SHC_FP16))
FLOAT_CONVERSIONS(e4m3fn, uint8_t, shc_narrow_up(x, SHC_E4M3FN), shc_narrow_down(x, SHC_E4M3FN))
FLOAT_CONVERSIONS(e5m2, uint8_t, shc_narrow_up(x, SHC_E5M2), shc_narrow_down(x, SHC_E5M2))
FLOAT_CONVERSIONS(e4m3fnuz, uint8_t, shc_narrow_up(x, SHC_E4M3FNUZ),
                  shc_narrow_down(x, SHC_E4M3FNUZ))
FLOAT_CONVERSIONS(e5m2fnuz, uint8_t, shc_narrow_up(x, SHC_E5M2FNUZ),
                  shc_narrow_down(x, SHC_E5M2FNUZ))
INTEGER_CONVERSIONS(i8, int8_t)
INTEGER_CONVERSIONS(i16, int16_t)
INTEGER_CONVERSIONS(i32, int32_t)
INTEGER_CONVERSIONS(u8, uint8_t)
INTEGER_CONVERSIONS(u16, uint16_t)
INTEGER_CONVERSIONS(u32, uint32_t)

/* A type whose sums need more room than it has, and the one that has it. */
struct widening {
    enum shc_dtype wide;
    convert_fn up, down; /* NULL: its sums are of its own type */
};

#define WIDENING(name, to)                                 \
    {                                                      \
        .wide = (to), .up = name##_up, .down = name##_down \
    }

static const struct widening widenings[SHC_DTYPE_COUNT] = {
    [SHC_INT8] = WIDENING(i8, SHC_INT64),
    [SHC_INT16] = WIDENING(i16, SHC_INT64),
    [SHC_INT32] = WIDENING(i32, SHC_INT64),
    [SHC_UINT8] = WIDENING(u8, SHC_INT64),
    [SHC_UINT16] = WIDENING(u16, SHC_INT64),
    [SHC_UINT32] = WIDENING(u32, SHC_INT64),
    [SHC_FLOAT16] = WIDENING(fp16, SHC_FLOAT32),
    [SHC_BFLOAT16] = WIDENING(bf16, SHC_FLOAT32),
    [SHC_FLOAT8_E4M3FN] = WIDENING(e4m3fn, SHC_FLOAT32),
    [SHC_FLOAT8_E5M2] = WIDENING(e5m2, SHC_FLOAT32),
    [SHC_FLOAT8_E4M3FNUZ] = WIDENING(e4m3fnuz, SHC_FLOAT32),
    [SHC_FLOAT8_E5M2FNUZ] = WIDENING(e5m2fnuz, SHC_FLOAT32),
};

static convert_fn conversion(enum shc_dtype from, enum shc_dtype to)
{
    if ((unsigned)from >= SHC_DTYPE_COUNT || (unsigned)to >= SHC_DTYPE_COUNT)
        return NULL;
    if (widenings[from].up && widenings[from].wide == to)
        return widenings[from].up;
    return widenings[to].down && widenings[to].wide == from ? widenings[to].down : NULL;
}

enum shc_status shc_convert(enum shc_dtype from, const void *in, enum shc_dtype to, void *out,
                            size_t elements)
{
    const convert_fn convert = conversion(from, to);
    if (convert == NULL)
        return shc_fail(SHC_ERR_UNSUPPORTED, "convert: %s does not become %s", shc_dtype_name(from),
                        shc_dtype_name(to));
    const shc_fpenv mode = shc_fpenv_enter();
    convert(out, in, elements);
    shc_fpenv_leave(mode);
    return SHC_OK;
}

/* ---- reductions ---- */

static enum shc_status check(const char *what, enum shc_dtype dtype, enum shc_redop redop,
                             int count)
{
    if (!shc_reduction_supported(dtype, redop))
        return shc_fail(SHC_ERR_UNSUPPORTED, "%s: this reduction of this dtype does not exist",
                        what);
    return count >= 1 ? SHC_OK : shc_fail(SHC_ERR_INVALID, "%s: %d sources", what, count);
}

enum shc_status shc_reduce_local(enum shc_dtype dtype, enum shc_redop redop,
                                 const void *const *sources, int count, void *out, size_t elements,
                                 const double *factors)
{
    SHC_TRY(check("reduce_local", dtype, redop, count));
    if (redop == SHC_PREMUL_SUM && factors == NULL)
        return shc_fail(SHC_ERR_INVALID, "reduce_local: %d sources, but no factors", count);
    const struct shc_reduce_args args = {
        .src = sources,
        .dst = &out,
        .src_count = count,
        .dst_count = 1,
        .count = elements,
        .factors = redop == SHC_PREMUL_SUM ? factors : NULL,
    };
    shc_kernel_reduce(dtype, redop)(&args);
    return SHC_OK;
}

/* The sum that is there becomes an average. In the default mode. */
static void divide(enum shc_dtype dtype, void *sum, size_t elements, double parts)
{
    void *const out = sum;
    const void *const in = sum;
    switch (dtype) {
    case SHC_COMPLEX64:
        elements *= 2;
        /* fall through */
    case SHC_FLOAT32:
        EACH(float, float, shc_f32_divide(x, parts));
        break;
    case SHC_COMPLEX128:
        elements *= 2;
        /* fall through */
    case SHC_FLOAT64:
        EACH(double, double, shc_f64_divide(x, parts));
        break;
    case SHC_INT64:
        EACH(uint64_t, uint64_t, shc_wide_divide_signed(x, parts));
        break;
    default:
        EACH(uint64_t, uint64_t, shc_wide_divide(x, parts));
    }
}

static void fold_wide(enum shc_dtype dtype, const struct shc_reduce_args *args, double parts)
{
    shc_kernel_reduce(dtype, SHC_SUM)(args);
    divide(dtype, args->dst[0], args->count, parts);
}

/* Block by block: each source is widened and added, and the sum is divided and rounded once. */
static void fold_narrow(enum shc_dtype dtype, const struct shc_reduce_args *args, double parts)
{
    union {
        float floats[BLOCK];
        int64_t integers[BLOCK];
    } sum, next;
    const struct widening *widening = &widenings[dtype];
    const shc_reduce_fn add = shc_kernel_reduce(widening->wide, SHC_SUM);
    const size_t elem_bytes = shc_dtype_bytes(dtype);
    for (size_t first = 0; first < args->count; first += BLOCK) {
        const size_t now = shc_min_size(args->count - first, BLOCK);
        const struct shc_reduce_args step = {
            .src = (const void *const[]){&sum, &next},
            .dst = (void *const[]){&sum},
            .src_count = 2,
            .dst_count = 1,
            .count = now,
        };
        for (int s = 0; s < args->src_count; s++) {
            const char *source = (const char *)args->src[s] + first * elem_bytes;
            widening->up(s == 0 ? &sum : &next, source, now);
            if (s > 0)
                add(&step);
        }
        divide(widening->wide, &sum, now, parts);
        widening->down((char *)args->dst[0] + first * elem_bytes, &sum, now);
    }
}

enum shc_status shc_fold(enum shc_dtype dtype, enum shc_redop redop, const void *const *sources,
                         int count, void *out, size_t elements, uint32_t parts)
{
    SHC_TRY(check("fold", dtype, redop, count));
    if (parts < 1)
        return shc_fail(SHC_ERR_INVALID, "fold: sums of no inputs");
    const struct shc_reduce_args args = {
        .src = sources,
        .dst = &out,
        .src_count = count,
        .dst_count = 1,
        .count = elements,
    };
    const shc_fpenv mode = shc_fpenv_enter();
    if (redop != SHC_AVG)
        shc_kernel_reduce(dtype, redop == SHC_PREMUL_SUM ? SHC_SUM : redop)(&args);
    else if (widenings[dtype].up)
        fold_narrow(dtype, &args, parts);
    else
        fold_wide(dtype, &args, parts);
    shc_fpenv_leave(mode);
    return SHC_OK;
}
