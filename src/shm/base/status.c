/* SPDX-License-Identifier: BSD-3-Clause */
#include "shm/base/status.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The calling thread's record, allocated with its first error. The thread-local memory of a library
 * that is loaded late comes out of a small reserve, and engine.h needs its share of that. */
struct error {
    enum shc_status status;
    char text[SHC_ERROR_TEXT_BYTES];
};
static _Thread_local struct error *last_error;
static pthread_key_t error_key; /* frees it at the thread's end */
static bool has_error_key;

static void free_error(void *error)
{
    free(error);
    last_error = NULL;
}

static void make_error_key(void)
{
    has_error_key = pthread_key_create(&error_key, free_error) == 0;
}

/* NULL: there is no memory for it. */
static char *room_for_error(enum shc_status status)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!last_error) {
        pthread_once(&once, make_error_key);
        struct error *error = has_error_key ? calloc(1, sizeof *error) : NULL;
        if (error && pthread_setspecific(error_key, error) != 0) {
            free(error);
            error = NULL;
        }
        last_error = error;
    }
    if (last_error)
        last_error->status = status;
    return last_error ? last_error->text : NULL;
}

static const char *const status_names[SHC_STATUS_COUNT] = {
    [SHC_OK] = "ok",
    [SHC_ERR_INVALID] = "invalid argument",
    [SHC_ERR_NOMEM] = "out of memory",
    [SHC_ERR_NOSPACE] = "out of shared memory",
    [SHC_ERR_SYSTEM] = "system error",
    [SHC_ERR_STORE] = "store error",
    [SHC_ERR_UNREACHABLE] = "ranks cannot share memory",
    [SHC_ERR_VERSION] = "version mismatch",
    [SHC_ERR_UNSUPPORTED] = "unsupported",
    [SHC_ERR_TIMEOUT] = "timeout",
    [SHC_ERR_MISMATCH] = "mismatch",
    [SHC_ERR_PEER_DEAD] = "peer dead",
    [SHC_ERR_PEER_LEFT] = "peer left",
    [SHC_ERR_ABORTED] = "aborted",
    [SHC_ERR_INTERRUPTED] = "interrupted",
    [SHC_ERR_CLOSED] = "closed",
    [SHC_ERR_FORKED] = "forked child",
    [SHC_ERR_DEADLOCK] = "deadlock",
};

static const char *const dtype_names[SHC_DTYPE_COUNT] = {
    [SHC_INT8] = "int8",
    [SHC_INT16] = "int16",
    [SHC_INT32] = "int32",
    [SHC_INT64] = "int64",
    [SHC_UINT8] = "uint8",
    [SHC_UINT16] = "uint16",
    [SHC_UINT32] = "uint32",
    [SHC_UINT64] = "uint64",
    [SHC_BOOL] = "bool",
    [SHC_FLOAT16] = "float16",
    [SHC_BFLOAT16] = "bfloat16",
    [SHC_FLOAT8_E4M3FN] = "float8_e4m3fn",
    [SHC_FLOAT8_E5M2] = "float8_e5m2",
    [SHC_FLOAT8_E4M3FNUZ] = "float8_e4m3fnuz",
    [SHC_FLOAT8_E5M2FNUZ] = "float8_e5m2fnuz",
    [SHC_FLOAT32] = "float32",
    [SHC_FLOAT64] = "float64",
    [SHC_COMPLEX64] = "complex64",
    [SHC_COMPLEX128] = "complex128",
    [SHC_OPAQUE] = "opaque",
};

static const uint8_t dtype_bytes[SHC_DTYPE_COUNT] = {
    [SHC_INT8] = 1,        [SHC_INT16] = 2,           [SHC_INT32] = 4,
    [SHC_INT64] = 8,       [SHC_UINT8] = 1,           [SHC_UINT16] = 2,
    [SHC_UINT32] = 4,      [SHC_UINT64] = 8,          [SHC_BOOL] = 1,
    [SHC_FLOAT16] = 2,     [SHC_BFLOAT16] = 2,        [SHC_FLOAT8_E4M3FN] = 1,
    [SHC_FLOAT8_E5M2] = 1, [SHC_FLOAT8_E4M3FNUZ] = 1, [SHC_FLOAT8_E5M2FNUZ] = 1,
    [SHC_FLOAT32] = 4,     [SHC_FLOAT64] = 8,         [SHC_COMPLEX64] = 8,
    [SHC_COMPLEX128] = 16, [SHC_OPAQUE] = 0,
};

static const char *const redop_names[SHC_REDOP_COUNT] = {
    [SHC_SUM] = "sum", [SHC_AVG] = "avg",   [SHC_PRODUCT] = "product",
    [SHC_MIN] = "min", [SHC_MAX] = "max",   [SHC_BAND] = "band",
    [SHC_BOR] = "bor", [SHC_BXOR] = "bxor", [SHC_PREMUL_SUM] = "premul_sum",
};

static const char *const op_kind_names[SHC_OP_KIND_COUNT] = {
    [SHC_BARRIER] = "barrier",
    [SHC_BROADCAST] = "broadcast",
    [SHC_ALL_REDUCE] = "all_reduce",
    [SHC_ALL_GATHER] = "all_gather",
    [SHC_REDUCE] = "reduce",
    [SHC_GATHER] = "gather",
    [SHC_SCATTER] = "scatter",
    [SHC_REDUCE_SCATTER] = "reduce_scatter",
    [SHC_ALL_TO_ALL] = "all_to_all",
    [SHC_ALL_GATHER_UNEVEN] = "uneven all_gather",
    [SHC_REDUCE_SCATTER_UNEVEN] = "uneven reduce_scatter",
    [SHC_ALL_REDUCE_SPARSE] = "sparse all_reduce",
    [SHC_SEND] = "send",
    [SHC_RECV] = "recv",
    [SHC_CALL] = "call",
};

/* Values read from shared memory reach these functions, so an invalid one gets a name too. */
static const char *name_of(const char *const *names, unsigned count, unsigned value)
{
    return value < count ? names[value] : "unknown";
}

const char *shc_status_name(enum shc_status status)
{
    return name_of(status_names, SHC_STATUS_COUNT, (unsigned)status);
}

const char *shc_dtype_name(enum shc_dtype dtype)
{
    return name_of(dtype_names, SHC_DTYPE_COUNT, (unsigned)dtype);
}

const char *shc_redop_name(enum shc_redop redop)
{
    return name_of(redop_names, SHC_REDOP_COUNT, (unsigned)redop);
}

const char *shc_op_kind_name(enum shc_op_kind kind)
{
    return name_of(op_kind_names, SHC_OP_KIND_COUNT, (unsigned)kind);
}

size_t shc_dtype_bytes(enum shc_dtype dtype)
{
    return (unsigned)dtype < SHC_DTYPE_COUNT ? dtype_bytes[dtype] : 0;
}

const char *shc_error_text(void)
{
    return last_error ? last_error->text : "";
}

enum shc_status shc_error_status(void)
{
    return last_error ? last_error->status : SHC_OK;
}

enum shc_status shc_fail(enum shc_status status, const char *format, ...)
{
    char *text = room_for_error(status);
    va_list args;
    va_start(args, format);
    if (text)
        vsnprintf(text, SHC_ERROR_TEXT_BYTES, format, args);
    va_end(args);
    return status;
}

/* The limit that such an error comes from. */
static const char *limit_of(int error)
{
    switch (error) {
    case EMFILE:
        return "; `ulimit -n` is the limit";
    case ENOMEM:
        return "; `ulimit -v` may be the limit";
    default:
        return "";
    }
}

enum shc_status shc_fail_errno(enum shc_status status, int error, const char *format, ...)
{
    char *text = room_for_error(status);
    va_list args;
    va_start(args, format);
    int used = text ? vsnprintf(text, SHC_ERROR_TEXT_BYTES, format, args) : -1;
    va_end(args);
    char why[SHC_STRERROR_BYTES];
    if (used >= 0 && (size_t)used < SHC_ERROR_TEXT_BYTES)
        snprintf(text + used, SHC_ERROR_TEXT_BYTES - (size_t)used, ": %s%s",
                 strerror_r(error, why, sizeof why), limit_of(error));
    return status;
}
