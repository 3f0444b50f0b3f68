// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/kernel/copy.h"
#include "shm/kernel/kernel_isa.h"
}

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <vector>

namespace
{

constexpr size_t kMargin = 70;

std::vector<uint8_t> random_bytes(size_t count)
{
    static std::mt19937 engine(7);
    std::vector<uint8_t> bytes(count);
    for (uint8_t &b : bytes)
        b = static_cast<uint8_t>(engine());
    return bytes;
}

std::vector<size_t> sizes()
{
    std::vector<size_t> list;
    for (size_t n = 0; n < 300; n++)
        list.push_back(n);
    for (size_t n : {511, 512, 513, 4095, 4096, 4097, 65536, 100001})
        list.push_back(n);
    return list;
}

template <class Copy>
void check_copy(Copy copy)
{
    for (size_t bytes : sizes()) {
        const size_t shift = bytes % 61, place = kMargin + bytes % 64;
        const std::vector<uint8_t> src = random_bytes(bytes + shift);
        std::vector<uint8_t> dst = random_bytes(bytes + 3 * kMargin), expected = dst;
        std::copy(src.begin() + shift, src.end(), expected.begin() + place);
        copy(dst.data() + place, src.data() + shift, bytes);
        ASSERT_EQ(dst, expected) << bytes;
    }
}

TEST(Copy, MovesEveryByteAndNoOther)
{
    check_copy(shc_copy);
}

// 1 to 63 bytes after the source, in any page.
TEST(Copy, KnowsWhereStringInstructionsMayCrawl)
{
    std::vector<char> memory(size_t{4} << 12);
    for (size_t from : {0, 1, 64, 4000, 4095, 8191})
        for (size_t ahead = 0; ahead < 4096; ahead++) {
            const char *src = memory.data() + from, *dst = memory.data() + from + ahead;
            ASSERT_EQ(shc_copy_may_crawl(dst, src), ahead >= 1 && ahead <= 63) << ahead;
            ASSERT_EQ(shc_copy_may_crawl(src, dst), ahead >= 4033) << ahead;
            ASSERT_EQ(shc_copy_may_crawl(dst + 4096, src), ahead >= 1 && ahead <= 63) << ahead;
        }
}

TEST(Copy, MovesEveryByteThereToo)
{
    for (size_t ahead : {1, 16, 31, 63})
        for (size_t bytes : {2047, 2048, 2049, 2111, 2112, 5000, 70001}) {
            const std::vector<uint8_t> from = random_bytes(bytes + 4096);
            std::vector<uint8_t> to = random_bytes(bytes + 3 * 4096);
            const uint8_t *src = from.data() + (-reinterpret_cast<uintptr_t>(from.data()) % 4096);
            uint8_t *dst = to.data() + (-reinterpret_cast<uintptr_t>(to.data()) % 4096) + ahead;
            std::vector<uint8_t> expected = to;
            std::copy(src, src + bytes, expected.begin() + (dst - to.data()));
            ASSERT_TRUE(shc_copy_may_crawl(dst, src));
            shc_copy(dst, src, bytes);
            ASSERT_EQ(to, expected) << bytes;
        }
}

TEST(Copy, PastTheCachesMovesEveryByteAndNoOther)
{
    check_copy(shc_copy_stream);
    for (int isa = 0; isa < SHC_ISA_COUNT; isa++)
        if (const shc_kernel_set *set = shc_kernel_set_of(static_cast<shc_isa>(isa)))
            check_copy(set->stream);
}

template <class Exchange>
void check_exchange(Exchange exchange)
{
    for (size_t bytes : sizes()) {
        const size_t a = kMargin + bytes % 7, b = kMargin + bytes % 13, c = kMargin + bytes % 61;
        std::vector<uint8_t> out = random_bytes(bytes + 3 * kMargin);
        std::vector<uint8_t> cell = random_bytes(bytes + 3 * kMargin);
        const std::vector<uint8_t> next = random_bytes(bytes + 3 * kMargin);
        std::vector<uint8_t> out_after = out, cell_after = cell, next_now = next;
        std::copy_n(cell.begin() + b, bytes, out_after.begin() + a);
        std::copy_n(next.begin() + c, bytes, cell_after.begin() + b);
        exchange(out.data() + a, cell.data() + b, next_now.data() + c, bytes);
        ASSERT_EQ(out, out_after) << bytes;
        ASSERT_EQ(cell, cell_after) << bytes;
        ASSERT_EQ(next_now, next) << bytes;
    }
}

TEST(Copy, AnExchangeReadsTheCellBeforeItRefillsIt)
{
    check_exchange(shc_copy_exchange);
    check_exchange(shc_copy_exchange_past);
}

TEST(Copy, AnExchangeIsTheSameOnEveryInstructionSet)
{
    for (int isa = 0; isa < SHC_ISA_COUNT; isa++)
        if (const shc_kernel_set *set = shc_kernel_set_of(static_cast<shc_isa>(isa))) {
            check_exchange(set->exchange);
            check_exchange(set->exchange_past);
        }
}

} // namespace
