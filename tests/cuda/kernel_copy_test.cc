// SPDX-License-Identifier: BSD-3-Clause
// The copy kernel: every alignment and length, runs over several blocks, gates.
#include "tests/cuda/launcher.h"

#include <memory>
#include <random>
#include <vector>

namespace shmcoll::test
{
namespace
{

using Bytes = std::vector<uint8_t>;

Bytes pattern(size_t bytes, unsigned seed)
{
    std::minstd_rand random(seed + 1);
    Bytes out(bytes);
    for (uint8_t &b : out)
        b = static_cast<uint8_t>(random() >> 8);
    return out;
}

struct alignas(16) Line {
    uint8_t bytes[16];
};

// Memory whose beginning is aligned as a GPU's allocations are, or better.
struct Memory {
    Memory(size_t bytes, unsigned seed)
        : lines(bytes / sizeof(Line) + 1), start(pattern(bytes, seed))
    {
        memcpy(data(), start.data(), bytes);
    }
    uint8_t *data() { return lines.data()->bytes; }
    std::vector<Line> lines;
    Bytes start; // as it was at first
};

// Copies and compares all of the target, also the bytes next to the pieces.
struct Copies {
    Copies(size_t bytes) : from(bytes, 1), to(bytes, 2), expected(to.start) { args->gate = &gate; }
    void add(size_t target, size_t source, size_t bytes)
    {
        args->piece[args->count++] = {to.data() + target, from.data() + source, bytes};
        std::copy_n(from.start.begin() + source, bytes, expected.begin() + target);
    }
    bool run(Launcher &l)
    {
        l.copy(*args);
        const bool unread = memcmp(from.data(), from.start.data(), from.start.size()) == 0;
        return unread && memcmp(to.data(), expected.data(), expected.size()) == 0;
    }
    uint32_t gate = SHC_GATE_OPEN;
    Memory from, to;
    Bytes expected;
    std::unique_ptr<shc_copy_args> args{new shc_copy_args()};
};

TEST(Copy, AnyAlignmentAndLength)
{
    Launcher l;
    for (size_t target = 0; target < 17; target++)
        for (size_t source : {size_t{0}, size_t{1}, size_t{2}, size_t{4}, size_t{8}, size_t{13},
                              target, target + 16, target + 4}) {
            Copies c(8192);
            // The gaps between pieces are multiples of 16: all pieces have the same alignment.
            size_t at = 32;
            for (size_t bytes : {0, 1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 255, 1000}) {
                c.add(at + target, at + source, bytes);
                at += (bytes + 63) / 16 * 16;
            }
            ASSERT_TRUE(c.run(l)) << target << " " << source;
        }
}

TEST(Copy, RunsOverAllBlocks)
{
    Launcher l;
    for (unsigned blocks : {1, 2, 3, 16})
        for (size_t apart : {0, 1, 2, 4, 8}) {
            l.kernels.blocks = blocks;
            Copies c(5 * SHC_COPY_RUN_BYTES + 999);
            c.add(16 + apart, 16, 2 * SHC_COPY_RUN_BYTES - 17);
            c.add(16 + 2 * SHC_COPY_RUN_BYTES + apart, 2 * SHC_COPY_RUN_BYTES, 1);
            c.add(48 + 2 * SHC_COPY_RUN_BYTES, 99, 0);
            c.add(64 + 2 * SHC_COPY_RUN_BYTES + apart, 2 * SHC_COPY_RUN_BYTES, 77);
            c.add(160 + 2 * SHC_COPY_RUN_BYTES + 3, 3 - 3 + apart, 3 * SHC_COPY_RUN_BYTES + 5);
            ASSERT_TRUE(c.run(l)) << blocks << " blocks, " << apart;
        }
}

TEST(Copy, AsManyPiecesAsThereMayBe)
{
    Launcher l;
    Copies c(SHC_COPY_PIECES * 64);
    for (size_t i = 0; i < SHC_COPY_PIECES; i++)
        c.add(i * 64, (i * 37 % SHC_COPY_PIECES) * 64 + i % 3, 61 - i % 7);
    EXPECT_TRUE(c.run(l));
}

TEST(Copy, OntoItselfChangesNothing)
{
    Launcher l;
    Memory m(3000, 5);
    uint32_t gate = SHC_GATE_OPEN;
    shc_copy_args args = {};
    args.gate = &gate;
    args.count = 1;
    args.piece[0] = {m.data() + 3, m.data() + 3, 2900};
    l.copy(args);
    EXPECT_EQ(memcmp(m.data(), m.start.data(), m.start.size()), 0);
}

TEST(Copy, NothingIsStoredBehindAGateThatIsNotOpen)
{
    Launcher l;
    for (uint32_t gate : {SHC_GATE_UNSET, SHC_GATE_MISMATCH, SHC_GATE_ABORTED}) {
        Copies c(4096);
        c.add(16, 32, 4000);
        c.add(3, 8, 5);
        c.expected = c.to.start;
        c.gate = gate;
        EXPECT_TRUE(c.run(l)) << gate;
    }
}

} // namespace
} // namespace shmcoll::test
