/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The operations on accumulators that are not plain integers (those: ops_int_tmpl.h). Two shapes:
 * `binary` combines the result so far with the next source, `unary` treats one value with a number
 * (a source with its factor, the sum with the count).
 */

#include "shm/kernel/half.h"

/* ---- float ---- */

SHC_INLINE float shc_f32_sum(float a, float b)
{
    return a + b;
}

SHC_INLINE float shc_f32_product(float a, float b)
{
    return a * b;
}

/* The two are one instruction each. They differ if both are zeros, of which the OR is the smaller
 * one, or if one is a NaN, which the OR keeps. */
SHC_INLINE float shc_f32_min(float a, float b)
{
    const float x = a < b ? a : b, y = b < a ? b : a;
    return shc_float_of(shc_float_bits(x) | shc_float_bits(y));
}

/* Here the signs are ANDed: the larger zero. */
SHC_INLINE float shc_f32_max(float a, float b)
{
    const uint32_t x = shc_float_bits(a > b ? a : b), y = shc_float_bits(b > a ? b : a);
    return shc_float_of((x & y) | ((x | y) & SHC_FLOAT_MAGNITUDE));
}

SHC_INLINE float shc_f32_divide(float x, double n)
{
    return x / (float)n;
}

/* The same bits if n is a power of two, and much faster. */
SHC_INLINE float shc_f32_part(float x, double n)
{
    return x * (float)(1 / n);
}

SHC_INLINE float shc_f32_scale(float x, double factor)
{
    return (float)factor * x;
}

/* ---- double ---- */

SHC_INLINE uint64_t shc_double_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

SHC_INLINE double shc_double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

SHC_INLINE double shc_f64_sum(double a, double b)
{
    return a + b;
}

SHC_INLINE double shc_f64_product(double a, double b)
{
    return a * b;
}

/* See shc_f32_min. */
SHC_INLINE double shc_f64_min(double a, double b)
{
    const double x = a < b ? a : b, y = b < a ? b : a;
    return shc_double_of(shc_double_bits(x) | shc_double_bits(y));
}

/* Here the signs are ANDed: the larger zero. */
SHC_INLINE double shc_f64_max(double a, double b)
{
    const uint64_t x = shc_double_bits(a > b ? a : b), y = shc_double_bits(b > a ? b : a);
    return shc_double_of((x & y) | ((x | y) & (UINT64_MAX >> 1)));
}

SHC_INLINE double shc_f64_divide(double x, double n)
{
    return x / n;
}

/* See shc_f32_part(). */
SHC_INLINE double shc_f64_part(double x, double n)
{
    return x * (1 / n);
}

SHC_INLINE double shc_f64_scale(double x, double factor)
{
    return factor * x;
}

/*
 * ---- the order of narrow floats ----
 *
 * By their codes, as signed integers: no conversion, and as many per vector as fit. Codes without a
 * sign have the order of the floats, those with a sign the reverse order, and -0 lies below +0. A
 * NaN wins, and the result is `nan`; `is_nan` tells whether one of two codes is one.
 */
#define SHC_NARROW_ORDER(name, type, is_nan, nan)             \
    SHC_INLINE type shc_##name##_min(type a, type b)          \
    {                                                         \
        const type low = a < b ? a : b, high = a > b ? a : b; \
        const type out = (type)(a & b) < 0 ? high : low;      \
        return is_nan ? (nan) : out;                          \
    }                                                         \
    SHC_INLINE type shc_##name##_max(type a, type b)          \
    {                                                         \
        const type low = a < b ? a : b, high = a > b ? a : b; \
        const type out = (type)(a & b) < 0 ? low : high;      \
        return is_nan ? (nan) : out;                          \
    }

/* Above all numbers without a sign, of which `most` is the largest. */
SHC_INLINE bool shc_code16_above(int16_t a, int16_t b, int16_t most)
{
    const int16_t x = (int16_t)(a & INT16_MAX), y = (int16_t)(b & INT16_MAX);
    return (x > y ? x : y) > most;
}

SHC_INLINE bool shc_code8_above(int8_t a, int8_t b, int8_t most)
{
    const int8_t x = (int8_t)(a & INT8_MAX), y = (int8_t)(b & INT8_MAX);
    return (x > y ? x : y) > most;
}

SHC_NARROW_ORDER(bf16, int16_t, shc_code16_above(a, b, 0x7f80), 0x7fc0)
SHC_NARROW_ORDER(fp16, int16_t, shc_code16_above(a, b, 0x7c00), 0x7e00)
SHC_NARROW_ORDER(e5m2, int8_t, shc_code8_above(a, b, 0x7c), 0x7f)
SHC_NARROW_ORDER(e4m3fn, int8_t, shc_code8_above(a, b, 0x7e), 0x7f)
/* The sign alone, the least of all integers. */
SHC_NARROW_ORDER(e4m3fnuz, int8_t, low == INT8_MIN, INT8_MIN)
SHC_NARROW_ORDER(e5m2fnuz, int8_t, low == INT8_MIN, INT8_MIN)

/* ---- complex: sums work on the parts as floats, only the product sees the pair ---- */

struct shc_c64 {
    float re, im;
};

struct shc_c128 {
    double re, im;
};

/* (ac - bd, ad + bc). The minus is on a factor, which changes no bit: gcc 12 makes a fused fmaddsub
 * of a subtraction next to an addition, with -ffp-contract=off too. */
SHC_INLINE struct shc_c64 shc_c64_product(struct shc_c64 a, struct shc_c64 b)
{
    return (struct shc_c64){a.re * b.re + -a.im * b.im, a.re * b.im + a.im * b.re};
}

SHC_INLINE struct shc_c128 shc_c128_product(struct shc_c128 a, struct shc_c128 b)
{
    return (struct shc_c128){a.re * b.re + -a.im * b.im, a.re * b.im + a.im * b.re};
}

/* ---- bool: 0 or 1 once loaded ---- */

SHC_INLINE uint8_t shc_bool_or(uint8_t a, uint8_t b)
{
    return (uint8_t)(a | b);
}

SHC_INLINE uint8_t shc_bool_and(uint8_t a, uint8_t b)
{
    return (uint8_t)(a & b);
}

SHC_INLINE uint8_t shc_bool_xor(uint8_t a, uint8_t b)
{
    return (uint8_t)(a ^ b);
}

/*
 * ---- the average of integers: a sum in 64 bits that may wrap, divided toward zero ----
 *
 * The sum of 2^8 integers (SHC_MAX_WORLD) of up to 16 bits is exact in a float, of 32 bits in a
 * double. And the quotient is truncated correctly: a value below an integer k is at least 2^-8
 * below it, and k - 2^-8 has as many bits as there are, so no rounding reaches k.
 */

SHC_INLINE uint64_t shc_wide_sum(uint64_t a, uint64_t b)
{
    return a + b;
}

SHC_INLINE uint64_t shc_wide_divide_signed(uint64_t x, double n)
{
    return (uint64_t)((int64_t)x / (int64_t)n);
}

SHC_INLINE uint64_t shc_wide_divide(uint64_t x, double n)
{
    return x / (uint64_t)n;
}
