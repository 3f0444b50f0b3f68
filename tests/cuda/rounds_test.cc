// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of rounds, carried out on plain arrays: all ranks' moves in the order of the
// protocol must give each operation's result, inside the halves, over nobody's unread bytes.
extern "C" {
#include "cuda_ipc/rounds.h"
}

#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>
#include <random>
#include <vector>

namespace shmcoll::test
{
namespace
{

using Bytes = std::vector<uint8_t>;

uint8_t value(int rank, uint64_t i)
{
    return static_cast<uint8_t>(i * 37 + i / 251 + static_cast<uint64_t>(rank) * 101 + 1);
}

Bytes input_of(int rank, uint64_t bytes)
{
    Bytes input(bytes);
    for (uint64_t i = 0; i < bytes; i++)
        input[i] = value(rank, i);
    return input;
}

// One operation of a world, with its ranks' memory. Sums are of bytes, modulo 256.
struct World {
    std::vector<shc_rounds> ranks;
    std::vector<Bytes> inputs, outputs;
    std::vector<Bytes> halves[2];

    explicit World(int world, size_t half)
    {
        for (auto &one : halves)
            one.assign(static_cast<size_t>(world), Bytes(half, 0xee));
    }

    void stage(size_t r, const shc_move &move, uint64_t k, std::vector<bool> &filled)
    {
        ASSERT_LE(move.to + move.bytes, halves[0][r].size());
        ASSERT_LE(move.from + move.bytes, inputs[r].size());
        for (uint64_t i = 0; i < move.bytes; i++) {
            EXPECT_FALSE(filled[move.to + i]) << "staged twice";
            filled[move.to + i] = true;
            halves[k % 2][r][move.to + i] = inputs[r][move.from + i];
        }
    }

    void consume(size_t r, const shc_move &move, uint64_t k)
    {
        const bool ahead = move.kind == SHC_MOVE_SUM_AHEAD;
        Bytes &to = ahead ? halves[(k + 1) % 2][r] : outputs[r];
        ASSERT_LE(move.to + move.bytes, to.size());
        const bool keep = move.kind == SHC_MOVE_KEEP;
        ASSERT_LE(move.from + move.bytes, keep ? inputs[r].size() : halves[0][r].size());
        for (uint64_t i = 0; i < move.bytes; i++) {
            uint8_t result = 0;
            if (keep)
                result = inputs[r][move.from + i];
            else if (move.kind == SHC_MOVE_FETCH)
                result = halves[k % 2][static_cast<size_t>(move.rank)][move.from + i];
            else
                for (auto &half : halves[k % 2])
                    result = static_cast<uint8_t>(result + half[move.from + i]);
            to[move.to + i] = result;
        }
    }

    // Bytes that no rank staged in this round must not be read in it.
    void forget(uint64_t k, bool filled_ahead)
    {
        for (auto &half : halves[k % 2])
            if (!filled_ahead)
                std::fill(half.begin(), half.end(), 0xee);
    }

    void run()
    {
        const uint64_t count = shc_rounds_count(ranks.data());
        std::vector<std::vector<shc_move>> moves(ranks.size());
        for (uint64_t k = 0; k < count; k++) {
            forget(k, ranks[0].two && k % 2 == 1);
            for (size_t r = 0; r < ranks.size(); r++) {
                ASSERT_EQ(shc_rounds_count(&ranks[r]), count);
                moves[r].resize(SHC_ROUND_MOVES);
                moves[r].resize(shc_rounds_moves(&ranks[r], k, moves[r].data()));
                std::vector<bool> filled(halves[0][r].size());
                bool consuming = false;
                for (auto &move : moves[r]) {
                    EXPECT_GT(move.bytes, 0u);
                    EXPECT_FALSE(consuming && move.kind == SHC_MOVE_STAGE);
                    consuming = move.kind != SHC_MOVE_STAGE;
                    if (!consuming)
                        stage(r, move, k, filled);
                }
            }
            for (size_t r = 0; r < ranks.size(); r++)
                for (auto &move : moves[r])
                    if (move.kind != SHC_MOVE_STAGE)
                        consume(r, move, k);
        }
    }
};

struct Case {
    shc_op_kind kind;
    int world, root;
    size_t half;
    uint64_t bytes;
    std::vector<uint64_t> blocks;             // uneven
    std::vector<std::vector<uint64_t>> pairs; // all_to_all: [from][to]
    bool two = false;
};

std::vector<uint64_t> column(const Case &c, size_t r)
{
    std::vector<uint64_t> receives;
    for (auto &row : c.pairs)
        receives.push_back(row[r]);
    return receives;
}

uint64_t sum(const std::vector<uint64_t> &numbers)
{
    return std::accumulate(numbers.begin(), numbers.end(), uint64_t(0));
}

std::vector<uint64_t> blocks_of(const Case &c)
{
    return c.blocks.empty() ? std::vector<uint64_t>(static_cast<size_t>(c.world), c.bytes)
                            : c.blocks;
}

// The input of rank r, and the expected output.
uint64_t input_bytes(const Case &c, size_t r)
{
    const int rank = static_cast<int>(r);
    switch (c.kind) {
    case SHC_BARRIER:
        return 0;
    case SHC_BROADCAST:
        return rank == c.root ? c.bytes : 0;
    case SHC_SCATTER:
        return rank == c.root ? sum(blocks_of(c)) : 0;
    case SHC_REDUCE_SCATTER:
    case SHC_REDUCE_SCATTER_UNEVEN:
        return sum(blocks_of(c));
    case SHC_ALL_TO_ALL:
        return sum(c.pairs[r]);
    default:
        return blocks_of(c)[r];
    }
}

Bytes sum_of_all(const Case &c, uint64_t from, uint64_t bytes)
{
    Bytes out(bytes);
    for (uint64_t i = 0; i < bytes; i++)
        for (int r = 0; r < c.world; r++)
            out[i] = static_cast<uint8_t>(out[i] + value(r, from + i));
    return out;
}

void append(Bytes &out, int rank, uint64_t from, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        out.push_back(value(rank, from + i));
}

Bytes expected(const Case &c, size_t r)
{
    const auto blocks = blocks_of(c);
    const uint64_t before =
        std::accumulate(blocks.begin(), blocks.begin() + static_cast<long>(r), uint64_t(0));
    const bool is_root = static_cast<int>(r) == c.root;
    Bytes out;
    switch (c.kind) {
    case SHC_ALL_REDUCE:
        return sum_of_all(c, 0, c.bytes);
    case SHC_REDUCE:
        return is_root ? sum_of_all(c, 0, c.bytes) : out;
    case SHC_REDUCE_SCATTER:
    case SHC_REDUCE_SCATTER_UNEVEN:
        return sum_of_all(c, before, blocks[r]);
    case SHC_BROADCAST:
        return is_root ? out : input_of(c.root, c.bytes);
    case SHC_SCATTER:
        append(out, c.root, before, blocks[r]);
        return out;
    case SHC_ALL_TO_ALL:
        for (size_t from = 0; from < c.pairs.size(); from++)
            append(out, static_cast<int>(from),
                   std::accumulate(c.pairs[from].begin(),
                                   c.pairs[from].begin() + static_cast<long>(r), uint64_t(0)),
                   c.pairs[from][r]);
        return out;
    case SHC_GATHER:
    case SHC_ALL_GATHER:
    case SHC_ALL_GATHER_UNEVEN:
        for (int from = 0; from < c.world && (is_root || c.kind != SHC_GATHER); from++)
            append(out, from, 0, blocks[static_cast<size_t>(from)]);
        return out;
    default:
        return out;
    }
}

void expect_right(const Case &c)
{
    World world(c.world, c.half);
    std::vector<std::vector<uint64_t>> receives;
    uint64_t largest = 0;
    for (size_t r = 0; r < static_cast<size_t>(c.world); r++) {
        receives.push_back(column(c, r));
        for (size_t to = 0; to < c.pairs.size(); to++)
            largest = to == r ? largest : std::max(largest, c.pairs[r][to]);
    }
    for (size_t r = 0; r < static_cast<size_t>(c.world); r++) {
        shc_rounds one = {};
        one.kind = c.kind;
        one.rank = static_cast<int>(r);
        one.world = c.world;
        one.root = c.root;
        one.half_bytes = c.half;
        one.two = c.two;
        one.bytes = c.bytes;
        one.blocks = c.blocks.empty() ? nullptr : c.blocks.data();
        one.sends = c.pairs.empty() ? nullptr : c.pairs[r].data();
        one.receives = receives[r].data();
        one.largest = largest;
        world.ranks.push_back(one);
        world.inputs.push_back(input_of(one.rank, input_bytes(c, r)));
        world.outputs.push_back(Bytes(expected(c, r).size(), 0xcc));
    }
    world.run();
    for (size_t r = 0; r < world.outputs.size(); r++)
        ASSERT_EQ(world.outputs[r], expected(c, r))
            << "kind " << c.kind << " world " << c.world << " half " << c.half << " bytes "
            << c.bytes << " rank " << r << (c.two ? " in two" : "");
}

constexpr int kWorlds[] = {1, 2, 3, 5, 8};

std::vector<uint64_t> sizes_around(uint64_t half)
{
    return {0, 1, 127, 128, 129, half - 1, half, half + 1, 3 * half + 77};
}

TEST(Rounds, EvenOperationsGiveTheirResults)
{
    for (shc_op_kind kind : {SHC_BROADCAST, SHC_ALL_REDUCE, SHC_ALL_GATHER, SHC_REDUCE, SHC_GATHER,
                             SHC_SCATTER, SHC_REDUCE_SCATTER})
        for (int world : kWorlds)
            for (size_t half : {1024, 1024 + 128})
                for (uint64_t bytes : sizes_around(half))
                    for (int root : {0, world - 1})
                        expect_right({kind, world, root, half, bytes, {}, {}});
}

TEST(Rounds, AllReduceBySlicesGivesItsResult)
{
    for (int world : kWorlds)
        for (uint64_t bytes : sizes_around(1024))
            expect_right({SHC_ALL_REDUCE, world, 0, 1024, bytes, {}, {}, true});
}

TEST(Rounds, UnevenOperationsGiveTheirResults)
{
    std::minstd_rand random(7);
    for (shc_op_kind kind : {SHC_ALL_GATHER_UNEVEN, SHC_REDUCE_SCATTER_UNEVEN})
        for (int world : kWorlds)
            for (int repeat = 0; repeat < 20; repeat++) {
                std::vector<uint64_t> blocks;
                for (int r = 0; r < world; r++)
                    blocks.push_back(random() % 4 == 0 ? 0 : random() % 3000);
                expect_right({kind, world, 0, 1024, 0, blocks, {}});
            }
}

TEST(Rounds, AllToAllGivesItsResult)
{
    std::minstd_rand random(8);
    for (int world : kWorlds)
        for (int repeat = 0; repeat < 20; repeat++) {
            std::vector<std::vector<uint64_t>> pairs(static_cast<size_t>(world));
            for (auto &row : pairs)
                for (int to = 0; to < world; to++)
                    row.push_back(random() % 4 == 0 ? 0 : random() % 700);
            expect_right({SHC_ALL_TO_ALL, world, 0, 1024, 0, {}, pairs});
        }
}

TEST(Rounds, AnOperationWithoutBytesIsOneRound)
{
    for (shc_op_kind kind : {SHC_BARRIER, SHC_BROADCAST, SHC_ALL_REDUCE, SHC_REDUCE_SCATTER}) {
        shc_rounds rounds = {};
        rounds.kind = kind;
        rounds.world = 3;
        rounds.half_bytes = 1024;
        shc_move moves[SHC_ROUND_MOVES];
        EXPECT_EQ(shc_rounds_count(&rounds), 1u);
        EXPECT_EQ(shc_rounds_moves(&rounds, 0, moves), 0u);
    }
}

// The moves of the largest world fit the array that callers have.
TEST(Rounds, TheLargestWorldFits)
{
    const std::vector<uint64_t> pairs(SHC_MAX_WORLD, 100);
    shc_rounds rounds = {};
    rounds.kind = SHC_ALL_TO_ALL;
    rounds.world = SHC_MAX_WORLD;
    rounds.rank = 17;
    rounds.half_bytes = SHC_MAX_WORLD * SHC_LINE_BYTES;
    rounds.sends = rounds.receives = pairs.data();
    rounds.largest = 100;
    std::vector<shc_move> moves(SHC_ROUND_MOVES);
    EXPECT_EQ(shc_rounds_count(&rounds), 1u);
    EXPECT_EQ(shc_rounds_moves(&rounds, 0, moves.data()), 2u * SHC_MAX_WORLD - 1);
}

// The bound is where the extra bytes of one round cost more than a second round.
TEST(Rounds, SmallAllReducesTakeOneRound)
{
    const auto two = [](int world, uint64_t bytes, int sharing, size_t half = size_t{1} << 32) {
        shc_rounds rounds{};
        rounds.world = world;
        rounds.bytes = bytes;
        rounds.half_bytes = half;
        return shc_rounds_wants_two(&rounds, sharing);
    };
    EXPECT_FALSE(two(1, UINT64_MAX, 1));
    EXPECT_FALSE(two(2, UINT64_MAX, 1));
    EXPECT_FALSE(two(2, UINT64_MAX, 2));
    EXPECT_FALSE(two(3, 4 << 20, 1));
    EXPECT_TRUE(two(3, (4 << 20) + 1, 1));
    EXPECT_FALSE(two(8, 100 << 10, 1));
    EXPECT_TRUE(two(8, 1 << 20, 1));
    // Contexts that share a GPU take turns in each round, whatever it carries.
    EXPECT_FALSE(two(8, 32 << 20, 8));
    EXPECT_TRUE(two(8, 40 << 20, 8));
    EXPECT_TRUE(two(8, 6 << 20, 2));
    // A round carries a half at most.
    EXPECT_FALSE(two(8, UINT64_MAX, 8, 32 << 20));
    EXPECT_FALSE(two(8, UINT64_MAX, 1, 64 << 10));
}

} // namespace
} // namespace shmcoll::test
