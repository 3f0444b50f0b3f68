// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Captures and graphs, made as users of the library make them: with functions of the driver that the
// library itself does not call.

#include "tests/cuda/standin.h"

struct shc_cu_graph;
struct shc_cu_graph_exec;

namespace shmcoll::test
{

struct GraphCalls {
    int (*begin)(shc_cu_stream *,
                 int) = standin_function<int (*)(shc_cu_stream *, int)>("cuStreamBeginCapture_v2");
    int (*end)(shc_cu_stream *, shc_cu_graph **) =
        standin_function<int (*)(shc_cu_stream *, shc_cu_graph **)>("cuStreamEndCapture");
    int (*instantiate)(shc_cu_graph_exec **, shc_cu_graph *, unsigned long long) =
        standin_function<int (*)(shc_cu_graph_exec **, shc_cu_graph *, unsigned long long)>(
            "cuGraphInstantiateWithFlags");
    int (*launch)(shc_cu_graph_exec *, shc_cu_stream *) =
        standin_function<int (*)(shc_cu_graph_exec *, shc_cu_stream *)>("cuGraphLaunch");
    int (*destroy_exec)(shc_cu_graph_exec *) =
        standin_function<int (*)(shc_cu_graph_exec *)>("cuGraphExecDestroy");
    int (*destroy)(shc_cu_graph *) = standin_function<int (*)(shc_cu_graph *)>("cuGraphDestroy");
};

inline const GraphCalls &graph_calls()
{
    static const GraphCalls calls;
    return calls;
}

// What was captured on a stream, to be launched many times.
class Graph
{
  public:
    // Begins the capture ...
    explicit Graph(shc_cu_stream *stream, int mode = SHC_CU_CAPTURE_GLOBAL) : stream_(stream)
    {
        EXPECT_EQ(graph_calls().begin(stream, mode), SHC_CU_SUCCESS);
    }
    // ... and ends it. Returns the driver's result.
    int end()
    {
        shc_cu_graph *graph = nullptr;
        const int result = graph_calls().end(stream_, &graph);
        if (result == SHC_CU_SUCCESS) {
            EXPECT_EQ(graph_calls().instantiate(&exec_, graph, 0), SHC_CU_SUCCESS);
            graph_calls().destroy(graph);
        }
        return result;
    }
    int launch(shc_cu_stream *stream = nullptr)
    {
        return graph_calls().launch(exec_, stream != nullptr ? stream : stream_);
    }
    ~Graph()
    {
        if (exec_ != nullptr)
            graph_calls().destroy_exec(exec_);
    }
    Graph(const Graph &) = delete;
    Graph &operator=(const Graph &) = delete;

  private:
    shc_cu_stream *stream_;
    shc_cu_graph_exec *exec_ = nullptr;
};

} // namespace shmcoll::test
