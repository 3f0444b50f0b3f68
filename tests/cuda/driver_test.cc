// SPDX-License-Identifier: BSD-3-Clause
// Opening the driver and a GPU: what is there, and every reason for a failure, by name.
#include "tests/cuda/standin.h"

namespace shmcoll::test
{
namespace
{

// The text of the failure, or "opened".
std::string open_text(const std::string &knobs, const char *library = FAKE_CUDA_LIBRARY)
{
    configure(knobs);
    shc_driver driver;
    const shc_status st = shc_driver_open(library, &driver);
    if (st == SHC_OK)
        return "opened";
    EXPECT_EQ(st, SHC_ERR_UNSUPPORTED);
    return shc_cuda_failure();
}

bool has(const std::string &text, const std::string &part)
{
    return text.find(part) != text.npos;
}

#define EXPECT_HAS(text, part) EXPECT_TRUE(has(text, part)) << (text)

TEST(Driver, OpensAndCountsItsGpus)
{
    configure("devices=3 version=12080");
    shc_driver driver;
    ASSERT_EQ(shc_driver_open(FAKE_CUDA_LIBRARY, &driver), SHC_OK) << shc_cuda_failure();
    EXPECT_EQ(driver.device_count, 3);
    EXPECT_EQ(driver.version, 12080);
    EXPECT_TRUE(shc_driver_has_fd_memory(&driver));
    EXPECT_TRUE(shc_driver_has_legacy_ipc(&driver));
}

TEST(Driver, SaysThatThereIsNone)
{
    const std::string text = open_text("", "libcuda-that-is-not-there.so.1");
    EXPECT_HAS(text, "no NVIDIA driver on this machine");
    EXPECT_HAS(text, "libcuda-that-is-not-there.so.1");
}

TEST(Driver, SaysThatItIsTooOldToFindFunctions)
{
    EXPECT_HAS(open_text("", FAKE_CUDA_10_LIBRARY), "too old");
    EXPECT_HAS(open_text("", FAKE_CUDA_10_LIBRARY), "cuGetProcAddress (CUDA 11.3)");
}

TEST(Driver, AsksAnOldDriverInTheOldWayWhichVersionItIs)
{
    EXPECT_HAS(open_text("", FAKE_CUDA_11_LIBRARY), "it offers CUDA 11.4, and CUDA 12.0");
}

TEST(Driver, SaysWhichVersionIsTooOld)
{
    EXPECT_HAS(open_text("version=11080"), "it offers CUDA 11.8, and CUDA 12.0");
    EXPECT_EQ(open_text("version=12000"), "opened");
}

TEST(Driver, NamesTheFunctionThatIsMissingAndItsVersion)
{
    EXPECT_HAS(open_text("version=12040 hide=cuStreamWaitValue64"),
               "(CUDA 12.4) has no cuStreamWaitValue64 of CUDA 11.7");
    EXPECT_HAS(open_text("hide=cuMemAlloc"), "no cuMemAlloc of CUDA 3.2");
}

TEST(Driver, DoesWithoutWhatHasAFallback)
{
    shc_driver driver;
    configure("hide=cuMemSetAccess");
    ASSERT_EQ(shc_driver_open(FAKE_CUDA_LIBRARY, &driver), SHC_OK) << shc_cuda_failure();
    EXPECT_FALSE(shc_driver_has_fd_memory(&driver));
    EXPECT_TRUE(shc_driver_has_legacy_ipc(&driver));
    configure("hide=cuIpcOpenMemHandle");
    ASSERT_EQ(shc_driver_open(FAKE_CUDA_LIBRARY, &driver), SHC_OK) << shc_cuda_failure();
    EXPECT_TRUE(shc_driver_has_fd_memory(&driver));
    EXPECT_FALSE(shc_driver_has_legacy_ipc(&driver));
}

TEST(Driver, SaysThatItSeesNoGpu)
{
    EXPECT_HAS(open_text("devices=0"), "no GPU");
    EXPECT_HAS(open_text("init=100"), "CUDA_VISIBLE_DEVICES");
}

TEST(Driver, SaysWhyItDoesNotStart)
{
    EXPECT_HAS(open_text("init=803"), "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)");
    EXPECT_HAS(open_text("init=34"), "does not start: cuInit: CUDA_ERROR_STUB_LIBRARY");
    EXPECT_HAS(open_text("init=777"), "an unknown result (777)");
}

TEST(Driver, LeavesTheTableAloneWhenItFails)
{
    shc_driver driver;
    memset(&driver, 0x5a, sizeof driver);
    const shc_driver before = driver;
    configure("devices=0");
    ASSERT_NE(shc_driver_open(FAKE_CUDA_LIBRARY, &driver), SHC_OK);
    EXPECT_EQ(memcmp(&driver, &before, sizeof driver), 0);
}

TEST(Gpu, IsKnownByItsUuidNotItsOrdinal)
{
    configure("devices=2");
    shc_driver driver;
    shc_gpu first, second;
    ASSERT_EQ(shc_driver_open(FAKE_CUDA_LIBRARY, &driver), SHC_OK);
    ASSERT_EQ(shc_gpu_describe(&driver, 1, &first), SHC_OK);
    configure("devices=1 first_uuid=1"); // CUDA_VISIBLE_DEVICES=1
    ASSERT_EQ(shc_gpu_describe(&driver, 0, &second), SHC_OK);
    EXPECT_EQ(memcmp(&first.uuid, &second.uuid, sizeof first.uuid), 0);
    EXPECT_EQ(first.capability, 90);
    EXPECT_TRUE(first.exports_fd);
}

TEST(Gpu, RefusesAnOrdinalThatIsNotThere)
{
    configure("devices=2");
    shc_driver driver;
    shc_gpu gpu;
    ASSERT_EQ(shc_driver_open(FAKE_CUDA_LIBRARY, &driver), SHC_OK);
    EXPECT_EQ(shc_gpu_open(&driver, 2, &gpu), SHC_ERR_INVALID);
    EXPECT_HAS(std::string(shc_cuda_failure()), "there is no GPU 2: this process sees 2 (0 to 1)");
    EXPECT_EQ(shc_gpu_open(&driver, -1, &gpu), SHC_ERR_INVALID);
}

TEST(Gpu, NamesTheComputeModeThatKeepsItOut)
{
    shc_driver driver;
    shc_gpu gpu;
    configure("mode=3 context=46");
    ASSERT_EQ(shc_driver_open(FAKE_CUDA_LIBRARY, &driver), SHC_OK);
    EXPECT_EQ(shc_gpu_open(&driver, 0, &gpu), SHC_ERR_UNSUPPORTED);
    EXPECT_HAS(std::string(shc_cuda_failure()), "EXCLUSIVE_PROCESS and another process has it");
    configure("mode=2 context=101");
    EXPECT_EQ(shc_gpu_open(&driver, 0, &gpu), SHC_ERR_UNSUPPORTED);
    EXPECT_HAS(std::string(shc_cuda_failure()), "PROHIBITED");
    configure("context=2");
    EXPECT_EQ(shc_gpu_open(&driver, 0, &gpu), SHC_ERR_NOMEM);
    EXPECT_HAS(std::string(shc_cuda_failure()), "CUDA_ERROR_OUT_OF_MEMORY");
    configure("mode=3"); // exclusive, and ours
    EXPECT_EQ(shc_gpu_open(&driver, 0, &gpu), SHC_OK) << shc_cuda_failure();
    shc_gpu_close(&gpu);
}

TEST(Gpu, WhoseStreamsKnowNoWordsIsRefused)
{
    shc_driver driver;
    shc_gpu gpu;
    configure("words=0");
    ASSERT_EQ(shc_driver_open(FAKE_CUDA_LIBRARY, &driver), SHC_OK);
    EXPECT_EQ(shc_gpu_open(&driver, 0, &gpu), SHC_ERR_UNSUPPORTED);
    EXPECT_HAS(std::string(shc_cuda_failure()),
               "GPU 0 (Stand-in GPU) cannot write and await 64-bit");
}

TEST(Gpu, KnowsWhatMemoryItCanShare)
{
    shc_driver driver;
    shc_gpu gpu;
    for (const char *knobs : {"vmm=0", "fds=0", "hide=cuMemCreate"}) {
        configure(knobs);
        ASSERT_EQ(shc_driver_open(FAKE_CUDA_LIBRARY, &driver), SHC_OK);
        ASSERT_EQ(shc_gpu_describe(&driver, 0, &gpu), SHC_OK);
        EXPECT_FALSE(gpu.exports_fd) << knobs;
    }
}

TEST(Info, DescribesEveryGpu)
{
    char text[2048];
    configure("devices=2 version=12060 fds=0");
    ASSERT_EQ(shc_inventory_write(FAKE_CUDA_LIBRARY, text, sizeof text), SHC_OK);
    EXPECT_STREQ(text, "usable=yes\ndriver=12.6\n"
                       "gpu0=Stand-in GPU\ngpu0_uuid=5354414e44494e2d464f522d47505500\n"
                       "gpu0_capability=9.0\ngpu0_memory=legacy\n"
                       "gpu1=Stand-in GPU\ngpu1_uuid=5354414e44494e2d464f522d47505501\n"
                       "gpu1_capability=9.0\ngpu1_memory=legacy\n");
}

TEST(Info, SaysWhyCudaCannotBeUsed)
{
    char text[2048];
    configure("devices=0");
    ASSERT_EQ(shc_inventory_write(FAKE_CUDA_LIBRARY, text, sizeof text), SHC_OK);
    EXPECT_HAS(std::string(text), "usable=no\nreason=no GPU");
}

TEST(Info, DoesNotWritePastTheEnd)
{
    configure("");
    char all[2048];
    ASSERT_EQ(shc_inventory_write(FAKE_CUDA_LIBRARY, all, sizeof all), SHC_OK);
    for (size_t capacity = 1; capacity <= strlen(all) + 1; capacity++) {
        std::string text(capacity + 1, '#');
        EXPECT_EQ(shc_inventory_write(FAKE_CUDA_LIBRARY, text.data(), capacity),
                  capacity > strlen(all) ? SHC_OK : SHC_ERR_INVALID);
        EXPECT_EQ(text[capacity], '#');
    }
}

// The call of production code: whatever this machine has, it is no failure.
TEST(Info, WorksOnThisMachine)
{
    char text[8192];
    ASSERT_EQ(shc_cuda_info(text, sizeof text), SHC_OK) << shc_cuda_error_text();
    EXPECT_EQ(std::string(text).rfind("usable=", 0), 0U) << text;
    EXPECT_FALSE(has(text, "Stand-in")) << text;
}

} // namespace
} // namespace shmcoll::test
