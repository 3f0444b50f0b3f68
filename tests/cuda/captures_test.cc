// SPDX-License-Identifier: BSD-3-Clause
// Captures of the stand-in: what they record, what they forbid, and that a replay repeats all of it.
#include "tests/cuda/graphs.h"

#include <functional>
#include <thread>
#include <vector>

namespace shmcoll::test
{
namespace
{

struct Captures : testing::Test {
    Captures()
    {
        EXPECT_EQ(driver.cuMemAlloc(&word, 64), 0);
        for (auto *one : {&first, &second, &third})
            EXPECT_EQ(driver.cuStreamCreateWithPriority(one, SHC_CU_STREAM_NON_BLOCKING, 0), 0);
        for (auto *one : {&before, &inside})
            EXPECT_EQ(driver.cuEventCreate(one, SHC_CU_EVENT_DISABLE_TIMING), 0);
    }
    ~Captures() override
    {
        for (auto *one : {first, second, third})
            driver.cuStreamDestroy(one);
        for (auto *one : {before, inside})
            driver.cuEventDestroy(one);
        driver.cuMemFree(word);
    }
    int write(shc_cu_stream *stream, uint64_t value)
    {
        return driver.cuStreamWriteValue64(stream, word, value, SHC_CU_WRITE_DEFAULT);
    }
    // pre: no stream works on it.
    uint64_t value() const { return *reinterpret_cast<const uint64_t *>(word); }
    int status(shc_cu_stream *stream, uint64_t *capture = nullptr)
    {
        int found = -1;
        uint64_t number = 0;
        EXPECT_EQ(driver.cuStreamGetCaptureInfo(stream, &found, &number), 0);
        if (capture != nullptr)
            *capture = number;
        return found;
    }

    Standin standin{"devices=1"};
    const shc_driver &driver = standin.driver;
    shc_cu_address word = 0;
    shc_cu_stream *first = nullptr, *second = nullptr, *third = nullptr;
    shc_cu_event *before = nullptr, *inside = nullptr;
};

TEST_F(Captures, DoNothingUntilTheyAreReplayedAndThenAllAgain)
{
    Graph graph(first);
    EXPECT_EQ(status(first), SHC_CU_CAPTURE_ACTIVE);
    EXPECT_EQ(status(second), SHC_CU_CAPTURE_NONE);
    EXPECT_EQ(write(first, 7), 0);
    ASSERT_EQ(graph.end(), 0);
    EXPECT_EQ(status(first), SHC_CU_CAPTURE_NONE);
    EXPECT_EQ(driver.cuStreamSynchronize(first), 0);
    EXPECT_EQ(value(), 0u);
    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(write(second, 1), 0);
        EXPECT_EQ(driver.cuStreamSynchronize(second), 0);
        EXPECT_EQ(graph.launch(second), 0);
        EXPECT_EQ(driver.cuStreamSynchronize(second), 0);
        EXPECT_EQ(value(), 7u);
    }
}

TEST_F(Captures, AStreamJoinsByAnEventAndMustBeJoinedAgain)
{
    uint64_t one = 0, other = 0;
    for (bool join : {true, false}) {
        Graph graph(first);
        EXPECT_EQ(driver.cuEventRecord(inside, first), 0);
        EXPECT_EQ(driver.cuStreamWaitEvent(second, inside, 0), 0);
        EXPECT_EQ(status(first, &one), SHC_CU_CAPTURE_ACTIVE);
        EXPECT_EQ(status(second, &other), SHC_CU_CAPTURE_ACTIVE);
        EXPECT_EQ(one, other);
        EXPECT_EQ(write(second, 9), 0);
        if (join) {
            EXPECT_EQ(driver.cuEventRecord(inside, second), 0);
            EXPECT_EQ(driver.cuStreamWaitEvent(first, inside, 0), 0);
        }
        EXPECT_EQ(graph.end(), join ? 0 : SHC_CU_CAPTURE_UNJOINED);
        EXPECT_EQ(status(second), SHC_CU_CAPTURE_NONE);
    }
}

TEST_F(Captures, AreBrokenByAnEventFromOutside)
{
    EXPECT_EQ(driver.cuEventRecord(before, second), 0);
    Graph graph(first);
    EXPECT_EQ(driver.cuStreamWaitEvent(first, before, 0), SHC_CU_CAPTURE_ISOLATION);
    EXPECT_EQ(status(first), SHC_CU_CAPTURE_BROKEN);
    EXPECT_EQ(write(first, 1), SHC_CU_CAPTURE_INVALIDATED);
    EXPECT_EQ(graph.end(), SHC_CU_CAPTURE_INVALIDATED);
}

TEST_F(Captures, AnEventOfOneIsOfNoUseBehindIt)
{
    Graph graph(first);
    EXPECT_EQ(driver.cuEventRecord(inside, first), 0);
    ASSERT_EQ(graph.end(), 0);
    EXPECT_EQ(driver.cuEventQuery(inside), SHC_CU_CAPTURED_EVENT);
    EXPECT_EQ(driver.cuStreamWaitEvent(second, inside, 0), SHC_CU_CAPTURED_EVENT);
    EXPECT_EQ(driver.cuEventRecord(inside, second), 0); // a new record makes it a usual one
    EXPECT_EQ(driver.cuStreamSynchronize(second), 0);
    EXPECT_EQ(driver.cuEventQuery(inside), 0);
}

TEST_F(Captures, TwoDoNotMeet)
{
    Graph graph(first), other(second);
    EXPECT_EQ(driver.cuEventRecord(inside, first), 0);
    EXPECT_EQ(driver.cuStreamWaitEvent(second, inside, 0), SHC_CU_CAPTURE_MERGE);
    EXPECT_EQ(graph.end(), SHC_CU_CAPTURE_INVALIDATED);
    EXPECT_EQ(other.end(), SHC_CU_CAPTURE_INVALIDATED);
}

// Each of them breaks a capture, from any thread whose capture mode does not allow it.
TEST_F(Captures, ForbidWhatCouldMeetThem)
{
    shc_cu_address more;
    const std::vector<std::function<int()>> calls = {
        [&] { return driver.cuMemAlloc(&more, 64); },
        [&] { return driver.cuMemFree(0); },
        [&] { return driver.cuEventQuery(before); },
        [&] { return driver.cuStreamQuery(third); },
        [&] { return driver.cuStreamSynchronize(third); },
    };
    for (auto &call : calls) {
        int result = 0;
        Graph global(first);
        std::thread([&] {
            EXPECT_EQ(shc_gpu_enter(&standin.gpu), SHC_OK);
            result = call();
        }).join();
        EXPECT_EQ(result, SHC_CU_CAPTURE_UNSUPPORTED);
        EXPECT_EQ(global.end(), SHC_CU_CAPTURE_INVALIDATED);
    }
}

TEST_F(Captures, LetARelaxedThreadDoAllButTouchTheirStreams)
{
    Graph graph(first);
    int result = -1, own = -1, again = SHC_CU_CAPTURE_RELAXED;
    std::thread([&] {
        EXPECT_EQ(shc_gpu_enter(&standin.gpu), SHC_OK);
        EXPECT_EQ(driver.cuThreadExchangeStreamCaptureMode(&again), 0);
        result = driver.cuStreamQuery(third);
        EXPECT_EQ(status(first), SHC_CU_CAPTURE_ACTIVE);
        own = driver.cuStreamQuery(first);
    }).join();
    EXPECT_EQ(again, SHC_CU_CAPTURE_GLOBAL); // what it was
    EXPECT_EQ(result, 0);
    EXPECT_EQ(own, SHC_CU_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(graph.end(), SHC_CU_CAPTURE_INVALIDATED);
}

TEST_F(Captures, EndOnTheThreadAndTheStreamThatBeganThem)
{
    Graph graph(first);
    int result = -1;
    shc_cu_graph *none = nullptr;
    std::thread([&] { result = graph_calls().end(first, &none); }).join();
    EXPECT_EQ(result, SHC_CU_CAPTURE_WRONG_THREAD);
    EXPECT_EQ(none, nullptr);
    EXPECT_EQ(graph.end(), SHC_CU_CAPTURE_INVALIDATED);
}

} // namespace
} // namespace shmcoll::test
