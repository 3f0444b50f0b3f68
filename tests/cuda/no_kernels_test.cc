// SPDX-License-Identifier: BSD-3-Clause
// A build that found no nvcc: this program has no image.
#include "tests/cuda/standin.h"

extern "C" {
#include "cuda_ipc/kernel/image.h"
#include "cuda_ipc/kernel/kernels.h"

const void *const shc_kernel_image = nullptr;
}

namespace shmcoll::test
{
namespace
{

TEST(NoKernels, IsSaidWithWhatToDo)
{
    Standin standin("");
    shc_kernels kernels;
    EXPECT_FALSE(shc_kernels_built());
    EXPECT_EQ(shc_kernels_load(&standin.gpu, &kernels), SHC_ERR_UNSUPPORTED);
    EXPECT_NE(std::string(shc_cuda_failure()).find("there was no nvcc"), std::string::npos);
}

} // namespace
} // namespace shmcoll::test
