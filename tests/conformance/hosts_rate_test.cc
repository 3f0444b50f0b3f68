// SPDX-License-Identifier: BSD-3-Clause
// Groups over several hosts: chunks are as long as the rate of the slowest host's link says, the same on all hosts,
// and no result depends on it.
#include "tests/support/hosts_oracle.h"

#include <chrono>
#include <thread>

using namespace shmcoll::test;
using elements::Bytes;
using elements::Combination;
using Group = HostsGroup;

namespace
{

using Rates = std::function<uint64_t(int rank)>;

Rates all(uint64_t rate)
{
    return [rate](int) { return rate; };
}

// What a call gives: the bytes of all ranks' outputs, and how many calls of the engine it took.
struct Seen {
    std::vector<Bytes> outputs;
    int calls = 0;
};

struct Call {
    shc_op_kind kind;
    Combination what;
    size_t count; // of the vector, or of a block
};

void run_one(Group &group, const Call &call, const Bytes &input, double factor, Bytes *output)
{
    const size_t blocks = call.kind == SHC_ALL_TO_ALL
                              ? input.size() / call.count / shc_dtype_bytes(call.what.dtype)
                              : 1;
    Bytes in = input;
    output->assign(in.size(), 0xee);
    std::vector<shc_tensor> from(blocks), to(blocks);
    const auto size = static_cast<int64_t>(call.count);
    const size_t bytes = call.count * shc_dtype_bytes(call.what.dtype);
    for (size_t i = 0; i < blocks; i++) {
        from[i] = {in.data() + i * bytes, 1, &size, nullptr};
        to[i] = {output->data() + i * bytes, 1, &size, nullptr};
    }
    shc_op op = reduction_of(call.kind, call.what, factor);
    op.root = 1;
    op.input = {from.data(), static_cast<uint32_t>(blocks)};
    op.output = {to.data(), static_cast<uint32_t>(blocks)};
    ASSERT_EQ(group.run(op), SHC_OK) << group.error;
}

// Twice: where the rate is measured, the second call may know it.
Seen run_with(const Labels &labels, const Call &call, const std::vector<Bytes> &inputs,
              const Rates &rate)
{
    Seen seen;
    seen.outputs.resize(labels.size());
    Network network(host_count(labels));
    HostsOptions how;
    how.rate = rate;
    run_hosts(
        labels, network,
        [&](Group &group) {
            const auto rank = static_cast<size_t>(group.rank);
            const double factor = 0.25 * static_cast<double>(rank + 1);
            for (int i = 0; i < 2; i++) {
                run_one(group, call, inputs[rank], factor, &seen.outputs[rank]);
                if (testing::Test::HasFatalFailure())
                    return;
            }
        },
        how);
    seen.calls = network.calls();
    return seen;
}

class HostsAnyRate : public testing::TestWithParam<Map>
{
};

TEST_P(HostsAnyRate, ResultsHaveTheSameBitsWithAnyRate)
{
    const Labels &labels = GetParam().labels;
    const size_t count = (kSlow ? 150 : 300) * 1024 + 5;
    const Call calls[] = {{SHC_ALL_REDUCE, {SHC_FLOAT32, SHC_SUM}, count},
                          {SHC_ALL_REDUCE, {SHC_FLOAT16, SHC_AVG}, count},
                          {SHC_REDUCE, {SHC_BFLOAT16, SHC_PREMUL_SUM}, count},
                          {SHC_ALL_TO_ALL, {SHC_FLOAT32, SHC_SUM}, count / labels.size() / 2}};
    const Rates mixed = [](int rank) { return rank % 2 ? kSlowLink : uint64_t{1}; };
    for (const Call &call : calls) {
        const size_t all_blocks = call.kind == SHC_ALL_TO_ALL ? labels.size() : 1;
        const std::vector<Bytes> inputs =
            elements::random_sources(call.what.dtype, labels.size(), call.count * all_blocks);
        const Seen fast = run_with(labels, call, inputs, all(kFastLink));
        for (const Rates &rate : {all(kSlowLink), all(0), all(UINT64_MAX), mixed}) {
            const Seen seen = run_with(labels, call, inputs, rate);
            for (size_t rank = 0; rank < labels.size(); rank++)
                EXPECT_TRUE(elements::all_same(call.what.dtype, seen.outputs[rank].data(),
                                               fast.outputs[rank]))
                    << shc_op_kind_name(call.kind) << ", rank " << rank << ", rate " << rate(0);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Maps, HostsAnyRate,
                         testing::Values(Map{"TwoOfTwo", {0, 0, 1, 1}},
                                         Map{"ThreeAndTwo", {0, 0, 1, 0, 1}},
                                         Map{"TwoAndOneAndThree", {0, 1, 2, 0, 2, 2}}),
                         [](const auto &map) { return std::string(map.param.name); });

// ---- which host decides ----

// Two calls of 1 MiB over two hosts of two ranks: each chunk is a call of each rail of each host, and each call has two
// records.
int calls_for(const Rates &rate)
{
    const Call call = {SHC_ALL_REDUCE, {SHC_FLOAT32, SHC_SUM}, size_t{1} << 18};
    return run_with(kTwoOfTwo, call, elements::random_sources(SHC_FLOAT32, 4, call.count), rate)
        .calls;
}

const int kLong = 2 * (2 + 4), kShort = 2 * (2 + 4 * 4);

TEST(HostsRate, TheSlowestHostDecidesForAll)
{
    EXPECT_EQ(calls_for(all(kFastLink)), kLong);
    EXPECT_EQ(calls_for(all(kSlowLink)), kShort);
    EXPECT_EQ(calls_for([](int rank) { return rank < 2 ? kFastLink : kSlowLink; }), kShort);
    EXPECT_EQ(calls_for([](int rank) { return rank < 2 ? kSlowLink : kFastLink; }), kShort);
}

TEST(HostsRate, AHostThatDoesNotKnowItsRateKeepsChunksLong)
{
    // It has not measured enough after the first call.
    EXPECT_EQ(calls_for([](int rank) { return rank < 2 ? uint64_t{0} : kSlowLink; }), kLong);
}

TEST(HostsRate, ColumnsOfAnAllToAllAreShortToo)
{
    const Call call = {SHC_ALL_TO_ALL, {SHC_FLOAT32, SHC_SUM}, size_t{64} << 10};
    const std::vector<Bytes> inputs = elements::random_sources(SHC_FLOAT32, 4, 4 * call.count);
    EXPECT_EQ(run_with(kTwoOfTwo, call, inputs, all(kFastLink)).calls, kLong);
    EXPECT_EQ(run_with(kTwoOfTwo, call, inputs, all(kSlowLink)).calls, kShort);
}

// An engine whose calls take at least 50 ms: a busy machine makes it slower still. One call of 8 MiB is enough to know
// that, and the next one has short chunks.
TEST(HostsRate, IsMeasured)
{
    Network network(2, [](int rail, int, int) {
        if (rail >= 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
        return Network::Fate::kGood;
    });
    HostsOptions how;
    how.rate = all(0);
    run_hosts(
        kTwoOfTwo, network,
        [&](Group &group) {
            Sum first(int64_t{8} << 18), second(int64_t{1} << 18);
            ASSERT_EQ(group.run(first.op), SHC_OK) << group.error;
            EXPECT_EQ(first.x.back(), 4);
            ASSERT_EQ(group.run(second.op), SHC_OK) << group.error;
            EXPECT_EQ(second.x.back(), 4);
        },
        how);
    EXPECT_EQ(network.calls(), 2 + 8 * 4 + 2 + 4 * 4);
}

} // namespace
