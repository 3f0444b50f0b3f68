/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The kernels of narrow floats, by whole vectors where vec_x86.h has them: a part of kernel_isa.c,
 * with its macros.
 */

#define NARROW_KERNEL(type, redop, how, scale, average)                                      \
    static void type##_k_##redop(const struct shc_reduce_args *args)                         \
    {                                                                                        \
        type##_run(args, (struct type##_op){                                                 \
                             .combine = f32_k_##how, .scaled = scale, .averaged = average}); \
    }

#define NARROW_KERNELS(type)                            \
    NARROW_KERNEL(type, sum, sum, false, false)         \
    NARROW_KERNEL(type, avg, sum, false, true)          \
    NARROW_KERNEL(type, product, product, false, false) \
    NARROW_KERNEL(type, premul, sum, true, false)

#ifdef __F16C__

#define NAME(x)    bf16_##x
#define MEM        shc_v32
#define ACC        shc_vf
#define LANES      2
#define ELEMS      (SHC_VEC_BYTES / 2)
#define bf16_load  shc_vec_bf16_load
#define bf16_store shc_vec_bf16_store
#include "shm/kernel/reduce_tmpl.h"

SHC_INLINE void fp16_load(shc_vf *v, shc_h16 word)
{
    v[0] = SHC_VEC_FROM_FP16(word);
}

SHC_INLINE shc_h16 fp16_store(const shc_vf *v)
{
    return SHC_VEC_TO_FP16(v[0], _MM_FROUND_TO_NEAREST_INT);
}

#define NAME(x) fp16_##x
#define MEM     shc_h16
#define ACC     shc_vf
#define LANES   1
#define ELEMS   (SHC_VEC_BYTES / 4)
#include "shm/kernel/reduce_tmpl.h"

#define FP8_WORDS(type, format)                                \
    SHC_INLINE void type##_load(shc_vf *v, shc_v16 word)       \
    {                                                          \
        shc_vec_fp8_load(v, word, format);                     \
    }                                                          \
    SHC_INLINE shc_v16 type##_store(const shc_vf *v)           \
    {                                                          \
        return shc_vec_fp8_store(v, format);                   \
    }                                                          \
    SHC_INLINE shc_vf type##_grow(shc_vf x, double number)     \
    {                                                          \
        (void)number;                                          \
        return shc_vec_grow(x, format);                        \
    }                                                          \
    SHC_INLINE shc_vf type##_scale(shc_vf x, double factor)    \
    {                                                          \
        return shc_vec_scale(shc_vec_grow(x, format), factor); \
    }                                                          \
    SHC_INLINE shc_vf type##_shrink(shc_vf x, double number)   \
    {                                                          \
        (void)number;                                          \
        return shc_vec_shrink(x, format);                      \
    }

#define FP8_KERNELS(type)                                                    \
    FLOAT_KERNEL(type, sum, type##_keep, shc_vec_sum, type##_keep)           \
    FLOAT_AVG_KERNEL(type, vec)                                              \
    FLOAT_KERNEL(type, product, type##_grow, shc_vec_product, type##_shrink) \
    FLOAT_KERNEL(type, premul, type##_scale, shc_vec_sum, type##_shrink)

FP8_WORDS(e4m3fn, SHC_E4M3FN)
FP8_WORDS(e5m2, SHC_E5M2)
FP8_WORDS(e4m3fnuz, SHC_E4M3FNUZ)
FP8_WORDS(e5m2fnuz, SHC_E5M2FNUZ)

#define NAME(x) e4m3fn_##x
#define MEM     shc_v16
#define ACC     shc_vf
#define LANES   4
#define ELEMS   SHC_VEC_BYTES
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) e5m2_##x
#define MEM     shc_v16
#define ACC     shc_vf
#define LANES   4
#define ELEMS   SHC_VEC_BYTES
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) e4m3fnuz_##x
#define MEM     shc_v16
#define ACC     shc_vf
#define LANES   4
#define ELEMS   SHC_VEC_BYTES
#include "shm/kernel/reduce_tmpl.h"

#define NAME(x) e5m2fnuz_##x
#define MEM     shc_v16
#define ACC     shc_vf
#define LANES   4
#define ELEMS   SHC_VEC_BYTES
#include "shm/kernel/reduce_tmpl.h"

FLOAT_SUM_KERNELS(bf16, vec)
FLOAT_SUM_KERNELS(fp16, vec)
FP8_KERNELS(e4m3fn)
FP8_KERNELS(e5m2)
FP8_KERNELS(e4m3fnuz)
FP8_KERNELS(e5m2fnuz)

#else

/* Narrow floats come as words of several: 32-bit lanes in, 32-bit lanes out, and no vector is
 * ever packed or unpacked. */
SHC_INLINE void bf16_load(float *v, uint32_t word)
{
    for (int k = 0; k < 2; k++)
        v[k] = shc_bf16_up((word >> (16 * k)) & 0xffff);
}

SHC_INLINE uint32_t bf16_store(const float *v)
{
    uint32_t word = 0;
    for (int k = 0; k < 2; k++)
        word |= shc_bf16_down(v[k]) << (16 * k);
    return word;
}

#define NAME(x) bf16_##x
#define MEM     uint32_t
#define ACC     float
#define LANES   2
#include "shm/kernel/reduce_tmpl.h"

FLOAT_SUM_KERNELS(bf16, f32)

#define NAME(x) fp16_##x
#define FORMAT  SHC_FP16
#define LANES   2
#include "shm/kernel/reduce_narrow_tmpl.h"

#define NAME(x) e4m3fn_##x
#define FORMAT  SHC_E4M3FN
#define LANES   4
#include "shm/kernel/reduce_narrow_tmpl.h"

#define NAME(x) e5m2_##x
#define FORMAT  SHC_E5M2
#define LANES   4
#include "shm/kernel/reduce_narrow_tmpl.h"

#define NAME(x) e4m3fnuz_##x
#define FORMAT  SHC_E4M3FNUZ
#define LANES   4
#include "shm/kernel/reduce_narrow_tmpl.h"

#define NAME(x) e5m2fnuz_##x
#define FORMAT  SHC_E5M2FNUZ
#define LANES   4
#include "shm/kernel/reduce_narrow_tmpl.h"

NARROW_KERNELS(fp16)
NARROW_KERNELS(e4m3fn)
NARROW_KERNELS(e5m2)
NARROW_KERNELS(e4m3fnuz)
NARROW_KERNELS(e5m2fnuz)
#endif

/* By the loops for integers. */
#define ORDER_KERNEL(type, codes, redop)                                     \
    static void type##_k_##redop(const struct shc_reduce_args *args)         \
    {                                                                        \
        codes##_run(args, codes##_keep, shc_##type##_##redop, codes##_keep); \
    }

#define NARROW_ORDER_KERNELS(type, codes) \
    ORDER_KERNEL(type, codes, min)        \
    ORDER_KERNEL(type, codes, max)

NARROW_ORDER_KERNELS(bf16, i16)
NARROW_ORDER_KERNELS(fp16, i16)
NARROW_ORDER_KERNELS(e4m3fn, i8)
NARROW_ORDER_KERNELS(e5m2, i8)
NARROW_ORDER_KERNELS(e4m3fnuz, i8)
NARROW_ORDER_KERNELS(e5m2fnuz, i8)
