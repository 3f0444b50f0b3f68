// SPDX-License-Identifier: BSD-3-Clause
// Waits on words, and how every one of them ends.
#include "tests/cuda/standin.h"

extern "C" {
#include "cuda_ipc/timeline.h"
#include "shm/base/clock.h"
}

#include <atomic>
#include <memory>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace shmcoll::test
{
namespace
{

constexpr uint32_t kWords = 4, kStride = 16;
constexpr size_t kPage = 4096;

enum class Where { kDevice, kHost };

// A timeline of four words over the stand-in, and streams.
struct Fixture {
    Fixture(const std::string &knobs, Where where) : standin(knobs)
    {
        const shc_driver &d = standin.driver;
        shc_a64 *seen = nullptr;
        if (where == Where::kHost) {
            host = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            EXPECT_EQ(d.cuMemHostRegister(host, kPage, SHC_CU_HOST_DEVICEMAP), 0);
            EXPECT_EQ(d.cuMemHostGetDevicePointer(&words, host, 0), 0);
            seen = static_cast<shc_a64 *>(host);
        } else {
            EXPECT_EQ(d.cuMemAlloc(&words, kPage), 0);
        }
        for (auto &stream : streams)
            EXPECT_EQ(d.cuStreamCreateWithPriority(&stream, SHC_CU_STREAM_NON_BLOCKING, 0), 0);
        EXPECT_EQ(shc_timeline_init(&standin.gpu, words, seen, kWords, kStride, &timeline), SHC_OK);
    }
    ~Fixture()
    {
        shc_timeline_fini(&timeline);
        for (auto &stream : streams)
            standin.driver.cuStreamDestroy(stream);
        if (host != nullptr) {
            EXPECT_EQ(standin.driver.cuMemHostUnregister(host), 0);
            munmap(host, kPage);
        } else {
            EXPECT_EQ(standin.driver.cuMemFree(words), 0);
        }
    }
    shc_status wait(size_t stream, uint32_t word, uint64_t value)
    {
        const shc_status entered = shc_gpu_enter(&standin.gpu); // any thread calls this
        if (entered != SHC_OK)
            return entered;
        const shc_status st = shc_timeline_wait(&timeline, streams[stream], word, value);
        shc_gpu_leave(&standin.gpu);
        return st;
    }
    shc_status signal(size_t stream, uint32_t word, uint64_t value)
    {
        return shc_timeline_signal(&standin.gpu, streams[stream], words + word * kStride * 8,
                                   value);
    }
    bool idle(size_t stream) { return standin.driver.cuStreamQuery(streams[stream]) == 0; }
    bool becomes_idle(size_t stream)
    {
        for (const uint64_t until = shc_clock_ns() + 20 * SHC_NS_PER_S; shc_clock_ns() < until;) {
            if (idle(stream))
                return true;
            usleep(200);
        }
        return false;
    }
    shc_status drain(uint64_t ns = 20 * SHC_NS_PER_S)
    {
        return shc_timeline_drain(&timeline, streams, 4, shc_clock_ns() + ns);
    }

    Standin standin;
    void *host = nullptr;
    shc_cu_address words = 0;
    shc_cu_stream *streams[4] = {};
    shc_timeline timeline = {};
};

// Long enough that a stream which is not waiting has gone on.
void settle()
{
    usleep(5000);
}

class Timeline : public testing::TestWithParam<Where>
{
};

TEST_P(Timeline, AWaitEndsWhenItsWordHasTheValue)
{
    Fixture f("delay_us=200", GetParam());
    ASSERT_EQ(f.wait(0, 2, 3), SHC_OK);
    ASSERT_EQ(f.signal(1, 1, 3), SHC_OK); // another word
    ASSERT_EQ(f.signal(1, 2, 2), SHC_OK); // not yet
    settle();
    EXPECT_FALSE(f.idle(0));
    ASSERT_EQ(f.signal(1, 2, 3), SHC_OK);
    EXPECT_EQ(f.standin.driver.cuStreamSynchronize(f.streams[0]), 0);
}

TEST_P(Timeline, OnlyItsWordsAndItsValuesCanBeWaitedFor)
{
    Fixture f("", GetParam());
    EXPECT_EQ(f.wait(0, kWords, 1), SHC_ERR_INVALID);
    EXPECT_EQ(f.wait(0, 0, SHC_TIMELINE_LAST + 1), SHC_ERR_INVALID);
    EXPECT_EQ(f.signal(0, 0, SHC_TIMELINE_LAST + 1), SHC_ERR_INVALID);
    EXPECT_TRUE(f.idle(0));
}

TEST_P(Timeline, PoisonEndsEveryWaitAndAllBehindThem)
{
    for (const char *knobs : {"", "delay_us=500", "only_writes_wake=1", "slow_us=100"}) {
        Fixture f(knobs, GetParam());
        for (size_t stream = 0; stream < 4; stream++)
            for (uint32_t word = 0; word < kWords; word++)
                ASSERT_EQ(f.wait(stream, word, stream == 3 ? SHC_TIMELINE_LAST : 1 + word), SHC_OK);
        settle();
        for (size_t stream = 0; stream < 4; stream++)
            EXPECT_FALSE(f.idle(stream)) << knobs;
        EXPECT_FALSE(shc_timeline_poisoned(&f.timeline));
        EXPECT_EQ(f.drain(), SHC_OK) << shc_cuda_failure();
        EXPECT_TRUE(shc_timeline_poisoned(&f.timeline));
        for (size_t stream = 0; stream < 4; stream++)
            EXPECT_TRUE(f.idle(stream)) << knobs;
    }
}

TEST_P(Timeline, NothingIsEnqueuedBehindThePoison)
{
    Fixture f("", GetParam());
    ASSERT_EQ(shc_timeline_poison(&f.timeline), SHC_OK);
    EXPECT_EQ(f.wait(0, 0, 1), SHC_ERR_ABORTED);
    EXPECT_TRUE(f.idle(0));
    EXPECT_EQ(f.drain(), SHC_OK);
}

// A rank that is alive goes on writing: poison that was overwritten ends nothing.
TEST_P(Timeline, DrainingOutlastsARankThatGoesOnWriting)
{
    Fixture f("delay_us=100", GetParam());
    std::atomic<bool> over{false};
    shc_cu_stream *writer;
    ASSERT_EQ(f.standin.driver.cuStreamCreateWithPriority(&writer, 0, 0), 0);
    std::thread rank([&] {
        ASSERT_EQ(shc_gpu_enter(&f.standin.gpu), SHC_OK);
        for (uint64_t value = 1; !over; value = value % 5 + 1) {
            EXPECT_EQ(shc_timeline_signal(&f.standin.gpu, writer, f.words, value), SHC_OK);
            usleep(50);
        }
    });
    for (uint64_t value = 100; value < 120; value++)
        ASSERT_EQ(f.wait(0, 0, value), SHC_OK);
    EXPECT_EQ(f.drain(), SHC_OK) << shc_cuda_failure();
    EXPECT_TRUE(f.idle(0));
    over = true;
    rank.join();
    EXPECT_EQ(shc_gpu_enter(&f.standin.gpu), SHC_OK);
    EXPECT_EQ(f.standin.driver.cuStreamSynchronize(writer), 0);
    f.standin.driver.cuStreamDestroy(writer);
    shc_gpu_leave(&f.standin.gpu);
}

// A thread that was let through has its wait in the stream before draining ends.
TEST_P(Timeline, ThreadsThatEnqueueMeanwhileLeaveNoWaitBehind)
{
    for (int repeat = 0; repeat < 10; repeat++) {
        Fixture f(repeat % 2 ? "" : "call_us=3000", GetParam());
        std::atomic<int> begun{0};
        std::vector<std::thread> threads;
        for (size_t stream = 0; stream < 4; stream++)
            threads.emplace_back([&f, &begun, stream] {
                for (uint64_t value = 1;; value++) {
                    const shc_status st = f.wait(stream, 0, value);
                    begun++;
                    if (st != SHC_OK) {
                        EXPECT_EQ(st, SHC_ERR_ABORTED);
                        return;
                    }
                }
            });
        while (begun < 8)
            std::this_thread::yield();
        EXPECT_EQ(f.drain(), SHC_OK) << shc_cuda_failure();
        for (uint32_t word = 0; word < kWords; word++) // a live rank's last word
            EXPECT_EQ(f.signal(3, word, 0), SHC_OK);
        for (auto &thread : threads)
            thread.join();
        for (size_t stream = 0; stream < 4; stream++)
            EXPECT_TRUE(f.becomes_idle(stream));
    }
}

TEST_P(Timeline, DrainingSaysWhenAStreamDoesNotEnd)
{
    Fixture f("", GetParam());
    std::atomic<bool> over{false};
    auto block = [](void *flag) {
        while (!*static_cast<std::atomic<bool> *>(flag))
            usleep(100);
    };
    ASSERT_EQ(f.standin.driver.cuLaunchHostFunc(f.streams[1], block, &over), 0);
    EXPECT_EQ(f.drain(20 * SHC_NS_PER_MS), SHC_ERR_TIMEOUT);
    over = true;
    EXPECT_EQ(f.drain(), SHC_OK);
}

INSTANTIATE_TEST_SUITE_P(Where, Timeline, testing::Values(Where::kDevice, Where::kHost),
                         [](const auto &one) {
                             return one.param == Where::kDevice ? "Device" : "Host";
                         });

// The address at which a GPU sees host memory is not the host's address.
TEST(TimelineAlias, WaitsOnHostMemoryAtTheGpusAddress)
{
    Fixture f("alias=1", Where::kHost);
    ASSERT_EQ(f.wait(0, 1, 1), SHC_OK);
    settle();
    EXPECT_FALSE(f.idle(0));
    EXPECT_EQ(f.drain(), SHC_OK) << shc_cuda_failure();
}

} // namespace
} // namespace shmcoll::test
