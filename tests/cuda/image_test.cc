// SPDX-License-Identifier: BSD-3-Clause
// The image that nvcc made and the library carries, checked as far as possible without a GPU: does it
// have every kernel, and does its PTX follow the rules that results and waits depend on? The test is
// built where there is an nvcc; where tests are built the image's PTX is not compressed.
#include "tests/cuda/twins.h"
#include "tests/support/pattern.h"

extern "C" {
#include "cuda_ipc/kernel/image.h"
}

#include <cstring>
#include <gtest/gtest.h>
#include <string>

namespace shmcoll::test
{
namespace
{

// The header of a fat binary, as nvcc writes it: `bytes` bytes follow it.
struct Header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
};

std::string image()
{
    Header header;
    memcpy(&header, shc_kernel_image, sizeof header);
    EXPECT_EQ(header.magic, 0xba55ed50u);
    return std::string(static_cast<const char *>(shc_kernel_image),
                       header.header_bytes + header.bytes);
}

// The PTX as text: from its first directive to the first byte that is no text (a zero, say).
std::string ptx()
{
    const std::string all = image();
    const size_t first = all.find(".version ");
    EXPECT_NE(first, all.npos) << "no readable PTX in the image";
    if (first == all.npos)
        return "";
    size_t last = first;
    while (last < all.size() && (all[last] >= ' ' || all[last] == '\n' || all[last] == '\t'))
        last++;
    return all.substr(first, last - first);
}

int count_of(const std::string &text, const std::string &word)
{
    int count = 0;
    for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1))
        count++;
    return count;
}

// The text of one kernel.
std::string body_of(const std::string &text, const std::string &name)
{
    const size_t first = text.find(".visible .entry " + name + "(");
    const size_t next = first == text.npos ? first : text.find(".visible .entry ", first + 1);
    return first == text.npos ? "" : text.substr(first, next - first);
}

TEST(Image, ItsPtxHasEveryKernelAndNoOther)
{
    const std::string text = ptx();
    for (const FakeKernel &twin : twins())
        EXPECT_NE(body_of(text, twin.name), "") << twin.name;
    EXPECT_EQ(count_of(text, ".visible .entry "), static_cast<int>(twins().size()));
}

// For each GPU there is a program whose sections have the kernels' names.
TEST(Image, EveryGpuItIsCompiledForHasEveryKernel)
{
    const std::string all = image();
    for (const FakeKernel &twin : twins())
        EXPECT_GE(count_of(all, std::string("\0.text.", 7) + twin.name + '\0'), SHC_TEST_GPUS)
            << twin.name;
}

TEST(Image, ItsArgumentsAreWhatTheLibraryPasses)
{
    const std::string text = ptx();
    for (const FakeKernel &twin : twins()) {
        const std::string body = body_of(text, twin.name).substr(0, 400);
        const auto found = find_pattern(body, R"(_param_0\[([0-9]+)\])");
        ASSERT_FALSE(found.empty()) << body;
        EXPECT_EQ(std::stoul(found[1]), twin.sizes[0]) << twin.name;
    }
}

// Every rounding is one that IEEE 754 names, none is left out, denormals are numbers.
TEST(Image, ItRoundsAfterEveryOperation)
{
    const std::string text = ptx();
    for (const char *word :
         {"fma.", "mad.f", "mad.rn", ".ftz", ".approx", ".full.", "rcp.", "ex2."})
        EXPECT_EQ(count_of(text, word), 0) << word;
    // An addition or a product without a rounding of its own may be fused later.
    for (const char *word : {"add.f", "sub.f", "mul.f", "add.f16", "mul.f16", "div.f"})
        EXPECT_EQ(count_of(text, word), 0) << word;
    EXPECT_GT(count_of(body_of(text, "shc_reduce_float32_avg"), "div.rn.f32"), 0);
    EXPECT_GT(count_of(body_of(text, "shc_reduce_float64_avg"), "div.rn.f64"), 0);
    EXPECT_GT(count_of(body_of(text, "shc_reduce_complex64_product"), "mul.rn.f32"), 0);
    EXPECT_GT(count_of(body_of(text, "shc_reduce_float32_premul_sum"), "add.rn.f32"), 0);
}

TEST(Image, NothingStopsOrSleepsOrIsStoredApart)
{
    const std::string text = ptx();
    for (const char *word : {"trap", "brkpt", "nanosleep", "exit;", ".local", "vprintf", "malloc",
                             "call", "membar", "fence", "atom.global", "atom.cas", "\tred."})
        EXPECT_EQ(count_of(text, word), 0) << word;
}

TEST(Image, TheGateSeesWhatCpusWriteAndTheyWhatItStores)
{
    const std::string gate = body_of(ptx(), "shc_gate");
    EXPECT_EQ(count_of(gate, "ld.acquire.sys.u64"), 3); // arrivals, captured ones, the failed group
    EXPECT_GE(count_of(gate, "ld.relaxed.sys.u64"), 3); // two records, the verdict
    // Two of a verdict; of captured operations: words set back, whether it is under way, its rounds.
    EXPECT_EQ(count_of(gate, "st.release.sys.u64"), 5);
    EXPECT_GE(count_of(gate, "bar.sync"), 3); // between its steps
    for (const char *name : {"shc_reduce_float32_premul_sum", "shc_reduce_float16_premul_sum"})
        EXPECT_EQ(count_of(body_of(ptx(), name), "ld.relaxed.sys.u64"), 1) << name;
}

// No load may bypass the caches' rules: another GPU, or an earlier kernel, has written the data.
TEST(Image, LoadsAreWholeWordsAndNoneIsOfReadOnlyMemory)
{
    const std::string text = ptx();
    EXPECT_EQ(count_of(text, "ld.global.nc"), 0);
    EXPECT_EQ(count_of(text, "ldu."), 0);
    for (const FakeKernel &twin : twins()) {
        if (std::string(twin.name) == "shc_gate")
            continue;
        const std::string body = body_of(text, twin.name);
        const char *load = R"(ld\.global\.v(4\.[a-z]32|2\.[a-z]64))";
        const char *store = R"(st\.global\.v(4\.[a-z]32|2\.[a-z]64))";
        EXPECT_TRUE(has_pattern(body, load)) << twin.name;
        EXPECT_TRUE(has_pattern(body, store)) << twin.name;
    }
}

} // namespace
} // namespace shmcoll::test
