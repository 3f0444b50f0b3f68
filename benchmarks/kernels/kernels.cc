// SPDX-License-Identifier: BSD-3-Clause
//
// The reductions, every instruction set x dtype x operation, compared with a plain copy.
//
//   build/bench/benchmarks/kernels [--benchmark_filter='avx2/bfloat16/.*'] [--kib=256] [--sources=2]
//                                  [--remote]
//
// --remote: before each run a thread on the second CPU that this process may use (no thread of the first
// one's core, or the figures mean nothing) stores all sources but the first one, as other ranks do; only
// the run is timed.
//
// bytes_per_second are those of the result. `of_copy` is that rate over memcpy's of as many bytes,
// measured just before in the same benchmark: the machine's speed drifts. A result is checked first.
#include <benchmark/benchmark.h>

extern "C" {
#include "shm/kernel/kernel.h"
}

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>

namespace
{

const size_t kMostSources = 64;
size_t source_count = 2;
size_t bytes = 256 << 10; // of each; all three in a second level cache
bool remote;
bool wrong;

// Zeros that begin with a page, as staging memory does.
class Buffer
{
  public:
    Buffer() : memory_(bytes + kPage) {}

    char *data()
    {
        const auto address = reinterpret_cast<uintptr_t>(memory_.data());
        return memory_.data() + (kPage - address % kPage) % kPage;
    }

  private:
    static constexpr size_t kPage = 4096;
    std::vector<char> memory_;
};

struct Memory {
    Memory() : sources(source_count) {}
    std::vector<Buffer> sources;
    Buffer result;
};

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begun)
{
    return std::chrono::duration<double>(Clock::now() - begun).count();
}

double seconds_of_copy(Memory *memory)
{
    const int passes = 20;
    double best = 1e9;
    for (int turn = 0; turn < 5; turn++) {
        const auto begun = Clock::now();
        for (int i = 0; i < passes; i++) {
            memcpy(memory->result.data(), memory->sources[0].data(), bytes);
            benchmark::ClobberMemory();
        }
        best = std::min(best, seconds_since(begun) / passes);
    }
    return best;
}

struct Kernel {
    shc_isa isa;
    shc_dtype dtype;
    shc_redop redop;
    std::string name() const
    {
        return std::string(shc_isa_name(isa)) + "/" + shc_dtype_name(dtype) + "/" +
               shc_redop_name(redop);
    }
};

void run(const Kernel &kernel, Memory *memory)
{
    const void *src[kMostSources];
    double factors[kMostSources];
    for (size_t i = 0; i < source_count; i++) {
        src[i] = memory->sources[i].data();
        factors[i] = 1;
    }
    void *dst[] = {memory->result.data()};
    shc_reduce_args args = {};
    args.src = src;
    args.dst = dst;
    args.src_count = static_cast<int>(source_count);
    args.dst_count = 1;
    args.count = bytes / shc_dtype_bytes(kernel.dtype);
    args.factors = kernel.redop == SHC_PREMUL_SUM ? factors : nullptr;
    shc_kernel_reduce_isa(kernel.isa, kernel.dtype, kernel.redop)(&args);
}

// Zeros give zeros, whatever is done with them; the result was something else before.
bool is_right(const Kernel &kernel, Memory *memory)
{
    memset(memory->result.data(), 1, bytes);
    run(kernel, memory);
    const char *result = memory->result.data();
    return std::all_of(result, result + bytes, [](char byte) { return byte == 0; });
}

cpu_set_t allowed; // before anybody stays anywhere

// Of those that this process may use; the calling thread stays there.
void stay_on_cpu(int number)
{
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || number-- > 0)
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (sched_setaffinity(0, sizeof one, &one) == 0)
            return;
        perror("kernels: sched_setaffinity");
        exit(2);
    }
}

// Another rank: stores its sources whenever it is told to.
class Writer
{
  public:
    explicit Writer(Memory *memory) : memory_(memory), thread_([this] { work(); }) {}

    ~Writer()
    {
        end_ = true;
        thread_.join();
    }

    void store()
    {
        const int turn = ++wanted_;
        while (stored_ != turn)
            ;
    }

  private:
    void work()
    {
        stay_on_cpu(1);
        for (int turn = 1; !end_; turn++) {
            while (wanted_ != turn)
                if (end_)
                    return;
            for (size_t i = 1; i < source_count; i++)
                memset(memory_->sources[i].data(), 0, bytes);
            stored_ = turn;
        }
    }

    Memory *memory_;
    std::atomic<int> wanted_{0}, stored_{0};
    std::atomic<bool> end_{false};
    std::thread thread_; // uses all of the above
};

double seconds_here(benchmark::State &state, const Kernel &kernel, Memory *memory)
{
    const auto begun = Clock::now();
    for (auto _ : state) {
        run(kernel, memory);
        benchmark::ClobberMemory();
    }
    return seconds_since(begun);
}

double seconds_remote(benchmark::State &state, const Kernel &kernel, Memory *memory)
{
    Writer writer(memory);
    double sum = 0;
    for (auto _ : state) {
        writer.store();
        const auto begun = Clock::now();
        run(kernel, memory);
        benchmark::ClobberMemory();
        const double seconds = seconds_since(begun);
        state.SetIterationTime(seconds);
        sum += seconds;
    }
    return sum;
}

void measure(benchmark::State &state, const Kernel &kernel)
{
    Memory memory;
    if (!is_right(kernel, &memory)) {
        wrong = true;
        state.SkipWithError("the result is wrong");
        return;
    }
    const double copy = seconds_of_copy(&memory);
    const double seconds =
        remote ? seconds_remote(state, kernel, &memory) : seconds_here(state, kernel, &memory);
    state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
    state.counters["of_copy"] = copy * static_cast<double>(state.iterations()) / seconds;
}

void copy(benchmark::State &state)
{
    Memory memory;
    for (auto _ : state) {
        memcpy(memory.result.data(), memory.sources[0].data(), bytes);
        benchmark::ClobberMemory();
    }
    state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
}

void register_all()
{
    benchmark::RegisterBenchmark("copy", copy);
    for (int isa = 0; isa < SHC_ISA_COUNT; isa++)
        for (int dtype = 0; dtype < SHC_OPAQUE; dtype++)
            for (int redop = 0; redop < SHC_REDOP_COUNT; redop++) {
                const Kernel kernel = {static_cast<shc_isa>(isa), static_cast<shc_dtype>(dtype),
                                       static_cast<shc_redop>(redop)};
                if (!shc_isa_usable(kernel.isa) ||
                    !shc_reduction_supported(kernel.dtype, kernel.redop))
                    continue;
                auto *one = benchmark::RegisterBenchmark(
                    kernel.name().c_str(),
                    [kernel](benchmark::State &state) { measure(state, kernel); });
                if (remote)
                    one->UseManualTime();
            }
}

bool is_option(const char *argument, const char *name, size_t *value)
{
    const size_t length = strlen(name);
    if (strncmp(argument, name, length) != 0)
        return false;
    *value = strtoul(argument + length, nullptr, 10);
    return true;
}

// What of the arguments is ours.
bool read_options(int count, char **arguments)
{
    size_t kib = bytes >> 10;
    for (int i = 1; i < count; i++) {
        if (strcmp(arguments[i], "--remote") == 0)
            remote = true;
        else if (!is_option(arguments[i], "--kib=", &kib) &&
                 !is_option(arguments[i], "--sources=", &source_count))
            return false;
    }
    bytes = kib << 10;
    return bytes > 0 && source_count > 0 && source_count <= kMostSources;
}

} // namespace

int main(int argc, char **argv)
{
    benchmark::Initialize(&argc, argv);
    if (!read_options(argc, argv)) {
        fprintf(stderr, "kernels: [--benchmark_...] [--kib=SIZE] [--sources=1..%zu] [--remote]\n",
                kMostSources);
        return 2;
    }
    sched_getaffinity(0, sizeof allowed, &allowed);
    if (remote && CPU_COUNT(&allowed) < 2) {
        fprintf(stderr, "kernels: --remote needs two CPUs\n");
        return 2;
    }
    if (remote)
        stay_on_cpu(0);
    register_all();
    benchmark::RunSpecifiedBenchmarks();
    return wrong ? 1 : 0;
}
