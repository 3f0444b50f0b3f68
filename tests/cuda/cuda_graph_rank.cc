// SPDX-License-Identifier: BSD-3-Clause
// Scenarios of cuda_comm_rank that capture operations.
#include "tests/cuda/cuda_comm_rank.h"
#include "tests/cuda/graphs.h"

namespace shmcoll::test
{

// A capture is refused by name, whatever asks for it, and the group goes on.
void captured(Rank &rank)
{
    const shc_cu_address at = rank.allocate(4096);
    Call call = simple_call(SHC_ALL_REDUCE, SHC_INT8, at, 8, at, 8);
    Graph graph(rank.streams[0]);
    const shc_status st = shc_cuda_comm_enqueue(rank.cuda, call.ready(), rank.streams[0]);
    report("status", shc_status_name(st));
    report("error", shc_cuda_failure());
    report("ended", std::to_string(graph.end()));
    const shc_status eager = shc_cuda_comm_enqueue(rank.cuda, call.ready(), rank.streams[0]);
    report("goes_on", eager == SHC_OK && rank.sync() ? "yes" : "no");
}

} // namespace shmcoll::test
