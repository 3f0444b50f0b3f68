/* SPDX-License-Identifier: BSD-3-Clause */
#pragma once
/*
 * The part of CUDA's driver API that this library uses: its numbers, its structs, and the one list of its
 * functions. Our own declarations, so that building needs no CUDA toolkit; where there is one,
 * tests/cuda/abi_test.c compares all of this with its cuda.h.
 */

#include "shm/base/attrs.h"

/* ---- results (enum CUresult) ---- */

#define SHC_CU_SUCCESS                0
#define SHC_CU_INVALID_VALUE          1
#define SHC_CU_OUT_OF_MEMORY          2
#define SHC_CU_NOT_INITIALIZED        3
#define SHC_CU_STUB_LIBRARY           34
#define SHC_CU_DEVICE_UNAVAILABLE     46
#define SHC_CU_NO_DEVICE              100
#define SHC_CU_INVALID_DEVICE         101
#define SHC_CU_INVALID_IMAGE          200
#define SHC_CU_INVALID_CONTEXT        201
#define SHC_CU_MAP_FAILED             205
#define SHC_CU_NO_BINARY_FOR_GPU      209
#define SHC_CU_UNSUPPORTED_PTX        222
#define SHC_CU_INVALID_HANDLE         400
#define SHC_CU_NOT_FOUND              500
#define SHC_CU_NOT_READY              600
#define SHC_CU_ILLEGAL_ADDRESS        700
#define SHC_CU_NOT_PERMITTED          800
#define SHC_CU_NOT_SUPPORTED          801
#define SHC_CU_SYSTEM_NOT_READY       802
#define SHC_CU_SYSTEM_DRIVER_MISMATCH 803
#define SHC_CU_CAPTURE_UNSUPPORTED    900
#define SHC_CU_CAPTURE_INVALIDATED    901
#define SHC_CU_CAPTURE_MERGE          902
#define SHC_CU_CAPTURE_UNMATCHED      903
#define SHC_CU_CAPTURE_UNJOINED       904
#define SHC_CU_CAPTURE_ISOLATION      905
#define SHC_CU_CAPTURED_EVENT         907
#define SHC_CU_CAPTURE_WRONG_THREAD   908

/* ---- flags and attributes ---- */

#define SHC_CU_ATTRIBUTE_MULTIPROCESSORS   16
#define SHC_CU_ATTRIBUTE_COMPUTE_MODE      20
#define SHC_CU_ATTRIBUTE_CAPABILITY_MAJOR  75
#define SHC_CU_ATTRIBUTE_CAPABILITY_MINOR  76
#define SHC_CU_ATTRIBUTE_VIRTUAL_MEMORY    102
#define SHC_CU_ATTRIBUTE_POSIX_FD          103
#define SHC_CU_ATTRIBUTE_STREAM_WORDS      122
#define SHC_CU_ATTRIBUTE_MPS               133
#define SHC_CU_MODE_DEFAULT                0
#define SHC_CU_MODE_PROHIBITED             2
#define SHC_CU_MODE_EXCLUSIVE_PROCESS      3
#define SHC_CU_PROC_ADDRESS_DEFAULT        0
#define SHC_CU_PROC_FOUND                  0
#define SHC_CU_PROC_NOT_FOUND              1
#define SHC_CU_PROC_VERSION_NOT_SUFFICIENT 2
#define SHC_CU_ALLOCATION_PINNED           1
#define SHC_CU_LOCATION_DEVICE             1
#define SHC_CU_HANDLE_POSIX_FD             1
#define SHC_CU_ACCESS_READWRITE            3
#define SHC_CU_GRANULARITY_MINIMUM         0
#define SHC_CU_IPC_LAZY_PEER_ACCESS        1
#define SHC_CU_HOST_PORTABLE               1
#define SHC_CU_HOST_DEVICEMAP              2
#define SHC_CU_STREAM_NON_BLOCKING         1
#define SHC_CU_WAIT_GEQ                    0
#define SHC_CU_WRITE_DEFAULT               0
#define SHC_CU_EVENT_DISABLE_TIMING        2
#define SHC_CU_POINTER_DEVICE_ORDINAL      9
#define SHC_CU_MEMORY_UNIFIED              4
#define SHC_CU_CAPTURE_NONE                0 /* of a stream */
#define SHC_CU_CAPTURE_ACTIVE              1
#define SHC_CU_CAPTURE_BROKEN              2
#define SHC_CU_CAPTURE_GLOBAL              0 /* of a capture, and of a thread */
#define SHC_CU_CAPTURE_THREAD_LOCAL        1
#define SHC_CU_CAPTURE_RELAXED             2

/* ---- structs, with CUDA's layouts ---- */

/* An address in a GPU's memory, or of host memory as a GPU sees it. */
typedef uint64_t shc_cu_address;

struct shc_cu_uuid {
    unsigned char bytes[16];
};

struct shc_cu_ipc_handle {
    char reserved[64];
};

struct shc_cu_location {
    int type;
    int id;
};

struct shc_cu_allocation {
    int type;
    int handle_types;
    struct shc_cu_location location;
    void *win32;
    unsigned char flags[8];
};

struct shc_cu_access {
    struct shc_cu_location location;
    int flags;
};

/* One end of a copy by rows. Of a type UNIFIED `device` says where, also for host memory. */
struct shc_cu_copy_end {
    size_t x, y;
    int type;
    const void *host;
    shc_cu_address device;
    void *array;
    size_t pitch; /* bytes from row to row */
};

struct shc_cu_copy_rows {
    struct shc_cu_copy_end from, to;
    size_t width, height; /* bytes of a row; rows */
};

/* Opaque to all but the driver. */
struct shc_cu_context;
struct shc_cu_stream;
struct shc_cu_event;
struct shc_cu_module;
struct shc_cu_function;

typedef void (*shc_cu_host_fn)(void *arg);

/* As kernels take it; of a GPU's memory nothing that the CPU may follow. */
SHC_INLINE void *shc_cu_pointer(shc_cu_address address)
{
    return (void *)(uintptr_t)address;
}

/* ---- the functions ----
 *
 * CALL(name, version, need, parameters): `version` is that of CUDA in which this form of the
 * function appeared (1000 * major + 10 * minor): the driver is asked for this very form. `need`:
 *   NEED  no driver that we accept is without it
 *   MAY   without it something falls back (the table holds NULL)
 */
/* clang-format off */
#define SHC_DRIVER_CALLS(CALL)                                                                     \
    CALL(cuDriverGetVersion, 2020, NEED, (int *version))                                           \
    CALL(cuInit, 2000, NEED, (unsigned flags))                                                     \
    CALL(cuGetErrorName, 6000, NEED, (int result, const char **name))                              \
    CALL(cuGetErrorString, 6000, NEED, (int result, const char **text))                            \
    CALL(cuDeviceGetCount, 2000, NEED, (int *count))                                               \
    CALL(cuDeviceGet, 2000, NEED, (int *device, int ordinal))                                      \
    CALL(cuDeviceGetName, 2000, NEED, (char *name, int capacity, int device))                      \
    CALL(cuDeviceGetUuid, 11040, NEED, (struct shc_cu_uuid *uuid, int device))                     \
    CALL(cuDeviceGetAttribute, 2000, NEED, (int *value, int attribute, int device))                \
    CALL(cuDeviceCanAccessPeer, 4000, NEED, (int *can, int device, int peer))                      \
    CALL(cuDevicePrimaryCtxRetain, 7000, NEED, (struct shc_cu_context **context, int device))      \
    CALL(cuDevicePrimaryCtxRelease, 11000, NEED, (int device))                                     \
    CALL(cuCtxPushCurrent, 4000, NEED, (struct shc_cu_context *context))                           \
    CALL(cuCtxPopCurrent, 4000, NEED, (struct shc_cu_context **context))                           \
    CALL(cuMemAlloc, 3020, NEED, (shc_cu_address *address, size_t bytes))                          \
    CALL(cuMemFree, 3020, NEED, (shc_cu_address address))                                          \
    CALL(cuMemGetInfo, 3020, NEED, (size_t *free, size_t *total))                                  \
    CALL(cuPointerGetAttribute, 4000, MAY,                                                         \
         (void *value, int attribute, shc_cu_address address))                                     \
    CALL(cuMemGetAllocationGranularity, 10020, MAY,                                                \
         (size_t *bytes, const struct shc_cu_allocation *allocation, int which))                   \
    CALL(cuMemCreate, 10020, MAY,                                                                  \
         (uint64_t *handle, size_t bytes, const struct shc_cu_allocation *allocation,              \
          unsigned long long flags))                                                               \
    CALL(cuMemRelease, 10020, MAY, (uint64_t handle))                                              \
    CALL(cuMemExportToShareableHandle, 10020, MAY,                                                 \
         (void *out, uint64_t handle, int type, unsigned long long flags))                         \
    CALL(cuMemImportFromShareableHandle, 10020, MAY,                                               \
         (uint64_t *handle, void *in, int type))                                                   \
    CALL(cuMemAddressReserve, 10020, MAY,                                                          \
         (shc_cu_address *address, size_t bytes, size_t alignment, shc_cu_address wish,            \
          unsigned long long flags))                                                               \
    CALL(cuMemAddressFree, 10020, MAY, (shc_cu_address address, size_t bytes))                     \
    CALL(cuMemMap, 10020, MAY,                                                                     \
         (shc_cu_address address, size_t bytes, size_t offset, uint64_t handle,                    \
          unsigned long long flags))                                                               \
    CALL(cuMemUnmap, 10020, MAY, (shc_cu_address address, size_t bytes))                           \
    CALL(cuMemSetAccess, 10020, MAY,                                                               \
         (shc_cu_address address, size_t bytes, const struct shc_cu_access *access,                \
          size_t count))                                                                           \
    CALL(cuIpcGetMemHandle, 4010, MAY, (struct shc_cu_ipc_handle *handle, shc_cu_address address)) \
    CALL(cuIpcOpenMemHandle, 11000, MAY,                                                           \
         (shc_cu_address *address, struct shc_cu_ipc_handle handle, unsigned flags))               \
    CALL(cuIpcCloseMemHandle, 4010, MAY, (shc_cu_address address))                                 \
    CALL(cuMemHostRegister, 6050, NEED, (void *memory, size_t bytes, unsigned flags))              \
    CALL(cuMemHostUnregister, 4000, NEED, (void *memory))                                          \
    CALL(cuMemHostGetDevicePointer, 3020, NEED,                                                    \
         (shc_cu_address *address, void *memory, unsigned flags))                                  \
    CALL(cuStreamCreateWithPriority, 5050, NEED,                                                   \
         (struct shc_cu_stream **stream, unsigned flags, int priority))                            \
    CALL(cuStreamDestroy, 4000, NEED, (struct shc_cu_stream *stream))                              \
    CALL(cuStreamQuery, 2000, NEED, (struct shc_cu_stream *stream))                                \
    CALL(cuStreamSynchronize, 2000, NEED, (struct shc_cu_stream *stream))                          \
    CALL(cuStreamWaitEvent, 3020, NEED,                                                            \
         (struct shc_cu_stream *stream, struct shc_cu_event *event, unsigned flags))               \
    CALL(cuStreamWriteValue64, 11070, NEED,                                                        \
         (struct shc_cu_stream *stream, shc_cu_address address, uint64_t value, unsigned flags))   \
    CALL(cuStreamWaitValue64, 11070, NEED,                                                         \
         (struct shc_cu_stream *stream, shc_cu_address address, uint64_t value, unsigned flags))   \
    CALL(cuStreamGetCaptureInfo, 10010, NEED,                                                      \
         (struct shc_cu_stream *stream, int *status, uint64_t *capture))                           \
    CALL(cuThreadExchangeStreamCaptureMode, 10010, MAY, (int *mode))                               \
    CALL(cuEventCreate, 2000, NEED, (struct shc_cu_event **event, unsigned flags))                 \
    CALL(cuEventDestroy, 4000, NEED, (struct shc_cu_event *event))                                 \
    CALL(cuEventRecord, 2000, NEED, (struct shc_cu_event *event, struct shc_cu_stream *stream))    \
    CALL(cuEventQuery, 2000, NEED, (struct shc_cu_event *event))                                   \
    CALL(cuMemcpyAsync, 4000, NEED,                                                                \
         (shc_cu_address to, shc_cu_address from, size_t bytes, struct shc_cu_stream *stream))     \
    CALL(cuMemcpy2DAsync, 3020, NEED,                                                              \
         (const struct shc_cu_copy_rows *copy, struct shc_cu_stream *stream))                      \
    CALL(cuMemsetD8Async, 3020, NEED,                                                              \
         (shc_cu_address to, unsigned char value, size_t bytes, struct shc_cu_stream *stream))     \
    CALL(cuModuleLoadData, 2000, NEED, (struct shc_cu_module **module, const void *image))         \
    CALL(cuModuleUnload, 2000, NEED, (struct shc_cu_module *module))                               \
    CALL(cuModuleGetFunction, 2000, NEED,                                                          \
         (struct shc_cu_function **function, struct shc_cu_module *module, const char *name))      \
    CALL(cuFuncLoad, 12040, MAY, (struct shc_cu_function *function))                               \
    CALL(cuLaunchKernel, 4000, NEED,                                                               \
         (struct shc_cu_function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,     \
          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,             \
          struct shc_cu_stream *stream, void **parameters, void **extra))                          \
    CALL(cuLaunchHostFunc, 10000, NEED,                                                            \
         (struct shc_cu_stream *stream, shc_cu_host_fn function, void *arg))
/* clang-format on */
