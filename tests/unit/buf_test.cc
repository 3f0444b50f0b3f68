// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/kernel/buf.h"
}

#include <algorithm>
#include <climits>
#include <cstring>
#include <gtest/gtest.h>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace
{

using Bytes = std::vector<uint8_t>;

size_t below(size_t n)
{
    static std::mt19937_64 engine(42);
    return engine() % n;
}

Bytes random_bytes(size_t count)
{
    Bytes bytes(count);
    for (uint8_t &b : bytes)
        b = static_cast<uint8_t>(below(256));
    return bytes;
}

// A tensor that owns its sizes, strides and memory, and computes the plain way where its elements are.
struct Tensor {
    std::vector<int64_t> sizes, strides;
    Bytes memory;
    size_t start = 0; // of element (0, 0, ...) in memory, in bytes
    uint32_t elem = 4;

    shc_tensor describe()
    {
        return {memory.data() + start, static_cast<int32_t>(sizes.size()), sizes.data(),
                strides.empty() ? nullptr : strides.data()};
    }

    // Where every element is, in logical order: each index by division, nothing merged.
    std::vector<size_t> places() const
    {
        int64_t count = 1;
        for (int64_t size : sizes)
            count *= size;
        std::vector<size_t> places;
        for (int64_t i = 0; i < count; i++) {
            int64_t rest = i, at = static_cast<int64_t>(start), dense = elem;
            for (size_t d = sizes.size(); d-- > 0;) {
                at += rest % sizes[d] * (strides.empty() ? dense : strides[d] * elem);
                dense *= sizes[d];
                rest /= sizes[d];
            }
            places.push_back(static_cast<size_t>(at));
        }
        return places;
    }
};

// Random sizes, the dimensions laid out in a random order, with gaps, and now and then backwards.
Tensor random_tensor(uint32_t elem)
{
    Tensor t;
    t.elem = elem;
    const size_t ndim = below(6);
    for (size_t d = 0; d < ndim; d++)
        t.sizes.push_back(below(20) ? static_cast<int64_t>(1 + below(5)) : 0);
    std::vector<size_t> order(ndim);
    std::iota(order.begin(), order.end(), 0);
    if (below(2))
        for (size_t d = ndim; d-- > 1;)
            std::swap(order[d], order[below(d + 1)]);
    t.strides.resize(ndim);
    int64_t dense = 1, lowest = 0;
    for (size_t d = ndim; d-- > 0;) {
        const size_t dim = order[d];
        const bool backwards = below(8) == 0;
        t.strides[dim] = backwards ? -dense : dense;
        if (backwards && t.sizes[dim] > 0)
            lowest += dense * (t.sizes[dim] - 1);
        dense = std::max<int64_t>(dense * t.sizes[dim], 1) + (below(4) ? 0 : 1 + below(3));
    }
    t.start = (static_cast<size_t>(lowest) + below(3)) * elem + below(4);
    t.memory = random_bytes(t.start + (static_cast<size_t>(dense) + 2) * elem);
    return t;
}

// A list of tensors with its plain reading.
struct List {
    std::vector<Tensor> tensors;
    std::vector<shc_tensor> described;

    shc_tensors describe()
    {
        described.clear();
        for (Tensor &t : tensors)
            described.push_back(t.describe());
        return {described.data(), static_cast<uint32_t>(described.size())};
    }

    Bytes read() const
    {
        Bytes all;
        for (const Tensor &t : tensors)
            for (size_t at : t.places())
                all.insert(all.end(), t.memory.begin() + at, t.memory.begin() + at + t.elem);
        return all;
    }
};

shc_buf make(List &list, uint32_t elem, bool writable = true)
{
    shc_buf buf;
    const shc_tensors tensors = list.describe();
    EXPECT_EQ(shc_buf_init(&buf, &tensors, elem, writable), SHC_OK) << shc_error_text();
    return buf;
}

Bytes read_back(const shc_buf &buf, size_t offset, size_t bytes)
{
    Bytes out(bytes + 2, 0xee);
    shc_buf_read(&buf, offset, out.data() + 1, bytes);
    EXPECT_EQ(out.front(), 0xee);
    EXPECT_EQ(out.back(), 0xee);
    return Bytes(out.begin() + 1, out.end() - 1);
}

Bytes slice(const Bytes &all, size_t offset, size_t bytes)
{
    return Bytes(all.begin() + offset, all.begin() + offset + bytes);
}

// ---- reading and writing ----

TEST(Buf, TransposedTensorIsReadInLogicalOrder)
{
    List list;
    Tensor t;
    t.sizes = {2, 3};
    t.strides = {1, 2};
    t.elem = 1;
    t.memory = {1, 2, 3, 4, 5, 6};
    list.tensors = {t};
    const shc_buf buf = make(list, 1);
    EXPECT_EQ(buf.flat, nullptr);
    EXPECT_EQ(buf.bytes, 6u);
    EXPECT_EQ(read_back(buf, 0, 6), (Bytes{1, 3, 5, 2, 4, 6}));
    EXPECT_EQ(read_back(buf, 2, 2), (Bytes{5, 2}));
}

TEST(Buf, AnyPieceOfAnyLayoutIsReadInLogicalOrder)
{
    const uint32_t elems[] = {1, 2, 3, 4, 8, 12, 16, 40};
    for (int round = 0; round < 3000; round++) {
        const uint32_t elem = elems[below(8)];
        List list;
        for (size_t n = below(5); n > 0; n--)
            list.tensors.push_back(random_tensor(elem));
        const Bytes all = list.read();
        const shc_buf buf = make(list, elem);
        ASSERT_EQ(buf.bytes, all.size());
        ASSERT_EQ(read_back(buf, 0, all.size()), all);
        for (int i = 0; i < 4; i++) {
            const size_t count = all.size() / elem, from = below(count + 1);
            const size_t bytes = below(count - from + 1) * elem;
            const Bytes expected = slice(all, from * elem, bytes);
            ASSERT_EQ(read_back(buf, from * elem, bytes), expected);
            Bytes scratch(bytes + 1);
            const void *peek = shc_buf_peek(&buf, from * elem, bytes, scratch.data());
            ASSERT_TRUE(bytes == 0 || memcmp(peek, expected.data(), bytes) == 0);
        }
    }
}

TEST(Buf, WritingAPieceChangesItsElementsAndNothingElse)
{
    const uint32_t elems[] = {1, 2, 3, 4, 8, 12, 16, 40};
    for (int round = 0; round < 3000; round++) {
        const uint32_t elem = elems[below(8)];
        List list;
        for (size_t n = below(5); n > 0; n--)
            list.tensors.push_back(random_tensor(elem));
        List expected = list;
        const shc_buf buf = make(list, elem);
        const size_t count = buf.bytes / elem, from = below(count + 1);
        const size_t to = from + below(count - from + 1);
        const Bytes in = random_bytes((to - from) * elem);
        shc_buf_write(&buf, from * elem, in.data(), in.size());
        size_t element = 0;
        for (Tensor &t : expected.tensors)
            for (size_t at : t.places()) {
                if (element >= from && element < to)
                    std::copy_n(in.begin() + (element - from) * elem, elem, t.memory.begin() + at);
                element++;
            }
        for (size_t i = 0; i < list.tensors.size(); i++)
            ASSERT_EQ(list.tensors[i].memory, expected.tensors[i].memory);
    }
}

TEST(Buf, ExpandedTensorIsReadAgainAndAgain)
{
    List list;
    Tensor t;
    t.sizes = {3, 2};
    t.strides = {0, 1};
    t.elem = 2;
    t.memory = {1, 2, 3, 4};
    list.tensors = {t};
    const shc_buf buf = make(list, 2, false);
    EXPECT_EQ(read_back(buf, 0, 12), (Bytes{1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}));
}

TEST(Buf, PlainMemoryIsABuf)
{
    Bytes memory = {9, 8, 7, 6};
    const shc_buf buf = shc_buf_of(memory.data(), memory.size());
    EXPECT_EQ(read_back(buf, 1, 2), (Bytes{8, 7}));
    EXPECT_EQ(shc_buf_direct(&buf, 2, 2), memory.data() + 2);
    EXPECT_EQ(shc_buf_peek(&buf, 3, 1, nullptr), memory.data() + 3);
    shc_buf_write(&buf, 0, "ab", 2);
    EXPECT_EQ(memory, (Bytes{'a', 'b', 7, 6}));
}

// ---- contiguity ----

TEST(Buf, ContiguousTensorIsFlatWithAndWithoutStrides)
{
    List list;
    Tensor t;
    t.sizes = {2, 1, 3};
    t.memory = random_bytes(24);
    for (const std::vector<int64_t> &strides :
         std::vector<std::vector<int64_t>>{{}, {3, 3, 1}, {3, INT64_MAX, 1}}) {
        t.strides = strides;
        list.tensors = {t};
        const shc_buf buf = make(list, 4);
        EXPECT_EQ(buf.flat, list.described[0].data);
        EXPECT_EQ(shc_buf_direct(&buf, 8, 16), static_cast<char *>(list.described[0].data) + 8);
    }
}

TEST(Buf, TensorsThatFollowOneAnotherAreOneFlatPiece)
{
    Bytes memory = random_bytes(64);
    const int64_t five = 5, three = 3, zero = 0;
    const shc_tensor list[] = {
        {memory.data(), 1, &five, nullptr},
        {nullptr, 1, &zero, nullptr}, // an empty one in between is no gap
        {memory.data() + 20, 1, &three, nullptr},
    };
    shc_tensors tensors = {list, 3};
    shc_buf buf;
    ASSERT_EQ(shc_buf_init(&buf, &tensors, 4, true), SHC_OK);
    EXPECT_EQ(static_cast<void *>(buf.flat), memory.data());
    EXPECT_EQ(buf.bytes, 32u);

    const shc_tensor apart[] = {{memory.data(), 1, &five, nullptr},
                                {memory.data() + 24, 1, &three, nullptr}};
    tensors = {apart, 2};
    ASSERT_EQ(shc_buf_init(&buf, &tensors, 4, true), SHC_OK);
    EXPECT_EQ(buf.flat, nullptr);
    EXPECT_EQ(buf.bytes, 32u);
}

TEST(Buf, APieceInsideOneRunIsDirectAlsoWhereTheWholeIsNot)
{
    Bytes memory = random_bytes(100);
    const int64_t sizes[] = {4, 3}, strides[] = {5, 1}, four = 4;
    const shc_tensor list[] = {{memory.data(), 2, sizes, strides},
                               {memory.data() + 40, 1, &four, nullptr},
                               {memory.data() + 44, 1, &four, nullptr}};
    const shc_tensors tensors = {list, 3};
    shc_buf buf;
    ASSERT_EQ(shc_buf_init(&buf, &tensors, 1, true), SHC_OK);
    EXPECT_EQ(buf.flat, nullptr);
    EXPECT_EQ(shc_buf_direct(&buf, 3, 3), memory.data() + 5);
    EXPECT_EQ(shc_buf_direct(&buf, 4, 1), memory.data() + 6);
    EXPECT_EQ(shc_buf_direct(&buf, 3, 4), nullptr);             // into the next row
    EXPECT_EQ(shc_buf_direct(&buf, 12, 8), memory.data() + 40); // two tensors without a gap
    Bytes scratch(8);
    EXPECT_EQ(shc_buf_peek(&buf, 12, 8, scratch.data()), memory.data() + 40);
    EXPECT_EQ(shc_buf_peek(&buf, 2, 8, scratch.data()), scratch.data());
}

TEST(Buf, AnEmptyListOrTensorHasNoBytes)
{
    shc_tensors none = {nullptr, 0};
    shc_buf buf;
    ASSERT_EQ(shc_buf_init(&buf, &none, 8, true), SHC_OK);
    EXPECT_EQ(buf.bytes, 0u);
    EXPECT_EQ(buf.list, nullptr);
    shc_buf_read(&buf, 0, nullptr, 0);
    shc_buf_write(&buf, 0, nullptr, 0);
    EXPECT_EQ(shc_buf_direct(&buf, 0, 0), nullptr);

    const int64_t sizes[] = {INT64_MAX, INT64_MAX, 0};
    const shc_tensor empty = {nullptr, 3, sizes, nullptr};
    const shc_tensors tensors = {&empty, 1};
    ASSERT_EQ(shc_buf_init(&buf, &tensors, 8, true), SHC_OK) << shc_error_text();
    EXPECT_EQ(buf.bytes, 0u);
}

TEST(Buf, AScalarIsOneElement)
{
    int64_t value = 77;
    const shc_tensor scalar = {&value, 0, nullptr, nullptr};
    const shc_tensors tensors = {&scalar, 1};
    shc_buf buf;
    ASSERT_EQ(shc_buf_init(&buf, &tensors, 8, true), SHC_OK);
    EXPECT_EQ(buf.bytes, 8u);
    EXPECT_EQ(static_cast<void *>(buf.flat), &value);
}

// ---- refused input ----

void expect_refused(const shc_tensors &tensors, uint32_t elem, bool writable, const char *reason)
{
    shc_buf buf;
    memset(&buf, 0x5a, sizeof buf);
    const shc_buf before = buf;
    EXPECT_EQ(shc_buf_init(&buf, &tensors, elem, writable), SHC_ERR_INVALID) << reason;
    EXPECT_NE(std::string(shc_error_text()).find(reason), std::string::npos) << shc_error_text();
    EXPECT_EQ(memcmp(&buf, &before, sizeof buf), 0) << "outputs change only on success";
}

TEST(Buf, AMalformedTensorIsRefusedWithItsNumber)
{
    char memory[64];
    const int64_t negative[] = {2, -1}, two[] = {2, 2}, none[] = {0};
    const shc_tensor good = {memory, 2, two, nullptr};
    const auto second = [&](shc_tensor bad, bool writable, const char *reason) {
        const shc_tensor list[] = {good, bad};
        expect_refused({list, 2}, 4, writable, reason);
        EXPECT_NE(std::string(shc_error_text()).find("tensor 1 "), std::string::npos);
    };
    second({memory, 2, negative, nullptr}, false, "has size -1 in dimension 1");
    second({memory, -1, two, nullptr}, false, "has -1 dimensions");
    second({memory, SHC_BUF_MAX_DIMS + 1, two, nullptr}, false, "0 to 64");
    second({memory, 1, nullptr, nullptr}, false, "no sizes");
    second({nullptr, 2, two, nullptr}, false, "no data");
    expect_refused({nullptr, 1}, 4, false, "no list");
    expect_refused({&good, 1}, 0, false, "no bytes");
    shc_buf buf;
    const shc_tensor empty = {nullptr, 1, none, nullptr};
    const shc_tensors fine = {&empty, 1};
    EXPECT_EQ(shc_buf_init(&buf, &fine, 4, true), SHC_OK);
}

TEST(Buf, WhatOverflowsIsRefused)
{
    char memory[8];
    const auto refuse = [&](std::vector<int64_t> sizes, std::vector<int64_t> strides,
                            const char *reason) {
        const shc_tensor tensor = {memory, static_cast<int32_t>(sizes.size()), sizes.data(),
                                   strides.empty() ? nullptr : strides.data()};
        expect_refused({&tensor, 1}, 8, false, reason);
    };
    refuse({INT64_MAX}, {}, "larger than memory");
    refuse({1LL << 32, 1LL << 32}, {}, "larger than memory");
    refuse({1LL << 30, 1LL << 30}, {}, "larger than memory");
    refuse({1LL << 53}, {0}, "larger than memory"); // what 256 ranks have fits 64 bits
    refuse({2}, {INT64_MAX}, "out of memory");
    refuse({2}, {INT64_MIN}, "out of memory");
    refuse({2}, {1LL << 60}, "out of memory");
    refuse({3, 3}, {1LL << 59, -(1LL << 59)}, "out of memory");
    const int64_t huge = 1LL << 59;
    const shc_tensor half = {memory, 1, &huge, nullptr};
    const shc_tensor list[] = {half, half, half};
    expect_refused({list, 3}, 8, false, "larger than memory");
}

TEST(Buf, ATensorThatOverlapsItselfIsNotWritable)
{
    char memory[64];
    const int64_t sizes[] = {3, 1, 2}, strides[] = {0, 0, 1}, ones[] = {1, 1, 2};
    const shc_tensor expanded = {memory, 3, sizes, strides}, single = {memory, 3, ones, strides};
    const shc_tensors tensors = {&expanded, 1}, harmless = {&single, 1};
    shc_buf buf;
    EXPECT_EQ(shc_buf_init(&buf, &tensors, 4, false), SHC_OK);
    expect_refused(tensors, 4, true, "expanded in dimension 0");
    EXPECT_EQ(shc_buf_init(&buf, &harmless, 4, true), SHC_OK);
}

TEST(Buf, AsManyDimensionsAsATensorCanHave)
{
    std::vector<int64_t> sizes(SHC_BUF_MAX_DIMS, 1), strides(SHC_BUF_MAX_DIMS, 0);
    sizes.front() = sizes.back() = 2;
    strides.front() = 1;
    strides.back() = 3;
    Bytes memory = {10, 11, 12, 13, 14};
    const shc_tensor tensor = {memory.data(), SHC_BUF_MAX_DIMS, sizes.data(), strides.data()};
    const shc_tensors tensors = {&tensor, 1};
    shc_buf buf;
    ASSERT_EQ(shc_buf_init(&buf, &tensors, 1, true), SHC_OK);
    EXPECT_EQ(read_back(buf, 0, 4), (Bytes{10, 13, 11, 14}));
}

} // namespace
