/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * For AVX2 with F16C and for AVX-512, whole vectors where a compiler does not find them: narrow
 * floats, products and averages of bytes, products of complex numbers. For narrow floats a word
 * (MEM in reduce_tmpl.h) is one vector of codes, an accumulator is one of floats, and a word fills
 * two or four. Elements meet only those of the same place in other sources. So it does not matter
 * which accumulator holds which: one takes the even ones and one the odd ones, and no element is
 * moved singly.
 *
 * The bits are those of half.h, except for a NaN's payload.
 */

#include "shm/kernel/half.h"

#ifdef __F16C__
#include <immintrin.h>

#ifdef __AVX512BW__
#define SHC_VEC_BYTES 64
#else
#define SHC_VEC_BYTES 32
#endif

typedef float shc_vf __attribute__((vector_size(SHC_VEC_BYTES)));
typedef double shc_vd __attribute__((vector_size(SHC_VEC_BYTES)));
typedef uint32_t shc_v32 __attribute__((vector_size(SHC_VEC_BYTES)));
typedef uint16_t shc_v16 __attribute__((vector_size(SHC_VEC_BYTES)));
typedef uint16_t shc_h16 __attribute__((vector_size(SHC_VEC_BYTES / 2)));
typedef uint64_t shc_v64 __attribute__((vector_size(SHC_VEC_BYTES)));
typedef int16_t shc_v16s __attribute__((vector_size(SHC_VEC_BYTES)));
typedef uint8_t shc_v8 __attribute__((vector_size(SHC_VEC_BYTES)));
typedef int8_t shc_v8s __attribute__((vector_size(SHC_VEC_BYTES)));

/* ---- what the two instruction sets call differently ---- */

#ifdef __AVX512BW__

#define SHC_VEC_FROM_FP16(h) ((shc_vf)_mm512_cvtph_ps((__m256i)(h)))
#define SHC_VEC_TO_FP16(v, rounding) \
    ((shc_h16)_mm512_cvtps_ph((__m512)(v), (rounding) | _MM_FROUND_NO_EXC))
#define SHC_VEC_HALF(v, which) ((shc_h16)_mm512_extracti64x4_epi64((__m512i)(v), which))

SHC_INLINE shc_v16 shc_vec_join(shc_h16 low, shc_h16 high)
{
    return (shc_v16)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)low), (__m256i)high, 1);
}

/* Of pairs: both the first, both the second, the two exchanged. */
#define SHC_VEC_FIRSTS(v)  ((shc_vf)_mm512_moveldup_ps((__m512)(v)))
#define SHC_VEC_SECONDS(v) ((shc_vf)_mm512_movehdup_ps((__m512)(v)))
#define SHC_VEC_SWAP(v)    ((shc_vf)_mm512_permute_ps((__m512)(v), 0xb1))
#define SHC_VEC_FIRSTD(v)  ((shc_vd)_mm512_movedup_pd((__m512d)(v)))
#define SHC_VEC_SECONDD(v) ((shc_vd)_mm512_permute_pd((__m512d)(v), 0xff))
#define SHC_VEC_SWAPD(v)   ((shc_vd)_mm512_permute_pd((__m512d)(v), 0x55))

SHC_INLINE shc_v16 shc_vec_min16(shc_v16 a, shc_v16 b)
{
    return (shc_v16)_mm512_min_epu16((__m512i)a, (__m512i)b);
}

/* Of signed words. */
SHC_INLINE shc_v16 shc_vec_max16(shc_v16 a, shc_v16 b)
{
    return (shc_v16)_mm512_max_epi16((__m512i)a, (__m512i)b);
}

/* Of pairs of words: both second ones, both first ones; the even one comes first. One instruction
 * each: a shuffle of bytes that leaves half of them. */
SHC_INLINE shc_v16 shc_vec_seconds16(shc_v32 even, shc_v32 odd)
{
    const __m512i down = _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302);
    return (shc_v16)_mm512_mask_shuffle_epi8((__m512i)odd, 0x3333333333333333, (__m512i)even, down);
}

SHC_INLINE shc_v16 shc_vec_firsts16(shc_v32 even, shc_v32 odd)
{
    const __m512i up = _mm512_set4_epi32(0x0d0c0d0c, 0x09080908, 0x05040504, 0x01000100);
    return (shc_v16)_mm512_mask_shuffle_epi8((__m512i)even, 0xcccccccccccccccc, (__m512i)odd, up);
}

/* Of unsigned words, no less than 0. */
#define SHC_VEC_MINUS16(a, b) ((shc_v16)_mm512_subs_epu16((__m512i)(a), (__m512i)(b)))

#define SHC_VEC_AVG8(a, b) ((shc_v8)_mm512_avg_epu8((__m512i)(a), (__m512i)(b)))

#else

#define SHC_VEC_FROM_FP16(h)         ((shc_vf)_mm256_cvtph_ps((__m128i)(h)))
#define SHC_VEC_TO_FP16(v, rounding) ((shc_h16)_mm256_cvtps_ph((__m256)(v), rounding))
#define SHC_VEC_HALF(v, which)       ((shc_h16)_mm256_extracti128_si256((__m256i)(v), which))

SHC_INLINE shc_v16 shc_vec_join(shc_h16 low, shc_h16 high)
{
    return (shc_v16)_mm256_set_m128i((__m128i)high, (__m128i)low);
}

#define SHC_VEC_FIRSTS(v)  ((shc_vf)_mm256_moveldup_ps((__m256)(v)))
#define SHC_VEC_SECONDS(v) ((shc_vf)_mm256_movehdup_ps((__m256)(v)))
#define SHC_VEC_SWAP(v)    ((shc_vf)_mm256_permute_ps((__m256)(v), 0xb1))
#define SHC_VEC_FIRSTD(v)  ((shc_vd)_mm256_movedup_pd((__m256d)(v)))
#define SHC_VEC_SECONDD(v) ((shc_vd)_mm256_permute_pd((__m256d)(v), 0xf))
#define SHC_VEC_SWAPD(v)   ((shc_vd)_mm256_permute_pd((__m256d)(v), 0x5))

SHC_INLINE shc_v16 shc_vec_min16(shc_v16 a, shc_v16 b)
{
    return (shc_v16)_mm256_min_epu16((__m256i)a, (__m256i)b);
}

SHC_INLINE shc_v16 shc_vec_max16(shc_v16 a, shc_v16 b)
{
    return (shc_v16)_mm256_max_epi16((__m256i)a, (__m256i)b);
}

SHC_INLINE shc_v16 shc_vec_seconds16(shc_v32 even, shc_v32 odd)
{
    return (shc_v16)_mm256_blend_epi16((__m256i)(even >> 16), (__m256i)odd, 0xaa);
}

SHC_INLINE shc_v16 shc_vec_firsts16(shc_v32 even, shc_v32 odd)
{
    return (shc_v16)_mm256_blend_epi16((__m256i)even, (__m256i)(odd << 16), 0xaa);
}

#define SHC_VEC_MINUS16(a, b) ((shc_v16)_mm256_subs_epu16((__m256i)(a), (__m256i)(b)))

#define SHC_VEC_AVG8(a, b) ((shc_v8)_mm256_avg_epu8((__m256i)(a), (__m256i)(b)))

#endif

/* ---- the operations: shc_f32_* of ops.h, vector by vector ---- */

SHC_INLINE shc_vf shc_vec_sum(shc_vf a, shc_vf b)
{
    return a + b;
}

SHC_INLINE shc_vf shc_vec_product(shc_vf a, shc_vf b)
{
    return a * b;
}

SHC_INLINE shc_vf shc_vec_divide(shc_vf x, double n)
{
    return x / (float)n;
}

/* See shc_f32_part(). */
SHC_INLINE shc_vf shc_vec_part(shc_vf x, double n)
{
    return x * (float)(1 / n);
}

/* A NaN of the caller may have any payload, and shc_vec_bf16_store needs one without. */
SHC_INLINE shc_vf shc_vec_scale(shc_vf x, double factor)
{
    const float f = (float)factor;
    return (f != f ? shc_float_of(SHC_FLOAT_QNAN) : f) * x;
}

/* ---- bf16 ---- */

SHC_INLINE void shc_vec_bf16_load(shc_vf *v, shc_v32 word)
{
    v[0] = (shc_vf)(word << 16);
    v[1] = (shc_vf)(word & 0xffff0000);
}

/*
 * Rounds by halves of the floats: `high` is the result so far. A `low` above a half, or at a half
 * with `high` odd, adds one: it has its top bit, less one if `high` is even. A NaN stays a NaN
 * because its lower half is 0: sources have nothing there, operations pass on the NaN of an operand
 * or make 0xffc00000, and shc_vec_scale takes care of a factor's.
 */
SHC_INLINE shc_v32 shc_vec_bf16_store(const shc_vf *v)
{
    const shc_v32 even = (shc_v32)v[0], odd = (shc_v32)v[1];
    const shc_v16 high = shc_vec_seconds16(even, odd), low = shc_vec_firsts16(even, odd);
    return (shc_v32)(high + (SHC_VEC_MINUS16(low, ~high & 1) >> 15));
}

/*
 * ---- fp8 ----
 *
 * fp16 has more of everything, so the hardware's conversions do most of the work, denormals
 * included. But the bias differs: values are multiples of SHC_VEC_FP8_UNIT, a power of two. That
 * does not matter to sums and averages; for other operations shc_vec_grow and shc_vec_shrink
 * convert.
 *
 * float8_e5m2fnuz uses all 32 exponents, where fp16 has its inf. So its exponents count one less
 * there, and a value whose exponent would be too small is a denormal, half as large as its bits
 * say.
 */

#define SHC_VEC_FP8_UNIT(f)      ((float)(1 << (SHC_VEC_ALL_EXPONENTS(f) ? 0 : 15 - (f).bias)))
#define SHC_VEC_ALL_EXPONENTS(f) ((f).bias > 15)
#define SHC_VEC_FP16_ONE         0x400 /* of the exponent */

SHC_INLINE shc_vf shc_vec_grow(shc_vf x, struct shc_narrow f)
{
    return x * SHC_VEC_FP8_UNIT(f);
}

SHC_INLINE shc_vf shc_vec_shrink(shc_vf x, struct shc_narrow f)
{
    return x * (1 / SHC_VEC_FP8_UNIT(f));
}

/* fp8 in the upper bytes as fp16. */
SHC_INLINE shc_v16 shc_vec_fp8_up(shc_v16 code, struct shc_narrow f)
{
    if (f.kind == SHC_NARROW_IEEE)
        return code;
    if (SHC_VEC_ALL_EXPONENTS(f)) {
        const shc_v16 size = code & 0x7fff, nan = (shc_v16)(code == 0x8000) & 0x7e00;
        return shc_vec_max16(size >> 1, size - SHC_VEC_FP16_ONE) | (code & 0x8000) | nan;
    }
    const shc_v16 h = (shc_v16)((shc_v16s)code >> 1) & 0xbfff;
    if (f.kind == SHC_NARROW_FN) /* all ones carry into the exponent's top */
        return h | (((h & 0x3f80) + 0x80) & 0x4000);
    return h | ((shc_v16)(code == 0x8000) & 0x7e00);
}

SHC_INLINE void shc_vec_fp8_load(shc_vf *v, shc_v16 word, struct shc_narrow f)
{
    const shc_v16 even = shc_vec_fp8_up(word << 8, f), odd = shc_vec_fp8_up(word & 0xff00, f);
    v[0] = SHC_VEC_FROM_FP16(SHC_VEC_HALF(even, 0));
    v[1] = SHC_VEC_FROM_FP16(SHC_VEC_HALF(even, 1));
    v[2] = SHC_VEC_FROM_FP16(SHC_VEC_HALF(odd, 0));
    v[3] = SHC_VEC_FROM_FP16(SHC_VEC_HALF(odd, 1));
}

/* Two vectors as fp16, truncated to a few bits more than fp8 has. The last bit is set if something
 * was cut off, so that the later rounding sees it. It lies at most two places beyond the fraction,
 * and fp16 holds that for every value that does not round to zero. */
SHC_INLINE shc_v16 shc_vec_fp8_cut(const shc_vf *v, struct shc_narrow f)
{
    const uint32_t last = 1u << (21 - f.man_bits);
    shc_vf cut[2];
    for (int k = 0; k < 2; k++) {
        const shc_v32 bits = (shc_v32)v[k];
        cut[k] = (shc_vf)(bits | (((bits & (last - 1)) + (last - 1)) & last));
    }
    return shc_vec_join(SHC_VEC_TO_FP16(cut[0], _MM_FROUND_TO_ZERO),
                        SHC_VEC_TO_FP16(cut[1], _MM_FROUND_TO_ZERO));
}

/* The result of shc_vec_fp8_cut as fp8 in the lower bytes, rounded to nearest even. */
SHC_INLINE shc_v16 shc_vec_fp8_round(shc_v16 h, struct shc_narrow f)
{
    const int shift = (int)(10 - f.man_bits);
    const uint16_t half = (uint16_t)((1u << (shift - 1)) - 1);
    const shc_v16 sign = (h >> 8) & 0x80;
    shc_v16 size = h & 0x7fff;
    if (SHC_VEC_ALL_EXPONENTS(f))
        size = shc_vec_min16(size << 1, size + SHC_VEC_FP16_ONE);
    const shc_v16 code = (size + half + ((size >> shift) & 1)) >> shift;
    /* A NaN has become 0x7e to 0x80 ... */
    if (f.kind == SHC_NARROW_IEEE)
        return shc_vec_min16(code, (shc_v16){0} + 0x7f) | sign;
    /* ... or 0xfc to 0x100, and inf 0xf8. */
    if (f.kind == SHC_NARROW_FN)
        return (shc_vec_min16(code, (shc_v16){0} + 0x7e) + ((code + 4) >> 8)) | sign;
    const shc_v16 over = (shc_v16)(code > 0x7f), zero = (shc_v16)(code == 0);
    return ((code | sign) & ~(over | zero)) | (over & 0x80);
}

SHC_INLINE shc_v16 shc_vec_fp8_store(const shc_vf *v, struct shc_narrow f)
{
    const shc_v16 even = shc_vec_fp8_round(shc_vec_fp8_cut(v, f), f);
    const shc_v16 odd = shc_vec_fp8_round(shc_vec_fp8_cut(v + 2, f), f);
    return even | odd << 8;
}

/* ---- bytes ---- */

/* The even ones and the odd ones, each in a word of its own. */
SHC_INLINE shc_v16 shc_vec_u8_product(shc_v16 a, shc_v16 b)
{
    return ((a * b) & 0xff) | (a >> 8) * (b & 0xff00);
}

/* Toward zero. The processor averages unsigned bytes, and rounds up: one less if the sum is odd and
 * the average above zero. */
SHC_INLINE shc_v8s shc_vec_i8_mean(shc_v8s a, shc_v8s b)
{
    const shc_v8 top = (shc_v8){0} + 0x80, x = (shc_v8)a, y = (shc_v8)b;
    const shc_v8 up = SHC_VEC_AVG8(x ^ top, y ^ top) ^ top;
    return (shc_v8s)(up - ((shc_v8)((shc_v8s)up > 0) & (x ^ y) & 1));
}

/* ---- products of complex numbers: the steps of shc_c64_product, a part in each lane ---- */

SHC_INLINE shc_vf shc_vec_c64_product(shc_vf a, shc_vf b)
{
    const shc_v64 minus = (shc_v64){0} + 0x80000000u; /* the first of each pair */
    const shc_vf im = (shc_vf)((shc_v64)SHC_VEC_SECONDS(a) ^ minus);
    return SHC_VEC_FIRSTS(a) * b + im * SHC_VEC_SWAP(b);
}

SHC_INLINE shc_vd shc_vec_c128_product(shc_vd a, shc_vd b)
{
    shc_v64 minus = {0};
    for (size_t i = 0; i < sizeof minus / sizeof minus[0]; i += 2)
        minus[i] = UINT64_C(1) << 63;
    const shc_vd im = (shc_vd)((shc_v64)SHC_VEC_SECONDD(a) ^ minus);
    return SHC_VEC_FIRSTD(a) * b + im * SHC_VEC_SWAPD(b);
}

#endif
