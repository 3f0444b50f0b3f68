/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The operations on one integer type. Included once per type, before reduce_tmpl.h, with
 *   NAME(x)  x with the type's prefix
 *   ACC      the type
 * Sums and products wrap. They exist for unsigned types only, for which that is defined.
 */

SHC_INLINE ACC NAME(sum)(ACC a, ACC b)
{
    return (ACC)(a + b);
}

/* Not in int, to which narrow types promote and which does not wrap. */
SHC_INLINE ACC NAME(product)(ACC a, ACC b)
{
    return (ACC)((uint64_t)a * (uint64_t)b);
}

SHC_INLINE ACC NAME(min)(ACC a, ACC b)
{
    return a < b ? a : b;
}

SHC_INLINE ACC NAME(max)(ACC a, ACC b)
{
    return a > b ? a : b;
}

SHC_INLINE ACC NAME(band)(ACC a, ACC b)
{
    return (ACC)(a & b);
}

SHC_INLINE ACC NAME(bor)(ACC a, ACC b)
{
    return (ACC)(a | b);
}

SHC_INLINE ACC NAME(bxor)(ACC a, ACC b)
{
    return (ACC)(a ^ b);
}

/* The average of two, toward zero. The bits that they share, plus half of the bits in which they
 * differ, is the floor. If that is negative and not exact, one more. */
SHC_INLINE ACC NAME(mean)(ACC a, ACC b)
{
    const ACC differ = (ACC)(a ^ b);
    const ACC low = (ACC)((a & b) + (differ >> 1));
    const bool with_sign = (ACC)-1 < 1;
    return (ACC)(low + (with_sign ? (low >> (8 * sizeof(ACC) - 1)) & differ & 1 : 0));
}
