// SPDX-License-Identifier: BSD-3-Clause
//
// The conversions of narrow floats, exhaustively where the format is small enough: directly, and through
// the kernels of every instruction set, where hardware may do them.
//
extern "C" {
#include "shm/kernel/half.h"
#include "shm/kernel/kernel.h"
}
#include "tests/support/ref.h"

#include <cmath>
#include <gtest/gtest.h>

namespace
{

float up(shc_dtype dtype, uint32_t code)
{
    switch (dtype) {
    case SHC_FLOAT16:
        return shc_narrow_up(code, SHC_FP16);
    case SHC_FLOAT8_E4M3FN:
        return shc_narrow_up(code, SHC_E4M3FN);
    case SHC_FLOAT8_E5M2:
        return shc_narrow_up(code, SHC_E5M2);
    case SHC_FLOAT8_E4M3FNUZ:
        return shc_narrow_up(code, SHC_E4M3FNUZ);
    case SHC_FLOAT8_E5M2FNUZ:
        return shc_narrow_up(code, SHC_E5M2FNUZ);
    default:
        return shc_bf16_up(code);
    }
}

uint32_t down(shc_dtype dtype, float x)
{
    switch (dtype) {
    case SHC_FLOAT16:
        return shc_narrow_down(x, SHC_FP16);
    case SHC_FLOAT8_E4M3FN:
        return shc_narrow_down(x, SHC_E4M3FN);
    case SHC_FLOAT8_E5M2:
        return shc_narrow_down(x, SHC_E5M2);
    case SHC_FLOAT8_E4M3FNUZ:
        return shc_narrow_down(x, SHC_E4M3FNUZ);
    case SHC_FLOAT8_E5M2FNUZ:
        return shc_narrow_down(x, SHC_E5M2FNUZ);
    default:
        return shc_bf16_down(x);
    }
}

class EveryNarrow : public testing::TestWithParam<shc_dtype>
{
  protected:
    shc_dtype dtype_ = GetParam();
    ref::Narrow format_ = ref::narrow(GetParam());
    uint32_t codes_ = 2 * format_.sign();

    // Any NaN for a NaN, otherwise bit for bit.
    void expect_down(float x, uint32_t got, const char *how) const
    {
        const uint32_t expected = format_.code(x);
        if (std::isnan(x))
            ASSERT_TRUE(format_.is_nan(got)) << how << " " << x << " -> " << got;
        else
            ASSERT_EQ(got, expected) << how << " " << std::hexfloat << x;
    }

    // Calls f with every midpoint between neighbours, its own neighbours, the codes themselves,
    // and what lies beyond the ends.
    template <class F>
    void for_each_critical_float(F f) const
    {
        for (uint32_t code = 0; code < codes_; code++) {
            if (format_.is_nan(code))
                continue;
            const float x = static_cast<float>(format_.value(code));
            const float y = static_cast<float>(format_.value((code + 1) & (codes_ - 1)));
            const float middle = x / 2 + y / 2;
            for (float v : {x, middle, std::nextafter(middle, x), std::nextafter(middle, y),
                            std::nextafter(x, INFINITY), std::nextafter(x, -INFINITY)})
                f(v);
        }
        for (double v :
             {240.,   247.9,  248.,   256.,   448.,   463.9,   464.,   464.1,  480., 496.,  512.,
              57344., 61439., 61440., 61441., 65504., 65519.9, 65520., 65536., 1e30, 3.4e38})
            for (double sign : {1., -1.})
                f(static_cast<float>(sign * v));
        for (float v : {0.0f, -0.0f, INFINITY, -INFINITY, 0x1p-149f, -0x1p-149f, 0x1p-126f})
            f(v);
        for (uint32_t bits : {0x7f800001u, 0x7fc00000u, 0xffffffffu, 0xff800001u, 0x7fa00000u})
            f(shc_float_of(bits));
    }
};

TEST_P(EveryNarrow, EveryCodeHasItsValue)
{
    for (uint32_t code = 0; code < codes_; code++) {
        const float got = up(dtype_, code);
        if (format_.is_nan(code)) {
            ASSERT_TRUE(std::isnan(got)) << std::hex << code;
            continue;
        }
        const float expected = static_cast<float>(format_.value(code));
        ASSERT_EQ(shc_float_bits(got), shc_float_bits(expected)) << std::hex << code;
    }
}

TEST_P(EveryNarrow, HalfwayCasesRoundToEven)
{
    for_each_critical_float([this](float x) { expect_down(x, down(dtype_, x), "direct"); });
}

TEST_P(EveryNarrow, ADenseSweepOfFloatsRoundsToNearest)
{
    // A prime step: every exponent, and all low bits over the sweep.
    const uint32_t step = 2039;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += step) {
        const float x = shc_float_of(static_cast<uint32_t>(bits));
        expect_down(x, down(dtype_, x), "direct");
        if (HasFatalFailure())
            return;
    }
}

// A kernel's own conversions: 1 times a factor is the factor as a float, rounded once.
TEST_P(EveryNarrow, KernelsOfEveryInstructionSetRoundTheSame)
{
    const uint32_t one = format_.code(1);
    for (int isa = 0; isa < SHC_ISA_COUNT; isa++) {
        const shc_reduce_fn scale =
            shc_kernel_reduce_isa(static_cast<shc_isa>(isa), dtype_, SHC_PREMUL_SUM);
        if (!scale)
            continue;
        // A whole word or vector of any kernel, and a rest.
        const size_t count = 67, bytes = shc_dtype_bytes(dtype_);
        std::vector<uint8_t> in(count * bytes), out(count * bytes);
        for (size_t i = 0; i < count; i++)
            memcpy(&in[i * bytes], &one, bytes);
        for_each_critical_float([&](float x) {
            const double factor = x;
            const void *src[] = {in.data()};
            void *dst[] = {out.data()};
            const shc_reduce_args args = {src, dst, 1, 1, count, &factor};
            scale(&args);
            uint32_t got = 0;
            memcpy(&got, out.data(), bytes);
            expect_down(x, got, shc_isa_name(static_cast<shc_isa>(isa)));
            // Each result equals the one before it.
            ASSERT_EQ(memcmp(out.data() + bytes, out.data(), (count - 1) * bytes), 0) << x;
        });
    }
}

TEST_P(EveryNarrow, KernelsOfEveryInstructionSetReadEveryCode)
{
    const size_t bytes = shc_dtype_bytes(dtype_);
    std::vector<uint8_t> all(codes_ * bytes), out(codes_ * bytes);
    for (uint32_t code = 0; code < codes_; code++)
        memcpy(&all[code * bytes], &code, bytes);
    for (int isa = 0; isa < SHC_ISA_COUNT; isa++) {
        const shc_reduce_fn largest =
            shc_kernel_reduce_isa(static_cast<shc_isa>(isa), dtype_, SHC_MAX);
        if (!largest)
            continue;
        const void *src[] = {all.data(), all.data()};
        void *dst[] = {out.data()};
        const shc_reduce_args args = {src, dst, 2, 1, codes_, nullptr};
        largest(&args);
        for (uint32_t code = 0; code < codes_; code++)
            ASSERT_TRUE(ref::same(dtype_, &all[code * bytes], &out[code * bytes]))
                << shc_isa_name(static_cast<shc_isa>(isa)) << " " << std::hex << code;
    }
}

// Of 16 bits there are too many pairs.
class EveryFp8 : public EveryNarrow
{
};

TEST_P(EveryFp8, KernelsOfEveryInstructionSetCombineEveryPair)
{
    std::vector<uint8_t> a(1 << 16), b(1 << 16), out(1 << 16), expected(1 << 16);
    for (size_t i = 0; i < a.size(); i++) {
        a[i] = static_cast<uint8_t>(i);
        b[i] = static_cast<uint8_t>(i >> 8);
    }
    const void *src[] = {a.data(), b.data()};
    void *dst[] = {out.data()};
    const shc_reduce_args args = {src, dst, 2, 1, a.size(), nullptr};
    for (shc_redop redop : {SHC_SUM, SHC_AVG, SHC_PRODUCT, SHC_MIN, SHC_MAX}) {
        for (size_t i = 0; i < a.size(); i++)
            ref::reduce(dtype_, redop, {a.data(), b.data()}, i, nullptr, &expected[i]);
        for (int isa = 0; isa < SHC_ISA_COUNT; isa++) {
            const shc_reduce_fn reduce =
                shc_kernel_reduce_isa(static_cast<shc_isa>(isa), dtype_, redop);
            if (!reduce)
                continue;
            reduce(&args);
            for (size_t i = 0; i < a.size(); i++)
                ASSERT_TRUE(ref::same(dtype_, &out[i], &expected[i]))
                    << shc_isa_name(static_cast<shc_isa>(isa)) << " " << shc_redop_name(redop)
                    << std::hex << " " << +a[i] << " " << +b[i] << " gave " << +out[i];
        }
    }
}

std::string format_name(const testing::TestParamInfo<shc_dtype> &test)
{
    return shc_dtype_name(test.param);
}

INSTANTIATE_TEST_SUITE_P(Formats, EveryNarrow,
                         testing::Values(SHC_FLOAT16, SHC_BFLOAT16, SHC_FLOAT8_E4M3FN,
                                         SHC_FLOAT8_E5M2, SHC_FLOAT8_E4M3FNUZ, SHC_FLOAT8_E5M2FNUZ),
                         format_name);
INSTANTIATE_TEST_SUITE_P(Formats, EveryFp8,
                         testing::Values(SHC_FLOAT8_E4M3FN, SHC_FLOAT8_E5M2, SHC_FLOAT8_E4M3FNUZ,
                                         SHC_FLOAT8_E5M2FNUZ),
                         format_name);

// The result of torch 2.13; older versions gave a NaN.
TEST(Half, E4m3fnOverflowsToItsLargestValue)
{
    EXPECT_EQ(shc_narrow_down(1e9f, SHC_E4M3FN), 0x7eu);
    EXPECT_EQ(shc_narrow_down(-INFINITY, SHC_E4M3FN), 0xfeu);
}

TEST(Half, TheFnuzFormsOverflowToTheirNanAndHaveNoMinusZero)
{
    EXPECT_EQ(shc_narrow_down(1e9f, SHC_E4M3FNUZ), 0x80u);
    EXPECT_EQ(shc_narrow_down(-INFINITY, SHC_E5M2FNUZ), 0x80u);
    EXPECT_EQ(shc_narrow_down(-0.0f, SHC_E4M3FNUZ), 0u);
    EXPECT_EQ(shc_narrow_down(-0x1p-40f, SHC_E5M2FNUZ), 0u);
}

} // namespace
