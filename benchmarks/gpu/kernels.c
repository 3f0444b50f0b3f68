/* SPDX-License-Identifier: BSD-3-Clause */
#include "kernels.h"
#include "cuda_ipc/cuda_error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IMAGE_BYTES ((size_t)1 << 20) /* more than any image of these two */

static const char ptx[] = ".version 6.3\n"
                          ".target sm_70\n"
                          ".address_size 64\n"
                          ".visible .entry experiment_store(.param .u64 word, .param .u64 value)\n"
                          "{\n"
                          "    .reg .b64 %r<3>;\n"
                          "    ld.param.u64 %r1, [word];\n"
                          "    ld.param.u64 %r2, [value];\n"
                          "    st.release.sys.u64 [%r1], %r2;\n"
                          "    ret;\n"
                          "}\n"
                          ".visible .entry experiment_busy(.param .u64 ns)\n"
                          "{\n"
                          "    .reg .pred %more;\n"
                          "    .reg .b64 %r<5>;\n"
                          "    ld.param.u64 %r1, [ns];\n"
                          "    mov.u64 %r2, %globaltimer;\n"
                          "again:\n"
                          "    mov.u64 %r3, %globaltimer;\n"
                          "    sub.u64 %r4, %r3, %r2;\n"
                          "    setp.lt.u64 %more, %r4, %r1;\n"
                          "    @%more bra again;\n"
                          "    ret;\n"
                          "}\n";

const char *kernels_ptx(void)
{
    return ptx;
}

static void explain(struct kernels *kernels, const struct shc_gpu *gpu, int result,
                    const char *what)
{
    (void)!shc_driver_fail(gpu->driver, result, "%s", what);
    snprintf(kernels->why_not, sizeof kernels->why_not, "%s", shc_cuda_failure());
}

/* NULL: the file cannot be read. */
static char *read_image(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *image = calloc(1, IMAGE_BYTES + 1); /* PTX ends in a zero */
    if (file == NULL || image == NULL || fread(image, 1, IMAGE_BYTES, file) == 0) {
        free(image);
        image = NULL;
    }
    if (file != NULL)
        fclose(file);
    return image;
}

void kernels_load(const struct shc_gpu *gpu, const char *image, struct kernels *kernels)
{
    const struct shc_driver *driver = gpu->driver;
    char *read = image ? read_image(image) : NULL;
    memset(kernels, 0, sizeof *kernels);
    if (image != NULL && read == NULL) {
        snprintf(kernels->why_not, sizeof kernels->why_not, "%.150s cannot be read", image);
        return;
    }
    int result = driver->cuModuleLoadData(&kernels->module, read ? read : ptx);
    free(read);
    if (result != SHC_CU_SUCCESS) {
        kernels->module = NULL;
        explain(kernels, gpu, result, "no kernels: cuModuleLoadData");
        return;
    }
    result = driver->cuModuleGetFunction(&kernels->store, kernels->module, "experiment_store");
    if (result == SHC_CU_SUCCESS)
        result = driver->cuModuleGetFunction(&kernels->busy, kernels->module, "experiment_busy");
    if (result != SHC_CU_SUCCESS)
        explain(kernels, gpu, result, "the image lacks a kernel: cuModuleGetFunction");
}

void kernels_unload(const struct shc_gpu *gpu, struct kernels *kernels)
{
    if (kernels->module != NULL)
        (void)gpu->driver->cuModuleUnload(kernels->module);
    kernels->module = NULL;
}

int kernels_store(const struct shc_gpu *gpu, const struct kernels *kernels,
                  struct shc_cu_stream *stream, shc_cu_address word, uint64_t value)
{
    void *parameters[] = {&word, &value};
    return gpu->driver->cuLaunchKernel(kernels->store, 1, 1, 1, 1, 1, 1, 0, stream, parameters,
                                       NULL);
}

int kernels_busy(const struct shc_gpu *gpu, const struct kernels *kernels,
                 struct shc_cu_stream *stream, uint64_t ns)
{
    void *parameters[] = {&ns};
    int processors = 1;
    (void)gpu->driver->cuDeviceGetAttribute(&processors, SHC_CU_ATTRIBUTE_MULTIPROCESSORS,
                                            gpu->device);
    return gpu->driver->cuLaunchKernel(kernels->busy, (unsigned)processors, 1, 1, 256, 1, 1, 0,
                                       stream, parameters, NULL);
}
