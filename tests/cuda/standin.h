// SPDX-License-Identifier: BSD-3-Clause
#pragma once
// The stand-in driver, for tests. Only this file and the path handed to shc_driver_open lead to it:
// no variable makes the library load another driver than the machine's.

extern "C" {
#include "cuda_ipc/cuda_error.h"
#include "cuda_ipc/cuda_ipc.h"
#include "cuda_ipc/driver.h"
#include "cuda_ipc/gpu.h"
#include "cuda_ipc/inventory.h"
}

#include <cstring>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <string>

namespace shmcoll::test
{

template <typename Function>
Function standin_function(const char *name)
{
    void *library = dlopen(FAKE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, name) : nullptr;
    EXPECT_NE(found, nullptr) << name;
    Function function;
    memcpy(&function, &found, sizeof found);
    return function;
}

// From here on the stand-in has these knobs (fakedriver/fake.h) and the defaults of all others.
inline void configure(const std::string &text)
{
    standin_function<void (*)(const char *)>("fake_configure")(text.c_str());
}

// A driver over the stand-in, and its device `ordinal` as the current one while this lives.
struct Standin {
    explicit Standin(const std::string &text = "", int ordinal = 0)
    {
        if (!text.empty())
            configure(text);
        EXPECT_EQ(shc_driver_open(FAKE_CUDA_LIBRARY, &driver), SHC_OK) << shc_cuda_failure();
        EXPECT_EQ(shc_gpu_open(&driver, ordinal, &gpu), SHC_OK) << shc_cuda_failure();
        EXPECT_EQ(shc_gpu_enter(&gpu), SHC_OK) << shc_cuda_failure();
    }
    ~Standin()
    {
        shc_gpu_leave(&gpu);
        shc_gpu_close(&gpu);
    }
    Standin(const Standin &) = delete;
    Standin &operator=(const Standin &) = delete;

    shc_driver driver = {};
    shc_gpu gpu = {};
};

} // namespace shmcoll::test
