// SPDX-License-Identifier: BSD-3-Clause
// Captures and graphs of the stand-in. A graph is the captured work in the order of the calls, which
// keeps all dependencies (or, with a knob, in any other order that does). Its launch puts all of it
// into a stream. What a capture forbids is an error here, and breaks the capture, also where a GPU would
// allow some of it.
#include "tests/cuda/fakedriver/fake.h"

#include <algorithm>
#include <random>
#include <vector>

// The number-th work of its stream, and how much of each stream's work comes before it.
struct FakeNode {
    std::function<void()> work;
    shc_cu_stream *stream;
    uint64_t number;
    FakeClock behind;
};

struct shc_cu_graph {
    std::vector<FakeNode> nodes;
};

struct shc_cu_graph_exec {
    std::vector<FakeNode> nodes;
};

struct FakeCapture {
    uint64_t id = 0;
    int mode = SHC_CU_CAPTURE_GLOBAL;
    std::thread::id thread;
    shc_cu_stream *origin = nullptr;
    bool valid = true, over = false;
    std::vector<FakeNode> nodes;
    std::map<shc_cu_stream *, FakeClock> streams; // those that take part, and the work before each
};

namespace fake
{
namespace
{

struct Captures {
    std::mutex lock;
    std::set<std::shared_ptr<FakeCapture>> open;
    uint64_t count = 0;
};

Captures &captures()
{
    static Captures *all = new Captures;
    return *all;
}

thread_local int thread_mode = SHC_CU_CAPTURE_GLOBAL;

int broken(FakeCapture &capture, int result)
{
    capture.valid = false;
    return result;
}

void merge(FakeClock &into, const FakeClock &from)
{
    for (auto &[stream, count] : from)
        into[stream] = std::max(into[stream], count);
}

// Must this thread not make a call that could disturb that capture?
bool forbids(const FakeCapture &capture)
{
    const bool own =
        capture.thread == std::this_thread::get_id() && capture.mode != SHC_CU_CAPTURE_RELAXED;
    if (thread_mode == SHC_CU_CAPTURE_RELAXED)
        return false;
    return own || (thread_mode == SHC_CU_CAPTURE_GLOBAL && capture.mode == SHC_CU_CAPTURE_GLOBAL);
}

// Does the origin come after all that its streams have captured?
bool joined(const FakeCapture &capture)
{
    const FakeClock &all = capture.streams.at(capture.origin);
    for (auto &[stream, clock] : capture.streams) {
        const auto known = all.find(stream);
        const auto own = clock.find(stream);
        if (own != clock.end() && (known == all.end() || known->second < own->second))
            return false;
    }
    return true;
}

// Any order that keeps all dependencies.
std::vector<FakeNode> launch_order(std::vector<FakeNode> nodes)
{
    static thread_local std::minstd_rand random(std::random_device{}());
    std::vector<FakeNode> order;
    FakeClock done;
    while (knobs().shuffle && !nodes.empty()) {
        std::vector<size_t> ready; // the first of each stream, if the work before it is done
        std::set<shc_cu_stream *> seen;
        for (size_t i = 0; i < nodes.size(); i++) {
            bool free = seen.insert(nodes[i].stream).second;
            for (auto &[stream, count] : nodes[i].behind)
                free = free && done[stream] >= count;
            if (free)
                ready.push_back(i);
        }
        const auto at = static_cast<ptrdiff_t>(ready[random() % ready.size()]);
        order.push_back(nodes[static_cast<size_t>(at)]);
        done[order.back().stream] = order.back().number;
        nodes.erase(nodes.begin() + at);
    }
    return knobs().shuffle ? order : nodes;
}

int end_capture(shc_cu_stream *stream, shc_cu_graph **graph)
{
    std::lock_guard<std::mutex> guard(captures().lock);
    const std::shared_ptr<FakeCapture> capture = stream->capture;
    *graph = nullptr;
    if (!capture)
        return SHC_CU_INVALID_VALUE;
    if (capture->origin != stream)
        return broken(*capture, SHC_CU_CAPTURE_UNMATCHED);
    if (capture->mode != SHC_CU_CAPTURE_RELAXED && capture->thread != std::this_thread::get_id())
        return broken(*capture, SHC_CU_CAPTURE_WRONG_THREAD);
    for (auto &[one, clock] : capture->streams)
        one->capture.reset();
    captures().open.erase(capture);
    capture->over = true;
    if (!capture->valid)
        return SHC_CU_CAPTURE_INVALIDATED;
    if (!joined(*capture))
        return SHC_CU_CAPTURE_UNJOINED;
    *graph = new shc_cu_graph{capture->nodes};
    return SHC_CU_SUCCESS;
}

} // namespace

bool captured_work(shc_cu_stream *stream, const std::function<void()> &work, int *result)
{
    std::lock_guard<std::mutex> guard(captures().lock);
    if (!stream->capture)
        return false;
    FakeCapture &capture = *stream->capture;
    *result = capture.valid ? SHC_CU_SUCCESS : SHC_CU_CAPTURE_INVALIDATED;
    if (capture.valid) {
        FakeClock &clock = capture.streams[stream];
        capture.nodes.push_back({work, stream, clock[stream] + 1, clock});
        clock[stream]++;
    }
    return true;
}

bool captured_record(FakeEvent &event, shc_cu_stream *stream, int *result)
{
    std::lock_guard<std::mutex> guard(captures().lock);
    event.capture = stream->capture;
    if (!stream->capture)
        return false;
    event.behind = stream->capture->streams[stream];
    *result = stream->capture->valid ? SHC_CU_SUCCESS : SHC_CU_CAPTURE_INVALIDATED;
    return true;
}

bool captured_wait(const FakeEvent &event, shc_cu_stream *stream, int *result)
{
    std::lock_guard<std::mutex> guard(captures().lock);
    const std::shared_ptr<FakeCapture> theirs = event.capture, ours = stream->capture;
    if (!theirs && !ours)
        return false;
    if (!theirs)
        *result = broken(*ours, SHC_CU_CAPTURE_ISOLATION);
    else if (theirs->over)
        *result = ours ? broken(*ours, SHC_CU_CAPTURED_EVENT) : SHC_CU_CAPTURED_EVENT;
    else if (ours && ours != theirs)
        *result = broken(*theirs, broken(*ours, SHC_CU_CAPTURE_MERGE));
    else {
        stream->capture = theirs; // a stream that waits for a captured one joins it
        merge(theirs->streams[stream], event.behind);
        *result = theirs->valid ? SHC_CU_SUCCESS : SHC_CU_CAPTURE_INVALIDATED;
    }
    return true;
}

bool captured_event(const FakeEvent &event)
{
    std::lock_guard<std::mutex> guard(captures().lock);
    return event.capture != nullptr;
}

int forbidden(shc_cu_stream *stream)
{
    std::lock_guard<std::mutex> guard(captures().lock);
    int result = SHC_CU_SUCCESS;
    for (auto &capture : captures().open)
        if (forbids(*capture) || (stream != nullptr && stream->capture == capture))
            result = broken(*capture, SHC_CU_CAPTURE_UNSUPPORTED);
    return result;
}

int cuStreamGetCaptureInfo(shc_cu_stream *stream, int *status, uint64_t *capture)
{
    std::lock_guard<std::mutex> guard(captures().lock);
    *status = SHC_CU_CAPTURE_NONE;
    if (stream != nullptr && stream->capture) {
        *status = stream->capture->valid ? SHC_CU_CAPTURE_ACTIVE : SHC_CU_CAPTURE_BROKEN;
        *capture = stream->capture->id;
    }
    return SHC_CU_SUCCESS;
}

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    if (*mode < SHC_CU_CAPTURE_GLOBAL || *mode > SHC_CU_CAPTURE_RELAXED)
        return SHC_CU_INVALID_VALUE;
    std::swap(*mode, thread_mode);
    return SHC_CU_SUCCESS;
}

} // namespace fake

// ---- functions that only users who capture call, not the library ----

extern "C" int cuStreamBeginCapture_v2(shc_cu_stream *stream, int mode)
{
    std::lock_guard<std::mutex> guard(fake::captures().lock);
    if (stream == nullptr || stream->capture || mode < SHC_CU_CAPTURE_GLOBAL ||
        mode > SHC_CU_CAPTURE_RELAXED)
        return SHC_CU_INVALID_VALUE;
    auto made = std::make_shared<FakeCapture>();
    made->id = ++fake::captures().count;
    made->mode = mode;
    made->thread = std::this_thread::get_id();
    made->origin = stream;
    made->streams[stream];
    stream->capture = made;
    fake::captures().open.insert(made);
    return SHC_CU_SUCCESS;
}

extern "C" int cuStreamEndCapture(shc_cu_stream *stream, shc_cu_graph **graph)
{
    return fake::end_capture(stream, graph);
}

extern "C" int cuGraphInstantiateWithFlags(shc_cu_graph_exec **exec, shc_cu_graph *graph,
                                           unsigned long long flags)
{
    if (graph == nullptr || flags != 0)
        return SHC_CU_INVALID_VALUE;
    *exec = new shc_cu_graph_exec{graph->nodes};
    return SHC_CU_SUCCESS;
}

extern "C" int cuGraphLaunch(shc_cu_graph_exec *exec, shc_cu_stream *stream)
{
    {
        std::lock_guard<std::mutex> guard(fake::captures().lock);
        if (stream->capture)
            return SHC_CU_NOT_SUPPORTED; // by the stand-in: a graph inside of a graph
    }
    for (auto &node : fake::launch_order(exec->nodes))
        if (const int error = fake::submit_anywhere(stream, node.work))
            return error;
    return SHC_CU_SUCCESS;
}

extern "C" int cuGraphExecDestroy(shc_cu_graph_exec *exec)
{
    delete exec;
    return SHC_CU_SUCCESS;
}

extern "C" int cuGraphDestroy(shc_cu_graph *graph)
{
    delete graph;
    return SHC_CU_SUCCESS;
}
