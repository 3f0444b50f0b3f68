// SPDX-License-Identifier: BSD-3-Clause
// Sums over several hosts in the order of all ranks have the bits of one host.
#include "tests/support/hosts_oracle.h"

#include <numeric>

using namespace shmcoll::test;
using elements::Bytes;
using elements::Combination;
using Group = HostsGroup;

namespace
{

struct Case {
    Combination what;
    std::vector<size_t> sizes; // of the block of each rank, for a reduce_scatter
    size_t way;                // chooses the forms
    std::vector<Bytes> inputs = {};
    std::vector<double> factors = {};
    Bytes expected = {};

    size_t bytes() const { return shc_dtype_bytes(what.dtype); }
};

// What the kernels give for all inputs on one host.
Case case_of(const Combination &what, size_t world, size_t count, size_t way)
{
    Case c = {what, std::vector<size_t>(world, count / world), way};
    if (way % 2 == 1)
        c.sizes[0] += count % world;
    count = std::accumulate(c.sizes.begin(), c.sizes.end(), size_t{0});
    c.inputs = elements::random_sources(what.dtype, world, count);
    c.factors = elements::random_factors(world);
    c.expected.resize(count * c.bytes());
    std::vector<const void *> sources;
    for (const Bytes &input : c.inputs)
        sources.push_back(input.data());
    EXPECT_EQ(shc_reduce_local(what.dtype, what.redop, sources.data(), static_cast<int>(world),
                               c.expected.data(), count, c.factors.data()),
              SHC_OK);
    return c;
}

void check_whole(Group &group, const Case &c)
{
    const auto rank = static_cast<size_t>(group.rank);
    for (const shc_op_kind kind : {SHC_ALL_REDUCE, SHC_REDUCE}) {
        Elements in(c.inputs[rank], c.bytes(), (c.way + rank) % 3 == 0);
        Elements out(Bytes(c.expected.size(), 0x11), c.bytes(), (c.way + rank) % 4 == 0);
        shc_op op = reduction_of(kind, c.what, c.factors[rank]);
        op.root = static_cast<int>(c.way % c.sizes.size());
        op.input = {&in.tensor, 1};
        op.output = {c.way % 2 == 0 ? &in.tensor : &out.tensor, 1};
        const bool gets = kind == SHC_ALL_REDUCE || op.root == group.rank;
        ASSERT_EQ(group.run(op), SHC_OK) << group.error;
        const Elements &result = c.way % 2 == 0 ? in : out;
        if (gets) {
            EXPECT_TRUE(elements::all_same(c.what.dtype, result.values().data(), c.expected))
                << elements::name_of(c.what) << ", " << c.sizes[0] << ", rank " << rank;
        }
        EXPECT_TRUE(in.is_tidy() && out.is_tidy());
        EXPECT_TRUE((gets && c.way % 2 == 0) || in.values() == c.inputs[rank]);
    }
}

// The output may be any block of the input.
void check_scatter(Group &group, const Case &c)
{
    const auto rank = static_cast<size_t>(group.rank);
    const bool even = c.way % 2 == 0, in_place = (c.way + rank) % 4 < 2;
    Bytes memory = c.inputs[rank];
    std::vector<int64_t> sizes(c.sizes.begin(), c.sizes.end());
    std::vector<shc_tensor> blocks;
    std::vector<size_t> at;
    for (size_t r = 0, first = 0; r < sizes.size(); first += c.sizes[r] * c.bytes(), r++) {
        blocks.push_back({memory.data() + first, 1, &sizes[r], nullptr});
        at.push_back(first);
    }
    Bytes room(c.sizes[rank] * c.bytes(), 0xee);
    const shc_tensor out = {room.data(), 1, &sizes[rank], nullptr};
    const size_t block = even ? (rank + c.way / 2) % sizes.size() : rank;
    shc_op op = reduction_of(even ? SHC_REDUCE_SCATTER : SHC_REDUCE_SCATTER_UNEVEN, c.what,
                             c.factors[rank]);
    op.input = {blocks.data(), static_cast<uint32_t>(blocks.size())};
    op.output = {in_place ? &blocks[block] : &out, 1};
    ASSERT_EQ(group.run(op), SHC_OK) << group.error;
    const auto *result = static_cast<const uint8_t *>(op.output.list->data);
    const auto begin = c.expected.begin() + static_cast<long>(at[rank]);
    EXPECT_TRUE(elements::all_same(c.what.dtype, result,
                                   Bytes(begin, begin + static_cast<long>(room.size()))))
        << elements::name_of(c.what) << ", " << c.sizes[0] << ", rank " << rank;
    EXPECT_TRUE(in_place || memory == c.inputs[rank]);
}

void check_all(const Labels &labels, const std::vector<Case> &cases, const HostsOptions &how)
{
    const auto check = [&](Group &group, size_t number) {
        check_whole(group, cases[number]);
        check_scatter(group, cases[number]);
    };
    run_cases(labels, cases.size(), check, how);
}

class HostsOrder : public testing::TestWithParam<Map>
{
};

TEST_P(HostsOrder, SumsHaveTheBitsOfOneHost)
{
    const Labels &labels = GetParam().labels;
    const std::vector<size_t> counts = {8, 0, 4099, 61, 1, 300, 1500};
    std::vector<Case> cases;
    size_t number = 0;
    for (const Combination &what : elements::combinations()) {
        number++;
        if (number % kEachChain == 0)
            cases.push_back(case_of(what, labels.size(), counts[number % counts.size()], number));
    }
    // Several chunks, of which the last one is short.
    cases.push_back(case_of({SHC_FLOAT32, SHC_SUM}, labels.size(), kSlow ? 200003 : 700003, 0));
    cases.push_back(case_of({SHC_BFLOAT16, SHC_AVG}, labels.size(), kSlow ? 100003 : 700003, 3));
    HostsOptions how;
    how.by_rank = true;
    how.rails = static_cast<int>(labels.size()) % 2; // all, or one
    check_all(labels, cases, how);
}

// Of which each is another chain: two runs, one for each rank, runs of different lengths, and a host twice.
std::vector<Map> chains()
{
    if (kSlow)
        return maps();
    return {{"TwoOfTwo", {0, 0, 1, 1}},
            {"TwoOfTwoCyclic", {0, 1, 0, 1}},
            {"ThreeAndTwo", {0, 0, 1, 0, 1}},
            {"FiveAndTwoAndOne", {0, 0, 0, 0, 0, 1, 1, 2}}};
}

INSTANTIATE_TEST_SUITE_P(Maps, HostsOrder, testing::ValuesIn(chains()),
                         [](const auto &test) { return test.param.name; });

// Rounded once, and not on each host; but in the order of hosts.
TEST_P(HostsOrder, WideSumsOfBfloat16AreRoundedOnce)
{
    const Labels &labels = GetParam().labels;
    std::vector<Case> cases;
    for (const shc_redop redop : {SHC_SUM, SHC_AVG, SHC_PRODUCT, SHC_PREMUL_SUM, SHC_MAX})
        for (const size_t count : {size_t{64}, size_t{5003}}) {
            cases.push_back(case_of({SHC_BFLOAT16, redop}, labels.size(), count, count % 4));
            Case &c = cases.back();
            for (size_t i = 0; i * 2 < c.expected.size() && redop != SHC_MAX; i++)
                narrow_element(c.what, labels, c.inputs, c.factors, i, c.expected.data() + i * 2);
        }
    HostsOptions how;
    how.wide = true;
    check_all(labels, cases, how);
}

// What all ranks of 3 say when one of them wishes something else than the others.
void check_wish(const shc_hosts_wish &wish, const shc_hosts_wish &of_rank_1, const char *text)
{
    Options options;
    options.make_group = false;
    run_ranks(
        Mode::kOwnMapping, 3,
        [&](Rank &rank) {
            const shc_comm_config config = config_of(rank);
            shc_hosts *hosts;
            char error[SHC_HOSTS_ERROR_BYTES];
            EXPECT_EQ(shc_hosts_create(&config, rank.rank == 1 ? &of_rank_1 : &wish, &hosts, error),
                      SHC_ERR_MISMATCH);
            EXPECT_STREQ(error, text);
        },
        options);
}

TEST(HostsOrder, RanksThatWantOtherThingsAreAnErrorOfAll)
{
    shc_hosts_wish wish = {}, other = {};
    other.rails = 2;
    check_wish(wish, other,
               "rank 1 of \"0\" wants 2 rails, rank 0 wants 0 (0: as many as there can be); all "
               "ranks must want the same");
    other = wish;
    other.wide = true;
    check_wish(
        wish, other,
        "rank 1 of \"0\" wants wide sums of bfloat16 between hosts, rank 0 wants narrow ones; "
        "all ranks must want the same");
    other = wish;
    other.by_rank = true;
    check_wish(wish, other,
               "rank 1 of \"0\" wants sums in the order of ranks, rank 0 wants that of hosts; all "
               "ranks must want the same");
    wish.engine = "gloo";
    other = wish;
    other.engine = "mpi";
    check_wish(wish, other,
               "rank 1 of \"0\" wants the engine mpi, rank 0 wants gloo; all ranks must want the "
               "same");
}

// 66 ranks whose host changes with each of them.
TEST(HostsOrder, TooManyRunsAreAnErrorOfAll)
{
    Options options;
    options.make_group = false;
    run_ranks(
        Mode::kOwnMapping, 66,
        [&](Rank &rank) {
            const shc_comm_config config = config_of(rank);
            const char *words[] = {rank.rank % 2 == 0 ? "even" : "odd"};
            const shc_hosts_wish wish = {words, 1, 0, 0, false, true, false, nullptr, false, 0};
            shc_hosts *hosts;
            char error[SHC_HOSTS_ERROR_BYTES];
            EXPECT_EQ(shc_hosts_create(&config, &wish, &hosts, error), SHC_ERR_INVALID);
            EXPECT_STREQ(error, "sums of \"0\" in the order of ranks: its ranks lie in 66 runs, "
                                "each on one host; at most 64 are possible");
        },
        options);
}

} // namespace
