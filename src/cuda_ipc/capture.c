/* SPDX-License-Identifier: BSD-3-Clause */
#include "cuda_ipc/capture.h"

enum shc_status shc_capture_of(const struct shc_driver *driver, struct shc_cu_stream *stream,
                               uint64_t *capture)
{
    int status = SHC_CU_CAPTURE_NONE;
    uint64_t number = 0;
    *capture = 0;
    const int result = driver->cuStreamGetCaptureInfo(stream, &status, &number);
    if (result != SHC_CU_SUCCESS)
        return shc_driver_fail(driver, result, "whether the stream is captured");
    if (status == SHC_CU_CAPTURE_BROKEN)
        return shc_cuda_fail(SHC_ERR_INVALID, "the capture of this stream has been broken before "
                                              "this call; begin it again");
    if (status == SHC_CU_CAPTURE_ACTIVE)
        *capture = number + 1; /* drivers count from where they like */
    return SHC_OK;
}
