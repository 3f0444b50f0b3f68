// SPDX-License-Identifier: BSD-3-Clause
extern "C" {
#include "shm/kernel/alias.h"
}

#include <gtest/gtest.h>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace
{

constexpr int64_t kRoom = 400;
char memory[kRoom];

size_t below(size_t n)
{
    static std::mt19937_64 engine(7);
    return engine() % n;
}

// Views of `memory`: where they begin, in bytes, and their sizes and strides in elements.
struct View {
    int64_t start;
    std::vector<int64_t> sizes, strides;

    shc_tensor describe() const
    {
        return {memory + start, static_cast<int32_t>(sizes.size()), sizes.data(),
                strides.empty() ? nullptr : strides.data()};
    }

    // The byte at which each element begins.
    std::vector<int64_t> places(int64_t elem) const
    {
        std::vector<int64_t> all{start};
        int64_t dense = elem;
        for (size_t d = sizes.size(); d-- > 0;) { // of a contiguous one too: the last is innermost
            std::vector<int64_t> more;
            const int64_t stride = strides.empty() ? dense : strides[d] * elem;
            for (int64_t i = 0; i < sizes[d]; i++)
                for (int64_t at : all)
                    more.push_back(at + i * stride);
            all = more;
            dense *= sizes[d];
        }
        return all;
    }
};

// Do two elements of all these views share a byte?
bool share(const std::vector<View> &views, int64_t elem)
{
    std::set<int64_t> bytes;
    size_t count = 0;
    for (const View &view : views)
        for (int64_t at : view.places(elem))
            for (int64_t b = 0; b < elem; b++, count++)
                bytes.insert(at + b);
    return bytes.size() != count;
}

// A random view within the memory; with gaps, backwards, and now and then overlapping itself.
View random_view(int64_t elem)
{
    for (;;) {
        View view{static_cast<int64_t>(below(kRoom)), {}, {}};
        const size_t ndim = below(4);
        for (size_t d = 0; d < ndim; d++) {
            view.sizes.push_back(static_cast<int64_t>(below(5)));
            view.strides.push_back(static_cast<int64_t>(below(14)) - 3);
        }
        const std::vector<int64_t> places = view.places(elem);
        bool inside = true;
        for (int64_t at : places)
            inside = inside && at >= 0 && at + elem <= kRoom;
        if (inside)
            return view;
    }
}

struct Side {
    std::vector<shc_tensor> list;
    shc_buf buf{};
    shc_status status;

    Side(const std::vector<View> &views, uint32_t elem, bool writable)
    {
        for (const View &view : views)
            list.push_back(view.describe());
        const shc_tensors tensors = {list.data(), static_cast<uint32_t>(list.size())};
        status = shc_buf_init(&buf, &tensors, elem, writable);
    }
};

shc_status check(const Side &in, const Side &out, shc_in_place may = SHC_IN_PLACE_ALL,
                 size_t offset = 0)
{
    const shc_sides sides = {&in.buf, &out.buf, may, offset};
    return shc_bufs_are_apart(&in.buf, &out.buf) ? SHC_OK : shc_sides_check(&sides);
}

TEST(Alias, OneViewIsWritableExactlyWhereNoTwoElementsShareAByte)
{
    int overlapping = 0;
    for (int i = 0; i < 3000; i++) {
        const uint32_t elem = 1u << below(4);
        const View view = random_view(elem);
        const bool wrong = share({view}, elem);
        const Side side({view}, elem, true);
        ASSERT_EQ(side.status, wrong ? SHC_ERR_INVALID : SHC_OK) << i;
        overlapping += wrong;
    }
    EXPECT_GT(overlapping, 100);
}

TEST(Alias, OutputsAreRefusedExactlyWhereTwoShareAByte)
{
    int overlapping = 0, crossing = 0;
    for (int i = 0; i < 3000; i++) {
        const uint32_t elem = 1u << below(4);
        std::vector<View> views;
        for (size_t n = 2 + below(3); views.size() < n;)
            if (const View view = random_view(elem); !share({view}, elem))
                views.push_back(view);
        const bool wrong = share(views, elem);
        const Side out(views, elem, true);
        ASSERT_EQ(out.status, SHC_OK) << shc_error_text();
        ASSERT_EQ(shc_buf_check_output(&out.buf), wrong ? SHC_ERR_INVALID : SHC_OK) << i;
        overlapping += wrong;
        crossing += !wrong && !out.buf.flat;
    }
    EXPECT_GT(overlapping, 100);
    EXPECT_GT(crossing, 100);
}

TEST(Alias, AnInputIsRefusedExactlyWhereItSharesAByteWithTheOutput)
{
    int overlapping = 0;
    for (int i = 0; i < 3000; i++) {
        const uint32_t elem = 4;
        View in = random_view(elem), out = random_view(elem);
        if (share({out}, elem))
            continue;
        std::set<int64_t> bytes;
        for (int64_t at : in.places(elem))
            for (int64_t b = 0; b < elem; b++)
                bytes.insert(at + b);
        bool wrong = false;
        for (int64_t at : out.places(elem))
            for (int64_t b = 0; b < elem; b++)
                wrong = wrong || bytes.count(at + b);
        // An offset beyond the output: nothing may be shared.
        ASSERT_EQ(
            check(Side({in}, elem, false), Side({out}, elem, true), SHC_IN_PLACE_INPUT, kRoom),
            wrong ? SHC_ERR_INVALID : SHC_OK)
            << i;
        overlapping += wrong;
    }
    EXPECT_GT(overlapping, 100);
}

TEST(Alias, InterleavedViewsOfAnySizeAreApart)
{
    // Rows of 10^9 elements: a check that is not arithmetic would not end.
    const int64_t many = 1000000000;
    static char any;
    const auto list = [&](int64_t second) {
        static int64_t sizes[] = {many, 3}, strides[] = {8, 1};
        return std::vector<shc_tensor>{{&any, 2, sizes, strides},
                                       {&any + 4 * second, 2, sizes, strides}};
    };
    for (const auto &[second, good] :
         std::initializer_list<std::pair<int64_t, bool>>{{4, true},
                                                         {2, false},
                                                         {5, true},
                                                         {6, false},
                                                         {8 * many - 5, true},
                                                         {8 * many, true}}) {
        const std::vector<shc_tensor> tensors = list(second);
        const shc_tensors both = {tensors.data(), 2};
        shc_buf out;
        ASSERT_EQ(shc_buf_init(&out, &both, 4, true), SHC_OK);
        EXPECT_EQ(shc_buf_check_output(&out), good ? SHC_OK : SHC_ERR_INVALID) << second;
    }
    EXPECT_NE(std::string(shc_error_text()).find("output tensors 0 and 1 overlap"),
              std::string::npos);
}

TEST(Alias, InPlaceIsElementByElementWhereTheOperationSaysSo)
{
    const auto row = [](int64_t start, int64_t count) { return View{4 * start, {count}, {}}; };
    const auto columns = [](int64_t start, int64_t count) { return View{4 * start, {count}, {3}}; };
    const auto good = [](const std::vector<View> &in, const std::vector<View> &out,
                         shc_in_place may, size_t offset = 0) {
        return check(Side(in, 4, false), Side(out, 4, true), may, 4 * offset) == SHC_OK;
    };
    EXPECT_TRUE(good({columns(0, 5)}, {columns(0, 5)}, SHC_IN_PLACE_ALL));
    EXPECT_FALSE(good({row(0, 5)}, {row(1, 5)}, SHC_IN_PLACE_ALL));
    EXPECT_FALSE(good({row(0, 3), row(3, 2)}, {row(3, 2), row(0, 3)}, SHC_IN_PLACE_ALL));

    EXPECT_TRUE(good({row(4, 4)}, {row(0, 8)}, SHC_IN_PLACE_INPUT, 4));
    EXPECT_FALSE(good({row(0, 4)}, {row(0, 8)}, SHC_IN_PLACE_INPUT, 4));
    EXPECT_FALSE(good({row(5, 4)}, {row(0, 8)}, SHC_IN_PLACE_INPUT, 4));
    EXPECT_TRUE(good({row(20, 4)}, {row(0, 4), row(20, 4)}, SHC_IN_PLACE_INPUT, 4));
    EXPECT_TRUE(good({columns(12, 4)}, {columns(0, 8)}, SHC_IN_PLACE_INPUT, 4));
    EXPECT_FALSE(good({columns(9, 4)}, {columns(0, 8)}, SHC_IN_PLACE_INPUT, 4));

    EXPECT_TRUE(good({row(0, 8)}, {row(4, 4)}, SHC_IN_PLACE_OUTPUT, 4));
    EXPECT_FALSE(good({row(0, 8)}, {row(0, 4)}, SHC_IN_PLACE_OUTPUT, 4));
    EXPECT_FALSE(good({row(0, 4), row(0, 4)}, {row(0, 4)}, SHC_IN_PLACE_OUTPUT, 4));
    EXPECT_TRUE(good({row(0, 4), row(0, 4)}, {row(0, 4)}, SHC_IN_PLACE_KEPT, 4));
    EXPECT_FALSE(good({row(0, 4), row(8, 4)}, {row(0, 4)}, SHC_IN_PLACE_KEPT, 4));

    EXPECT_TRUE(good({row(0, 8)}, {row(0, 4)}, SHC_IN_PLACE_BLOCK));
    EXPECT_TRUE(good({row(0, 8)}, {row(4, 4)}, SHC_IN_PLACE_BLOCK));
    EXPECT_TRUE(good({columns(0, 8)}, {columns(12, 4)}, SHC_IN_PLACE_BLOCK));
    EXPECT_TRUE(good({row(0, 4), row(0, 4)}, {row(0, 4)}, SHC_IN_PLACE_BLOCK));
    EXPECT_FALSE(good({row(0, 8)}, {row(2, 4)}, SHC_IN_PLACE_BLOCK));
    EXPECT_FALSE(good({row(0, 4), row(2, 4)}, {row(0, 4)}, SHC_IN_PLACE_BLOCK));

    EXPECT_TRUE(good({row(0, 3), row(9, 2)}, {row(0, 3), row(9, 2)}, SHC_IN_PLACE_LIST));
    EXPECT_FALSE(good({row(0, 3), row(9, 3)}, {row(9, 3), row(0, 3)}, SHC_IN_PLACE_LIST));
    EXPECT_FALSE(good({row(0, 2), row(2, 4)}, {row(0, 4), row(4, 2)}, SHC_IN_PLACE_LIST));
}

TEST(Alias, EmptyTensorsShareNothing)
{
    const View empty{0, {0}, {}}, row{0, {8}, {}};
    EXPECT_EQ(check(Side({empty}, 4, false), Side({row, empty, empty}, 4, true)), SHC_OK);
    EXPECT_EQ(check(Side({row}, 4, false), Side({empty, empty}, 4, true)), SHC_OK);
}

TEST(Alias, ManyTensorsAreComparedToo)
{
    std::vector<View> chunks;
    for (int64_t i = 99; i >= 0; i--) // more than fit the stack, in descending order
        chunks.push_back({4 * i, {1}, {}});
    EXPECT_EQ(check(Side({}, 4, false), Side(chunks, 4, true)), SHC_OK);
    chunks[5].start += 1;
    EXPECT_EQ(check(Side({}, 4, false), Side(chunks, 4, true)), SHC_ERR_INVALID);
}

} // namespace
