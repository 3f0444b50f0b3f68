// SPDX-License-Identifier: BSD-3-Clause
// Compares every reduction's twin with the reference of tests/support, and with the core: a GPU that
// does what its instructions say gives the same bits as a CPU.
#include "tests/cuda/launcher.h"

#include "tests/support/elements.h"

extern "C" {
#include "tests/cuda/core_reduce.h"
}

namespace shmcoll::test
{
namespace
{

using namespace elements;

std::vector<Combination> combinations_of(shc_dtype dtype)
{
    std::vector<Combination> some;
    for (const Combination &c : combinations())
        if (c.dtype == dtype)
            some.push_back(c);
    return some;
}

TEST(KernelList, IsWhatTheCoreOffersUnderItsNames)
{
    Launcher l;
    std::set<std::string> names = {"shc_gate", "shc_copy"};
    for (int d = 0; d < SHC_DTYPE_COUNT; d++)
        for (int r = 0; r < SHC_REDOP_COUNT; r++) {
            const Combination c = {static_cast<shc_dtype>(d), static_cast<shc_redop>(r)};
            const bool offered = shc_reduction_supported(c.dtype, c.redop);
            EXPECT_EQ(l.kernels.reduce[d][r] != nullptr, offered) << name_of(c);
            if (offered)
                names.insert(std::string("shc_reduce_") + shc_dtype_name(c.dtype) + "_" +
                             shc_redop_name(c.redop));
        }
    std::set<std::string> found;
    for (const FakeKernel &twin : twins())
        found.insert(twin.name);
    EXPECT_EQ(found, names);
}

// Where the memory of a case lies, as bytes after a multiple of 16.
enum class Place { kAligned, kOneElementOff, kOneSourceOff, kOutOff, kOneByteOff, kCount };

size_t offset_of(Place place, size_t index, size_t count, size_t elem)
{
    switch (place) {
    case Place::kOneElementOff:
        return elem % 16;
    case Place::kOneSourceOff:
        return index + 1 == count ? elem % 16 : 0;
    case Place::kOneByteOff:
        return 1 + index % 3;
    default:
        return 0;
    }
}

struct Case {
    Combination what;
    size_t world, length;
    Place place;
    int in_place; // the source that the result replaces, or -1

    std::string text() const
    {
        return name_of(what) + ", " + std::to_string(world) + " ranks, " + std::to_string(length) +
               " elements, place " + std::to_string(static_cast<int>(place)) + ", onto " +
               std::to_string(in_place);
    }
};

// As in records: a double among other fields.
struct Factors {
    explicit Factors(const std::vector<double> &factors) : records(factors.size())
    {
        for (size_t r = 0; r < factors.size(); r++) {
            memset(&records[r], 0xee, sizeof records[r]);
            records[r].factor = factors[r];
        }
    }
    std::vector<shc_cuda_record> records;
};

// The core's result for the same case.
Bytes core_of(const Case &c, const std::vector<Bytes> &sources, const std::vector<double> &factors)
{
    std::vector<const void *> pointers;
    for (const Bytes &source : sources)
        pointers.push_back(source.data());
    Bytes out(sources[0].size());
    core_reduce(c.what.dtype, c.what.redop, pointers.data(), static_cast<int>(c.world), out.data(),
                c.length, factors.data());
    return out;
}

void run_and_check(Launcher &l, const Case &c, const std::vector<Bytes> &sources,
                   const std::vector<double> &factors, const Bytes &expected)
{
    const size_t elem = shc_dtype_bytes(c.what.dtype), bytes = c.length * elem;
    std::vector<Guarded> memory;
    const Factors records(factors);
    uint32_t gate = SHC_GATE_OPEN;
    shc_reduce_args args = {};
    memory.reserve(c.world + 1);
    for (size_t r = 0; r < c.world; r++) {
        memory.emplace_back(bytes, offset_of(c.place, r, c.world, elem));
        memory.back().set(sources[r]);
        args.source[r] = memory.back().data();
    }
    memory.emplace_back(
        bytes, c.place == Place::kOutOff ? elem % 16 : offset_of(c.place, c.world, c.world, elem));
    Guarded &out = memory[c.in_place >= 0 ? static_cast<size_t>(c.in_place) : c.world];
    args.gate = &gate;
    args.out = out.data();
    args.count = c.length;
    args.factors = reinterpret_cast<const char *>(&records.records[0].factor);
    args.factor_stride = sizeof(shc_cuda_record);
    args.world = static_cast<int32_t>(c.world);
    l.reduce(c.what.dtype, c.what.redop, args);
    ASSERT_TRUE(all_same(c.what.dtype, out.data(), expected)) << c.text();
    for (size_t r = 0; r < c.world; r++)
        ASSERT_TRUE(&memory[r] == &out || memory[r].holds(sources[r]))
            << c.text() << ", rank " << r;
    for (const Guarded &one : memory)
        ASSERT_TRUE(one.margins_intact()) << c.text();
}

void check(Launcher &l, const Combination &what, size_t world, size_t length)
{
    const std::vector<Bytes> sources = random_sources(what.dtype, world, length);
    const std::vector<double> factors = random_factors(world);
    const Bytes expected = expected_of(what, sources, factors, length);
    Case c = {what, world, length, Place::kAligned, -1};
    const Bytes core = core_of(c, sources, factors);
    ASSERT_TRUE(all_same(what.dtype, core.data(), expected)) << "the core: " << c.text();
    for (int place = 0; place < static_cast<int>(Place::kCount); place++) {
        c.place = static_cast<Place>(place);
        c.in_place = below(2) ? static_cast<int>(below(world)) : -1;
        l.kernels.blocks = 1 + static_cast<unsigned>(below(3));
        run_and_check(l, c, sources, factors, core);
        if (testing::Test::HasFatalFailure())
            return;
    }
}

class EveryKernel : public testing::TestWithParam<int>
{
  protected:
    shc_dtype dtype() const { return static_cast<shc_dtype>(GetParam()); }
};

TEST_P(EveryKernel, GivesTheBitsOfTheCoreAndOfTheReference)
{
    Launcher l;
    const std::vector<Combination> all = combinations_of(dtype());
    ASSERT_FALSE(all.empty());
    for (const Combination &what : all)
        for (size_t world : {1, 2, 3, 8})
            for (size_t length : {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 100, 333}) {
                check(l, what, world, length);
                if (HasFatalFailure())
                    return;
            }
}

// More words, and more single elements, than the lanes of a launch.
TEST_P(EveryKernel, GoesOverMoreThanALaunchHasLanes)
{
    Launcher l;
    l.kernels.blocks = 2;
    const size_t lanes = 2 * SHC_KERNEL_THREADS, elem = shc_dtype_bytes(dtype());
    const Combination what = combinations_of(dtype()).front();
    const size_t length = 2 * lanes * (16 / elem) + 5;
    const std::vector<Bytes> sources = random_sources(dtype(), 2, length);
    const Bytes expected = expected_of(what, sources, {}, length);
    for (Place place : {Place::kAligned, Place::kOneElementOff})
        run_and_check(l, {what, 2, length, place, -1}, sources, {0, 0}, expected);
}

INSTANTIATE_TEST_SUITE_P(, EveryKernel, testing::Range(0, static_cast<int>(SHC_OPAQUE)),
                         [](const testing::TestParamInfo<int> &of) {
                             return std::string(shc_dtype_name(static_cast<shc_dtype>(of.param)));
                         });

TEST(Reduce, TakesAsManyRanksAsAGroupHas)
{
    Launcher l;
    for (const Combination what : {Combination{SHC_FLOAT32, SHC_PREMUL_SUM},
                                   {SHC_BFLOAT16, SHC_AVG},
                                   {SHC_FLOAT8_E5M2, SHC_MAX},
                                   {SHC_COMPLEX128, SHC_PREMUL_SUM},
                                   {SHC_UINT8, SHC_AVG}})
        check(l, what, SHC_MAX_WORLD, 37);
}

TEST(Reduce, NothingIsStoredBehindAGateThatIsNotOpen)
{
    Launcher l;
    for (uint32_t state : {SHC_GATE_UNSET, SHC_GATE_MISMATCH, SHC_GATE_ABORTED})
        for (const Combination &what : combinations()) {
            alignas(16) const uint8_t ones[96] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
            alignas(16) uint8_t out[96] = {}, before[96];
            for (size_t i = 0; i < sizeof out; i++)
                out[i] = static_cast<uint8_t>(i * 7 + 3);
            memcpy(before, out, sizeof out);
            uint32_t gate = state;
            shc_reduce_args args = {};
            args.gate = &gate;
            args.out = out;
            args.count = 80 / shc_dtype_bytes(what.dtype);
            args.factors = reinterpret_cast<const char *>(ones);
            args.world = 2;
            args.source[0] = args.source[1] = ones;
            l.reduce(what.dtype, what.redop, args);
            EXPECT_EQ(memcmp(out, before, sizeof out), 0) << name_of(what) << " " << state;
            gate = SHC_GATE_OPEN;
            l.reduce(what.dtype, what.redop, args); // it would have stored
            EXPECT_NE(memcmp(out, before, sizeof out), 0) << name_of(what);
            EXPECT_EQ(memcmp(out + 80, before + 80, 16), 0) << name_of(what);
        }
}

TEST(Reduce, RanksAreTakenInTheirOrder)
{
    Launcher l;
    alignas(16) const float big[5] = {1e30f, 1e30f, 1e30f, 1e30f, 1e30f};
    alignas(16) const float minus[5] = {-1e30f, -1e30f, -1e30f, -1e30f, -1e30f};
    alignas(16) const float one[5] = {1, 1, 1, 1, 1};
    alignas(16) float out[5];
    uint32_t gate = SHC_GATE_OPEN;
    shc_reduce_args args = {};
    args.gate = &gate;
    args.out = out;
    args.count = 5;
    args.world = 3;
    for (bool big_first : {true, false}) {
        args.source[0] = big_first ? big : one;
        args.source[1] = big_first ? minus : big;
        args.source[2] = big_first ? one : minus;
        l.reduce(SHC_FLOAT32, SHC_SUM, args);
        for (float value : out)
            EXPECT_EQ(value, big_first ? 1.0f : 0.0f);
    }
}

} // namespace
} // namespace shmcoll::test
