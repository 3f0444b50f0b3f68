// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// Launches the kernels' twins through the stand-in, as the library launches kernels.

#include "tests/cuda/standin.h"
#include "tests/cuda/twins.h"

extern "C" {
#include "cuda_ipc/kernel/kernels.h"
}

namespace shmcoll::test
{

struct Launcher {
    explicit Launcher(const std::string &text = "lazy=1") : standin(text)
    {
        add_twins(standin_function<void (*)(const FakeKernel *)>("fake_add_kernel"));
        EXPECT_EQ(shc_kernels_load(&standin.gpu, &kernels), SHC_OK) << shc_cuda_failure();
        EXPECT_EQ(standin.driver.cuStreamCreateWithPriority(&stream, SHC_CU_STREAM_NON_BLOCKING, 0),
                  0);
    }
    ~Launcher()
    {
        standin.driver.cuStreamDestroy(stream);
        shc_kernels_unload(&kernels);
    }

    // Each function returns when the kernel is done.
    void gate(const shc_gate_args &args) { done(shc_kernels_gate(&kernels, stream, &args)); }
    void copy(const shc_copy_args &args) { done(shc_kernels_copy(&kernels, stream, &args)); }
    void reduce(shc_dtype dtype, shc_redop redop, const shc_reduce_args &args)
    {
        done(shc_kernels_reduce(&kernels, stream, dtype, redop, &args));
    }

    Standin standin;
    shc_kernels kernels = {};
    shc_cu_stream *stream = nullptr;

  private:
    void done(shc_status st)
    {
        EXPECT_EQ(st, SHC_OK) << shc_cuda_failure();
        EXPECT_EQ(standin.driver.cuStreamSynchronize(stream), 0);
    }
};

} // namespace shmcoll::test
