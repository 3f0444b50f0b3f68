// SPDX-License-Identifier: BSD-3-Clause
// Groups over several hosts: operations with a block for each rank, in any layout, in place, and of any size;
// and sparse sums.
#include "tests/support/hosts_oracle.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <set>

using namespace shmcoll::test;
using elements::Combination;
using Group = HostsGroup;

namespace
{

// Blocks of elements: one tensor, or one for each block; with gaps between elements, or without.
struct Blocks {
    Blocks(const std::vector<Bytes> &values, size_t elem_bytes, bool list, bool strided)
    {
        Bytes all;
        for (const Bytes &block : values)
            all.insert(all.end(), block.begin(), block.end());
        if (!list)
            parts.push_back(std::make_unique<Elements>(all, elem_bytes, strided));
        for (const Bytes &block : values)
            if (list)
                parts.push_back(std::make_unique<Elements>(block, elem_bytes, strided));
        for (const auto &part : parts)
            tensors.push_back(part->tensor);
    }
    shc_tensors side() const { return {tensors.data(), static_cast<uint32_t>(tensors.size())}; }
    Bytes values() const
    {
        Bytes all;
        for (const auto &part : parts) {
            const Bytes block = part->values();
            all.insert(all.end(), block.begin(), block.end());
        }
        return all;
    }
    bool is_tidy() const
    {
        return std::all_of(parts.begin(), parts.end(), [](const auto &p) { return p->is_tidy(); });
    }

    std::vector<std::unique_ptr<Elements>> parts;
    std::vector<shc_tensor> tensors;
};

// Block `block` of these blocks, as a tensor of its own.
struct View {
    View(const Blocks &blocks, size_t block, const std::vector<size_t> &sizes)
    {
        const bool list = blocks.parts.size() > 1;
        const Elements &part = *blocks.parts[list ? block : 0];
        const size_t first =
            list ? 0
                 : std::accumulate(sizes.begin(), sizes.begin() + static_cast<long>(block),
                                   size_t{0});
        size = static_cast<int64_t>(sizes[block]);
        step = static_cast<int64_t>(part.stride);
        tensor = {static_cast<uint8_t *>(part.tensor.data) + first * part.stride * part.bytes, 1,
                  &size, &step};
    }
    View(const View &) = delete;
    int64_t size, step;
    shc_tensor tensor = {};
};

Bytes random_bytes(size_t count, size_t seed)
{
    std::vector<uint64_t> words(count / 8 + 1);
    uint64_t x = seed;
    for (uint64_t &word : words) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        word = x ^ x >> 29;
    }
    Bytes bytes(count);
    std::copy_n(reinterpret_cast<const uint8_t *>(words.data()), count, bytes.data());
    return bytes;
}

Bytes joined(const std::vector<Bytes> &blocks)
{
    Bytes all;
    for (const Bytes &block : blocks)
        all.insert(all.end(), block.begin(), block.end());
    return all;
}

std::vector<Bytes> blanks(const std::vector<size_t> &sizes, size_t elem_bytes)
{
    std::vector<Bytes> blocks;
    for (const size_t size : sizes)
        blocks.emplace_back(size * elem_bytes, 0xee);
    return blocks;
}

shc_op moving(shc_op_kind kind, size_t elem_bytes)
{
    shc_op op = op_of(kind);
    op.dtype = SHC_OPAQUE;
    op.elem_bytes = static_cast<uint32_t>(elem_bytes);
    op.dtype_tag = 7;
    return op;
}

bool has_one_rail(const Labels &labels)
{
    const auto hosts = hosts_of(labels);
    return std::any_of(hosts.begin(), hosts.end(), [](const auto &h) { return h.size() == 1; });
}

// What a rank does not use may be anything.
const shc_tensors kNotUsed = {reinterpret_cast<const shc_tensor *>(16), 3};

// Blocks of all ranks: as many elements as `count`, or of sizes around it.
std::vector<size_t> sizes_of(size_t world, size_t count, bool uneven)
{
    std::vector<size_t> sizes(world, count);
    for (size_t rank = 0; uneven && rank < world; rank++)
        sizes[rank] = rank % 3 == 1 ? 0 : count / (rank + 1) + rank;
    return sizes;
}

// The last one is long: several columns.
const size_t kLongest = kSlow ? 6001 : 15001;

std::vector<size_t> counts_for(size_t world)
{
    if (world > 16)
        return {0, 1, 37, 300}; // a rank's blocks of all others together are long enough
    return {0, 1, 37, 1000, kLongest};
}

size_t bytes_of(size_t count)
{
    return count == kLongest ? 48 : 12; // of an element
}

class HostsBlocks : public testing::TestWithParam<Map>
{
};

// `way`: bits for the layout, which differs between ranks, and for in place.
void check_gather(Group &group, size_t bytes, const std::vector<size_t> &sizes, int root,
                  bool uneven, size_t way)
{
    const size_t world = sizes.size(), rank = static_cast<size_t>(group.rank);
    std::vector<Bytes> all;
    for (size_t r = 0; r < world; r++)
        all.push_back(random_bytes(sizes[r] * bytes, r + way));
    const bool gets = root < 0 || root == group.rank;
    const size_t own = way + rank;
    // A list whose tensors are not the blocks.
    const bool odd = !uneven && own % 5 == 2 && sizes[0] > 1;
    const bool in_place = own % 3 == 0 && gets && !odd;
    std::vector<size_t> cuts = sizes;
    cuts.front() -= odd, cuts.back() += odd;
    std::vector<Bytes> before = blanks(cuts, bytes);
    if (in_place)
        before[rank] = all[rank];
    Blocks out(before, bytes, uneven || odd || own % 2 == 1, own / 2 % 2 == 1);
    Elements in(all[rank], bytes, own / 4 % 2 == 1);
    const View view(out, rank, cuts);
    shc_op op = moving(root >= 0 ? SHC_GATHER
                       : uneven  ? SHC_ALL_GATHER_UNEVEN
                                 : SHC_ALL_GATHER,
                       bytes);
    op.root = root < 0 ? 0 : root;
    op.input = {in_place ? &view.tensor : &in.tensor, 1};
    op.output = gets ? out.side() : kNotUsed;
    ASSERT_EQ(way % 4 == 0 ? group.submit(op) : group.run(op), SHC_OK) << group.error;
    EXPECT_TRUE(out.values() == joined(gets ? all : before)) << sizes[0] << ", way " << way;
    EXPECT_TRUE(out.is_tidy());
    EXPECT_TRUE(in.values() == all[rank] && in.is_tidy());
}

TEST_P(HostsBlocks, GatherReachesAllAndEveryRoot)
{
    const Labels &labels = GetParam().labels;
    const size_t world = labels.size();
    for (const int rails : {0, 1}) {
        if (rails == 1 && (kSlow || has_one_rail(labels)))
            continue;
        Network network(host_count(labels));
        if (rails == 1)
            network.refuse_messages();
        run_hosts(
            labels, network,
            [&](Group &group) {
                size_t way = 0;
                for (const size_t count : counts_for(world))
                    for (int i = 0; i < 6; i++, way++) {
                        const bool uneven = i % 2 == 1, rooted = i >= 4;
                        const int root = rooted ? static_cast<int>(way % world) : -1;
                        check_gather(group, bytes_of(count),
                                     sizes_of(world, count, uneven && !rooted), root,
                                     uneven && !rooted, way);
                        if (HasFatalFailure())
                            return;
                    }
            },
            with_rails(rails));
    }
}

// What every rank gets comes from the root.
void check_scatter(Group &group, size_t bytes, size_t count, size_t world, int root, size_t way)
{
    const size_t rank = static_cast<size_t>(group.rank), own = way + rank;
    const std::vector<size_t> sizes(world, count);
    std::vector<Bytes> all;
    for (size_t r = 0; r < world; r++)
        all.push_back(random_bytes(count * bytes, r + way));
    const bool gives = root == group.rank, in_place = gives && own % 3 == 0;
    Blocks in(all, bytes, own % 2 == 1, own / 2 % 2 == 1);
    Elements out(Bytes(count * bytes, 0xee), bytes, own / 4 % 2 == 1);
    const View view(in, rank, sizes);
    shc_op op = moving(SHC_SCATTER, bytes);
    op.root = root;
    op.input = gives ? in.side() : kNotUsed;
    op.output = {in_place ? &view.tensor : &out.tensor, 1};
    ASSERT_EQ(way % 4 == 0 ? group.submit(op) : group.run(op), SHC_OK) << group.error;
    if (!in_place) {
        EXPECT_TRUE(out.values() == all[rank]) << count << ", way " << way;
        EXPECT_TRUE(out.is_tidy());
    }
    EXPECT_TRUE(in.values() == joined(all) && in.is_tidy());
}

TEST_P(HostsBlocks, ScatterComesFromEveryRoot)
{
    const Labels &labels = GetParam().labels;
    const size_t world = labels.size();
    Network network(host_count(labels));
    run_hosts(labels, network, [&](Group &group) {
        size_t way = 0;
        for (const size_t count : counts_for(world))
            for (int i = 0; i < 4; i++, way++) {
                check_scatter(group, bytes_of(count), count, world, static_cast<int>(way % world),
                              way);
                if (HasFatalFailure())
                    return;
            }
    });
}

// ---- all_to_all ----

// How many elements a rank gives another. Even; as likely as not the same both ways; or a few long ones.
size_t traded(size_t from, size_t to, size_t count, size_t way)
{
    const size_t a = std::min(from, to), b = std::max(from, to);
    switch (way % 4) {
    case 0:
        return count;
    case 1:
        return (a + 2 * b) % 3 == 0 ? 0 : count / (a + 1) + b;
    case 2:
        return (from + 2 * to) % 3 == 0 ? 0 : count / (from + 1) + to;
    default:
        return from == 0 && to + 1 < way ? 2 * count : from % 2;
    }
}

using Trade = std::function<size_t(size_t from, size_t to)>; // elements

void check_trade(Group &group, size_t bytes, const Trade &trade, size_t world, size_t way)
{
    const size_t rank = static_cast<size_t>(group.rank), own = way / 4 + rank;
    const bool in_place = way % 4 < 2 && own % 2 == 0;
    const auto block = [&](size_t from, size_t to) {
        return random_bytes(trade(from, to) * bytes, from * 100 + to + way);
    };
    std::vector<Bytes> given, wanted;
    std::vector<size_t> room;
    for (size_t other = 0; other < world; other++) {
        given.push_back(block(rank, other));
        wanted.push_back(block(other, rank));
        room.push_back(trade(other, rank));
    }
    Blocks in(given, bytes, true, own / 2 % 2 == 1);
    Blocks out(blanks(room, bytes), bytes, true, own / 4 % 2 == 1);
    shc_op op = moving(SHC_ALL_TO_ALL, bytes);
    op.input = in.side();
    op.output = in_place ? in.side() : out.side();
    ASSERT_EQ(way > 3 ? group.submit(op) : group.run(op), SHC_OK) << group.error;
    const Blocks &result = in_place ? in : out;
    EXPECT_TRUE(result.values() == joined(wanted)) << "way " << way;
    EXPECT_TRUE(in.is_tidy() && out.is_tidy());
    EXPECT_TRUE(in_place || in.values() == joined(given));
}

void check_all_to_all(Group &group, size_t bytes, size_t count, size_t world, size_t way)
{
    SCOPED_TRACE(count);
    check_trade(
        group, bytes, [=](size_t from, size_t to) { return traded(from, to, count, way); }, world,
        way);
}

TEST_P(HostsBlocks, AllToAllHasAnySizes)
{
    const Labels &labels = GetParam().labels;
    for (const int rails : {0, 1}) {
        if (rails == 1 && (kSlow || has_one_rail(labels)))
            continue;
        Network network(host_count(labels));
        if (rails == 1)
            network.refuse_messages();
        run_hosts(
            labels, network,
            [&](Group &group) {
                for (const size_t count : counts_for(labels.size()))
                    for (size_t way = 0; way < 8; way++) {
                        check_all_to_all(group, bytes_of(count), count, labels.size(), way);
                        if (HasFatalFailure())
                            return;
                    }
            },
            with_rails(rails));
    }
}

// ---- sums ----

struct Sum {
    Combination what;
    std::vector<size_t> sizes;
    std::vector<Bytes> inputs;
    std::vector<double> factors;
    std::vector<Bytes> expected; // block by block
};

Sum sum_of(const Combination &what, const std::vector<size_t> &sizes, const Labels &labels)
{
    const size_t count = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
    const size_t bytes = shc_dtype_bytes(what.dtype);
    Sum sum = {what,
               sizes,
               elements::random_sources(what.dtype, labels.size(), count),
               elements::random_factors(labels.size()),
               {}};
    size_t i = 0;
    for (const size_t size : sizes) {
        sum.expected.emplace_back(size * bytes);
        for (size_t k = 0; k < size; k++, i++)
            expected_element(what, labels, sum.inputs, sum.factors, i,
                             &sum.expected.back()[k * bytes]);
    }
    return sum;
}

std::vector<Bytes> cut(const Bytes &values, const std::vector<size_t> &sizes, size_t elem_bytes)
{
    std::vector<Bytes> blocks;
    auto at = values.begin();
    for (const size_t size : sizes) {
        blocks.emplace_back(at, at + static_cast<long>(size * elem_bytes));
        at += static_cast<long>(size * elem_bytes);
    }
    return blocks;
}

void check_reduce_scatter(Group &group, const Sum &sum, bool uneven, size_t way)
{
    const size_t rank = static_cast<size_t>(group.rank), bytes = shc_dtype_bytes(sum.what.dtype);
    const size_t own = way + rank;
    const std::vector<Bytes> blocks = cut(sum.inputs[rank], sum.sizes, bytes);
    Blocks in(blocks, bytes, uneven || own % 2 == 1, own / 2 % 2 == 1);
    Elements out(Bytes(sum.sizes[rank] * bytes, 0xee), bytes, own / 4 % 2 == 1);
    const bool in_place = own % 3 == 0;
    const size_t block =
        uneven ? rank : own % sum.sizes.size(); // which of its blocks is the output
    const View view(in, block, sum.sizes);
    shc_op op = reduction_of(uneven ? SHC_REDUCE_SCATTER_UNEVEN : SHC_REDUCE_SCATTER, sum.what,
                             sum.factors[rank]);
    op.input = in.side();
    op.output = {in_place ? &view.tensor : &out.tensor, 1};
    ASSERT_EQ(group.run(op), SHC_OK) << group.error;
    const Bytes result = in_place ? cut(in.values(), sum.sizes, bytes)[block] : out.values();
    EXPECT_TRUE(elements::all_same(sum.what.dtype, result.data(), sum.expected[rank]))
        << elements::name_of(sum.what) << ", " << sum.sizes[0] << ", way " << way;
    EXPECT_TRUE(out.is_tidy() && in.is_tidy());
    if (!in_place) {
        EXPECT_TRUE(in.values() == sum.inputs[rank]);
    }
}

void check_reduce(Group &group, const Sum &sum, size_t way)
{
    const size_t world = sum.sizes.size(), rank = static_cast<size_t>(group.rank);
    const size_t bytes = shc_dtype_bytes(sum.what.dtype), own = way + rank;
    const Bytes blank(sum.inputs[rank].size(), 0xee);
    Elements in(sum.inputs[rank], bytes, own % 2 == 1), out(blank, bytes, own / 2 % 2 == 1);
    const bool gets = rank == way % world, in_place = gets && own % 3 == 0;
    shc_op op = reduction_of(SHC_REDUCE, sum.what, sum.factors[rank]);
    op.root = static_cast<int>(way % world);
    op.input = {&in.tensor, 1};
    op.output = kNotUsed;
    if (gets || way % 2 == 0) // no other rank's output is looked at
        op.output = {in_place ? &in.tensor : &out.tensor, 1};
    ASSERT_EQ(way % 4 == 1 ? group.submit(op) : group.run(op), SHC_OK) << group.error;
    const Elements &result = in_place ? in : out;
    if (gets) {
        EXPECT_TRUE(
            elements::all_same(sum.what.dtype, result.values().data(), joined(sum.expected)))
            << elements::name_of(sum.what) << ", way " << way;
    } else {
        EXPECT_TRUE(out.values() == blank);
    }
    EXPECT_TRUE(in_place || in.values() == sum.inputs[rank]);
    EXPECT_TRUE(in.is_tidy() && out.is_tidy());
}

TEST_P(HostsBlocks, EverySumHasTheBitsOfTheOracle)
{
    const Labels &labels = GetParam().labels;
    const std::vector<size_t> counts = {1, 599, 0, 7, 1000, 64, 201, 2};
    std::vector<Sum> sums;
    size_t number = 0;
    for (const Combination &what : elements::combinations()) {
        const size_t count = counts[number % counts.size()];
        if (number % each_of(labels.size()) == 0)
            sums.push_back(sum_of(what, sizes_of(labels.size(), count, number % 2 == 1), labels));
        number++;
    }
    run_cases(labels, sums.size(), [&](Group &group, size_t way) {
        const bool even = sums[way].sizes == sizes_of(labels.size(), sums[way].sizes[0], false);
        check_reduce_scatter(group, sums[way], !even || way % 4 == 0, way);
        if (HasFatalFailure())
            return;
        check_reduce(group, sums[way], way);
    });
}

// Long ones are the sums' slices.
TEST_P(HostsBlocks, LongSumsGoInColumns)
{
    const Labels &labels = GetParam().labels;
    const size_t world = labels.size(), total = kSlow ? 300007 : 900007;
    for (int way = 0; way < 4; way++) {
        std::vector<size_t> sizes(world, total / world);
        if (way % 2 == 1) // one block is most of it
            sizes.assign(world, 5), sizes[world - 1] = total - 5 * (world - 1);
        const size_t count = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
        Network network(host_count(labels));
        run_hosts(
            labels, network,
            [&](Group &group) {
                const auto rank = static_cast<size_t>(group.rank);
                std::vector<int32_t> x(count), result(sizes[rank], -1);
                std::iota(x.begin(), x.end(), group.rank);
                std::vector<int64_t> lengths(sizes.begin(), sizes.end());
                std::vector<shc_tensor> list(world);
                size_t first = 0, own = 0;
                for (size_t r = 0; r < world; first += sizes[r], r++) {
                    list[r] = {x.data() + first, 1, &lengths[r], nullptr};
                    own = r == rank ? first : own;
                }
                const shc_tensor out = {result.data(), 1, &lengths[rank], nullptr};
                shc_op op = op_of(way % 2 == 1 ? SHC_REDUCE_SCATTER_UNEVEN : SHC_REDUCE_SCATTER);
                op.dtype = SHC_INT32;
                op.input = {list.data(), static_cast<uint32_t>(world)};
                op.output = {&out, 1};
                ASSERT_EQ(group.run(op), SHC_OK) << group.error;
                const auto w = static_cast<int32_t>(world);
                size_t wrong = 0;
                for (size_t i = 0; i < result.size(); i++)
                    wrong += result[i] != static_cast<int32_t>(own + i) * w + w * (w - 1) / 2;
                EXPECT_EQ(wrong, 0u);
                op.kind = SHC_REDUCE;
                op.root = static_cast<int>(world) - 1;
                op.output = op.input;
                ASSERT_EQ(group.run(op), SHC_OK) << group.error;
                const bool gets = rank == world - 1;
                for (size_t i = 0; i < count; i++)
                    wrong += x[i] != (gets ? static_cast<int32_t>(i) * w + w * (w - 1) / 2
                                           : static_cast<int32_t>(i) + group.rank);
                EXPECT_EQ(wrong, 0u);
            },
            with_rails(way / 2));
    }
}

INSTANTIATE_TEST_SUITE_P(Maps, HostsBlocks, testing::ValuesIn(more_maps()),
                         [](const auto &test) { return test.param.name; });

// ---- what goes wrong ----

const Labels kTwoOfTwo = {0, 0, 1, 1};

// A call with lists of `count` int32 for each rank on both sides.
struct Lists {
    Lists(shc_op_kind kind, size_t world, int64_t count) : op(op_of(kind))
    {
        sizes.assign(2 * world, count);
        memory.assign(2 * world, std::vector<int32_t>(static_cast<size_t>(count) + 8, 7));
        for (size_t i = 0; i < 2 * world; i++)
            tensors.push_back({memory[i].data(), 1, &sizes[i], nullptr});
        op.dtype = SHC_INT32;
        const auto all = static_cast<uint32_t>(world);
        op.input = {tensors.data(), all};
        op.output = {tensors.data() + world, all};
    }
    Lists(const Lists &) = delete;
    bool is_unchanged() const
    {
        for (const std::vector<int32_t> &one : memory)
            if (one != std::vector<int32_t>(one.size(), 7))
                return false;
        return true;
    }
    std::vector<int64_t> sizes;
    std::vector<std::vector<int32_t>> memory;
    std::vector<shc_tensor> tensors;
    shc_op op;
};

struct Difference {
    const char *name;
    shc_op_kind kind;
    std::function<void(Lists &lists, int rank)> make; // on one rank
    const char *words;
};

std::vector<Difference> differences()
{
    const auto one_in = [](Lists &lists, int rank) {
        lists.op.input = {&lists.tensors[static_cast<size_t>(rank)], 1};
    };
    const auto one_out = [](Lists &lists, int rank) {
        lists.op.output = {&lists.tensors[4 + static_cast<size_t>(rank)], 1};
    };
    return {
        {"GatherSizes", SHC_ALL_GATHER,
         [=](Lists &lists, int rank) {
             one_in(lists, rank);
             for (int64_t &size : lists.sizes)
                 size += rank == 3;
         },
         "all_gather #2 (int32["},
        {"GatherLists", SHC_ALL_GATHER_UNEVEN,
         [=](Lists &lists, int rank) {
             one_in(lists, rank);
             lists.sizes[4] += rank == 3, lists.sizes[5] -= rank == 3; // as many in all
         },
         ", sizes "},
        {"GatherDtypes", SHC_ALL_GATHER,
         [=](Lists &lists, int rank) {
             one_in(lists, rank);
             lists.op.dtype = rank == 3 ? SHC_FLOAT32 : SHC_INT32;
         },
         "all_gather #2 (float32["},
        {"TradedDtypes", SHC_ALL_TO_ALL,
         [](Lists &lists, int rank) { lists.op.dtype = rank == 3 ? SHC_FLOAT32 : SHC_INT32; },
         "all_to_all #2 (float32) on "},
        {"OpaqueTypes", SHC_ALL_TO_ALL,
         [](Lists &lists, int rank) {
             lists.op.dtype = SHC_OPAQUE;
             lists.op.elem_bytes = 4;
             lists.op.dtype_tag = rank == 3 ? 5 : 3;
         },
         "all_to_all #2 (opaque, type 5 of 4 bytes) on "},
        {"Roots", SHC_GATHER,
         [=](Lists &lists, int rank) {
             one_in(lists, rank);
             lists.op.root = rank == 3;
         },
         ", root 1)"},
        {"Kinds", SHC_REDUCE_SCATTER,
         [=](Lists &lists, int rank) {
             one_out(lists, rank);
             lists.op.kind = rank == 3 ? SHC_REDUCE_SCATTER_UNEVEN : SHC_REDUCE_SCATTER;
         },
         "reduce_scatter #2 (int32["},
        {"Sums", SHC_REDUCE_SCATTER,
         [=](Lists &lists, int rank) {
             one_out(lists, rank);
             lists.op.redop = rank == 3 ? SHC_AVG : SHC_SUM;
         },
         ", avg)"},
        {"TradesAcross", SHC_ALL_TO_ALL,
         [](Lists &lists, int rank) { lists.sizes[0] += rank == 3; },
         "calls of \"0\" differ: all_to_all #2: rank 3 sends <n+1> elements to rank 0, which "
         "expects <n>"},
        {"TradesAtHome", SHC_ALL_TO_ALL,
         [](Lists &lists, int rank) { lists.sizes[4 + 2] -= rank == 3; },
         "rank 2 sends <n> elements to rank 3, which expects <n-1>"},
    };
}

// ---- sparse sums ----

const int64_t kRows = 12, kColumns = 30; // are indexed

// What a rank gives: places of entries, of which some come twice, and the values.
struct Entries {
    std::vector<size_t> places;
    Bytes values;
};

std::vector<Entries> entries_of(const Combination &what, size_t world, size_t count, size_t width)
{
    std::vector<Entries> all(world);
    for (size_t rank = 0; rank < world; rank++) {
        const size_t own = rank % 3 == 2 ? 0 : count * (rank + 1);
        for (size_t i = 0; i < own; i++)
            all[rank].places.push_back(elements::below(kRows * kColumns));
        all[rank].values = elements::random_sources(what.dtype, 1, own * width)[0];
    }
    return all;
}

// The tensor of these entries, made dense: entries of one place are added in their order.
Bytes made_dense(const Combination &what, const Entries &entries, size_t width)
{
    const size_t bytes = shc_dtype_bytes(what.dtype);
    std::map<size_t, std::vector<size_t>> of;
    for (size_t i = 0; i < entries.places.size(); i++)
        of[entries.places[i]].push_back(i);
    Bytes dense(static_cast<size_t>(kRows * kColumns) * width * bytes);
    for (const auto &[place, numbers] : of)
        for (size_t k = 0; k < width; k++) {
            std::vector<const uint8_t *> sources;
            for (const size_t i : numbers)
                sources.push_back(entries.values.data() + (i * width + k) * bytes);
            ref::reduce(what.dtype, SHC_SUM, sources, 0, nullptr,
                        dense.data() + (place * width + k) * bytes);
        }
    return dense;
}

struct SparseSum {
    SparseSum(const Combination &combination, const Labels &labels, size_t count, size_t dense)
        : what(combination), width(dense), given(entries_of(what, labels.size(), count, dense))
    {
        const size_t bytes = shc_dtype_bytes(what.dtype);
        std::vector<Bytes> inputs;
        std::set<size_t> present;
        for (const Entries &one : given) {
            inputs.push_back(made_dense(what, one, width));
            present.insert(one.places.begin(), one.places.end());
        }
        const std::vector<double> factors(labels.size(), 1);
        places.assign(present.begin(), present.end());
        values.resize(places.size() * width * bytes);
        for (size_t i = 0; i < places.size() * width; i++)
            expected_element(what, labels, inputs, factors, places[i / width] * width + i % width,
                             values.data() + i * bytes);
    }
    Combination what;
    size_t width;
    std::vector<Entries> given;
    std::vector<size_t> places; // of the result
    Bytes values;
};

void check_sparse(Group &group, const SparseSum &sum, bool submits)
{
    const Entries &given = sum.given[static_cast<size_t>(group.rank)];
    const size_t bytes = shc_dtype_bytes(sum.what.dtype), count = given.places.size();
    const int64_t columns = kColumns;
    std::vector<int64_t> indices;
    for (const size_t place : given.places)
        indices.push_back(static_cast<int64_t>(place) / columns);
    for (const size_t place : given.places)
        indices.push_back(static_cast<int64_t>(place) % columns);
    Elements values(given.values, bytes, group.rank % 2 == 1);
    const int64_t sizes[] = {kRows, kColumns, static_cast<int64_t>(sum.width)};
    const int64_t index_sizes[] = {2, static_cast<int64_t>(count)};
    shc_sparse tensor = {};
    tensor.ndim = 3;
    tensor.sparse_ndim = 2;
    tensor.sizes = sizes;
    tensor.count = count;
    tensor.indices = {indices.data(), 2, index_sizes, nullptr};
    tensor.values = values.tensor;
    shc_op op = op_of(SHC_ALL_REDUCE_SPARSE);
    op.dtype = sum.what.dtype;
    op.redop = sum.what.redop;
    op.sparse = &tensor;
    ASSERT_EQ(submits ? group.submit(op) : group.run(op), SHC_OK) << group.error;
    ASSERT_EQ(tensor.sum_count, sum.places.size());
    size_t wrong = 0;
    for (size_t i = 0; i < sum.places.size(); i++)
        wrong += tensor.sum_indices[i] * columns + tensor.sum_indices[sum.places.size() + i] !=
                 static_cast<int64_t>(sum.places[i]);
    EXPECT_EQ(wrong, 0u);
    EXPECT_TRUE(
        elements::all_same(sum.what.dtype, static_cast<uint8_t *>(tensor.sum_values), sum.values))
        << elements::name_of(sum.what) << ", " << sum.places.size() << " places";
    EXPECT_TRUE(values.values() == given.values && values.is_tidy());
    free(tensor.sum_indices);
    free(tensor.sum_values);
}

// Entries that fit the records, and that do not; of several columns, of no bytes, and none.
TEST_P(HostsBlocks, SparseSumsHaveTheBitsOfDenseOnes)
{
    const Labels &labels = GetParam().labels;
    std::vector<SparseSum> sums;
    size_t number = labels.size(); // the maps take turns
    for (const Combination &what : elements::combinations())
        if ((what.redop == SHC_SUM || what.redop == SHC_AVG) && number++ % 3 == 0)
            sums.emplace_back(what, labels, sums.size() % 2 ? 9 : 300, 1 + sums.size() % 4);
    for (const size_t width : {size_t{0}, size_t{5}, size_t{kSlow ? 9 : 200}})
        sums.emplace_back(Combination{SHC_FLOAT32, SHC_SUM}, labels, 400, width);
    sums.emplace_back(Combination{SHC_FLOAT16, SHC_AVG}, labels, 0, 3);
    Network network(host_count(labels));
    run_hosts(labels, network, [&](Group &group) {
        for (size_t i = 0; i < sums.size(); i++) {
            check_sparse(group, sums[i], i % 2 == 1);
            if (HasFatalFailure())
                return;
        }
    });
}

// One rank has another size, or an index that is out of range (also where values go in another type).
TEST(HostsDiffer, AWrongSparseTensorIsToldOnAllRanks)
{
    for (const shc_dtype dtype : {SHC_FLOAT32, SHC_FLOAT16})
        for (const bool size : {true, false}) {
            Network network(2);
            run_hosts(kTwoOfTwo, network, [&](Group &group) {
                const bool bad = group.rank == 3;
                const int64_t sizes[] = {size && bad ? 71 : 70};
                const int64_t index_sizes[] = {1, 2}, two = 2;
                int64_t indices[] = {1, !size && bad ? 70 : 69};
                float values[] = {1, 2};
                shc_sparse tensor = {};
                tensor.ndim = tensor.sparse_ndim = 1;
                tensor.sizes = sizes;
                tensor.count = 2;
                tensor.indices = {indices, 2, index_sizes, nullptr};
                tensor.values = {values, 1, &two, nullptr};
                shc_op op = op_of(SHC_ALL_REDUCE_SPARSE);
                op.dtype = dtype;
                op.sparse = &tensor;
                EXPECT_EQ(group.run(op), size ? SHC_ERR_MISMATCH : SHC_ERR_INVALID) << group.error;
                const char *words = size ? "differ: sparse all_reduce #1 (float"
                                         : "index 70 of entry 1 in dimension 0, whose size is 70";
                EXPECT_NE(std::string(group.error).find(words), std::string::npos) << group.error;
                EXPECT_EQ(tensor.sum_values, nullptr);
            });
        }
}

std::string with_count(const std::string &words, int64_t count)
{
    std::string text = words;
    for (const int64_t more : {-1, 0, 1}) {
        const std::string name = more < 0 ? "<n-1>" : more > 0 ? "<n+1>" : "<n>";
        const size_t at = text.find(name);
        if (at != std::string::npos)
            text.replace(at, name.size(), std::to_string(count + more));
    }
    return text;
}

// Before a byte of any output has changed, on all ranks; short calls, those with messages, and long ones.
TEST(HostsDiffer, IsToldOnAllRanks)
{
    for (const Difference &difference : differences())
        for (const int64_t count : {100, 3000, 100000}) {
            SCOPED_TRACE(difference.name);
            Network network(2);
            run_hosts(kTwoOfTwo, network, [&](Group &group) {
                Lists lists(difference.kind, 4, count);
                difference.make(lists, group.rank);
                EXPECT_EQ(group.run(op_of(SHC_BARRIER)), SHC_OK) << group.error;
                EXPECT_EQ(group.run(lists.op), SHC_ERR_MISMATCH) << group.error;
                EXPECT_NE(std::string(group.error).find(with_count(difference.words, count)),
                          std::string::npos)
                    << group.error;
                EXPECT_TRUE(lists.is_unchanged());
            });
        }
}

// An expanded tensor may be of any size. What eight ranks give the ninth one is 2^64 bytes, which must not be taken for
// none.
TEST(HostsDiffer, TensorsLargerThanMemoryAreRefused)
{
    const Labels labels = {0, 0, 0, 0, 0, 0, 0, 0, 1};
    Network network(2);
    run_hosts(labels, network, [&](Group &group) {
        if (group.rank == 8)
            return;
        const int64_t none = 0, many = int64_t{1} << 57, step = 0;
        uint8_t element[16] = {};
        std::vector<shc_tensor> in(9, {nullptr, 1, &none, nullptr}), out(in);
        in[8] = {element, 1, &many, &step};
        shc_op op = moving(SHC_ALL_TO_ALL, sizeof element);
        op.input = {in.data(), 9};
        op.output = {out.data(), 9};
        EXPECT_EQ(group.run(op), SHC_ERR_INVALID);
        EXPECT_NE(std::string(group.error).find("larger than memory"), std::string::npos)
            << group.error;
    });
}

// Host 1 says that a tensor has 2^56 elements. Host 0 finds no other host in the next columns, and makes none of the rest.
TEST(HostsDiffer, ALengthThatNoHostHasEndsWithTheTimeOut)
{
    constexpr size_t kPlaceOfLongest = 64 + 5 * 8; // in struct shc_hosts_said
    Network network(2);
    network.change(1, kPlaceOfLongest + 7, 1);
    run_hosts(kTwoOfTwo, network, [](Group &group) {
        Lists lists(SHC_ALL_TO_ALL, 4, 200000);
        lists.op.timeout_ns = SHC_NS_PER_S;
        const shc_status st = group.run(lists.op);
        EXPECT_TRUE(st != SHC_OK || group.place.host == 1);
    });
}

// Data of short calls go along with the records, so no rail has a call: in the records themselves, or as messages, once
// the first records have said that all lines have them.
TEST(HostsShort, CallsNeedTheRecordsAlone)
{
    struct Case {
        size_t count;
        bool are_known, is_short;
    };
    for (const Case &one :
         {Case{1, false, true}, Case{100, false, true}, Case{2000, false, false},
          Case{2000, true, true}, Case{16384, true, true}, Case{16385, true, false}}) {
        const std::vector<size_t> sizes(4, one.count);
        const std::function<void(Group &)> calls[] = {
            [&](Group &group) { check_all_to_all(group, 4, one.count, 4, 0); },
            [&](Group &group) { check_gather(group, 8, sizes, -1, false, 0); },
            [&](Group &group) { check_gather(group, 8, sizes, 3, false, 0); },
            [&](Group &group) { check_scatter(group, 8, one.count, 4, 1, 0); },
        };
        for (const auto &call : calls) {
            SCOPED_TRACE(one.count);
            Network network(2);
            run_hosts(kTwoOfTwo, network, [&](Group &group) {
                const shc_op barrier = op_of(SHC_BARRIER);
                shc_status st = one.are_known ? group.run(barrier) : SHC_OK;
                call(group);
                st = one.are_known ? st : group.run(barrier);
                EXPECT_EQ(st, SHC_OK) << group.error;
            });
            EXPECT_EQ(network.calls() == 4, one.is_short); // two records of each leader
        }
    }
}

// Messages are shorter where there are more hosts, and of more than 16 there are none.
TEST(HostsShort, ManyHostsHaveShorterMessages)
{
    struct Case {
        int hosts;
        size_t bytes; // of the longest blocks that go along
    };
    for (const Case &one : {Case{4, 87380}, Case{16, 17476}, Case{18, 896}})
        for (const size_t more : {0, 4}) {
            SCOPED_TRACE(one.hosts);
            Network network(one.hosts);
            const auto world = static_cast<size_t>(one.hosts);
            const std::vector<size_t> sizes(world, (one.bytes + more) / 4);
            run_hosts(many_hosts(one.hosts, 1), network, [&](Group &group) {
                EXPECT_EQ(group.run(op_of(SHC_BARRIER)), SHC_OK) << group.error;
                check_gather(group, 4, sizes, -1, false, 0);
                check_gather(group, 4, sizes, 2, false, 1);
                check_scatter(group, 4, sizes[0], world, one.hosts - 1, 2);
            });
            const int records = 4 * one.hosts;
            EXPECT_EQ(network.calls() > records, more > 0 || one.hosts > 16);
        }
}

// Hosts 0 and 3 give each other more than fits a message, so the call is a long one. The others do not know that when
// they send theirs, and those must not be taken for messages of the next call.
TEST(HostsShort, AnAllToAllThatIsLongForTwoHostsLeavesNoMessages)
{
    Network network(4);
    run_hosts({0, 1, 2, 3, 3}, network, [](Group &group) {
        EXPECT_EQ(group.run(op_of(SHC_BARRIER)), SHC_OK) << group.error;
        for (const size_t far : {size_t{100000}, size_t{3000}, size_t{50000}, size_t{3000}}) {
            SCOPED_TRACE(far);
            check_trade(
                group, 4,
                [far](size_t from, size_t to) { return from % 3 + to % 3 == 0 ? far : 3000; }, 5,
                far % 7);
        }
    });
}

// An engine that fails in the middle of long calls fails them on all ranks, and in time.
TEST(HostsDiffer, AnEnginesErrorIsToldOnAllRanks)
{
    for (const shc_op_kind kind : {SHC_ALL_GATHER, SHC_REDUCE_SCATTER, SHC_ALL_TO_ALL, SHC_GATHER,
                                   SHC_SCATTER, SHC_REDUCE}) {
        SCOPED_TRACE(shc_op_kind_name(kind));
        Network network(2, [&](int rail, int, int call) {
            return rail == 1 && call == 1 ? Network::Fate::kFails : Network::Fate::kGood;
        });
        run_hosts(kTwoOfTwo, network, [&](Group &group) {
            Lists lists(kind, 4, 200000);
            const auto rank = static_cast<size_t>(group.rank);
            if (kind == SHC_ALL_GATHER || kind == SHC_GATHER)
                lists.op.input = {&lists.tensors[rank], 1};
            if (kind == SHC_REDUCE_SCATTER || kind == SHC_SCATTER)
                lists.op.output = {&lists.tensors[4 + rank], 1};
            lists.op.timeout_ns = (kSlow ? 5 : 1) * SHC_NS_PER_S;
            shc_status st = SHC_OK;
            for (int i = 0; i < 3 && st == SHC_OK; i++) // a host may learn of it in its next call
                st = group.run(lists.op);
            EXPECT_NE(st, SHC_OK);
            EXPECT_STRNE(group.error, "");
        });
    }
}

} // namespace
