// SPDX-License-Identifier: BSD-3-Clause
// Loading and launching kernels: what the library asks the driver for, and its errors when it refuses.
#include "tests/cuda/launcher.h"

extern "C" {
#include "cuda_ipc/kernel/image.h"
}

#include <fstream>
#include <set>

namespace shmcoll::test
{
namespace
{

std::string failure_of(const std::string &knobs, shc_status expected)
{
    Standin standin(knobs);
    add_twins(standin_function<void (*)(const FakeKernel *)>("fake_add_kernel"));
    shc_kernels kernels;
    memset(&kernels, 0x5a, sizeof kernels);
    const shc_kernels before = kernels;
    EXPECT_EQ(shc_kernels_load(&standin.gpu, &kernels), expected);
    EXPECT_EQ(memcmp(&kernels, &before, sizeof kernels), 0); // set only on success
    return shc_cuda_failure();
}

// With lazy=1 the stand-in launches nothing that would still have to be loaded.
TEST(Kernels, AreAllLoadedBeforeTheFirstIsLaunched)
{
    Launcher l;
    std::set<shc_cu_function *> found = {l.kernels.gate, l.kernels.copy};
    for (auto &row : l.kernels.reduce)
        for (shc_cu_function *function : row)
            if (function != nullptr)
                found.insert(function);
    EXPECT_EQ(found.size(), twins().size());
    EXPECT_EQ(l.kernels.blocks, 16U); // 4 multiprocessors
    uint32_t gate = SHC_GATE_OPEN;
    for (int d = 0; d < SHC_DTYPE_COUNT; d++)
        for (int r = 0; r < SHC_REDOP_COUNT; r++) {
            if (l.kernels.reduce[d][r] == nullptr)
                continue;
            alignas(16) const uint64_t zeros[2] = {};
            alignas(16) uint64_t out[2] = {UINT64_MAX, UINT64_MAX};
            shc_reduce_args args = {};
            args.gate = &gate;
            args.out = out;
            args.count = 1;
            args.world = 1;
            args.factors = reinterpret_cast<const char *>(zeros);
            args.source[0] = zeros;
            l.reduce(static_cast<shc_dtype>(d), static_cast<shc_redop>(r), args);
            EXPECT_EQ(out[0] & 0xff, 0U) << d << " " << r;
        }
}

TEST(Kernels, LoadWhereTheDriverLoadsAtOnceAnyway)
{
    Launcher l("version=12000"); // no cuFuncLoad
    EXPECT_EQ(l.standin.driver.cuFuncLoad, nullptr);
    EXPECT_NE(l.kernels.gate, nullptr);
}

TEST(Kernels, SayThatTheGpuIsNotAmongThoseCompiledFor)
{
    const std::string text = failure_of("load=209", SHC_ERR_UNSUPPORTED);
    EXPECT_NE(text.find("Stand-in GPU (compute capability 9.0)"), text.npos) << text;
    EXPECT_NE(text.find("SHMCOLL_CUDA_ARCHS"), text.npos) << text;
    EXPECT_NE(text.find("CUDA_ERROR_NO_BINARY_FOR_GPU"), text.npos) << text;
}

TEST(Kernels, SayThatTheDriverIsOlderThanTheCompiler)
{
    const std::string text = failure_of("load=222", SHC_ERR_UNSUPPORTED);
    EXPECT_NE(text.find("an nvcc no newer than the driver"), text.npos) << text;
    EXPECT_NE(text.find("CUDA_ERROR_UNSUPPORTED_PTX_VERSION"), text.npos) << text;
}

TEST(Kernels, TellOtherRefusalsFromThose)
{
    const std::string text = failure_of("load=2", SHC_ERR_NOMEM);
    EXPECT_EQ(text.find("SHMCOLL_CUDA_ARCHS"), text.npos) << text;
}

TEST(Kernels, NameTheOneThatTheImageDoesNotHave)
{
    Standin standin("");
    add_twins(standin_function<void (*)(const FakeKernel *)>("fake_add_kernel"));
    configure("without=shc_reduce_float8_e5m2_premul_sum");
    shc_kernels kernels;
    EXPECT_EQ(shc_kernels_load(&standin.gpu, &kernels), SHC_ERR_SYSTEM);
    const std::string text = shc_cuda_failure();
    EXPECT_NE(text.find("shc_reduce_float8_e5m2_premul_sum"), text.npos) << text;
    EXPECT_NE(text.find("CUDA_ERROR_NOT_FOUND"), text.npos) << text;
    configure("");
}

TEST(Kernels, LeaveNoModuleBehindOnFailure)
{
    const auto modules = standin_function<int (*)()>("fake_module_count");
    EXPECT_EQ(modules(), 0);
    {
        Launcher l;
        EXPECT_EQ(modules(), 1);
    }
    EXPECT_EQ(modules(), 0);
    failure_of("without=shc_copy", SHC_ERR_SYSTEM);
    EXPECT_EQ(modules(), 0);
    configure("");
}

#ifdef SHC_TEST_IMAGE // there is an nvcc
TEST(Kernels, HandTheDriverTheImageThatWasBuilt)
{
    EXPECT_TRUE(shc_kernels_built());
    Launcher l("image=" SHC_TEST_IMAGE);
    EXPECT_NE(l.kernels.module, nullptr);
    configure("");
}

TEST(Kernels, AnotherImageThanOursIsRefusedByTheStandIn)
{
    std::ifstream in(SHC_TEST_IMAGE, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    ASSERT_GT(bytes.size(), 1000U);
    bytes[bytes.size() - 1] ^= 1;
    const std::string other = testing::TempDir() + "another_image";
    std::ofstream(other, std::ios::binary) << bytes;
    const std::string text = failure_of("image=" + other, SHC_ERR_SYSTEM);
    EXPECT_NE(text.find("CUDA_ERROR_INVALID_IMAGE"), text.npos) << text;
    configure("");
    remove(other.c_str());
}
#endif

TEST(Kernels, RefuseWhatTheyAreNotMadeFor)
{
    Launcher l;
    uint32_t gate = SHC_GATE_OPEN;
    shc_reduce_args reduce = {};
    reduce.gate = &gate;
    reduce.count = 1;
    reduce.world = 1;
    for (const auto &[dtype, redop] : {std::pair{SHC_FLOAT32, SHC_BAND},
                                       {SHC_OPAQUE, SHC_SUM},
                                       {SHC_BOOL, SHC_AVG},
                                       {SHC_COMPLEX64, SHC_MIN},
                                       {static_cast<shc_dtype>(31), SHC_SUM},
                                       {SHC_INT8, static_cast<shc_redop>(15)}})
        EXPECT_EQ(shc_kernels_reduce(&l.kernels, l.stream, dtype, redop, &reduce),
                  SHC_ERR_UNSUPPORTED);
    shc_gate_args gates = {};
    shc_copy_args copy = {};
    for (int world : {0, -1, SHC_MAX_WORLD + 1}) {
        gates.world = reduce.world = world;
        EXPECT_EQ(shc_kernels_gate(&l.kernels, l.stream, &gates), SHC_ERR_INVALID);
        EXPECT_EQ(shc_kernels_reduce(&l.kernels, l.stream, SHC_INT8, SHC_SUM, &reduce),
                  SHC_ERR_INVALID);
    }
    copy.count = SHC_COPY_PIECES + 1;
    EXPECT_EQ(shc_kernels_copy(&l.kernels, l.stream, &copy), SHC_ERR_INVALID);
}

TEST(Kernels, NothingToDoIsNoLaunch)
{
    Launcher l;
    shc_reduce_args reduce = {};
    reduce.world = 3;
    l.reduce(SHC_FLOAT32, SHC_SUM, reduce); // would look at a gate that is not there
    shc_copy_args copy = {};
    l.copy(copy);
    copy.count = 5;
    l.copy(copy);
}

TEST(Kernels, ALaunchThatFailsSaysOnWhichGpu)
{
    Launcher l;
    uint32_t gate = SHC_GATE_OPEN;
    char a = 0, b = 0;
    shc_copy_args copy = {};
    copy.gate = &gate;
    copy.count = 1;
    copy.piece[0] = {&a, &b, 1};
    l.standin.driver.cuStreamDestroy(l.stream);
    EXPECT_EQ(shc_kernels_copy(&l.kernels, l.stream, &copy), SHC_ERR_SYSTEM);
    EXPECT_NE(std::string(shc_cuda_failure()).find("Stand-in GPU"), std::string::npos);
    ASSERT_EQ(l.standin.driver.cuStreamCreateWithPriority(&l.stream, 0, 0), 0);
}

TEST(Kernels, ArgumentsFitIntoALaunchAndHaveOneLayout)
{
    EXPECT_LE(sizeof(shc_copy_args), 4096U);
    EXPECT_LE(sizeof(shc_reduce_args), 4096U);
    EXPECT_LE(sizeof(shc_gate_args), 4096U);
}

} // namespace
} // namespace shmcoll::test
