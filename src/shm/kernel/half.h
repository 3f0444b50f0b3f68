/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * bf16, fp16 and the four fp8 forms <-> float, without branches or tables so that loops over them
 * vectorise. One element sits in the low bits of a uint32_t.
 *
 * Both directions give the bits of torch's tensor.to(), one rounding to nearest even included; the
 * exception is the payload of a bf16 NaN, which differs inside torch too. float8_e4m3fn overflows
 * to its largest finite value (torch >= 2.13), the fnuz forms to their only NaN, the others to inf.
 *
 * Right in the default rounding and denormal mode only (kernel/fpenv.h).
 */

#include "shm/base/attrs.h"
#include <stdbool.h>
#include <string.h>

SHC_INLINE uint32_t shc_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

SHC_INLINE float shc_float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#define SHC_FLOAT_MAGNITUDE 0x7fffffffu
#define SHC_FLOAT_INF       0x7f800000u
#define SHC_FLOAT_QNAN      0x7fc00000u

/* Signed on purpose: the bits of floats that are not negative have the order of the floats, with
 * NaN above all, and SSE2 and AVX2 compare signed lanes only. */
SHC_INLINE bool shc_bits_above(uint32_t a, uint32_t b)
{
    return (int32_t)a > (int32_t)b;
}

/* ---- bf16 ---- */

SHC_INLINE float shc_bf16_up(uint32_t h)
{
    return shc_float_of(h << 16);
}

SHC_INLINE uint32_t shc_bf16_down(float x)
{
    const uint32_t bits = shc_float_bits(x);
    const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return (x != x ? SHC_FLOAT_QNAN : rounded) >> 16;
}

/* ---- fp16 and fp8 ---- */

enum shc_narrow_kind {
    SHC_NARROW_IEEE, /* the top exponent is inf and NaN */
    SHC_NARROW_FN,   /* no inf; NaN is all ones; overflow stays finite */
    SHC_NARROW_FNUZ, /* no inf, no -0; NaN is the sign bit alone */
};

/* Used as compile-time constants: every field folds into the code. */
struct shc_narrow {
    enum shc_narrow_kind kind;
    uint32_t sign;     /* the sign bit */
    uint32_t man_bits; /* bits of fraction */
    uint32_t bias;
    uint32_t limit; /* float bits; what is above counts as this */
    uint32_t nan;   /* code of a NaN, less sign; unused by FNUZ, where limit is the NaN */
};

#define SHC_FP16     ((struct shc_narrow){SHC_NARROW_IEEE, 0x8000, 10, 15, 0x47800000, 0x7e00})
#define SHC_E5M2     ((struct shc_narrow){SHC_NARROW_IEEE, 0x80, 2, 15, 0x47800000, 0x7f})
#define SHC_E4M3FN   ((struct shc_narrow){SHC_NARROW_FN, 0x80, 3, 7, 0x43e00000, 0x7f})
#define SHC_E4M3FNUZ ((struct shc_narrow){SHC_NARROW_FNUZ, 0x80, 3, 8, 0x43800000, 0})
#define SHC_E5M2FNUZ ((struct shc_narrow){SHC_NARROW_FNUZ, 0x80, 2, 16, 0x47800000, 0})

SHC_INLINE float shc_narrow_up(uint32_t h, struct shc_narrow f)
{
    const uint32_t one = 1u << 23; /* of the float's exponent */
    const uint32_t code = h & (f.sign - 1);
    const uint32_t normal = (code << (23 - f.man_bits)) + (127 - f.bias) * one;
    /* A denormal borrows the exponent of the smallest normal and gives its value back. */
    const float denormal = shc_float_of(normal + one) - shc_float_of((128 - f.bias) * one);
    const bool is_normal = shc_bits_above(code, (1u << f.man_bits) - 1);
    uint32_t bits = is_normal ? normal : shc_float_bits(denormal);
    if (f.kind == SHC_NARROW_IEEE) {
        const uint32_t inf = (f.sign - 1) >> f.man_bits << f.man_bits;
        bits |= shc_bits_above(code, inf - 1) ? SHC_FLOAT_INF : 0;
        bits |= shc_bits_above(code, inf) ? SHC_FLOAT_QNAN : 0;
    } else if (f.kind == SHC_NARROW_FN) {
        bits |= code == f.nan ? SHC_FLOAT_INF : 0;
    }
    bits |= (h & f.sign) * (0x80000000u / f.sign);
    if (f.kind == SHC_NARROW_FNUZ)
        bits = h == f.sign ? SHC_FLOAT_INF + 1 : bits;
    return shc_float_of(bits);
}

SHC_INLINE uint32_t shc_narrow_down(float x, struct shc_narrow f)
{
    const uint32_t one = 1u << 23;
    const uint32_t least = (128 - f.bias) * one; /* the smallest normal */
    const uint32_t bits = shc_float_bits(x);
    const uint32_t size = bits & SHC_FLOAT_MAGNITUDE;
    const uint32_t a = shc_bits_above(size, f.limit) ? f.limit : size;
    /* Adding a power of two this much larger than `a` leaves man_bits of fraction, or fewer below
     * the smallest normal, rounded to nearest even by the addition itself. */
    const uint32_t power = a & SHC_FLOAT_INF;
    const uint32_t exponent = shc_bits_above(power, least) ? power : least;
    const uint32_t magic = exponent + (23 - f.man_bits) * one;
    const uint32_t fraction = shc_float_bits(shc_float_of(a) + shc_float_of(magic)) - magic;
    uint32_t code = ((exponent - least) >> (23 - f.man_bits)) + fraction;
    const bool nan = x != x;
    if (f.kind == SHC_NARROW_IEEE && f.sign == 0x8000)
        code = nan ? f.nan | ((bits >> 13) & 0x3ff) : code; /* like the hardware */
    else if (f.kind != SHC_NARROW_FNUZ)
        code = nan ? f.nan : code;
    const uint32_t sign = (bits & ~SHC_FLOAT_MAGNITUDE) / (0x80000000u / f.sign);
    if (f.kind == SHC_NARROW_FNUZ)
        return code == 0 ? 0 : code | sign;
    return code | sign;
}
