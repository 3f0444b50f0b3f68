// SPDX-License-Identifier: BSD-3-Clause
//
// Compares every instruction set x dtype x operation with tests/support/ref, over lengths, numbers of
// sources and destinations, alignments, aliasing and special values.
//
extern "C" {
#include "shm/kernel/kernel.h"
}
#include "tests/support/elements.h"

#include <cfenv>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <string>
#include <sys/mman.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace
{

using namespace elements;

std::vector<shc_isa> usable_isas()
{
    std::vector<shc_isa> isas;
    for (int i = 0; i < SHC_ISA_COUNT; i++)
        if (shc_isa_usable(static_cast<shc_isa>(i)))
            isas.push_back(static_cast<shc_isa>(i));
    return isas;
}

// ---- one call ----

struct Call {
    Combination what;
    size_t length;
    std::vector<int> dst_is_src; // per destination: the source it shares memory with, or -1
};

void run_and_check(shc_isa isa, const Call &call, const std::vector<Bytes> &sources,
                   const std::vector<double> &factors, const Bytes &expected)
{
    const size_t bytes = call.length * shc_dtype_bytes(call.what.dtype);
    std::vector<Guarded> src, dst;
    std::vector<const void *> src_pointers;
    std::vector<void *> dst_pointers;
    std::vector<bool> overwritten(sources.size());
    for (const Bytes &source : sources) {
        src.emplace_back(bytes, below(65));
        src.back().set(source);
    }
    for (size_t k = 0; k < call.dst_is_src.size(); k++)
        dst.emplace_back(bytes, below(65));
    for (Guarded &source : src)
        src_pointers.push_back(source.data());
    for (size_t k = 0; k < dst.size(); k++) {
        const int shared = call.dst_is_src[k];
        dst_pointers.push_back(shared >= 0 ? src[shared].data() : dst[k].data());
        if (shared >= 0)
            overwritten[shared] = true;
    }
    const bool premul = call.what.redop == SHC_PREMUL_SUM;
    const shc_reduce_args args = {
        src_pointers.data(),          dst_pointers.data(), static_cast<int>(src.size()),
        static_cast<int>(dst.size()), call.length,         premul ? factors.data() : nullptr};
    shc_kernel_reduce_isa(isa, call.what.dtype, call.what.redop)(&args);

    const auto where = [&] {
        std::string text = std::string(shc_isa_name(isa)) + " " + name_of(call.what) + ", " +
                           std::to_string(call.length) + " elements, " +
                           std::to_string(src.size()) + " sources, destinations";
        for (int shared : call.dst_is_src)
            text += shared < 0 ? " new" : " src" + std::to_string(shared);
        return text;
    };
    for (size_t k = 0; k < dst.size(); k++) {
        ASSERT_TRUE(all_same(call.what.dtype, static_cast<uint8_t *>(dst_pointers[k]), expected))
            << where() << ", destination " << k;
        ASSERT_TRUE(dst[k].margins_intact()) << where();
    }
    for (size_t s = 0; s < src.size(); s++) {
        ASSERT_TRUE(src[s].margins_intact()) << where();
        ASSERT_TRUE(overwritten[s] || src[s].holds(sources[s])) << where() << ", source " << s;
    }
}

// 1 to 4 destinations, each of which may be one of the sources, no two the same.
std::vector<int> random_destinations(size_t src_count)
{
    std::vector<int> shared;
    for (size_t k = 1 + below(4); k > 0; k--) {
        const int s = below(3) ? -1 : static_cast<int>(below(src_count));
        shared.push_back(std::count(shared.begin(), shared.end(), s) && s >= 0 ? -1 : s);
    }
    return shared;
}

// Around the widths of vectors and words, and across blocks.
const size_t kLengths[] = {0,  1,  2,  3,  4,  5,   7,   8,   9,   15,   16,   17,
                           31, 33, 63, 64, 65, 127, 129, 255, 256, 1023, 1025, 2050};

void check_everything(const Combination &c)
{
    for (size_t length : kLengths) {
        for (size_t src_count = 1; src_count <= 9; src_count++) {
            if (length > 300 && src_count % 4 != 1 && src_count != 2)
                continue;
            const std::vector<Bytes> sources = random_sources(c.dtype, src_count, length);
            const std::vector<double> factors = random_factors(src_count);
            const Bytes expected = expected_of(c, sources, factors, length);
            for (shc_isa isa : usable_isas()) {
                const Call call = {c, length, random_destinations(src_count)};
                run_and_check(isa, call, sources, factors, expected);
                if (testing::Test::HasFatalFailure())
                    return;
            }
        }
    }
}

class EveryReduction : public testing::TestWithParam<Combination>
{
};

TEST_P(EveryReduction, GivesTheReferenceBitsOnEveryInstructionSet)
{
    check_everything(GetParam());
}

TEST_P(EveryReduction, WorksInPlaceOnAnySource)
{
    const Combination c = GetParam();
    const size_t length = 300;
    for (size_t src_count = 1; src_count <= 9; src_count++) {
        const std::vector<Bytes> sources = random_sources(c.dtype, src_count, length);
        const std::vector<double> factors = random_factors(src_count);
        const Bytes expected = expected_of(c, sources, factors, length);
        for (shc_isa isa : usable_isas()) {
            for (int s = 0; s < static_cast<int>(src_count); s++) {
                const int other = (s + 1) % static_cast<int>(src_count);
                run_and_check(isa, {c, length, {s}}, sources, factors, expected);
                run_and_check(isa, {c, length, {-1, s}}, sources, factors, expected);
                if (other != s)
                    run_and_check(isa, {c, length, {s, other, -1}}, sources, factors, expected);
                if (HasFatalFailure())
                    return;
            }
        }
    }
}

TEST_P(EveryReduction, HasTheSameBitsHoweverTheRangeIsCut)
{
    const Combination c = GetParam();
    const size_t length = 700, elem = shc_dtype_bytes(c.dtype);
    for (size_t src_count : {2, 3, 6}) {
        const std::vector<Bytes> sources = random_sources(c.dtype, src_count, length);
        const std::vector<double> factors = random_factors(src_count);
        const Bytes expected = expected_of(c, sources, factors, length);
        for (shc_isa isa : usable_isas()) {
            Bytes out(length * elem);
            for (size_t at = 0, piece; at < length; at += piece) {
                piece = std::min(length - at, below(3) ? 1 + below(20) : 1 + below(200));
                std::vector<const void *> src;
                for (const Bytes &source : sources)
                    src.push_back(source.data() + at * elem);
                void *dst = out.data() + at * elem;
                const shc_reduce_args args = {
                    src.data(), &dst,  static_cast<int>(src_count),
                    1,          piece, c.redop == SHC_PREMUL_SUM ? factors.data() : nullptr};
                shc_kernel_reduce_isa(isa, c.dtype, c.redop)(&args);
            }
            ASSERT_TRUE(all_same(c.dtype, out.data(), expected)) << shc_isa_name(isa);
        }
    }
}

std::string test_name(const testing::TestParamInfo<Combination> &test)
{
    return std::string(shc_dtype_name(test.param.dtype)) + "_" + shc_redop_name(test.param.redop);
}

INSTANTIATE_TEST_SUITE_P(Kernels, EveryReduction, testing::ValuesIn(combinations()), test_name);

// ---- the table ----

TEST(KernelTable, ExistsForWhatTheDesignListsAndNothingElse)
{
    const std::vector<shc_redop> arithmetic = {SHC_SUM, SHC_AVG, SHC_PRODUCT};
    const std::vector<shc_redop> order = {SHC_MIN, SHC_MAX};
    const std::vector<shc_redop> bitwise = {SHC_BAND, SHC_BOR, SHC_BXOR};
    for (int d = 0; d < SHC_DTYPE_COUNT; d++) {
        const auto dtype = static_cast<shc_dtype>(d);
        std::vector<shc_redop> expected;
        const auto add = [&](const std::vector<shc_redop> &ops) {
            expected.insert(expected.end(), ops.begin(), ops.end());
        };
        if (dtype <= SHC_UINT64) {
            add(arithmetic), add(order), add(bitwise);
        } else if (dtype == SHC_BOOL) {
            add({SHC_SUM, SHC_PRODUCT}), add(order), add(bitwise);
        } else if (dtype <= SHC_FLOAT64) {
            add(arithmetic), add(order), add({SHC_PREMUL_SUM});
        } else if (dtype <= SHC_COMPLEX128) {
            add(arithmetic), add({SHC_PREMUL_SUM});
        }
        for (int r = 0; r < SHC_REDOP_COUNT; r++) {
            const auto redop = static_cast<shc_redop>(r);
            const bool exists = std::count(expected.begin(), expected.end(), redop) > 0;
            EXPECT_EQ(shc_reduction_supported(dtype, redop), exists) << name_of({dtype, redop});
            EXPECT_EQ(shc_kernel_reduce(dtype, redop) != nullptr, exists);
            for (shc_isa isa : usable_isas())
                EXPECT_EQ(shc_kernel_reduce_isa(isa, dtype, redop) != nullptr, exists);
        }
    }
}

TEST(KernelTable, AWildDtypeOrOperationIsNotSupported)
{
    EXPECT_FALSE(shc_reduction_supported(static_cast<shc_dtype>(99), SHC_SUM));
    EXPECT_FALSE(shc_reduction_supported(static_cast<shc_dtype>(-1), SHC_SUM));
    EXPECT_FALSE(shc_reduction_supported(SHC_INT8, static_cast<shc_redop>(99)));
    EXPECT_EQ(shc_kernel_reduce(SHC_INT8, static_cast<shc_redop>(-1)), nullptr);
    EXPECT_EQ(shc_kernel_reduce_isa(static_cast<shc_isa>(7), SHC_INT8, SHC_SUM), nullptr);
}

TEST(KernelTable, NothingIsReducedFromAndToNowhere)
{
    const void *src[] = {nullptr, nullptr, nullptr};
    void *dst[] = {nullptr, nullptr, nullptr};
    const double factors[] = {1, 2, 3};
    for (const Combination &c : combinations())
        for (shc_isa isa : usable_isas())
            for (int n = 1; n <= 3; n++) {
                const shc_reduce_args args = {
                    src, dst, n, n, 0, c.redop == SHC_PREMUL_SUM ? factors : nullptr};
                shc_kernel_reduce_isa(isa, c.dtype, c.redop)(&args);
            }
}

// ---- numbers worth a sentence ----

// One element of every source, on every instruction set; the results are all `expected`.
template <class T>
void expect_reduced(shc_dtype dtype, shc_redop redop, const std::vector<T> &values, T expected,
                    const std::vector<double> &factors = {})
{
    for (shc_isa isa : usable_isas()) {
        // 37 copies, so that vectors, words and the remaining elements all see the numbers.
        const size_t length = 37;
        std::vector<std::vector<T>> columns;
        std::vector<const void *> src;
        for (T value : values)
            columns.emplace_back(length, value);
        for (const auto &column : columns)
            src.push_back(column.data());
        std::vector<T> out(length);
        void *dst = out.data();
        const shc_reduce_args args = {
            src.data(), &dst,   static_cast<int>(src.size()),
            1,          length, factors.empty() ? nullptr : factors.data()};
        shc_kernel_reduce_isa(isa, dtype, redop)(&args);
        for (size_t i = 0; i < length; i++)
            ASSERT_EQ(memcmp(&out[i], &expected, sizeof(T)), 0)
                << shc_isa_name(isa) << " element " << i << " of " << name_of({dtype, redop});
    }
}

TEST(KernelNumbers, SourcesAreAddedInTheOrderGiven)
{
    expect_reduced<float>(SHC_FLOAT32, SHC_SUM, {1e30f, -1e30f, 1}, 1);
    expect_reduced<float>(SHC_FLOAT32, SHC_SUM, {1, 1e30f, -1e30f}, 0);
    expect_reduced<double>(SHC_FLOAT64, SHC_SUM, {1e300, -1e300, 1, 1e300, -1e300}, 0);
}

TEST(KernelNumbers, NarrowSumsAreRoundedOnce)
{
    // 256 + 1 is no bf16; 256 + 1 + 1 is. Rounded after every step it would stay 256.
    expect_reduced<uint16_t>(SHC_BFLOAT16, SHC_SUM, {0x4380, 0x3f80, 0x3f80}, 0x4381);
    // 2048 + 1 + 1 in fp16.
    expect_reduced<uint16_t>(SHC_FLOAT16, SHC_SUM, {0x6800, 0x3c00, 0x3c00}, 0x6801);
    // 16 + 1 + 1 in e4m3fn, 8 + 1 + 1 in e5m2.
    expect_reduced<uint8_t>(SHC_FLOAT8_E4M3FN, SHC_SUM, {0x58, 0x38, 0x38}, 0x59);
    expect_reduced<uint8_t>(SHC_FLOAT8_E5M2, SHC_SUM, {0x48, 0x3c, 0x3c}, 0x49);
}

TEST(KernelNumbers, TheAverageIsTheSumDividedAndNotTheSumOfParts)
{
    // 1/3 + 1/3 + 1/3 would show the rounding of 1/3; 49 * (1/49) is not 1 in fp32.
    expect_reduced<float>(SHC_FLOAT32, SHC_AVG, std::vector<float>(49, 1), 1);
    expect_reduced<uint16_t>(SHC_FLOAT16, SHC_AVG, std::vector<uint16_t>(49, 0x3c00), 0x3c00);
}

TEST(KernelNumbers, IntegerAveragesDoNotOverflowAndTruncateTowardZero)
{
    expect_reduced<int8_t>(SHC_INT8, SHC_AVG, {-128, -128, -127}, -127);
    expect_reduced<int8_t>(SHC_INT8, SHC_AVG, {-1, -2}, -1);
    expect_reduced<uint8_t>(SHC_UINT8, SHC_AVG, {255, 255, 254}, 254);
    expect_reduced<int32_t>(SHC_INT32, SHC_AVG, {INT32_MAX, INT32_MAX, INT32_MAX}, INT32_MAX);
    expect_reduced<uint64_t>(SHC_UINT64, SHC_AVG, {UINT64_MAX, 3}, 1); // wraps in 64 bits
}

// Quotients that are integers, or very close to one, where a float's rounding would show.
template <class T>
void expect_hard_averages(shc_dtype dtype)
{
    using Limits = std::numeric_limits<T>;
    for (int count : {1, 2, 3, 5, 7, 49, 127, 128, 129, 253, 254, 255, 256})
        for (T most : {Limits::max(), Limits::min(), static_cast<T>(Limits::max() / 2), T(1)})
            for (int less = 0; less <= 2; less++) {
                std::vector<T> sources(count, most);
                int64_t sum = int64_t(most) * count;
                for (int i = 0; i < less && i < count; i++) { // toward zero
                    sources[i] = static_cast<T>(most > 0 ? most - 1 : most + 1);
                    sum += int64_t(sources[i]) - int64_t(most);
                }
                expect_reduced<T>(dtype, SHC_AVG, sources, static_cast<T>(sum / count));
            }
}

TEST(KernelNumbers, IntegerAveragesAreCutOffWhereAFloatWouldRound)
{
    expect_hard_averages<int8_t>(SHC_INT8);
    expect_hard_averages<uint8_t>(SHC_UINT8);
    expect_hard_averages<int16_t>(SHC_INT16);
    expect_hard_averages<uint16_t>(SHC_UINT16);
    expect_hard_averages<int32_t>(SHC_INT32);
    expect_hard_averages<uint32_t>(SHC_UINT32);
}

template <class T>
void expect_all_averages_of_two(shc_dtype dtype)
{
    Bytes a, b, expected;
    for (int x = 0; x < 256; x++)
        for (int y = 0; y < 256; y++) {
            a.push_back(static_cast<uint8_t>(x));
            b.push_back(static_cast<uint8_t>(y));
            expected.push_back(static_cast<uint8_t>((static_cast<T>(x) + static_cast<T>(y)) / 2));
        }
    for (shc_isa isa : usable_isas())
        run_and_check(isa, {{dtype, SHC_AVG}, a.size(), {-1}}, {a, b}, {}, expected);
}

TEST(KernelNumbers, EveryAverageOfTwoBytes)
{
    expect_all_averages_of_two<int8_t>(SHC_INT8);
    expect_all_averages_of_two<uint8_t>(SHC_UINT8);
}

TEST(KernelNumbers, IntegerSumsAndProductsWrap)
{
    expect_reduced<int8_t>(SHC_INT8, SHC_SUM, {127, 1}, -128);
    expect_reduced<uint16_t>(SHC_UINT16, SHC_PRODUCT, {0xffff, 0xffff}, 1);
    expect_reduced<int64_t>(SHC_INT64, SHC_SUM, {INT64_MAX, 1}, INT64_MIN);
    expect_reduced<int64_t>(SHC_INT64, SHC_PRODUCT, {INT64_MIN, -1}, INT64_MIN);
}

TEST(KernelNumbers, AnyNonZeroByteCountsAsTrue)
{
    expect_reduced<uint8_t>(SHC_BOOL, SHC_SUM, {0, 0x80}, 1);
    expect_reduced<uint8_t>(SHC_BOOL, SHC_PRODUCT, {0x02, 0x04}, 1);
    expect_reduced<uint8_t>(SHC_BOOL, SHC_BXOR, {0x02, 0x04, 0xff}, 1);
    expect_reduced<uint8_t>(SHC_BOOL, SHC_BAND, {0x0f, 0xf0}, 1);
    expect_reduced<uint8_t>(SHC_BOOL, SHC_MIN, {7, 0, 7}, 0);
}

TEST(KernelNumbers, MinusZeroIsBelowPlusZero)
{
    expect_reduced<float>(SHC_FLOAT32, SHC_MIN, {0.0f, -0.0f}, -0.0f);
    expect_reduced<float>(SHC_FLOAT32, SHC_MIN, {-0.0f, 0.0f}, -0.0f);
    expect_reduced<float>(SHC_FLOAT32, SHC_MAX, {0.0f, -0.0f}, 0.0f);
    expect_reduced<float>(SHC_FLOAT32, SHC_MAX, {-0.0f, 0.0f}, 0.0f);
    expect_reduced<double>(SHC_FLOAT64, SHC_MIN, {0.0, -0.0, 0.0}, -0.0);
    expect_reduced<uint16_t>(SHC_FLOAT16, SHC_MAX, {0x8000, 0x0000, 0x8000}, 0x0000);
    expect_reduced<uint16_t>(SHC_BFLOAT16, SHC_MIN, {0x0000, 0x8000}, 0x8000);
}

TEST(KernelNumbers, ANanWinsFromAnyRank)
{
    const float inf = std::numeric_limits<float>::infinity();
    for (shc_isa isa : usable_isas()) {
        for (shc_redop redop : {SHC_MIN, SHC_MAX}) {
            for (int place = 0; place < 4; place++) {
                float x[4] = {inf, -inf, 1, 0}, out = 0;
                x[place] = std::copysign(std::nanf(""), place % 2 ? -1.0f : 1.0f);
                const void *src[] = {&x[0], &x[1], &x[2], &x[3]};
                void *dst[] = {&out};
                const shc_reduce_args args = {src, dst, 4, 1, 1, nullptr};
                shc_kernel_reduce_isa(isa, SHC_FLOAT32, redop)(&args);
                EXPECT_TRUE(std::isnan(out)) << shc_isa_name(isa) << " " << place;
            }
        }
    }
}

// Every code paired with every other one, or, with 16 bits, with those where something changes, in both
// orders; through the vectors and, at the end, through the remaining elements.
TEST(KernelNumbers, ExtremesOfNarrowFloatsAreThoseOfTheirValues)
{
    for (shc_dtype dtype : {SHC_FLOAT16, SHC_BFLOAT16, SHC_FLOAT8_E4M3FN, SHC_FLOAT8_E5M2,
                            SHC_FLOAT8_E4M3FNUZ, SHC_FLOAT8_E5M2FNUZ}) {
        const size_t bytes = shc_dtype_bytes(dtype), codes = size_t{1} << (8 * bytes);
        const size_t inf = dtype == SHC_FLOAT16 ? 0x7c00 : 0x7f80, sign = codes / 2;
        std::vector<size_t> others = {0, 1, inf - 1, inf, inf + 1, sign - 1};
        if (bytes == 1) {
            others.clear();
            for (size_t code = 0; code < sign; code++)
                others.push_back(code);
        }
        for (size_t minus : {size_t{0}, sign}) {
            Bytes x, y;
            for (size_t other : others)
                for (size_t code = 0; code < codes; code++)
                    for (size_t byte = 0; byte < bytes; byte++) {
                        x.push_back(static_cast<uint8_t>(code >> (8 * byte)));
                        y.push_back(static_cast<uint8_t>((other | minus) >> (8 * byte)));
                    }
            const size_t length = x.size() / bytes - 1; // not whole vectors
            x.resize(length * bytes);
            y.resize(length * bytes);
            for (shc_redop redop : {SHC_MIN, SHC_MAX})
                for (const auto &sources : {std::vector<Bytes>{x, y}, std::vector<Bytes>{y, x}}) {
                    const Combination what = {dtype, redop};
                    const Bytes expected = expected_of(what, sources, {}, length);
                    for (shc_isa isa : usable_isas())
                        run_and_check(isa, {what, length, {-1}}, sources, {}, expected);
                    ASSERT_FALSE(HasFatalFailure());
                }
        }
    }
}

TEST(KernelNumbers, ProductsAndSumsAreNotFused)
{
    // a * b rounds to 1; fused, the sum would show the 2^-46 that was rounded away.
    const float a = 1 + 0x1p-23f, b = 1 - 0x1p-23f;
    expect_reduced<float>(SHC_FLOAT32, SHC_PREMUL_SUM, {-1, b}, 0, {1, a});
    struct Complex {
        float re, im;
    };
    expect_reduced<Complex>(SHC_COMPLEX64, SHC_PRODUCT, {{a, 1}, {b, 1}}, {0, a + b});
}

TEST(KernelNumbers, TheFactorIsRoundedToTheAccumulator)
{
    // 1 + 2^-30 is 1 in fp32 and itself in fp64.
    const double factor = 1 + 0x1p-30;
    expect_reduced<float>(SHC_FLOAT32, SHC_PREMUL_SUM, {1, 1}, 2, {factor, factor});
    expect_reduced<double>(SHC_FLOAT64, SHC_PREMUL_SUM, {1, 1}, 2 * factor, {factor, factor});
    expect_reduced<uint16_t>(SHC_FLOAT16, SHC_PREMUL_SUM, {0x3c00}, 0x3555, {1.0 / 3});
}

TEST(KernelNumbers, DenormalsAreKept)
{
    expect_reduced<float>(SHC_FLOAT32, SHC_SUM, {0x1p-149f, 0x1p-149f}, 0x1p-148f);
    expect_reduced<double>(SHC_FLOAT64, SHC_SUM, {0x1p-1074, 0x1p-1074}, 0x1p-1073);
    expect_reduced<uint16_t>(SHC_BFLOAT16, SHC_SUM, {1, 2}, 3);
    expect_reduced<uint16_t>(SHC_FLOAT16, SHC_SUM, {1, 2}, 3);
    expect_reduced<uint8_t>(SHC_FLOAT8_E4M3FN, SHC_SUM, {1, 2}, 3);
}

TEST(KernelNumbers, TheRoundingModeOfTheCallerIsNotUsedAndIsGivenBack)
{
    ASSERT_EQ(fesetround(FE_UPWARD), 0);
    expect_reduced<float>(SHC_FLOAT32, SHC_SUM, {1, 0x1p-30f}, 1);
    expect_reduced<float>(SHC_FLOAT32, SHC_SUM, {1, 0x1p-30f, 0x1p-30f}, 1);
    expect_reduced<float>(SHC_FLOAT32, SHC_AVG, {0x1p-149f, 0}, 0);
    expect_reduced<double>(SHC_FLOAT64, SHC_SUM, {1, 0x1p-60}, 1);
    expect_reduced<double>(SHC_FLOAT64, SHC_AVG, {0x1p-1074, 0}, 0);
    expect_reduced<uint16_t>(SHC_BFLOAT16, SHC_SUM, {0x3f80, 0x0001}, 0x3f80);
    expect_reduced<uint16_t>(SHC_FLOAT16, SHC_SUM, {0x3c00, 0x0001}, 0x3c00);
    expect_reduced<uint8_t>(SHC_FLOAT8_E5M2, SHC_SUM, {0x3c, 0x01}, 0x3c);
    EXPECT_EQ(fegetround(), FE_UPWARD);
    ASSERT_EQ(fesetround(FE_TONEAREST), 0);
}

#if defined(__x86_64__)
template <class T, class Bits>
T of_bits(Bits bits)
{
    static_assert(sizeof(T) == sizeof bits, "");
    T v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

TEST(KernelNumbers, FlushedDenormalsOfTheCallerAreNotUsedAndAreGivenBack)
{
    const unsigned before = _mm_getcsr();
    for (unsigned flush : {0x8000u, 0x0040u, 0x8040u}) { // FTZ, DAZ, both
        _mm_setcsr(before | flush);
        for (size_t count = 1; count <= 3; count++) {
            const std::vector<float> tiny(count, 0x1p-149f);
            const std::vector<double> tinier(count, 0x1p-1074);
            const std::vector<uint16_t> half(count, 1);
            // Set by its bits, not computed: the test runs in the same mode.
            const float sum = of_bits<float>(static_cast<uint32_t>(count));
            const double double_sum = of_bits<double>(static_cast<uint64_t>(count));
            expect_reduced<float>(SHC_FLOAT32, SHC_SUM, tiny, sum);
            expect_reduced<double>(SHC_FLOAT64, SHC_SUM, tinier, double_sum);
            expect_reduced<uint16_t>(SHC_BFLOAT16, SHC_SUM, half, static_cast<uint16_t>(count));
        }
        const unsigned after = _mm_getcsr();
        _mm_setcsr(before);
        EXPECT_EQ(after & 0xffc0, (before | flush) & 0xffc0);
    }
}

// A signal would end the process in the middle of a collective.
TEST(KernelNumbers, NothingTrapsWhateverTheCallerWantsTrapped)
{
    const unsigned before = _mm_getcsr();
    const float inf = std::numeric_limits<float>::infinity();
    const float most = std::numeric_limits<float>::max(), least = 0x1p-149f;
    for (shc_isa isa : usable_isas())
        for (shc_redop redop : {SHC_SUM, SHC_AVG})
            for (size_t count : {1, 2, 7, 16, 33, 128, 129, 1000}) {
                const std::vector<float> x(count, inf), y(count, -inf), a(count, most), b(a);
                const std::vector<float> c(count, least), d(count, 0);
                std::vector<float> none(count), over(count), under(count);
                const void *sources[][2] = {
                    {x.data(), y.data()}, {a.data(), b.data()}, {c.data(), d.data()}};
                void *results[] = {none.data(), over.data(), under.data()};
                const shc_reduce_fn reduce = shc_kernel_reduce_isa(isa, SHC_FLOAT32, redop);
                for (int i = 0; i < 3; i++) {
                    const shc_reduce_args args = {sources[i], &results[i], 2, 1, count, nullptr};
                    _mm_setcsr(before & ~0x1f80u);
                    reduce(&args);
                    EXPECT_EQ(_mm_getcsr() & 0xffc0, before & ~0x1f80u & 0xffc0);
                    _mm_setcsr(before);
                }
                EXPECT_TRUE(std::isnan(none.back())) << count;
                EXPECT_EQ(over.back(), inf) << count;
                EXPECT_EQ(under.back(), redop == SHC_SUM ? least : 0) << count;
            }
}

// Nothing is read or written after the last element, wherever that is.
TEST(KernelNumbers, ThePageBehindMayBeMissing)
{
    const size_t page = 4096, most = 130;
    char *memory[3];
    for (char *&one : memory) {
        one = static_cast<char *>(
            mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        ASSERT_NE(one, MAP_FAILED);
        ASSERT_EQ(mprotect(one + page, page, PROT_NONE), 0);
    }
    for (shc_isa isa : usable_isas())
        for (size_t count = 1; count <= most; count++) {
            float *at[3];
            for (int i = 0; i < 3; i++)
                at[i] = reinterpret_cast<float *>(memory[i] + page) - count;
            for (size_t i = 0; i < count; i++) {
                at[0][i] = static_cast<float>(i);
                at[1][i] = 1;
            }
            const void *sources[] = {at[0], at[1]};
            void *result = at[2];
            const shc_reduce_args args = {sources, &result, 2, 1, count, nullptr};
            shc_kernel_reduce_isa(isa, SHC_FLOAT32, SHC_SUM)(&args);
            for (size_t i = 0; i < count; i++)
                ASSERT_EQ(at[2][i], static_cast<float>(i + 1)) << count;
        }
    for (char *one : memory)
        munmap(one, 2 * page);
}
#endif

TEST(KernelNumbers, AsManySourcesAsAGroupHasRanks)
{
    for (const Combination c : {Combination{SHC_FLOAT32, SHC_SUM},
                                {SHC_BFLOAT16, SHC_AVG},
                                {SHC_FLOAT8_E5M2, SHC_MAX},
                                {SHC_UINT8, SHC_AVG}}) {
        const std::vector<Bytes> sources = random_sources(c.dtype, SHC_MAX_WORLD, 130);
        const Bytes expected = expected_of(c, sources, {}, 130);
        for (shc_isa isa : usable_isas())
            run_and_check(isa, {c, 130, {255, -1}}, sources, {}, expected);
    }
}

} // namespace
