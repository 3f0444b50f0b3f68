// SPDX-License-Identifier: BSD-3-Clause
// Scenarios of cuda_comm_rank that capture operations and replay them.
#include "tests/cuda/cuda_comm_rank.h"
#include "tests/cuda/graphs.h"

#include <memory>

namespace shmcoll::test
{

namespace
{

using Graphs = std::vector<std::unique_ptr<Graph>>;

// Numbers that differ from rank to rank, turn to turn, place to place; floats are small integers,
// whose sums are exact, so that rounding hides no error.
Bytes numbers_of(size_t bytes, int rank, int turn, bool floats)
{
    Bytes made(bytes);
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        const uint64_t n = i / 8 * 7 + static_cast<uint64_t>(rank * 101 + turn * 13);
        const float f[2] = {static_cast<float>(n % 50), static_cast<float>(n % 31)};
        memcpy(&made[i], floats ? static_cast<const void *>(f) : &n, 8);
    }
    return made;
}

// An operation twice over the same input: captured into one output, eager into the other.
struct Twice {
    Call captured, eager;
    shc_cu_address in = 0, outs[2] = {};
    size_t bytes = 0;
    bool floats = false;
};

Call call_of(const Rank &rank, shc_op_kind kind, shc_dtype dtype, uint64_t count, shc_cu_address in,
             shc_cu_address out)
{
    const auto n = static_cast<uint64_t>(rank.world), me = static_cast<uint64_t>(rank.rank);
    std::vector<uint64_t> ins = {count}, outs = {count};
    if (kind == SHC_ALL_GATHER || kind == SHC_GATHER)
        outs = {count * n};
    if (kind == SHC_SCATTER || kind == SHC_REDUCE_SCATTER)
        ins = {count * n};
    if (kind == SHC_ALL_TO_ALL)
        ins = outs = std::vector<uint64_t>(n, count);
    for (auto *list : {kind == SHC_ALL_GATHER_UNEVEN       ? &outs
                       : kind == SHC_REDUCE_SCATTER_UNEVEN ? &ins
                                                           : nullptr})
        for (uint64_t r = 0; list != nullptr && r < n; r++) {
            list->resize(n);
            (*list)[r] = count + r;
            *(list == &outs ? &ins : &outs) = {count + me};
        }
    Call call;
    call.op.kind = kind;
    call.op.dtype = dtype;
    call.op.redop = SHC_SUM;
    call.op.root = rank.world - 1;
    const size_t elem = shc_dtype_bytes(dtype);
    add_tensors(call.in, call.in_sizes, in, ins, elem);
    add_tensors(call.out, call.out_sizes, out, outs, elem);
    return call;
}

Twice twice(Rank &rank, shc_op_kind kind, shc_dtype dtype, uint64_t count)
{
    Twice made;
    const auto n = static_cast<size_t>(rank.world);
    made.bytes = (count + n) * n * shc_dtype_bytes(dtype) / 8 * 8 + 8;
    made.floats = dtype == SHC_FLOAT32;
    made.in = rank.allocate(made.bytes);
    for (auto &out : made.outs) {
        out = rank.allocate(made.bytes);
        rank.put(out, Bytes(made.bytes, 0x11));
    }
    made.captured = call_of(rank, kind, dtype, count, made.in, made.outs[0]);
    made.eager = call_of(rank, kind, dtype, count, made.in, made.outs[1]);
    return made;
}

std::vector<Twice> every_operation(Rank &rank, const std::vector<uint64_t> &counts)
{
    std::vector<Twice> all;
    for (uint64_t count : counts) {
        for (auto kind : {SHC_ALL_REDUCE, SHC_REDUCE, SHC_BROADCAST, SHC_ALL_GATHER, SHC_GATHER,
                          SHC_SCATTER, SHC_REDUCE_SCATTER, SHC_ALL_GATHER_UNEVEN,
                          SHC_REDUCE_SCATTER_UNEVEN, SHC_ALL_TO_ALL, SHC_BARRIER})
            all.push_back(twice(rank, kind, SHC_INT64, count));
        all.push_back(twice(rank, SHC_ALL_REDUCE, SHC_FLOAT32, count));
    }
    return all;
}

void run_one(Rank &rank, Call &call, size_t stream)
{
    if (shc_cuda_comm_enqueue(rank.cuda, call.ready(), rank.streams[stream]) != SHC_OK)
        die("enqueue");
}

// One graph of all of them, whose operations change streams, and one graph of each.
Graphs capture_all(Rank &rank, std::vector<Twice> &cases)
{
    Graphs graphs;
    shc_cu_event *event;
    rank.driver.cuEventCreate(&event, SHC_CU_EVENT_DISABLE_TIMING);
    auto order = [&](size_t before, size_t behind) {
        if (rank.driver.cuEventRecord(event, rank.streams[before]) != 0 ||
            rank.driver.cuStreamWaitEvent(rank.streams[behind], event, 0) != 0)
            die("order");
    };
    graphs.push_back(std::make_unique<Graph>(rank.streams[0]));
    order(0, 1);
    for (size_t i = 0; i < cases.size(); i++)
        run_one(rank, cases[i].captured, i % 3 == 1);
    order(1, 0);
    if (graphs.back()->end() != 0)
        die("end of a capture");
    rank.driver.cuEventDestroy(event);
    for (auto &one : cases) {
        graphs.push_back(std::make_unique<Graph>(rank.streams[0]));
        run_one(rank, one.captured, 0);
        if (graphs.back()->end() != 0)
            die("end of a capture");
    }
    return graphs;
}

// All ranks have the same order; it changes from time to time.
void launch(Rank &rank, Graphs &graphs, int turn)
{
    const size_t count = graphs.size();
    for (size_t i = 1; i < count && turn % 3 != 0; i++)
        if (graphs[turn % 3 == 1 ? i : count - i]->launch(rank.streams[0]) != 0)
            die("launch");
    if (turn % 3 != 1 && graphs[0]->launch(rank.streams[0]) != 0)
        die("launch");
}

// With new input each turn.
int replay(Rank &rank, std::vector<Twice> &cases, Graphs &graphs, int turns)
{
    int wrong = 0;
    for (int turn = 0; turn < turns; turn++) {
        const bool beside = turn % 2 == 0;
        for (auto &one : cases)
            rank.put(one.in, numbers_of(one.bytes, rank.rank, turn, one.floats));
        for (size_t i = 0; i < cases.size() && beside; i++) // at the same time
            run_one(rank, cases[i].eager, 1);
        launch(rank, graphs, turn);
        for (size_t i = 0; i < cases.size() && !beside; i++) // after it
            run_one(rank, cases[i].eager, 0);
        rank.sync(0);
        rank.sync(1);
        if (shc_cuda_comm_error(rank.cuda) != SHC_OK)
            die("turn " + std::to_string(turn));
        for (auto &one : cases)
            wrong += rank.get(one.outs[0], one.bytes) != rank.get(one.outs[1], one.bytes);
    }
    return wrong;
}

} // namespace

// Captured operations give with every replay what eager ones give.
void graph(Rank &rank)
{
    const auto large = static_cast<uint64_t>(rank.settings.number("large", 0));
    std::vector<Twice> cases;
    if (large > 0)
        cases.push_back(twice(rank, SHC_ALL_REDUCE, SHC_FLOAT32, large));
    else
        cases = every_operation(rank, {1, 100, 1500});
    Graphs graphs = capture_all(rank, cases);
    const int wrong = replay(rank, cases, graphs, rank.settings.number("turns", 9));
    report("cases", std::to_string(cases.size()));
    report("wrong", std::to_string(wrong));
    report("slices", rank.cuda->demand.rounds.two ? "yes" : "no"); // of the last one
}

// A call that cannot be captured reports that; the group goes on, and so may the capture.
void graph_refuse(Rank &rank)
{
    const shc_cu_address at = rank.allocate(4096);
    auto try_one = [&](const char *name, Call call) {
        const shc_status st = shc_cuda_comm_enqueue(rank.cuda, call.ready(), rank.streams[0]);
        report(name, std::string(shc_status_name(st)) + ": " + shc_cuda_failure());
    };
    const auto n = static_cast<uint64_t>(rank.world);
    bool capturing = true;
    report("outside",
           shc_cuda_capturing(rank.cuda, rank.streams[0], &capturing) == SHC_OK && !capturing
               ? "no"
               : "yes");
    Graph one(rank.streams[0]);
    report("inside",
           shc_cuda_capturing(rank.cuda, rank.streams[0], &capturing) == SHC_OK && capturing
               ? "yes"
               : "no");
    Call scaled = simple_call(SHC_ALL_REDUCE, SHC_FLOAT32, at, 8, at, 8);
    scaled.op.redop = SHC_PREMUL_SUM;
    try_one("premul", scaled);
    Call pairs;
    pairs.op.kind = SHC_ALL_TO_ALL;
    pairs.op.dtype = SHC_INT8;
    std::vector<uint64_t> counts(n, 2);
    counts[static_cast<size_t>(rank.rank)] = 3;
    add_tensors(pairs.in, pairs.in_sizes, at, counts, 1);
    add_tensors(pairs.out, pairs.out_sizes, at + 1024, counts, 1);
    try_one("pairs", pairs);
    Call message = simple_call(SHC_SEND, SHC_INT8, at, 8, 0, 0);
    message.op.peer = (rank.rank + 1) % rank.world;
    try_one("message", message);
    Call good = simple_call(SHC_ALL_REDUCE, SHC_INT8, at, 8, at, 8);
    try_one("good", good);
    report("ended", std::to_string(one.end()));
    Graph broken(rank.streams[0]);
    rank.driver.cuStreamQuery(rank.streams[0]);
    try_one("broken", good);
    broken.end();
    try_one("eager", good);
    one.launch(rank.streams[0]);
    report("goes_on", rank.sync() && shc_cuda_comm_error(rank.cuda) == SHC_OK ? "yes" : "no");
}

namespace
{

// Three sums of several rounds each, captured as one graph.
struct Sums {
    static constexpr size_t kCount = 1500, kBytes = kCount * 8, kOps = 3;

    explicit Sums(Rank &of) : rank(of)
    {
        in = rank.allocate(kOps * kBytes);
        out = rank.allocate(kOps * kBytes);
        graph = std::make_unique<Graph>(rank.streams[0]);
        for (size_t j = 0; j < kOps; j++) {
            Call call = simple_call(SHC_ALL_REDUCE, SHC_INT64, in + j * kBytes, kCount,
                                    out + j * kBytes, kCount);
            run_one(rank, call, 0);
        }
        if (graph->end() != 0)
            die("end of a capture");
    }
    void fill(uint64_t turn) { rank.put(in, values(turn, 1, static_cast<uint64_t>(rank.rank))); }
    bool right(uint64_t turn)
    {
        const auto n = static_cast<uint64_t>(rank.world);
        return rank.get(out, kOps * kBytes) == values(turn, n, n * (n - 1) / 2);
    }
    static Bytes values(uint64_t turn, uint64_t ranks, uint64_t sum_of_ranks)
    {
        Bytes bytes(kOps * kBytes);
        for (size_t i = 0; i < kOps * kCount; i++) {
            const uint64_t value = ranks * (1000 * turn + 31 * i) + sum_of_ranks;
            memcpy(&bytes[i * 8], &value, 8);
        }
        return bytes;
    }
    // A replay after the group's end: it ends, and changes nothing.
    std::string again()
    {
        const Bytes before = rank.get(out, kOps * kBytes);
        for (int i = 0; i < 3; i++)
            graph->launch(rank.streams[0]);
        rank.sync();
        return rank.get(out, kOps * kBytes) == before ? "ended" : "changed";
    }

    Rank &rank;
    shc_cu_address in, out;
    std::unique_ptr<Graph> graph;
};

} // namespace

// Replays until the group fails; a replay that ends without a failure must be right.
void graph_endless(Rank &rank)
{
    const std::string act = rank.settings.word("act", "");
    const bool actor = rank.rank == rank.world - 1;
    Sums sums(rank);
    shc_status st = SHC_OK;
    uint64_t wrong = 0, turn = 0;
    for (; st == SHC_OK; turn++) {
        sums.fill(turn);
        for (int i = 0; i < 3; i++)
            sums.graph->launch(rank.streams[0]);
        if (turn == 3)
            report("ready", "yes");
        if (actor && turn == 4 && act == "abort")
            shc_cuda_comm_abort(rank.cuda, "enough");
        rank.sync();
        st = shc_cuda_comm_error(rank.cuda);
        wrong += st == SHC_OK && !sums.right(turn);
        if (st == SHC_OK && turn == 4 && (act == "close" || act == "leave"))
            barrier_of_cpus(rank); // no rank may learn of the departure inside the turn before it
        if (actor && turn == 4 && (act == "close" || act == "leave"))
            break;
        if (actor && turn == 4 && act == "idle") { // never comes
            idle_until_failed(rank);
            break;
        }
    }
    report("wrong", std::to_string(wrong));
    report("turns", std::to_string(turn));
    if (st != SHC_OK) {
        report("status", shc_status_name(st));
        report("error", shc_cuda_failure());
        for (size_t i = 0; i < rank.streams.size(); i++)
            rank.driver.cuStreamSynchronize(rank.streams[i]);
        report("ended_ns", std::to_string(shc_clock_ns()));
        report("again", sums.again());
    }
    close_timed(rank);
    report("closed", actor && act == "leave" ? "left" : sums.again());
}

// The last rank replays something else than the others.
void graph_differ(Rank &rank)
{
    const std::string field = rank.settings.word("field", "");
    const bool odd = rank.rank == rank.world - 1;
    const shc_cu_address in = rank.allocate(1 << 16), out = rank.allocate(1 << 16);
    const Bytes before(1 << 16, 0x5a);
    rank.put(in, before);
    rank.put(out, before);
    const uint64_t count = field == "count" && odd ? 65 : 64;
    std::vector<Call> calls = {simple_call(SHC_ALL_REDUCE, SHC_INT32, in, count, out, count),
                               simple_call(SHC_ALL_REDUCE, SHC_INT32, in, 64, out, 64),
                               simple_call(SHC_BROADCAST, SHC_INT32, in, 5000, out, 5000)};
    if (field == "redop" && odd)
        calls[0].op.redop = SHC_MAX;
    Graphs graphs;
    for (Call &call : calls) {
        graphs.push_back(std::make_unique<Graph>(rank.streams[0]));
        run_one(rank, call, 0);
        graphs.back()->end();
    }
    // The second graph is the first one's twin; the third one has more rounds.
    const size_t chosen = !odd ? 0 : field == "twin" ? 1 : field == "rounds" ? 2 : 0;
    for (size_t i : {chosen, size_t{0}, size_t{2}})
        graphs[i]->launch(rank.streams[0]);
    rank.sync();
    report("changed", rank.get(out, 1 << 16) == before ? "no" : "yes");
    for (int i = 0; i < 3000 && shc_cuda_comm_error(rank.cuda) == SHC_OK; i++)
        usleep(1000);
    report("status", shc_status_name(shc_cuda_comm_error(rank.cuda)));
    report("error", shc_cuda_failure());
    graphs[0]->launch(rank.streams[0]);
    report("ended", rank.sync() ? "yes" : "no");
}

} // namespace shmcoll::test
