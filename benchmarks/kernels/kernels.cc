// SPDX-License-Identifier: BSD-3-Clause
//
// The reductions of two sources, every instruction set x dtype x operation, beside a plain copy.
//
//   build/bench/benchmarks/kernels [--benchmark_filter='avx2/bfloat16/.*'] [--kib=256]
//
// bytes_per_second are those of the result. `of_copy` is that rate over memcpy's of as many bytes,
// measured just before in the same benchmark: the machine's speed drifts. A result is checked first.
#include <benchmark/benchmark.h>

extern "C" {
#include "shm/kernel/kernel.h"
}

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace
{

const int kSources = 2;
size_t bytes = 256 << 10; // of each; all three in a second level cache
bool wrong;

struct Memory {
    Memory() : sources(kSources, std::vector<char>(bytes)), result(bytes) {}
    std::vector<std::vector<char>> sources;
    std::vector<char> result;
};

double seconds_of_copy(Memory *memory)
{
    const int passes = 20;
    double best = 1e9;
    for (int turn = 0; turn < 5; turn++) {
        const auto begun = std::chrono::steady_clock::now();
        for (int i = 0; i < passes; i++) {
            memcpy(memory->result.data(), memory->sources[0].data(), bytes);
            benchmark::ClobberMemory();
        }
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
        best = std::min(best, took.count() / passes);
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
    const void *src[kSources];
    for (int i = 0; i < kSources; i++)
        src[i] = memory->sources[i].data();
    void *dst[] = {memory->result.data()};
    const double factors[kSources] = {1, 1};
    shc_reduce_args args = {};
    args.src = src;
    args.dst = dst;
    args.src_count = kSources;
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
    return memory->result == std::vector<char>(bytes);
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
    const auto begun = std::chrono::steady_clock::now();
    for (auto _ : state) {
        run(kernel, &memory);
        benchmark::ClobberMemory();
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
    state.counters["of_copy"] = copy * static_cast<double>(state.iterations()) / took.count();
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
                benchmark::RegisterBenchmark(
                    kernel.name().c_str(),
                    [kernel](benchmark::State &state) { measure(state, kernel); });
            }
}

} // namespace

int main(int argc, char **argv)
{
    benchmark::Initialize(&argc, argv);
    if (argc > 1 && strncmp(argv[1], "--kib=", 6) == 0) {
        bytes = strtoul(argv[1] + 6, nullptr, 10) << 10;
        argc--;
    }
    if (argc > 1 || bytes == 0) {
        fprintf(stderr, "kernels: [--benchmark_...] [--kib=SIZE]\n");
        return 2;
    }
    register_all();
    benchmark::RunSpecifiedBenchmarks();
    return wrong ? 1 : 0;
}
