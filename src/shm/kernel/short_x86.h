/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * Short sums of two sources, independent of the thread's floating-point mode: by AVX-512
 * instructions that carry their rounding and raise nothing. Reading the mode takes 6 ns of a small
 * all_reduce of two ranks, which takes 60 ns on a Zen 5. One part of the mode still matters to
 * these instructions: whether denormals count as zeros. So a denormal is added first, and if it is
 * lost, this path is not taken. The bits are those of the kernels that it replaces.
 */

#include "shm/kernel/kernel.h"

#ifdef __AVX512VL__
#include <immintrin.h>

#define SHC_SHORT_BYTES    256
#define SHC_SHORT_ROUNDING (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

SHC_INLINE bool shc_short_keeps_denormals(void)
{
    __m128i least = _mm_cvtsi32_si128(1);
    __asm__("" : "+v"(least)); /* the compiler knows the result, but only in the default mode */
    const __m128 kept =
        _mm_add_round_ss(_mm_castsi128_ps(least), _mm_setzero_ps(), SHC_SHORT_ROUNDING);
    return _mm_cvtsi128_si32(_mm_castps_si128(kept)) == 1;
}

/* The first words of a vector, of 4 bytes. */
SHC_INLINE __mmask16 shc_short_words(size_t bytes)
{
    return (__mmask16)(bytes < 64 ? (1u << bytes / 4) - 1 : 0xffffu);
}

/* `bytes`, up to 64 of them, followed by zeros. Read in no wider piece than necessary: the next
 * line may be one that another rank stores to. */
SHC_INLINE __m512i shc_short_load(const char *from, size_t bytes)
{
    const __mmask16 words = shc_short_words(bytes);
    if (bytes <= 16)
        return _mm512_zextsi128_si512(_mm_maskz_loadu_epi32((__mmask8)words, from));
    if (bytes <= 32)
        return _mm512_zextsi256_si512(_mm256_maskz_loadu_epi32((__mmask8)words, from));
    return _mm512_maskz_loadu_epi32(words, from);
}

SHC_INLINE __m512i shc_f32_short_sum(__m512i x, __m512i y, bool half)
{
    __m512 sum =
        _mm512_add_round_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(y), SHC_SHORT_ROUNDING);
    if (half)
        sum = _mm512_mul_round_ps(sum, _mm512_set1_ps(0.5f), SHC_SHORT_ROUNDING);
    return _mm512_castps_si512(sum);
}

SHC_INLINE __m512i shc_f64_short_sum(__m512i x, __m512i y, bool half)
{
    __m512d sum =
        _mm512_add_round_pd(_mm512_castsi512_pd(x), _mm512_castsi512_pd(y), SHC_SHORT_ROUNDING);
    if (half)
        sum = _mm512_mul_round_pd(sum, _mm512_set1_pd(0.5), SHC_SHORT_ROUNDING);
    return _mm512_castpd_si512(sum);
}

/* False: nothing has been done. `half`: their average. */
SHC_INLINE bool shc_short_sum(const struct shc_reduce_args *args, size_t elem_bytes, bool half,
                              __m512i (*sum)(__m512i x, __m512i y, bool half))
{
    const size_t bytes = args->count * elem_bytes;
    if (args->count == 0 || args->src_count != 2 || args->dst_count != 1 ||
        args->count > SHC_SHORT_BYTES / elem_bytes || !shc_short_keeps_denormals())
        return false;
    const char *x = args->src[0], *y = args->src[1];
    char *d = args->dst[0];
    for (size_t i = 0; i < bytes; i += 64)
        _mm512_mask_storeu_epi32(
            d + i, shc_short_words(bytes - i),
            sum(shc_short_load(x + i, bytes - i), shc_short_load(y + i, bytes - i), half));
    return true;
}

#endif
