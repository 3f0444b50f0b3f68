// SPDX-License-Identifier: BSD-3-Clause
// One rank of a CUDA group over the stand-in, as a process:
//   cuda_comm_rank <folder> <rank> <world> "scenario=... key=value ..."
// The stand-in's knobs are in FAKE_CUDA. The program prints its observations as `key=value` lines.
extern "C" {
#include "tests/cuda/core_board.h"
}

#include "tests/cuda/cuda_comm_rank.h"
#include "tests/cuda/descriptors.h"
#include "tests/cuda/standin.h"
#include "tests/cuda/twins.h"

#include <atomic>
#include <csignal>
#include <fstream>
#include <sstream>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <thread>

namespace shmcoll::test
{

Settings::Settings(const std::string &text)
{
    std::istringstream in(text);
    for (std::string word; in >> word;)
        words[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
}

std::string Settings::word(const std::string &key, const std::string &preset) const
{
    return words.count(key) ? words.at(key) : preset;
}

int Settings::number(const std::string &key, int preset) const
{
    return words.count(key) ? atoi(words.at(key).c_str()) : preset;
}

void report(const std::string &key, const std::string &value)
{
    printf("%s=%s\n", key.c_str(), value.c_str());
    fflush(stdout);
}

void die(const std::string &what)
{
    report("failed", what + ": " + shc_cuda_failure());
    _exit(1);
}

// ---- a rank ----

Rank::Rank(const std::string &in, int number, int size, const Settings &given)
    : rank(number), world(size), settings(given), folder(in)
{
    add_twins(standin_function<void (*)(const FakeKernel *)>("fake_add_kernel"));
    if (shc_driver_open(FAKE_CUDA_LIBRARY, &driver) != SHC_OK)
        die("driver");
    const int device = driver.device_count > 1 ? rank % driver.device_count : 0;
    if (shc_gpu_open(&driver, device, &gpu) != SHC_OK || shc_gpu_enter(&gpu) != SHC_OK)
        die("gpu");
    streams.resize(3);
    for (auto &stream : streams)
        driver.cuStreamCreateWithPriority(&stream, SHC_CU_STREAM_NON_BLOCKING, 0);
}

Rank::~Rank()
{
    for (auto &stream : streams)
        driver.cuStreamDestroy(stream);
    shc_gpu_leave(&gpu);
    shc_gpu_close(&gpu);
}

void Rank::join(const std::string &name)
{
    shc_store store;
    if (shc_store_dir_open((folder + "/store." + name).c_str(), &store) != SHC_OK)
        die("store");
    shc_comm_config config = {};
    config.rank = rank;
    config.world_size = world;
    config.name = "cpu";
    config.timeout_ns = 60 * SHC_NS_PER_S;
    config.store = store;
    if (shc_comm_create(&config, &core) != SHC_OK) {
        report("failed", shc_error_text());
        _exit(1);
    }
    shc_store_dir_close(&store);
}

shc_status Rank::make()
{
    shc_cuda_config config = {};
    const std::string route = settings.word("route", "auto");
    config.device = settings.number("device", gpu.device);
    config.name = "test";
    config.timeout_ns = static_cast<uint64_t>(settings.number("timeout_ms", 60000)) * SHC_NS_PER_MS;
    config.half_bytes = static_cast<uint64_t>(settings.number("half", 4096));
    config.route = route == "host"    ? SHC_CUDA_ROUTE_HOST
                   : route == "slabs" ? SHC_CUDA_ROUTE_SLABS
                                      : SHC_CUDA_ROUTE_AUTO;

    const std::string relay = settings.word("relay", "0");
    config.relay_bytes = relay == "auto" ? 0
                         : relay == "0"  ? SHC_CUDA_RELAY_OFF
                                         : static_cast<uint64_t>(std::stoull(relay));
    config.say = [](void *, const char *line) {
        static std::atomic<int> lines{0};
        if (lines == 0)
            report("said_first", line);
        report("said", line);
        report("lines_said", std::to_string(++lines));
    };
    const uint64_t begun = shc_clock_ns();
    const shc_status st = shc_cuda_comm_create_over(FAKE_CUDA_LIBRARY, core, &config, &cuda);
    const uint64_t ended = shc_clock_ns();
    const int later_ms = settings.number("later_timeout_ms", 0);
    if (st == SHC_OK && later_ms > 0)
        shc_cuda_comm_set_timeout(cuda, static_cast<uint64_t>(later_ms) * SHC_NS_PER_MS);
    report("make_ms", std::to_string((ended - begun) / SHC_NS_PER_MS));
    report("make_ended_ns", std::to_string(ended));
    return st;
}

void Rank::leave()
{
    shc_cuda_comm_free(cuda);
    shc_comm_free(core);
    cuda = nullptr;
    core = nullptr;
    for (shc_cu_address address : memory_)
        if (settings.number("free", 1)) // on a GPU that hangs it would wait for ever
            driver.cuMemFree(address);
    memory_.clear();
}

shc_cu_address Rank::allocate(size_t bytes)
{
    shc_cu_address address;
    if (driver.cuMemAlloc(&address, bytes) != SHC_CU_SUCCESS)
        die("memory");
    memory_.push_back(address);
    return address;
}

void Rank::put(shc_cu_address to, const Bytes &bytes)
{
    const auto from = reinterpret_cast<shc_cu_address>(bytes.data());
    if (driver.cuMemcpyAsync(to, from, bytes.size(), streams[2]) != SHC_CU_SUCCESS || !sync(2))
        die("put");
}

Bytes Rank::get(shc_cu_address from, size_t count)
{
    Bytes bytes(count);
    const auto to = reinterpret_cast<shc_cu_address>(bytes.data());
    if (driver.cuMemcpyAsync(to, from, count, streams[2]) != SHC_CU_SUCCESS || !sync(2))
        die("get");
    return bytes;
}

bool Rank::sync(size_t stream)
{
    return driver.cuStreamSynchronize(streams[stream]) == SHC_CU_SUCCESS;
}

// ---- calls ----

void add_tensors(std::vector<shc_tensor> &list, std::vector<int64_t> &sizes, shc_cu_address at,
                 const std::vector<uint64_t> &counts, size_t elem_bytes, size_t gap)
{
    sizes.assign(counts.begin(), counts.end());
    list.clear();
    for (uint64_t count : counts) {
        list.push_back({reinterpret_cast<void *>(at), 1, nullptr, nullptr});
        at += count * elem_bytes + gap;
    }
}

const shc_op *Call::ready()
{
    for (size_t i = 0; i < in.size(); i++)
        in[i].sizes = &in_sizes[i];
    for (size_t i = 0; i < out.size(); i++)
        out[i].sizes = &out_sizes[i];
    op.input = {in.data(), static_cast<uint32_t>(in.size())};
    op.output = {out.data(), static_cast<uint32_t>(out.size())};
    return &op;
}

Call simple_call(shc_op_kind kind, shc_dtype dtype, shc_cu_address in, uint64_t in_count,
                 shc_cu_address out, uint64_t out_count)
{
    Call call;
    call.op.kind = kind;
    call.op.dtype = dtype;
    call.op.redop = SHC_SUM;
    add_tensors(call.in, call.in_sizes, in, {in_count}, shc_dtype_bytes(dtype));
    add_tensors(call.out, call.out_sizes, out, {out_count}, shc_dtype_bytes(dtype));
    return call;
}

// ---- scenarios ----

namespace
{

Bytes numbers(size_t count, int64_t value)
{
    Bytes bytes(count * sizeof value);
    for (size_t i = 0; i < count; i++)
        memcpy(&bytes[i * sizeof value], &value, sizeof value);
    return bytes;
}

void enqueue(Rank &rank, shc_cuda_comm *cuda, Call call, size_t stream)
{
    if (shc_cuda_comm_enqueue(cuda, call.ready(), rank.streams[stream]) != SHC_OK)
        die("enqueue");
}

} // namespace

void close_timed(Rank &rank)
{
    const uint64_t begun = shc_clock_ns();
    shc_cuda_comm_close(rank.cuda);
    report("close_ms", std::to_string((shc_clock_ns() - begun) / SHC_NS_PER_MS));
}

void barrier_of_cpus(Rank &rank)
{
    shc_op op = {};
    op.kind = SHC_BARRIER;
    if (shc_run(rank.core, &op) != SHC_OK)
        report("cpu_barrier", shc_error_text());
}

void report_failure(Rank &rank, shc_status st)
{
    report("status", shc_status_name(st));
    report("error", shc_cuda_failure());
    for (size_t i = 0; i < rank.streams.size(); i++)
        rank.driver.cuStreamSynchronize(rank.streams[i]);
    report("ended_ns", std::to_string(shc_clock_ns()));
}

// Each operation works on the result of the one before, on another stream. 64-bit sums wrap, and so does
// `expected`.
void chain(Rank &rank)
{
    const auto kCount = static_cast<size_t>(rank.settings.number("count", 700)); // more than a half
    const int turns = rank.settings.number("turns", 60);
    const auto n = static_cast<uint64_t>(rank.world);
    const shc_cu_address a = rank.allocate(kCount * 8), b = rank.allocate(kCount * 8 * n);
    rank.put(a, numbers(kCount, rank.rank + 1));
    auto expected = static_cast<uint64_t>(n * (n + 1) / 2);
    for (int turn = 0; turn < turns; turn++) {
        const auto s = static_cast<size_t>(turn);
        enqueue(rank, rank.cuda, simple_call(SHC_ALL_REDUCE, SHC_INT64, a, kCount, a, kCount),
                s % 2);
        enqueue(rank, rank.cuda, simple_call(SHC_ALL_GATHER, SHC_INT64, a, kCount, b, kCount * n),
                (s / 2) % 2);
        enqueue(rank, rank.cuda,
                simple_call(SHC_REDUCE_SCATTER, SHC_INT64, b, kCount * n, a, kCount), (s / 3) % 2);
        expected = turn == 0 ? expected * n : expected * n * n;
    }
    bool right = rank.sync(0) && rank.sync(1) && shc_cuda_comm_error(rank.cuda) == SHC_OK;
    right = right && rank.get(a, kCount * 8) == numbers(kCount, static_cast<int64_t>(expected));
    report("right", right ? "yes" : "no");
}

// More operations ahead than there are records; none has bytes that would hold up a stream.
void ahead(Rank &rank)
{
    Call barrier;
    barrier.op.kind = SHC_BARRIER;
    for (int i = 0; i < 4 * SHC_RECORDS; i++)
        enqueue(rank, rank.cuda, barrier, 0);
    const bool right = rank.sync() && shc_cuda_comm_error(rank.cuda) == SHC_OK;
    report("right", right ? "yes" : shc_cuda_failure());
}

// How often this process's context needed its turn for a few operations.
void turns(Rank &rank)
{
    const auto count = standin_function<int (*)()>("fake_turn_count");
    const auto n = static_cast<uint64_t>(rank.world);
    const shc_cu_address in = rank.allocate(4096), out = rank.allocate(4096 * n);
    rank.put(in, Bytes(4096, 1));
    const int before = count();
    enqueue(rank, rank.cuda, simple_call(SHC_ALL_REDUCE, SHC_UINT8, in, 9, in, 9), 0);
    for (uint64_t bytes : {1, 2, 600, 1024, 1999, 2047, 2048})
        enqueue(rank, rank.cuda, simple_call(SHC_BROADCAST, SHC_UINT8, in, bytes, in, bytes), 0);
    enqueue(rank, rank.cuda, simple_call(SHC_ALL_GATHER, SHC_UINT8, in, 4096, out, 4096 * n), 0);
    enqueue(rank, rank.cuda, simple_call(SHC_REDUCE_SCATTER, SHC_UINT8, out, 300 * n, out, 300), 0);
    const bool done = rank.sync() && shc_cuda_comm_error(rank.cuda) == SHC_OK;
    report("turns", std::to_string(count() - before));
    report("right",
           done && rank.get(in, 9) == Bytes(9, static_cast<unsigned char>(n)) ? "yes" : "no");
}

// Two groups of the same ranks, each with its own buffers, in turn on streams of their own.
void groups(Rank &rank)
{
    constexpr size_t kCount = 900;
    shc_comm *first_core = rank.core;
    shc_cuda_comm *cudas[2] = {rank.cuda, nullptr};
    rank.join("second");
    if (rank.make() != SHC_OK)
        die("the second group");
    cudas[1] = rank.cuda;
    shc_cu_address at[2];
    uint64_t expected = 1;
    for (auto &one : at) {
        one = rank.allocate(kCount * 8);
        rank.put(one, numbers(kCount, 1));
    }
    for (int turn = 0; turn < 20; turn++) {
        for (size_t g : {0, 1})
            enqueue(rank, cudas[g],
                    simple_call(SHC_ALL_REDUCE, SHC_INT64, at[g], kCount, at[g], kCount), g);
        expected *= static_cast<uint64_t>(rank.world);
    }
    bool right = rank.sync(0) && rank.sync(1);
    for (size_t g : {0, 1})
        right = right && shc_cuda_comm_error(cudas[g]) == SHC_OK &&
                rank.get(at[g], kCount * 8) == numbers(kCount, static_cast<int64_t>(expected));
    report("right", right ? "yes" : "no");
    barrier_of_cpus(rank);
    shc_cuda_comm_free(cudas[1]);
    shc_comm_free(rank.core);
    rank.core = first_core;
    rank.cuda = cudas[0];
}

// The last rank makes another call than the others, after some calls that are the same. More come after it.
void differ(Rank &rank)
{
    constexpr uint64_t kCount = 64;
    const std::string field = rank.settings.word("field", "");
    const bool odd = rank.rank == rank.world - 1;
    const auto n = static_cast<uint64_t>(rank.world);
    const shc_cu_address out = rank.allocate(1 << 20);
    const shc_cu_address in = rank.settings.number("in_place", 0) ? out : rank.allocate(1 << 20);
    const Bytes before(1 << 20, 0x5a);
    rank.put(in, Bytes(1 << 20, 0x33));
    rank.put(out, before);
    for (int i = 0; i < 3; i++)
        enqueue(rank, rank.cuda, simple_call(SHC_ALL_REDUCE, SHC_UINT8, in, 0, in, 0), 0);
    Call call = simple_call(SHC_ALL_REDUCE, SHC_INT32, in, kCount, out, kCount);
    if (field == "kind" && odd)
        call = simple_call(SHC_BROADCAST, SHC_INT32, in, kCount, out, kCount);
    if (field == "dtype" && odd)
        call.op.dtype = SHC_FLOAT32;
    if (field == "redop" && odd)
        call.op.redop = SHC_MAX;
    if (field == "count" && odd)
        call = simple_call(SHC_ALL_REDUCE, SHC_INT32, in, kCount + 1, out, kCount + 1);
    if (field == "rounds" && odd)
        call = simple_call(SHC_ALL_REDUCE, SHC_INT32, in, 5000, out, 5000);
    if (field == "root") {
        call = simple_call(SHC_REDUCE, SHC_INT32, in, kCount, out, kCount);
        call.op.root = odd ? 1 : 0;
    }
    if (field == "partly") { // the first tensor is in place, the second one is not
        call = Call();
        call.op.kind = SHC_ALL_REDUCE;
        call.op.dtype = odd ? SHC_UINT32 : SHC_INT32;
        add_tensors(call.in, call.in_sizes, out, {kCount, kCount}, 4);
        add_tensors(call.out, call.out_sizes, out, {kCount, kCount}, 4);
        call.in[1].data = reinterpret_cast<void *>(in + 4096);
    }
    if (field == "tag" || field == "elem") {
        call = simple_call(SHC_ALL_GATHER, SHC_UINT8, in, 12 * kCount, out, 12 * kCount * n);
        call.op.dtype = SHC_OPAQUE;
        call.op.elem_bytes = field == "elem" && odd ? 24 : 12;
        call.op.dtype_tag = field == "tag" && odd ? 8 : 7;
        const auto each = static_cast<uint64_t>(kCount * 12 / call.op.elem_bytes);
        call.in_sizes = {static_cast<int64_t>(each)};
        call.out_sizes = {static_cast<int64_t>(each * n)};
    }
    if (field == "counts" || field == "pairs") {
        std::vector<uint64_t> counts(n, 5);
        counts[0] += odd && rank.rank != 0 ? 1 : 0;
        call = Call();
        call.op.kind = field == "pairs" ? SHC_ALL_TO_ALL : SHC_ALL_GATHER_UNEVEN;
        call.op.dtype = SHC_INT32;
        add_tensors(call.in, call.in_sizes, in,
                    field == "pairs" ? counts : std::vector<uint64_t>{5}, 4);
        add_tensors(call.out, call.out_sizes, out,
                    field == "pairs" ? std::vector<uint64_t>(n, 5) : counts, 4);
    }
    shc_status st = shc_cuda_comm_enqueue(rank.cuda, call.ready(), rank.streams[0]);
    for (int i = 0; i < 5 && st == SHC_OK; i++) {
        Call more = simple_call(SHC_BROADCAST, SHC_INT32, in, kCount, out, kCount);
        st = shc_cuda_comm_enqueue(rank.cuda, more.ready(), rank.streams[0]);
    }
    rank.sync();
    report("changed", rank.get(out, 1 << 20) == before ? "no" : "yes");
    report_failure(rank, shc_cuda_comm_error(rank.cuda));
}

// The value of element i of operation j of a turn; no two rounds stage the same values.
static Bytes series(size_t count, uint64_t base, uint64_t step)
{
    Bytes bytes(count * sizeof base);
    for (size_t i = 0; i < count; i++, base += step)
        memcpy(&bytes[i * sizeof base], &base, sizeof base);
    return bytes;
}

// The last rank makes no call. The CPUs of the others wait for it: for a free record, or for the counts of an
// all_to_all. The calls before have a time-out of a minute, so the watcher does not end the wait.
void cpu_waits(Rank &rank)
{
    const std::string act = rank.settings.word("act", "");
    const std::vector<uint64_t> counts(static_cast<size_t>(rank.world), 5);
    const shc_cu_address at = rank.allocate(4096);
    report("ready", "yes");
    while (rank.rank == rank.world - 1)
        pause();
    Call call;
    call.op.kind = SHC_BARRIER;
    if (act == "mail") {
        call = simple_call(SHC_SEND, SHC_UINT8, at, 8, at, 0);
        call.out.clear();
        call.out_sizes.clear();
        call.op.peer = rank.world - 1;
    }
    call.op.timeout_ns = 60 * SHC_NS_PER_S;
    for (int i = 0; i < (act == "counts" ? 1 : SHC_RECORDS); i++)
        enqueue(rank, rank.cuda, call, 0);
    call.op.timeout_ns = 0; // the group's
    if (act == "counts") {
        call.op.kind = SHC_ALL_TO_ALL;
        add_tensors(call.in, call.in_sizes, at, counts, 1);
        add_tensors(call.out, call.out_sizes, at + 2048, counts, 1);
    }
    report_failure(rank, shc_cuda_comm_enqueue(rank.cuda, call.ready(), rank.streams[0]));
}

// An all_to_all in which each rank keeps most of its data.
void selfish(Rank &rank)
{
    const auto n = static_cast<uint64_t>(rank.world), me = static_cast<uint64_t>(rank.rank);
    const auto own = static_cast<uint64_t>(rank.settings.number("own", 0));
    std::vector<uint64_t> counts(n, 8);
    counts[me] = own;
    const uint64_t total = own + 8 * (n - 1);
    const shc_cu_address in = rank.allocate(total), out = rank.allocate(total);
    rank.put(in, Bytes(total, static_cast<unsigned char>(rank.rank + 1)));
    Call call;
    call.op.kind = SHC_ALL_TO_ALL;
    call.op.dtype = SHC_UINT8;
    add_tensors(call.in, call.in_sizes, in, counts, 1);
    add_tensors(call.out, call.out_sizes, out, counts, 1);
    enqueue(rank, rank.cuda, call, 0);
    rank.sync();
    Bytes want;
    for (uint64_t r = 0; r < n; r++)
        want.insert(want.end(), counts[r], static_cast<unsigned char>(r + 1));
    const bool right = shc_cuda_comm_error(rank.cuda) == SHC_OK && rank.get(out, total) == want;
    report("right", right ? "yes" : "no");
}

// Many sums, some of them too long for the relay.
void many(Rank &rank)
{
    constexpr size_t kShort = 8, kLong = 9000;
    const int count = rank.settings.number("operations", 300);
    const shc_cu_address at = rank.allocate(kLong * 8);
    const auto n = static_cast<uint64_t>(rank.world), me = static_cast<uint64_t>(rank.rank);
    uint64_t wrong = 0;
    for (int i = 0; i < count; i++) {
        const size_t elements = i % 7 == 6 ? kLong : kShort;
        const bool look = i % 10 == 9;
        if (look && rank.sync())
            rank.put(at, series(elements, static_cast<uint64_t>(i) + me, 3));
        enqueue(rank, rank.cuda, simple_call(SHC_ALL_REDUCE, SHC_INT64, at, elements, at, elements),
                0);
        if (!look)
            continue;
        rank.sync();
        wrong += rank.get(at, elements * 8) !=
                 series(elements, n * static_cast<uint64_t>(i) + n * (n - 1) / 2, n * 3);
    }
    rank.sync();
    report_failure(rank, shc_cuda_comm_error(rank.cuda));
    report("wrong", std::to_string(wrong));
    char info[4096];
    if (shc_cuda_comm_info(rank.cuda, info, sizeof info) == SHC_OK)
        printf("%s", info);
}

// Calls that differ, by kernels, and after them a short one that is the same on all ranks.
void shut_gate(Rank &rank)
{
    const auto count = static_cast<uint64_t>(rank.rank == rank.world - 1 ? 20001 : 20000);
    const Bytes a(20001, 1), b(64, 1);
    const shc_cu_address at_a = rank.allocate(a.size()), at_b = rank.allocate(b.size());
    rank.put(at_a, a);
    rank.put(at_b, b);
    const auto sum = [&](shc_cu_address at, uint64_t bytes) {
        Call call = simple_call(SHC_ALL_REDUCE, SHC_INT8, at, bytes, at, bytes);
        return shc_cuda_comm_enqueue(rank.cuda, call.ready(), rank.streams[0]);
    };
    if (sum(at_a, count) == SHC_OK)
        (void)!sum(at_b, b.size());
    rank.sync();
    const bool same = rank.get(at_a, a.size()) == a && rank.get(at_b, b.size()) == b;
    report("changed", same ? "no" : "yes");
    report_failure(rank, shc_cuda_comm_error(rank.cuda));
}

// Sums until the group fails, the last of three in place. A turn that ends without a failure must be
// right. `mixed`: outputs of a failed turn that are neither the old values nor the right results.
void endless(Rank &rank)
{
    constexpr size_t kOps = 3;
    const auto kCount = static_cast<size_t>(rank.settings.number("count", 1500));
    const size_t kBytes = kCount * 8;
    const std::string act = rank.settings.word("act", "");
    const bool actor = rank.rank == rank.world - 1;
    const auto n = static_cast<uint64_t>(rank.world), me = static_cast<uint64_t>(rank.rank);
    const shc_cu_address in = rank.allocate(kOps * kBytes), out = rank.allocate(kOps * kBytes);
    shc_status st = SHC_OK;
    uint64_t wrong = 0, mixed = 0, turn = 0;
    const auto place = [&](uint64_t j) {
        return j == kOps - 1 ? in + j * kBytes : out + j * kBytes;
    };
    const auto input = [&](uint64_t j) {
        return series(kCount, 1000 * (turn * kOps + j) + me, 31);
    };
    const auto right = [&](uint64_t j) {
        return series(kCount, n * 1000 * (turn * kOps + j) + n * (n - 1) / 2, n * 31);
    };
    std::vector<Bytes> before(kOps);
    for (; st == SHC_OK; turn++) {
        for (uint64_t j = 0; j < kOps; j++)
            rank.put(in + j * kBytes, input(j));
        for (uint64_t j = 0; j < kOps; j++)
            before[j] = rank.get(place(j), kBytes);
        for (uint64_t j = 0; j < kOps && st == SHC_OK; j++)
            st = shc_cuda_comm_enqueue(
                rank.cuda,
                simple_call(SHC_ALL_REDUCE, SHC_INT64, in + j * kBytes, kCount, place(j), kCount)
                    .ready(),
                rank.streams[0]);
        if (turn == 3)
            report("ready", "yes");
        if (actor && turn == 4 && act == "abort")
            shc_cuda_comm_abort(rank.cuda, "enough");
        if (actor && turn == 4 && act == "close")
            break;
        if (actor && turn == 4 && act == "idle") { // never comes
            idle_until_failed(rank);
            break;
        }
        rank.sync();
        if (st == SHC_OK)
            st = shc_cuda_comm_error(rank.cuda);
        for (uint64_t j = 0; j < kOps; j++) {
            const Bytes now = rank.get(place(j), kBytes);
            wrong += st == SHC_OK && now != right(j);
            mixed += now != before[j] && now != right(j);
        }
    }
    const uint64_t now = shc_clock_ns();
    report("failed_ns", std::to_string(now));
    report("wrong", std::to_string(wrong));
    report("mixed", std::to_string(mixed));
    report("turns", std::to_string(turn));
    if (st != SHC_OK)
        report_failure(rank, st);
    close_timed(rank);
}

namespace
{

int (*real_wait)(shc_cu_stream *, shc_cu_address, uint64_t, unsigned);
std::atomic<int> waits_left;

int some_waits(shc_cu_stream *stream, shc_cu_address at, uint64_t value, unsigned flags)
{
    return waits_left-- > 0 ? real_wait(stream, at, value, flags) : SHC_CU_INVALID_VALUE;
}

} // namespace

void idle_until_failed(Rank &rank)
{
    for (int tries = 0; shc_cuda_comm_error(rank.cuda) == SHC_OK && tries < 100000; tries++)
        usleep(1000);
}

void await_report(const Rank &rank, int other, const std::string &text)
{
    for (int tries = 0; tries < 100000; tries++) {
        std::ifstream in(rank.folder + "/out." + std::to_string(other));
        const std::string all{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
        if (all.find(text) != std::string::npos)
            return;
        usleep(1000);
    }
}

void refuse_waits_behind(Rank &rank, int waits)
{
    real_wait = rank.cuda->driver.cuStreamWaitValue64;
    waits_left = waits;
    rank.cuda->driver.cuStreamWaitValue64 = some_waits;
}

// The last rank's driver refuses a wait after two operations: all ranks' streams still end, and tensors
// that got no result have kept their bytes.
void broken(Rank &rank)
{
    constexpr size_t kBytes = 3000;
    const shc_cu_address at = rank.allocate(3 * kBytes);
    const Bytes before(3 * kBytes, 7);
    rank.put(at, before);
    if (rank.rank == rank.world - 1)
        refuse_waits_behind(rank, 2);
    shc_status st = SHC_OK;
    for (size_t i = 0; i < 3 && st == SHC_OK; i++)
        st = shc_cuda_comm_enqueue(
            rank.cuda,
            simple_call(SHC_ALL_REDUCE, SHC_UINT8, at + i * kBytes, kBytes, at + i * kBytes, kBytes)
                .ready(),
            rank.streams[0]);
    for (int tries = 0; st == SHC_OK && tries < 30000; tries++) {
        usleep(1000);
        st = shc_cuda_comm_error(rank.cuda);
    }
    report_failure(rank, st);
    report("last", rank.get(at + 2 * kBytes, kBytes) == Bytes(kBytes, 7) ? "old" : "new");
    close_timed(rank);
}

namespace
{

// Until rank 0's stream has come to this round, ranks that read its half wait.
struct {
    shc_cuda_comm *cuda;
    char *page;
    size_t bytes;
    uint64_t round;
} halt;

void stand(int)
{
    while (shc_relay_arrival(&halt.cuda->host, 0) < halt.round)
        usleep(100);
    mprotect(halt.page, halt.bytes, PROT_READ | PROT_WRITE);
}

struct Entry {
    void *(*run)(void *);
    void *arg;
};

void *run_open(void *given)
{
    const Entry entry = *static_cast<Entry *>(given);
    delete static_cast<Entry *>(given);
    sigset_t fault;
    sigemptyset(&fault);
    sigaddset(&fault, SIGSEGV);
    pthread_sigmask(SIG_UNBLOCK, &fault, nullptr);
    return entry.run(entry.arg);
}

} // namespace

extern "C" {
int __real_shc_sys_thread_start(shc_sys_thread *, const char *, void *(*)(void *), void *);
int __wrap_shc_sys_thread_start(shc_sys_thread *, const char *, void *(*)(void *), void *);

// The library's threads block all signals; here they accept this one.
int __wrap_shc_sys_thread_start(shc_sys_thread *thread, const char *name, void *(*run)(void *),
                                void *arg)
{
    return __real_shc_sys_thread_start(thread, name, run_open, new Entry{run, arg});
}
}

// Rank 1 is stopped in the middle of its read of rank 0's data. For rank 0 the operation is over: rank 0
// fails the group, and stages over that data.
void halted(Rank &rank)
{
    const auto bytes = static_cast<size_t>(rank.settings.number("bytes", 0)),
               page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const uint64_t last = bytes > 32 << 10 ? 2 : 1; // its last round
    const shc_cu_address in = rank.allocate(bytes), out = rank.allocate(bytes);
    const Bytes before(bytes, 1), right(bytes, static_cast<unsigned char>(2 * rank.world));
    const auto all_reduce = [&](uint64_t count) {
        return shc_cuda_comm_enqueue(
            rank.cuda, simple_call(SHC_ALL_REDUCE, SHC_UINT8, in, count, out, count).ready(),
            rank.streams[0]);
    };
    rank.put(in, Bytes(bytes, 2));
    rank.put(out, before);
    if (rank.rank == 1) {
        const size_t at = (last & 1) * rank.cuda->relay.cell_bytes;
        char *half = shc_host_cells(&rank.cuda->host, 0) + at;
        halt = {rank.cuda, half + page, bytes - page, last + 2};
        struct sigaction action = {};
        action.sa_handler = stand;
        sigaction(SIGSEGV, &action, nullptr);
        mprotect(halt.page, halt.bytes, PROT_NONE);
    }
    shc_status st = all_reduce(bytes);
    rank.sync();
    const Bytes now = rank.get(out, bytes);
    report("result", now == right ? "right" : now == before ? "old" : "mixed");
    if (rank.rank == 0) { // the others never make these calls
        rank.put(in, Bytes(bytes, 9));
        all_reduce(1);
        all_reduce(bytes);
        shc_cuda_comm_abort(rank.cuda, "enough");
    }
    for (int tries = 0; st == SHC_OK && tries < 30000; tries++) {
        usleep(1000);
        st = shc_cuda_comm_error(rank.cuda);
    }
    report_failure(rank, st);
}

// An operation waits for the last rank: what is reported of it until that rank comes, dies or leaves, and
// after that.
// What tools outside see of the operation that is under way, once it has waited for a while.
void report_shown(const Rank &rank)
{
    char text[512];
    core_board_device(rank.core, text, sizeof text);
    if (text[0])
        report("shown", text);
}

void pending(Rank &rank)
{
    const std::string act = rank.settings.word("act", "");
    const shc_cu_address at = rank.allocate(64);
    const auto told = [&rank](const char *key) {
        bool pending = true;
        const shc_status st = shc_cuda_comm_pending(rank.cuda, &pending);
        report(key, std::string(shc_status_name(st)) + (pending ? ", pending" : ""));
        return st == SHC_OK && pending;
    };
    told("before");
    if (rank.rank == rank.world - 1) {
        usleep(act == "leave" ? 900000 : 300000);
        if (act == "die")
            raise(SIGKILL);
        if (act == "leave")
            return;
        if (act == "end") { // as at the end of an interpreter
            shc_process_leave();
            shc_cuda_comm_close(rank.cuda);
            usleep(400000);
            report("ends_ns", std::to_string(shc_clock_ns()));
            return;
        }
    }
    enqueue(rank, rank.cuda, simple_call(SHC_ALL_REDUCE, SHC_INT8, at, 8, at, 8), 0);
    told("first");
    while (told("last")) {
        report_shown(rank);
        usleep(1000);
    }
    report("told_ns", std::to_string(shc_clock_ns()));
    report("error", shc_cuda_failure());
    barrier_of_cpus(rank);
    if (rank.rank == rank.world - 1 && act == "die_behind")
        raise(SIGKILL);
    if (rank.rank == rank.world - 1)
        shc_cuda_comm_close(rank.cuda);
    barrier_of_cpus(rank); // which reports the rank that has died
    told("after");
}

// Each call is refused with a reason, and the group goes on.
void refuse(Rank &rank)
{
    const shc_cu_address at = rank.allocate(4096);
    const auto n = static_cast<uint64_t>(rank.world);
    int refused = 0;
    auto try_one = [&](const char *name, Call call, shc_status want) {
        const shc_status st = shc_cuda_comm_enqueue(rank.cuda, call.ready(), rank.streams[0]);
        refused += st == want;
        if (st != want)
            report("not_refused", name);
        report(name, shc_cuda_failure());
    };
    Call any = simple_call(SHC_RECV, SHC_INT8, at, 1, at, 1);
    any.op.peer = SHC_ANY_SOURCE;
    try_one("any", any, SHC_ERR_UNSUPPORTED);
    Call nobody = simple_call(SHC_SEND, SHC_INT8, at, 1, at, 1);
    nobody.op.peer = rank.world;
    try_one("nobody", nobody, SHC_ERR_INVALID);
    nobody.op.peer = SHC_ANY_SOURCE;
    try_one("send_to_any", nobody, SHC_ERR_INVALID);
    try_one("sparse", simple_call(SHC_ALL_REDUCE_SPARSE, SHC_INT8, at, 1, at, 1),
            SHC_ERR_UNSUPPORTED);
    try_one("call", simple_call(SHC_CALL, SHC_INT8, at, 1, at, 1), SHC_ERR_UNSUPPORTED);
    try_one("room", simple_call(SHC_ALL_REDUCE, SHC_INT8, at, 8, at, 7), SHC_ERR_INVALID);
    try_one("blocks", simple_call(SHC_ALL_GATHER, SHC_INT8, at, 8, at, 9), SHC_ERR_INVALID);
    try_one("list", simple_call(SHC_ALL_TO_ALL, SHC_INT8, at, 8, at, 8), SHC_ERR_INVALID);
    Call root = simple_call(SHC_BROADCAST, SHC_INT8, at, 8, at, 8);
    root.op.root = rank.world;
    try_one("root", root, SHC_ERR_INVALID);
    Call strange = simple_call(SHC_ALL_REDUCE, SHC_BOOL, at, 8, at, 8);
    strange.op.redop = SHC_AVG;
    try_one("redop", strange, SHC_ERR_UNSUPPORTED);
    Call strided = simple_call(SHC_BROADCAST, SHC_INT8, at, 8, at, 8);
    const int64_t two = 2;
    strided.in[0].strides = strided.out[0].strides = &two;
    try_one("strided", strided, SHC_ERR_UNSUPPORTED);
    Call huge = simple_call(SHC_BROADCAST, SHC_INT64, at, INT64_MAX, at, INT64_MAX);
    try_one("huge", huge, SHC_ERR_INVALID);
    char here[64];
    const auto host = reinterpret_cast<shc_cu_address>(here);
    try_one("host_in", simple_call(SHC_ALL_GATHER, SHC_INT8, host, 8, at, 8 * n), SHC_ERR_INVALID);
    try_one("host_out", simple_call(SHC_ALL_GATHER, SHC_INT8, at, 8, host, 8 * n), SHC_ERR_INVALID);
    if (rank.driver.device_count > 1) {
        shc_cu_address far = 0;
        shc_gpu other;
        const int number = (rank.gpu.device + 1) % rank.driver.device_count;
        if (shc_gpu_open(&rank.driver, number, &other) != SHC_OK || shc_gpu_enter(&other) != SHC_OK)
            die("the other GPU");
        far = rank.allocate(64);
        shc_gpu_leave(&other);
        try_one("far", simple_call(SHC_ALL_REDUCE, SHC_INT8, far, 8, far, 8), SHC_ERR_INVALID);
    }
    report("refused", std::to_string(refused));
    enqueue(rank, rank.cuda, simple_call(SHC_ALL_REDUCE, SHC_INT8, at, 8, at, 8), 0);
    report("goes_on", rank.sync() && shc_cuda_comm_error(rank.cuda) == SHC_OK ? "yes" : "no");
}

namespace
{

// Dies, and leaves a child that holds all that this process had open: so no socket shows the death.
void vanish(int after_ms)
{
    usleep(static_cast<useconds_t>(after_ms) * 1000);
    const pid_t child = fork();
    if (child == 0) {
        sleep(15);
        _exit(0);
    }
    report("child", std::to_string(child));
    report("vanished_ns", std::to_string(shc_clock_ns()));
    raise(SIGKILL);
}

int run(const std::string &folder, int number, int world, const Settings &settings)
{
    static const std::map<std::string, void (*)(Rank &)> scenarios = {
        {"sweep", sweep},
        {"large", large},
        {"chain", chain},
        {"groups", groups},
        {"ahead", ahead},
        {"differ", differ},
        {"endless", endless},
        {"refuse", refuse},
        {"pending", pending},
        {"cpu_waits", cpu_waits},
        {"make", nullptr},
        {"turns", turns},
        {"selfish", selfish},
        {"many", many},
        {"shut_gate", shut_gate},
        {"limits", limits},
        {"broken", broken},
        {"halted", halted},
        {"graph", graph},
        {"graph_refuse", graph_refuse},
        {"graph_endless", graph_endless},
        {"graph_differ", graph_differ},
        {"mail_sweep", mail_sweep},
        {"mail_ring", mail_ring},
        {"mail_chain", mail_chain},
        {"mail_ahead", mail_ahead},
        {"mail_differ", mail_differ},
        {"mail_leave", mail_leave},
        {"mail_endless", mail_endless},
        {"mail_poison", mail_poison},
        {"batch_all", batch_all},
        {"batch_many", batch_many},
        {"batch_beside", batch_beside},
        {"batch_differ", batch_differ},
        {"batch_endless", batch_endless},
        {"batch_refuse", batch_refuse},
        {"batch_broken", batch_broken},
        {"batch_late", batch_late},
    };
    prctl(PR_SET_PDEATHSIG, SIGKILL); // if the test that started it ends
    Rank rank(folder, number, world, settings);
    const int before = open_descriptors();
    rank.join();
    report("joined", "yes");
    if (settings.number("vanish_ms", 0))
        std::thread(vanish, settings.number("vanish_ms", 0)).detach();
    const shc_status st = rank.make();
    report("made", shc_status_name(st));
    if (st != SHC_OK) {
        report("error", shc_cuda_failure());
    } else {
        char info[4096];
        if (shc_cuda_comm_info(rank.cuda, info, sizeof info) == SHC_OK)
            printf("%s", info);
        if (auto scenario = scenarios.at(settings.word("scenario", "make")))
            scenario(rank);
    }
    if (settings.number("meet", 1)) // no rank leaves while others are inside
        barrier_of_cpus(rank);
    rank.leave();
    report("leaked", std::to_string(open_descriptors() - before));
    if (!settings.number("free", 1)) // what is not freed is kept on purpose: no leak checker looks
        _exit(0);
    return 0;
}

} // namespace
} // namespace shmcoll::test

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    return shmcoll::test::run(argv[1], atoi(argv[2]), atoi(argv[3]),
                              shmcoll::test::Settings(argv[4]));
}
