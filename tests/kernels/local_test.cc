// SPDX-License-Identifier: BSD-3-Clause
// Reductions and conversions of arrays of this process: shc_reduce_local, shc_fold, shc_convert.
#include "tests/support/elements.h"

extern "C" {
#include "shm/base/status.h"
}

#include <cfenv>

using namespace elements;

namespace
{

std::vector<const void *> pointers_to(const std::vector<Bytes> &sources)
{
    std::vector<const void *> pointers;
    for (const Bytes &source : sources)
        pointers.push_back(source.data());
    return pointers;
}

// Each source is one input: then a fold is the reduction.
TEST(Fold, OfSingleInputsIsTheReduction)
{
    for (const Combination &c : combinations())
        for (const size_t count : {1, 2, 3, 4, 7})
            for (const size_t length : {0, 1, 3, 511, 513, 1100}) {
                const std::vector<Bytes> sources = random_sources(c.dtype, count, length);
                const Combination as = {c.dtype, c.redop == SHC_PREMUL_SUM ? SHC_SUM : c.redop};
                const Bytes expected = expected_of(as, sources, {}, length);
                Guarded out(expected.size(), 1);
                ASSERT_EQ(shc_fold(c.dtype, c.redop, pointers_to(sources).data(),
                                   static_cast<int>(count), out.data(), length,
                                   static_cast<uint32_t>(count)),
                          SHC_OK);
                ASSERT_TRUE(all_same(c.dtype, out.data(), expected))
                    << name_of(c) << " of " << count << ", " << length << " elements";
                ASSERT_TRUE(out.margins_intact()) << name_of(c);
            }
}

template <class T>
T fold(shc_dtype dtype, shc_redop redop, const std::vector<T> &sources, uint32_t parts)
{
    std::vector<const void *> pointers;
    for (const T &source : sources)
        pointers.push_back(&source);
    T out = sources[0];
    EXPECT_EQ(
        shc_fold(dtype, redop, pointers.data(), static_cast<int>(pointers.size()), &out, 1, parts),
        SHC_OK);
    return out;
}

TEST(Fold, DividesByTheNumberOfInputsAndRoundsOnce)
{
    EXPECT_EQ(fold<float>(SHC_FLOAT32, SHC_AVG, {4, 6}, 5), 2.f);
    EXPECT_EQ(fold<float>(SHC_FLOAT32, SHC_AVG, {48, 1}, 49), 1.f); // not 49 * (1/49)
    EXPECT_EQ(fold<double>(SHC_FLOAT64, SHC_AVG, {1, 2}, 10), .3);
    EXPECT_EQ(fold<int64_t>(SHC_INT64, SHC_AVG, {-4, -4}, 3), -2);
    EXPECT_EQ(fold<uint64_t>(SHC_UINT64, SHC_AVG, {1ull << 63, 6}, 2), (1ull << 62) + 3);
    EXPECT_EQ(fold<int8_t>(SHC_INT8, SHC_AVG, {-128, -128, -127}, 4), -95);
    EXPECT_EQ(fold<uint16_t>(SHC_UINT16, SHC_AVG, {65535, 65535}, 4), 32767);
    // bf16: 256 + 3 is no bf16, but a quarter of it is; rounded after the sum it would be 65.
    EXPECT_EQ(fold<uint16_t>(SHC_BFLOAT16, SHC_AVG, {0x4380, 0x4040}, 4), 0x4282); // 64.75 -> 65
    EXPECT_EQ(fold<uint16_t>(SHC_BFLOAT16, SHC_AVG, {0x4380, 0x3f80}, 257), 0x3f80);
    // fp16: 60000 + 60000 is beyond its range, the average is not.
    EXPECT_EQ(fold<uint16_t>(SHC_FLOAT16, SHC_AVG, {0x7b53, 0x7b53}, 2), 0x7b53);
    EXPECT_EQ(fold<float>(SHC_FLOAT32, SHC_PREMUL_SUM, {1, 2}, 7), 3.f);
}

TEST(Fold, SumsAreThoseOfTheInputsInOrder)
{
    const size_t length = 700;
    const std::vector<Bytes> inputs = random_sources(SHC_FLOAT32, 5, length);
    const std::vector<const void *> p = pointers_to(inputs);
    std::vector<Bytes> sums(2, Bytes(length * 4));
    ASSERT_EQ(shc_reduce_local(SHC_FLOAT32, SHC_SUM, &p[0], 3, sums[0].data(), length, nullptr),
              SHC_OK);
    ASSERT_EQ(shc_reduce_local(SHC_FLOAT32, SHC_SUM, &p[3], 2, sums[1].data(), length, nullptr),
              SHC_OK);
    for (size_t i = 0; i < length; i++) {
        float x[5], out;
        for (size_t r = 0; r < 5; r++)
            memcpy(&x[r], inputs[r].data() + i * 4, 4);
        const float first = x[0] + x[1], host0 = first + x[2], host1 = x[3] + x[4];
        const float sum = host0 + host1, expected = sum / 5.f;
        const void *sources[] = {sums[0].data() + i * 4, sums[1].data() + i * 4};
        ASSERT_EQ(shc_fold(SHC_FLOAT32, SHC_AVG, sources, 2, &out, 1, 5), SHC_OK);
        ASSERT_TRUE(out == expected || (out != out && expected != expected)) << i;
    }
}

TEST(Fold, MayBeInPlace)
{
    for (const shc_dtype dtype : {SHC_FLOAT32, SHC_BFLOAT16, SHC_INT8}) {
        std::vector<Bytes> sources = random_sources(dtype, 3, 1500);
        const Bytes expected = expected_of({dtype, SHC_AVG}, sources, {}, 1500);
        const std::vector<const void *> p = pointers_to(sources);
        ASSERT_EQ(shc_fold(dtype, SHC_AVG, p.data(), 3, sources[1].data(), 1500, 3), SHC_OK);
        EXPECT_TRUE(all_same(dtype, sources[1].data(), expected));
    }
}

TEST(Fold, RefusesWhatThereIsNot)
{
    const float x = 1;
    const void *source = &x;
    float out = 7;
    EXPECT_EQ(shc_fold(SHC_FLOAT32, SHC_BAND, &source, 1, &out, 1, 1), SHC_ERR_UNSUPPORTED);
    EXPECT_EQ(shc_fold(SHC_FLOAT32, SHC_SUM, &source, 0, &out, 1, 1), SHC_ERR_INVALID);
    EXPECT_EQ(shc_fold(SHC_FLOAT32, SHC_AVG, &source, 1, &out, 1, 0), SHC_ERR_INVALID);
    EXPECT_EQ(shc_reduce_local(SHC_FLOAT32, SHC_PREMUL_SUM, &source, 1, &out, 1, nullptr),
              SHC_ERR_INVALID);
    EXPECT_EQ(out, 7);
}

TEST(Convert, EveryNarrowFloatHasItsValueAndComesBack)
{
    for (const shc_dtype dtype : {SHC_FLOAT16, SHC_BFLOAT16, SHC_FLOAT8_E4M3FN, SHC_FLOAT8_E5M2,
                                  SHC_FLOAT8_E4M3FNUZ, SHC_FLOAT8_E5M2FNUZ}) {
        const ref::Narrow format = ref::narrow(dtype);
        const size_t bytes = shc_dtype_bytes(dtype), codes = size_t{1} << format.bits;
        Bytes narrow(codes * bytes), back(codes * bytes);
        std::vector<float> wide(codes);
        for (size_t code = 0; code < codes; code++)
            memcpy(narrow.data() + code * bytes, &code, bytes);
        ASSERT_EQ(shc_convert(dtype, narrow.data(), SHC_FLOAT32, wide.data(), codes), SHC_OK);
        ASSERT_EQ(shc_convert(SHC_FLOAT32, wide.data(), dtype, back.data(), codes), SHC_OK);
        EXPECT_TRUE(all_same(dtype, back.data(), narrow)) << shc_dtype_name(dtype);
        for (size_t code = 0; code < codes; code++) {
            const auto c = static_cast<uint32_t>(code);
            if (!format.is_nan(c))
                ASSERT_EQ(wide[code], format.value(c)) << shc_dtype_name(dtype) << code;
            else
                ASSERT_NE(wide[code], wide[code]) << shc_dtype_name(dtype) << code;
        }
    }
}

TEST(Convert, IntegersAreWidenedAndCut)
{
    const int8_t bytes[] = {-128, -1, 127};
    int64_t wide[3];
    ASSERT_EQ(shc_convert(SHC_INT8, bytes, SHC_INT64, wide, 3), SHC_OK);
    EXPECT_EQ(wide[0], -128);
    EXPECT_EQ(wide[1], -1);
    EXPECT_EQ(wide[2], 127);
    const int64_t large[] = {-1, 0x123456789ll};
    uint32_t words[2];
    ASSERT_EQ(shc_convert(SHC_INT64, large, SHC_UINT32, words, 2), SHC_OK);
    EXPECT_EQ(words[0], 0xffffffffu);
    EXPECT_EQ(words[1], 0x23456789u);
}

TEST(Convert, RefusesPairsThatAreNone)
{
    float x = 1, y = 2;
    EXPECT_EQ(shc_convert(SHC_FLOAT32, &x, SHC_FLOAT64, &y, 1), SHC_ERR_UNSUPPORTED);
    EXPECT_STREQ(shc_error_text(), "convert: float32 does not become float64");
    EXPECT_EQ(shc_convert(SHC_BOOL, &x, SHC_INT64, &y, 1), SHC_ERR_UNSUPPORTED);
    EXPECT_EQ(shc_convert(static_cast<shc_dtype>(99), &x, SHC_INT64, &y, 1), SHC_ERR_UNSUPPORTED);
    EXPECT_EQ(shc_convert(SHC_INT8, &x, static_cast<shc_dtype>(-1), &y, 1), SHC_ERR_UNSUPPORTED);
    EXPECT_EQ(y, 2);
}

TEST(Fold, TheRoundingModeOfTheCallerIsNotUsedAndIsGivenBack)
{
    const float third = 1.f / 3;
    fesetround(FE_UPWARD);
    const float average = fold<float>(SHC_FLOAT32, SHC_AVG, {1, 0}, 3);
    const float x = 1.00390625f; // between two bf16, nearer to neither: to even
    uint16_t rounded = 0;
    const shc_status st = shc_convert(SHC_FLOAT32, &x, SHC_BFLOAT16, &rounded, 1);
    const int mode = fegetround();
    fesetround(FE_TONEAREST);
    EXPECT_EQ(average, third);
    EXPECT_EQ(st, SHC_OK);
    EXPECT_EQ(rounded, 0x3f80);
    EXPECT_EQ(mode, FE_UPWARD);
}

} // namespace
